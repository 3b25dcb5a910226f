"""Searches of the past without Spark: this process folds the events with the code of Spark's workers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from connectivity.subscriptions import as_of_feed
from mappings.ids import EntityId, EntityType
from mappings.timestamps import utc_text
from spark_store.journal.journal import Journal
from spark_store.lake.tables import Lake
from spark_store.lake.watermark import Watermark, publish_watermark
from spark_store.queries.as_of_fold import FoldOutput, FoldRow, fold_to_file
from spark_store.queries.spark_query import Cancellation, QueryLimits, SparkQueries
from spark_store.rql.query import ThingQuery
from tests.support.in_process.service import ConnectionHarness

_INPUT = pa.schema([(name, pa.int64() if name == "revision" else pa.string()) for name in FoldRow._fields])


class FoldQuery(NamedTuple):
    """A query of the past, in place of a query for Spark."""

    question: ThingQuery
    before: datetime
    output: FoldOutput


class FoldedQueries(SparkQueries):
    """Runs searches of the past on a journal."""

    def __init__(self, lake: Lake, journal: Journal) -> None:
        super().__init__(lake)
        self._journal = journal

    def run(  # type: ignore[override]
        self, query: Any, limits: QueryLimits, cancellation: Cancellation | None = None
    ) -> list[WrittenFile]:
        asked: FoldQuery = query
        names = asked.question.namespaces
        things = [it for it in _things(self._journal) if not names or it.namespace in names]
        rows = [row for it in things for row in _rows(self._journal, it, utc_text(asked.before))]
        batch = pa.RecordBatch.from_pylist([row._asdict() for row in rows], schema=_INPUT)
        written = fold_to_file(asked.question.predicate, asked.output, iter([batch]))
        return [WrittenFile(**row) for it in written for row in it.to_pylist()]


class WrittenFile(NamedTuple):
    """A row of the result."""

    file: str
    is_complete: bool


def _things(journal: Journal) -> list[EntityId]:
    found = journal.read_in_worker(
        lambda it: it.execute("SELECT id FROM entities WHERE type = 'thing' ORDER BY id").fetchall()
    )
    return [EntityId(EntityType.THING, *id.split(":", 1)) for (id,) in found]


def _rows(journal: Journal, entity: EntityId, before: str) -> list[FoldRow]:
    def row(event: Any) -> FoldRow:
        value = None if event.value is None else event.value.decode()
        headers, at = event.headers.decode(), event.timestamp
        return FoldRow(str(entity), event.revision, event.action, event.path, value, headers, at, None, None)

    return [row(event) for event in journal.events(entity, 1, 2**62, 1000, 1 << 30) if event.timestamp < before]


def fold_past_searches(patch: pytest.MonkeyPatch) -> None:
    """Make searches of the past use `FoldedQueries`."""
    patch.setattr(as_of_feed, "query", lambda _lake, *asked: FoldQuery(*asked))


def open_past_searches(harness: ConnectionHarness, now: Callable[[], datetime]) -> as_of_feed.AsOfSearches:
    """Return the searches of the past of a harness whose journal has its own folder."""
    lake = Lake(Path(harness.journal.path).parent)
    lake.pipeline.mkdir(parents=True)
    publish_watermark(lake.watermark, Watermark(10**6))
    queries = FoldedQueries(lake, harness.journal)
    searches = as_of_feed.AsOfSearches(harness.store, harness.decider.world, queries, now)
    harness.searching.as_of = searches.open
    return searches
