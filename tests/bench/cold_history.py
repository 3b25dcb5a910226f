"""Benchmarks of reads from the lake: replays of events that the journal has trimmed, and exports.

The exports run without Spark. It takes a minute to create a compacted lake of many events, so it stays in `.run/bench`
for later runs; `make clean` removes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import psutil

from connectivity.store.store import Store
from connectivity.subscriptions.feed import PageEnd
from connectivity.subscriptions.history_feed import HistoryFeed
from mappings.ids import EntityId
from mappings.model.signals import HistoryQuery
from spark_store.journal.journal import Journal
from spark_store.lake.history_reader import LakeHistory
from spark_store.lake.tables import EVENTS, Lake
from tests.bench.harness import FULL, Scale, run, thing
from tests.bench.long_journals import EVENTS_EACH, write_long_past
from tests.bench.report import Figure
from tests.support.lake.pipeline_process import MAIN, given

LAKES = Path(".run/bench")
MILLION = 1_000_000
PAGE, PAGE_BYTES = 500, 1 << 20
"""The size of a page in the default settings."""

NEVER = "A"
"""A time after all timestamps."""

CLIENTS = 50
ROUNDS = 5


def compacted(events: int) -> Path:
    """Return a data folder with an empty journal, whose events are all in a compacted lake."""
    folder = LAKES / f"{events}"
    ready = folder / "ready"
    if not ready.exists():
        shutil.rmtree(folder, ignore_errors=True)
        write_long_past(folder / "journal.db", events)
        pipeline("run", folder, *given(once=True, max_batch_rows=MILLION, optimize_batches=1))
        trim(folder / "journal.db", events)
        ready.touch()
    return folder


def pipeline(action: str, folder: Path, *options: str) -> None:
    """Run an action of the pipeline, with normal priority, so that other load does not delay it."""
    command = [sys.executable, "-c", MAIN, action, "--data-dir", str(folder), *options]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


def trim(path: Path, events: int) -> None:
    journal = Journal.open(path)
    try:
        for last in range(0, events + 1, 100_000):
            journal.trim(last, NEVER, 100_000)
            journal.commit()
    finally:
        journal.close()


@contextlib.asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Store]:
    """Open the store like the service, after a first look at the lake."""
    cold = LakeHistory(Lake(folder))
    store = Store(Journal.open(folder / "journal.db"), cold=lambda: cold)
    try:
        cold.reaches()
        yield store
    finally:
        await store.close()


def feed(store: Store, entity: EntityId) -> HistoryFeed:
    return HistoryFeed.open(store, HistoryQuery(entity), datetime.now(UTC))


async def replay(store: Store, entity: EntityId) -> int:
    """Read all pages of an entity, one after the other, and return the number of events."""
    asked, position, count = feed(store, entity), 0, 0
    while True:
        page = await asked.page(position, PAGE, PAGE_BYTES)
        count, position = count + len(page.elements), page.position
        if page.then is PageEnd.END:
            return count


def first_page(_folder: Path, scale: Scale = FULL, events: int = 0) -> list[Figure]:
    """Measure the first page of entities that were not read lately, compared with a query of Spark."""
    events = events or scale.of(2 * MILLION, 2 * EVENTS_EACH)
    folder, entities = compacted(events), events // EVENTS_EACH
    waits, spent = asyncio.run(first_pages(folder, entities, scale.of(300, 5)))
    ranks = statistics.quantiles(waits, n=100)
    spark = statistics.median(run("spark_first_page", folder, entities, PAGE, scale.of(30, 1))["milliseconds"])
    return [
        Figure(
            f"first page of a cold entity, {PAGE} of {_short(events)} events",
            f"p50 {ranks[49]:.1f} ms, p99 {ranks[98]:.1f} ms",
            f"p50 {spark:.0f} ms (Spark, warm)",
            "p50 ≤ 20 ms, Spark ≥ 50 times slower",
            ranks[49] <= 20 and spark >= 50 * ranks[49],
            f"ratio {spark / ranks[49]:.0f}; the first of all {waits[0]:.0f} ms; {spent:.1f} ms of processor",
        )
    ]


async def first_pages(
    folder: Path, entities: int, samples: int, name: Callable[[int], EntityId] = thing
) -> tuple[list[float], float]:
    """Return the milliseconds of each first page of random things, and the processor time of one.

    The processor time is the average in milliseconds.
    """
    chosen, waits = random.Random(11), []
    async with opened(folder) as store:
        processor = time.process_time()
        for _ in range(samples):
            entity = name(chosen.randrange(entities))
            begun = time.perf_counter()
            page = await feed(store, entity).page(0, PAGE, PAGE_BYTES)
            waits.append((time.perf_counter() - begun) * 1000)
            assert len(page.elements) == PAGE
        return waits, (time.process_time() - processor) / samples * 1000


def replays(_folder: Path, scale: Scale = FULL, events: int = 0) -> list[Figure]:
    """Whole histories of a thousand cold events, by one client, and by fifty at the same time."""
    events = events or scale.of(2 * MILLION, 2 * EVENTS_EACH)
    folder, entities = compacted(events), events // EVENTS_EACH
    alone, processor = asyncio.run(replay_in_turn(folder, entities, scale.of(100, 2)))
    together = asyncio.run(replay_at_once(folder, entities, scale.of(40, 1)))
    return [
        Figure(
            f"cold replay of {EVENTS_EACH:,} events among {_short(events)}",
            f"{EVENTS_EACH / alone:,.0f} events/s",
            "–",
            "≥ 50,000/s",
            EVENTS_EACH / alone >= 50_000,
            f"{alone * 1000:.1f} ms a replay; {processor / EVENTS_EACH * 1e6:.1f} µs of processor per event",
        ),
        Figure(
            f"the same, {CLIENTS} clients at once",
            f"{together:,.0f} replays/s",
            f"{1 / alone:,.0f} replays/s (one client)",
            "≥ 200/s",
            together >= 200,
        ),
    ]


async def replay_in_turn(folder: Path, entities: int, count: int) -> tuple[float, float]:
    """Return the median seconds of a replay, and its seconds of processor time."""
    chosen, spent = random.Random(13), []
    async with opened(folder) as store:
        await replay(store, thing(0))
        processor = time.process_time()
        for _ in range(count):
            begun = time.perf_counter()
            assert await replay(store, thing(chosen.randrange(entities))) == EVENTS_EACH
            spent.append(time.perf_counter() - begun)
        return statistics.median(spent), (time.process_time() - processor) / count


async def replay_at_once(folder: Path, entities: int, each: int) -> float:
    """Return the replays per second of all clients together."""
    chosen = random.Random(17)
    async with opened(folder) as store:

        async def replay_some() -> None:
            for _ in range(each):
                assert await replay(store, thing(chosen.randrange(entities))) == EVENTS_EACH

        await replay(store, thing(0))
        begun = time.perf_counter()
        await asyncio.gather(*(replay_some() for _ in range(CLIENTS)))
        return CLIENTS * each / (time.perf_counter() - begun)


def exports(_folder: Path, scale: Scale = FULL, events: int = 0) -> list[Figure]:
    """Exports of a thing and of a whole lake on the command line, compared with a read of the same rows."""
    events = events or scale.of(MILLION, 2 * EVENTS_EACH)
    folder = compacted(events)
    bare = _written(run_bare_export(folder), folder)
    figures = []
    for name, arguments in (("a thing", [str(thing(1))]), (_short(events), [])):
        command = [sys.executable, "-m", "connectivity", "history", "export", *arguments, "--force", "--out"]
        ours = [_written([*command, f"{folder / 'it'}{ending}"], folder) for ending in (".parquet", ".csv")]
        lines = [_written([*command, str(folder / "it.jsonl")], folder) for _ in range(scale.of(ROUNDS, 1))]
        first = statistics.median(it.first for it in lines)
        figures.append(
            Figure(
                f"export without Spark: {name}, first event",
                f"{first:.2f} s",
                f"{bare.first:.2f} s (all rows in memory, sorted)",
                "≤ 1 s",
                first <= 1,
                f"to the end: JSON lines {lines[0].end:.1f} s, Parquet {ours[0].end:.1f} s, CSV {ours[1].end:.1f} s "
                f"(bare Parquet {bare.end:.1f} s); memory {max(it.memory for it in (*ours, *lines)) >> 20} MiB "
                f"(bare {bare.memory >> 20} MiB)",
            )
        )
    return figures


_BARE_EXPORT = """
import sys, deltalake, pyarrow.parquet as pq
table = deltalake.DeltaTable(sys.argv[1]).to_pyarrow_table()
table = table.sort_by([(name, "ascending") for name in ("entity", "entity_type", "revision")])
pq.write_table(table, sys.argv[2], compression="zstd")
"""


def run_bare_export(folder: Path) -> list[str]:
    return [sys.executable, "-c", _BARE_EXPORT, Lake(folder).path(EVENTS), str(folder / ".it.parquet.part")]


class _Written(NamedTuple):
    """The seconds from the process's start to its first rows and to its end, and its peak memory in bytes."""

    first: float
    end: float
    memory: int


def _written(command: list[str], folder: Path) -> _Written:
    for old in folder.glob("*it.*"):
        old.unlink()
    begun, first, memory = time.perf_counter(), 0.0, 0
    with psutil.Popen(
        command, env={**os.environ, "CONNECTIVITY_DATA_DIR": str(folder)}, stdout=subprocess.DEVNULL
    ) as it:
        while it.poll() is None:
            with contextlib.suppress(OSError, psutil.Error):
                memory = max(memory, it.memory_info().rss)
            if not first and any(_size(file) > len(b"PAR1") for file in folder.glob("*it.*")):
                first = time.perf_counter() - begun
            time.sleep(0.005)
        assert it.wait() == 0
    end = time.perf_counter() - begun
    return _Written(first or end, end, memory)


def _size(file: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return file.stat().st_size
    return 0


def _short(events: int) -> str:
    return f"{events / MILLION:g} M"
