"""Reads selected rows of one version of a table in order, from its files, in this process.

The order is that of entity, type and revision. Files and row groups without such rows are left out, by their statistics. The
others are read in the order of their first entities, so that in a compacted table each is read once. Where so many overlap
that their rows do not fit in memory, the first rows are kept, and the others are read again later. All of it raises
StoreUnavailable, and LakeUnfit for a damaged table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import and_
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from spark_store.journal.reader import EntityState, JournalEntry
from spark_store.lake.reader import CHECKED, dataset_of, open_table, translate_errors
from spark_store.lake.table_scan import extremes, journal_rows, schema_of
from spark_store.lake.tables import EVENTS, LATEST, Lake, Table

Check: TypeAlias = Callable[[], None]
"""Raises what ends the reading early."""

ORDER = ("entity", "entity_type", "revision")
SORT = [(name, "ascending") for name in ORDER]

MOST_BYTES = 32 << 20
"""How many bytes of rows are held, besides those that are being read."""

AT_ONCE = 4
"""How many row groups are read at once; the lake's have about a MiB, or a hundred rows."""

_SLICE_ROWS = 1_000
"""How many rows are Python objects at a time."""

_LAST = "\U0010ffff"
"""A text above all IDs."""

_EVENT_COLUMNS = ("entity_type", "entity", "revision", "seq", "ts", "action", "path", "value", "headers")
_STATE_COLUMNS = ("entity_type", "entity", "policy_id", "revision", "seq", "created", "modified", "state")


class RowKey(NamedTuple):
    """The place of a row in the order."""

    entity: str
    entity_type: str
    revision: int


def key_at(table: pa.Table, place: int) -> RowKey:
    """Return the key of one row."""
    return RowKey(*(table.column(name)[place].as_py() for name in ORDER))


class _RowGroup(NamedTuple):
    """A row group, and its first and last entity."""

    first: str
    last: str
    fragment: ds.ParquetFileFragment


class TableRows:
    """The rows of a table that meet a condition."""

    def __init__(
        self,
        lake: Lake,
        table: Table,
        wanted: ds.Expression | None = None,
        *,
        version: int | None = None,
        check: Check = lambda: None,
    ) -> None:
        """`version`: the newest one by default."""
        self._check, self._path, self._schema = check, lake.path(table), schema_of(table)
        self._wanted = pc.scalar(value=True) if wanted is None else wanted
        with open_table(lake, table, version) as delta:
            self._dataset = dataset_of(delta, self._path)
            files = self._dataset.get_fragments(self._wanted)
            row_groups = [it for file in files for it in self._row_groups_of(file)]
            self._row_groups = sorted(row_groups, key=lambda it: it.first)

    def _row_groups_of(self, file: ds.ParquetFileFragment) -> Iterator[_RowGroup]:
        """Yield the row groups of a file that may have some of the rows."""
        entity = file.metadata.schema.names.index("entity")
        for fragment in file.split_by_row_group(self._wanted, self._dataset.schema):
            (row_group,) = fragment.row_groups
            # Not the statistics of all columns, which take longer than to read the rows of some.
            first, last = extremes(file.metadata.row_group(row_group.id).column(entity))
            yield _RowGroup("" if first is None else first, _LAST if last is None else last, fragment)

    def in_parts(self) -> Iterator[pa.Table]:
        """Yield the rows in order, in parts that fit in memory; never an empty table."""
        after: RowKey | None = None
        while True:
            held, end = self._schema.empty_table(), None
            waiting = deque(it for it in self._row_groups if after is None or it.last >= after.entity)
            while waiting and (end is None or waiting[0].first <= end.entity):
                taken = [waiting.popleft() for _ in range(min(AT_ONCE, len(waiting)))]
                held = pa.concat_tables([held, self._read(taken, after, end)])
                if end is None and waiting:
                    # Later row groups have none of the entities before their first one.
                    is_complete = pc.less(held["entity"], waiting[0].first)
                    if pc.any(is_complete).as_py():
                        yield held.filter(is_complete).sort_by(SORT)
                        held = held.filter(pc.invert(is_complete))
                while held.nbytes > MOST_BYTES and held.num_rows > 1:
                    held = held.take(pc.sort_indices(held, SORT)[: held.num_rows // 2])
                    end = key_at(held, held.num_rows - 1)
            if held.num_rows:
                yield held.sort_by(SORT)
            if end is None:
                return
            after = end

    def _read(self, row_groups: Sequence[_RowGroup], after: RowKey | None, upto: RowKey | None) -> pa.Table:
        """Return the rows of some row groups between two keys, in any order."""
        self._check()
        rules = [self._wanted]
        if after is not None:
            rules.append(~_upto(after))
        if upto is not None:
            rules.append(_upto(upto))
        fragments = [it.fragment for it in row_groups]
        with translate_errors(self._path):
            read = ds.FileSystemDataset(fragments, self._dataset.schema, self._dataset.format)
            names = self._schema.names
            return read.to_table(names, filter=reduce(and_, rules), fragment_scan_options=CHECKED).cast(self._schema)


def _upto(key: RowKey) -> ds.Expression:
    """The rows up to a key."""
    entity, type, revision = map(pc.field, ORDER)
    of_type = (type < key.entity_type) | ((type == key.entity_type) & (revision <= key.revision))
    return (entity < key.entity) | ((entity == key.entity) & of_type)


def rows_between(lake: Lake, table: Table, first: str, end: str | None) -> TableRows:
    """Return the rows of the entities from the ID `first` to before `end` (None is no bound)."""
    wanted = pc.field("entity") >= first
    if end is not None:
        wanted &= pc.field("entity") < end
    return TableRows(lake, table, wanted)


def latest_states(lake: Lake, entities: Sequence[str] | None = None) -> Iterator[EntityState]:
    """The rows of `latest`, or those of the named entities."""
    return states(TableRows(lake, LATEST, None if entities is None else pc.field("entity").isin(entities)))


def deletions(lake: Lake) -> Iterator[JournalEntry]:
    """The events that delete an entity."""
    return entries(TableRows(lake, EVENTS, (pc.field("action") == "deleted") & (pc.field("path") == "/")))


def entries(rows: TableRows) -> Iterator[JournalEntry]:
    """Rows of `events`, as the journal has them."""
    return map(JournalEntry._make, _values(rows, _EVENT_COLUMNS))


def states(rows: TableRows) -> Iterator[EntityState]:
    """Rows of `latest` or `snapshots`, as the journal has them."""
    return map(EntityState._make, _values(rows, _STATE_COLUMNS))


def _values(rows: TableRows, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for table in rows.in_parts():
        for start in range(0, table.num_rows, _SLICE_ROWS):
            yield from journal_rows(table.slice(start, _SLICE_ROWS), columns)
