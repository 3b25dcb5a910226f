"""Reads selected events of one version of the lake in order, from its files, in this process.

The log has which files may have some of them, and the number of their rows. Rows are read in parts that fit in memory: a
sample of the keys decides where a part ends, and parts that did not fit show how many rows do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial, reduce
from operator import and_
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from spark_store.errors import ResultTooLarge
from spark_store.journal.erasure import Erasure
from spark_store.lake.reader import CHECKED, CUT, open_table
from spark_store.lake.tables import EVENTS, Lake
from spark_store.queries.selection import Condition

Check: TypeAlias = Callable[[], None]
"""Raises what ends an export early."""

_TYPES = {"string": pa.string(), "long": pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
SCHEMA = pa.schema([(column.name, _TYPES[column.type]) for column in EVENTS.columns])
"""The columns of an export: those of `events`."""

ORDER = ("entity", "entity_type", "revision")
SORT = [(name, "ascending") for name in ORDER]

MOST_BYTES = 64 << 20
"""The most bytes that are read at once."""

_ROW_BYTES = 512
"""The size of a row, until a part shows that it is larger."""

_SAMPLES = 5_000
_AHEAD = 1
"""How many batches, and files, are read ahead."""

_FIRST = datetime.min.replace(tzinfo=UTC)


class EventKey(NamedTuple):
    """The place of an event in the order of an export."""

    entity: str
    entity_type: str
    revision: int


class EventFiles:
    """The files of `events` that may have some of the selected events."""

    def __init__(
        self, lake: Lake, version: int, conditions: Sequence[Condition], erased: Sequence[Erasure], check: Check
    ) -> None:
        """Raises StoreUnavailable, LakeUnfit."""
        self._check = check
        times = [it for it in conditions if it[0] == "ts"]
        self._exact = pq.filters_to_expression(times) if times else None
        self._wanted = _all([*(pq.filters_to_expression([_widen(it)]) for it in conditions), *map(_spared, erased)])
        self._row_bytes = _ROW_BYTES
        self._open = partial(open_table, lake, EVENTS, version)
        with self._open() as delta:
            # A file system of pyarrow's own: its threads need no Python then.
            self._dataset = delta.to_pyarrow_dataset(filesystem=SubTreeFileSystem(lake.path(EVENTS), LocalFileSystem()))
            actions = pa.table(delta.get_add_actions(flatten=True))
            rows = dict(zip(map(unquote, actions["path"].to_pylist()), actions["num_records"].to_pylist(), strict=True))
            self.rows: int = sum(rows[unquote(it.path)] for it in self._dataset.get_fragments(self._wanted))
            """How many rows these files have, in all."""

    def cuts(self, after: EventKey | None, upto: EventKey | None, part_bytes: int) -> list[EventKey]:
        """Return the last keys of all parts but the last one; none if one part suffices."""
        step, found, sample = max(1, self.rows // _SAMPLES), 0, list[EventKey]()
        for table in self._tables(ORDER, after, upto):
            rows = table.take(pa.array(range(-found % step, table.num_rows, step), pa.int64())).to_pylist()
            sample += [EventKey(**row) for row in rows]
            found += table.num_rows
        return cuts([(key, 1) for key in sorted(sample)], -(-found * self._row_bytes // part_bytes))

    def read(self, after: EventKey | None, upto: EventKey | None) -> Iterator[pa.Table]:
        """Yield the events between two keys, in order. Raises ResultTooLarge."""
        held, size = list[pa.Table](), 0
        for table in self._tables(SCHEMA.names, after, upto):
            held.append(table)
            size += table.nbytes
            if size > MOST_BYTES:
                self._row_bytes = max(self._row_bytes, size // sum(it.num_rows for it in held))
                raise ResultTooLarge(f"found events of more than {MOST_BYTES >> 20} MiB, which is read at once at most")
        if held:
            yield pa.concat_tables(held).sort_by(SORT)

    def _tables(self, columns: Sequence[str], after: EventKey | None, upto: EventKey | None) -> Iterator[pa.Table]:
        """Yield the events between two keys, in any order; never an empty table.

        The plain bounds on `entity` let files be passed over.
        """
        rules = [self._wanted]
        if after is not None:
            rules += [pc.field("entity") >= after.entity, ~_upto(after)]
        if upto is not None:
            rules += [pc.field("entity") <= upto.entity, _upto(upto)]
        with self._open():
            batches = self._dataset.to_batches(
                columns=list(dict.fromkeys((*columns, *(("ts",) if self._exact is not None else ())))),
                filter=_all(rules),
                batch_readahead=_AHEAD,
                fragment_readahead=_AHEAD,
                fragment_scan_options=CHECKED,
            )
            for batch in batches:
                self._check()
                table = pa.Table.from_batches([batch])
                if self._exact is not None:
                    table = table.filter(self._exact)
                if table.num_rows:
                    yield table.select(columns).cast(pa.schema([SCHEMA.field(name) for name in columns]))


def _all(rules: Sequence[ds.Expression]) -> ds.Expression:
    return reduce(and_, rules, pc.scalar(True))


def _widen(rule: Condition) -> Condition:
    """Return a condition that holds for the log's times, too: these are cut to milliseconds."""
    column, sign, value = rule
    return (column, sign, value - min(CUT, value - _FIRST)) if (column, sign) == ("ts", ">=") else rule


def _spared(erasure: Erasure) -> ds.Expression:
    """The rows that an erasure leaves."""
    is_other = (pc.field("entity") != erasure.entity) | (pc.field("entity_type") != erasure.entity_type)
    return is_other | (pc.field("seq") > erasure.seq)


def _upto(key: EventKey) -> ds.Expression:
    """The events up to a key."""
    entity, type, revision = map(pc.field, ORDER)
    of_type = (type < key.entity_type) | ((type == key.entity_type) & (revision <= key.revision))
    return (entity < key.entity) | ((entity == key.entity) & of_type)


def cuts(sample: Sequence[tuple[EventKey, int]], parts: int) -> list[EventKey]:
    """Return the last key of each part, so that each has about the same share of the sample's sizes."""
    share, taken, found = sum(size for _, size in sample) / max(1, parts), 0, list[EventKey]()
    for key, size in sample[:-1]:
        taken += size
        if taken >= share * (len(found) + 1) and len(found) < parts - 1:
            found.append(key)
    return found
