"""Warms Spark up: otherwise the first search of the past loads classes and starts Python workers.

It plans a search that reads nothing, and folds one thing that is in no table: that takes as long for any lake. Both run in
this process, without the libraries of Spark Connect.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from spark_store.pipeline.tables import LakeWriter
from spark_store.queries import as_of
from spark_store.queries.as_of_fold import DDL, KNOWN, FoldOutput, FoldRow, fold_to_file
from spark_store.queries.spark_query import SparkQuery, Tables
from spark_store.rql.options import order_by
from spark_store.rql.query import ThingQuery

_NOTHING: Final = ThingQuery(None, order_by(()), frozenset({"-"}))
"""A search in a namespace that cannot exist: files are skipped by their statistics."""

_THING: Final = dict.fromkeys(FoldRow._fields, "cast(NULL AS STRING)") | {
    "entity": "'-:-'", "revision": "1L", "action": f"'{KNOWN}'", "value": "'{}'", "at": "''", "created": "''",
}  # fmt: skip
_MAX_BYTES: Final = 1 << 20


def warm_up(target: LakeWriter, is_over: Callable[[], bool]) -> int:
    """Warm Spark up, unless it is over in between; return how many files the workers have written."""
    # Adaptive execution is off in the pipeline's own session. Sessions of Spark Connect have the same methods.
    session: Any = target.spark.newSession()
    tables = Tables(session, target.lake)
    target.lake.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.lake.scratch.absolute()) as folder:
        output, written = FoldOutput(folder, _MAX_BYTES), 0
        search = as_of.query(target.lake, _NOTHING, datetime.now(UTC), output)
        queries: tuple[SparkQuery, ...] = (search, partial(_fold_one, output))
        for ask in queries:
            if not is_over():
                written += len(ask(tables).collect())
    return written


def _fold_one(output: FoldOutput, tables: Tables) -> Any:
    thing = tables.session.range(1).selectExpr(*(f"{value} AS {name}" for name, value in _THING.items()))
    ordered = thing.repartition("entity").sortWithinPartitions("entity", "revision")
    return ordered.mapInArrow(partial(fold_to_file, None, output), DDL)
