"""Divides the event loop's time between users, so that no delivery waits long for those of others.

A user is a peer's token, certificate or address at a listener, or a connection to a broker. In a turn some deliveries of a
user are decoded and decided. Users compete while several of them have had turns within `RECENT` seconds. Then there is one
turn in each pass of the event loop, in which users alternate; a user rests after a turn for as long as the turn took; and a
user with changes that are not durable yet waits while the store has `BACKLOG` to write. A user alone is not slowed down,
and its turns are not noted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from itertools import count
from time import perf_counter
from weakref import WeakKeyDictionary

from connectivity.store.commit import Progress

RECENT = 1.0
"""How many seconds after its last turn a user competes with others."""

TURN_SECONDS = 0.001
"""How long a turn should take; the next one gets as many deliveries as fit."""

MOST_DELIVERIES = 16
"""The most deliveries of a turn."""

LONGEST_REST = 0.1

BACKLOG = 64
"""The weight of undurable changes above which users with some of them wait, while users compete."""


class UserTurns:
    """The turns of one user."""

    __slots__ = ("__weakref__", "begun", "ended", "fitting", "most", "number", "rested", "submitted")

    def __init__(self) -> None:
        self.most = self.fitting = MOST_DELIVERIES
        """How many deliveries its turn gets, and how many fit in `TURN_SECONDS`."""
        self.begun = self.ended = self.rested = 0.0
        """When its last turn began, and ended, and until when it rests."""
        self.number = 0
        """The number of its last turn among those of all users."""
        self.submitted = 0
        """The number of the last changes that were submitted in its turns."""


class SourceTurns:
    """The turns of all users."""

    def __init__(self, progress: Progress, now: Callable[[], float] = perf_counter) -> None:
        self._progress = progress
        self._now = now
        self._users: WeakKeyDictionary[Hashable, UserTurns] = WeakKeyDictionary()
        self._recent: OrderedDict[UserTurns, None] = OrderedDict()
        """The users of the last turns, the latest last."""
        self._waiting: dict[UserTurns, deque[asyncio.Future[None]]] = {}
        self._line: list[tuple[int, int, UserTurns]] = []
        """A heap of the waiting users, by the number of their last turn; tickets keep two from being compared."""
        self._tickets = count()
        self._count = 0
        """How many turns have ended."""
        self.alone: UserTurns | None = None
        """The user that had all turns of the last time: it need neither begin nor end one."""
        self._holder: UserTurns | None = None
        """The user with the turn of this pass of the event loop."""

    def user(self, key: Hashable) -> UserTurns:
        """Return the turns of a user, which are forgotten with the key."""
        if (found := self._users.get(key)) is None:
            found = self._users[key] = UserTurns()
        return found

    def begin(self, user: UserTurns) -> bool:
        """Begin a turn now, if the user need not `wait` for it."""
        now = self._now()
        if self._competes(user, now):
            if self._holder is not None or self._waiting or user.rested > now or self._must_wait(user):
                return False
            self._holder = user
            user.most = user.fitting
        else:
            user.most = MOST_DELIVERIES
            self.alone, self._progress.is_shared = user, False
        user.begun = now
        return True

    async def wait(self, user: UserTurns) -> None:
        """Wait for a turn, and begin it."""
        while self._competes(user, now := self._now()):
            if user.rested > now:
                await asyncio.sleep(user.rested - now)
            elif self._must_wait(user):
                await self._progress.wait()
            else:
                break
        if not self.begin(user):
            await self._wait_in_line(user)
            self._holder = user
            user.most = user.fitting
            user.begun = self._now()

    def end(self, user: UserTurns, count: int) -> None:
        """End a turn in which so many deliveries were processed."""
        user.ended = now = self._now()
        seconds = now - user.begun
        user.rested = now + min(seconds, LONGEST_REST)
        self._count += 1
        user.number, user.submitted = self._count, self._progress.submits
        if seconds > TURN_SECONDS:
            user.fitting = max(1, int(count * TURN_SECONDS / seconds))
        elif count >= user.fitting:
            user.fitting = min(MOST_DELIVERIES, 2 * count)
        self._recent[user] = None
        self._recent.move_to_end(user)
        self._progress.is_shared = len(self._recent) > 1
        if self._holder is user:
            asyncio.get_running_loop().call_soon(self._pass_on)

    def _competes(self, user: UserTurns, now: float) -> bool:
        """Whether another user has had a turn recently, or waits for one."""
        recent = self._recent
        if self.alone is not None and self.alone is not user:
            # Its last turn may have been just now, and all changes may be its own.
            self.alone.ended, self.alone.submitted = now, self._progress.submits
            recent[self.alone] = None
            recent.move_to_end(self.alone)
            self.alone = None
        while recent and next(iter(recent)).ended + RECENT < now:
            recent.popitem(last=False)
        return self._holder is not None or len(recent) > (user in recent)

    def _must_wait(self, user: UserTurns) -> bool:
        count, weight = self._progress.backlog()
        return weight >= BACKLOG and user.submitted > self._progress.submits - count

    async def _wait_in_line(self, user: UserTurns) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if (waiting := self._waiting.get(user)) is None:
            waiting = self._waiting[user] = deque()
            heappush(self._line, (user.number, next(self._tickets), user))
        waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                # The turn was given and is not used.
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give the turn to the user without one for the longest time."""
        self._holder = None
        while self._line:
            number, ticket, user = heappop(self._line)
            if number != user.number:
                # It has had a turn since, such as by another source.
                heappush(self._line, (user.number, ticket, user))
                continue
            waiting = self._waiting[user]
            turn = waiting.popleft()
            if waiting:
                heappush(self._line, (number, ticket, user))
            else:
                del self._waiting[user]
            if not turn.done():
                self._holder = user
                turn.set_result(None)
                return
