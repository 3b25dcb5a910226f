"""Searches of all things before an instant: the Spark query, and its result.

The newest snapshot from before the instant has the states to begin with (`spark_store.pipeline.snapshots`), unless a thing
has a newer row in `snapshots`. Spark's workers fold later events and drop impossible matches
(`spark_store.queries.as_of_fold`). So the cost grows with the things and the events since the snapshot, not with the
history. Tables are read at versions of the same time, so that maintenance beside the query changes nothing.

The present policy of a thing decides who can read, from the journal; if the thing was deleted since, even if it was created
again, its last policy as it was at the deletion. The caller supplies the `Access` (`matching`). Erased things are left out,
even if the lake still has them or they were created again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from mappings.json_values import decode_state
from mappings.timestamps import utc_text
from spark_store.errors import LimitExceeded, translate_system_error
from spark_store.history.event_view import thing_document
from spark_store.journal import erasure
from spark_store.journal.reader import JournalReader
from spark_store.lake.tables import EVENTS, FULL_SNAPSHOTS, SNAPSHOTS, Lake
from spark_store.queries.as_of_fold import DDL, KNOWN, Candidate, FoldOutput, FoldRow, fold_to_file
from spark_store.queries.spark_query import Rows, SparkQuery, Tables
from spark_store.records import SPARK_FORMAT, StateGuard
from spark_store.rql.order import sort_key, value_of
from spark_store.rql.query import Access, SearchHit, SortKey, ThingQuery
from spark_store.rql.search_evaluator import holds
from spark_store.sql import literal

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _text(column: str, name: str) -> str:
    return f"date_format({column}, {literal(SPARK_FORMAT)}) AS {name}"


_STATE: Final = (
    *("entity", "revision", f"'{KNOWN}' AS action", "cast(NULL AS STRING) AS path", "state AS value"),
    *("cast(NULL AS STRING) AS headers", _text("modified", "at"), "policy_id", _text("created", "created")),
)
_EVENT: Final = (
    *("entity", "revision", "action", "path", "value", "headers", _text("ts", "at")),
    *("cast(NULL AS STRING) AS policy_id", "cast(NULL AS STRING) AS created"),
)


def instant(nanoseconds: int) -> datetime:
    """Return the first instant that the lake can distinguish from `nanoseconds` since 1970.

    Raises OverflowError beyond the calendar.
    """
    return _EPOCH + timedelta(microseconds=-(-nanoseconds // 1000))


class CandidateAccess(NamedTuple):
    """A candidate, and what decides who can read it."""

    candidate: Candidate
    guard: StateGuard


def query(lake: Lake, question: ThingQuery, before: datetime, output: FoldOutput) -> SparkQuery:
    """Return the Spark query that writes files for `candidates`, and returns their names.

    Raises StoreUnavailable, SchemaTooNew, LakeUnfit.
    """
    # Loads libraries that a service without such questions does without.
    from spark_store.lake import reader as lakes

    # `with_guards` leaves out later erasures.
    spared = erasure.spared_condition(lakes.pending_erasures(lake))
    versions = lakes.versions_before(lake, before)
    names = ", ".join(literal(name) for name in sorted(question.namespaces))
    within = f"{spared} AND namespace IN ({names})" if names else spared

    def ask(tables: Tables) -> Any:
        since = f"entity_type = 'thing' AND seq > {versions.seq} AND {within}"
        events = tables.read(EVENTS, versions.events).where(f"{since} AND ts < {literal(before)}").selectExpr(*_EVENT)
        known = (
            tables.read(SNAPSHOTS, versions.snapshots)
            .where(f"{since} AND modified < {literal(before)}")
            .selectExpr(*_STATE)
        )
        rows = events.unionByName(known)
        if versions.seq:
            kept = tables.read(FULL_SNAPSHOTS, versions.full_snapshots).where(f"as_of = {versions.seq} AND {within}")
            rows = rows.unionByName(kept.selectExpr(*_STATE))
        ordered = rows.select(*FoldRow._fields).repartition("entity").sortWithinPartitions("entity", "revision")
        return ordered.mapInArrow(partial(fold_to_file, question.predicate, output), DDL)

    return ask


def result_files(rows: Rows) -> list[Path]:
    """Return the files that the rows of the query's result name. Raises LimitExceeded."""
    if not all(row.is_complete for row in rows):
        raise LimitExceeded("found more things than may be written on the disk; narrow the search")
    return [Path(row.file) for row in rows]


def candidates(file: Path) -> Iterator[list[Candidate]]:
    """Yield the things of a file in parts of bounded size. Its name is removed first.

    Raises StoreUnavailable.
    """
    import pyarrow as pa

    try:
        with file.open("rb") as content:
            file.unlink()
            for batch in pa.ipc.open_stream(content):
                yield [Candidate(*row) for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
    except OSError as error:
        raise translate_system_error(file, error, "search results cannot be read") from error


def with_guards(journal_reader: JournalReader, found: Sequence[Candidate]) -> list[CandidateAccess]:
    """Return the candidates with what decides about them, without those that nobody may read.

    Raises StoreUnavailable.
    """
    guards = journal_reader.guards("thing", [(it.entity, it.revision) for it in found])
    return [CandidateAccess(it, guard) for it, guard in zip(found, guards, strict=True) if guard is not None]


def matching(
    found: Sequence[CandidateAccess], accesses: Mapping[StateGuard, Access | None], question: ThingQuery
) -> Iterator[tuple[SortKey, Candidate]]:
    """Return those that match for certain subjects, with their place in the order."""
    predicate, order = question.predicate, question.order
    is_by_id = order[0].field.path == ("thingId",)
    for candidate, guard in found:
        access = accesses[guard]
        if access is None or (access.is_whole and not candidate.matches):
            continue
        if access.is_whole and is_by_id:
            yield (value_of(candidate.entity),), candidate
            continue
        thing = thing_document(*candidate[:4], decode_state(candidate.state))
        may = None if access.is_whole else access.may
        if may is None or (access.view(thing) is not None and (predicate is None or holds(predicate, thing, may))):
            yield sort_key(thing, order, may), candidate


def visible_parts(
    found: Sequence[CandidateAccess], accesses: Mapping[StateGuard, Access | None]
) -> Iterator[SearchHit]:
    """Return the readable parts of things, without unreadable things."""
    for candidate, guard in found:
        access = accesses[guard]
        thing = None if access is None else access.view(thing_document(*candidate[:4], decode_state(candidate.state)))
        if thing is not None:
            yield SearchHit(candidate.entity, thing)


def is_reached(journal_reader: JournalReader, watermark: int, before: datetime) -> bool:
    """Whether a lake with this watermark has every event from before an instant. Raises StoreUnavailable."""
    return not journal_reader.has_before(watermark, utc_text(before))
