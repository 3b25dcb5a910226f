"""A Delta table held open, to find the rows of one entity without reading the others.

The log has the files of a version with the least and greatest entity, revision and time of each; a file's footer has the
same for each row group. So a look-up decodes few row groups. The list of files is renewed when the log has grown; a bounded
number of footers is kept.

Compaction, deletion and vacuum do not disturb: a version is complete in itself, and if one of its files is gone the newest
version is read. The last versions before deletions are remembered for running histories. A replaced table is opened again.
Everything waits for the disk; any number of threads may call. Errors of the libraries end in
`spark_store.lake.history_reader`.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache, reduce
from heapq import heapify, heappop, heappush
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from mappings.ids import EntityId
from spark_store.errors import HistoryUnavailable, translate_lake_error
from spark_store.lake.reader import CUT, file_facts
from spark_store.lake.tables import APP, EVENTS, SNAPSHOTS, Table
from spark_store.records import Times

FOOTERS: Final = 512
"""The most files whose footers are kept: some tens of MiB at their largest."""

LOOK_SECONDS: Final = 1.0
"""How many seconds a list of files is used without checking whether the log has grown."""

FORMER: Final = 16
"""How many versions from before deletions are remembered, for running histories."""

INSTANTS: Final = pa.timestamp("us", "UTC")
_TYPES: Final = {"string": pa.string(), "long": pa.int64(), "timestamp": INSTANTS, "boolean": pa.bool_()}


def schema_of(table: Table) -> pa.Schema:
    """Return the columns of a table as Arrow has them."""
    return pa.schema([(column.name, _TYPES[column.type]) for column in table.columns])


_SCHEMA: Final = pa.unify_schemas([schema_of(EVENTS), schema_of(SNAPSHOTS)])
"""As what columns are read, whatever types a file's writer had for texts and times."""

_JSON: Final = frozenset({"value", "headers", "state"})
_KEY: Final = ("entity_type", "entity", "revision")
_LAST: Final = chr(sys.maxunicode)
_TRIES: Final = 3
_REPEATED: Final = ("entity_type", "entity", "action", "path")
"""The columns with repeated values: read as dictionaries, a row group takes half of the time."""

GONE: Final = (DeltaError, OSError, pa.ArrowException)

Found = TypeVar("Found")


class ScanFilter(NamedTuple):
    """The requested entity, time, and least number (`seq`)."""

    type: str
    id: str
    after: datetime | None
    before: datetime | None
    above: int = 0

    @classmethod
    def of(cls, entity: EntityId, times: Times, above: int = 0) -> ScanFilter:
        after, before = (None if it is None else instant(it) for it in times)
        return cls(entity.type.value, entity.id, after, before, above)

    def rows(self, rows: pa.Table, first: int, last: int) -> pa.ChunkedArray:
        """Whether each row has the entity, a revision from `first` to `last`, and the other properties.

        `rows` without types have the requested one.
        """
        wanted = [
            _is(rows["entity"], self.id),
            pc.greater_equal(rows["revision"], first),
            pc.less_equal(rows["revision"], last),
        ]
        if "entity_type" in rows.column_names:
            wanted.append(_is(rows["entity_type"], self.type))
        if self.after is not None:
            wanted.append(pc.greater(rows["ts"], pa.scalar(self.after, INSTANTS)))
        if self.before is not None:
            wanted.append(pc.less(rows["ts"], pa.scalar(self.before, INSTANTS)))
        if self.above:
            wanted.append(pc.greater(rows["seq"], self.above))
        return reduce(pc.and_, wanted)


def instant(timestamp: str) -> datetime:
    """A timestamp of an event; a text that is above or below all of them is as far as times go."""
    if not timestamp:
        return datetime.min.replace(tzinfo=UTC)
    if not timestamp.endswith("Z"):
        return datetime.max.replace(tzinfo=UTC)
    return datetime.fromisoformat(timestamp)


class _Bounds(NamedTuple):
    """The least and greatest entity and revision of some rows; None if unknown."""

    least_entity: str | None
    most_entity: str | None
    least_revision: int | None
    most_revision: int | None

    def may_hold(self, entity: str, first: int, last: int) -> bool:
        return (
            (self.least_entity is None or self.least_entity <= entity)
            and (self.most_entity is None or self.most_entity >= entity)
            and (self.least_revision is None or self.least_revision <= last)
            and (self.most_revision is None or self.most_revision >= first)
        )


class _File(NamedTuple):
    """A file of a table, its number of rows (None if unknown), and its bounds."""

    path: str
    rows: int | None
    bounds: _Bounds
    least_time: datetime | None
    most_time: datetime | None

    def may_hold(self, asked: ScanFilter, first: int, last: int) -> bool:
        return (
            self.bounds.may_hold(asked.id, first, last)
            and (asked.before is None or self.least_time is None or self.least_time < asked.before)
            # The log cuts times to milliseconds.
            and (asked.after is None or self.most_time is None or self.most_time + CUT > asked.after)
        )


class Footer:
    """The footer of a file, its columns that are read as dictionaries, and the bounds of its row groups."""

    def __init__(self, metadata: Any) -> None:
        self.metadata = metadata
        # Not the types that another writer has named, which are not all readable in this way.
        types = {field.name: field.type for field in metadata.schema.to_arrow_schema()}
        self.repeated = [name for name in _REPEATED if types.get(name) == pa.string()]
        self._type = metadata.schema.names.index("entity_type")
        self._ordered = sorted(enumerate(_row_groups(metadata)), key=lambda it: it[1].least_entity or "")
        self._least = [it.least_entity or "" for _, it in self._ordered]
        # The greatest entity of each row group and those before it.
        self._most = list(accumulate((it.most_entity or _LAST for _, it in self._ordered), max))

    def holding(self, entity: str, first: int, last: int) -> Iterator[tuple[int, _Bounds]]:
        """Yield the number of each row group that may have these revisions, without looking at most others."""
        place = bisect_right(self._least, entity)
        while place and self._most[place - 1] >= entity:
            place -= 1
            number, bounds = self._ordered[place]
            if bounds.may_hold(entity, first, last):
                yield number, bounds

    def has_only(self, type: str, number: int) -> bool:
        """Whether a row group is known to have entities of this type only."""
        return extremes(self.metadata.row_group(number).column(self._type)) == (type, type)


class Version(NamedTuple):
    """A version of a table: its files, and the last number of the journal that it contains."""

    number: int
    files: tuple[_File, ...]
    reaches: int

    @property
    def without_row(self) -> int:
        """How many of the journal's numbers have no row: deletions and holes of the journal add some."""
        return self.reaches - sum(file.rows or 0 for file in self.files)


class DeltaTableReader:
    """One Delta table, held open. Its newest known version is shared by all threads and immutable."""

    def __init__(self, path: str, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._version: Version | None = None
        self._noted: tuple[int, int] | None = None
        self._looked = float("-inf")
        self._former: deque[Version] = deque(maxlen=FORMER)
        self.deletions = 0
        """How often rows may have been deleted since the table was opened.

        It applies only to a table with a row for each of the journal's numbers.
        """

    def newest(self) -> Version:
        """The version that is the newest one now, of the table that is there now. Raises HistoryUnavailable."""
        return self.read(lambda version: version, 0, is_newest=True)

    def read(self, of: Callable[[Version], Found], reaching: int, *, is_newest: bool = False) -> Found:
        """Return what `of` finds in a version that reaches so far; with `is_newest`, in the newest one.

        If a file or a part of the log is gone meanwhile, the newest version is read. Raises HistoryUnavailable.
        """
        known = self._version
        for attempt in range(_TRIES):
            try:
                is_old = is_newest or attempt or self._clock() - self._looked >= LOOK_SECONDS
                if known is None or is_old or known.reaches < reaching:
                    known = self._load(known)
                if known.reaches < reaching:
                    raise HistoryUnavailable(
                        f"{self._path}: expected every event up to {reaching}, found events up to {known.reaches}; "
                        "restore the folder `lake` from a backup"
                    )
                return of(known)
            except GONE as error:
                if attempt == _TRIES - 1:
                    raise HistoryUnavailable(str(translate_lake_error(self._path, error))) from error
        raise AssertionError("unreachable")

    def former(self) -> list[Version]:
        """Yield the versions that this process knew before deletions, newest first.

        Their files are kept for a while. Reading them raises OSError, ArrowException once they are gone.
        """
        with self._lock:
            return list(reversed(self._former))

    def _load(self, known: Version | None) -> Version:
        """Return the newest version: the known one, unless the log has grown or is that of another table."""
        with self._lock:
            if self._version is not None and self._version is not known:
                # Another thread has just done it.
                return self._version
            self._looked = self._clock()
            if known is not None and self._is_newest(known.number):
                return known
            table = DeltaTable(self._path)
            found = Version(table.version(), tuple(_files(self._path, table)), table.transaction_version(APP) or 0)
            if known is not None and known.number < found.number and known.without_row != found.without_row:
                self._former.append(known)
                self.deletions += 1
            self._noted = self._mark(found.number)
            self._version = found
            return found

    def _is_newest(self, number: int) -> bool:
        # A log may have been shortened up to a later checkpoint: then its own part is gone, too.
        return self._noted is not None and self._mark(number) == self._noted and not self._log(number + 1).exists()

    def _mark(self, number: int) -> tuple[int, int] | None:
        """Return the identity of a version's log file; None if there is none.

        It differs from a file of the same name in another table.
        """
        try:
            found = self._log(number).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _log(self, number: int) -> Path:
        return Path(self._path, "_delta_log", f"{number:020}.json")


def _files(path: str, table: DeltaTable) -> Iterator[_File]:
    """Return the files of a table from its log."""
    bounds = ("min.entity", "max.entity", "min.revision", "max.revision")
    # A table has one of the two times.
    times = ("min.ts", "max.ts", "min.modified", "max.modified")
    for name, rows, *found in file_facts(table, "path", "num_records", *bounds, *times):
        least, most, least_modified, most_modified = found[4:]
        yield _File(str(Path(path, name)), rows, _Bounds(*found[:4]), least or least_modified, most or most_modified)


@lru_cache(FOOTERS)
def footer_of(path: str) -> Footer:
    """Return the footer of a file, which never changes. Raises OSError, ArrowException."""
    return Footer(pq.read_metadata(path, memory_map=True))


def _row_groups(footer: Any) -> Iterator[_Bounds]:
    names = footer.schema.names
    entity, revision = names.index("entity"), names.index("revision")
    for number in range(footer.num_row_groups):
        row_group = footer.row_group(number)
        yield _Bounds(*extremes(row_group.column(entity)), *extremes(row_group.column(revision)))


def extremes(chunk: Any) -> tuple[Any, Any]:
    """Return the least and greatest value of a column in a row group; None if unknown."""
    statistics = chunk.statistics if chunk.is_stats_set else None
    return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else (None, None)


def parts_of(
    version: Version, asked: ScanFilter, first: int, last: int, columns: list[str]
) -> Iterator[tuple[pa.Table, int]]:
    """Yield the rows with these revisions by row groups, the oldest ones first.

    With each part comes the first revision that later parts may have: the caller stops when it needs no more. Files and row
    groups that cannot have any of the rows are left alone. Where times are asked for, `columns` has them.
    """

    def nearest(bounds: _Bounds) -> int:
        return max(first, bounds.least_revision or first)

    files = [file for file in version.files if file.may_hold(asked, first, last)]
    # A file without a number of a row group: its footer is read when it is the next one.
    waiting = [(nearest(file.bounds), place, -1) for place, file in enumerate(files)]
    heapify(waiting)
    while waiting:
        _, place, number = heappop(waiting)
        path = files[place].path
        if number < 0:
            for it, bounds in footer_of(path).holding(asked.id, first, last):
                heappush(waiting, (nearest(bounds), place, it))
        else:
            rows = _read(path, number, asked, first, last, columns)
            yield rows, waiting[0][0] if waiting else last + 1


def rows_of(version: Version, asked: ScanFilter, first: int, last: int, columns: list[str]) -> pa.Table:
    """The rows with these revisions."""
    return pa.concat_tables([nothing(columns), *(rows for rows, _ in parts_of(version, asked, first, last, columns))])


def _read(path: str, number: int, asked: ScanFilter, first: int, last: int, columns: list[str]) -> pa.Table:
    """Return the requested rows of a row group. The scan of a data set takes almost twice as long."""
    footer = footer_of(path)
    key = _KEY[1:] if footer.has_only(asked.type, number) else _KEY
    wanted = list(dict.fromkeys((*key, *(("seq",) if asked.above else ()), *columns)))
    with pa.memory_map(path) as content:
        file = pq.ParquetFile(
            content,
            metadata=footer.metadata,
            read_dictionary=footer.repeated,
            coerce_int96_timestamp_unit="us",
            # A damaged page is an error, not an event.
            page_checksum_verification=True,
        )
        read = file.read_row_group(number, wanted, use_threads=False)
    rows = pa.table({name: _column(read, name, footer.repeated) for name in wanted})
    found = rows.filter(asked.rows(rows, first, last)).select(columns)
    return found.cast(pa.schema([_SCHEMA.field(name) for name in columns]))


def _column(rows: pa.Table, name: str, repeated: Sequence[str]) -> pa.ChunkedArray:
    """A column in its own type, or as a dictionary; nulls if the file does not have it."""
    type = _SCHEMA.field(name).type
    if name not in rows.column_names:
        return pa.chunked_array([pa.nulls(rows.num_rows, type)])
    return rows[name] if name in repeated or rows[name].type == type else rows[name].cast(type)


def _is(column: pa.ChunkedArray, text: str) -> pa.ChunkedArray:
    """Whether each row has this text. Texts of a dictionary are compared once, not in each row."""
    if not pa.types.is_dictionary(column.type):
        return pc.equal(column, text)
    chunks = [pc.equal(it.indices, it.dictionary.index(text)) for it in column.chunks]
    return pa.chunked_array(chunks, pa.bool_())


def nothing(columns: list[str]) -> pa.Table:
    """No rows."""
    return _SCHEMA.empty_table().select(columns)


def journal_rows(table: pa.Table, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield rows as the journal has them: times as events write them, JSON as bytes."""
    return zip(*(values(table[name], is_json=name in _JSON) for name in columns), strict=True)


def values(column: pa.ChunkedArray, *, is_json: bool = False) -> list[Any]:
    """A column as Python values, ten times as fast as `to_pylist`."""
    if pa.types.is_timestamp(column.type):
        # Without their common zone they are printed without looking it up; seven times as fast as `strftime`.
        texts = column.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())
        column = pc.binary_join_element_wise(pc.binary_replace_slice(texts, 10, 11, "T"), "Z", "")
    found: list[Any] = (column.cast(pa.binary()) if is_json else column).to_numpy(zero_copy_only=False).tolist()
    return found
