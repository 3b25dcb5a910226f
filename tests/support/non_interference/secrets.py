"""The secrets of a scenario for some subjects, and the same scenario with other secrets.

A value is secret if none of the subjects can read it, or anything below it, whenever they look after it was written:
while they watch, and when they send requests. `pairs` replaces, removes and adds secret values, and leaves out
entities on which the subjects have no permission. It keeps the values that are visible by design (`KEPT`), and nothing
else.

The permissions come from `tests.support.oracles.permissions`, not from the service's own enforcer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec

from connectivity.authorization.enforcer import DROP
from connectivity.authorization.policy_imports import EXPLICIT, IMPLICIT, NEVER
from mappings.ids import EntityId, EntityType
from mappings.model.metadata import METADATA
from mappings.timestamps import utc_text
from tests.support.non_interference.scenarios import (
    FEATURES,
    LABELS,
    MESSAGE,
    NAMES,
    SUBJECTS,
    Course,
    Moment,
    Scenario,
    Step,
    an_entry,
    course_of,
    value_at,
)
from tests.support.oracles.permissions import (
    Policy,
    flattened,
    reference_has,
    reference_partial,
    reference_unrestricted,
    reference_view,
    rows,
)

KEPT: Final = {
    "changes": "number and times of all its changes",
    "names in use": "that an ID is in use. The creation of an entity with this ID fails",
    "existence by writing": "whether that part exists",
    "references": "the numbers of things and policies that refer to it",
    "quotas": "how much of a [quota](../reference/quotas.md) a namespace uses, if this quota refuses a change of the client",
    "size": "that the whole thing would become too large, unreadable parts included",
    "objects on the way": "whether the value above this part is an object",
    "imports": "that an import of the policy would include entries that the client cannot read",
}
"""Values that stay equal although they depend on secrets; the security page lists them."""

Path = tuple[str, ...]
MISSING: Final[Any] = object()

_encode = msgspec.json.Encoder(order="sorted").encode


class Sight:
    """The permissions of subjects for an entity at some times.

    They come from its policies at these times, each with its imports resolved.
    """

    def __init__(self, policies: Sequence[Policy], subjects: Sequence[str]) -> None:
        about = [_about(policy, subjects) for policy in policies]
        self._policies = list({_encode(policy): policy for policy in about}.values())
        self._subjects = subjects
        self._known: dict[tuple[str, str, Path], bool] = {}

    def _any(self, rule: Any, permission: str, path: Path) -> bool:
        key = (rule.__name__, permission, path)
        if key not in self._known:
            self._known[key] = any(rule(policy, self._subjects, permission, path) for policy in self._policies)
        return self._known[key]

    def reads(self, path: Path) -> bool:
        """Return whether this path itself is readable at some time."""
        return self._any(reference_has, "READ", path)

    def reads_part(self, path: Path) -> bool:
        """Return whether this path, or one below it, is readable at some time."""
        return self._any(reference_partial, "READ", path)

    def writes_part(self, path: Path) -> bool:
        """Return whether this path, or one below it, is writable at some time."""
        return self._any(reference_partial, "WRITE", path)

    def is_secret(self, path: Path) -> bool:
        return not self.reads_part(path) and not self.writes_part(path)

    @cached_property
    def granted(self) -> frozenset[str]:
        """The types of resources with a grant at some time."""
        return frozenset(
            path[0]
            for policy in self._policies
            for subject, _, path, grants in rows(policy)
            if grants and subject in self._subjects
        )


def _about(policy: Policy, subjects: Sequence[str]) -> Policy:
    """Return the entries of a policy that have one of the subjects; the others do not concern them."""
    entries = policy["entries"].items()
    return {"entries": {label: it for label, it in entries if not it["subjects"].keys().isdisjoint(subjects)}}


def flat_policy(entity: EntityId, moment: Moment) -> Policy | None:
    """Return the policy of an entity at a moment, with all imports resolved; None without one."""
    snapshot = moment.states.get(entity)
    policies = moment.policies()
    if snapshot is None:
        return None
    id = entity.id if entity.type is EntityType.POLICY else snapshot.policy
    if id is None or id not in policies:
        return None
    return flattened(id, policies, utc_text(moment.at), entity.namespace)


class Look(NamedTuple):
    """A time when subjects look: the indexes of the moment with the states, and with the time."""

    states: int
    time: int


def looks_at(scenario: Scenario, entity: EntityId, step: int) -> list[Look]:
    """Return when subjects can see the change of an entity by step `step`.

    Time n is after step n; the last time is that of the requests. Subjects with read permission under the last policy
    before a deletion can see the deleted history at any time.
    """
    last = len(scenario.steps)
    first = min(max(step, _first_look(scenario)), last)
    ends = (number for number in range(step, last) if _is_deletion(scenario.steps[number], entity))
    end = next(ends, None)
    if end is None:
        return [Look(number, number) for number in range(first, last + 1)]
    return [
        *(Look(number, number) for number in range(first, end + 1)),
        *(Look(end - 1, at) for at in (end - 1, end, last)),
    ]


def _is_deletion(step: Step, entity: EntityId) -> bool:
    return (step.entity, step.action, step.path) == (entity, "delete", "/")


class Secrets:
    """The secrets of a scenario."""

    def __init__(self, scenario: Scenario, course: Course) -> None:
        self.scenario = scenario
        self.moments = [*course.moments, course.moments[-1]._replace(at=scenario.asked)]
        self._flat: dict[tuple[EntityId, Look], Policy | None] = {}
        self._sights: dict[tuple[EntityId, tuple[Look, ...]], Sight] = {}
        self._bound = set(_bound_labels(scenario))

    def sight(self, entity: EntityId, step: int) -> Sight:
        """Return the permissions for a value that step `step` writes, from then on."""
        looks = tuple(looks_at(self.scenario, entity, step))
        if (entity, looks) not in self._sights:
            found = (self._flat_at(entity, look) for look in looks)
            self._sights[entity, looks] = Sight([it for it in found if it is not None], self.scenario.subjects)
        return self._sights[entity, looks]

    def last_sight(self, entity: EntityId) -> Sight:
        """Return the permissions at the time of the requests."""
        return self.sight(entity, len(self.scenario.steps))

    def _flat_at(self, entity: EntityId, look: Look) -> Policy | None:
        if (entity, look) not in self._flat:
            moment = self.moments[look.states]
            self._flat[entity, look] = flat_policy(entity, moment._replace(at=self.moments[look.time].at))
        return self._flat[entity, look]

    @cached_property
    def absent(self) -> frozenset[EntityId]:
        """The entities on which the subjects have no permission, and which give them none elsewhere."""
        entities = {step.entity for step in self.scenario.steps}
        things = {it for it in entities if it.type is EntityType.THING and not self._has_rights(it)}
        policies = {it for it in entities if it.type is EntityType.POLICY and not self._has_rights(it)}
        used = set()
        for moment in self.moments:
            used |= {
                snapshot.policy for entity, snapshot in moment.states.items() if entity not in {*things, *policies}
            }
        while True:
            kept = {it for it in policies if it.id in used or self._importers(it) - policies}
            if not kept:
                return frozenset(things | policies)
            policies -= kept

    def _has_rights(self, entity: EntityId) -> bool:
        steps = [number for number, step in enumerate(self.scenario.steps) if step.entity == entity]
        granted = frozenset[str]().union(*(self.sight(entity, number).granted for number in steps))
        return "policy" in granted if entity.type is EntityType.POLICY else not granted.isdisjoint(("thing", "message"))

    def _importers(self, policy: EntityId) -> set[EntityId]:
        return {
            entity
            for moment in self.moments
            for entity, snapshot in moment.states.items()
            if entity.type is EntityType.POLICY and policy.id in (snapshot.state or {}).get("imports", {})
        }

    def is_free_entry(self, policy: EntityId, label: str, step: int) -> bool:
        """Return whether an entry of a policy is secret, and grants the subjects nothing."""
        is_bound = label == "ROOT" or (policy.id, label) in self._bound
        return not is_bound and self.sight(policy, step).is_secret(("policy", "entries", label))


def _bound_labels(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield policy and label of each entry that has one of the subjects, or that others refer to."""
    for step in scenario.steps:
        if step.entity.type is not EntityType.POLICY or step.value is ...:
            continue
        for label, entry in _entries(step):
            named = entry.get("subjects", {})
            if any(subject in named or step.path.endswith(f"/{subject}") for subject in scenario.subjects):
                yield step.entity.id, label
            for reference in entry.get("references", ()):
                yield step.entity.id, label
                yield reference.get("import", step.entity.id), reference["entry"]


def _entries(step: Step) -> Iterator[tuple[str, Mapping[str, Any]]]:
    match step.path.split("/")[1:]:
        case [""]:
            yield from step.value["entries"].items()
        case ["entries", label]:
            yield label, step.value
        case ["entries", label, *_]:
            yield label, {}


class Pair(NamedTuple):
    """A step, and the step of the other scenario in its place, or None."""

    one: Step
    other: Step | None


def pairs(scenario: Scenario, dice: random.Random) -> list[Pair] | None:
    """Return the steps of a scenario and of one with other secrets; None if the latter fail."""
    course = course_of(scenario.steps)
    assert course is not None, "a step of the scenario fails"
    secrets = Secrets(scenario, course)
    is_absent = dice.random() < 0.5
    other, found = Course(), []
    for number, step in enumerate(scenario.steps):
        if is_absent and step.entity in secrets.absent:
            found.append(Pair(step, None))
            continue
        for wildness in (1.0, 0.4, 0.0):
            changed = _Change(secrets, number, dice, wildness).step(step)
            if changed is None or other.take(changed):
                break
        else:
            return None
        found.append(Pair(step, changed))
    return found


def scenarios_of(scenario: Scenario, pairs: Sequence[Pair]) -> tuple[Scenario, Scenario]:
    """Return both scenarios. A step that one of them lacks still takes its time there."""
    others = [pair.other for pair in pairs if pair.other is not None]
    before = sum(pair.other is not None for pair in pairs[: scenario.watched])
    begins = pairs[scenario.watched - 1].one.at if scenario.watched else None
    one = scenario._replace(steps=[pair.one for pair in pairs], begins=begins)
    return one, one._replace(steps=others, watched=before)


class _Change:
    """Changes the secret values of a step. `wildness` is the share of secrets that change."""

    def __init__(self, secrets: Secrets, number: int, dice: random.Random, wildness: float) -> None:
        self._secrets = secrets
        self._number = number
        self._dice = dice
        self._wildness = wildness

    def step(self, step: Step) -> Step | None:
        """Return the step of the other scenario, or None if it has none."""
        if not self._is_struck():
            return step
        if step.entity.type is EntityType.POLICY:
            return self._policy_step(step)
        sight = self._secrets.sight(step.entity, self._number)
        path = ("thing", *(name for name in step.path.split("/") if name))
        if step.action == MESSAGE:
            return self._message(step, sight, ("message", *path[1:]))
        if len(path) > 1 and path[1] != "policyId" and sight.is_secret(path):
            return self._secret_step(step)
        if step.value is ...:
            return step
        return step._replace(value=self._value(step.value, path, sight), headers=self._headers(step, path, sight))

    def _headers(self, step: Step, path: Path, sight: Sight) -> Mapping[str, Any]:
        """Return the headers with other metadata for a secret part."""
        puts = step.headers.get("put-metadata", ())
        if not any(sight.is_secret((*path, *put["key"].split("/")[:-1])) for put in puts if "*" not in put["key"]):
            return step.headers
        return {} if self._dice.random() < 0.3 else {"put-metadata": [{**put, "value": "other"} for put in puts]}

    def _is_struck(self) -> bool:
        return self._dice.random() < self._wildness

    def _message(self, step: Step, sight: Sight, path: Path) -> Step | None:
        if sight.reads(path):
            return step
        return None if self._dice.random() < 0.5 else step._replace(value=self._other_text())

    def _secret_step(self, step: Step) -> Step:
        """Return another change of a part that is completely secret."""
        headers = {} if self._dice.random() < 0.5 else {"put-metadata": [{"key": "unit", "value": self._other_text()}]}
        action = self._dice.choice(("modify", "merge", "delete"))
        if action == "delete":
            return step._replace(action=action, value=..., headers={})
        return step._replace(action=action, value=self._other(step.path), headers=headers)

    def _value(self, value: Any, path: Path, sight: Sight) -> Any:
        """Return a value that looks the same to the subjects."""
        if path[1:2] == ("policyId",):
            return value
        if not sight.reads_part(path) and len(path) > 1:
            return self._same_form(value) if sight.writes_part(path) else self._other("/" + "/".join(path[1:]))
        if isinstance(value, Mapping):
            return self._members(value, path, sight)
        if isinstance(value, list):
            return [self._value(element, path, sight) for element in value]
        return value if sight.reads(path) else self._same_form(value)

    def _members(self, value: Mapping[str, Any], path: Path, sight: Sight) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, member in value.items():
            is_secret = (len(path) > 1 or name != "policyId") and sight.is_secret((*path, name))
            if is_secret and self._dice.random() < 0.3:
                continue
            found[name] = self._value(member, (*path, name), sight)
        for name in self._further_names(path):
            if name not in value and sight.is_secret((*path, name)) and self._dice.random() < 0.4:
                found[name] = self._other("/" + "/".join((*path[1:], name)))
        # If only something below is readable, an empty object must stay empty.
        is_alike = len(path) == 1 or sight.reads(path) or bool(found) == bool(value)
        return found if is_alike else dict(value)

    def _further_names(self, path: Path) -> Sequence[str]:
        match path[1:]:
            case ():
                return ("attributes", "features", "definition")
            case ("features",):
                return (*FEATURES, "h")
            case ("features", _):
                return ("properties", "definition")
            case _:
                return (*NAMES, "w")

    def _same_form(self, value: Any) -> Any:
        """Return another value with the same members."""
        if isinstance(value, Mapping):
            return {name: self._same_form(member) for name, member in value.items()}
        if isinstance(value, list):
            return [self._same_form(element) for element in value]
        return None if value is None else self._other_text()

    def _other(self, place: str) -> Any:
        found = value_at(self._dice, place)
        return self._other_text() if not isinstance(found, Mapping | list) and place != "/definition" else found

    def _other_text(self) -> Any:
        return self._dice.choice((self._dice.randint(5, 10**9), "other" * self._dice.randint(1, 30), "red", 1))

    # policies

    def _policy_step(self, step: Step) -> Step:
        match step.path.split("/")[1:]:
            case [""] if step.value is not ...:
                return step._replace(value={**step.value, "entries": self._other_entries(step)})
            case ["entries", label, *_] if self._secrets.is_free_entry(step.entity, label, self._number):
                is_imported = label in self._implicit_labels(step)
                return step._replace(action="modify", path=f"/entries/{label}", value=self._entry(is_imported))
        return step

    def _implicit_labels(self, step: Step) -> frozenset[str]:
        """Return the labels whose entries are implicitly importable after the step."""
        state = self._secrets.moments[self._number].states[step.entity].state or {}
        entries = state.get("entries", {}).items()
        return frozenset(label for label, entry in entries if entry["importable"] == IMPLICIT)

    def _other_entries(self, step: Step) -> dict[str, Any]:
        found: dict[str, Any] = {}
        implicit = self._implicit_labels(step)
        for label, entry in step.value["entries"].items():
            if not self._secrets.is_free_entry(step.entity, label, self._number):
                found[label] = entry
            elif label in implicit or self._dice.random() < 0.6:
                found[label] = self._entry(label in implicit)
        for label in sorted({*LABELS, "W"} - step.value["entries"].keys()):
            if self._secrets.is_free_entry(step.entity, label, self._number) and self._dice.random() < 0.3:
                found[label] = self._entry(is_imported=False)
        return found

    def _entry(self, is_imported: bool) -> Policy:
        others = [subject for subject in (*SUBJECTS, "edge:other") if subject not in self._secrets.scenario.subjects]
        entry = an_entry(self._dice, LABELS, (), others)
        entry.pop("references", None)
        entry["subjects"] = {subject: {"type": "t"} for subject in self._dice.sample(others, 1)}
        entry["importable"] = IMPLICIT if is_imported else self._dice.choice((EXPLICIT, NEVER))
        return entry


def _first_look(scenario: Scenario) -> int:
    """Return the step after which subjects look first; live subscriptions may start with the past."""
    return max(0, scenario.watched - 1)


def looks_alike(scenario: Scenario, pairs: Sequence[Pair]) -> bool:
    """Return whether two scenarios look the same to the subjects, by simple rules; False if a step fails."""
    scenario, beside = scenarios_of(scenario, pairs)
    courses = course_of(scenario.steps), course_of(beside.steps)
    if courses[0] is None or courses[1] is None:
        return False
    one = _observed(scenario, courses[0], pairs, [True] * len(pairs))
    other = _observed(scenario, courses[1], pairs, [pair.other is not None for pair in pairs])
    first = _first_look(scenario)
    if any(_shown(scenario, a) != _shown(scenario, b) for a, b in zip(one[first:], other[first:], strict=True)):
        return False
    return all(
        _visible_step(scenario, pair.one, one[look.states], one[look.time])
        == _visible_step(scenario, pair.other, other[look.states], one[look.time])
        for number, pair in enumerate(pairs)
        for look in looks_at(scenario, pair.one.entity, number)
    )


def _observed(scenario: Scenario, course: Course, pairs: Sequence[Pair], happens: Sequence[bool]) -> list[Moment]:
    """Return the moments after each step, also missing ones, and the moment of the requests."""
    moments, at = [Moment(scenario.asked, {})], iter(course.moments)
    for pair, is_step in zip(pairs, happens, strict=True):
        moments.append(next(at) if is_step else moments[-1]._replace(at=pair.one.at))
    return [*moments[1:], moments[-1]._replace(at=scenario.asked)]


def _visible_step(scenario: Scenario, step: Step | None, moment: Moment, time: Moment) -> Any:
    """Return what subjects see of a step under the permissions of a moment; None for nothing."""
    policy = flat_policy(step.entity, moment._replace(at=time.at)) if step is not None else None
    if step is None or policy is None:
        return None
    kind = "message" if step.action == MESSAGE else step.entity.type.value
    path = (kind, *(name for name in step.path.split("/") if name))
    if not reference_partial(policy, scenario.subjects, "READ", path):
        return None
    if step.value is ...:
        return step.action, step.path
    seen = reference_view(policy, scenario.subjects, step.value, path)
    return step.action, step.path, None if seen is DROP else seen


def _metadata(policy: Policy, subjects: Sequence[str], metadata: Any, data: Any, path: Path) -> list[Any]:
    """Return the visible leaves of the metadata of a part, with their paths.

    Metadata is visible if its part is readable as a whole.
    """
    if reference_unrestricted(policy, subjects, "READ", path):
        return _leaves(metadata, path)
    if not isinstance(data, Mapping):
        return []
    return [
        leaf
        for name, member in metadata.items()
        if isinstance(member, Mapping) and name in data
        for leaf in _metadata(policy, subjects, member, data[name], (*path, name))
    ]


def _leaves(metadata: Any, path: Path) -> list[Any]:
    if isinstance(metadata, Mapping):
        return [leaf for name, member in metadata.items() for leaf in _leaves(member, (*path, name))]
    return [[path, metadata]]


def _shown(scenario: Scenario, moment: Moment) -> list[Any]:
    """Return what the subjects may see and do at a moment."""
    found: list[Any] = []
    for entity, snapshot in sorted(moment.states.items(), key=lambda it: (it[0].type.value, it[0].id)):
        policy = flat_policy(entity, moment)
        if policy is None or snapshot.state is None:
            continue
        kinds = ("policy",) if entity.type is EntityType.POLICY else ("thing", "message")
        granted = {row[1:] for row in rows(policy) if row[0] in scenario.subjects and row[2][0] in kinds}
        if not any(grants for *_, grants in granted):
            continue
        found.append([str(entity), sorted(map(repr, granted))])
        if not reference_partial(policy, scenario.subjects, "READ", (entity.type.value,)):
            continue
        document = {name: value for name, value in snapshot.state.items() if name != METADATA}
        metadata = snapshot.state.get(METADATA, {})
        seen = reference_view(policy, scenario.subjects, document, (entity.type.value,))
        shown = _metadata(policy, scenario.subjects, metadata, document, (entity.type.value,))
        found.append([snapshot.revision, {} if seen is DROP else seen, shown])
    return found
