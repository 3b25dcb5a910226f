"""Aggregations compared with a slow and simple evaluation, over random policies.

Things, filters and the evaluation of searches are those of `test_search_feed_oracle`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from connectivity.subscriptions.aggregation_feed import AggregationFeed, FullScan, RowBudget
from connectivity.subscriptions.feed import PageEnd
from connectivity.subscriptions.search_feed import SearchService, SearchWorker
from connectivity.subscriptions.search_queue import SearchQueue
from connectivity.twins.context import CurrentStateLookup
from spark_store.rql.options import BY_ID
from spark_store.rql.pace import SearchPace, ThreadPace
from spark_store.rql.query import ThingQuery
from spark_store.rql.search_evaluator import read
from spark_store.search.aggregation import read_aggregation
from tests.support.dice import THOROUGH, dice, examples
from tests.support.oracles.permissions import flattened
from tests.support.oracles.random_things import (
    MAKERS,
    ReferenceThing,
    a_filter,
    filled,
    random_data,
    some_names,
    text_of,
)
from tests.support.random_names import in_path
from tests.support.random_policies import NOWS, SUBJECTS

SAMPLES, QUESTIONS = examples(30), 15 if THOROUGH else 6
Answered = TypeVar("Answered")


class InlineSearch:
    """Runs a search at once, without a thread."""

    def __init__(self, looking: SearchWorker) -> None:
        self._looking = looking
        self.searches = SearchQueue(1, 1, 0)

    async def look(self, _user: tuple[str, ...], look: Callable[[SearchWorker], Answered]) -> Answered:
        return look(self._looking)


async def aggregated(
    looking: SearchWorker, question: ThingQuery, subjects: tuple[str, ...], aggregation: Any
) -> list[Any]:
    everything = FullScan(cast(SearchService, InlineSearch(looking)), question, subjects, 60.0)
    feed = AggregationFeed(everything, read_aggregation(aggregation), 3, RowBudget())
    await feed.prepare()
    rows, position, then = [], 0, PageEnd.MORE
    while then is not PageEnd.END:
        page = await feed.page(position, 2, 1_000)
        rows += [row for element in page.elements for row in json.loads(element)]
        position, then = page.position, page.then
    return rows


# --- the simple evaluation


def values(seen: ReferenceThing, field: str) -> list[Any]:
    """Return the values of a field for comparison, for a subject that can see the thing."""
    path = [name.replace("~0", "~") for name in field.split("/")]
    if path[1:2] == ["*"]:
        paths = [["features", name, *path[2:]] for name in seen.thing.get("features", {})]
    else:
        paths = [path]
    found = [seen._value(each) for each in paths if each == ["thingId"] or seen.may(each)]
    return [value for value in found if value is not ... and not isinstance(value, dict)]


def standing(value: Any) -> tuple[int, Any]:
    order = [type(None), int, str, bool]
    return order.index(type(value)), 0 if value is None else value


def obvious(
    found: Iterable[ReferenceThing], groupings: dict[str, str], measures: dict[str, dict[str, str]]
) -> list[Any]:
    groups: dict[tuple[Any, ...], list[ReferenceThing]] = {} if groupings else {(): []}
    for seen in found:
        keys: list[tuple[Any, ...]] = [()]
        for field in groupings.values():
            here = {standing(value): value for value in values(seen, field)} or {standing(None): None}
            keys = [(*key, value) for key in keys for value in here.items()]
        for key in keys:
            groups.setdefault(key, []).append(seen)
    rows = []
    for key in sorted(groups, key=lambda key: [place for place, _ in key]):
        row = {name: value for name, (_, value) in zip(groupings, key, strict=True)} | {"count": len(groups[key])}
        for name, measure in measures.items():
            ((function, field),) = measure.items()
            numbers = [value for seen in groups[key] for value in values(seen, field) if type(value) is int]
            match function:
                case "sum":
                    row[name] = sum(numbers)
                case "avg":
                    mean = sum(numbers) / len(numbers) if numbers else None
                    row[name] = int(mean) if mean is not None and mean.is_integer() else mean
                case _:
                    row[name] = {"min": min, "max": max}[function](numbers) if numbers else None
        rows.append(row)
    return rows


@pytest.mark.parametrize(
    ("maker", "samples"),
    [
        ("slow", SAMPLES),
        ("indexed", SAMPLES),
        pytest.param("indexed", 30 * SAMPLES, marks=pytest.mark.soak(shard="properties")),
    ],
)
async def test_rows_agree_with_a_simple_evaluation(maker: str, samples: int, tmp_path: Path) -> None:
    random_source = dice("aggregating", maker, samples)
    number = 0
    for sample in range(samples):
        names = some_names(random_source)
        policies, things = random_data(random_source, names)
        open_journal, open_search = MAKERS[maker]
        journal = filled(open_journal(tmp_path / f"{sample}.db"), policies, things)
        pace = ThreadPace(SearchPace())
        search, now = open_search(journal), random_source.choice(NOWS)
        looking = SearchWorker(search, CurrentStateLookup(search.snapshot, lambda now=now: now), pace)  # type: ignore[misc]
        for _ in range(QUESTIONS):
            subjects = tuple(random_source.sample(SUBJECTS, random_source.randint(1, 2)))
            filter = a_filter(random_source, names)
            groupings = {
                f"g{n}": in_path(random_source.choice(names.comparable()))
                for n in range(random_source.choice((0, 1, 1, 2)))
            }
            functions = random_source.sample(("min", "max", "sum", "avg"), random_source.randint(0, 2))
            measures = {
                f"m{n}": {function: in_path(random_source.choice(names.comparable()[:-2]))}
                for n, function in enumerate(functions)
            }
            seen = [
                ReferenceThing(thing, flattened(thing["policyId"], policies, now, id.partition(":")[0]), subjects)
                for id, thing in sorted(things.items())
            ]
            expected = obvious(
                [each for each in seen if each.is_visible() and each.matches(filter)], groupings, measures
            )
            about = (text_of(filter), groupings, measures, subjects, policies, things, now)
            question = ThingQuery(read(text_of(filter), datetime(2030, 1, 15, tzinfo=UTC)), (BY_ID,))
            found = await aggregated(looking, question, subjects, {"groupBy": groupings, "measures": measures})
            # As text, in which 1, 1.0 and true differ.
            assert json.dumps(found) == json.dumps(expected), about
            number += sum(row["count"] for row in found)
        search.close()
        journal.close()
    assert number > samples * QUESTIONS // 2
