"""A million things change at random, a thousand times per second: the lag and the cost of the lake."""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Iterator
from pathlib import Path

from spark_store.lake.tables import LATEST, Lake
from spark_store.records import Change
from tests.bench.harness import FULL, Scale, processor_seconds_of_all, run
from tests.bench.lake import MILLION, RATE, java_peak, pipeline, seconds_of, wait_for_both, write_and_watch
from tests.bench.lake_scale import GIB
from tests.bench.long_journals import Things, change, write_policy, write_revisions
from tests.bench.report import Figure
from tests.support.lake.pipeline_process import given

SECONDS = 60
INTERVAL, MERGE_SECONDS = 5, 120
"""The pipeline's own defaults."""


def measured(folder: Path, scale: Scale = FULL, seconds: int = 0) -> Iterator[Figure]:
    """Measure a lake while things change for `seconds` seconds."""
    seconds, things = seconds or scale.of(SECONDS, 2), Things(scale.of(MILLION, 500))
    lake, merge_seconds = Lake(folder), scale.of(MERGE_SECONDS, 1)
    write_policy(lake.journal)
    write_revisions(lake.journal, things, 1, 1)
    settings = given(interval=scale.of(INTERVAL, 1), merge_every=merge_seconds)
    with pipeline(folder, *settings) as (process, messages):
        wait_for_both(lake, things.newest(1), process)
        known, spent = len(messages), processor_seconds_of_all(process)
        waits = write_and_watch(folder, _Chances(things), 0.0, float(seconds))
        wait_for_both(lake, things.newest(1) + len(waits), process)
        spent, memory = processor_seconds_of_all(process) - spent, java_peak(process)
        batches, merges = (seconds_of(messages[known:], event) for event in ("batch", "merged"))
    ranks = statistics.quantiles(waits, n=100)
    kept = sum(it.stat().st_size for it in Path(lake.path(LATEST)).rglob("*.parquet"))
    load = f"load average {os.getloadavg()[0]:.1f}"
    yield Figure(
        f"a change visible in the lake, {things.count:,} things at random, {RATE:,}/s for {seconds} s",
        f"p50 {ranks[49]:.1f} s, p95 {ranks[94]:.1f} s",
        f"{INTERVAL} s (the pause between two batches)",
        "–",
        True,
        f"longest {max(waits):.1f} s; {len(batches)} batches of {statistics.median(batches):.1f} s; "
        f"{spent / len(waits) * 1e6:.0f} µs of processor per event; Java at most {memory / GIB:.2f} GiB; {load}",
    )
    at_once = min(RATE * merge_seconds, len(waits))
    bare = run("bare_delta", folder, at_once, scale.of(3, 1), within=1800)["random"]
    yield Figure(
        f"merge into {things.count:,} states",
        f"{statistics.median(merges):.1f} s every {merge_seconds} s",
        f"{statistics.median(bare):.1f} s (merge of {at_once:,} cached rows)",
        "–",
        True,
        f"{len(merges)} merges, longest {max(merges):.1f} s; replaced files of the last half hour and present ones "
        f"{kept / 1e6:,.0f} MB; {load}",
    )


class _Chances:
    """Returns changes of random things."""

    def __init__(self, things: Things) -> None:
        self._things, self._dice = things, random.Random(19)
        self._revisions = [1] * things.count

    def __call__(self, first: int, count: int) -> Iterator[Change]:
        for number in range(first, first + count):
            which = self._dice.randrange(self._things.count)
            self._revisions[which] += 1
            yield change(self._things.thing(which), self._revisions[which], number)
