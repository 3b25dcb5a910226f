"""Measures the log of a table after hours of small batches: its files, and the time to open it.

deltalake writes in place of Spark, with the time stamps of two hours, which takes half a minute. The checksum file that
Spark writes for each commit is added.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from spark_store.lake.durability import clean_log
from spark_store.lake.tables import EVENTS
from spark_store.pipeline.settings import PipelineSettings
from tests.bench.harness import FULL, Scale
from tests.bench.report import Figure

INTERVAL = 5
"""Seconds between two batches."""
SECONDS = 2 * 3600 + 590
OPENED = 50


def trickle(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """Measure a table's log after two hours with a batch every five seconds, with a cleanup and without."""
    plan = PipelineSettings()
    batches = scale.of(SECONDS // INTERVAL, 60)
    most, opening = _write(folder / "cleaned", batches, plan, clean_log)
    uncleaned, opening_uncleaned = _write(folder / "uncleaned", batches, plan, lambda _log, _now: None)
    return [
        Figure(
            f"log of a table, a batch every {INTERVAL} s",
            f"at most {most:,} files, opened in {opening:.1f} ms",
            f"{uncleaned:,} files, {opening_uncleaned:.1f} ms (Delta alone, which keeps a day)",
            "≤ 2,000 files, ≤ 10 ms",
            most <= 2_000 and opening <= 10,
        )
    ]


def _write(
    table: Path, batches: int, plan: PipelineSettings, clean: Callable[[Path, float], None]
) -> tuple[int, float]:
    """Return the peak number of files in the log, and the final milliseconds to open the table."""
    row = pa.table({"entity": ["acme.bench:lamp"], "seq": [1]})
    interval = EVENTS.properties["delta.checkpointInterval"]
    write_deltalake(table, row, configuration={"delta.checkpointInterval": interval})
    log = table / "_delta_log"
    begin = time.time() - batches * INTERVAL
    most = version = 0
    for batch in range(1, batches + 1):
        if batch % (plan.vacuum_every.total_seconds() // INTERVAL) == 0:
            most = max(most, len(list(log.iterdir())))
            clean(log, begin + batch * INTERVAL)
        if batch % plan.optimize_batches == 0:
            DeltaTable(table).optimize.compact()
            version += 1
        write_deltalake(table, row, mode="append")
        version += 1
        (log / f"{version:020}.crc").touch()
        for file in log.glob(f"{version:020}.*"):
            os.utime(file, (begin + batch * INTERVAL,) * 2)
    return max(most, len(list(log.iterdir()))), _opening(table)


def _opening(table: Path) -> float:
    times = []
    for _ in range(OPENED):
        begun = time.perf_counter()
        DeltaTable(table)
        times.append((time.perf_counter() - begun) * 1000)
    return statistics.median(times)
