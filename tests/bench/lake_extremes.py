"""Lakes of large states, and of long IDs."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from spark_store.lake import reader
from spark_store.lake.tables import EVENTS, Lake
from spark_store.pipeline.session import STATISTICS_LENGTH
from tests.bench import cold_history
from tests.bench.cold_history import LAKES, PAGE, first_pages
from tests.bench.harness import FULL, Scale, processor_seconds_of_all, run
from tests.bench.lake import MILLION, java_peak, pipeline, seconds_of, wait_for_both
from tests.bench.lake_scale import GIB, short
from tests.bench.long_journals import EVENTS_EACH, Things, drop_entries, write_policy, write_revisions
from tests.bench.report import Figure
from tests.support.lake.pipeline_process import given

STATE_BYTES = (10_000, 100_000)
ID_CHARACTERS = 120
CUT = 32
"""The characters of an ID in Delta's statistics by default."""


def large(folder: Path, scale: Scale = FULL, megabytes: int = 0) -> Iterator[Figure]:
    """Measure the creation of things of 10 KB and of 100 KB, with one event of the size of the state each."""
    megabytes = megabytes or scale.of(1_000, 2)
    for size in scale.of(STATE_BYTES, STATE_BYTES[:1]):
        place, things = folder / f"{size}", Things(megabytes * MILLION // size, size, noise=size)
        lake = Lake(place)
        write_policy(lake.journal)
        with pipeline(place, *given(merge_every=1)) as (process, messages):
            wait_for_both(lake, 1, process)
            known, spent = len(messages), processor_seconds_of_all(process)
            write_revisions(lake.journal, things, 1, 1)
            wait_for_both(lake, things.newest(1), process)
            spent, memory = processor_seconds_of_all(process) - spent, java_peak(process)
            seconds = sum(seconds_of(messages[known:], "batch") + seconds_of(messages[known:], "merged"))
        bare = run("bare_delta", place, 1, 1, within=1800)
        plain = sum(bare["append"] + bare["merge"])
        yield Figure(
            f"journal → both tables, {things.count:,} things of {size // 1_000} KB",
            f"{2 * megabytes / seconds:,.0f} MB/s, Java at most {memory / GIB:.2f} GiB",
            f"{2 * megabytes / plain:,.0f} MB/s (append and merge of rows from Delta)",
            "Java ≤ 1.5 GiB",
            memory <= 1.5 * GIB,
            f"{things.count / seconds:,.0f} events/s; {spent / megabytes / 2 * 1e3:.0f} ms of processor per MB; "
            f"load average {os.getloadavg()[0]:.1f}",
        )


def long_ids(_folder: Path, scale: Scale = FULL, events: int = 0) -> Iterator[Figure]:
    """Measure first pages of entities whose IDs differ only at their end.

    One lake has whole IDs in its statistics, the other one truncated IDs.
    """
    events = events or scale.of(5 * MILLION, 2 * EVENTS_EACH)
    count = events // EVENTS_EACH
    things = Things(count, prefix="x" * (ID_CHARACTERS - len(f"acme.bench:{count - 1}")))
    whole, cut = LAKES / f"long-ids-{events}", LAKES / f"cut-ids-{events}"
    _fill(whole, things)
    _fill(cut, things, {STATISTICS_LENGTH: str(CUT)})
    (waits, spent), (others, more) = (
        asyncio.run(first_pages(folder, count, scale.of(300, 5), things.thing)) for folder in (whole, cut)
    )
    ranks, other_ranks = (statistics.quantiles(it, n=100) for it in (waits, others))
    spark = run("spark_first_page", whole, count, PAGE, scale.of(30, 2), things.prefix)["milliseconds"]
    opened, all_files = _opened(Lake(whole), things)
    opened_cut, _ = _opened(Lake(cut), things)
    yield Figure(
        f"first page of a cold entity with an ID of {ID_CHARACTERS} characters, {PAGE} of {short(events)} events",
        f"p50 {ranks[49]:.1f} ms, p99 {ranks[98]:.1f} ms",
        f"p50 {statistics.median(spark):.0f} ms (Spark, warm)",
        "p50 ≤ 5 ms",
        ranks[49] <= 5,
        f"opens {opened:.1f} of {all_files} files, {spent:.1f} ms of processor; with statistics of {CUT} characters, "
        f"Delta's default, {opened_cut:.1f} files, p50 {other_ranks[49]:.1f} ms, {more:.1f} ms of processor; "
        f"load average {os.getloadavg()[0]:.1f}",
    )


def _fill(folder: Path, things: Things, spark: Mapping[str, str] = MappingProxyType({})) -> None:
    """Create a compacted lake, unless it exists."""
    if (folder / "ready").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    write_policy(folder / "journal.db")
    write_revisions(folder / "journal.db", things, 1, EVENTS_EACH)
    settings = given(once=True, max_batch_rows=MILLION, optimize_batches=1, spark=dict(spark))
    cold_history.pipeline("run", folder, *settings)
    drop_entries(folder / "journal.db")
    (folder / "ready").touch()


def _opened(lake: Lake, things: Things) -> tuple[float, int]:
    """Return how many files may have an entity by their statistics, on average, and how many exist."""
    with reader.open_table(lake, EVENTS) as delta:
        bounds = list(reader.file_facts(delta, "min.entity", "max.entity"))
    ids = [str(things.thing(number)) for number in range(0, things.count, max(1, things.count // 100))]
    return sum(least <= id <= most for id in ids for least, most in bounds) / len(ids), len(bounds)
