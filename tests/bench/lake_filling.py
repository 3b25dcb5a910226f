"""The lake is filled from a journal, several times over, and beside it from data that is already prepared.

    python -m tests.bench.lake_filling FOLDER ROUNDS

In a process of its own, with the session and the loop that the pipeline has. FOLDER holds a journal. The first round warms
Java up and does not count. Prepared are the same rows in the same batches, cached in Spark: what is left of the work is the
append and the merge alone, one after the other as they always were. What the loop needs before its first batch is told apart
(`whole` has it too). Prints one JSON line: how many rows a round has, and lists of the seconds and the
seconds of processor time (driver, Java and Python workers together) that each round took.
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
from spark_store.pipeline.loop import PipelineLoop, PipelineOptions
from spark_store.pipeline.session import SessionOptions, start_session
from spark_store.pipeline.tables import LakeWriter, event_rows, latest_rows
from tests.bench.harness import processor_seconds_of_all

Spent = dict[str, list[float]]


def processor_seconds() -> float:
    """Of this process and of all that it has started."""
    return processor_seconds_of_all(psutil.Process())


@contextlib.contextmanager
def timed(spent: Spent, name: str) -> Iterator[None]:
    begun, processor = time.perf_counter(), processor_seconds()
    yield
    spent.setdefault(name, []).append(time.perf_counter() - begun)
    spent.setdefault(f"{name}_processor", []).append(processor_seconds() - processor)


def fill(target: LakeWriter, options: PipelineOptions, spent: Spent) -> None:
    """Everything that the journal has, into a new lake. Timed is what lies between the begin of the first batch and the end
    of the last one; how long all of it took, with the start of the loop, too."""
    ended: list[tuple[float, float]] = []

    def heard(event: str, **fields: Any) -> None:
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
    PipelineLoop(target, heard, options, threading.Event()).run()
    spent.setdefault("whole", []).append(time.perf_counter() - begun)
    spent.setdefault("journal", []).append(ended[-1][0] - ended[0][0])
    # The processor time of the loop's start counts: nobody can tell it from that of the first batch.
    spent.setdefault("journal_processor", []).append(ended[-1][1] - ended[0][1])


def cached(rows: DataFrame) -> DataFrame:
    rows = rows.cache()
    rows.count()
    return rows


def fill_prepared(target: LakeWriter, other: LakeWriter, rows: int, batch: int, spent: Spent) -> None:
    """The same append and merge, from data frames that are ready, into the tables of another lake."""
    seconds: Spent = {}
    tables.prepare(other)
    for last in range(batch, rows + 1, batch):
        first = last - batch + 1
        events = cached(event_rows(target.journal("journal_events", first, last)))
        states = cached(latest_rows(target.journal("journal_states", first, last)))
        with timed(seconds, "batch"):
            tables.append_once(other, EVENTS, events, APP, last)
            tables.merge_rows(other, states, last)
        events.unpersist()
        states.unpersist()
    spent.setdefault("prepared", []).append(sum(seconds["batch"]))
    spent.setdefault("prepared_processor", []).append(sum(seconds["batch_processor"]))


def main(folder: Path, rounds: int) -> int:
    options = PipelineOptions(once=True)
    with JournalReader.open(folder / "journal.db") as follower:
        rows = follower.newest()
    spark = start_session(SessionOptions())
    target, other = LakeWriter.of(spark, folder), LakeWriter(spark, Lake(folder / "prepared"), 2)
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
