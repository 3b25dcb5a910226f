"""A store, live subscribers, and the subscription manager between them; or feeds that a test reads."""

from __future__ import annotations

import asyncio

from connectivity.store.options import StoreOptions
from connectivity.store.store import Store
from connectivity.subscriptions.engine import UNBOUNDED
from connectivity.subscriptions.feed import Feed, PageEnd
from connectivity.subscriptions.limits import SubscriptionLimits
from connectivity.subscriptions.live_feed import LagTolerance, LiveFeed, LiveFeeds
from connectivity.subscriptions.manager import Subscriber, SubscriptionManager
from mappings.errors import Fault
from mappings.ids import EntityId
from mappings.model.signals import Cancel, Created, Event, LiveQuery, Request, Subscribe, SubscriptionKind
from tests.support.clock import Clock
from tests.support.in_process.fakes import KeepingReply
from tests.support.in_process.service import Disk, until
from tests.support.journal_entries import LAMP, history
from tests.support.wait import PATIENCE

MUCH = 1 << 20


class Reads(Disk):
    """A disk that counts how often it reads histories."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = 0

    def events(self, entity: EntityId, first: int, last: int, limit: int, max_bytes: int) -> list[Event]:
        self.pages += 1
        return super().events(entity, first, last, limit, max_bytes)

    def latest(self, entity: EntityId) -> int:
        self._check_readable()
        return super().latest(entity)


class FollowedStore:
    """A store with live feeds and a subscription manager."""

    def __init__(self) -> None:
        self.disk = Reads()
        self.store = Store(self.disk, StoreOptions(probe_min=0.001, probe_max=0.01))
        self.following = LiveFeeds(self.store)
        self.clock = Clock()
        self.streams = SubscriptionManager(
            self._open, SubscriptionLimits(idle_timeout=60, after_life=1), self.clock.now
        )

    def _open(self, subscribe: Subscribe, subjects: tuple[str, ...]) -> Feed | Fault:
        assert isinstance(subscribe.query, LiveQuery)
        query = subscribe.query
        return self.following.feed(query.entity, query.after, may_skip=query.may_skip)

    def follow_with(self, leeway: LagTolerance) -> None:
        """Make live subscriptions skip ahead when they lag more than this."""
        self.following = LiveFeeds(self.store, leeway=leeway, clock=self.clock.now)

    async def store_up_to(self, last: int, entity: EntityId = LAMP) -> None:
        newest = self.store.snapshot(entity)
        first = 1 if newest is None else newest.revision + 1
        await self.store.commits.submit(history(entity, last, first))

    async def close(self) -> None:
        self.disk.full = self.disk.unreadable = False
        self.disk.release()
        await self.store.close()

    async def reported(self, entity: EntityId, revision: int) -> None:
        """Wait until live feeds know this revision."""
        await until(lambda: self.following._lines[entity].newest >= revision)

    def subscriber(
        self, entity: EntityId = LAMP, after: int | None = None, demand: int = UNBOUNDED, *, may_skip: bool = False
    ) -> LiveSubscriber:
        return LiveSubscriber(self, LiveQuery(entity, after, may_skip), demand)


class LiveSubscriber:
    """A session that is subscribed to one entity."""

    def __init__(self, harness: FollowedStore, query: LiveQuery, demand: int) -> None:
        self.harness = harness
        self.reply = KeepingReply(terminal_needs_request=False)
        self.peer = Subscriber(self.reply, ("acme:reader",), object(), has_session=True)
        harness.streams.subscribe(Subscribe(SubscriptionKind.LIVE, query, {}, "own key", demand), self.peer)
        assert isinstance(self.reply.signals[0], Created)

    def request(self, demand: int) -> None:
        self.harness.streams.request(Request(SubscriptionKind.LIVE, "own key", demand, {}), self.peer)

    def cancel(self) -> None:
        self.harness.streams.cancel(Cancel(SubscriptionKind.LIVE, "own key", {}), self.peer)

    @property
    def revisions(self) -> list[int]:
        return [element.revision for element in self.reply.elements]


async def drawn(feed: LiveFeed, position: int = 0, limit: int = 500) -> tuple[list[int], int]:
    """Return the revisions that a feed has now, and the position after them."""
    found: list[int] = []
    while True:
        page = await feed.page(position, limit, MUCH)
        found += [event.revision for event in page.elements]
        position = page.position
        if page.then is PageEnd.WAIT:
            return found, position


async def awaited(feed: LiveFeed) -> None:
    """Wait until a feed wakes its reader."""
    woken = asyncio.Event()
    feed.wake(woken.set)
    await asyncio.wait_for(woken.wait(), PATIENCE)
