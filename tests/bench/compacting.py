"""A lake of many small files is compacted, time and again, by a Java that has run for a while.

    python -m tests.bench.compacting FOLDER

In a process of its own, as nice as the pipeline's and with its session. FOLDER holds a lake; each round works on a copy of
it. Prints the line `ready` before each round, and begins it when a line comes in; ends with its standard input. After each
round it prints a line of JSON: how many files of events there were, and are.
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
from spark_store.pipeline.session import ConnectOptions, SessionOptions, put_first, start_session
from spark_store.pipeline.tables import LakeWriter


def main(folder: Path) -> int:
    os.nice(NICE)
    spark = start_session(SessionOptions(connect=ConnectOptions()))
    put_first(spark)
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
