"""Exports selected events of all entities, by entity and revision, into one file.

Most come from the lake, the newest ones from the journal, after the last event of the lake's version: so an export is
complete up to its beginning, without duplicates. The lake's files are read in this process, in parts that fit in memory
(`spark_store.lake.rows`). Time limit and cancellation are checked after every slice of rows. Erased events are left out.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial, reduce
from operator import and_
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from mappings.ids import namespace_of
from spark_store.errors import LimitExceeded, StoreUnavailable
from spark_store.journal.erasure import Erasure
from spark_store.journal.reader import JournalEntry, JournalReader
from spark_store.lake import reader as lakes
from spark_store.lake.arrow_rows import EVENTS as ENTRIES
from spark_store.lake.arrow_rows import arrow
from spark_store.lake.reader import CUT
from spark_store.lake.rows import SORT, Check, TableRows, key_at
from spark_store.lake.table_scan import journal_rows, schema_of, values
from spark_store.lake.tables import EVENTS, Lake
from spark_store.lake.watermark import read_watermark
from spark_store.queries.export_file import output_file
from spark_store.queries.selection import EventSelection, conditions, matches
from spark_store.queries.spark_query import Cancellation, QueryLimits, check_limits
from spark_store.rql.ast import Predicate

SCHEMA = schema_of(EVENTS)
"""The columns of an export: those of `events`."""

_GROUP_ROWS = 1 << 15
"""How many events that are not in the lake yet are written at once."""

_MOST_WAITING, _MOST_WAITING_BYTES = 2_000_000, 512 << 20
"""How many selected events, and bytes, may not be in the lake yet: they are kept in memory."""

_SLICE_ROWS = 4096
"""How many rows are Python objects at a time."""

_TRIES = 5
_FIRST = datetime.min.replace(tzinfo=UTC)
_FILTERED = ("entity", "revision", "ts", "action", "path", "value")
"""The columns that a filter needs."""


def export_events(
    lake: Lake,
    selection: EventSelection,
    out: Path,
    limits: QueryLimits,
    cancellation: Cancellation,
    progress: Callable[[int], object] = lambda _: None,
    *,
    force: bool = False,
) -> dict[str, Any]:
    """Write the file, and return `{file, rows, bytes, first_revision, last_revision}`.

    Revisions are the lowest and highest of all; None without events. `limits` apply to all of it; `progress` receives the
    rows written so far. Raises OutputUnusable, StoreUnavailable (a full disk, too), LakeUnfit, QueryCancelled, QueryTimeout,
    LimitExceeded.
    """
    check = partial(check_limits, limits, time.monotonic() + limits.seconds, cancellation)
    rows, first, last = 0, None, None
    with output_file(out, SCHEMA, force=force) as output:
        # First of all: later erasures of the lake are left out here.
        erased = lakes.pending_erasures(lake)
        version, waiting = newest(lake, selection, erased, check)
        files = [] if version is None else lake_rows(lake, version, selection, erased, check).in_parts()
        for table in merge_ordered(filter_rows(files, selection, check), waiting):
            check()
            rows += table.num_rows
            least, most = pc.min_max(table["revision"]).as_py().values()
            first, last = min(first or least, least), max(last or most, most)
            if limits.rows is not None and rows > limits.rows:
                raise LimitExceeded(
                    f"found at least {rows} events, expected at most {limits.rows}; select fewer, or allow more"
                )
            output.write_table(table)
            progress(rows)
        check()
    return {
        "file": str(out), "rows": rows, "bytes": out.stat().st_size, "first_revision": first, "last_revision": last
    }  # fmt: skip


def lake_rows(
    lake: Lake, version: int, selection: EventSelection, erased: Sequence[Erasure] = (), check: Check = lambda: None
) -> TableRows:
    """Return events of one version of the lake, for `filter_rows`. Raises StoreUnavailable, LakeUnfit."""
    since = selection.since
    if since is not None:
        # The log's times are cut to milliseconds.
        selection = replace(selection, since=since - min(CUT, since - _FIRST))
    return TableRows(lake, EVENTS, _expression(selection, erased), version=version, check=check)


def _expression(selection: EventSelection, erased: Sequence[Erasure] = ()) -> ds.Expression:
    """Return the condition on columns, for events that were not erased."""
    rules = [pq.filters_to_expression([it]) for it in conditions(selection)]
    return reduce(and_, [*rules, *map(_spared, erased)], pc.scalar(value=True))


def _spared(erasure: Erasure) -> ds.Expression:
    """The rows that an erasure leaves."""
    is_other = (pc.field("entity") != erasure.entity) | (pc.field("entity_type") != erasure.entity_type)
    return is_other | (pc.field("seq") > erasure.seq)


def newest(
    lake: Lake, selection: EventSelection, erased: Sequence[Erasure] = (), check: Check = lambda: None
) -> tuple[int | None, pa.Table | None]:
    """Return the lake's version, and the selected later events of the journal, in order.

    Without erased ones; None if there are neither. Raises StoreUnavailable, and what `check` raises.
    """
    for _ in range(_TRIES):
        version, seq = lakes.position(lake) if lake.has(EVENTS) else (None, 0)
        with JournalReader.open(lake.journal) as journal_reader:
            rows = _select(journal_reader.entries(seq + 1, journal_reader.newest()), selection, erased, check)
            oldest = journal_reader.oldest()
        # Events that the lake has taken meanwhile may have been trimmed from the journal while it was read.
        if (oldest is not None and oldest <= seq + 1) or read_watermark(lake.watermark).seq <= seq:
            return version, rows
    raise StoreUnavailable(f"{lake.journal}: events after {seq} were trimmed repeatedly while they were read; retry")


def _select(
    entries: Iterable[JournalEntry], selection: EventSelection, erased: Sequence[Erasure], check: Check
) -> pa.Table | None:
    found: list[pa.Table] = []
    rows = size = 0
    spared = _expression(EventSelection(), erased)
    for table in filter_rows((_table(it).filter(spared) for it in arrow(entries, ENTRIES)), selection, check):
        found.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows > _MOST_WAITING or size > _MOST_WAITING_BYTES:
            raise StoreUnavailable(
                f"more than {_MOST_WAITING} events, or more than {_MOST_WAITING_BYTES >> 20} MiB, are not in the lake yet; "
                "wait until the lake has caught up (`connectivity pipeline status`)"
            )
    return pa.concat_tables(found).sort_by(SORT) if found else None


def _table(batch: pa.RecordBatch) -> pa.Table:
    """Events of the journal as the lake has them."""
    table = pa.Table.from_batches([batch]).rename_columns({"timestamp": "ts"})
    namespaces = pa.array(map(namespace_of, values(table["entity"])), pa.string())
    return table.append_column("namespace", namespaces).select(SCHEMA.names)


def merge_ordered(tables: Iterator[pa.Table], waiting: pa.Table | None) -> Iterator[pa.Table]:
    """Two ordered sequences of events as one. Of one entity, those that wait all come after the others."""
    taken = 0
    for table in tables:
        table = table.cast(SCHEMA)
        if waiting is not None:
            last = key_at(table, table.num_rows - 1)[:2]
            upto = bisect_left(range(waiting.num_rows), last, taken, key=lambda place: key_at(waiting, place)[:2])
            if upto > taken:
                table = pa.concat_tables([table, waiting.slice(taken, upto - taken)]).sort_by(SORT)
            taken = upto
        yield table
    if waiting is not None:
        yield from (waiting.slice(begin, _GROUP_ROWS) for begin in range(taken, waiting.num_rows, _GROUP_ROWS))


def filter_rows(tables: Iterable[pa.Table], selection: EventSelection, check: Check) -> Iterator[pa.Table]:
    """Yield the selected rows; never an empty table."""
    predicate, wanted = selection.predicate, _expression(selection)
    for table in tables:
        check()
        table = table.filter(wanted)
        if predicate is not None:
            table = table.filter(pa.chunked_array(_accept_rows(table, predicate, check), pa.bool_()))
        if table.num_rows:
            yield table


def _accept_rows(table: pa.Table, predicate: Predicate, check: Check) -> Iterator[pa.Array]:
    """Yield for each row whether the filter accepts it, in slices."""
    for begin in range(0, table.num_rows, _SLICE_ROWS):
        check()
        part = table.slice(begin, _SLICE_ROWS)
        yield pa.array([matches(predicate, row) for row in journal_rows(part, _FILTERED)], pa.bool_())
