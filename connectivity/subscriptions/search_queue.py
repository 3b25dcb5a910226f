"""A queue for searches in which users take turns, and each has a limited number of places.

A user stands for the clients with the same authorization subjects. However many searches one of them starts, the next slot
goes to the user who has waited longest for a turn. Quotas can bound the searches of a subject or in a namespace further. A
search does not use the quota of a namespace in which the user sees nothing, so strangers cannot use it up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping

from connectivity.authorization.quotas import Quantity, QuotaHolder, QuotaKey, Quotas, growth_by_one
from connectivity.monitoring.prometheus import GaugeReading
from connectivity.subscriptions.feed import FeedFailed
from mappings.errors import Fault
from spark_store.errors import StoreUnavailable

MAX_RUNNING = 16
"""The most searches of one user at once; each uses a thread for 0.25 s at a time."""

MAX_WAITING = 1000
"""The most searches of one user that wait for others of the user."""

User = tuple[str, ...]


class SearchQueue:
    """The slots that searches use: at most `slots` are used at once, `per_user` of them by one user."""

    def __init__(
        self,
        slots: int,
        per_user: int,
        max_waiting: int,
        quotas: Quotas | None = None,
        sees: Callable[[User, str], Awaitable[bool]] | None = None,
    ) -> None:
        """`max_waiting`: the most searches of one user that wait.

        `sees`: whether a user sees a thing in a namespace. Raises StoreUnavailable.
        """
        self._quotas = quotas or Quotas(())
        self._sees = sees
        self._free = slots
        self._per_user, self._max_waiting = per_user, max_waiting
        self.running: Counter[User] = Counter()
        self._waiting: OrderedDict[User, OrderedDict[asyncio.Future[None], None]] = OrderedDict()
        """By user, whose turn is next first."""
        self._lookups: Counter[User] = Counter()
        """How many searches wait until the namespaces are known whose quotas they use."""

    def __repr__(self) -> str:
        return f"<SearchQueue {self.running.total()} running, {self.waiting} waiting>"

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values())) + self._lookups.total()

    @contextlib.asynccontextmanager
    async def slot(self, user: User, namespaces: Collection[str] = ()) -> AsyncIterator[None]:
        """Wait for a slot, and use it for a search in some namespaces.

        Raises FeedFailed if a quota is exceeded, or too many searches of the user wait; StoreUnavailable.
        """
        growth: Mapping[QuotaKey, int] = {}
        if not self._quotas.is_empty:
            growth = growth_by_one(Quantity.SEARCHES, user, await self._counted(user, namespaces))
        if (exceeded := self._quotas.take(growth)) is not None:
            raise FeedFailed(_limit_fault(f"A quota of searches is used up: {exceeded}."))
        try:
            await self.enter(user)
            try:
                yield
            finally:
                self.leave(user)
        finally:
            self._quotas.give_back(growth)

    async def _counted(self, user: User, namespaces: Collection[str]) -> list[str]:
        """Return the namespaces whose quota a search uses. Raises FeedFailed, StoreUnavailable."""
        holder, quantity = QuotaHolder.NAMESPACE, Quantity.SEARCHES
        bounded = [name for name in namespaces if self._quotas.allowed((holder, name, quantity)) is not None]
        if self._sees is None or not bounded:
            return bounded
        self._check_waiting(user)
        self._lookups[user] += 1
        try:
            return [name for name in bounded if await self._sees(user, name)]
        finally:
            self._lookups[user] -= 1
            if not self._lookups[user]:
                del self._lookups[user]

    async def enter(self, user: User) -> None:
        """Wait for a slot, which `leave` gives back. Raises FeedFailed if too many searches of the user wait."""
        # Nothing of the user waits then: each slot that becomes free is granted at once.
        if self._has_slot(user):
            self._take(user)
            return
        self._check_waiting(user)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, OrderedDict())[turn] = None
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(user, turn)
            else:
                self.leave(user)
            raise

    def leave(self, user: User) -> None:
        self._free += 1
        self.running[user] -= 1
        if not self.running[user]:
            del self.running[user]
        self._grant()

    def close(self, reason: str) -> None:
        """Fail the searches that wait with StoreUnavailable."""
        waiting, self._waiting = self._waiting, OrderedDict()
        for turns in waiting.values():
            for turn in turns:
                if not turn.done():
                    turn.set_exception(StoreUnavailable(reason))

    def _has_slot(self, user: User) -> bool:
        return self._free > 0 and self.running[user] < self._per_user

    def _take(self, user: User) -> None:
        self._free -= 1
        self.running[user] += 1

    def _grant(self) -> None:
        """Give free slots to waiting searches, one of each user in turn."""
        passed = 0
        while self._free > 0 and passed < len(self._waiting):
            user, turns = self._waiting.popitem(last=False)
            if self.running[user] < self._per_user:
                turn, _ = turns.popitem(last=False)
                if not turn.done():
                    self._take(user)
                    turn.set_result(None)
                passed = 0
            else:
                passed += 1
            if turns:
                self._waiting[user] = turns

    def _forget(self, user: User, turn: asyncio.Future[None]) -> None:
        if (turns := self._waiting.get(user)) is not None:
            turns.pop(turn, None)
            if not turns:
                del self._waiting[user]

    def _check_waiting(self, user: User) -> None:
        """Raise FeedFailed if no further search of a user may wait."""
        waiting = len(self._waiting.get(user, ())) + self._lookups[user]
        if waiting >= self._max_waiting:
            message = (
                f"These subjects have {self.running[user]} running and {waiting} waiting searches, which is the limit."
            )
            raise FeedFailed(_limit_fault(message))


def _limit_fault(message: str) -> Fault:
    advice = "Wait for the results of earlier searches before you start others."
    return Fault(429, "thing-search:search.limit", message, advice)


def search_metrics(running: int, waiting: int) -> Iterator[GaugeReading]:
    """Yield the gauges of searches."""
    yield GaugeReading("connectivity_searches_running", "Searches that are filling a page.", {(): running})
    yield GaugeReading("connectivity_searches_waiting", "Searches that wait for their turn.", {(): waiting})
