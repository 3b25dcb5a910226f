"""Searches of the past: the time to the first page, with a million events of things of 1 KB.

The events are readings of sensors, and the pipeline writes snapshots as usual. The searched times are spread over the
whole past: some shortly after a snapshot, some long after one.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from connectivity.store.store import Store
from connectivity.subscriptions.as_of_feed import AsOfFeed, AsOfSearches, PastOptions
from connectivity.subscriptions.feed import PageEnd
from connectivity.subscriptions.search_feed import SearchRequest
from connectivity.twins.context import CurrentStateLookup
from spark_store.journal.journal import Journal
from spark_store.lake.reader import versions_before
from spark_store.lake.tables import Lake
from spark_store.queries.spark_query import SparkQueries
from spark_store.rql.options import read_options
from spark_store.rql.query import ThingQuery
from spark_store.rql.search_evaluator import read
from tests.bench.harness import FULL, SUBJECT, Scale
from tests.bench.lake import pipeline, wait_for
from tests.bench.long_journals import BEGUN, VALUE_PATH, Things, write_policy, write_revisions
from tests.bench.report import Figure

THINGS, EVENTS = 100_000, 1_000_000
FILLER = 800
"""The characters of the constant part of a thing."""

PART = 2
"""The revisions of each thing that are written at once."""

MOMENT_SECONDS = 15.0
"""The maximum time for the pipeline to write a snapshot, in seconds."""

SAMPLES = 5


def first_page(folder: Path, scale: Scale = FULL, events: int = 0) -> list[Figure]:
    """The first page of a selective filter, and of all things sorted by a value, at five times each."""
    events = events or scale.of(EVENTS, 1_000)
    things = min(THINGS, events // 10)
    journal, each = folder / "journal.db", events // things
    shape = Things(things, FILLER)
    write_policy(journal)
    with pipeline(folder) as (process, _):
        # Write in parts: the snapshot of a lake that is far behind would have later states.
        for last in range(PART, each + 1, PART):
            write_revisions(journal, shape, last - PART + 1, last)
            wait_for(Lake(folder), shape.newest(last), process)
            time.sleep(scale.of(MOMENT_SECONDS, 1.0))
        with searches(folder) as past:
            few = asyncio.run(search_times(past, f"gt({VALUE_PATH[1:]},99)", None, events))
            all = asyncio.run(search_times(past, None, f"sort(-{VALUE_PATH[1:]}),size(200)", events))
    size = sum(it.stat().st_size for it in (folder / "lake" / "full_snapshots").rglob("*.parquet"))
    total = sum(it.stat().st_size for it in (folder / "lake").rglob("*.parquet"))
    note = f"{things:,} things; snapshots are {size / 1e6:,.0f} of {total / 1e6:,.0f} MB"
    return [
        _figure(f"search as of, {events:,} events, 1 % found", few, "≤ 2 s", 2.0, note),
        _figure("the same, everything found and sorted by a value", all, "–", 1e9, f"all pages: {all[-1]:.1f} s"),
    ]


def _figure(name: str, found: list[float], goal: str, most: float, note: str) -> Figure:
    *samples, _ = found
    middle = statistics.median(samples)
    return Figure(
        name,
        f"{middle:.2f} s to the first page",
        "–",
        goal,
        middle <= most,
        f"{min(samples):.2f} to {max(samples):.2f} s; {note}",
    )


@contextmanager
def searches(folder: Path) -> Iterator[AsOfSearches]:
    lake, journal = Lake(folder), Journal.open(folder / "journal.db")
    store = Store(journal)
    lookup = CurrentStateLookup(store.snapshot, lambda: "2031-01-01T00:00:00.000000Z")
    queries = SparkQueries(lake)
    past = AsOfSearches(store, lookup, queries, lambda: datetime(2031, 1, 1, tzinfo=UTC), PastOptions(seconds=300))
    yield past
    past.close()


async def search_times(past: AsOfSearches, filter: str | None, options: str | None, events: int) -> list[float]:
    """Return the seconds to the first page of each sample, and to the last page of the last sample."""
    wanted = read_options(options)
    predicate = None if filter is None else read(filter, BEGUN)
    asked = SearchRequest(ThingQuery(predicate, wanted.order), wanted.size, None, (SUBJECT,))
    found: list[float] = []
    for sample in range(-2, SAMPLES):
        # The first samples warm Spark up.
        at = BEGUN + timedelta(milliseconds=events * (0.35 + 0.1 * (sample % SAMPLES)))
        moment = versions_before(past.lake, at).seq
        begun = time.perf_counter()
        feed = past.open(asked, int(at.timestamp() * 1000) * 1_000_000)
        assert isinstance(feed, AsOfFeed)
        page = await feed.page(0, 1, 1 << 20)
        seconds = time.perf_counter() - begun
        if sample >= 0:
            found.append(seconds)
        print(f"as of {at:%T}, moment {moment:,}: {seconds:.2f} s, {len(page.elements)} page", flush=True)
        while sample == SAMPLES - 1 and page.then is PageEnd.MORE:
            page = await feed.page(page.position, 20, 1 << 20)
        feed.close()
    return [*found, time.perf_counter() - begun]
