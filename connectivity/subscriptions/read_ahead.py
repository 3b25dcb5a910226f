"""Limits how many bytes all subscriptions of a receiver and of a connection may read ahead.

A receiver takes what subscriptions send: a peer of a listener, a session of reactive-streams-io, or the broker of a
connection for all of its clients. A page is charged from before it is read until the receiver has confirmed all of its
elements, even if its subscription ends before. Pages beyond the budget wait, and users take turns. A user without pages may
always read a small one within `RESERVE`, so that users whose pages fill the budget do not stop the others. Above the budget
of the connection every receiver reads small pages, one at a time; receivers do not wait for each other.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from connectivity.monitoring.prometheus import GaugeReading
from mappings.model.signals import Event
from mappings.reactive_streams_io.limits import OBJECT
from mappings.reactive_streams_io.publisher import PackedElements

MOST = 8 << 20
"""The budget of one receiver in bytes; one larger page may exceed it."""

RESERVE = 8 << 20
"""The bytes beyond it for small pages of users that have no page."""

MOST_TOGETHER = 256 << 20
"""The bytes read ahead for all receivers of a connection, above which each reads small pages."""

LITTLE = 64 << 10
"""The size of a small page."""


class ConnectionBudget:
    """The bytes read ahead for all receivers of a connection, and their budgets."""

    __slots__ = ("_receivers", "used_bytes")

    def __init__(self) -> None:
        self.used_bytes = 0
        self._receivers: WeakValueDictionary[str | None, ReadAheadBudget] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<ConnectionBudget, {self.used_bytes} bytes>"

    def receiver(self, name: str | None) -> ReadAheadBudget:
        """Return the budget of a peer, or of the broker for None.

        It is forgotten with the last reference to it.
        """
        if (budget := self._receivers.get(name)) is None:
            budget = self._receivers[name] = ReadAheadBudget(self)
        return budget


class ReadAheadBudget:
    """The bytes that are read ahead for one receiver."""

    __slots__ = ("__weakref__", "_is_left", "connection_budget", "pages", "turns", "used_bytes")

    def __init__(self, connection_budget: ConnectionBudget) -> None:
        self.used_bytes = 0
        self.connection_budget = connection_budget
        self.pages: dict[Hashable, int] = {}
        """The number of charged pages of each user."""
        self._is_left = False
        self.turns: OrderedDict[Hashable, OrderedDict[asyncio.Future[PageCharge], int]] = OrderedDict()
        """The waiting pages with their sizes, by user; the first user is the next."""

    def __repr__(self) -> str:
        waiting = sum(map(len, self.turns.values()))
        return f"<ReadAheadBudget, {self.used_bytes} bytes, {len(self.pages)} users, {waiting} waiting>"

    def leave_alone(self) -> None:
        """Read small pages until a client is connected."""
        self._is_left = True

    def meet(self) -> None:
        self._is_left = False
        self.admit()

    def reserve(self, user: Hashable, wanted: int) -> PageCharge | None:
        """Charge a page of up to `wanted` bytes; None if it has to wait."""
        if self.turns or not (size := self._size_for(user, wanted)):
            return None
        return PageCharge(self, user, size)

    async def wait(self, user: Hashable, wanted: int) -> PageCharge:
        """Charge a page in its turn, after `reserve` has returned None."""
        granted: asyncio.Future[PageCharge] = asyncio.get_running_loop().create_future()
        self.turns.setdefault(user, OrderedDict())[granted] = wanted
        self.admit()
        try:
            return await granted
        except asyncio.CancelledError:
            if not granted.cancelled():
                granted.result().end_part()
            elif (waiting := self.turns.get(user)) is not None:
                waiting.pop(granted, None)
                if not waiting:
                    del self.turns[user]
            raise

    def _size_for(self, user: Hashable, wanted: int) -> int:
        """Return the size of a page that may be read now; 0 for none."""
        is_narrow = self._is_left or self.connection_budget.used_bytes >= MOST_TOGETHER
        if not is_narrow and (not self.used_bytes or self.used_bytes + wanted <= MOST):
            return wanted
        little = min(wanted, LITTLE)
        if not self.used_bytes or (user not in self.pages and self.used_bytes + little <= MOST + RESERVE):
            return little
        return 0

    def admit(self) -> None:
        """Grant waiting pages, one of each user in turn."""
        refused = 0
        while refused < len(self.turns):
            user, waiting = self.turns.popitem(last=False)
            granted, wanted = next(iter(waiting.items()))
            if granted.done():
                # Its task was cancelled, and will know in its next step.
                del waiting[granted]
            elif size := self._size_for(user, wanted):
                del waiting[granted]
                granted.set_result(PageCharge(self, user, size))
                refused = 0
            else:
                refused += 1
            if waiting:
                self.turns[user] = waiting


class PageCharge:
    """The bytes of one page, from before it is read until all of its parts have ended.

    Reading it is a part, too.
    """

    __slots__ = ("_budget", "_user", "parts", "size")

    def __init__(self, budget: ReadAheadBudget, user: Hashable, size: int) -> None:
        self._budget = budget
        self._user = user
        self.parts = 1
        """The parts that have not ended; a new part is added here."""
        self.size = size
        """The most bytes to read, then those that were read."""
        budget.used_bytes += size
        budget.connection_budget.used_bytes += size
        budget.pages[user] = budget.pages.get(user, 0) + 1

    def hold(self, size: int) -> None:
        """Charge the bytes that were read in place of those that might have been."""
        budget, more = self._budget, size - self.size
        self.size = size
        budget.used_bytes += more
        budget.connection_budget.used_bytes += more
        if budget.turns:
            budget.admit()

    def end_part(self) -> None:
        """Count a part as confirmed or no longer needed; after the last one the page is free."""
        self.parts -= 1
        if self.parts:
            return
        budget, user = self._budget, self._user
        budget.used_bytes -= self.size
        budget.connection_budget.used_bytes -= self.size
        if left := budget.pages[user] - 1:
            budget.pages[user] = left
        else:
            del budget.pages[user]
        if budget.turns:
            budget.admit()


def size_of(elements: Sequence[Any], headers: int = 0) -> int:
    """Return the size of waiting elements, each with so many bytes of headers. Packed ones are one object."""
    if isinstance(elements, PackedElements):
        return len(elements.raw) + OBJECT
    if elements and isinstance(elements[0], Event):
        # As `event_size`, without a call for each.
        values = sum([len(event.value) for event in elements if event.value is not None])
        return values + sum([len(event.headers) for event in elements]) + (OBJECT + headers) * len(elements)
    return sum(map(len, elements)) + (OBJECT + headers) * len(elements)


def read_ahead_metrics(bytes_by_connection: Mapping[str, int]) -> Iterator[GaugeReading]:
    """Yield the gauge of the bytes that are read ahead."""
    yield GaugeReading(
        "connectivity_read_ahead_bytes",
        "Bytes read for subscriptions and not confirmed by the broker or peer.",
        {(connection_id,): size for connection_id, size in bytes_by_connection.items()},
        ("connection",),
    )
