"""What searches find and show, against a second evaluation that is slow and obvious: thousands of random questions.

Policies have all that they may have (imports, references, namespaces, expiries), things have no arrays. Every question is
asked twice: of whoever looks among all things, and of whoever is told their ids.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from connectivity.pages import item
from connectivity.searching import Reading
from connectivity.twins.rights import ThingRights
from connectivity.twins.world import PresentWorld
from mappings.ids import EntityId, EntityType, parse_entity_id
from mappings.signals import Event
from spark_store.asking import Budget, Question, Search
from spark_store.journal import Journal, SqliteJournal
from spark_store.memory import MemoryJournal
from spark_store.named import NamedThing, named_thing
from spark_store.records import Change
from spark_store.replay import evolve
from spark_store.rql.options import read_options
from spark_store.rql.search import read
from spark_store.search import SqliteSearch
from tests.support.dice import dice, examples
from tests.support.in_process.slow_search import SlowSearch
from tests.support.oracles.permissions import Policy, flattened, obvious_has, obvious_root
from tests.unit.connectivity.twins.test_decide_oracle import IDS, NAMESPACES, NOWS, SUBJECTS, a_policy

WORLDS, QUESTIONS = examples(40), 20
POLICIES = IDS[:3]
NAMES = [f"{namespace}:{name}" for namespace in NAMESPACES for name in ("k", "l", "m")]
PLACES = (
    "",
    "attributes",
    "attributes/x",
    "attributes/x/y",
    "attributes/y",
    "features",
    "features/x",
    "features/x/properties/y",
    "features/y/properties",
    "thingId",
    "policyId",
    "_revision",
)
FIELDS = ("attributes/x", "attributes/x/y", "attributes/y", "features/x/properties/y", "features/y/properties/y")
PERMISSIONS = ((["READ"], []), (["READ"], []), ([], ["READ"]), (["WRITE"], []))
Filter: TypeAlias = tuple[Any, ...]


# --- dice ---------------------------------------------------------------------------------------------------------------


def a_world(dice: random.Random) -> tuple[dict[str, Policy], dict[str, dict[str, Any]]]:
    policies = {id: a_policy(dice, id) for id in POLICIES}
    for policy in policies.values():
        if dice.random() < 0.3:
            # Somebody may read everything, which hardly ever falls otherwise.
            whole = {"thing:/": {"grant": ["READ"], "revoke": []}}
            entry = {"subjects": {subject: {"type": "t"} for subject in SUBJECTS[:2]}, "importable": "never"}
            policy |= {"imports": {}, "entries": {"X": {**entry, "resources": whole}}}
            continue
        for entry in policy["entries"].values():
            for place in dice.sample(PLACES, dice.randint(0, 4)):
                granted, revoked = dice.choice(PERMISSIONS)
                entry["resources"][f"thing:/{place}"] = {"grant": granted, "revoke": revoked}
    return policies, {id: a_thing(dice, id) for id in NAMES}


def a_thing(dice: random.Random, id: str) -> dict[str, Any]:
    thing: dict[str, Any] = {"thingId": id, "policyId": dice.choice(POLICIES)}
    if dice.random() < 0.8:
        thing["attributes"] = {name: a_value(dice) for name in dice.sample("xyz", dice.randint(0, 3))}
    if dice.random() < 0.8:
        thing["features"] = {
            name: {"properties": {"y": a_value(dice)}} if dice.random() < 0.8 else {}
            for name in dice.sample("xy", dice.randint(1, 2))
        }
    return thing


def a_value(dice: random.Random) -> Any:
    return dice.choice((0, 1, 2, 2, None, True, {}, {"y": dice.randint(0, 2)}))


def a_filter(dice: random.Random, depth: int = 2) -> Filter:
    match dice.randint(0, 5 if depth else 2):
        case 0 | 1:
            return (dice.choice(("eq", "ne", "gt", "le")), a_field(dice), dice.randint(0, 2))
        case 2:
            return (dice.choice(("exists", "empty")), a_field(dice))
        case 3:
            return ("not", a_filter(dice, depth - 1))
        case _:
            return (dice.choice(("and", "or")), a_filter(dice, depth - 1), a_filter(dice, depth - 1))


def a_field(dice: random.Random) -> str:
    return dice.choice((*FIELDS, "features/*/properties/y", "_revision", "policyId", "thingId"))


def text_of(filter: Filter) -> str:
    operator, *parts = filter
    return f"{operator}({','.join(text_of(part) if isinstance(part, tuple) else str(part) for part in parts)})"


# --- the obvious rule ---------------------------------------------------------------------------------------------------


class Obvious:
    """One thing as somebody sees it, by the rules as they are written down."""

    def __init__(self, thing: dict[str, Any], policy: Policy, subjects: Sequence[str]) -> None:
        self.thing, self._policy, self._subjects = thing, policy, subjects

    def may(self, path: Sequence[str]) -> bool:
        return obvious_has(self._policy, self._subjects, "READ", ("thing", *path))

    def is_visible(self) -> bool:
        return any(self.may(path) for path in nodes(self.thing))

    def shown(self) -> Any:
        return obvious_root(self._policy, self._subjects, self.thing)

    def matches(self, filter: Filter) -> bool:
        operator, first, *rest = filter
        if operator == "not":
            return not self.matches(first)
        if operator in ("and", "or"):
            return (all if operator == "and" else any)([self.matches(first), self.matches(rest[0])])
        path = first.split("/")
        if path[1:2] == ["*"]:
            features = self.thing.get("features", {})
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


# --- the real thing -----------------------------------------------------------------------------------------------------


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


def found(search: Search, question: Question, rights: ThingRights, limit: int) -> list[tuple[str, Any]]:
    """Everything that is found, page by page, as it is shown."""
    place, hits = None, []
    while True:
        page = search.page(question, rights, place, limit, Budget(60))
        hits += [(hit.thing_id, json.loads(item(hit, None))) for hit in page.hits]
        place = page.place
        if page.is_last:
            return hits


MAKERS: dict[str, tuple[Callable[[Path], Journal], Callable[[Any], Reading]]] = {
    "slow": (lambda _: MemoryJournal(), SlowSearch),
    "indexed": (SqliteJournal.open, lambda journal: SqliteSearch(journal.path)),
}
"""Journals, and what searches them."""


@pytest.mark.parametrize(
    ("maker", "worlds"),
    [
        ("slow", WORLDS),
        ("indexed", WORLDS),
        pytest.param("indexed", 50 * WORLDS, marks=pytest.mark.soak(shard="properties")),
    ],
)
def test_what_is_found_and_shown_agrees_with_the_obvious_rule(maker: str, worlds: int, tmp_path: Path) -> None:
    chance = dice("searching", maker, worlds)
    number = 0
    for world in range(worlds):
        policies, things = a_world(chance)
        open_journal, open_search = MAKERS[maker]
        journal = filled(open_journal(tmp_path / f"{world}.db"), policies, things)
        search = open_search(journal)
        now = chance.choice(NOWS)
        present = PresentWorld(search.snapshot, lambda now=now: now)  # type: ignore[misc]
        for _ in range(QUESTIONS):
            subjects = tuple(chance.sample(SUBJECTS, chance.randint(1, 2)))
            filter = a_filter(chance)
            namespaces = chance.sample(NAMESPACES, chance.choice((0, 0, 1, 2)))
            field, sign = chance.choice(FIELDS), chance.choice("+-")
            order = read_options(f"sort({sign}{field})").order
            expected = [
                each
                for id, thing in things.items()
                if not namespaces or id.partition(":")[0] in namespaces
                for each in [
                    Obvious(thing, flattened(thing["policyId"], policies, now, id.partition(":")[0]), subjects)
                ]
                if each.is_visible() and each.matches(filter)
            ]
            expected.sort(key=lambda each: each.thing["thingId"])
            expected.sort(key=lambda each: each.standing(field.split("/")), reverse=sign == "-")
            answer = [(each.thing["thingId"], each.shown()) for each in expected]
            about = (text_of(filter), field, subjects, namespaces, policies, things, now)
            asked = read(text_of(filter), datetime(2030, 1, 15, tzinfo=UTC))
            question = Question(asked, order, frozenset(namespaces))
            assert found(search, question, ThingRights(present, subjects), chance.randint(1, 9)) == answer, about
            for id in things:
                with_id = read(f'and({text_of(filter)},eq(thingId,"{id}"))', datetime.now(UTC))
                named = Question(with_id, order, question.namespaces)
                entity = named_thing(named.predicate)
                assert entity is not None
                by_name = NamedThing(entity, search.snapshot)
                alone = found(by_name, named, ThingRights(present, subjects), chance.randint(1, 9))
                assert alone == [each for each in answer if each[0] == id], about
            number += len(answer)
        search.close()
        journal.close()
    assert number > worlds * QUESTIONS // 2


def test_the_dice_fall_on_every_kind_of_reader() -> None:
    """Whole access, partial access, none: each in a good part of the cases, or the agreement says little."""
    chance, seen = dice("readers"), dict.fromkeys(("whole", "part", "none"), 0)
    for _ in range(200):
        policies, things = a_world(chance)
        world = PresentWorld(lambda entity, policies=policies: _policy(entity, policies), lambda: NOWS[0])  # type: ignore[misc]
        for thing in things.values():
            namespace = thing["thingId"].partition(":")[0]
            access = ThingRights(world, chance.sample(SUBJECTS, 2)).access(thing["policyId"], namespace)
            is_seen = access is not None and access.view(thing) is not None
            seen["none" if access is None or not is_seen else "whole" if access.is_whole else "part"] += 1
    assert min(seen.values()) > 200 * len(NAMES) // 10, seen


def _policy(entity: EntityId, policies: dict[str, Policy]) -> Any:
    if entity.id not in policies:
        return None
    event = Event(entity, 1, NOWS[0], "created", "/", json.dumps(policies[entity.id]).encode(), b"{}")
    return evolve(None, event)
