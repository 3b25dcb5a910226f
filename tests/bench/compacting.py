"""Compacts a lake of many small files repeatedly, in a Java that has run for a while.

    python -m tests.bench.compacting FOLDER

It runs as a process with the priority and the session of the pipeline. FOLDER has a lake; each round compacts a copy of
it. Prints the line `ready` before each round, begins the round after it has read a line, and ends when its standard input
is closed. After each round it prints a line of JSON: the number of files of events before and after.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from spark_store.lake import reader
from spark_store.lake.tables import EVENTS, Lake
from spark_store.pipeline import table_maintenance, tables
from spark_store.pipeline.__main__ import NICE
from spark_store.pipeline.session import prioritize, start_session
from spark_store.pipeline.settings import PipelineSettings
from spark_store.pipeline.tables import LakeWriter


def main(folder: Path) -> int:
    os.nice(NICE)
    spark = start_session(PipelineSettings(), "of a benchmark")
    prioritize(spark)
    for number in range(sys.maxsize):
        data = folder.with_name(f"{folder.name}-{number}")
        shutil.copytree(Lake(folder).folder, Lake(data).folder)
        target = LakeWriter.of(spark, data)
        tables.prepare(target)
        before = reader.size(target.lake, EVENTS).files
        print("ready", flush=True)
        if not sys.stdin.readline():
            break
        table_maintenance.optimize(target)
        table_maintenance.vacuum(target)
        print(json.dumps({"before": before, "after": reader.size(target.lake, EVENTS).files}), flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
