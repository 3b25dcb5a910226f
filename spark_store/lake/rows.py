"""Reads selected rows of one version of a table in order, from its files, in this process.

The order is that of entity, type and revision. The log has which files may have some of the rows, and the number of their
rows. Rows are read in parts that fit in memory: a sample of the keys decides where a part ends, and parts that did not fit
show how many rows do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import and_
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from spark_store.errors import ResultTooLarge
from spark_store.journal.reader import EntityState, JournalEntry
from spark_store.lake.reader import CHECKED, dataset_of, file_facts, open_table, translate_errors
from spark_store.lake.table_scan import journal_rows, schema_of
from spark_store.lake.tables import EVENTS, LATEST, Lake, Table

Check: TypeAlias = Callable[[], None]
"""Raises what ends the reading early."""

ORDER = ("entity", "entity_type", "revision")
SORT = [(name, "ascending") for name in ORDER]

PART_BYTES = 32 << 20
"""The target size of one part."""

MOST_BYTES = 64 << 20
"""The most bytes that are read at once."""

_SMALLEST_PART = 1 << 20
_ROW_BYTES = 512
"""The size of a row, until a part shows that it is larger."""

_SAMPLES = 5_000
"""How many keys are sampled, at least, if there are as many; at most twice as many."""

_SLICE_ROWS = 1_000
"""How many rows are Python objects at a time."""

_AHEAD = 1
"""How many batches, and files, are read ahead: the library's own bound is not in bytes."""

_EVENT_COLUMNS = ("entity_type", "entity", "revision", "seq", "ts", "action", "path", "value", "headers")
_STATE_COLUMNS = ("entity_type", "entity", "policy_id", "revision", "seq", "created", "modified", "state")


class RowKey(NamedTuple):
    """The place of a row in the order."""

    entity: str
    entity_type: str
    revision: int


def in_parts(
    rows: TableRows, part_bytes: int = PART_BYTES, after: RowKey | None = None, upto: RowKey | None = None
) -> Iterator[pa.Table]:
    """Yield the rows between two keys, in as many parts as necessary. Raises ResultTooLarge."""
    for last in [*rows.cuts(after, upto, part_bytes), upto]:
        try:
            for table in rows.read(after, last):
                yield table
                after = key_at(table, table.num_rows - 1)
        except ResultTooLarge:
            if part_bytes <= _SMALLEST_PART:
                raise
            yield from in_parts(rows, part_bytes // 4, after, last)
        after = last


def key_at(table: pa.Table, place: int) -> RowKey:
    """Return the key of one row."""
    return RowKey(*(table.column(name)[place].as_py() for name in ORDER))


class TableRows:
    """The rows of a table that meet a condition, by which the log decides which files are read."""

    def __init__(
        self,
        lake: Lake,
        table: Table,
        wanted: ds.Expression | None = None,
        *,
        version: int | None = None,
        check: Check = lambda: None,
    ) -> None:
        """`version`: the newest one by default. Raises StoreUnavailable, LakeUnfit."""
        self._check, self._row_bytes = check, _ROW_BYTES
        self._path, self._schema = lake.path(table), schema_of(table)
        self._wanted = pc.scalar(value=True) if wanted is None else wanted
        with open_table(lake, table, version) as delta:
            self._dataset = dataset_of(delta, self._path)
            rows = {unquote(path): number for path, number in file_facts(delta, "path", "num_records")}
            self.rows: int = sum(rows[unquote(it.path)] for it in self._dataset.get_fragments(self._wanted))
            """How many rows the files have, in all, that may have some of the wanted ones."""

    def cuts(self, after: RowKey | None, upto: RowKey | None, part_bytes: int) -> list[RowKey]:
        """Return the last keys of all parts but the last one, by a sample; none if one part suffices."""
        if self.rows * self._row_bytes <= part_bytes:
            return []
        step, found, sample = 1, 0, list[RowKey]()
        for table in self._tables(ORDER, after, upto):
            # How many rows are between the two keys is not known before.
            while len(sample) + table.num_rows // step > 2 * _SAMPLES:
                sample, step = sample[::2], 2 * step
            rows = table.take(pa.array(range(-found % step, table.num_rows, step), pa.int64())).to_pylist()
            sample += [RowKey(**row) for row in rows]
            found += table.num_rows
        parts = min(-(-found * self._row_bytes // part_bytes), len(sample))
        sample.sort()
        return [sample[len(sample) * part // parts - 1] for part in range(1, parts)]

    def read(self, after: RowKey | None, upto: RowKey | None) -> Iterator[pa.Table]:
        """Yield the rows between two keys, in order. Raises ResultTooLarge."""
        held, size = list[pa.Table](), 0
        for table in self._tables(self._schema.names, after, upto):
            held.append(table)
            size += table.nbytes
            if size > MOST_BYTES:
                self._row_bytes = max(self._row_bytes, size // sum(it.num_rows for it in held))
                raise ResultTooLarge(f"found rows of more than {MOST_BYTES >> 20} MiB, which is read at once at most")
        if held:
            yield pa.concat_tables(held).sort_by(SORT)

    def _tables(self, columns: Sequence[str], after: RowKey | None, upto: RowKey | None) -> Iterator[pa.Table]:
        """Yield the rows between two keys, in any order; never an empty table.

        The plain bounds on `entity` let files be passed over.
        """
        rules = [self._wanted]
        if after is not None:
            rules += [pc.field("entity") >= after.entity, ~_upto(after)]
        if upto is not None:
            rules += [pc.field("entity") <= upto.entity, _upto(upto)]
        with translate_errors(self._path):
            batches = self._dataset.to_batches(
                columns=list(columns),
                filter=reduce(and_, rules),
                batch_readahead=_AHEAD,
                fragment_readahead=_AHEAD,
                fragment_scan_options=CHECKED,
            )
            for batch in batches:
                self._check()
                if batch.num_rows:
                    schema = pa.schema([self._schema.field(name) for name in columns])
                    yield pa.Table.from_batches([batch]).cast(schema)


def _upto(key: RowKey) -> ds.Expression:
    """The rows up to a key."""
    entity, type, revision = map(pc.field, ORDER)
    of_type = (type < key.entity_type) | ((type == key.entity_type) & (revision <= key.revision))
    return (entity < key.entity) | ((entity == key.entity) & of_type)


def rows_between(lake: Lake, table: Table, first: str, end: str | None) -> TableRows:
    """Return the rows of the entities from the ID `first` to before `end` (None is no bound).

    Raises StoreUnavailable, LakeUnfit.
    """
    wanted = pc.field("entity") >= first
    if end is not None:
        wanted &= pc.field("entity") < end
    return TableRows(lake, table, wanted)


def latest_states(lake: Lake, entities: Sequence[str] | None = None) -> Iterator[EntityState]:
    """The rows of `latest`, or those of the named entities. Raises StoreUnavailable, LakeUnfit."""
    return states(TableRows(lake, LATEST, None if entities is None else pc.field("entity").isin(entities)))


def deletions(lake: Lake) -> Iterator[JournalEntry]:
    """The events that delete an entity. Raises StoreUnavailable, LakeUnfit."""
    return entries(TableRows(lake, EVENTS, (pc.field("action") == "deleted") & (pc.field("path") == "/")))


def entries(rows: TableRows) -> Iterator[JournalEntry]:
    """Rows of `events`, as the journal has them. Raises StoreUnavailable, LakeUnfit."""
    return map(JournalEntry._make, _values(rows, _EVENT_COLUMNS))


def states(rows: TableRows) -> Iterator[EntityState]:
    """Rows of `latest` or `snapshots`, as the journal has them. Raises StoreUnavailable, LakeUnfit."""
    return map(EntityState._make, _values(rows, _STATE_COLUMNS))


def _values(rows: TableRows, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for table in in_parts(rows):
        for start in range(0, table.num_rows, _SLICE_ROWS):
            yield from journal_rows(table.slice(start, _SLICE_ROWS), columns)
