"""The maintenance of a lake, step by step, compared with plain Spark and Delta on a copy.

    python -m tests.bench.lake_maintenance FOLDER EVENTS

It runs as a process with the pipeline's session. FOLDER has a lake of EVENTS events, which it does not change: the
files are linked into two copies. Prints a line of JSON after each step: its name, the seconds of both (null without
such a step), and the peak memory of the Java process in bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, TypeAlias

from spark_store.lake.tables import EVENTS, LATEST, TABLES, Lake
from spark_store.lake.watermark import read_watermark
from spark_store.pipeline import retention, snapshots, table_maintenance, tables
from spark_store.pipeline.retention_rules import RetentionRule, RetentionRules
from spark_store.pipeline.session import start_session
from spark_store.pipeline.settings import PipelineSettings
from spark_store.pipeline.tables import LakeWriter
from spark_store.sql import literal
from tests.bench.harness import peak_memory
from tests.bench.long_journals import BEGUN, EVENTS_EACH
from tests.support.lake.java_process import java_pid

EXPIRED = EVENTS_EACH // 100
"""The events of each thing that retention deletes."""

Work: TypeAlias = Callable[[LakeWriter], object]


class Step(NamedTuple):
    """A step of maintenance, and the same in plain Spark."""

    name: str
    ours: Work | None
    plain: Work | None


def main(folder: Path, events: int) -> int:
    copies = [folder.with_name(f"{folder.name}-{name}") for name in ("ours", "plain")]
    for copy in copies:
        link(Lake(folder).folder, Lake(copy).folder)
    spark = start_session(PipelineSettings())
    ours, plain = (LakeWriter.of(spark, copy) for copy in copies)
    tables.prepare(ours)
    for step in steps(events):
        took = [seconds(work, target) for work, target in ((step.ours, ours), (step.plain, plain))]
        line = {"step": step.name, "ours": took[0], "plain": took[1], "java": peak_memory(java_pid(spark))}
        print(json.dumps(line), flush=True)
    spark.stop()
    for copy in copies:
        shutil.rmtree(copy)
    return 0


def link(source: Path, target: Path) -> None:
    """Copy the folder of a lake. Its data files are links, as they are never changed."""
    shutil.rmtree(target, ignore_errors=True)

    def copy(old: str, new: str) -> None:
        is_data = old.endswith(".parquet") and "_delta_log" not in old
        (os.link if is_data else shutil.copyfile)(old, new)

    shutil.copytree(source, target, copy_function=copy, ignore=shutil.ignore_patterns("tmp"))


def seconds(work: Work | None, target: LakeWriter) -> float | None:
    """Return the seconds that some work takes."""
    if work is None:
        return None
    begun = time.perf_counter()
    work(target)
    return time.perf_counter() - begun


def steps(events: int) -> list[Step]:
    rules = RetentionRules(RetentionRule(revisions=EVENTS_EACH - EXPIRED))

    def take_full_snapshot(target: LakeWriter) -> object:
        return snapshots.take_full_snapshot(target, read_watermark(target.lake.watermark).seq + 1)

    def forget(target: LakeWriter) -> object:
        return retention.delete_expired(target, rules, datetime.now(UTC))

    return [
        Step("search as of", None, lambda target: search_as_of(target, events)),
        Step("snapshots of entities", snapshots.take, None),
        Step("compaction", table_maintenance.optimize, optimize),
        Step("full snapshot", take_full_snapshot, copy_latest),
        Step("retention of 1 %", forget, delete),
        Step("vacuum", table_maintenance.vacuum, vacuum),
    ]


def search_as_of(target: LakeWriter, events: int) -> object:
    """Find the things with a value above 99 at a time in the middle of the past."""
    at = literal(BEGUN + timedelta(milliseconds=events * 0.55))
    return target.spark.sql(
        f"SELECT entity, newest FROM (SELECT entity, max_by(value, revision) AS newest FROM {target.name(EVENTS)} "
        f"WHERE entity_type = 'thing' AND ts < {at} GROUP BY entity) WHERE cast(newest AS DOUBLE) > 99"
    ).collect()


def optimize(target: LakeWriter) -> None:
    for table in (table for table in TABLES if table.clustered_by):
        target.spark.sql(f"OPTIMIZE {target.name(table)}").collect()


def copy_latest(target: LakeWriter) -> None:
    target.read(LATEST).write.format("delta").save(str(target.lake.folder / "copy"))


def delete(target: LakeWriter) -> None:
    target.spark.sql(f"DELETE FROM {target.name(EVENTS)} WHERE revision <= {EXPIRED}").collect()


def vacuum(target: LakeWriter) -> None:
    for table in TABLES:
        target.spark.sql(f"VACUUM {target.name(table)}").collect()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
