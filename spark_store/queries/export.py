"""Exports selected events of all entities, by entity and revision, into one Parquet file.

Most come from the lake through Spark queries, the newest ones from the journal, after the last event of the lake's version:
so an export is complete up to its beginning, without duplicates. The result of a query is bounded (see
`spark_store.queries.spark_query`), so a large export is split into ranges of (entity, revision) of about equal size, by a
sample; if a part is refused, the rest continues in smaller parts. Time limit and cancellation are checked in every query and
after every slice of rows. Erased events are left out. The file is complete or does not exist.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mappings.ids import namespace_of
from spark_store.errors import OutputUnusable, QueryTimeout, ResultTooLarge, StoreUnavailable, TooManyRows
from spark_store.journal import erasure
from spark_store.journal.erasure import Erasure
from spark_store.journal.reader import JournalEntry, JournalReader
from spark_store.lake import reader as lakes
from spark_store.lake.reader import LakePosition
from spark_store.lake.tables import EVENTS, Lake
from spark_store.lake.watermark import read_watermark
from spark_store.queries.selection import EventSelection, condition, matches, selects
from spark_store.queries.spark_query import Cancellation, QueryLimits, SparkQueries, Sql, reason_to_stop
from spark_store.rql.ast import Predicate
from spark_store.sql import literal

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def check_output(out: Path, *, force: bool) -> None:
    """Check that a file may be written there. Raises OutputUnusable."""
    if out.is_dir():
        raise OutputUnusable(f"{out}: expected the name of a file, found a folder")
    if out.exists() and not force:
        raise OutputUnusable(f"{out}: expected no such file, found one; name another one, or use --force to replace it")
    if not out.parent.is_dir():
        raise OutputUnusable(f"{out}: expected an existing folder, found no {out.parent}; create it")


class ExportFile:
    """One output file; a context manager that removes an unfinished one."""

    def __init__(self, out: Path, part: Path, writer: pq.ParquetWriter, sink: pa.NativeFile, *, force: bool) -> None:
        """Use `open`."""
        self._out, self._part, self._writer, self._sink, self._force = out, part, writer, sink, force

    @classmethod
    def open(cls, out: Path, schema: pa.Schema, *, force: bool) -> Self:
        """Raises OutputUnusable, StoreUnavailable where the disk is full."""
        part = out.with_name(f".{out.name}.{os.getpid()}.part")
        with _translate_errors(out), contextlib.ExitStack() as undo:
            check_output(out, force=force)
            undo.callback(part.unlink, missing_ok=True)
            sink = undo.enter_context(pa.OSFile(str(part), "wb"))
            writer = pq.ParquetWriter(sink, schema, compression="zstd")
            undo.pop_all()
        return cls(out, part, writer, sink, force=force)

    def write(self, table: pa.Table) -> None:
        """Add a row group. Raises as `open`."""
        with _translate_errors(self._out):
            self._writer.write_table(table)

    def finish(self) -> int:
        """Put the file in its place; its size. Raises as `open`: then it is not there."""
        with _translate_errors(self._out):
            self._writer.close()
            self._sink.close()
            _sync(self._part)
            # Another process may have created it.
            check_output(self._out, force=self._force)
            size = self._part.stat().st_size
            self._part.replace(self._out)
            _sync(self._out.parent)
        return size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close everything. A full disk may prevent closing a file that is removed anyway."""
        for close in (self._writer.close, self._sink.close):
            with contextlib.suppress(OSError):
                close()
        self._part.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _translate_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StoreUnavailable(f"{out}: the disk is full; make room, or write elsewhere ({error})") from error
        raise OutputUnusable(f"{out}: expected a file that can be written, found: {error}") from error


PART_BYTES = 32 << 20
"""The target size of one query's result: a quarter of what a pipeline of 1 GiB allows."""

_SMALLEST_PART = 1 << 20
_SAMPLES = 100
"""About how many events of each part are in the sample."""

_GROUP_ROWS, _GROUP_BYTES = 1 << 17, 32 << 20
"""A row group of the file is written when it has this many rows or bytes."""

_MOST_WAITING, _MOST_WAITING_BYTES = 2_000_000, 512 << 20
"""How many selected events, and bytes, may not be in the lake yet: they are kept in memory."""

_SLICE_ROWS, _SLICE_BYTES = 4096, 8 << 20
"""How many rows, of how many bytes, are Python objects at a time."""

_TRIES = 5
_TYPES = {"string": pa.string(), "long": pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
SCHEMA = pa.schema([(column.name, _TYPES[column.type]) for column in EVENTS.columns])
"""The file's columns: those of `events`."""

Check: TypeAlias = Callable[[], None]
"""Raises what ends an export early."""

_ORDER = ("entity", "entity_type", "revision")
_FILTERED = ("entity", "revision", "ts", "action", "path", "value")
"""The columns that a filter needs."""

_SORT = [(name, "ascending") for name in _ORDER]
_SIZE = "octet_length(entity) + octet_length(path) + coalesce(octet_length(value), 0) + octet_length(headers) + 80"


class EventKey(NamedTuple):
    """The place of an event in the order of an export."""

    entity: str
    entity_type: str
    revision: int


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
        self.queries.find()
        count = _Count()
        with ExportFile.open(out, SCHEMA, force=force) as output:
            # First of all: later erasures of the lake are left out here.
            erased = lakes.pending(self.queries.lake)
            check = partial(self._check, deadline)
            position, waiting = newest(self.queries.lake, selection, erased, check)
            found = filter_rows(self._from_lake(selection, erased, position, deadline), selection, check)
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
        self, selection: EventSelection, erased: Sequence[Erasure], position: LakePosition | None, deadline: float
    ) -> Iterator[pa.Table]:
        """The events that the lake has, in order."""
        if position is not None:
            wanted = f"({condition(selection)}) AND {erasure.spared_condition(erased)}"
            yield from self._range(wanted, position.version, deadline, None, None, self.part_bytes)

    def _range(
        self, wanted: str, version: int, deadline: float, after: EventKey | None, upto: EventKey | None, part_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield the events between two keys, in as many parts as necessary."""
        for last in [*self._cuts(within(wanted, after, upto), version, deadline, part_bytes), upto]:
            text = (
                f"SELECT {', '.join(EVENTS.column_names)} FROM events WHERE {within(wanted, after, last)} ORDER BY "
                + (", ".join(_ORDER))
            )
            try:
                for table in self._ask(text, version, deadline):
                    yield table
                    after = _key(table, table.num_rows - 1)
            except ResultTooLarge:
                if part_bytes <= _SMALLEST_PART:
                    raise
                yield from self._range(wanted, version, deadline, after, last, part_bytes // 4)
            after = last

    def _cuts(self, wanted: str, version: int, deadline: float, part_bytes: int) -> list[EventKey]:
        """Return the last keys of all parts but the last one; none if one part suffices."""
        text = f"SELECT count(*) AS n, coalesce(sum({_SIZE}), 0) AS size FROM events WHERE {wanted}"
        (measured,) = [row for table in self._ask(text, version, deadline) for row in table.to_pylist()]
        parts = -(-measured["size"] // part_bytes)
        if parts < 2:
            return []
        one_of = max(1, measured["n"] // (parts * _SAMPLES))
        text = (
            f"SELECT {', '.join(_ORDER)}, {_SIZE} AS size FROM events WHERE {wanted} "
            f"AND pmod(xxhash64(entity, revision), {one_of}) = 0 ORDER BY {', '.join(_ORDER)}"
        )
        rows = [row for table in self._ask(text, version, deadline) for row in table.to_pylist()]
        return cuts(
            [(EventKey(row["entity"], row["entity_type"], row["revision"]), row["size"]) for row in rows], parts
        )

    def _ask(self, text: str, version: int, deadline: float) -> Iterator[pa.Table]:
        limits = QueryLimits(max(0.001, deadline - time.monotonic()))
        try:
            with self.queries.run(Sql(text, {EVENTS.name: version}), limits, self.cancellation) as answer:
                for batch in answer:
                    if batch.num_rows:
                        yield pa.Table.from_batches([batch])
        except QueryTimeout:
            # The remaining time of the query is not that of the export.
            self._check(deadline)
            raise


def cuts(sample: Sequence[tuple[EventKey, int]], parts: int) -> list[EventKey]:
    """Return the last key of each part, so that each has about the same share of the sample's sizes."""
    share, taken, found = sum(size for _, size in sample) / parts, 0, list[EventKey]()
    for key, size in sample[:-1]:
        taken += size
        if taken >= share * (len(found) + 1) and len(found) < parts - 1:
            found.append(key)
    return found


def within(wanted: str, after: EventKey | None, upto: EventKey | None) -> str:
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


def _beyond(key: EventKey, sign: str) -> str:
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
    return pa.concat_tables(found).sort_by(_SORT) if found else None


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
        if waiting is not None and (upto := _before(waiting, taken, _key(table, table.num_rows - 1))) > taken:
            table = pa.concat_tables([table, waiting.slice(taken, upto - taken)]).sort_by(_SORT)
            taken = upto
        yield table
    while waiting is not None and taken < waiting.num_rows:
        yield waiting.slice(taken, _GROUP_ROWS)
        taken += _GROUP_ROWS


def _before(waiting: pa.Table, low: int, last: EventKey) -> int:
    """Return the first place from `low` on whose event belongs to the entity of `last` or a later one."""
    high = waiting.num_rows
    while low < high:
        middle = (low + high) // 2
        if _key(waiting, middle)[:2] < last[:2]:
            low = middle + 1
        else:
            high = middle
    return low


def _key(table: pa.Table, place: int) -> EventKey:
    return EventKey(*(table.column(name)[place].as_py() for name in _ORDER))


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
