"""Histories of one entity: bounds of a query, and pages of events, from journal and lake.

`open_range` fixes the bounds once (Ditto protocol, subscribe for persisted events): relative revisions become numbers,
instants revisions, the filter a predicate. `page` reads on from a position, the last processed revision (0 at the
beginning). A range is small, because there are as many as subscriptions.

The journal is read first. If a page begins with trimmed events, it returns their revisions (`TrimmedRange`), and `cold_page`
reads them from the lake. A range begins at the oldest retained event; missing events inside of it are an error. Undurable
events have no known time yet: such a range keeps its instants, and is empty without an end until they are durable. Times
never go back within an entity, so bounds of instants are found by bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import le, lt
from typing import TYPE_CHECKING, NamedTuple

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event, HistoryQuery
from mappings.timestamps import utc_text
from spark_store import rql
from spark_store.errors import FilterTooExpensive, HistoryUnavailable
from spark_store.history.event_view import matches
from spark_store.journal.journal import Journal
from spark_store.records import Times, event_size

if TYPE_CHECKING:
    from spark_store.lake.history_reader import ColdEvents, LakeHistory

SCAN_ROWS = 120
"""How many events a page with a filter examines at most: less than a millisecond."""

SCAN_COMPARISONS = 2400
"""How many comparisons a page with a filter makes at most, with values of ordinary size."""

SCAN_WORK = 200_000
"""How many bytes of events times comparisons a page with a filter may cost: some milliseconds."""

COLD_SCANS = 16
"""How many times as much a filtered page from the lake may cost, in a worker thread."""

_SMALLEST_SCAN = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BEFORE_ALL, _AFTER_ALL = "", "A"
"""Texts that are below and above every timestamp."""


@dataclass(frozen=True, slots=True)
class HistoryRange:
    """Revisions `first` to `last` of one entity (empty if first > last), and the filter.

    `times` are there only if they could not become revisions: `last` was not durable yet, or the events were trimmed.
    """

    entity: EntityId
    first: int
    last: int
    predicate: rql.Predicate | None
    times: Times | None


class TrimmedRange(NamedTuple):
    """Trimmed revisions `first` to `last` of a range, and whether the range ends with them.

    `begin` is where the range begins: only there events may have been deleted by retention.
    """

    first: int
    last: int
    is_end: bool
    begin: int


class HistoryPage(NamedTuple):
    """Events in ascending order, the next position, and whether they are the last ones.

    A page without events that has not ended has examined many that do not match, or has met undurable events; continue from
    its position. If it has met events that are `trimmed`, it is empty: read them with `cold_page`. `has_more`: it was ended
    by its limit, and the next event is known to match.
    """

    events: list[Event]
    position: int
    ended: bool
    trimmed: TrimmedRange | None = None
    has_more: bool = False


def open_range(
    journal: Journal, query: HistoryQuery, now: datetime | None = None, *, oldest: int = 1, newest: int | None = None
) -> HistoryRange:
    """Fix the bounds of a query.

    `now` replaces `time:now` in the filter (default: the clock). `oldest` and `newest` are the entity's first and last
    revision for the reader (default: 1, and the newest committed one); the last may be about to be committed. Raises
    QueryError for an invalid filter, StoreUnavailable.
    """
    predicate = None
    if query.filter is not None:
        predicate = rql.resolve_times(rql.parse(query.filter), now if now is not None else datetime.now(UTC))
        if query.entity.type is not EntityType.THING:
            predicate = None  # only things are filtered
    durable = journal.latest(query.entity)
    first, last = _revisions(query, durable if newest is None else newest)
    first = max(first, oldest)
    times = _times(query) if query.after is not None or query.before is not None else None
    if times is not None and last <= durable:
        first, last, times = _resolve_times(journal, query.entity, first, last, times)
    if first > last:
        first, last, times = 1, 0, None
    return HistoryRange(query.entity, first, last, predicate, times)


def page(journal: Journal, range: HistoryRange, position: int, limit: int, max_bytes: int) -> HistoryPage:
    """Return at most `limit` events after `position`, about `max_bytes` of values, but at least one.

    With a limit of 0 no events are returned, but `ended` may become known, as long as the position moves. Raises
    StoreUnavailable, and QueryError if the filter would take long for an event.
    """
    if range.times is not None:
        if not _is_durable(journal, range):
            return HistoryPage([], position, False)
        first, last, times = _resolve_times(journal, range.entity, range.first, range.last, range.times)
        range = HistoryRange(range.entity, first, last, range.predicate, times)
    if range.predicate is None:
        return _unfiltered_page(journal, range, position, limit, max_bytes)
    return _filtered_page(journal, range, range.predicate, position, limit, max_bytes)


def _unfiltered_page(journal: Journal, range: HistoryRange, position: int, limit: int, max_bytes: int) -> HistoryPage:
    start = max(position + 1, range.first)
    if start > range.last:
        return HistoryPage([], position, True)
    if limit < 1:
        return HistoryPage([], position, False, has_more=True)
    if (events := _events(journal, range, start, limit, max_bytes)) is None:
        return HistoryPage([], position, False)
    if not events or events[0].revision != start:
        end = events[0].revision - 1 if events else range.last
        return _missing_beginning(journal, range, position, start, end, limit, max_bytes)
    position = events[-1].revision
    return HistoryPage(events, position, position == range.last)


def _filtered_page(
    journal: Journal, range: HistoryRange, predicate: rql.Predicate, position: int, limit: int, max_bytes: int
) -> HistoryPage:
    """Read one match more than requested, so that the end is known with the last match."""
    scan = _Scan(predicate, limit, max_bytes)
    while scan.goes_on and (start := max(position + 1, range.first)) <= range.last:
        if (events := _events(journal, range, start, scan.rows, scan.max_bytes)) is None:
            return HistoryPage(scan.found, position, False)
        if not events or events[0].revision != start:
            if scan.found:
                return HistoryPage(scan.found, position, False)
            end = events[0].revision - 1 if events else range.last
            return _missing_beginning(journal, range, position, start, end, limit, max_bytes)
        if (cut := scan.take(events)) is not None:
            return HistoryPage(scan.found, cut, False, has_more=True)
        position = events[-1].revision
    return HistoryPage(scan.found, position, max(position + 1, range.first) > range.last)


def _missing_beginning(
    journal: Journal, range: HistoryRange, position: int, first: int, last: int, limit: int, max_bytes: int
) -> HistoryPage:
    """Return a page that begins with missing revisions: erased, so that it begins later, or trimmed."""
    if (erased := journal.beginning(range.entity).erased) < first:
        return HistoryPage([], position, False, TrimmedRange(first, last, last == range.last, range.first))
    if erased >= range.last:
        return HistoryPage([], range.last, True)
    return page(journal, replace(range, first=erased + 1, times=None), position, limit, max_bytes)


class _Scan:
    """The results of a page with a filter, and its remaining cost."""

    __slots__ = ("_comparisons", "_left", "_limit", "_predicate", "_size", "found", "max_bytes")

    def __init__(self, predicate: rql.Predicate, limit: int, max_bytes: int, times_as_much: int = 1) -> None:
        comparisons = self._comparisons = rql.weight(predicate)
        self.found: list[Event] = []
        self.max_bytes = min(max_bytes, max(1, times_as_much * SCAN_WORK // comparisons))
        self._predicate = predicate
        self._limit = limit
        self._left = times_as_much * min(SCAN_ROWS, max(1, SCAN_COMPARISONS // comparisons))
        self._size = max(_SMALLEST_SCAN, limit + 1) * times_as_much

    @property
    def goes_on(self) -> bool:
        return self._left > 0 and self.max_bytes > 0

    @property
    def rows(self) -> int:
        """Return how many events to examine next."""
        return min(self._size, self._left)

    def take(self, events: list[Event]) -> int | None:
        """Add the events that match; return the position before the first one beyond the limit, if any.

        The same before an event of which the filter compares too much, if others match; else raises FilterTooExpensive.
        """
        for event in events:
            try:
                is_match = matches(self._predicate, self._comparisons, event)
            except FilterTooExpensive:
                if not self.found:
                    raise
                return event.revision - 1
            if is_match:
                if len(self.found) >= self._limit:
                    return event.revision - 1
                self.found.append(event)
            self.max_bytes -= event_size(event)
        self._left -= len(events)
        self._size *= 2
        return None


def cold_page(
    cold: LakeHistory, range: HistoryRange, trimmed: TrimmedRange, limit: int, max_bytes: int, reaching: int
) -> HistoryPage:
    """Return a page, as `page` does, of trimmed events, which have numbers up to `reaching`.

    Waits for the disk. Raises HistoryUnavailable, also if events are missing: retention may only have deleted the beginning
    of a history, and only the requested time may end it before the last revision.
    """
    times = range.times or Times()

    def read(start: int, rows: int, size: int) -> ColdEvents:
        found = cold.events(range.entity, start, trimmed.last, rows, size, times=times, reaching=reaching)
        if not found.events:
            return found if start <= trimmed.begin or is_too_late(start) else deleted_events(start, rows, size)
        first, last = found.events[0].revision, found.events[-1].revision
        if first > start > trimmed.begin:
            return deleted_events(start, rows, size, first)
        if found.is_all and last < trimmed.last and not is_too_late(last + 1):
            raise _lost_events(range, last + 1, trimmed.last)
        return found

    def deleted_events(start: int, rows: int, size: int, first: int | None = None) -> ColdEvents:
        """Return events that retention has deleted since reading began; `first`: the first one that is left."""
        found = cold.recently_deleted(range.entity, start, trimmed.last, rows, size)
        if not found.events:
            raise _lost_events(range, start, trimmed.last if first is None else first - 1)
        in_time = [event for event in found.events if times.before is None or event.timestamp < times.before]
        return found._replace(events=in_time, is_all=found.is_all or len(in_time) < len(found.events))

    def is_too_late(revision: int) -> bool:
        """Whether the event was not found only because it is not from before the requested time."""
        return times.before is not None and bool(
            cold.events(range.entity, revision, revision, 1, 1, reaching=reaching).events
        )

    if range.predicate is None:
        events, is_all = read(trimmed.first, limit, max_bytes)
        last = trimmed.last if is_all else events[-1].revision
        return HistoryPage(events, last, is_all and trimmed.is_end)
    scan = _Scan(range.predicate, limit, max_bytes, COLD_SCANS)
    start = trimmed.first
    while scan.goes_on and start <= trimmed.last:
        events, is_all = read(start, scan.rows, scan.max_bytes)
        if (cut := scan.take(events)) is not None:
            return HistoryPage(scan.found, cut, False, has_more=True)
        start = trimmed.last + 1 if is_all else events[-1].revision + 1
    return HistoryPage(scan.found, start - 1, trimmed.is_end and start > trimmed.last)


def _lost_events(range: HistoryRange, first: int, last: int) -> HistoryUnavailable:
    return HistoryUnavailable(
        f"{range.entity}: the lake lacks revisions {first} to {last}; retention may have deleted them meanwhile, or "
        "the lake has lost events (`connectivity pipeline verify` shows lost events)"
    )


def _events(journal: Journal, range: HistoryRange, start: int, limit: int, max_bytes: int) -> list[Event] | None:
    """Return events of the journal from `start`; None if there are none yet, because they are not durable."""
    events = journal.events(range.entity, start, range.last, limit, max_bytes)
    if events:
        return events
    if not _is_durable(journal, range):
        return None
    # Another thread may have committed them after they were read.
    return journal.events(range.entity, start, range.last, limit, max_bytes)


def _is_durable(journal: Journal, range: HistoryRange) -> bool:
    """Whether everything in the range is committed: then missing events were trimmed."""
    return journal.latest(range.entity) >= range.last


def _revisions(query: HistoryQuery, newest: int) -> tuple[int, int]:
    """Return absolute revisions, both inclusive, for an entity whose last one is `newest` (0: none)."""
    first, last = query.from_revision, newest
    if first < 0:
        first += newest + 1
    if query.to_revision is not None:
        last = min(query.to_revision, newest) if query.to_revision > 0 else newest + query.to_revision
    return max(first, 1), last


def _times(query: HistoryQuery) -> Times:
    # `before` is rounded up: an event in the same microsecond may be earlier.
    return Times(
        None if query.after is None else _timestamp(query.after // 1000),
        None if query.before is None else _timestamp(-(-query.before // 1000)),
    )


def _resolve_times(
    journal: Journal, entity: EntityId, first: int, last: int, times: Times
) -> tuple[int, int, Times | None]:
    """Return the durable revisions among `first` to `last` between the times.

    Trimmed events are only known to be older than the oldest one here. A time that may lie among them is returned too, for
    the lake. Repeating the call with the result changes nothing.
    """
    after, before = times
    kept = journal.events(entity, first, last, 1, 1) if first <= last else []
    boundary = kept[0].revision if kept else last + 1
    if after is not None and kept and (boundary == first or kept[0].timestamp <= after):
        first = _bisect(journal, entity, boundary, last, partial(lt, after))
    if before is not None and kept and (boundary <= first or kept[0].timestamp < before):
        last = _bisect(journal, entity, max(first, boundary), last, partial(le, before)) - 1
        before = None
    elif before is not None:
        last = boundary - 1
    is_open = first < boundary and first <= last and not (after is None and before is None)
    return first, last, Times(after, before) if is_open else None


def _timestamp(microseconds: int) -> str:
    """An instant as events write it, or a text beyond all of them."""
    try:
        instant = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return _BEFORE_ALL if microseconds < 0 else _AFTER_ALL
    return utc_text(instant)


def _bisect(journal: Journal, entity: EntityId, first: int, last: int, passes: Callable[[str], bool]) -> int:
    """Return the first revision whose timestamp passes; last + 1 if none does.

    Some twenty look-ups in a long history. All revisions are durable and in the journal; meanwhile trimmed ones are skipped.
    """

    def has_passed(revision: int) -> bool:
        events = journal.events(entity, revision, last, 1, 1)
        return not events or passes(events[0].timestamp)

    return first + bisect_left(range(first, last + 1), True, key=has_passed)
