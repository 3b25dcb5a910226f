"""The newest events in the order in which they were stored, for readers that need all of them.

Committed events are kept in memory, bounded by number and bytes, so a reader that keeps up reads nothing from the journal.
One that lags reads pages of the journal, each of which takes about a millisecond at most. Readers are woken after each
commit. Without readers nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from mappings.ids import EntityId
from spark_store.errors import StoreUnavailable
from spark_store.journal import published_events
from spark_store.journal.journal import Journal
from spark_store.records import Change, HistoryStart, PublishedEvent, published_size

log = structlog.get_logger(__name__)

MOST = 10_000
MOST_BYTES = 32 << 20
"""The most that is kept in memory."""

PAGE = 100
PAGE_BYTES = 256 << 10
"""The most that is read from the journal at once."""


class EventTail:
    """The end of one journal."""

    def __init__(self, journal: Journal, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._journal = journal
        self._most, self._most_bytes = most, most_bytes
        self._events: list[PublishedEvent] = []
        self._bytes = 0
        self._wakes: dict[Callable[[], object], None] = {}
        self.is_followed = False
        """Whether there are readers."""
        self.forgotten = 0
        """How many times `forget` was called. A reader that keeps events of its own compares it."""
        self.newest = 0
        """The number of the newest event that readers may have."""

    def follow(self, wake: Callable[[], object]) -> None:
        """Keep events from now on, and call `wake` when there are new ones. Raises StoreUnavailable."""
        if not self._wakes:
            self.newest = max(self.newest, self._journal.newest_seq())
        self._wakes[wake] = None
        self.is_followed = True

    def leave(self, wake: Callable[[], object]) -> None:
        """Remove a reader. Nothing is kept after the last one has left."""
        self._wakes.pop(wake, None)
        if not self._wakes:
            self.is_followed = False
            self._discard()

    def extend(self, last: int, changes: Sequence[Change]) -> None:
        """Add changes that have been committed in order; `last` is the number of their last event."""
        if not self._wakes:
            return
        new = [(event, change.cause) for change in changes for event in change.events]
        first = last - len(new) + 1
        if self._events and self._events[-1].seq != first - 1:
            self._discard()
        published = [PublishedEvent(seq, event, cause) for seq, (event, cause) in enumerate(new, first)]
        self._events += published
        self._bytes += sum(map(published_size, published))
        if len(self._events) > self._most or self._bytes > self._most_bytes:
            self._shorten()
        self.reach(last)

    def notify(self, last: int | None, changes: Sequence[Change]) -> None:
        """Add committed changes; `last` is None if the tail had no readers when they were written."""
        if last is not None:
            self.extend(last, changes)
            return
        try:
            self.reach(self._journal.newest_seq())
        except StoreUnavailable as error:
            log.warning("journal readers not notified before the next commit", error=str(error))

    def reach(self, newest: int) -> None:
        """Announce that the journal has events up to this number."""
        self.newest = max(self.newest, newest)
        for wake in list(self._wakes):
            wake()

    def forget(self) -> None:
        """Discard what is kept in memory, because the journal has changed."""
        self.forgotten += 1
        self._discard()

    def after(self, seq: int, limit: int = PAGE) -> Sequence[PublishedEvent]:
        """Return the next events with numbers above `seq`, in ascending order; empty at the end.

        Numbers are missing where events were trimmed or erased. Raises StoreUnavailable.
        """
        if seq >= self.newest:
            return ()
        kept = self._events
        if kept and kept[0].seq <= seq + 1 <= kept[-1].seq:
            start = seq + 1 - kept[0].seq
            return kept[start : start + limit]
        found = self._journal.read(lambda it: published_events.events_after(it, seq, min(limit, PAGE), PAGE_BYTES))
        return [each for each in found if each.seq <= self.newest]

    def next_event(self, entity: EntityId, revision: int) -> PublishedEvent | None:
        """Return the first durable event of an entity from this revision on, if any. Raises StoreUnavailable."""
        return self._journal.read(lambda it: published_events.next_event(it, entity, revision))

    def beginning(self, entity: EntityId) -> HistoryStart:
        """Return where the events of an entity begin. Raises StoreUnavailable."""
        return self._journal.beginning(entity)

    def one(self, seq: int) -> PublishedEvent | None:
        """Return the first event with a number of at least `seq`. Raises StoreUnavailable."""
        return next(iter(self.after(seq - 1, 1)), None)

    def last_trimmed(self) -> int:
        """Return the number of the last event that was trimmed; 0 for none. Raises StoreUnavailable."""
        return self._journal.last_trimmed()

    def _discard(self) -> None:
        self._events.clear()
        self._bytes = 0

    def _shorten(self) -> None:
        """Discard more than necessary, so that this is done rarely."""
        gone = max(0, len(self._events) - self._most * 7 // 8)
        self._bytes -= sum(map(published_size, self._events[:gone]))
        while self._bytes > self._most_bytes * 7 // 8 and gone < len(self._events):
            self._bytes -= published_size(self._events[gone])
            gone += 1
        del self._events[:gone]
