"""A lake of up to a hundred million events: filled in chunks, read, searched and maintained.

The journal gets a chunk, the pipeline moves it, and the journal is trimmed, so that its file stays small. The lake
stays in `.run/bench` for the next run; `make clean` removes it. An event is a new number, and each thing has a thousand
events.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from spark_store.lake import reader
from spark_store.lake.history_reader import LakeHistory
from spark_store.lake.tables import EVENTS, TABLES, Lake
from spark_store.maintenance.backup import back_up
from tests.bench import cold_history
from tests.bench.as_of import search_times, searches
from tests.bench.cold_history import CLIENTS, LAKES, PAGE, first_pages, replay_at_once, replay_in_turn
from tests.bench.harness import FULL, Scale, processor_seconds_of_all, run, spent_by
from tests.bench.lake import MILLION, java_peak, pipeline, seconds_of, wait_for, wait_for_both
from tests.bench.lake_maintenance import link
from tests.bench.long_journals import EVENTS_EACH, VALUE_PATH, Things, drop_entries, write_policy, write_revisions
from tests.bench.report import Figure
from tests.support.lake.pipeline_process import MAIN, given

CHUNKS = 20
FEW = 2_000
GIB = 1 << 30
_NEVER = 1_000_000_000
_WITHOUT_MAINTENANCE = given(
    optimize_batches=_NEVER,
    optimize_files=_NEVER,
    optimize_every=_NEVER,
    vacuum_every=_NEVER,
    full_snapshot_events=_NEVER,
)


def measured(_folder: Path, scale: Scale = FULL, events: int = 0) -> Iterator[Figure]:
    """All figures of a lake of this size, one after the other."""
    events = events or scale.of(10 * MILLION, FEW)
    folder = LAKES / f"scale-{events}"
    found = folder / "fill.json"
    if not found.exists():
        shutil.rmtree(folder, ignore_errors=True)
        chunks = list(_fill(folder, Things(events // EVENTS_EACH), scale.of(CHUNKS, 2)))
        found.write_text(json.dumps(chunks), encoding="utf-8")
    yield from _filling(events, json.loads(found.read_text(encoding="utf-8")))
    compacted = folder.with_name(f"{folder.name}-compacted")
    if not (compacted / "ready").exists():
        _compact(folder, compacted)
    yield from _reading(compacted, events, scale)
    steps = _steps(folder, events)
    yield _search(compacted, events, steps)
    for step in steps:
        yield _maintenance(events, step)
    yield from _verifying(compacted, events)
    yield from _copying(compacted, events)


def _fill(folder: Path, things: Things, chunks: int) -> Iterator[dict[str, Any]]:
    """Fill a new lake, and yield the costs of each chunk."""
    journal, lake = folder / "journal.db", Lake(folder)
    each = min(EVENTS_EACH, max(EVENTS_EACH // chunks, MILLION // things.count))
    write_policy(journal)
    # The pipeline merges states at the end of a chunk that is large enough. While it is behind, it would every two minutes.
    seconds = 1 if things.count * each < MILLION else 600
    with pipeline(folder, *given(merge_every=seconds)) as (process, messages):
        wait_for(lake, 1, process)
        for first in range(1, EVENTS_EACH + 1, each):
            last = min(first + each - 1, EVENTS_EACH)
            write_revisions(journal, things, first, last)
            known, begun, spent = len(messages), time.monotonic(), processor_seconds_of_all(process)
            wait_for_both(lake, things.newest(last), process)
            chunk = {
                "events": things.count * (last - first + 1),
                "seconds": time.monotonic() - begun,
                "processor": processor_seconds_of_all(process) - spent,
                "java": java_peak(process),
                "load": os.getloadavg()[0],
                "files": {table.name: reader.size(lake, table).files for table in TABLES},
                "messages": messages[known:],
            }
            print(things.newest(last), {key: value for key, value in chunk.items() if key != "messages"}, flush=True)
            yield chunk
            drop_entries(journal)


def _compact(folder: Path, copy: Path) -> None:
    """Make a copy of the filled lake, as the pipeline leaves it ten minutes later."""
    link(Lake(folder).folder, Lake(copy).folder)
    shutil.copyfile(folder / "journal.db", copy / "journal.db")
    cold_history.pipeline("optimize", copy)
    (copy / "ready").touch()


def _filling(events: int, chunks: list[dict[str, Any]]) -> Iterator[Figure]:
    seconds, processor = (sum(chunk[name] for chunk in chunks) for name in ("seconds", "processor"))
    loads = [chunk["load"] for chunk in chunks]
    first, last = (chunk["events"] / chunk["seconds"] for chunk in (chunks[0], chunks[-1]))
    yield Figure(
        f"journal → both tables, {short(events)} events in {len(chunks)} chunks, with all maintenance",
        f"{events / seconds:,.0f}/s",
        "–",
        "≥ 100,000/s",
        events / seconds >= 100_000,
        f"{processor / events * 1e6:.1f} µs of processor per event; first chunk {first:,.0f}/s, last one {last:,.0f}/s; "
        f"load average {min(loads):.1f} to {max(loads):.1f}",
    )
    most = max(chunk["java"] for chunk in chunks)
    yield Figure(
        f"memory of Java while filling, {short(events)} events",
        f"{most / GIB:.2f} GiB",
        "1 GiB (Java's heap)",
        "≤ 1.5 GiB",
        most <= 1.5 * GIB,
        f"after the first chunk {chunks[0]['java'] / GIB:.2f} GiB",
    )
    messages = [it for chunk in chunks for it in chunk["messages"]]
    for kind in ("optimize", "full_snapshot", "vacuum"):
        if found := seconds_of(messages, "maintenance", kind=kind):
            yield Figure(
                f"{kind} while filling, {short(events)} events",
                f"longest {max(found):.1f} s",
                "–",
                "–",
                True,
                f"{len(found)} times, the first {found[0]:.1f} s, the last {found[-1]:.1f} s",
            )


def short(events: int) -> str:
    return f"{events / MILLION:g} M"


def _reading(folder: Path, events: int, scale: Scale) -> Iterator[Figure]:
    """Read cold entities: open the tables, one page, whole histories."""
    lake, entities = Lake(folder), events // EVENTS_EACH
    opening = statistics.median(_milliseconds(lambda: LakeHistory(lake).reaches()) for _ in range(scale.of(20, 2)))
    bare = statistics.median(_milliseconds(lambda: DeltaTable(lake.path(EVENTS))) for _ in range(scale.of(20, 2)))
    size = reader.size(lake, EVENTS)
    yield Figure(
        f"table of events opened, {short(events)} events",
        f"{opening:.1f} ms",
        f"{bare:.1f} ms (deltalake, without the list of files)",
        "–",
        True,
        f"{size.files} files, {size.bytes / 1e6:,.0f} MB; {_load()}",
    )
    waits, spent = asyncio.run(first_pages(folder, entities, scale.of(1_000, 5)))
    ranks = statistics.quantiles(waits, n=100)
    spark = statistics.median(run("spark_first_page", folder, entities, PAGE, scale.of(30, 2))["milliseconds"])
    yield Figure(
        f"first page of a cold entity, {PAGE} of {short(events)} events",
        f"p50 {ranks[49]:.1f} ms, p99 {ranks[98]:.1f} ms",
        f"p50 {spark:.0f} ms (Spark, warm)",
        "p50 ≤ 5 ms",
        ranks[49] <= 5,
        f"ratio {spark / ranks[49]:.0f}; the first of all {waits[0]:.0f} ms; {spent:.1f} ms of processor; {_load()}",
    )
    alone, processor = asyncio.run(replay_in_turn(folder, entities, scale.of(100, 2)))
    together = asyncio.run(replay_at_once(folder, entities, scale.of(20, 1)))
    yield Figure(
        f"cold replay of {EVENTS_EACH:,} events among {short(events)}",
        f"{EVENTS_EACH / alone:,.0f} events/s",
        "–",
        "≥ 50,000/s",
        EVENTS_EACH / alone >= 50_000,
        f"{processor / EVENTS_EACH * 1e6:.1f} µs of processor per event; "
        f"{together:,.0f} replays/s by {CLIENTS} clients; {_load()}",
    )


def _search(folder: Path, events: int, steps: Iterator[dict[str, Any]]) -> Figure:
    """Search the past for one thing in a hundred, while the pipeline does no maintenance.

    The first step of the maintenance runs the same search.
    """
    lake = Lake(folder)
    with pipeline(folder, *_WITHOUT_MAINTENANCE), searches(folder) as past:
        while not lake.connect.exists():
            time.sleep(0.1)
        *found, end = asyncio.run(search_times(past, f"gt({VALUE_PATH[1:]},99)", None, events))
    load, plain = _load(), next(steps)
    return Figure(
        f"search as of, {short(events)} events, 1 % of {events // EVENTS_EACH:,} things found",
        f"{statistics.median(found):.2f} s to the first page",
        f"{plain['plain']:.2f} s (Spark, over all events before that time)",
        "–",
        True,
        f"{min(found):.2f} to {max(found):.2f} s; all pages {end:.2f} s; {load}",
    )


def _steps(folder: Path, events: int) -> Iterator[dict[str, Any]]:
    """Run the maintenance as a process, and yield the costs of each step."""
    module = [sys.executable, "-m", "tests.bench.lake_maintenance", str(folder), str(events)]
    with subprocess.Popen(module, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield from (json.loads(line) for line in process.stdout if line.startswith("{"))
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, module)


def _maintenance(events: int, step: dict[str, Any]) -> Figure:
    plain = "–" if step["plain"] is None else f"{step['plain']:.1f} s (plain Spark and Delta)"
    return Figure(
        f"{step['step']}, {short(events)} events",
        f"{step['ours']:.1f} s",
        plain,
        "Java ≤ 1.5 GiB",
        step["java"] <= 1.5 * GIB,
        f"Java until then at most {step['java'] / GIB:.2f} GiB; {_load()}",
    )


def _verifying(folder: Path, events: int) -> Iterator[Figure]:
    bare = spent_by([sys.executable, "-c", _BARE_READ, *(Lake(folder).path(table) for table in TABLES)])
    ours = spent_by([sys.executable, "-c", MAIN, "verify", "--data-dir", str(folder)])
    yield Figure(
        f"verify, {short(events)} events",
        f"{ours.seconds:.1f} s",
        f"{bare.seconds:.1f} s (all rows read with pyarrow)",
        "–",
        True,
        f"{ours.processor:.1f} s of processor, {ours.memory >> 20} MiB (bare {bare.memory >> 20} MiB); {_load()}",
    )


_BARE_READ = """
import sys, deltalake
for path in sys.argv[1:]:
    print(sum(batch.num_rows for batch in deltalake.DeltaTable(path).to_pyarrow_dataset().to_batches()))
"""


def _copying(folder: Path, events: int) -> Iterator[Figure]:
    first, second, bare = (folder.with_name(f"{folder.name}-{name}") for name in ("backup", "again", "bare"))
    for old in (first, second, bare):
        shutil.rmtree(old, ignore_errors=True)
    plain = _milliseconds(lambda: shutil.copytree(folder, bare)) / 1000
    whole = _milliseconds(lambda: back_up(Lake(folder), first)) / 1000
    linked = _milliseconds(lambda: back_up(Lake(folder), second, first)) / 1000
    size = sum(it.stat().st_size for it in first.rglob("*") if it.is_file())
    for old in (first, second, bare):
        shutil.rmtree(old)
    yield Figure(
        f"backup, {short(events)} events",
        f"{whole:.1f} s",
        f"{plain:.1f} s (all files copied)",
        "–",
        True,
        f"{size / 1e6:,.0f} MB; {linked:.1f} s with an earlier one; {_load()}",
    )


def _milliseconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1000


def _load() -> str:
    return f"load average {os.getloadavg()[0]:.1f}"
