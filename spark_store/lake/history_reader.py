"""Reads events and snapshots of one entity from the lake, without Spark.

Events are read by row groups, oldest first, so that a page costs its own size, however long the history is; surplus rows are
kept for the next page for a while. Texts are the journal's bytes (`spark_store.lake.tables`). `spark_store.lake.table_scan`
finds rows in tables that are written meanwhile; `spark_store.history.history` combines journal and lake. Everything waits
for the disk: call it in worker threads, any number at a time. The libraries take long to load, so import this module late.
"""

from __future__ import annotations

import contextlib
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from cachetools import FIFOCache

from mappings.ids import EntityId
from mappings.json_values import decode_state
from mappings.model.signals import Event
from spark_store.errors import HistoryUnavailable
from spark_store.journal.published_events import TS, timestamp_of
from spark_store.lake.table_scan import (
    GONE,
    INSTANTS,
    DeltaTableReader,
    ScanFilter,
    Version,
    journal_rows,
    nothing,
    parts_of,
    rows_of,
    values,
)
from spark_store.lake.table_scan import instant as as_datetime
from spark_store.lake.tables import EVENTS, SNAPSHOTS, Lake
from spark_store.records import NumberedEvent, Snapshot, Times, read_events

AHEAD: Final = 2000
"""How many events are read at once, if they are not large: the rest is kept for the next page."""

AHEAD_BYTES: Final = 4 << 20
"""About how many bytes are read at once. Up to twice as many, and a row group, are held meanwhile."""

WAITING_BYTES: Final = 32 << 20
"""How many bytes are kept for next pages, in all."""

_ENTRY: Final = 500
"""The size of a run without rows."""

_NAMED: Final = rf'"{TS}":(?P<{TS}>-?[0-9]+)'
"""The time that a publisher named, in headers as text."""

_COLUMNS: Final = ["revision", "ts", "action", "path", "value", "headers"]


class ColdEvents(NamedTuple):
    """Events, and whether these are all that were asked for."""

    events: list[Event]
    is_all: bool


class _Run(NamedTuple):
    """Rows of one entity in order, without a gap, and whether they are the last requested ones."""

    rows: pa.Table
    is_all: bool


def _size_of(run: _Run) -> int:
    return int(run.rows.nbytes) + _ENTRY


class LakeHistory:
    """The tables `events` and `snapshots` of one lake. Readers of `events` raise HistoryUnavailable."""

    def __init__(
        self,
        lake: Lake,
        erased: Mapping[EntityId, int] = MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` gives monotonic seconds. Nothing is opened before it is needed.

        `erased`: of these entities nothing is shown up to the journal's event with this number, though the tables may
        still have it. The caller may change it at any time.
        """
        self._lake = lake
        self._erased = erased
        self._lock = threading.Lock()
        self._ahead: FIFOCache[tuple[int, ScanFilter, int, int], _Run] = FIFOCache(WAITING_BYTES, _size_of)
        """Rows that were read beyond the end of a page, perhaps none, by version, and what is read of it next."""
        self._events = DeltaTableReader(lake.path(EVENTS), clock)
        self._snapshots = DeltaTableReader(lake.path(SNAPSHOTS), clock)

    def reaches(self) -> int:
        """Return the journal's number up to which `events` is complete; 0 for none."""
        return self._events.newest().reaches

    def events(
        self,
        entity: EntityId,
        first: int,
        last: int,
        limit: int,
        max_bytes: int,
        *,
        times: Times = Times(),  # noqa: B008 - a value
        reaching: int = 0,
    ) -> ColdEvents:
        """Return the oldest events with first ≤ revision ≤ last between `times`, without gaps.

        At most `limit` (from 1); the one with which values and headers reach `max_bytes` is the last. The table must reach
        the journal's number `reaching`.
        """
        asked = self._scan_filter(entity, times)

        def read(version: Version) -> _Run:
            with self._lock:
                known = self._ahead.pop((version.number, asked, first, last), None)
            if known is not None and (known.is_all or known.rows.num_rows >= limit):
                return known
            return _oldest(version, asked, first, last, limit, None if known is None else known.rows)

        version, run = self._events.read(lambda version: (version, read(version)), reaching)
        found = read_events(entity, journal_rows(run.rows.slice(0, limit), _COLUMNS), max_bytes)
        rest = run.rows.slice(len(found))
        is_all = run.is_all and not rest.num_rows
        if found and not is_all:
            place = version.number, asked, found[-1].revision + 1, last
            # A run that is larger than all of them together is not kept.
            with self._lock, contextlib.suppress(ValueError):
                self._ahead[place] = _Run(rest, run.is_all)
        return ColdEvents(found, is_all)

    def oldest(self, entity: EntityId, first: int, last: int, *, reaching: int = 0) -> int:
        """Return the smallest of these revisions in the lake; 0 for none."""
        asked = self._scan_filter(entity)

        def smallest(version: Version) -> int:
            found = last + 1
            for rows, upcoming in parts_of(version, asked, first, last, ["revision"]):
                found = min(found, pc.min(rows["revision"]).as_py() or found)
                if found <= upcoming:
                    break
            return found if found <= last else 0

        return self._events.read(smallest, reaching)

    def first_published(self, entity: EntityId, first: int, last: int, instant: int, *, reaching: int = 0) -> int:
        """Return the first of these revisions published at an instant or later; 0 for none.

        Missing revisions are ignored.
        """
        asked = self._scan_filter(entity)
        start = pa.scalar(as_datetime(timestamp_of(instant)), INSTANTS)

        def found(version: Version) -> int:
            rows = rows_of(version, asked, first, last, ["revision", "ts", "headers"])
            named = pc.struct_field(pc.extract_regex(rows["headers"], _NAMED), [TS]).cast(pa.int64())
            is_late = pc.coalesce(pc.greater_equal(named, instant), pc.greater_equal(rows["ts"], start))
            return int(pc.min(rows.filter(is_late)["revision"]).as_py() or 0)

        return self._events.read(found, reaching)

    def deletions(self) -> int:
        """A number that grows whenever events may have been deleted, as far as this process has seen it."""
        self._events.newest()
        return self._events.deletions

    def recently_deleted(self, entity: EntityId, first: int, last: int, limit: int, max_bytes: int) -> ColdEvents:
        """Return events from `first` on that retention has deleted since this process knew of them.

        None if `first` is no longer known, or its file is gone. Never all, unless the last one is `last`.
        """
        asked = self._scan_filter(entity)
        for version in self._events.former():
            with contextlib.suppress(*GONE):
                run = _oldest(version, asked, first, last, limit)
                found = read_events(entity, journal_rows(run.rows.slice(0, limit), _COLUMNS), max_bytes)
                if found and found[0].revision == first:
                    return ColdEvents(found, found[-1].revision == last)
        return ColdEvents([], is_all=False)

    def find_numbered(self, entity: EntityId, revision: int, *, reaching: int = 0) -> NumberedEvent | None:
        """Return one event with its number, if it exists."""
        asked = self._scan_filter(entity)
        rows = self._events.read(
            lambda version: rows_of(version, asked, revision, revision, ["seq", *_COLUMNS]), reaching
        )
        if not rows.num_rows:
            return None
        (event,) = read_events(entity, journal_rows(rows.slice(0, 1), _COLUMNS), 0)
        return NumberedEvent(int(rows["seq"][0].as_py()), event)

    def last_before(self, entity: EntityId, last: int, before: str, *, reaching: int = 0) -> int:
        """Return the newest revision up to `last` from before a timestamp; 0 for none. Some twenty look-ups."""
        asked, end = self._scan_filter(entity), as_datetime(before)

        def newest(version: Version) -> int:
            def time_of(revision: int) -> datetime | None:
                rows = rows_of(version, asked, revision, revision, ["ts"])
                return rows["ts"][0].as_py() if rows.num_rows else None

            # Missing revisions are older than existing ones.
            found = bisect_left(range(1, last + 1), True, key=lambda it: (at := time_of(it)) is not None and at >= end)
            return 0 if time_of(found) is None else found

        return self._events.read(newest, reaching)

    def snapshot(self, entity: EntityId, last: int, before: str | None = None) -> Snapshot | None:
        """Return the newest state in `snapshots` up to revision `last`; None for none.

        From before a timestamp. A missing or unreadable table has none: the events give the same result, more slowly.
        """
        asked = self._scan_filter(entity)

        def newest(version: Version) -> Snapshot | None:
            rows = rows_of(version, asked, 1, last, ["revision", "modified"])
            if before is not None:
                rows = rows.filter(pc.less(rows["modified"], pa.scalar(as_datetime(before), rows["modified"].type)))
            if not rows.num_rows:
                return None
            revision = int(pc.max(rows["revision"]).as_py())
            columns = ["created", "modified", "state", "policy_id"]
            whole = rows_of(version, asked, revision, revision, columns)
            (created, modified, state, policy), *_ = journal_rows(whole, columns)
            return Snapshot(entity, revision, created, modified, state and decode_state(state), policy)

        try:
            return self._snapshots.read(newest, 0)
        except HistoryUnavailable:
            return None

    def _scan_filter(self, entity: EntityId, times: Times = Times()) -> ScanFilter:  # noqa: B008 - a value
        return ScanFilter.of(entity, times, self._erased.get(entity, 0))


def _oldest(
    version: Version, asked: ScanFilter, first: int, last: int, limit: int, known: pa.Table | None = None
) -> _Run:
    """Return the first rows in order.

    At least `limit`, unless fewer follow without a gap, or they have too many bytes. A reader that continues, with the rows
    `known` that it has, needs what follows: it gets `AHEAD`. Another reader may need only one page.
    """
    wanted = limit if known is None else max(limit, AHEAD)
    parts, rows, size = ([], 0, 0) if known is None else ([known], known.num_rows, known.nbytes)
    begin, end = first + rows, last + 1
    for part, upcoming in parts_of(version, asked, begin, last, _COLUMNS):
        parts.append(part)
        rows, size = rows + part.num_rows, size + part.nbytes
        if size > 2 * AHEAD_BYTES:
            # Row groups with many entities may all have the next revision: only the first rows are kept.
            found = pa.concat_tables(parts)
            end = sorted(values(found["revision"]))[max(1, rows * AHEAD_BYTES // size) - 1] + 1
            found = found.filter(pc.less(found["revision"], end))
            parts, rows, size = [found], found.num_rows, found.nbytes
        complete_before = min(upcoming, end)
        is_enough = rows >= wanted or size >= AHEAD_BYTES or asked.before is not None
        if upcoming < end and (upcoming == begin or not is_enough):
            continue
        # Pages are slices, and slow ones of a table in parts.
        found = pa.concat_tables(parts).combine_chunks()
        found = _in_order(asked, found.filter(pc.less(found["revision"], complete_before)))
        if not found.num_rows:
            continue
        newest = found["revision"][-1].as_py()
        if newest + 1 < complete_before:
            # The next one is not there, or is too late.
            return _Run(found, asked.before is not None or complete_before > last)
        if found.num_rows >= wanted or found.nbytes >= AHEAD_BYTES or upcoming >= end:
            return _Run(found, newest == last)
    return _Run(nothing(_COLUMNS) if known is None else known, is_all=True)


def _in_order(asked: ScanFilter, rows: pa.Table) -> pa.Table:
    """Return rows in order of revision.

    Raises HistoryUnavailable if one is missing in their midst, or is there twice.
    """
    # In a compacted table they are in order, and to sort them takes as long as to read them.
    if not _is_without_gap(rows):
        rows = rows.take(pc.sort_indices(rows["revision"]))
        if not _is_without_gap(rows):
            least, most = rows["revision"][0], rows["revision"][-1]
            raise HistoryUnavailable(
                f"{asked.id}: expected one row in the lake for each revision from {least} to {most}, found "
                f"{rows.num_rows} rows; `connectivity pipeline verify` shows what differs from the journal"
            )
    return rows


def _is_without_gap(rows: pa.Table) -> bool:
    steps = pc.pairwise_diff(rows["revision"].combine_chunks())
    return bool(pc.all(pc.equal(steps, 1), min_count=0).as_py())
