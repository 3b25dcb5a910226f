"""Live feeds: the events of entities from now on, or from a revision on, for any number of followers.

A follower gets each durable event once and in order. Recent events are shared from a bounded memory; a follower that lags
behind it reads pages of the history instead, from the journal or the lake. So a feed may begin in the past and continue with
live events, without gap or repetition.

A follower whose protocol lets it ask for missed events may skip: if it lags too far behind for too long (`LagTolerance`), it
continues with the newest event (Streamr protocol, skipped broadcasts).

Nothing is kept of entities without followers, and a commit costs nothing while there are none.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import NamedTuple

import structlog

from connectivity.monitoring.prometheus import GaugeReading
from connectivity.store.store import Store
from connectivity.subscriptions.feed import Feed, Page, PageEnd
from mappings.ids import EntityId
from mappings.model.signals import Event
from spark_store.errors import StoreUnavailable
from spark_store.history.history import HistoryRange
from spark_store.records import PublishedEvent, event_size

log = structlog.get_logger(__name__)

MOST = 10_000
MOST_BYTES = 32 << 20
"""The most events kept in memory, and their bytes, for all entities together."""

WAKE_BATCH = 20
"""How many followers are woken before other tasks run; they take about 1 ms."""

AGAIN_SECONDS = 1.0
"""When to retry after the store could not be read."""


class LagTolerance(NamedTuple):
    """How far a follower may lag, in events or bytes, for more than so many seconds."""

    events: int = 1000
    bytes: int = 1 << 20
    seconds: float = 2.0

    def is_over(self, events: int, bytes: int) -> bool:
        """Return whether this lag is too far. One event is not: a skip would lead to it."""
        return events > 1 and (events > self.events or bytes > self.bytes)


class LiveFeeds:
    """All live feeds of the service."""

    def __init__(
        self,
        store: Store,
        most: int = MOST,
        most_bytes: int = MOST_BYTES,
        leeway: LagTolerance | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`clock` returns monotonic seconds."""
        self.leeway = leeway or LagTolerance()
        self.clock = clock
        self.skipped = 0
        """The number of events that followers skipped."""
        self._store = store
        self._most, self._most_bytes = most, most_bytes
        self._lines: dict[EntityId, _EntityBuffer] = {}
        self._buffered: deque[tuple[_EntityBuffer, Event]] = deque()
        """Every event in a buffer, oldest first."""
        self._bytes = 0
        self._seq = 0
        """The sequence number of the last event that was read."""
        self._discarded = 0
        self._woken: deque[LiveFeed] = deque()
        self._is_waking = False
        self._retry: asyncio.TimerHandle | None = None

    def followers(self, entity: EntityId) -> int:
        """Return the number of followers of an entity."""
        buffer = self._lines.get(entity)
        return 0 if buffer is None else len(buffer.feeds)

    def figures(self) -> Iterator[GaugeReading]:
        """Return the gauges for a scrape."""
        return live_metrics(len(self._lines), sum(len(it.feeds) for it in self._lines.values()), self.skipped)

    def feed(self, entity: EntityId, after: int | None = None, *, may_skip: bool = False) -> LiveFeed:
        """Return a feed of the events after revision `after`, or after the newest decided one.

        `may_skip`: see `LiveQuery`. Raises StoreUnavailable.
        """
        if after is None:
            after = self._store.newest_revision(entity)
        buffer = self._lines.get(entity)
        if buffer is None:
            if not self._lines:
                self._store.tail.follow(self._read_new)
                self._seq, self._discarded = self._store.tail.newest, self._store.tail.forgotten
            buffer = self._lines[entity] = _EntityBuffer()
        try:
            buffer.newest = max(buffer.newest, self._store.newest_durable(entity))
        except StoreUnavailable:
            self._end(entity, buffer)
            raise
        feed = LiveFeed(self, entity, buffer, after, may_skip=may_skip)
        buffer.feeds[feed] = None
        return feed

    def leave(self, feed: LiveFeed) -> None:
        """Remove a closed feed, unless it has left before."""
        buffer = self._lines.get(feed.entity)
        if buffer is None or feed not in buffer.feeds:
            return
        del buffer.feeds[feed]
        if not buffer.feeds:
            self._end(feed.entity, buffer)

    async def read(self, entity: EntityId, buffer: _EntityBuffer, after: int, limit: int, max_bytes: int) -> Page:
        """Return a page of events after a revision, from memory or from the history.

        Raises StoreUnavailable, HistoryUnavailable.
        """
        self.refresh()
        if (newest := buffer.newest) <= after:
            return Page((), after, PageEnd.WAIT)
        if events := buffer.events_after(after, limit, max_bytes):
            revision = events[-1].revision
            return Page(events, revision, PageEnd.MORE if revision < newest else PageEnd.WAIT)
        range = HistoryRange(entity, after + 1, newest, None, None)
        page = await self._store.page(range, after, limit, max_bytes)
        # Events that were erased or have expired are skipped.
        position = newest if page.ended else page.position
        return Page(page.events, max(after, position), PageEnd.MORE)

    def refresh(self) -> None:
        """Clear the memory if the store has discarded events, by erasure or because they were not stored.

        Feeds that began after a decided event that was not stored begin at the newest durable one.
        """
        if self._discarded == (forgotten := self._store.tail.forgotten):
            return
        self._discarded = forgotten
        self._clear()
        for buffer in self._lines.values():
            buffer.events.clear()
            for feed in buffer.feeds:
                feed.rewind_to(buffer.newest)

    def wake_later(self, feed: LiveFeed) -> None:
        """Wake the waiter of a feed in its turn."""
        self._woken.append(feed)
        if not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake_some)

    def _wake_some(self) -> None:
        """Wake some followers, and continue in a later step of the event loop: there may be thousands."""
        self._is_waking = False
        for _ in range(min(WAKE_BATCH, len(self._woken))):
            self._woken.popleft().call_waiter()
        if self._woken and not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake_some)

    def _read_new(self) -> None:
        """Read new events into memory."""
        self.refresh()
        if not self._lines:
            return
        tail = self._store.tail
        changed: dict[_EntityBuffer, None] = {}
        try:
            while self._seq < (newest := tail.newest):
                events = tail.after(self._seq, MOST)
                # No more events up to the newest number: they were trimmed or erased.
                self._seq = events[-1].seq if events else newest
                self._add(events, changed)
        except StoreUnavailable as error:
            log.warning("live feeds wait for the store", error=str(error))
            if self._retry is None:
                self._retry = asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._retry_read)
        now = self.clock()
        for buffer in changed:
            for feed in buffer.feeds:
                feed.notify(now)

    def _retry_read(self) -> None:
        self._retry = None
        self._read_new()

    def _add(self, events: Sequence[PublishedEvent], changed: dict[_EntityBuffer, None]) -> None:
        buffers = self._lines
        for _, event, _ in events:
            if (buffer := buffers.get(event.entity)) is not None:
                buffer.put(event)
                changed[buffer] = None
                self._buffered.append((buffer, event))
                self._bytes += event_size(event)
        if len(self._buffered) > self._most or self._bytes > self._most_bytes:
            self._trim()

    def _trim(self) -> None:
        """Remove more events than necessary, so that this happens rarely."""
        removed: Counter[_EntityBuffer] = Counter()
        while self._buffered and (len(self._buffered) > self._most * 7 // 8 or self._bytes > self._most_bytes * 7 // 8):
            buffer, event = self._buffered.popleft()
            self._bytes -= event_size(event)
            # A buffer that was cleared does not have the event any more.
            if (first := removed[buffer]) < len(buffer.events) and buffer.events[first] is event:
                removed[buffer] += 1
        for buffer, number in removed.items():
            del buffer.events[:number]

    def _end(self, entity: EntityId, buffer: _EntityBuffer) -> None:
        """Remove the buffer of an entity without followers."""
        if buffer.feeds:
            return
        del self._lines[entity]
        buffer.events.clear()
        if not self._lines:
            self._store.tail.leave(self._read_new)
            self._clear()
            if self._retry is not None:
                self._retry.cancel()
                self._retry = None

    def _clear(self) -> None:
        self._buffered.clear()
        self._bytes = 0


class _EntityBuffer:
    """Recent events of one followed entity, without gap, and its newest durable revision."""

    __slots__ = ("events", "feeds", "newest")

    def __init__(self) -> None:
        self.newest = 0
        self.events: list[Event] = []
        self.feeds: dict[LiveFeed, None] = {}

    def put(self, event: Event) -> None:
        if self.events and event.revision != self.events[-1].revision + 1:
            self.events.clear()
        self.events.append(event)
        self.newest = max(self.newest, event.revision)

    def events_after(self, revision: int, limit: int, max_bytes: int) -> Sequence[Event]:
        """Return the events after a revision, up to the limits; empty if they are not in memory."""
        remaining = self.events
        if not remaining or not 0 <= (start := revision + 1 - remaining[0].revision) < len(remaining):
            return ()
        events = remaining[start : start + limit]
        for index, event in enumerate(events):
            if (max_bytes := max_bytes - event_size(event)) <= 0:
                return events[: index + 1]
        return events

    def size_after(self, revision: int) -> int:
        """Return the bytes of the events after a revision, as far as they are in memory."""
        start = max(0, revision + 1 - self.events[0].revision) if self.events else 0
        return sum(event_size(event) for event in self.events[start:])


class LiveFeed(Feed):
    """One follower of one entity: a feed without end. Positions are revisions, 0 at its beginning."""

    __slots__ = (
        "_after",
        "_buffer",
        "_feeds",
        "_is_notified",
        "_lagging_since",
        "_may_skip",
        "_ready",
        "_supplied",
        "entity",
    )

    def __init__(
        self, feeds: LiveFeeds, entity: EntityId, buffer: _EntityBuffer, after: int, *, may_skip: bool
    ) -> None:
        """Use `LiveFeeds.feed` to create feeds."""
        self.entity = entity
        self._feeds = feeds
        self._buffer = buffer
        self._after = after
        self._supplied = 0
        """The position after the last page."""
        self._ready: Callable[[], None] | None = None
        self._may_skip = may_skip
        self._lagging_since: float | None = None
        """When the lag became too far."""
        self._is_notified = False

    @property
    def position(self) -> int:
        """The revision up to which events were supplied or skipped."""
        return max(self._after, self._supplied)

    def rewind_to(self, revision: int) -> None:
        """Supply all events after this revision that were not supplied."""
        self._after = min(self._after, revision)

    async def page(self, position: int, limit: int, max_bytes: int) -> Page:
        """Return a page of events after a position. Raises StoreUnavailable, HistoryUnavailable."""
        if self._may_skip:
            self._skip_if_lagging(max(position, self._after))
        page = await self._feeds.read(self.entity, self._buffer, max(position, self._after), limit, max_bytes)
        if page.then is PageEnd.WAIT and not page.elements:
            # Keep the position: the beginning may still move back.
            return Page((), position, PageEnd.WAIT)
        self._supplied = page.position
        if self._lagging_since is not None:
            self._is_lagging(page.position, self._lagging_since)
        return page

    def wake(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        if self._buffer.newest > self.position:
            self.notify(self._feeds.clock())

    def notify(self, now: float) -> None:
        """Note new events, and wake the waiter."""
        if self._lagging_since is None and self._buffer.newest - self.position > self._feeds.leeway.events:
            self._lagging_since = now
        if self._ready is not None and not self._is_notified:
            self._is_notified = True
            self._feeds.wake_later(self)

    def _skip_if_lagging(self, position: int) -> None:
        newest, now = self._buffer.newest, self._feeds.clock()
        if self._is_lagging(position, now) and now - (self._lagging_since or now) >= self._feeds.leeway.seconds:
            self._lagging_since = None
            self._after = newest - 1
            self._feeds.skipped += newest - 1 - position

    def _is_lagging(self, position: int, now: float) -> bool:
        """Return whether this position lags too far, and note since when."""
        lag, leeway = self._buffer.newest - position, self._feeds.leeway
        # The size is only needed if the number alone does not decide.
        size = self._buffer.size_after(position) if 1 < lag <= leeway.events else 0
        is_lagging = leeway.is_over(lag, size)
        self._lagging_since = (self._lagging_since or now) if is_lagging else None
        return is_lagging

    def call_waiter(self) -> None:
        """Call the waiting callback."""
        self._is_notified = False
        ready, self._ready = self._ready, None
        if ready is not None:
            ready()

    def close(self) -> None:
        self._ready = None
        self._feeds.leave(self)


def live_metrics(entities: int, followers: int, skipped: int) -> Iterator[GaugeReading]:
    """Yield the gauges of live feeds."""
    yield GaugeReading("connectivity_live_entities", "Entities with live subscriptions.", {(): entities})
    yield GaugeReading("connectivity_live_followers", "Live subscriptions.", {(): followers})
    yield GaugeReading(
        "connectivity_live_left_out",
        "Events not sent to live subscriptions because these were too slow.",
        {(): skipped},
    )
