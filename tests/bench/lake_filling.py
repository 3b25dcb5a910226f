"""Fills a lake from a journal several times, and another one from prepared data.

    python -m tests.bench.lake_filling FOLDER ROUNDS

It runs as a process with the session and the loop of the pipeline. FOLDER has a journal. The first round warms Java up
and is not measured. The prepared data are the same rows in the same batches, cached in Spark, so that only the append and
the merge remain. `whole` includes the start of the loop before its first batch. Prints one JSON line: the number of rows
of a round, and lists of the seconds and processor seconds (driver, Java and Python workers) of each round.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import DataFrame

from spark_store.journal.reader import JournalReader
from spark_store.lake.tables import APP, EVENTS, Lake
from spark_store.pipeline import tables
from spark_store.pipeline.loop import PipelineLoop
from spark_store.pipeline.session import start_session
from spark_store.pipeline.settings import PipelineSettings
from spark_store.pipeline.source import read_events, read_states
from spark_store.pipeline.tables import LakeWriter, event_rows, latest_rows
from tests.bench.harness import processor_seconds_of_all

Spent = dict[str, list[float]]


def processor_seconds() -> float:
    """Return the processor seconds of this process and of its children."""
    return processor_seconds_of_all(psutil.Process())


@contextlib.contextmanager
def timed(spent: Spent, name: str) -> Iterator[None]:
    begun, processor = time.perf_counter(), processor_seconds()
    yield
    spent.setdefault(name, []).append(time.perf_counter() - begun)
    spent.setdefault(f"{name}_processor", []).append(processor_seconds() - processor)


def fill(target: LakeWriter, options: PipelineSettings, spent: Spent) -> None:
    """Write the whole journal to a new lake.

    Returns the time from the start of the first batch to the end of the last one, and the time with the start of the
    loop.
    """
    ended: list[tuple[float, float]] = []

    def on_event(event: str, **fields: Any) -> None:
        if event == "following":
            ended.append((time.perf_counter(), processor_seconds()))
        if event == "batch":
            if len(ended) == 1:
                begin = time.perf_counter() - fields["seconds"]
                ended[0] = (begin, ended[0][1])
            ended.append((time.perf_counter(), processor_seconds()))
        if event == "merged":
            ended.append((time.perf_counter(), processor_seconds()))

    begun = time.perf_counter()
    PipelineLoop(target, on_event, options, threading.Event()).run()
    spent.setdefault("whole", []).append(time.perf_counter() - begun)
    spent.setdefault("journal", []).append(ended[-1][0] - ended[0][0])
    # Includes the start of the loop, whose processor time cannot be separated from the first batch.
    spent.setdefault("journal_processor", []).append(ended[-1][1] - ended[0][1])


def cached(rows: DataFrame) -> DataFrame:
    rows = rows.cache()
    rows.count()
    return rows


def fill_prepared(target: LakeWriter, other: LakeWriter, rows: int, batch: int, spent: Spent) -> None:
    """The same append and merge from prepared data frames, into the tables of another lake."""
    seconds: Spent = {}
    tables.prepare(other)
    for last in range(batch, rows + 1, batch):
        first = last - batch + 1
        events = cached(event_rows(read_events(target.spark, target.lake.journal, first, last)))
        states = cached(latest_rows(read_states(target.spark, target.lake.journal, first, last)))
        with timed(seconds, "batch"):
            tables.append_once(other, EVENTS, events, APP, last)
            tables.merge_rows(other, states, last)
        events.unpersist()
        states.unpersist()
    spent.setdefault("prepared", []).append(sum(seconds["batch"]))
    spent.setdefault("prepared_processor", []).append(sum(seconds["batch_processor"]))


def main(folder: Path, rounds: int) -> int:
    options = PipelineSettings(once=True)
    with JournalReader.open(folder / "journal.db") as follower:
        rows = follower.newest()
    spark = start_session(PipelineSettings())
    target, other = LakeWriter.of(spark, folder), LakeWriter(spark, Lake(folder / "prepared"))
    spent: Spent = {}
    for number in range(rounds + 1):
        for lake in (target.lake, other.lake):
            shutil.rmtree(lake.folder, ignore_errors=True)
        fill(target, options, spent)
        fill_prepared(target, other, rows, min(options.max_batch_rows, rows), spent)
        if number == 0:
            spent.clear()
    spark.stop()
    print(json.dumps({"rows": rows, **spent}))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
