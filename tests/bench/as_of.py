"""Searches of the past: the time to the first page, with a million events of things of 1 KB.

The events are readings of sensors, and the pipeline writes snapshots as usual. The searched times are spread over the
whole past: some shortly after a snapshot, some long after one.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
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
from mappings.model.signals import Event
from spark_store.history.replay import fold
from spark_store.journal.journal import Journal
from spark_store.lake.reader import versions_before
from spark_store.lake.tables import Lake
from spark_store.queries.spark_query import SparkQueries, finder
from spark_store.records import Change
from spark_store.rql.options import read_options
from spark_store.rql.query import ThingQuery
from spark_store.rql.search_evaluator import read
from tests.bench.harness import FULL, STAMP, SUBJECT, Scale, policy
from tests.bench.lake import pipeline, wait_for
from tests.bench.long_journals import BEGUN
from tests.bench.report import Figure
from tests.support.connection_documents import policy_for

THINGS, EVENTS = 100_000, 1_000_000
FILLER = 800
"""Characters of a thing's constant part."""

PART = 2
"""Revisions of each thing that are written in one step."""

MOMENT_SECONDS = 15.0
"""Seconds in which the pipeline writes a snapshot, at most."""

SAMPLES = 5
_PATH = "/features/sensor/properties/celsius"
_STAMP = "strftime('%Y-%m-%dT%H:%M:%S', :begun + number / 1000, 'unixepoch') || printf('.%03d000Z', number % 1000)"
_VALUE = "(number * 7919 % 100003) / 1000.0"
_THING = f"""
    json_object('thingId', id, 'policyId', :policy, 'attributes',
                json_object('room', 'r' || (key % 500), 'filler', substr(hex(randomblob(20)) || :filler, 1, {FILLER})),
                'features', json_object('sensor', json_object('properties', json_object('celsius', {_VALUE}))))
"""
_COUNTED = "WITH RECURSIVE counted(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM counted WHERE n + 1 < {})"


def guarded(path: Path) -> None:
    """Create a journal with the policy of all things."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rules = {"policyId": str(policy(0)), "imports": {}, **policy_for(SUBJECT)}
    made = Event(policy(0), 1, STAMP, "created", "/", json.dumps(rules).encode(), b"{}")
    journal = Journal.open(path)
    journal.append([Change((made,), (fold([made]),))])
    journal.close()


def write(path: Path, things: int, first: int, last: int) -> None:
    """Write the revisions `first` to `last` of all things in turn, with a thousand events in each second."""
    given = {
        "things": things, "first": first, "last": last, "begun": int(BEGUN.timestamp()), "policy": str(policy(0)),
        "filler": "x" * FILLER,
    }  # fmt: skip
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        for statement in (
            f"""{_COUNTED.format(":things")}
            INSERT INTO entities (key, type, id, revision, created, modified, state, policy, newest_seq)
            SELECT key, 'thing', id, :last, {_STAMP}, {_STAMP}, CAST({_THING} AS BLOB), :policy, number + 2
            FROM (SELECT n + 2 AS key, 'acme.bench:device-' || n AS id, (:last - 1) * :things + n AS number FROM counted)
            WHERE true ON CONFLICT (key) DO UPDATE SET revision = excluded.revision, modified = excluded.modified,
                state = excluded.state, newest_seq = excluded.newest_seq""",
            f"""WITH RECURSIVE counted(n) AS (SELECT :first - 1 UNION ALL SELECT n + 1 FROM counted WHERE n + 1 < :last)
            INSERT INTO entries (entity, revision, seq, timestamp, action, path, value, headers)
            SELECT key, n + 1, number + 2, {_STAMP},
                   CASE n WHEN 0 THEN 'created' ELSE 'modified' END, CASE n WHEN 0 THEN '/' ELSE '{_PATH}' END,
                   CAST(CASE n WHEN 0 THEN {_THING} ELSE {_VALUE} END AS BLOB), CAST('{{}}' AS BLOB)
            FROM (SELECT key, id, n, n * :things + key - 2 AS number FROM entities CROSS JOIN counted WHERE type = 'thing')
            """,
            "UPDATE counters SET value = :last * :things + 1 WHERE name = 'seq'",
        ):
            names = {name: value for name, value in given.items() if f":{name}" in statement}
            connection.execute(statement, names)
    connection.close()


def first_page(folder: Path, scale: Scale = FULL, events: int = 0) -> list[Figure]:
    """The first page of a selective filter, and of all things sorted by a value, at five times each."""
    events = events or scale.of(EVENTS, 1_000)
    things = min(THINGS, events // 10)
    journal, each = folder / "journal.db", events // things
    guarded(journal)
    with pipeline(folder) as (process, _):
        # In parts: a snapshot of a lake that is far behind would have later states.
        for last in range(PART, each + 1, PART):
            write(journal, things, last - PART + 1, last)
            wait_for(Lake(folder), last * things + 1, process)
            time.sleep(scale.of(MOMENT_SECONDS, 1.0))
        with searches(folder) as past:
            few = asyncio.run(_measured(past, f"gt({_PATH[1:]},99)", None, events))
            all = asyncio.run(_measured(past, None, f"sort(-{_PATH[1:]}),size(200)", events))
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
    world = CurrentStateLookup(store.snapshot, lambda: "2031-01-01T00:00:00.000000Z")
    queries = SparkQueries(lake, finder(lake, None, is_off=False))
    past = AsOfSearches(store, world, queries, lambda: datetime(2031, 1, 1, tzinfo=UTC), PastOptions(seconds=300))
    yield past
    past.close()


async def _measured(past: AsOfSearches, filter: str | None, options: str | None, events: int) -> list[float]:
    """The seconds to the first page of each sample, and to the last page of the last sample."""
    wanted = read_options(options)
    predicate = None if filter is None else read(filter, BEGUN)
    asked = SearchRequest(ThingQuery(predicate, wanted.order), wanted.size, None, (SUBJECT,))
    found: list[float] = []
    for sample in range(-2, SAMPLES):
        # The first ones warm Spark up.
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
