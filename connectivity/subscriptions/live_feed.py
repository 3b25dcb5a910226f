"""Live feeds: what is stored of one entity from now on, or from a revision on, for any number of followers.

A follower is handed durable events alone, each once and in order. Those who keep up are handed the same objects, out of a
memory that is bounded for all entities together; whoever lags behind it reads pages of the history, in the journal or the
lake. So a feed that begins in the past goes over into the present by itself, without a gap and without a repeat at the seam.

Who takes less than there is falls behind. A follower that can ask for what it misses, because its protocol tells it by the
next event, may leap: when it has been too far behind for too long (`LagTolerance`) it goes on with the newest event, so that
what is live stays live. A burst is no reason to leave anything out, nor are many of them, as long as it catches up in
between (Streamr protocol, skipped broadcasts).

While nobody follows an entity nothing of it is kept, and while nobody follows any, a commit costs nothing. The first who
follows an entity, and the last who leaves it, are told to whoever wants to know (Streamr protocol, server events).
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
"""What is kept in memory at most, for all entities together."""

WOKEN_AT_ONCE = 20
"""So many followers are woken before others have their turn: they take about a millisecond."""

AGAIN_SECONDS = 1.0
"""After so long a store that could not be read is asked again."""


class LagTolerance(NamedTuple):
    """How far a follower may be behind, in events or bytes, for longer than so many seconds."""

    events: int = 1000
    bytes: int = 1 << 20
    seconds: float = 2.0

    def is_over(self, events: int, bytes: int) -> bool:
        """Whether that is too far behind. One event is not: it is what a follower would leap to."""
        return events > 1 and (events > self.events or bytes > self.bytes)


class FollowerStats(NamedTuple):
    """How many entities are followed, by how many followers, and how many events these have left out by leaping."""

    entities: int
    followers: int
    left_out: int


def _nobody(entity: EntityId, followers: int) -> None:
    """Nobody wants to know."""


class LiveFeeds:
    """Everybody who follows something in this service."""

    def __init__(
        self,
        store: Store,
        most: int = MOST,
        most_bytes: int = MOST_BYTES,
        leeway: LagTolerance | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`clock` gives monotonic seconds."""
        self.on_created: Callable[[EntityId, int], object] = _nobody
        """Told when an entity has its first follower, with how many it has then."""
        self.on_deleted: Callable[[EntityId, int], object] = _nobody
        """Told when an entity has lost its last follower, with how many are left: none."""
        self.leeway = leeway or LagTolerance()
        self.clock = clock
        self._left_out = 0
        self._store = store
        self._most, self._most_bytes = most, most_bytes
        self._lines: dict[EntityId, _EntityBuffer] = {}
        self._kept: deque[tuple[_EntityBuffer, Event]] = deque()
        """Every event that was put into a line, oldest first."""
        self._bytes = 0
        self._seq = 0
        """The number of the last event that was looked at."""
        self._forgotten = 0
        self._woken: deque[LiveFeed] = deque()
        self._is_waking = False
        self._again: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Following {len(self._lines)} entities, {len(self._kept)} events kept>"

    def followers(self, entity: EntityId) -> int:
        """How many follow an entity."""
        line = self._lines.get(entity)
        return 0 if line is None else len(line.feeds)

    def figures(self) -> Iterator[GaugeReading]:
        """For a scrape."""
        return live_figures(
            FollowerStats(len(self._lines), sum(len(it.feeds) for it in self._lines.values()), self._left_out)
        )

    def leave_out(self, events: int) -> None:
        """Somebody has leapt over so many."""
        self._left_out += events

    def feed(self, entity: EntityId, after: int | None = None, *, may_leap: bool = False) -> LiveFeed:
        """What follows revision `after` of an entity; None: what follows the newest one that is decided at this moment.

        `may_leap` as in `FollowQuery`. Raises StoreUnavailable.
        """
        if after is None:
            newest = self._store.snapshot(entity)
            after = 0 if newest is None else newest.revision
        line = self._lines.get(entity)
        if line is None:
            if not self._lines:
                self._store.tail.follow(self._look)
                self._seq, self._forgotten = self._store.tail.newest, self._store.tail.forgotten
            line = self._lines[entity] = _EntityBuffer()
        try:
            line.newest = max(line.newest, self._store.newest_durable(entity))
        except StoreUnavailable:
            self._end(entity, line)
            raise
        feed = LiveFeed(self, entity, line, after, may_leap=may_leap)
        line.feeds[feed] = None
        if len(line.feeds) == 1:
            self.on_created(entity, 1)
        return feed

    def leave(self, feed: LiveFeed) -> None:
        """A feed is closed."""
        line = self._lines.get(feed.entity)
        if line is None or feed not in line.feeds:
            return
        del line.feeds[feed]
        if not line.feeds:
            self._end(feed.entity, line)
            self.on_deleted(feed.entity, 0)

    async def read(self, entity: EntityId, line: _EntityBuffer, after: int, limit: int, max_bytes: int) -> Page:
        """What of a line follows a revision, out of memory or out of the history.

        Raises StoreUnavailable, HistoryUnavailable.
        """
        self.refresh()
        if (newest := line.newest) <= after:
            return Page((), after, PageEnd.WAIT)
        if events := line.behind(after, limit, max_bytes):
            revision = events[-1].revision
            return Page(events, revision, PageEnd.MORE if revision < newest else PageEnd.WAIT)
        range = HistoryRange(entity, after + 1, newest, None, None)
        found = await self._store.page(range, after, limit, max_bytes)
        # What is not there any more, because it was erased or its time was over, nobody gets.
        position = newest if found.ended else found.position
        return Page(found.events, max(after, position), PageEnd.MORE)

    def refresh(self) -> None:
        """Where the journal knows better now than what is in memory, keep nothing of that.

        Something may have been decided, but not stored: then whoever began behind it begins before it.
        """
        if self._forgotten == (forgotten := self._store.tail.forgotten):
            return
        self._forgotten = forgotten
        self._clear()
        for line in self._lines.values():
            line.events.clear()
            for feed in line.feeds:
                feed.begin_by(line.newest)

    def wake_later(self, feed: LiveFeed) -> None:
        """Have a feed tell whoever waits for it, in its turn."""
        self._woken.append(feed)
        if not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake_some)

    def _wake_some(self) -> None:
        """There may be a thousand followers: each batch of them lets the loop breathe."""
        self._is_waking = False
        for _ in range(min(WOKEN_AT_ONCE, len(self._woken))):
            self._woken.popleft().tell()
        if self._woken and not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake_some)

    def _look(self) -> None:
        """There may be new events."""
        self.refresh()
        if not self._lines:
            return
        tail = self._store.tail
        changed: dict[_EntityBuffer, None] = {}
        try:
            while self._seq < (newest := tail.newest):
                events = tail.after(self._seq, MOST)
                # Behind the last number that is found, up to the newest, everything was trimmed or erased.
                self._seq = events[-1].seq if events else newest
                self._take(events, changed)
        except StoreUnavailable as error:
            log.warning("live feeds wait for the store", error=str(error))
            if self._again is None:
                self._again = asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._look_again)
        now = self.clock()
        for line in changed:
            for feed in line.feeds:
                feed.stir(now)

    def _look_again(self) -> None:
        self._again = None
        self._look()

    def _take(self, events: Sequence[PublishedEvent], changed: dict[_EntityBuffer, None]) -> None:
        lines = self._lines
        for _, event, _ in events:
            if (line := lines.get(event.entity)) is not None:
                line.put(event)
                changed[line] = None
                self._kept.append((line, event))
                self._bytes += event_size(event)
        if len(self._kept) > self._most or self._bytes > self._most_bytes:
            self._shorten()

    def _shorten(self) -> None:
        """Let go of more than has to go, so that this is seldom done."""
        gone: Counter[_EntityBuffer] = Counter()
        while self._kept and (len(self._kept) > self._most * 7 // 8 or self._bytes > self._most_bytes * 7 // 8):
            line, event = self._kept.popleft()
            self._bytes -= event_size(event)
            # A line that began anew has let go of it already.
            if (first := gone[line]) < len(line.events) and line.events[first] is event:
                gone[line] += 1
        for line, number in gone.items():
            del line.events[:number]

    def _end(self, entity: EntityId, line: _EntityBuffer) -> None:
        """Nobody follows an entity."""
        if line.feeds:
            return
        del self._lines[entity]
        line.events.clear()
        if not self._lines:
            self._store.tail.leave(self._look)
            self._clear()
            if self._again is not None:
                self._again.cancel()
                self._again = None

    def _clear(self) -> None:
        self._kept.clear()
        self._bytes = 0


class _EntityBuffer:
    """What is in memory of one entity that is followed: events without a gap. `newest` is its newest durable revision."""

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

    def behind(self, revision: int, limit: int, max_bytes: int) -> Sequence[Event]:
        """What follows a revision, as far as limit and bytes go; nothing where it is not in memory."""
        kept = self.events
        if not kept or not 0 <= (start := revision + 1 - kept[0].revision) < len(kept):
            return ()
        events = kept[start : start + limit]
        for index, event in enumerate(events):
            if (max_bytes := max_bytes - event_size(event)) <= 0:
                return events[: index + 1]
        return events

    def size_behind(self, revision: int) -> int:
        """The bytes that follow a revision, as far as they are in memory."""
        start = max(0, revision + 1 - self.events[0].revision) if self.events else 0
        return sum(event_size(event) for event in self.events[start:])


class LiveFeed(Feed):
    """One follower of one entity: a feed without an end. Positions are revisions, 0 where it begins."""

    __slots__ = (
        "_after",
        "_far_since",
        "_following",
        "_given",
        "_is_closed",
        "_is_stirred",
        "_line",
        "_may_leap",
        "_ready",
        "entity",
    )

    def __init__(
        self, following: LiveFeeds, entity: EntityId, line: _EntityBuffer, after: int, *, may_leap: bool
    ) -> None:
        """Feeds are made by `LiveFeeds.feed`."""
        self.entity = entity
        self._following = following
        self._line = line
        self._after = after
        self._given = 0
        """The last position that a page has led to."""
        self._ready: Callable[[], None] | None = None
        self._may_leap = may_leap
        self._far_since: float | None = None
        """Since when this one has been too far behind."""
        self._is_stirred = False
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<LiveFeed of {self.entity} behind {self.position}>"

    @property
    def newest(self) -> int:
        """The newest durable revision of the entity; 0 for none."""
        return self._line.newest

    @property
    def position(self) -> int:
        """Up to which revision this feed has given, or left out, what there is."""
        return max(self._after, self._given)

    def leap(self, revision: int) -> None:
        """Go on behind this revision: what lies before it, and was not given yet, is left out."""
        self._after = max(self._after, revision)

    def begin_by(self, revision: int) -> None:
        """Nothing behind this revision may be left out that was not given."""
        self._after = min(self._after, revision)

    async def page(self, position: int, limit: int, max_bytes: int) -> Page:
        """Raises StoreUnavailable, HistoryUnavailable."""
        if self._may_leap:
            self._leap_if_too_far(max(position, self._after))
        page = await self._following.read(self.entity, self._line, max(position, self._after), limit, max_bytes)
        if page.then is PageEnd.WAIT and not page.elements:
            # Where it begins may still turn out to be further back.
            return Page((), position, PageEnd.WAIT)
        if page.elements and page.elements[0].revision <= self._after:
            # It leapt while the page was read.
            kept = [event for event in page.elements if event.revision > self._after]
            page = Page(kept, max(page.position, self._after), page.then)
        self._given = page.position
        if self._far_since is not None:
            self._is_far_at(page.position, self._far_since)
        return page

    def wake(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        if self._line.newest > self.position:
            self.stir(self._following.clock())

    def stir(self, now: float) -> None:
        """There is more than there was."""
        if self._far_since is None and self._line.newest - self.position > self._following.leeway.events:
            self._far_since = now
        if self._ready is not None and not self._is_stirred:
            self._is_stirred = True
            self._following.wake_later(self)

    def _leap_if_too_far(self, position: int) -> None:
        newest, now = self._line.newest, self._following.clock()
        if self._is_far_at(position, now) and now - (self._far_since or now) >= self._following.leeway.seconds:
            self._far_since = None
            self.leap(newest - 1)
            self._following.leave_out(newest - 1 - position)

    def _is_far_at(self, position: int, now: float) -> bool:
        """Whether this position is too far behind; since when that is so, is noted."""
        behind, leeway = self._line.newest - position, self._following.leeway
        # Where the number alone says it, or nothing is behind, nothing has to be added up.
        size = self._line.size_behind(position) if 1 < behind <= leeway.events else 0
        is_far = leeway.is_over(behind, size)
        self._far_since = (self._far_since or now) if is_far else None
        return is_far

    def tell(self) -> None:
        """Call who waits."""
        self._is_stirred = False
        ready, self._ready = self._ready, None
        if ready is not None:
            ready()

    def close(self) -> None:
        self._ready = None
        if not self._is_closed:
            self._is_closed = True
            self._following.leave(self)


def live_figures(audience: FollowerStats) -> Iterator[GaugeReading]:
    """What a scrape shows of those who follow something live."""
    yield GaugeReading("connectivity_live_entities", "Entities that somebody follows live.", {(): audience.entities})
    yield GaugeReading("connectivity_live_followers", "Subscriptions to what is live.", {(): audience.followers})
    yield GaugeReading(
        "connectivity_live_left_out",
        "Events that followers were not sent since the start, because they did not keep up.",
        {(): audience.left_out},
    )
