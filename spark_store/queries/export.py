"""Exports selected events of all entities, by entity and revision, into one file.

Most come from the lake, the newest ones from the journal, after the last event of the lake's version: so an export is
complete up to its beginning, without duplicates. Events of one entity, or of files with few rows, are read in this process
(`spark_store.lake.rows`), others by Spark. The size of one read is bounded, so a large export is split into ranges
of (entity, revision) of about equal size, by a sample; if a part is refused, the rest continues in smaller parts. Time limit
and cancellation are checked after every slice of rows. Erased events are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial, reduce
from operator import and_
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from mappings.ids import namespace_of
from spark_store.errors import QueryTimeout, StoreUnavailable, TooManyRows
from spark_store.journal import erasure
from spark_store.journal.erasure import Erasure
from spark_store.journal.reader import JournalEntry, JournalReader
from spark_store.lake import reader as lakes
from spark_store.lake.reader import CUT, LakePosition
from spark_store.lake.rows import ORDER, PART_BYTES, SORT, Check, RowKey, TableRows, cut, in_parts, key_at, schema_of
from spark_store.lake.tables import EVENTS, Lake
from spark_store.lake.watermark import read_watermark
from spark_store.queries.export_file import ExportFile
from spark_store.queries.selection import Condition, EventSelection, conditions, matches, selects, sql
from spark_store.queries.spark_query import Cancellation, QueryLimits, SparkQueries, Sql, reason_to_stop
from spark_store.rql.ast import Predicate
from spark_store.sql import literal

SCHEMA = schema_of(EVENTS)
"""The columns of an export: those of `events`."""

_SAMPLES = 100
"""About how many events of each part are in the sample."""

_GROUP_ROWS, _GROUP_BYTES = 1 << 15, 32 << 20
"""A row group of the file is written when it has this many rows or bytes."""

_MOST_WAITING, _MOST_WAITING_BYTES = 2_000_000, 512 << 20
"""How many selected events, and bytes, may not be in the lake yet: they are kept in memory."""

_SLICE_ROWS, _SLICE_BYTES = 4096, 8 << 20
"""How many rows, of how many bytes, are Python objects at a time."""

MOST_ROWS = 1_000_000
"""Files with at most this many rows are read in this process."""

_TRIES = 5
_FIRST = datetime.min.replace(tzinfo=UTC)
_FILTERED = ("entity", "revision", "ts", "action", "path", "value")
"""The columns that a filter needs."""

_SIZE = "octet_length(entity) + octet_length(path) + coalesce(octet_length(value), 0) + octet_length(headers) + 80"


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The result of an export. Revisions are the lowest and highest of all; None without events."""

    file: Path
    rows: int
    bytes: int
    first_revision: int | None
    last_revision: int | None


@dataclass(slots=True)
class _Count:
    rows: int = 0
    first: int | None = None
    last: int | None = None

    def add(self, revisions: pa.ChunkedArray) -> None:
        self.rows += len(revisions)
        found = pc.min_max(revisions).as_py()
        self.first = found["min"] if self.first is None else min(self.first, found["min"])
        self.last = found["max"] if self.last is None else max(self.last, found["max"])


@dataclass(frozen=True, slots=True)
class Export:
    """Runs an export. `limits` apply to all of it; `progress` receives the rows written so far."""

    queries: SparkQueries
    limits: QueryLimits = field(default_factory=lambda: QueryLimits(3600.0))
    cancellation: Cancellation = field(default_factory=Cancellation)
    progress: Callable[[int], object] = lambda _: None
    part_bytes: int = PART_BYTES

    def run(self, selection: EventSelection, out: Path, *, force: bool = False) -> ExportResult:
        """Write the file.

        Raises OutputUnusable, StoreUnavailable (a full disk, too), and what `SparkQueries.run` raises.
        """
        deadline = time.monotonic() + self.limits.seconds
        count = _Count()
        with ExportFile.open(out, SCHEMA, force=force) as output:
            # First of all: later erasures of the lake are left out here.
            erased = lakes.pending(self.queries.lake)
            check = partial(self._check, deadline)
            position, waiting = newest(self.queries.lake, selection, erased, check)
            found = filter_rows(self._from_lake(selection, erased, position, deadline, check), selection, check)
            for table in regroup(merge_ordered(found, waiting)):
                check()
                count.add(table.column("revision"))
                if self.limits.rows is not None and count.rows > self.limits.rows:
                    raise TooManyRows(
                        f"found at least {count.rows} events, expected at most {self.limits.rows}; select fewer, or allow "
                        "more"
                    )
                output.write(table)
                self.progress(count.rows)
            check()
            size = output.finish()
        return ExportResult(out, count.rows, size, count.first, count.last)

    def _check(self, deadline: float) -> None:
        """Raises QueryCancelled, QueryTimeout."""
        if (why := reason_to_stop(self.limits, deadline, self.cancellation)) is not None:
            raise why

    def _from_lake(
        self,
        selection: EventSelection,
        erased: Sequence[Erasure],
        position: LakePosition | None,
        deadline: float,
        check: Check,
    ) -> Iterator[pa.Table]:
        """Yield the events that the lake has, in order: from its files if these are few, else from Spark."""
        if position is None:
            return
        rules = conditions(selection)
        files = events_in_files(self.queries.lake, position.version, rules, erased, check)
        if reads_files(selection, files.rows):
            yield from in_parts(files, self.part_bytes)
            return
        self.queries.find()
        wanted = f"({sql(rules)}) AND {erasure.spared_condition(erased)}"
        events = _SparkEvents(self.queries, wanted, position.version, deadline, self.cancellation, check)
        yield from in_parts(events, self.part_bytes)


def reads_files(selection: EventSelection, rows: int) -> bool:
    """Whether a selection is read from the files, which have this many rows."""
    return selection.entity is not None or rows <= MOST_ROWS


def events_in_files(
    lake: Lake, version: int, rules: Sequence[Condition], erased: Sequence[Erasure], check: Check
) -> TableRows:
    """Return the selected events, read from the files of `events`. Raises StoreUnavailable, LakeUnfit."""
    times = [it for it in rules if it[0] == "ts"]
    wanted = [*(pq.filters_to_expression([_widen(it)]) for it in rules), *map(_spared, erased)]
    exact = pq.filters_to_expression(times) if times else None
    return TableRows(lake, EVENTS, reduce(and_, wanted, pc.scalar(value=True)), exact, version=version, check=check)


def _widen(rule: Condition) -> Condition:
    """Return a condition that holds for the log's times, too: these are cut to milliseconds."""
    column, sign, value = rule
    return (column, sign, value - min(CUT, value - _FIRST)) if (column, sign) == ("ts", ">=") else rule


def _spared(erasure: Erasure) -> ds.Expression:
    """The rows that an erasure leaves."""
    is_other = (pc.field("entity") != erasure.entity) | (pc.field("entity_type") != erasure.entity_type)
    return is_other | (pc.field("seq") > erasure.seq)


@dataclass(frozen=True, slots=True)
class _SparkEvents:
    """The selected events of one version of the lake, read by Spark; `wanted` is the condition in SQL."""

    queries: SparkQueries
    wanted: str
    version: int
    deadline: float
    cancellation: Cancellation
    check: Check

    def cuts(self, after: RowKey | None, upto: RowKey | None, part_bytes: int) -> list[RowKey]:
        """Return the last keys of all parts but the last one; none if one part suffices."""
        wanted = within(self.wanted, after, upto)
        text = f"SELECT count(*) AS n, coalesce(sum({_SIZE}), 0) AS size FROM events WHERE {wanted}"
        (measured,) = [row for table in self._ask(text) for row in table.to_pylist()]
        parts = -(-measured["size"] // part_bytes)
        if parts < 2:
            return []
        one_of = max(1, measured["n"] // (parts * _SAMPLES))
        text = (
            f"SELECT {', '.join(ORDER)}, {_SIZE} AS size FROM events WHERE {wanted} "
            f"AND pmod(xxhash64(entity, revision), {one_of}) = 0 ORDER BY {', '.join(ORDER)}"
        )
        rows = [row for table in self._ask(text) for row in table.to_pylist()]
        return cut([(RowKey(row["entity"], row["entity_type"], row["revision"]), row["size"]) for row in rows], parts)

    def read(self, after: RowKey | None, upto: RowKey | None) -> Iterator[pa.Table]:
        """Yield the events between two keys, in order. Raises what `SparkQueries.run` raises."""
        return self._ask(
            f"SELECT {', '.join(EVENTS.column_names)} FROM events WHERE {within(self.wanted, after, upto)} "
            f"ORDER BY {', '.join(ORDER)}"
        )

    def _ask(self, text: str) -> Iterator[pa.Table]:
        limits = QueryLimits(max(0.001, self.deadline - time.monotonic()))
        try:
            with self.queries.run(Sql(text, {EVENTS.name: self.version}), limits, self.cancellation) as answer:
                for batch in answer:
                    if batch.num_rows:
                        yield pa.Table.from_batches([batch])
        except QueryTimeout:
            # The remaining time of the query is not that of the export.
            self.check()
            raise


def within(wanted: str, after: RowKey | None, upto: RowKey | None) -> str:
    """The condition, for keys above `after` and up to `upto` only.

    The plain bound on `entity` lets files be passed over.
    """
    rules = [f"({wanted})"]
    if after is not None:
        entity, rest = literal(after.entity), _beyond(after, ">")
        rules.append(f"entity >= {entity} AND (entity > {entity} OR {rest})")
    if upto is not None:
        entity, rest = literal(upto.entity), _beyond(upto, "<=")
        rules.append(f"entity <= {entity} AND (entity < {entity} OR {rest})")
    return " AND ".join(rules)


def _beyond(key: RowKey, sign: str) -> str:
    """Return the SQL for events of this entity type beyond a key."""
    type = literal(key.entity_type)
    return f"entity_type {sign[0]} {type} OR (entity_type = {type} AND revision {sign} {key.revision})"


def newest(
    lake: Lake, selection: EventSelection, erased: Sequence[Erasure] = (), check: Check = lambda: None
) -> tuple[LakePosition | None, pa.Table | None]:
    """Return the lake's position, and the selected later events of the journal, in order.

    Without erased ones; None if there are neither. Raises StoreUnavailable, and what `check` raises.
    """
    gone: dict[tuple[str, str], int] = {}
    for it in erased:
        gone[it.entity_type, it.entity] = it.seq
    for _ in range(_TRIES):
        position = lakes.position(lake) if lake.has(EVENTS) else None
        seq = 0 if position is None else position.seq
        with JournalReader.open(lake.journal) as journal_reader:
            rows = _select(journal_reader.entries(seq + 1, journal_reader.newest()), selection, gone, check)
            oldest = journal_reader.oldest()
        # Events that the lake has taken meanwhile may have been trimmed from the journal while it was read.
        if (oldest is not None and oldest <= seq + 1) or read_watermark(lake.watermark).seq <= seq:
            return position, rows
    raise StoreUnavailable(f"{lake.journal}: events after {seq} were trimmed repeatedly while they were read; retry")


def _select(
    entries: Iterable[JournalEntry], selection: EventSelection, gone: Mapping[tuple[str, str], int], check: Check
) -> pa.Table | None:
    found: list[pa.Table] = []
    rows = size = 0
    for table in filter_rows(_tables(entries, selection, gone), selection, check):
        found.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows > _MOST_WAITING or size > _MOST_WAITING_BYTES:
            raise StoreUnavailable(
                f"found more than {_MOST_WAITING} events, or {_MOST_WAITING_BYTES >> 20} MiB of them, that are not in the "
                "lake yet; wait until it has caught up (`connectivity pipeline status`)"
            )
    return pa.concat_tables(found).sort_by(SORT) if found else None


def _tables(
    entries: Iterable[JournalEntry], selection: EventSelection, gone: Mapping[tuple[str, str], int]
) -> Iterator[pa.Table]:
    """Yield the selected rows of each slice, perhaps none; the filter is not applied."""
    for part in _slices(entries):
        yield _table(
            [
                it
                for it in part
                if it.seq > gone.get((it.entity_type, it.entity), 0)
                and selects(selection, it.entity_type, it.entity, it.revision, it.timestamp)
            ]
        )


def _slices(entries: Iterable[JournalEntry]) -> Iterator[list[JournalEntry]]:
    held, size = list[JournalEntry](), 0
    for it in entries:
        held.append(it)
        size += len(it.headers) + len(it.value or b"")
        if len(held) >= _SLICE_ROWS or size >= _SLICE_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def _table(entries: Sequence[JournalEntry]) -> pa.Table:
    """Events of the journal as the lake has them."""
    columns = {
        "entity_type": [it.entity_type for it in entries],
        "entity": [it.entity for it in entries],
        "namespace": [namespace_of(it.entity) for it in entries],
        "revision": [it.revision for it in entries],
        "ts": [datetime.fromisoformat(it.timestamp) for it in entries],
        "action": [it.action for it in entries],
        "path": [it.path for it in entries],
        "value": [None if it.value is None else it.value.decode() for it in entries],
        "headers": [it.headers.decode() for it in entries],
        "seq": [it.seq for it in entries],
    }
    return pa.Table.from_pydict(columns, SCHEMA)


def merge_ordered(tables: Iterator[pa.Table], waiting: pa.Table | None) -> Iterator[pa.Table]:
    """Two ordered sequences of events as one. Of one entity, those that wait all come after the others."""
    taken = 0
    for table in tables:
        table = table.cast(SCHEMA)
        if waiting is not None and (upto := _before(waiting, taken, key_at(table, table.num_rows - 1))) > taken:
            table = pa.concat_tables([table, waiting.slice(taken, upto - taken)]).sort_by(SORT)
            taken = upto
        yield table
    while waiting is not None and taken < waiting.num_rows:
        yield waiting.slice(taken, _GROUP_ROWS)
        taken += _GROUP_ROWS


def _before(waiting: pa.Table, low: int, last: RowKey) -> int:
    """Return the first place from `low` on whose event belongs to the entity of `last` or a later one."""
    high = waiting.num_rows
    while low < high:
        middle = (low + high) // 2
        if key_at(waiting, middle)[:2] < last[:2]:
            low = middle + 1
        else:
            high = middle
    return low


def filter_rows(tables: Iterable[pa.Table], selection: EventSelection, check: Check) -> Iterator[pa.Table]:
    """Yield the rows that the filter accepts, if there is one; never an empty table."""
    predicate = selection.predicate
    for table in tables:
        check()
        if predicate is not None:
            table = table.filter(pa.chunked_array(_accept_rows(table, predicate, check), pa.bool_()))
        if table.num_rows:
            yield table


def _accept_rows(table: pa.Table, predicate: Predicate, check: Check) -> Iterator[pa.Array]:
    """Yield for each row whether the filter accepts it, in slices."""
    for begin in range(0, table.num_rows, _SLICE_ROWS):
        check()
        part = table.slice(begin, _SLICE_ROWS)
        rows = zip(*(part.column(name).to_pylist() for name in _FILTERED), strict=True)
        yield pa.array([matches(predicate, row) for row in rows], pa.bool_())


def regroup(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables that make good row groups."""
    held: list[pa.Table] = []
    for table in tables:
        held.append(table)
        if sum(it.num_rows for it in held) >= _GROUP_ROWS or sum(it.nbytes for it in held) >= _GROUP_BYTES:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)
