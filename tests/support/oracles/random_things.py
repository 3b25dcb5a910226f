"""Random things, policies and filters, and a simple reference for the result of a search."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from connectivity.subscriptions.search_feed import SearchConnection
from mappings.ids import EntityType, parse_entity_id
from mappings.model.signals import Event
from spark_store.history.replay import evolve
from spark_store.journal.journal import Journal
from spark_store.records import Change
from spark_store.search.sqlite_search import SqliteSearch
from tests.support.in_process.slow_search import SlowSearch
from tests.support.oracles.permissions import Policy, reference_has, reference_root
from tests.support.random_names import in_path, some_keys
from tests.support.random_policies import IDS, NAMESPACES, NOWS, SUBJECTS, a_policy
from tests.support.temporary_journal import TemporaryJournal

POLICIES = IDS[:3]
IDS_OF_THINGS = [f"{namespace}:{name}" for namespace in NAMESPACES for name in ("k", "l", "m")]


class Names(NamedTuple):
    """The names of attributes, features and properties in one sample."""

    x: str = "x"
    y: str = "y"
    z: str = "z"

    def places(self) -> list[str]:
        """Return the resources that a policy grants or revokes."""
        return [
            *("", "attributes", "features", "thingId", "policyId", "_revision"),
            *(f"attributes/{place}" for place in (self.x, f"{self.x}/{self.y}", self.y)),
            *(f"features/{place}" for place in (self.x, f"{self.x}/properties/{self.y}", f"{self.y}/properties")),
        ]

    def fields(self) -> list[str]:
        """Return the properties by which things are sorted, without escapes."""
        attributes = [f"attributes/{place}" for place in (self.x, f"{self.x}/{self.y}", self.y)]
        return [*attributes, *(f"features/{name}/properties/{self.y}" for name in (self.x, self.y))]

    def comparable(self) -> list[str]:
        """Return the properties that a filter compares."""
        return [*self.fields(), f"features/*/properties/{self.y}", "_revision", "policyId", "thingId"]


PERMISSIONS: tuple[tuple[list[str], list[str]], ...] = ((["READ"], []), (["READ"], []), ([], ["READ"]), (["WRITE"], []))
Filter: TypeAlias = tuple[Any, ...]


def some_names(dice: random.Random) -> Names:
    """Return plain names, or random ones."""
    return Names() if dice.random() < 0.3 else Names(*some_keys(dice, 3))


def random_data(dice: random.Random, names: Names) -> tuple[dict[str, Policy], dict[str, dict[str, Any]]]:
    policies = {id: a_policy(dice, id) for id in POLICIES}
    for policy in policies.values():
        if dice.random() < 0.3:
            # A permission to read everything, which is unlikely to be drawn otherwise.
            whole = {"thing:/": {"grant": ["READ"], "revoke": []}}
            entry = {"subjects": {subject: {"type": "t"} for subject in SUBJECTS[:2]}, "importable": "never"}
            policy |= {"imports": {}, "entries": {"X": {**entry, "resources": whole}}}
            continue
        for entry in policy["entries"].values():
            for place in dice.sample(names.places(), dice.randint(0, 4)):
                granted, revoked = dice.choice(PERMISSIONS)
                entry["resources"][f"thing:/{in_path(place)}"] = {"grant": granted, "revoke": revoked}
    return policies, {id: a_thing(dice, id, names) for id in IDS_OF_THINGS}


def a_thing(dice: random.Random, id: str, names: Names) -> dict[str, Any]:
    thing: dict[str, Any] = {"thingId": id, "policyId": dice.choice(POLICIES)}
    if dice.random() < 0.8:
        thing["attributes"] = {name: a_value(dice, names) for name in dice.sample(names, dice.randint(0, 3))}
    if dice.random() < 0.8:
        thing["features"] = {
            name: {"properties": {names.y: a_value(dice, names)}} if dice.random() < 0.8 else dice.choice(({}, None))
            for name in dice.sample(names[:2], dice.randint(0, 2))
        }
    return thing


def a_value(dice: random.Random, names: Names) -> Any:
    return dice.choice((0, 1, 2, 2, None, True, {}, {names.y: dice.randint(0, 2)}))


def a_filter(dice: random.Random, names: Names, depth: int = 2) -> Filter:
    match dice.randint(0, 5 if depth else 2):
        case 0 | 1:
            return (dice.choice(("eq", "ne", "gt", "le")), dice.choice(names.comparable()), dice.randint(0, 2))
        case 2:
            presence = [*names.comparable(), "features/*", "features/*/properties", f"features/{names.x}"]
            return (dice.choice(("exists", "empty")), dice.choice(presence))
        case 3:
            return ("not", a_filter(dice, names, depth - 1))
        case _:
            return (dice.choice(("and", "or")), a_filter(dice, names, depth - 1), a_filter(dice, names, depth - 1))


def text_of(filter: Filter) -> str:
    operator, *parts = filter
    return f"{operator}({','.join(text_of(part) if isinstance(part, tuple) else in_path(str(part)) for part in parts)})"


class ReferenceThing:
    """A thing as some subjects see it, by the rules of the documentation."""

    def __init__(self, thing: dict[str, Any], policy: Policy, subjects: Sequence[str]) -> None:
        self.thing, self._policy, self._subjects = thing, policy, subjects

    def may(self, path: Sequence[str]) -> bool:
        return reference_has(self._policy, self._subjects, "READ", ("thing", *path))

    def is_visible(self) -> bool:
        return any(self.may(path) for path in nodes(self.thing))

    def shown(self) -> Any:
        return reference_root(self._policy, self._subjects, self.thing)

    def matches(self, filter: Filter) -> bool:
        operator, first, *rest = filter
        if operator == "not":
            return not self.matches(first)
        if operator in ("and", "or"):
            return (all if operator == "and" else any)([self.matches(first), self.matches(rest[0])])
        path = first.split("/")
        features = self.thing.get("features", {})
        if path == ["features", "*"]:
            return bool(features) is (operator == "exists")
        if path[1:2] == ["*"]:
            return any(self._satisfies(operator, ["features", name, *path[2:]], *rest) for name in features)
        return self._satisfies(operator, path, *rest)

    def _satisfies(self, operator: str, path: list[str], *wanted: int) -> bool:
        if path != ["thingId"] and not self.may(path):
            return False
        value = self._value(path)
        is_number = type(value) is int
        match operator:
            case "exists":
                return value is not ...
            case "empty":
                return value is ... or value is None or value == {}
            case "eq":
                return is_number and bool(value == wanted[0])
            case "ne":
                return value is not ... and not (is_number and value == wanted[0])
            case "gt":
                return is_number and bool(value > wanted[0])
            case _:
                return is_number and bool(value <= wanted[0])

    def standing(self, path: list[str]) -> tuple[int, Any]:
        value = self._value(path) if self.may(path) else ...
        if value is ... or value is None:
            return 0, 0
        if type(value) is int:
            return 1, value
        return (2, 0) if isinstance(value, dict) else (3, value)

    def _value(self, path: list[str]) -> Any:
        if path == ["_revision"]:
            return 1
        value: Any = self.thing
        for key in path:
            value = value.get(key, ...) if isinstance(value, dict) else ...
        return value


def nodes(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(value, dict):
        for key, member in value.items():
            yield from nodes(member, (*path, key))


def filled(journal: Journal, policies: dict[str, Policy], things: dict[str, dict[str, Any]]) -> Journal:
    changes = []
    for type, states in ((EntityType.POLICY, policies), (EntityType.THING, things)):
        for id, state in states.items():
            entity = parse_entity_id(type, id)
            assert entity is not None
            event = Event(entity, 1, NOWS[0], "created", "/", json.dumps(state).encode(), b"{}")
            changes.append(Change((event,), (evolve(None, event),)))
    journal.append(changes)
    return journal


MAKERS: dict[str, tuple[Callable[[Path], Journal], Callable[[Any], SearchConnection]]] = {
    "slow": (lambda _: TemporaryJournal(), SlowSearch),
    "indexed": (Journal.open, lambda journal: SqliteSearch(journal.path)),
}
"""The journals, and the search for each."""
