"""Visible parts of an event: by examples, and compared with a second, slow and obvious computation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from connectivity.authorization.enforcer import DROP, Enforcer
from connectivity.targets.signal_context import TWIN_EVENTS, SignalContext, SuppressionReason
from connectivity.targets.topic_filter import TopicFilter
from connectivity.twins.access import Visibility, readable, view_of_path
from connectivity.twins.incarnations import WithoutPast
from mappings.ids import EntityId, EntityType
from mappings.model.signals import TwinEvent
from spark_store.records import Snapshot
from tests.support.dice import dice, examples
from tests.support.in_process.topic_filter_harness import CLOCK
from tests.support.oracles.permissions import Policy, nearest
from tests.support.small_policies import A, B, C, a_policy
from tests.support.table import each_row

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
HIDDEN = a_policy(([A], "thing:/", ["READ"], []), ([A], "thing:/attributes/x", [], ["READ"]))
PART = a_policy(([A], "thing:/attributes/x", ["READ"], []))


@each_row(
    ("policy", "path", "value", "seen"),
    [
        (HIDDEN, "/attributes", {"x": 1, "y": 2}, {"y": 2}),
        (HIDDEN, "/attributes", {"x": 1}, {}),
        (HIDDEN, "/attributes", {}, {}),
        (HIDDEN, "/attributes", {"y": {}}, {"y": {}}),
        (HIDDEN, "/attributes", [], []),
        (HIDDEN, "/attributes", [{"x": 1, "y": 2}, 3], [{"y": 2}, 3]),
        (HIDDEN, "/attributes", 5, 5),
        (HIDDEN, "/attributes", None, None),
        (HIDDEN, "/", {"thingId": "a:b", "attributes": {"x": 1}}, {"thingId": "a:b", "attributes": {}}),
        (HIDDEN, "/", {"attributes": {"x": None, "y": None}}, {"attributes": {"y": None}}),
        (PART, "/attributes", {"x": {"deep": [1]}, "y": 2}, {"x": {"deep": [1]}}),
        (PART, "/attributes", {"y": 2}, DROP),
        (PART, "/attributes", {}, DROP),
        (PART, "/attributes", [{"x": 1}], DROP),
        (PART, "/attributes", "text", DROP),
        (PART, "/attributes", None, DROP),
        (PART, "/", {"thingId": "a:b", "policyId": "a:p", "attributes": {"y": 1}}, DROP),
        (
            PART,
            "/",
            {"thingId": "a:b", "policyId": "a:p", "attributes": {"x": 1}},
            {"thingId": "a:b", "attributes": {"x": 1}},
        ),
        (PART, "/", {"attributes": {"y": 1}}, DROP),
    ],
)
def test_5_6_a_subject_sees_only_the_readable_part_of_a_value(policy: Policy, path: str, value: Any, seen: Any) -> None:
    found = readable(Enforcer(policy), [A], path, value)
    assert found is DROP if seen is DROP else found == seen


@each_row(
    ("policy", "path", "much"),
    [
        (HIDDEN, "/features", Visibility.WHOLE),
        (HIDDEN, "/attributes", Visibility.PART),
        (HIDDEN, "/attributes/x", Visibility.NOTHING),
        (HIDDEN, "/attributes/x/deep", Visibility.NOTHING),
        (PART, "/attributes/x/deep", Visibility.WHOLE),
        (PART, "/", Visibility.PART),
        (PART, "/attributes/y", Visibility.NOTHING),
        (PART, "/features", Visibility.NOTHING),
    ],
)
def test_5_6_how_much_is_seen_at_a_path(policy: Policy, path: str, much: Visibility) -> None:
    assert view_of_path(Enforcer(policy), [A], path) is much
    assert view_of_path(Enforcer(policy), [B], path) is Visibility.NOTHING


# --- the reference: check every leaf with the policy, and combine the visible ones ---


class OneThing(WithoutPast):
    """A present with one thing, whose policy is this one."""

    def __init__(self, policy: Policy) -> None:
        self._enforcer = Enforcer(policy)

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        return Snapshot(entity, 9, "", "", {}, "acme.site:p")

    def enforcer(self, _policy_id: str, _namespace: str | None = None) -> Enforcer:
        return self._enforcer

    def now(self) -> Any:
        return CLOCK


def may_read(policy: Policy, subjects: Sequence[str], place: tuple[str, ...]) -> bool:
    states = [state for subject in subjects if (state := nearest(policy, subject, "READ", place))]
    granted = [depth for grants, depth in states if grants]
    revoked = [depth for grants, depth in states if not grants]
    return bool(granted) and (not revoked or max(granted) > max(revoked))


def mentioned(policy: Policy, subjects: Sequence[str], place: tuple[str, ...], kind: str) -> set[tuple[str, ...]]:
    """The places at this one or below it with a statement about one of the subjects."""
    return {
        segments
        for entry in policy["entries"].values()
        for resource, permissions in entry["resources"].items()
        if "READ" in permissions[kind] and set(subjects) & set(entry["subjects"])
        if (segments := tuple(resource.replace(":", "").rstrip("/").split("/")))[: len(place)] == place
    }


Path = tuple[str | int, ...]


def leaves(value: Any, place: Path = ()) -> list[tuple[Path, Any]]:
    """Return path and value of everything that is no object or array, or an empty one."""
    if isinstance(value, dict) and value:
        return [leaf for key, member in value.items() for leaf in leaves(member, (*place, key))]
    if isinstance(value, list) and value:
        return [leaf for index, member in enumerate(value) for leaf in leaves(member, (*place, index))]
    return [(place, value)]


def inner(value: Any, place: Path = ()) -> list[Path]:
    """Return the paths of all objects and arrays that are not empty."""
    if not isinstance(value, (dict, list)) or not value:
        return []
    members = value.items() if isinstance(value, dict) else enumerate(value)
    return [place, *(below for key, member in members for below in inner(member, (*place, key)))]


def names(place: Path) -> tuple[str, ...]:
    """The keys along a place; indices of arrays do not count."""
    return tuple(step for step in place if isinstance(step, str))


def put_together(value: Any, kept: set[Path], place: Path = ()) -> Any:
    """The value with nothing but what leads to a kept place."""
    leading = [each for each in kept if each[: len(place)] == place]
    if not leading:
        return DROP
    if isinstance(value, dict):
        found = {key: put_together(member, kept, (*place, key)) for key, member in value.items()}
        return {key: member for key, member in found.items() if member is not DROP}
    if isinstance(value, list):
        elements = [put_together(member, kept, (*place, index)) for index, member in enumerate(value)]
        return [element for element in elements if element is not DROP]
    return value


def obvious(policy: Policy, subjects: Sequence[str], path: tuple[str, ...], value: Any) -> Any:
    """Return the visible part of an event's value, or DROP if it has none; `...` means no value."""
    here = ("thing", *path)
    is_readable = may_read(policy, subjects, here)
    granted = mentioned(policy, subjects, here, "grant")
    if not is_readable and not any(may_read(policy, subjects, place) for place in granted):
        return DROP
    if value is ... or (is_readable and not mentioned(policy, subjects, here, "revoke")):
        return value
    if not isinstance(value, dict) and not is_readable:
        return DROP
    kept = {
        place
        for place in [*(place for place, _ in leaves(value)), *inner(value)]
        if may_read(policy, subjects, (*here, *names(place)))
    }
    if kept and not path and isinstance(value, dict) and "thingId" in value:
        kept.add(("thingId",))
    seen = put_together(value, kept)
    if seen is DROP and is_readable and isinstance(value, (dict, list)):
        return type(value)()
    return DROP if seen in ({}, []) and not is_readable else seen


KEYS = ("attributes", "x", "y", "thingId")


def a_policy_of_readers(dice: random.Random) -> Policy:
    rules = []
    for _ in range(dice.randint(1, 5)):
        path = "/".join(dice.choices(KEYS[:3], k=dice.randint(0, 3)))
        permissions: tuple[list[str], list[str]] = dice.choice(
            ((["READ"], []), (["READ"], []), ([], ["READ"]), (["WRITE"], []))
        )
        rules.append((dice.sample((A, B, C), dice.randint(1, 3)), f"thing:/{path}", *permissions))
    return a_policy(*rules)


def a_value(dice: random.Random, depth: int) -> Any:
    match dice.randint(0, 6 if depth else 1):
        case 0:
            return None
        case 1:
            return dice.randint(0, 9)
        case 2:
            return [a_value(dice, depth - 1) for _ in range(dice.randint(0, 2))]
        case _:
            keys = dice.sample(KEYS, dice.randint(0, 3))
            return {key: a_value(dice, depth - 1) if key != "thingId" else "acme.site:lamp-7" for key in keys}


def test_reported_events_match_the_reference_rule_for_thousands_of_policies_and_events() -> None:
    random_source = dice("visible")
    outcomes = dict.fromkeys(("whole", "part", "nothing"), 0)
    count = examples(3_000)
    for _ in range(count):
        policy = a_policy_of_readers(random_source)
        present = OneThing(policy)
        subjects = random_source.sample((A, B, C), random_source.randint(1, 3))
        target = TopicFilter([TWIN_EVENTS], subjects)
        for _ in range(3):
            path = tuple(random_source.choices(KEYS[:3], k=random_source.choice((0, 0, 1, 1, 2))))
            action = random_source.choice(("created", "modified", "merged", "deleted"))
            value = ... if action == "deleted" else a_value(random_source, 3)
            raw = None if value is ... else msgspec.json.encode(value)
            event = TwinEvent(LAMP, 9, "", action, "/" + "/".join(path), raw, {})
            filtered = target.filter(SignalContext(event, present, present.now))
            seen = obvious(policy, subjects, path, value)
            if seen is DROP:
                assert filtered in (SuppressionReason.FORBIDDEN, SuppressionReason.EMPTY), (policy, event, filtered)
                outcomes["nothing"] += 1
                continue
            assert isinstance(filtered, TwinEvent), (policy, subjects, event, filtered, seen)
            found = ... if filtered.value is None else msgspec.json.decode(filtered.value)
            assert found == seen, (policy, subjects, event, seen)
            outcomes["whole" if seen == value else "part"] += 1
    assert min(outcomes.values()) > count // 30, outcomes
