"""The deliveries of a listener's peers that were not taken yet; users take turns."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable

from connectivity.transports.base import Delivery

_AT_ONCE = 16
"""The most deliveries of one user in a list."""


class PeerInbox:
    """The deliveries that have arrived for one source, by user; those of a user keep their order."""

    __slots__ = ("_by_user", "_is_over", "_loop", "_waiter")

    def __init__(self) -> None:
        self._by_user: OrderedDict[Hashable, deque[Delivery]] = OrderedDict()
        """By user, whose turn is next first."""
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._is_over = False

    def add(self, delivery: Delivery) -> None:
        if (waiting := self._by_user.get(user := delivery.user)) is None:
            self._by_user[user] = deque((delivery,))
            self._wake()
        else:
            waiting.append(delivery)

    async def lists(self) -> AsyncIterator[list[Delivery]]:
        """Yield deliveries of one user at a time. See `Link.consume`."""
        while not self._is_over:
            if not self._by_user:
                self._waiter = self._loop.create_future()
                await self._waiter
                continue
            user, waiting = self._by_user.popitem(last=False)
            ready = [waiting.popleft() for _ in range(min(len(waiting), _AT_ONCE))]
            if waiting:
                self._by_user[user] = waiting
            yield ready

    def end(self) -> None:
        """Stop yielding deliveries and discard those that are waiting."""
        self._is_over = True
        self._by_user.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
