"""Searches of the past: the first search after a start, and one that finds a million things of 1 KB."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psutil

from connectivity.subscriptions.as_of_feed import AsOfFeed, AsOfSearches
from connectivity.subscriptions.feed import PageEnd
from connectivity.subscriptions.search_feed import SearchRequest
from spark_store.lake.tables import Lake
from spark_store.rql.options import read_options
from spark_store.rql.query import ThingQuery
from tests.bench.as_of import FILLER, searches
from tests.bench.harness import FULL, SUBJECT, Scale
from tests.bench.lake import pipeline, wait_for
from tests.bench.long_journals import BEGUN, Things, write_policy, write_revisions
from tests.bench.report import Figure
from tests.support.lake.pipeline_process import given

THINGS, FEW_THINGS = 1_000_000, 2_000
WARM_SECONDS = 40.0
"""Seconds after its start until the pipeline has warmed up."""

MIB = 1 << 20


def whole_result(folder: Path, scale: Scale = FULL, things: int = 0) -> list[Figure]:
    """Search a few things after a start, then many things up to the last page, and measure memory."""
    few, things = scale.of(FEW_THINGS, 100), things or scale.of(THINGS, 200)
    (first, _), (second, _) = _searched(folder / "few", few, scale, 2)[0]
    [(seconds, pages)], most = _searched(folder / "many", things, scale, 1)
    java, workers, own = (most[name] / MIB for name in ("java", "workers", "own"))
    memory = f"{java:,.0f} MiB of driver and Java, {workers:,.0f} MiB of workers, {own:,.0f} MiB more of the caller"
    return [
        Figure(
            f"the first search as of, {WARM_SECONDS:.0f} s after the pipeline's start",
            f"{first:.1f} s to the first page",
            f"{second:.1f} s (the second one)",
            "≤ 10 s",
            first <= 10,
            f"{few:,} things",
        ),
        Figure(
            f"search as of, all of {things:,} things",
            f"{seconds:.0f} s to the first page, {pages:.0f} s to the last one",
            "–",
            "–",
            True,
            f"at most {memory}",
        ),
    ]


def _searched(folder: Path, things: int, scale: Scale, times: int) -> tuple[list[tuple[float, float]], Counter[str]]:
    """Return the seconds to the first and last page of searches of all things, and the peak memory."""
    write_policy(folder / "journal.db")
    write_revisions(folder / "journal.db", Things(things, FILLER), 1, 1)
    with pipeline(folder) as (process, _):
        wait_for(Lake(folder), things + 1, process)
    with pipeline(folder, *given(interval=5)) as (process, _):
        time.sleep(scale.of(WARM_SECONDS, 0.0))
        while not Lake(folder).connect.exists():
            time.sleep(0.1)
        with searches(folder) as past, _memory(process) as most:
            found = [asyncio.run(_until_the_end(past, things)) for _ in range(times)]
    return found, most


async def _until_the_end(past: AsOfSearches, things: int) -> tuple[float, float]:
    wanted = read_options("size(200)")
    at = BEGUN + timedelta(milliseconds=things + 1)
    begun = time.perf_counter()
    feed = past.open(
        SearchRequest(ThingQuery(None, wanted.order), wanted.size, None, (SUBJECT,)), int(at.timestamp() * 1e6) * 1000
    )
    assert isinstance(feed, AsOfFeed)
    page = await feed.page(0, 1, 1 << 20)
    first, pages = time.perf_counter() - begun, len(page.elements)
    while page.then is PageEnd.MORE:
        page = await feed.page(page.position, 20, 1 << 20)
        pages += len(page.elements)
    feed.close()
    assert pages >= things // 200, pages
    return first, time.perf_counter() - begun


@contextmanager
def _memory(pipeline: psutil.Process) -> Iterator[Counter[str]]:
    """The peak memory, in bytes, of driver and Java, of Spark's workers, and the growth of this process."""
    most, is_over = Counter[str](), threading.Event()
    this = psutil.Process()
    before = this.memory_info().rss

    def look() -> None:
        while not is_over.wait(0.2):
            found = Counter(java=_size(pipeline), own=this.memory_info().rss - before)
            for child in pipeline.children(recursive=True):
                found[_kind(child)] += _size(child)
            for name, size in found.items():
                most[name] = max(most[name], size)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield most
    finally:
        is_over.set()
        looking.join()


def _kind(process: psutil.Process) -> str:
    try:
        name = process.name()
    except psutil.NoSuchProcess:
        return "ended"
    return "java" if name == "java" else "workers" if name.startswith("python") else "others"


def _size(process: psutil.Process) -> int:
    try:
        # Workers share most of their pages.
        return process.memory_full_info().pss if process.name().startswith("python") else process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0
