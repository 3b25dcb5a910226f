"""Subscriptions with fake feeds, one subscriber, and a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from connectivity.authorization.quotas import Quotas
from connectivity.config.quotas import QuotaRule
from connectivity.subscriptions.feed import Feed
from connectivity.subscriptions.limits import SubscriptionLimits
from connectivity.subscriptions.manager import Subscriber, SubscriptionManager
from mappings.errors import Fault
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Cancel, Created, Failed, HistoryQuery, Request, Subscribe, SubscriptionKind
from tests.support.clock import Clock
from tests.support.in_process.fakes import KeepingReply, ListFeed

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
READER = ("acme:reader",)
NOT_FOUND = Fault(404, "things:thing.notfound", "The Thing could not be found.")


class SubscriptionHarness:
    """A subscription manager with fake feeds, one subscriber, and a clock."""

    def __init__(
        self,
        feed: Callable[[], Feed | Fault] = lambda: ListFeed(range(1, 102)),
        quotas: Sequence[QuotaRule] = (),
        **bounds: Any,
    ) -> None:
        self.clock = Clock()
        self.reply = KeepingReply()
        self.peer = Subscriber(self.reply, READER, "c-1")
        self.opened: list[Feed | Fault] = []
        self._feed = feed
        self.streams = SubscriptionManager(self._open, SubscriptionLimits(**bounds), self.clock.now, Quotas(quotas))

    def _open(self, signal: Subscribe, subjects: tuple[str, ...]) -> Feed | Fault:
        self.opened.append(self._feed())
        return self.opened[-1]

    def subscribe(self, correlation: str = "sub", **options: Any) -> str:
        headers = {"correlation-id": correlation}
        self.streams.subscribe(Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), headers, **options), self.peer)
        created = self.reply.signals[-1]
        assert isinstance(created, Created)
        return created.key

    async def request(self, key: str, demand: int, correlation: str = "req", peer: Subscriber | None = None) -> None:
        headers = {"correlation-id": correlation}
        self.streams.request(Request(SubscriptionKind.HISTORY, key, demand, headers, LAMP), peer or self.peer)
        await self.settle()

    def cancel(self, key: str, peer: Subscriber | None = None) -> None:
        self.streams.cancel(Cancel(SubscriptionKind.HISTORY, key, {"correlation-id": "can"}, LAMP), peer or self.peer)

    async def settle(self) -> None:
        """Let all tasks run until they wait for the test."""
        for _ in range(50):
            await asyncio.sleep(0)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock by one second at a time, and sweep each second."""
        for _ in range(int(seconds)):
            self.clock.advance(1)
            self.streams.sweep()

    def jump(self, seconds: float) -> None:
        """Advance the clock at once and sweep once, as if the event loop was blocked."""
        self.clock.advance(seconds)
        self.streams.sweep()

    def failures(self) -> list[Any]:
        return [signal.reason for signal in self.reply.signals if isinstance(signal, Failed)]
