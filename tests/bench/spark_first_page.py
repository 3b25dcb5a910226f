"""Queries Spark for the first page of an entity's events, as a replay needs it.

    python -m tests.bench.spark_first_page FOLDER ENTITIES EVENTS SAMPLES [PREFIX]

It runs as a process. FOLDER has a lake of entities whose names begin with PREFIX. Prints one JSON line: the milliseconds of
each sample, after as many queries to warm up, at most `WARM`.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import functions as sql

from spark_store.lake.tables import EVENTS, Lake
from spark_store.pipeline.session import start_session
from spark_store.pipeline.settings import PipelineSettings
from tests.bench.long_journals import Things

WARM = 5


def main(arguments: Sequence[str]) -> int:
    folder, *numbers = arguments
    entities, events, samples = map(int, numbers[:3])
    things = Things(entities, prefix=numbers[3]) if numbers[3:] else Things(entities)
    spark = start_session(PipelineSettings())
    path = Lake(Path(folder)).path(EVENTS)
    chosen = random.Random(7)
    found = []
    warm = min(WARM, samples)
    for _ in range(warm + samples):
        wanted = (sql.col("entity_type") == "thing") & (
            sql.col("entity") == str(things.thing(chosen.randrange(things.count)))
        )
        begun = time.perf_counter()
        rows = spark.read.format("delta").load(path).where(wanted & sql.col("revision").between(1, events))
        count = len(rows.orderBy("revision").collect())
        found.append((time.perf_counter() - begun) * 1000)
        if count != events:
            raise RuntimeError(f"expected {events} events, found {count}")
    spark.stop()
    print(json.dumps({"milliseconds": found[warm:]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
