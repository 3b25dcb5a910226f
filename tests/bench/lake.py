"""Benchmarks of writes to the lake: its rate, the delay of a change, and the memory."""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import psutil

from spark_store.journal.journal import Journal
from spark_store.lake.tables import Lake
from spark_store.lake.watermark import read_watermark
from spark_store.records import Change
from tests.bench.harness import FULL, Scale, peak_memory, processor_seconds_of_all, run
from tests.bench.long_journals import changes, write_long_past, write_past
from tests.bench.report import Figure
from tests.support.lake.pipeline_process import MAIN, given

PipelineMessage: TypeAlias = dict[str, Any]
"""An event that the pipeline reports."""

MILLION = 1_000_000
ROUNDS = 4
WARM_SECONDS, MEASURED_SECONDS = 20.0, 30.0
RATE, THINGS = 1_000, 500
LOOK_SECONDS = 0.01


def filled(folder: Path, scale: Scale = FULL, events: int = 0) -> list[Figure]:
    """Fill both tables from a journal, compared with the same append and merge of prepared data in Spark."""
    events = events or scale.of(MILLION, 2_000)
    write_long_past(folder / "journal.db", events)
    found = run("lake_filling", folder, scale.of(ROUNDS, 1), within=1800)
    rows = found["rows"]
    ours, prepared = statistics.median(found["journal"]), statistics.median(found["prepared"])
    ratio = prepared / ours
    whole = statistics.median(found["whole"])
    processor, bare = min(found["journal_processor"]) / rows, min(found["prepared_processor"]) / rows
    return [
        Figure(
            f"journal → both tables, {_short(events)} events",
            f"{rows / ours:,.0f}/s",
            f"{rows / prepared:,.0f}/s (append and merge of cached data)",
            "≥ 60,000/s, ratio ≥ 0.8",
            rows / ours >= 60_000 and ratio >= 0.8,
            f"ratio {ratio:.2f}; {processor * 1e6:.1f} µs of processor per event, {bare * 1e6:.1f} for the bare work; "
            f"with the stream's start {whole:.1f} s in all",
        )
    ]


def arguments(folder: Path) -> list[str]:
    """Return the arguments of a pipeline that appends and merges often."""
    return ["run", "--data-dir", str(folder), "--with-parent", *given(interval=0.5, merge_every=10)]


@contextlib.contextmanager
def pipeline(folder: Path, *options: str) -> Iterator[tuple[psutil.Process, list[PipelineMessage]]]:
    """Run the pipeline as a process with normal priority, and yield it with the events that it reports."""
    command = [sys.executable, "-c", MAIN, *arguments(folder), *options]
    messages: list[PipelineMessage] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:

        def listen() -> None:
            assert process.stdout is not None
            messages.extend(json.loads(line) for line in process.stdout if line.startswith(b'{"event"'))

        listening = threading.Thread(target=listen)
        listening.start()
        try:
            yield psutil.Process(process.pid), messages
        finally:
            process.terminate()
            # A compaction that runs is finished first.
            process.wait(900)
            listening.join()


def soon(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """The delay from a commit in the journal to both tables, at a thousand changes per second."""
    write_past(folder / "journal.db", THINGS * 10, each=10)
    with pipeline(folder) as (process, messages):
        wait_for(Lake(folder), THINGS * 10, process)
        warm, seconds = scale.of((WARM_SECONDS, MEASURED_SECONDS), (1.0, 1.0))
        waits = write_and_watch(folder, lambda first, count: changes(first, count, THINGS), warm, seconds)
    ranks = statistics.quantiles(waits, n=100)
    batches = seconds_of(messages, "batch")
    took = statistics.median(batches)
    return [
        Figure(
            f"a change visible in the lake, {RATE:,} changes/s",
            f"p50 {ranks[49]:.1f} s, p95 {ranks[94]:.1f} s",
            f"{took:.1f} s (a batch: two commits of Delta)",
            "p95 ≤ 3 s",
            ranks[94] <= 3,
            f"longest {max(waits):.1f} s; {len(waits):,} changes in {len(batches)} batches",
        )
    ]


def seconds_of(messages: list[PipelineMessage], event: str, **fields: Any) -> list[float]:
    """Return the durations that the pipeline has reported with these events."""
    return [float(it["seconds"]) for it in messages if {"event": event, **fields}.items() <= it.items()]


def wait_for(lake: Lake, seq: int, process: psutil.Process) -> None:
    """Wait until the event with this number is in the table of events."""
    _wait_in(process, lambda: read_watermark(lake.watermark).visible >= seq)


def wait_for_both(lake: Lake, seq: int, process: psutil.Process) -> None:
    """Wait until both tables have the event with this number."""
    _wait_in(process, lambda: read_watermark(lake.watermark).seq >= seq)


def _wait_in(process: psutil.Process, is_so: Callable[[], bool]) -> None:
    while not is_so():
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            raise RuntimeError("the pipeline ended")
        time.sleep(LOOK_SECONDS)


def write_and_watch(
    folder: Path, made: Callable[[int, int], Iterable[Change]], warm: float, seconds: float
) -> list[float]:
    """Write changes at the rate, and return the delay of each change after the warm-up.

    `made` returns changes; its arguments are the number of events before them, and the number of changes.
    """
    committed: list[tuple[int, float]] = []
    seen: list[tuple[int, float]] = []
    is_over = threading.Event()

    def watch() -> None:
        file = Lake(folder).watermark
        while not is_over.is_set():
            if (seq := read_watermark(file).visible) != (seen[-1][0] if seen else 0):
                seen.append((seq, time.monotonic()))
            time.sleep(LOOK_SECONDS)

    watching = threading.Thread(target=watch)
    watching.start()
    journal = Journal.open(folder / "journal.db")
    try:
        at_once, newest = RATE // 50, journal.newest_seq()
        begun = time.monotonic()
        for turn in itertools.count():
            due = begun + turn * at_once / RATE
            if due - begun > warm + seconds:
                break
            time.sleep(max(0.0, due - time.monotonic()))
            journal.append(list(made(newest, at_once)))
            newest += at_once
            committed.append((newest, time.monotonic()))
        _wait_until(lambda: bool(seen) and seen[-1][0] >= newest)
    finally:
        is_over.set()
        watching.join()
        journal.close()
    return _waits([it for it in committed if it[1] - begun > warm], seen, at_once)


def _wait_until(is_so: object, within: float = 120.0) -> None:
    assert callable(is_so)
    deadline = time.monotonic() + within
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the lake does not follow within {within:.0f} s")
        time.sleep(LOOK_SECONDS)


def _waits(committed: list[tuple[int, float]], seen: list[tuple[int, float]], each: int) -> list[float]:
    """Return the seconds from each commit to the watermark, once for each of its changes."""
    found: list[float] = []
    following = iter(seen)
    reached, at = next(following)
    for seq, when in committed:
        while reached < seq:
            reached, at = next(following)
        found += [at - when] * each
    return found


def memory(folder: Path, scale: Scale = FULL, events: int = 0) -> list[Figure]:
    """The peak memory of the pipeline's process and its Java while a new lake is filled, and the duration."""
    events = events or scale.of(2 * MILLION, 2_000)
    write_long_past(folder / "journal.db", events)
    begun = time.monotonic()
    with pipeline(folder) as (process, messages):
        wait_for_both(Lake(folder), events, process)
        seconds, spent = time.monotonic() - begun, processor_seconds_of_all(process)
        most = peak_memory(process.pid) + java_peak(process)
        workers = sum(peak_memory(it.pid) for it in process.children(recursive=True) if it.name() != "java")
    return [
        Figure(
            f"memory of the pipeline, {_short(events)} events",
            f"{most / 2**30:.2f} GiB (driver and Java)",
            "1 GiB (Java's heap)",
            "≤ 2 GiB",
            most <= 2 * 2**30,
            f"Spark's Python workers come on top: {workers / 2**20:.0f} MiB; {seconds:.0f} s and {spent:.0f} s of processor "
            f"time from the start of the process on, its batches took {sum(seconds_of(messages, 'batch')):.0f} s",
        )
    ]


def java_peak(process: psutil.Process) -> int:
    """Return the peak memory of the Java process of a pipeline, in bytes."""
    return peak_memory(next(child.pid for child in process.children(recursive=True) if child.name() == "java"))


def _short(events: int) -> str:
    return f"{events / MILLION:g} M"
