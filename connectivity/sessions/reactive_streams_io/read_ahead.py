"""Limits how much all streams of a session may read ahead of the client.

See reactive-streams-io, brokers. A stream reads a page and waits until the transport has taken it. A client may have a
thousand streams, so their pages are counted together; a stream that exceeds the budget waits for its turn, first come, first
served. A stream may always read if nothing waits for the transport, so all proceed while the client reads. Without a client,
or when all sessions of a connection have read very much together, a session reads small pages. Sessions do not wait for each
other.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from connectivity.subscriptions.feed import Feed, FeedPosition, Page, PageEnd
from mappings.reactive_streams_io.limits import OBJECT
from mappings.reactive_streams_io.publisher import PackedElements

MOST = 8 << 20
"""The budget of one client in bytes; one larger element may exceed it."""

PAGE = 1 << 20
"""The bytes charged for a page while it is being read."""

MOST_TOGETHER = 256 << 20
"""The bytes waiting for all clients of a connection, above which each reads small pages."""

LITTLE = 64 << 10
"""The size of a small page."""


class ConnectionBudget:
    """The bytes that wait for all clients of a connection."""

    __slots__ = ("used_bytes",)

    def __init__(self) -> None:
        self.used_bytes = 0

    def __repr__(self) -> str:
        return f"<ConnectionBudget, {self.used_bytes} bytes>"

    @property
    def is_crowded(self) -> bool:
        return self.used_bytes >= MOST_TOGETHER


class ReadAheadBudget:
    """The bytes that wait for one client."""

    __slots__ = ("_connection_budget", "_held", "_is_left", "_reading", "_turns")

    def __init__(self, connection_budget: ConnectionBudget) -> None:
        self._connection_budget = connection_budget
        self._held = 0
        self._reading = 0
        self._is_left = False
        self._turns: OrderedDict[BudgetedFeed, asyncio.Future[bool]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<ReadAheadBudget, {self._held} bytes held, {self._reading} reading, {len(self._turns)} waiting>"

    def leave_alone(self) -> None:
        """Read small pages until a client is connected."""
        self._is_left = True

    def meet(self) -> None:
        self._is_left = False
        self._admit()

    async def enter(self, feed: BudgetedFeed) -> bool:
        """Wait until it is this feed's turn to read. False where it was turned away meanwhile."""
        if not self._turns and self._has_room:
            self._reading += 1
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._turns[feed] = turn
        try:
            return await turn
        except asyncio.CancelledError:
            if self._turns.pop(feed, None) is None and turn.result():
                self.leave(0)
            raise

    def turn_away(self, feed: BudgetedFeed) -> None:
        """Remove a feed that waits to read."""
        if (turn := self._turns.pop(feed, None)) is not None and not turn.done():
            turn.set_result(False)

    def leave(self, size: int) -> None:
        """Count a page that was read until it is taken."""
        self._reading -= 1
        self._held += size
        self._connection_budget.used_bytes += size
        self._admit()

    def release(self, size: int) -> None:
        """Subtract bytes that the transport has taken, or that are no longer needed."""
        self._held -= size
        self._connection_budget.used_bytes -= size
        self._admit()

    def page_of(self, size: int) -> int:
        """Return the size of a page that could have that many bytes."""
        return min(size, LITTLE) if self._is_narrow else size

    @property
    def _is_narrow(self) -> bool:
        return self._is_left or self._connection_budget.is_crowded

    @property
    def _has_room(self) -> bool:
        if not self._held and not self._reading:
            return True
        return not self._is_narrow and self._held + PAGE * (self._reading + 1) <= MOST

    def _admit(self) -> None:
        while self._turns and self._has_room:
            _, turn = self._turns.popitem(last=False)
            if not turn.done():
                self._reading += 1
                turn.set_result(True)


class BudgetedFeed(Feed):
    """A feed with a budget. `release` says that the transport has taken a page."""

    __slots__ = ("_feed", "_gate", "_held", "_is_closed")

    def __init__(self, feed: Feed, budget: ReadAheadBudget) -> None:
        self._feed = feed
        self._gate = budget
        self._held = 0
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<BudgetedFeed {self._feed!r}, {self._held} bytes held>"

    async def page(self, position: FeedPosition, limit: int, max_bytes: int) -> Page:
        """Return the page of the underlying feed; an empty one if it was closed meanwhile."""
        budget = self._gate
        if not await budget.enter(self):
            return Page((), position, PageEnd.WAIT)
        held = 0
        try:
            found = await self._feed.page(position, limit, budget.page_of(max_bytes))
            if not self._is_closed:
                held = size_of(found.elements)
                self._held += held
        finally:
            budget.leave(held)
        return found

    def release(self) -> None:
        held, self._held = self._held, 0
        if held:
            self._gate.release(held)

    def wake(self, ready: Callable[[], None]) -> None:
        self._feed.wake(ready)

    def close(self) -> None:
        self._is_closed = True
        self._gate.turn_away(self)
        self._feed.close()


def size_of(elements: Sequence[Any]) -> int:
    """Return the size of waiting elements. Packed ones are one object."""
    if isinstance(elements, PackedElements):
        return len(elements.raw) + OBJECT
    return sum(map(len, elements)) + OBJECT * len(elements)
