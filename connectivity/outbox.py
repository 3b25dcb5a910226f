"""The messages of one connection on their way to the broker, in order: waiting, in flight, confirmed.

The outbox outlives links. What a dead link had not confirmed goes out again first, in the same order, byte for byte the
same, when the next link is there; so a cut leaves no gap and no other order. Its size needs no bound of its own: deliveries
are bounded by the link's window, and a subscription posts its next page only when the last one has been taken.

A broker may answer a message by hanging up: MQTT 3.1.1 has no other way to refuse one. So what a link left unconfirmed goes
out one by one on the next, and a message that was alone on `MOST_BARREN` links, one after the other, is given up as
refused. Otherwise it would stop all behind it for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from connectivity.brokers.base import Link, Outgoing
from connectivity.errors import ConnectivityError, PublishFailed

MOST_BARREN = 5
"""Links that may die upon the same message."""

Ended = Callable[[ConnectivityError | None], None]
"""Called once when all messages of a posting have ended, with the first failure or None."""


class Posting:
    """Messages that were posted together. `error` is the first refusal among those that have ended.

    Setting `withdrawn` keeps those back that the link has not taken yet.
    """

    __slots__ = ("_ended", "_over", "_taken", "error", "unconfirmed", "untaken", "withdrawn")

    def __init__(self, count: int, ended: Ended | None) -> None:
        self.untaken = self.unconfirmed = count
        self.error: ConnectivityError | None = None
        self.withdrawn = False
        self._ended = ended
        self._taken: asyncio.Future[None] | None = None
        self._over: asyncio.Future[None] | None = None

    async def taken(self) -> None:
        """Wait until the link has taken every message into its window."""
        if self.untaken > 0:
            if self._taken is None:
                self._taken = asyncio.get_running_loop().create_future()
            await self._taken

    async def over(self) -> None:
        """Wait until every message has ended, one way or the other."""
        if self.unconfirmed > 0:
            if self._over is None:
                self._over = asyncio.get_running_loop().create_future()
            await self._over

    def take(self) -> None:
        self.untaken -= 1
        if self.untaken == 0 and self._taken is not None and not self._taken.done():
            self._taken.set_result(None)

    def confirm(self, error: ConnectivityError | None) -> None:
        self.error = self.error or error
        self.unconfirmed -= 1
        if self.unconfirmed > 0:
            return
        if self._ended is not None:
            self._ended(self.error)
        if self._over is not None and not self._over.done():
            self._over.set_result(None)


class Outbox:
    """What one connection has to publish."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Outgoing | None, Posting]] = deque()
        self._in_flight: dict[int, tuple[Outgoing, Posting]] = {}
        self._number = 0
        self._link: Link | None = None
        self._flushing = False
        self._suspects = 0
        """How many messages at the front have been in flight when a link died; they go out one by one."""
        self._barren = 0
        """How many links in a row have died since a message was confirmed last."""
        self._empty: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Outbox {len(self._waiting)} waiting, {len(self._in_flight)} in flight, link {self._link!r}>"

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_flight)

    def post(self, messages: Sequence[Outgoing], ended: Ended | None = None) -> Posting:
        """Queue messages behind those that are there. Without messages `ended` is called at once."""
        posting = Posting(len(messages), ended)
        if not messages:
            if ended is not None:
                ended(None)
            return posting
        self._waiting.extend([(message, posting) for message in messages])
        self._flush()
        return posting

    def behind(self, ended: Ended) -> None:
        """Call `ended` when the link has taken all that waits now: what is done for it, is done at the link's pace."""
        if self._waiting:
            self._waiting.append((None, Posting(1, ended)))
        else:
            ended(None)

    def attach(self, link: Link) -> None:
        """A link is there: what waits goes out through it."""
        self._link = link
        self._flush()

    def detach(self) -> None:
        """The link is gone: what it had not confirmed waits again, in front."""
        self._link = None
        if self._in_flight:
            self._suspects = max(self._suspects, len(self._in_flight))
            self._barren += 1
            if self._barren > MOST_BARREN:
                self._give_up()
        self._waiting.extendleft(reversed(self._in_flight.values()))
        for _, posting in self._in_flight.values():
            posting.untaken += 1
        self._in_flight.clear()

    async def drained(self) -> None:
        """Wait until every message has ended."""
        if len(self):
            if self._empty is None or self._empty.done():
                self._empty = asyncio.get_running_loop().create_future()
            await self._empty

    def _flush(self) -> None:
        link = self._link
        # A link may confirm within `publish`; the outer call goes on sending then.
        if link is None or self._flushing:
            return
        self._flushing = True
        try:
            while self._waiting and len(self._in_flight) < (1 if self._suspects else link.window):
                message, posting = self._waiting.popleft()
                posting.take()
                if message is None or posting.withdrawn:
                    posting.confirm(None)
                    continue
                self._number += 1
                self._in_flight[self._number] = message, posting
                link.publish(message, partial(self._done, link, self._number))
        finally:
            self._flushing = False

    def _give_up(self) -> None:
        """The oldest message was alone on each of the last links."""
        self._suspects, self._barren = max(0, self._suspects - 1), 0
        _, posting = self._in_flight.pop(next(iter(self._in_flight)))
        posting.confirm(PublishFailed(f"the broker ended {MOST_BARREN} links upon this message"))

    def _done(self, link: Link, number: int, error: ConnectivityError | None) -> None:
        if link is not self._link or (entry := self._in_flight.pop(number, None)) is None:
            return
        self._suspects, self._barren = max(0, self._suspects - 1), 0
        entry[1].confirm(error)
        self._flush()
        if self._empty is not None and not len(self):
            # Who waited may have given up.
            if not self._empty.done():
                self._empty.set_result(None)
            self._empty = None
