"""Search results compared with a slow and simple evaluation, for thousands of random searches.

Policies use all features (imports, references, namespaces, expiries), things have no arrays. Every search runs twice:
over all things, and as a lookup by IDs.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from connectivity.subscriptions.search_feed import item
from connectivity.twins.access import ThingRights
from connectivity.twins.context import CurrentStateLookup
from mappings.ids import EntityId
from mappings.model.signals import Event
from spark_store.history.replay import evolve
from spark_store.rql.options import read_options
from spark_store.rql.query import Budget, ThingQuery, ThingSearch
from spark_store.rql.search_evaluator import read
from spark_store.search.point_lookup import PointLookup, named_thing
from tests.support.dice import THOROUGH, dice, examples
from tests.support.oracles.permissions import Policy, flattened
from tests.support.oracles.random_things import (
    IDS_OF_THINGS,
    MAKERS,
    Names,
    ReferenceThing,
    a_filter,
    filled,
    random_data,
    some_names,
    text_of,
)
from tests.support.random_names import in_path
from tests.support.random_policies import NAMESPACES, NOWS, SUBJECTS

SAMPLES, QUESTIONS = examples(40), 20 if THOROUGH else 8


# --- the implementation under test --------------------------------------------------------------------------------------


def found(search: ThingSearch, question: ThingQuery, rights: ThingRights, limit: int) -> list[tuple[str, Any]]:
    """Return all matches of all pages, as they are shown."""
    place, hits = None, []
    while True:
        page = search.page(question, rights, place, limit, Budget(60))
        hits += [(hit.thing_id, json.loads(item(hit, None))) for hit in page.hits]
        place = page.place
        if page.is_last:
            return hits


@pytest.mark.parametrize(
    ("maker", "samples"),
    [
        ("slow", SAMPLES),
        ("indexed", SAMPLES),
        pytest.param("indexed", 50 * SAMPLES, marks=pytest.mark.soak(shard="properties")),
    ],
)
def test_results_agree_with_a_simple_evaluation(maker: str, samples: int, tmp_path: Path) -> None:
    random_source = dice("searching", maker, samples)
    number = 0
    for sample in range(samples):
        names = some_names(random_source)
        policies, things = random_data(random_source, names)
        open_journal, open_search = MAKERS[maker]
        journal = filled(open_journal(tmp_path / f"{sample}.db"), policies, things)
        search = open_search(journal)
        now = random_source.choice(NOWS)
        present = CurrentStateLookup(search.snapshot, lambda now=now: now)  # type: ignore[misc]
        for _ in range(QUESTIONS):
            subjects = tuple(random_source.sample(SUBJECTS, random_source.randint(1, 2)))
            filter = a_filter(random_source, names)
            namespaces = random_source.sample(NAMESPACES, random_source.choice((0, 0, 1, 2)))
            field, sign = random_source.choice(names.fields()), random_source.choice("+-")
            order = read_options(f"sort({sign}{in_path(field)})").order
            expected = [
                each
                for id, thing in things.items()
                if not namespaces or id.partition(":")[0] in namespaces
                for each in [
                    ReferenceThing(thing, flattened(thing["policyId"], policies, now, id.partition(":")[0]), subjects)
                ]
                if each.is_visible() and each.matches(filter)
            ]
            expected.sort(key=lambda each: each.thing["thingId"])
            expected.sort(key=lambda each: each.standing(field.split("/")), reverse=sign == "-")
            answer = [(each.thing["thingId"], each.shown()) for each in expected]
            about = (text_of(filter), field, subjects, namespaces, policies, things, now)
            asked = read(text_of(filter), datetime(2030, 1, 15, tzinfo=UTC))
            question = ThingQuery(asked, order, frozenset(namespaces))
            assert found(search, question, ThingRights(present, subjects), random_source.randint(1, 9)) == answer, about
            for id in things:
                with_id = read(f'and({text_of(filter)},eq(thingId,"{id}"))', datetime.now(UTC))
                named = ThingQuery(with_id, order, question.namespaces)
                entity = named_thing(named.predicate)
                assert entity is not None
                by_name = PointLookup(entity, search.snapshot)
                alone = found(by_name, named, ThingRights(present, subjects), random_source.randint(1, 9))
                assert alone == [each for each in answer if each[0] == id], about
            number += len(answer)
        search.close()
        journal.close()
    assert number > samples * QUESTIONS // 2


def test_random_policies_include_every_kind_of_access() -> None:
    """Full, partial and no access must be frequent enough for a meaningful comparison."""
    random_source, seen = dice("readers"), dict.fromkeys(("whole", "part", "none"), 0)
    for _ in range(200):
        policies, things = random_data(random_source, Names())
        lookup = CurrentStateLookup(lambda entity, policies=policies: _policy(entity, policies), lambda: NOWS[0])  # type: ignore[misc]
        for thing in things.values():
            namespace = thing["thingId"].partition(":")[0]
            access = ThingRights(lookup, random_source.sample(SUBJECTS, 2)).access(thing["policyId"], namespace)
            is_seen = access is not None and access.view(thing) is not None
            seen["none" if access is None or not is_seen else "whole" if access.is_whole else "part"] += 1
    assert min(seen.values()) > 200 * len(IDS_OF_THINGS) // 10, seen


def _policy(entity: EntityId, policies: dict[str, Policy]) -> Any:
    if entity.id not in policies:
        return None
    event = Event(entity, 1, NOWS[0], "created", "/", json.dumps(policies[entity.id]).encode(), b"{}")
    return evolve(None, event)
