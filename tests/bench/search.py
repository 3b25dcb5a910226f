"""Measures searches with many things: first pages of typical queries, scans, and long results.

The things have about 1 KB and one policy, under which the caller can read everything, and their order in the file differs
from the order of their ids. The file is written with SQL, which gives the same rows in a fraction of the time.
"""

from __future__ import annotations

import gc
import random
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from connectivity.service import quiet_garbage_collection
from spark_store.journal import schema
from spark_store.rql.options import read_options
from spark_store.rql.query import Access, Budget, Thing, ThingQuery
from spark_store.rql.search_evaluator import read
from spark_store.search import index
from spark_store.search.sqlite_search import SqliteSearch
from tests.bench.harness import FULL, Scale, frozen_as_before
from tests.bench.report import Figure

THINGS = 100_000
ROUNDS = 200
PAGE = 25
ENOUGH = 10.0
"""Seconds of reading a long result, after which the rate of its pages is known."""
NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)
POLICY = "bench.site:policy"
SUBJECT = "bench:reader"


class Whole:
    """A caller with permission to read everything."""

    is_whole = True
    subjects = frozenset({SUBJECT})

    def access(self, policy: str, namespace: str) -> Access | None:
        return self

    def may(self, path: object) -> bool:
        return True

    def view(self, thing: Thing) -> Thing | None:
        return thing


def thing(number: int, random_source: random.Random) -> dict[str, Any]:
    return {
        "thingId": f"bench.site:{number * 2654435761 % 2**32:08x}-{number:07}",
        "policyId": POLICY,
        "definition": f"acme:lamp:{number % 7}.0.0",
        "attributes": {
            "room": f"room-{random_source.randrange(200):03}",
            "serial": f"SN-{random_source.randrange(10**9):09}",
            "maker": random_source.choice(["acme", "umbrella", "initech", "hooli"]),
            "floor": random_source.randrange(12),
            "tags": random_source.sample(["north", "south", "old", "new", "spare"], 2),
            "location": {"latitude": random_source.uniform(47, 55), "longitude": random_source.uniform(6, 15)},
            "note": "".join(random_source.choices("abcdefghij klmnop qrstuvwxyz", k=360)),
        },
        "features": {
            "thermometer": {
                "definition": ["acme:thermometer:1.0.0"],
                "properties": {
                    "celsius": round(random_source.uniform(-10, 40), 3),
                    "battery": random_source.randrange(101),
                },
            },
            "lamp": {"properties": {"on": random_source.random() < 0.5, "level": random_source.randrange(256)}},
        },
    }


def write_things(path: Path, number: int) -> None:
    """Write a journal with `number` things and their search index."""
    random_source = random.Random(7)
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        for pragma in ("journal_mode = WAL", "synchronous = OFF", "cache_size = -262144"):
            file.execute(f"PRAGMA {pragma}").fetchall()
        schema.migrate(file, str(path))
        file.execute("CREATE TEMP TABLE raw (path, rank, value, thing)")
        file.execute("BEGIN")
        file.execute("INSERT INTO search_subjects (subject, policy) VALUES (?, ?)", (SUBJECT, POLICY))
        ids: dict[str, int] = {}
        at = "2030-01-15T07:30:00.000000Z"
        for key in range(1, number + 1):
            state = thing(key, random_source)
            file.execute(
                "INSERT INTO entities (key, type, id, revision, created, modified, state, policy) "
                "VALUES (?, 'thing', ?, 1, ?, ?, ?, ?)",
                (key, state["thingId"], at, at, msgspec.json.encode(state), POLICY),
            )
            rows = index.rows_of(state, at) or set()
            file.executemany(
                "INSERT INTO raw VALUES (?, ?, ?, ?)",
                [(ids.setdefault(name, len(ids) + 1), rank, value, key) for name, rank, value in rows],
            )
        file.executemany(
            "INSERT INTO search_paths (id, path, wildcard) VALUES (?, ?, ?)",
            [(id, name, index.wildcard(name)) for name, id in ids.items()],
        )
        file.execute("INSERT INTO search_values SELECT * FROM raw ORDER BY path, rank, value, thing")
        file.execute("COMMIT")
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def question(text: str | None, options: str | None = None) -> ThingQuery:
    return ThingQuery(None if text is None else read(text, NOW), read_options(options).order)


class Asked(NamedTuple):
    """A kind of query, with the limits for its first page (milliseconds; median and 99th percentile)."""

    name: str
    p50: float
    p99: float
    filter: Callable[[random.Random], str | None]
    options: Callable[[random.Random], str | None] = lambda _: None

    @property
    def is_scan(self) -> bool:
        return self.p50 > 100


CELSIUS = "features/thermometer/properties/celsius"


def _latitudes(random_source: random.Random) -> str:
    low = random_source.uniform(47, 54)
    return f"and(ge(attributes/location/latitude,{low:.6f}),lt(attributes/location/latitude,{low + 0.08:.6f}))"


def _warm_on_a_floor(random_source: random.Random) -> str:
    return f"and(eq(attributes/floor,{random_source.randrange(12)}),gt({CELSIUS},{random_source.uniform(-10, 40):.3f}))"


FIRST_PAGES = (
    Asked("one thing by a value", 5, 25, lambda it: f'eq(attributes/serial,"SN-{it.randrange(10**9):09}")'),
    Asked("equality, one in 200", 5, 25, lambda it: f'eq(attributes/room,"room-{it.randrange(200):03}")'),
    Asked("equality, one in 12", 5, 25, lambda it: f"eq(attributes/floor,{it.randrange(12)})"),
    Asked("equality, one in two", 5, 25, lambda _: "eq(features/lamp/properties/on,true)"),
    Asked("equality in any feature", 5, 25, lambda it: f"eq(features/*/properties/battery,{it.randrange(101)})"),
    Asked("range, from none to all", 5, 25, lambda it: f"gt({CELSIUS},{it.uniform(-10, 40):.3f})"),
    Asked("range, one in a hundred", 5, 25, _latitudes),
    Asked("texts that begin so", 5, 25, lambda it: f'like(attributes/serial,"SN-{it.randrange(1000):03}*")'),
    Asked(
        "two paths, sorted by a third",
        20,
        100,
        _warm_on_a_floor,
        lambda it: f"sort({it.choice('+-')}attributes/location/longitude)",
    ),
    Asked(
        "two paths, sorted by one of few values",
        20,
        100,
        lambda it: f'and(eq(attributes/maker,"acme"),lt(attributes/floor,{it.randrange(12)}))',
        lambda it: f"sort({it.choice('+-')}attributes/room)",
    ),
    Asked("everything, sorted downwards", 20, 100, lambda _: None, lambda _: f"sort(-{CELSIUS})"),
    Asked("everything, sorted upwards", 20, 100, lambda _: None, lambda _: f"sort(+{CELSIUS})"),
    Asked("scan: a part of a text", 500, 1000, lambda it: f'like(attributes/serial,"*{it.randrange(10**6):06}*")'),
    Asked("scan: a part of a long text", 500, 1000, lambda _: 'like(attributes/note,"*zebra?crossing*")'),
    Asked("scan: what is not there", 500, 1000, lambda _: "not(exists(attributes/serial))"),
    Asked("scan: by revision", 500, 1000, lambda _: "gt(_revision,7)"),
)


def first_pages(path: Path, rounds: int = ROUNDS) -> Iterator[Figure]:
    random_source = random.Random(11)
    with closing(SqliteSearch(path)) as search:
        for kind in FIRST_PAGES:
            times = []
            for _ in range(max(5, rounds // 20) if kind.is_scan else rounds):
                asked = question(kind.filter(random_source), kind.options(random_source))
                begun = time.perf_counter()
                found = search.page(asked, Whole(), None, PAGE, Budget(60.0))
                while not found.hits and not found.is_last:
                    found = search.page(asked, Whole(), found.place, PAGE, Budget(60.0))
                times.append((time.perf_counter() - begun) * 1000)
            times.sort()
            middle, worst = statistics.median(times), times[int(len(times) * 0.99)]
            yield Figure(
                f"first page of {PAGE}: {kind.name}",
                f"p50 {middle:.1f} ms, p99 {worst:.1f} ms",
                "–",
                f"p50 ≤ {kind.p50:g} ms, p99 ≤ {kind.p99:g} ms",
                middle <= kind.p50 and worst <= kind.p99,
            )


def all_pages(path: Path) -> Iterator[Figure]:
    for name, asked in (
        ("without a filter", question(None)),
        ("of a filter that all match", question("ge(attributes/floor,0)")),
        ("sorted by a number", question(None, f"sort(+{CELSIUS})")),
        ("sorted by one of few texts", question(None, "sort(+attributes/room)")),
    ):
        for size in (200, PAGE):
            with closing(SqliteSearch(path)) as search:
                found, place, begun = 0, None, time.perf_counter()
                while True:
                    page = search.page(asked, Whole(), place, size, Budget(60.0))
                    found += len(page.hits)
                    if page.is_last or time.perf_counter() - begun > ENOUGH:
                        break
                    place = page.place
                rate = found / (time.perf_counter() - begun)
            yield Figure(
                f"all pages of {size}, {name}",
                f"{rate:,.0f} things/s",
                "–",
                "≥ 50,000 things/s",
                rate >= 50_000,
                f"{found:,} things",
            )


def search(folder: Path, scale: Scale = FULL, things: int = 0) -> list[Figure]:
    """Pages of a search among `things` things, in process, with the service's garbage collection."""
    path = folder / "journal.db"
    write_things(path, things or scale.of(THINGS, 500))
    usual = gc.get_threshold()
    with frozen_as_before():
        quiet_garbage_collection()
        try:
            return [*first_pages(path, scale.of(ROUNDS, 5)), *all_pages(path)]
        finally:
            gc.set_threshold(*usual)
