"""Histories: which events of one entity a query means, and how they are read page by page.

`open_range` fixes the bounds once (Ditto protocol, subscribe for persisted events): what is relative to the newest
revision becomes a number, instants become revisions, the filter becomes a predicate. What comes later does not belong to
the range. `page` reads on from a position, which is the last revision that has been dealt with (0 at the beginning).
Nothing stays open between two pages: a range is five words of memory, because there are as many as subscriptions.

Of an event that is not durable yet nobody here knows the time. A range that may hold such a one keeps its instants, and is
empty, without an end, until everything in it can be looked at; then its bounds are the same on every page.

Times never go back within an entity (whoever decides about commands sees to that), so the events between two instants are
neighbours and their ends are found by halving. What has been trimmed is not missed: a range begins at the oldest event
there is. A filter looks at each event alone (`spark_store.partial`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from mappings.ids import EntityId, EntityType
from mappings.signals import Event, HistoryQuery
from spark_store import rql
from spark_store.journal import Journal, event_size
from spark_store.partial import partial_thing

SCAN_ROWS = 200
"""How many events a page with a filter looks at, at most: about a millisecond."""

SCAN_COMPARISONS = 4000
"""How many comparisons a page with a filter makes, at most, with values of ordinary size."""

SCAN_WORK = 1_000_000
"""How many bytes of events times comparisons a page with a filter may cost: some tens of milliseconds at its worst."""

_SMALLEST_SCAN = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BEFORE_ALL, _AFTER_ALL = "", "A"
"""Texts that are below and above every timestamp."""


class Instants(NamedTuple):
    """Timestamps as events write them: a range begins with the first event above `after`, ends before `before`."""

    after: str | None
    before: str | None


@dataclass(frozen=True, slots=True)
class HistoryRange:
    """Revisions `first` to `last` of one entity (empty if first > last), and what an event must match, if anything.

    `instants` are there only where they could not be made revisions yet, because `last` was not durable.
    """

    entity: EntityId
    first: int
    last: int
    predicate: rql.Predicate | None
    instants: Instants | None


class HistoryPage(NamedTuple):
    """Events in ascending order, the position behind them, and whether they are the last ones.

    A page without events that has not ended has looked at many that do not match, or has met events that are not durable
    yet; the next one goes on from there.
    """

    events: list[Event]
    position: int
    ended: bool


def open_range(
    journal: Journal, query: HistoryQuery, now: datetime | None = None, *, newest: int | None = None
) -> HistoryRange:
    """Fix what a query means now.

    `now` is what `time:now` in the filter stands for (default: the clock). `newest` is the revision that counts as the
    entity's last one (default: the newest committed one); it may be one that is about to be committed. Raises QueryError
    for a filter that cannot be read, StoreUnavailable.
    """
    predicate = None
    if query.filter is not None:
        predicate = rql.resolve_times(rql.parse(query.filter), now if now is not None else datetime.now(UTC))
        if query.entity.type is not EntityType.THING:
            predicate = None  # only things are filtered
    durable = journal.latest(query.entity)
    first, last = _revisions(query, durable if newest is None else newest)
    instants = _instants(query)
    if instants is not None and last <= durable:
        first, last = _between(journal, query.entity, first, last, instants)
        instants = None
    if first > last:
        first, last, instants = 1, 0, None
    return HistoryRange(query.entity, first, last, predicate, instants)


def page(journal: Journal, range: HistoryRange, position: int, limit: int, max_bytes: int) -> HistoryPage:
    """At most `limit` events after `position`, about `max_bytes` of values; one event is never too large.

    With a limit of 0 nothing is returned, but `ended` may become known: as long as the position moves, more can be learnt.
    Raises StoreUnavailable.
    """
    if range.instants is not None:
        if not _is_durable(journal, range):
            return HistoryPage([], position, False)
        first, last = _between(journal, range.entity, range.first, range.last, range.instants)
        range = HistoryRange(range.entity, first, last, range.predicate, None)
    if range.predicate is None:
        return _all(journal, range, position, limit, max_bytes)
    return _matching(journal, range, range.predicate, position, limit, max_bytes)


def _all(journal: Journal, range: HistoryRange, position: int, limit: int, max_bytes: int) -> HistoryPage:
    start = max(position + 1, range.first)
    events = journal.events(range.entity, start, range.last, limit, max_bytes) if start <= range.last else []
    if events:
        position = events[-1].revision
        return HistoryPage(events, position, position == range.last)
    return HistoryPage(events, position, start > range.last or (limit > 0 and _is_durable(journal, range)))


def _matching(
    journal: Journal, range: HistoryRange, predicate: rql.Predicate, position: int, limit: int, max_bytes: int
) -> HistoryPage:
    """Reads one match further than asked for, so that the end is known with the last match."""
    found: list[Event] = []
    comparisons = rql.weight(predicate)
    left, size = min(SCAN_ROWS, max(1, SCAN_COMPARISONS // comparisons)), max(_SMALLEST_SCAN, limit + 1)
    max_bytes = min(max_bytes, max(1, SCAN_WORK // comparisons))
    while left > 0 and max_bytes > 0 and (start := max(position + 1, range.first)) <= range.last:
        events = journal.events(range.entity, start, range.last, min(size, left), max_bytes)
        if not events:
            return HistoryPage(found, position, _is_durable(journal, range))
        for event in events:
            if rql.evaluate(predicate, partial_thing(event)):
                if len(found) >= limit:
                    return HistoryPage(found, event.revision - 1, False)
                found.append(event)
            position = event.revision
            max_bytes -= event_size(event)
        left -= len(events)
        size *= 2
    return HistoryPage(found, position, max(position + 1, range.first) > range.last)


def _is_durable(journal: Journal, range: HistoryRange) -> bool:
    """Whether everything in the range has been committed: if so, what is not found has been trimmed."""
    return journal.latest(range.entity) >= range.last


def _revisions(query: HistoryQuery, newest: int) -> tuple[int, int]:
    """Absolute revisions, both inclusive, for an entity whose last one is `newest` (0: none)."""
    first, last = query.from_revision, newest
    if first < 0:
        first += newest + 1
    if query.to_revision is not None:
        last = min(query.to_revision, newest) if query.to_revision > 0 else newest + query.to_revision
    return max(first, 1), last


def _instants(query: HistoryQuery) -> Instants | None:
    if query.after is None and query.before is None:
        return None
    # `before` is rounded up: an event at the microsecond in which it lies may be earlier.
    return Instants(
        None if query.after is None else _timestamp(query.after // 1000),
        None if query.before is None else _timestamp(-(-query.before // 1000)),
    )


def _between(journal: Journal, entity: EntityId, first: int, last: int, instants: Instants) -> tuple[int, int]:
    """The revisions among `first` to `last`, all durable, that lie between the instants."""
    after, before = instants
    if after is not None and first <= last:
        first = _first(journal, entity, first, last, lambda timestamp: timestamp > after)
    if before is not None and first <= last:
        last = _first(journal, entity, first, last, lambda timestamp: timestamp >= before) - 1
    return first, last


def _timestamp(microseconds: int) -> str:
    """An instant as events write it, or a text beyond all of them."""
    try:
        instant = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return _BEFORE_ALL if microseconds < 0 else _AFTER_ALL
    return f"{instant.isoformat(timespec='microseconds')[:-6]}Z"


def _first(journal: Journal, entity: EntityId, first: int, last: int, passes: Callable[[str], bool]) -> int:
    """The first revision from which on timestamps pass; last + 1 if none does. Some twenty look-ups in a long history.

    All of them are durable: where none is found, they have been trimmed, and what is not there passes.
    """
    low, high = first, last + 1
    while low < high:
        middle = (low + high) // 2
        events = journal.events(entity, middle, last, 1, 1)
        if not events or passes(events[0].timestamp):
            high = middle
        else:
            low = events[0].revision + 1
    return low
