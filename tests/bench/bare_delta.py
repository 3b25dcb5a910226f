"""Plain Spark and Delta do the work of the pipeline, from rows of a filled lake.

    python -m tests.bench.bare_delta FOLDER ROWS ROUNDS

It runs as a process. FOLDER has a lake, which it does not change. Each round appends all rows of `events` to an empty
table and merges those of `latest` into another one; then it merges ROWS random rows of `latest`, which Spark has
cached, into that table. Prints one JSON line: lists of the seconds of each append, of each first merge, and of each
merge of random rows.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

from pyspark.sql import functions as sql

from spark_store.lake.tables import EVENTS, LATEST, Lake
from spark_store.pipeline import tables
from spark_store.pipeline.session import start_session
from spark_store.pipeline.settings import PipelineSettings
from spark_store.pipeline.tables import LakeWriter

SEED = 7


def main(folder: Path, rows: int, rounds: int) -> int:
    spark = start_session(PipelineSettings())
    source, target = LakeWriter.of(spark, folder), LakeWriter(spark, Lake(folder / "bare"))
    events, latest = source.read(EVENTS), source.read(LATEST)
    share = min(1.0, rows / latest.count())
    changed = latest.sample(share, SEED).withColumn("seq", sql.col("seq") + 1).cache()
    changed.count()
    found: dict[str, list[float]] = {"append": [], "merge": [], "random": []}
    for _ in range(rounds):
        shutil.rmtree(target.lake.folder, ignore_errors=True)
        tables.prepare(target)
        begun = time.perf_counter()
        events.writeTo(target.name(EVENTS)).append()
        appended = time.perf_counter()
        tables.merge_rows(target, latest)
        merged = time.perf_counter()
        tables.merge_rows(target, changed)
        for name, seconds in (
            ("append", appended - begun),
            ("merge", merged - appended),
            ("random", time.perf_counter() - merged),
        ):
            found[name].append(seconds)
    shutil.rmtree(target.lake.folder.parent)
    spark.stop()
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
