"""Random histories of things and policies, as commands that all succeed.

Policies have imports, references, namespaces, expiring subjects, and grants and revokes at all depths. Policies and
things are changed, deleted and created again. `ROOT`, or a subject that takes over an ID, writes everything;
`Scenario.subjects` are the subjects that send requests later.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from connectivity.errors import TwinError
from mappings.ids import EntityId, EntityType
from mappings.timestamps import utc_text
from spark_store.records import Snapshot
from tests.support.oracles.permissions import Policy
from tests.support.twin_harness import TwinHarness, policy, thing

ROOT = "acme:root"
SUBJECTS = ("edge:a", "edge:b", "edge:c")
POLICIES = tuple(policy(id) for id in ("acme:p", "acme:q", "acme.plant:r"))
THINGS = tuple(thing(id) for id in ("acme:one", "acme:two", "acme.plant:three", "acme.plant:four"))
LABELS = ("X", "Y", "Z")
NAMES = ("x", "y", "z")
FEATURES = ("f", "g")
MESSAGE = "message"
"""The action of a step that sends a live message, which changes nothing."""

START = datetime(2030, 1, 15, 5, 0, tzinfo=UTC)
_HOURS = [f"2030-01-15T{hour:02}:00:00Z" for hour in (6, 7, 8, 9)]
_ALL = {"grant": ["READ", "WRITE"], "revoke": []}
_ROOT_ENTRY = {
    "subjects": {ROOT: {"type": "test"}},
    "resources": {"policy:/": _ALL, "thing:/": _ALL, "message:/": _ALL},
    "importable": "never",
}
_THING_PLACES = (
    *("", "", "", "attributes", "attributes", "attributes/x", "attributes/x/y", "attributes/y", "attributes/z/x"),
    *("features", "features/f", "features/f/properties", "features/f/properties/x", "features/g/definition"),
    *("policyId", "definition", "thingId"),
)
_POLICY_PLACES = ("", "", "entries", "entries/X", "entries/Y", "entries/X/subjects", "entries/Z/resources", "imports")
_MESSAGE_PLACES = ("", "inbox/messages/ask", "inbox", "features/f")
_PERMISSIONS: tuple[tuple[list[str], list[str]], ...] = (
    *((["READ"], []), (["READ"], []), (["READ"], []), (["READ"], []), ([], ["READ"]), ([], ["READ"])),
    *((["WRITE"], []), (["READ", "WRITE"], []), (["WRITE"], ["READ"]), ([], ["WRITE"])),
)


class Step(NamedTuple):
    """A command of a history, and its sender; the value `...` means that it has no value."""

    at: datetime
    entity: EntityId
    action: str
    path: str = "/"
    value: Any = ...
    headers: Mapping[str, Any] = {}
    by: str = ROOT

    def __repr__(self) -> str:
        value = "" if self.value is ... else f" = {self.value!r}"
        more = f" {dict(self.headers)}" if self.headers else ""
        return (
            f"{self.at:%H:%M:%S} {self.by} {self.action} {self.entity.type.value} {self.entity}{self.path}{value}{more}"
        )


class Moment(NamedTuple):
    """The states of all entities at one time."""

    at: datetime
    states: Mapping[EntityId, Snapshot]

    def policies(self) -> dict[str, Policy]:
        """Return all existing policies by ID."""
        return {
            entity.id: dict(snapshot.state)
            for entity, snapshot in self.states.items()
            if entity.type is EntityType.POLICY and snapshot.state is not None
        }


class Scenario(NamedTuple):
    """A history and the subjects that look at it together.

    They watch from step `watched` on, and send their requests at `asked`. `begins` is when they start to watch, if
    there are steps before.
    """

    steps: Sequence[Step]
    subjects: tuple[str, ...]
    watched: int
    asked: datetime
    begins: datetime | None = None


class Course:
    """The states of a history, step by step: `moments[n]` is the time after step n."""

    def __init__(self) -> None:
        self._harness = TwinHarness()
        self.moments: list[Moment] = []

    def take(self, step: Step) -> bool:
        """Carry out a step and return whether it succeeded."""
        if step.action == MESSAGE:
            self.moments.append(Moment(step.at, dict(self.states)))
            return True
        harness = self._harness
        harness.now = utc_text(step.at)
        try:
            harness.send(step.action, step.path, step.value, by=(step.by,), to=step.entity, **_keywords(step.headers))
        except TwinError:
            return False
        assert harness.events[-1].entity == step.entity
        self.moments.append(Moment(step.at, dict(harness.snapshots)))
        return True

    @property
    def states(self) -> Mapping[EntityId, Snapshot]:
        return self.moments[-1].states if self.moments else {}


def _keywords(headers: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("-", "_"): deepcopy(value) for name, value in headers.items()}


def course_of(steps: Sequence[Step]) -> Course | None:
    """Return the course of a history, or None if a step fails."""
    course = Course()
    return course if all(course.take(step) for step in steps) else None


def a_scenario(dice: random.Random) -> Scenario:
    """Return a random history of about ten to thirty steps."""
    subjects = tuple(dice.sample(SUBJECTS, dice.choice((1, 1, 1, 2))))
    course, at = Course(), START
    steps: list[Step] = []
    number = dice.randint(8, 26)
    tries = 0
    while len(steps) < number and tries < 10 * number:
        tries += 1
        at += timedelta(seconds=dice.choice((1, 1, 1, 60, 1800)))
        step = _a_step(dice, course, at, subjects)
        if step is None or not course.take(step):
            continue
        steps.append(step)
    watched = dice.choice((0, len(steps) // 2, len(steps) // 2, len(steps)))
    return Scenario(steps, subjects, watched, at + timedelta(seconds=dice.choice((1, 3600))))


def _a_step(dice: random.Random, course: Course, at: datetime, subjects: Sequence[str]) -> Step | None:
    policies = [entity for entity in POLICIES if _is_alive(course, entity)]
    things = [entity for entity in THINGS if _is_alive(course, entity)]
    if not policies or dice.random() < 0.15:
        return _a_new_policy(dice, course, at, subjects)
    is_gone = any(found.is_deleted for found in course.states.values())
    if not things or dice.random() < (0.35 if is_gone else 0.2):
        return _a_new_thing(dice, course, at, policies)
    if dice.random() < 0.1:
        path = dice.choice(("/inbox/messages/ask", "/features/f/inbox/messages/ask"))
        return Step(at, dice.choice(things), MESSAGE, path, a_value(dice))
    if dice.random() < 0.3:
        return _a_policy_change(dice, course, at, dice.choice(policies), subjects)
    return _a_thing_change(dice, at, dice.choice(things), policies)


def _is_alive(course: Course, entity: EntityId) -> bool:
    found = course.states.get(entity)
    return found is not None and not found.is_deleted


def _may_come(course: Course, entity: EntityId) -> bool:
    found = course.states.get(entity)
    return found is None or found.is_deleted


def _a_new_policy(dice: random.Random, course: Course, at: datetime, subjects: Sequence[str]) -> Step | None:
    free = [entity for entity in POLICIES if _may_come(course, entity)]
    if not free:
        return None
    entity = dice.choice(free)
    return Step(at, entity, "create", value=a_policy(dice, entity, course, subjects))


def a_policy(dice: random.Random, entity: EntityId, course: Course, subjects: Sequence[str]) -> Policy:
    others = [other.id for other in POLICIES if other != entity and _is_alive(course, other)]
    imports = {other: _an_import(dice, others) for other in dice.sample(others, dice.randint(0, len(others)))}
    labels = dice.sample(LABELS, dice.randint(1, 3))
    entries = {label: an_entry(dice, labels, sorted(imports), subjects) for label in labels}
    return {"policyId": entity.id, "imports": imports, "entries": {"ROOT": _ROOT_ENTRY, **entries}}


def _an_import(dice: random.Random, others: Sequence[str]) -> Policy:
    wanted: Policy = {"entries": dice.sample(LABELS, dice.randint(0, 2))}
    if dice.random() < 0.5:
        wanted["transitiveImports"] = dice.sample(others, dice.randint(0, len(others)))
    return wanted


def an_entry(dice: random.Random, labels: Sequence[str], imports: Sequence[str], subjects: Sequence[str]) -> Policy:
    """Return a random entry, more often about the given subjects than about others."""
    resources = {}
    for _ in range(dice.randint(1, 3)):
        kind, places = dice.choice(
            (*(("thing", _THING_PLACES),) * 4, ("policy", _POLICY_PLACES), ("message", _MESSAGE_PLACES))
        )
        granted, revoked = dice.choice(_PERMISSIONS)
        resources[f"{kind}:/{dice.choice(places)}"] = {"grant": granted, "revoke": revoked}
    named = set(dice.sample(SUBJECTS, dice.randint(0, 2)))
    if dice.random() < 0.8:
        named.add(dice.choice(tuple(subjects)))
    entry: Policy = {
        "subjects": {subject: _a_subject(dice) for subject in sorted(named)},
        "resources": resources,
        "importable": dice.choice(("implicit", "implicit", "explicit", "never")),
    }
    if dice.random() < 0.25:
        entry["references"] = [{"entry": dice.choice(labels)}]
        if imports:
            entry["references"].append({"import": dice.choice(imports), "entry": dice.choice(LABELS)})
    if dice.random() < 0.2:
        entry["allowedAdditions"] = dice.sample(("subjects", "resources"), dice.randint(0, 2))
    if dice.random() < 0.2:
        entry["namespaces"] = dice.sample(("acme", "acme.*", "acme.plant"), dice.randint(0, 2))
    return entry


def _a_subject(dice: random.Random) -> dict[str, Any]:
    return {"type": "t", "expiry": dice.choice(_HOURS)} if dice.random() < 0.2 else {"type": "t"}


def _a_policy_change(
    dice: random.Random, course: Course, at: datetime, entity: EntityId, subjects: Sequence[str]
) -> Step:
    state = course.states[entity].state or {}
    labels = sorted(set(state["entries"]) - {"ROOT"}) or ["X"]
    label = dice.choice(labels)
    match dice.randint(0, 9):
        case 0 | 1:
            return Step(at, entity, "modify", value=a_policy(dice, entity, course, subjects))
        case 2 | 3 | 4:
            label = dice.choice(LABELS)
            return Step(
                at, entity, "modify", f"/entries/{label}", an_entry(dice, labels, sorted(state["imports"]), subjects)
            )
        case 5:
            return Step(at, entity, "delete", f"/entries/{label}")
        case 6:
            return Step(at, entity, "modify", f"/entries/{label}/subjects/{dice.choice(SUBJECTS)}", _a_subject(dice))
        case 7:
            return Step(at, entity, "delete", f"/entries/{label}/subjects/{dice.choice(SUBJECTS)}")
        case 8:
            granted, revoked = dice.choice(_PERMISSIONS)
            place = f"thing:/{dice.choice(_THING_PLACES)}"
            return Step(
                at,
                entity,
                "modify",
                f"/entries/{label}/resources/{place}",
                {"grant": granted, "revoke": revoked},
            )
        case _:
            return (
                Step(at, entity, "delete") if dice.random() < 0.4 else Step(at, entity, "delete", f"/entries/{label}")
            )


def _a_new_thing(dice: random.Random, course: Course, at: datetime, policies: Sequence[EntityId]) -> Step | None:
    free = [entity for entity in THINGS if _may_come(course, entity)]
    if not free:
        return None
    entity, value = dice.choice(free), a_thing(dice, dice.choice(policies).id)
    if dice.random() < 0.3:
        # Under a policy of its own, which grants permissions only to the creator.
        del value["policyId"]
        return Step(at, entity, "create", value=value, by=dice.choice(SUBJECTS))
    return Step(at, entity, "create", value=value)


def a_thing(dice: random.Random, policy_id: str) -> dict[str, Any]:
    made: dict[str, Any] = {"policyId": policy_id}
    if dice.random() < 0.8:
        made["attributes"] = an_object(dice)
    if dice.random() < 0.7:
        made["features"] = {name: a_feature(dice) for name in dice.sample(FEATURES, dice.randint(0, 2))}
    if dice.random() < 0.3:
        made["definition"] = a_definition(dice)
    return made


def a_definition(dice: random.Random) -> str:
    return f"acme:lamp:{dice.randint(1, 9)}"


def a_feature(dice: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if dice.random() < 0.8:
        made["properties"] = an_object(dice)
    if dice.random() < 0.3:
        made["definition"] = [a_definition(dice)]
    return made


def an_object(dice: random.Random, depth: int = 2) -> dict[str, Any]:
    return {name: a_value(dice, depth - 1) for name in dice.sample(NAMES, dice.randint(0, 3))}


def a_value(dice: random.Random, depth: int = 1) -> Any:
    """Return a JSON value of limited depth. There are few values, so that guesses are right sometimes."""
    match dice.randint(0, 9 if depth > 0 else 5):
        case 0:
            return dice.choice((None, True, False, ""))
        case 1 | 2 | 3:
            return dice.randint(0, 4)
        case 4 | 5:
            return dice.choice(("red", "green", "ü", "2030-01-15T06:00:00Z"))
        case 6:
            return [a_value(dice, depth - 1) for _ in range(dice.randint(0, 2))]
        case _:
            return an_object(dice, depth)


def _a_thing_change(dice: random.Random, at: datetime, entity: EntityId, policies: Sequence[EntityId]) -> Step:
    headers: dict[str, Any] = {}
    if dice.random() < 0.25:
        key = dice.choice(("unit", "*/unit", "attributes/x/unit", "x/unit"))
        headers["put-metadata"] = [{"key": key, "value": dice.choice(("K", "m", {"of": "K"}))}]
    place = a_place(dice)
    match dice.randint(0, 11):
        case 0:
            return Step(at, entity, "modify", value=a_thing(dice, dice.choice(policies).id), headers=headers)
        case 1:
            return Step(at, entity, "modify", "/policyId", dice.choice(policies).id)
        case 2 | 3:
            patch = {"attributes": an_object(dice)} if dice.random() < 0.5 else {"features": {"f": a_feature(dice)}}
            return Step(at, entity, "merge", value=patch, headers=headers)
        case 4:
            return Step(at, entity, "delete", place)
        case 5 if dice.random() < 0.9:
            return Step(at, entity, "delete")
        case 6:
            return Step(at, entity, "merge", place, value_at(dice, place), headers)
        case _:
            return Step(at, entity, "modify", place, value_at(dice, place), headers)


def a_place(dice: random.Random) -> str:
    """Return the path of a part of a thing."""
    return dice.choice(
        (
            *("/attributes", "/attributes/x", "/attributes/x", "/attributes/y", "/attributes/x/y", "/attributes/z/x"),
            *("/features", "/features/f", "/features/f/properties", "/features/f/properties/x"),
            *("/features/g/properties/x", "/features/g/definition", "/definition"),
        )
    )


def value_at(dice: random.Random, place: str) -> Any:
    """Return a valid value for a part of a thing."""
    match place.split("/")[1:]:
        case ["attributes"] | ["features", _, "properties"]:
            return an_object(dice)
        case ["features"]:
            return {name: a_feature(dice) for name in dice.sample(FEATURES, dice.randint(0, 2))}
        case ["features", _]:
            return a_feature(dice)
        case ["features", _, "definition"]:
            return [a_definition(dice)]
        case ["definition"]:
            return a_definition(dice)
        case _:
            return a_value(dice)
