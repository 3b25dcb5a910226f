"""A lane of messages on their way to the broker, in order: waiting, in flight, confirmed.

A lane outlives links. What a dead link had not confirmed goes out again first, in the same order, byte for byte the same,
over the next link that the lane gets; so a cut leaves no gap and no other order. Its size needs no bound of its own:
deliveries are bounded by the link's window, and a subscription posts its next page only when the last one has been taken.

A broker may answer a message by hanging up: MQTT 3.1.1 has no other way to refuse one. So what a link left unconfirmed goes
out one by one on the next, and a message that was alone on `MOST_BARREN` links, one after the other, is given up as
refused. Otherwise it would stop all behind it for ever. A link that fell silent says nothing about what was on it.

Several lanes may share a link, and then its window (`Carrier`). A lane that is to go over to another living link first
waits until nothing of it is in flight, so that nothing is overtaken.

Messages that are still being made hold their place: what the same party posts behind them waits with them, what others post
goes by.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from time import monotonic

from connectivity.brokers.base import Link, Outgoing
from connectivity.errors import ConnectivityError, GivenUp, PublishFailed

MOST_BARREN = 5
"""Links that may die upon the same message."""

LARGE = 4096
"""Bytes from which on its size is thought to be why a broker hangs up upon a message."""

_TIMED_OUT = 408

Ended = Callable[[ConnectivityError | None], None]
"""Called once when all messages of a posting have ended, with the first failure or None."""


class Posting:
    """Messages that were posted together. `error` is the first refusal among those that have ended.

    Setting `withdrawn` keeps those back that the link has not taken yet; the `deadline`, in monotonic seconds, does so by
    itself, and is told as a failure.
    """

    __slots__ = ("_ended", "_over", "_taken", "deadline", "error", "unconfirmed", "untaken", "withdrawn")

    def __init__(self, count: int, ended: Ended | None, deadline: float | None = None) -> None:
        self.untaken = self.unconfirmed = count
        self.error: ConnectivityError | None = None
        self.withdrawn = False
        self.deadline = deadline
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
        if error is not None and self.error is None:
            self.error = error
        self.unconfirmed -= 1
        if self.unconfirmed > 0:
            return
        if self._ended is not None:
            self._ended(self.error)
        if self._over is not None and not self._over.done():
            self._over.set_result(None)


class _Place:
    """A posting whose messages are not known yet, or which waits behind such. A message that is None is a mere mark."""

    __slots__ = ("messages", "posting")

    def __init__(self, posting: Posting, messages: Sequence[Outgoing | None] | None = None) -> None:
        self.posting = posting
        self.messages = messages


class Carrier:
    """A living link, as the lanes on it share it."""

    __slots__ = ("_is_flushing", "in_flight", "is_behind", "lanes", "link")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.lanes: list[Lane] = []
        self.in_flight = 0
        self.is_behind = False
        """Whether something waits for a confirm before it can be sent."""
        self._is_flushing = False

    def flush(self) -> None:
        """Send what may be sent. The lane that is served first is another one each time."""
        # A link may confirm within `publish`; the outer call goes on sending then.
        if self._is_flushing:
            return
        self._is_flushing = True
        try:
            is_sending = True
            while is_sending:
                is_sending = False
                for lane in list(self.lanes):
                    is_sending = lane.send(self) or is_sending
        finally:
            self._is_flushing = False
        self.is_behind = any(lane.is_waiting() for lane in self.lanes)
        if len(self.lanes) > 1:
            self.lanes.append(self.lanes.pop(0))


class Lane:
    """Messages that keep their order."""

    __slots__ = ("_barren", "_carrier", "_empty", "_held", "_in_flight", "_number", "_suspects", "_waiting", "_wanted")

    def __init__(self) -> None:
        self._waiting: deque[tuple[Outgoing | None, Posting]] = deque()
        self._held: dict[Hashable, deque[_Place]] = {}
        """Party → what it has posted, from the first place on whose messages are not known."""
        self._in_flight: dict[int, tuple[Outgoing, Posting]] = {}
        self._number = 0
        self._carrier: Carrier | None = None
        self._wanted: Carrier | None = None
        """Where the lane is to be; it goes there when nothing is in flight."""
        self._suspects = 0
        """How many messages at the front have been in flight when a link died; they go out one by one."""
        self._barren = 0
        """How many links in a row have died since a message was confirmed last."""
        self._empty: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        link = self._carrier.link if self._carrier is not None else None
        return f"<Lane {len(self._waiting)} waiting, {len(self._in_flight)} in flight, link {link!r}>"

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_flight) + sum(map(len, self._held.values()))

    def is_waiting(self, party: Hashable = None) -> bool:
        """Whether there is something that no link has taken, be it only known to this party."""
        return bool(self._waiting) or party in self._held

    def is_making(self, party: Hashable) -> bool:
        """Whether there is something of this party that is not known yet."""
        return party in self._held

    @property
    def is_suspect(self) -> bool:
        """Whether links seem to die of what this lane sends."""
        return self._barren > 1

    def post(self, messages: Sequence[Outgoing], posting: Posting, party: Hashable = None) -> None:
        """Queue messages behind those that are there."""
        if self._held and party in self._held:
            self._held[party].append(_Place(posting, messages))
            return
        self._waiting.extend([(message, posting) for message in messages])
        if self._carrier is not None:
            self._carrier.flush()

    def hold(self, posting: Posting, party: Hashable) -> None:
        """Queue a posting of one message that is not known yet. `fill` follows."""
        self._held.setdefault(party, deque()).append(_Place(posting))

    def fill(self, messages: Sequence[Outgoing], posting: Posting, party: Hashable) -> None:
        """The messages of a posting that was held, however many they are."""
        places = self._held[party]
        # Without messages the place alone goes its way.
        next(place for place in places if place.posting is posting).messages = messages or (None,)
        posting.untaken = posting.unconfirmed = len(messages) or 1
        while places and (known := places[0].messages) is not None:
            place = places.popleft()
            self._waiting.extend([(message, place.posting) for message in known])
        if not places:
            del self._held[party]
        if self._carrier is not None:
            self._carrier.flush()

    def mark(self, posting: Posting, party: Hashable = None) -> None:
        """Queue no message, but a place behind those that are there: it ends when it is reached."""
        if party in self._held:
            self._held[party].append(_Place(posting, (None,)))
        else:
            self._waiting.append((None, posting))

    def use(self, carrier: Carrier | None) -> None:
        """Go on over this link, as soon as what is in flight on another living one is confirmed."""
        self._wanted = carrier
        if carrier is self._carrier:
            if carrier is not None:
                carrier.flush()
        elif not self._in_flight:
            self._go_over()

    def lose(self, *, was_silent: bool = False) -> None:
        """The link is gone: what it had not confirmed waits again, in front.

        `was_silent`: not the broker has ended it, so that none of its messages can have been the reason.
        """
        self._carrier = self._wanted = None
        if self._in_flight and not was_silent:
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

    def send(self, carrier: Carrier) -> bool:
        """Send as much as may be sent over this link now. Whether that was anything."""
        link, in_flight, number = carrier.link, self._in_flight, self._number
        while self._waiting and self._carrier is self._wanted is carrier and carrier.in_flight < link.window:
            if self._suspects and in_flight:
                break
            message, posting = self._waiting.popleft()
            posting.take()
            if message is None or posting.withdrawn:
                self._end(posting, None)
                continue
            if posting.deadline is not None and monotonic() > posting.deadline:
                self._end(posting, PublishFailed("no link has taken it in its time", status=_TIMED_OUT))
                continue
            self._number += 1
            in_flight[self._number] = message, posting
            carrier.in_flight += 1
            link.publish(message, partial(self._done, carrier, self._number))
        return self._number != number

    def _go_over(self) -> None:
        if self._carrier is not None:
            self._carrier.lanes.remove(self)
        self._carrier = self._wanted
        if self._carrier is not None:
            self._carrier.lanes.append(self)
            self._carrier.flush()

    def _give_up(self) -> None:
        """The oldest message was alone on each of the last links."""
        self._suspects, self._barren = max(0, self._suspects - 1), 0
        message, posting = self._in_flight.pop(next(iter(self._in_flight)))
        size = len(message.envelope.payload)
        # Why, it does not say. The usual reason is a bound on the size, and a small message is not tried in its place.
        status = 413 if size > LARGE else 503
        words = f"the broker ended {MOST_BARREN} links upon this message of {size} bytes"
        self._end(posting, GivenUp(words, status=status))

    def _done(self, carrier: Carrier, number: int, error: ConnectivityError | None) -> None:
        if carrier is not self._carrier or (entry := self._in_flight.pop(number, None)) is None:
            return
        carrier.in_flight -= 1
        self._barren = 0
        if self._suspects:
            self._suspects -= 1
        self._end(entry[1], error)
        if self._wanted is not carrier and not self._in_flight:
            self._go_over()
        if carrier.is_behind:
            carrier.flush()

    def _end(self, posting: Posting, error: ConnectivityError | None) -> None:
        """One message of a posting has ended, which may have been the lane's last one."""
        posting.confirm(error)
        if self._empty is not None and not len(self):
            # Who waited may have given up.
            if not self._empty.done():
                self._empty.set_result(None)
            self._empty = None
