"""The outbox of one connection: messages to publish, over its links.

There is a queue for each client of the connection. Messages about the same subject use the same queue, so the responses
about an entity, and the elements of a subscription, keep their order. A queue sends over its own client's link; while that
client has none, over another one. A queue whose messages seem to break links waits for its own client.

Within a queue, the messages of one flow (a subscription or a session) keep their order, and so do those without a flow.
Elements of subscriptions take turns, and go after other messages.

Messages that scripts still produce keep their place: later messages of the same sender (a source or a target) wait, others
do not. At a listener each address has a queue of its own (`PerAddressOutbox`), so that slow peers do not delay others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Sequence
from functools import partial
from time import monotonic
from typing import TypeAlias

import msgspec
import structlog

from connectivity.errors import ConnectivityError, PublishFailed, RetriesExhausted
from connectivity.transports.base import Done, Link, OutboundMessage

log = structlog.get_logger(__name__)

_NOT_PROCESSED = "outcome of messages not processed"

MAX_FAILED_LINKS = 5
"""Links that may die upon the same message."""

FIRST_IN_A_ROW = 7
"""After so many other messages an element is sent: responses and events never stop elements."""

REFILL = 64
"""A full window is refilled when 1/64 of it is confirmed: to send several messages at once is faster.

If fewer are confirmed, it is refilled at the end of the turn of the event loop.
"""

FULL_BYTES = 16 << 20
"""Bytes of one client's waiting answers from which on the sources take no further deliveries."""

LARGE = 4096
"""Bytes from which on its size is thought to be why a broker hangs up upon a message."""

_TIMED_OUT = 408


class PendingPublish(msgspec.Struct, eq=False):
    """Messages that were posted together, `count` of them.

    `error` is the first error among those that have ended. Setting `withdrawn` drops messages that no link has taken yet;
    after the `deadline`, in monotonic seconds, they fail. Messages of the same `flow` keep their order. `is_element`: they
    are elements of a subscription. `taken` counts the messages that are in a link's window or beyond it, `confirmed` those
    that have ended.
    """

    count: int
    ended: Done | None
    deadline: float | None = None
    flow: Hashable = None
    is_element: bool = False
    error: ConnectivityError | None = None
    withdrawn: bool = False
    taken: int = 0
    confirmed: int = 0
    _accepted: asyncio.Future[None] | None = None

    async def wait_until_accepted(self) -> None:
        """Wait until the link has taken every message into its window."""
        if self.taken < self.count:
            if self._accepted is None:
                self._accepted = asyncio.get_running_loop().create_future()
            await self._accepted

    def take(self) -> None:
        self.taken += 1
        if self.taken >= self.count and self._accepted is not None and not self._accepted.done():
            self._accepted.set_result(None)

    def confirm(self, error: ConnectivityError | None) -> None:
        if error is not None and self.error is None:
            self.error = error
        self.confirmed += 1
        if self.confirmed < self.count or (ended := self.ended) is None:
            return
        # The callback may know this posting: together they would wait for the garbage collector.
        self.ended = None
        try:
            ended(self.error)
        except Exception:
            # The link reads on, and the messages behind these are sent all the same.
            log.exception(_NOT_PROCESSED)


class _QueueEntry:
    """A posting whose messages are not known yet, or that waits behind one. A message of None is a mark."""

    __slots__ = ("messages", "posting")

    def __init__(self, posting: PendingPublish, messages: Sequence[OutboundMessage | None] | None = None) -> None:
        self.posting = posting
        self.messages = messages


class LinkWindow:
    """A live link that several queues share."""

    __slots__ = ("in_flight", "is_behind", "is_flush_due", "is_sending", "link", "queues")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.queues: list[OrderedQueue] = []
        self.in_flight = 0
        self.is_behind = False
        """Whether messages wait to be sent: for a confirmation, or for the end of the present call."""
        self.is_sending = False
        """Whether a queue sends just now. A link may confirm within `publish`; the outer call continues then."""
        self.is_flush_due = False

    def flush_later(self) -> None:
        """Send what may be sent at the end of this turn of the event loop."""
        self.is_flush_due = True
        asyncio.get_running_loop().call_soon(self._flush_due)

    def _flush_due(self) -> None:
        self.is_flush_due = False
        if self.is_behind:
            self.flush()

    def flush(self) -> None:
        """Send what may be sent, beginning with another queue each time."""
        if self.is_sending:
            self.is_behind = True
            return
        self.is_sending = True
        try:
            while True:
                queues, has_sent = self.queues.copy(), False
                for queue in queues:
                    has_sent = queue.send(self) or has_sent
                # A single queue has sent all that it may.
                if not has_sent or (len(queues) == 1 and queues == self.queues):
                    break
        finally:
            self.is_sending = False
        self.is_behind = False
        for queue in self.queues:
            self.is_behind = self.is_behind or queue.is_waiting
        if len(self.queues) > 1:
            self.queues.append(self.queues.pop(0))


_Entry: TypeAlias = tuple[OutboundMessage | None, PendingPublish]


class OrderedQueue:
    """Messages in flows, each of which keeps its order."""

    __slots__ = (
        "_elements",
        "_empty",
        "_failed_links",
        "_first",
        "_first_in_a_row",
        "_flows",
        "_held",
        "_in_flight",
        "_link_window",
        "_next_link_window",
        "_number",
        "_returned",
        "_room",
        "_suspects",
        "answer_bytes",
    )

    def __init__(self) -> None:
        self._returned: deque[_Entry] = deque()
        """The messages that were in flight when a link was lost, in the order in which they were sent."""
        self._flows: dict[Hashable, deque[_Entry]] = {}
        """The other waiting messages; each flow that has any is in one of the next two."""
        self._first: deque[deque[_Entry]] = deque()
        """The flows that go first: that of None, and those whose first message was no element."""
        self._elements: deque[deque[_Entry]] = deque()
        self._first_in_a_row = 0
        self.answer_bytes = 0
        """The size of the waiting messages that are no elements."""
        self._held: dict[Hashable, deque[_QueueEntry]] = {}
        """Sender → its postings from the first unknown one on."""
        self._in_flight: dict[int, tuple[OutboundMessage, PendingPublish]] = {}
        self._number = 0
        self._link_window: LinkWindow | None = None
        self._next_link_window: LinkWindow | None = None
        """The next link of the queue, once nothing is in flight."""
        self._suspects = 0
        """How many of the first messages were in flight when a link broke; they are sent one by one."""
        self._failed_links = 0
        """How many links in a row have broken without a confirmation."""
        self._empty: asyncio.Future[None] | None = None
        self._room: asyncio.Event | None = None

    def __repr__(self) -> str:
        link = self._link_window.link if self._link_window is not None else None
        return f"<OrderedQueue {len(self)} messages, {len(self._in_flight)} in flight, link {link!r}>"

    def __len__(self) -> int:
        known = len(self._returned) + sum(map(len, self._flows.values())) + len(self._in_flight)
        return known + sum(map(len, self._held.values()))

    @property
    def is_waiting(self) -> bool:
        """Whether messages wait for a link."""
        return bool(self._flows or self._returned)

    def has_answers(self, sender: Hashable) -> bool:
        """Whether answers wait for a link, unknown messages of this sender included."""
        return bool(self._first or self._returned) or sender in self._held

    def has_unknown(self, sender: Hashable) -> bool:
        """Whether there are unknown messages of this sender."""
        return sender in self._held

    @property
    def is_suspect(self) -> bool:
        """Whether messages of this queue seem to break links."""
        return self._failed_links > 1

    def post(self, messages: Sequence[OutboundMessage], posting: PendingPublish, sender: Hashable = None) -> None:
        """Queue messages behind those of their flow.

        A single message is published at once if nothing waits for the link.
        """
        if self._held and sender in self._held:
            self._held[sender].append(_QueueEntry(posting, messages))
            return
        window = self._link_window
        if (
            len(messages) == 1
            and window is not None
            and window is self._next_link_window
            and not (self._flows or self._returned or self._suspects or window.is_sending or window.is_behind)
            and window.in_flight < window.link.window
        ):
            posting.taken = posting.count
            window.is_sending = True
            try:
                self._publish(window, messages[0], posting)
            finally:
                window.is_sending = False
            if window.is_behind:
                window.flush()
            return
        self._append(messages, posting)
        if window is not None:
            window.flush()

    def hold(self, posting: PendingPublish, sender: Hashable) -> None:
        """Queue a posting of one message that is not known yet. `fill` follows."""
        self._held.setdefault(sender, deque()).append(_QueueEntry(posting))

    def fill(self, messages: Sequence[OutboundMessage], posting: PendingPublish, sender: Hashable) -> None:
        """The messages of a posting that was held, however many they are."""
        entries = self._held[sender]
        # Without messages the mark alone is queued.
        next(entry for entry in entries if entry.posting is posting).messages = messages or (None,)
        posting.count = len(messages)
        while entries and (known := entries[0].messages) is not None:
            self._append(known, entries.popleft().posting)
        if not entries:
            del self._held[sender]
        if self._link_window is not None:
            self._link_window.flush()

    def mark(self, posting: PendingPublish, sender: Hashable = None) -> None:
        """Queue a mark behind waiting answers; it ends when it is reached."""
        if sender in self._held:
            self._held[sender].append(_QueueEntry(posting, (None,)))
        else:
            self._append((None,), posting)

    def use(self, link_window: LinkWindow | None) -> None:
        """Use this link as soon as everything in flight on the present one is confirmed."""
        self._next_link_window = link_window
        if link_window is self._link_window:
            if link_window is not None:
                link_window.flush()
        elif not self._in_flight:
            self._switch_link()

    def lose(self, *, was_silent: bool = False) -> None:
        """Process the loss of the link: unconfirmed messages wait again, in front.

        `was_silent`: the broker did not close it, so no message was the reason.
        """
        self._link_window = self._next_link_window = None
        if self._in_flight and not was_silent:
            self._suspects = max(self._suspects, len(self._in_flight))
            self._failed_links += 1
            if self._failed_links > MAX_FAILED_LINKS:
                self._give_up()
        self._returned.extendleft(reversed(self._in_flight.values()))
        for message, posting in self._in_flight.values():
            posting.taken -= 1
            if not posting.is_element:
                self.answer_bytes += _size_of((message,))
        self._in_flight.clear()

    async def drain(self) -> None:
        """Wait until every message has ended."""
        if len(self):
            if self._empty is None or self._empty.done():
                self._empty = asyncio.get_running_loop().create_future()
            await self._empty

    async def wait_for_room(self) -> None:
        """Wait while many bytes of answers wait for a link."""
        if self.answer_bytes >= FULL_BYTES:
            self._room = self._room or asyncio.Event()
            await self._room.wait()

    def send(self, link_window: LinkWindow) -> bool:
        """Send as much as may be sent over this link now. Whether that was anything."""
        link, number = link_window.link, self._number
        while (
            (self._flows or self._returned)
            and self._link_window is self._next_link_window is link_window
            and link_window.in_flight < link.window
        ):
            if self._suspects and self._in_flight:
                break
            message, posting = self._returned.popleft() if self._returned else self._pop()
            if not posting.is_element:
                self.answer_bytes -= _size_of((message,))
            posting.take()
            if message is None or posting.withdrawn:
                posting.confirm(None)
                continue
            if posting.deadline is not None and monotonic() > posting.deadline:
                posting.confirm(PublishFailed("no link accepted the message before its deadline", status=_TIMED_OUT))
                continue
            self._publish(link_window, message, posting)
        self._end_drain()
        if self._room is not None and self.answer_bytes < FULL_BYTES:
            self._room.set()
            self._room = None
        return self._number != number

    def _publish(self, window: LinkWindow, message: OutboundMessage, posting: PendingPublish) -> None:
        self._number += 1
        self._in_flight[self._number] = message, posting
        window.in_flight += 1
        window.link.publish(message, partial(self._done, window, self._number))

    def _append(self, messages: Sequence[OutboundMessage | None], posting: PendingPublish) -> None:
        if (flow := self._flows.get(posting.flow)) is None:
            flow = self._flows[posting.flow] = deque()
            (self._elements if posting.is_element else self._first).append(flow)
        flow.extend([(message, posting) for message in messages])
        if not posting.is_element:
            self.answer_bytes += _size_of(messages)

    def _pop(self) -> _Entry:
        """Take the next message of the flow whose turn it is."""
        if self._first and (self._first_in_a_row < FIRST_IN_A_ROW or not self._elements):
            self._first_in_a_row += 1
            flow = self._first.popleft()
        else:
            self._first_in_a_row = 0
            flow = self._elements.popleft()
        entry = flow.popleft()
        posting = entry[1]
        if not flow:
            del self._flows[posting.flow]
        elif posting.flow is None:
            self._first.append(flow)
        elif posting.withdrawn:
            # Nothing is sent: it still is this flow's turn.
            self._elements.appendleft(flow)
        else:
            self._elements.append(flow)
        return entry

    def _switch_link(self) -> None:
        if self._link_window is not None:
            self._link_window.queues.remove(self)
        self._link_window = self._next_link_window
        if self._link_window is not None:
            self._link_window.queues.append(self)
            self._link_window.flush()

    def _give_up(self) -> None:
        """The oldest message was alone on each of the last links."""
        self._suspects, self._failed_links = max(0, self._suspects - 1), 0
        message, posting = self._in_flight.pop(next(iter(self._in_flight)))
        size = len(message.envelope.payload)
        # Why, it does not say. The usual reason is a bound on the size, and a small message is not tried in its place.
        status = 413 if size > LARGE else 503
        words = f"the broker closed {MAX_FAILED_LINKS} links after this message of {size} bytes"
        posting.confirm(RetriesExhausted(words, status=status))
        self._end_drain()

    def _done(self, link_window: LinkWindow, number: int, error: ConnectivityError | None) -> None:
        if link_window is not self._link_window or (entry := self._in_flight.pop(number, None)) is None:
            return
        link_window.in_flight -= 1
        self._failed_links = 0
        if self._suspects:
            self._suspects -= 1
        posting = entry[1]
        if error is None and posting.confirmed + 1 >= posting.count and posting.error is None:
            # As in `confirm`, without a call.
            posting.confirmed += 1
            ended, posting.ended = posting.ended, None
            try:
                if ended is not None:
                    ended(None)
            except Exception:
                log.exception(_NOT_PROCESSED)
        else:
            posting.confirm(error)
        if self._empty is not None:
            self._end_drain()
        if self._next_link_window is not link_window and not self._in_flight:
            self._switch_link()
        if link_window.is_behind:
            window = link_window.link.window
            if link_window.in_flight + window // REFILL <= window:
                link_window.flush()
            elif not link_window.is_flush_due:
                # Messages that stay unconfirmed may hold most of the window.
                link_window.flush_later()

    def _end_drain(self) -> None:
        """Resume the waiting task if this was the last message of the queue."""
        if self._empty is not None and not len(self):
            # The waiting task may have been cancelled.
            if not self._empty.done():
                self._empty.set_result(None)
            self._empty = None


def _size_of(messages: Sequence[OutboundMessage | None]) -> int:
    return sum([len(message.envelope.payload) for message in messages if message is not None])


class Outbox:
    """The queues of a connection with so many clients."""

    def __init__(self, clients: int = 1) -> None:
        self._queues = [OrderedQueue() for _ in range(clients)]
        self._link_windows: dict[int, LinkWindow] = {}
        self._making: set[asyncio.Future[Sequence[OutboundMessage]]] = set()

    def __repr__(self) -> str:
        return f"<Outbox {self._queues!r}>"

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    @property
    def is_attached(self) -> bool:
        """Whether there is a link to the broker now."""
        return bool(self._link_windows)

    def post(
        self,
        messages: Sequence[OutboundMessage],
        ended: Done | None = None,
        about: Hashable = None,
        sender: Hashable = None,
        *,
        flow: Hashable = None,
        is_element: bool = False,
    ) -> PendingPublish:
        """Queue messages behind those of their flow. Without messages `ended` is called at once."""
        posting = PendingPublish(len(messages), ended, flow=flow, is_element=is_element)
        if messages:
            self.queue_for(about, messages[0].address).post(messages, posting, sender)
        elif ended is not None:
            ended(None)
        return posting

    def hold(
        self,
        making: asyncio.Future[Sequence[OutboundMessage]],
        posting: PendingPublish,
        about: Hashable,
        sender: Hashable,
        address: str = "",
    ) -> None:
        """Queue messages that are still being made, however many they will be.

        `posting` is of one until then.

        `address` is where they will go.
        """
        queue = self.queue_for(about, address)
        queue.hold(posting, sender)
        self._making.add(making)

        def made(making: asyncio.Future[Sequence[OutboundMessage]]) -> None:
            self._making.discard(making)
            queue.fill(() if making.cancelled() else making.result(), posting, sender)

        making.add_done_callback(made)

    def behind(self, ended: Done, sender: Hashable = None) -> None:
        """Call `ended` when links have taken the waiting answers: the caller works at the links' pace.

        Answers are all messages but elements of subscriptions. Unknown messages are included if they are this sender's.
        """
        if busy := [queue for queue in self._queues if queue.has_answers(sender)]:
            posting = PendingPublish(len(busy), ended)
            for queue in busy:
                queue.mark(posting, sender)
        else:
            ended(None)

    @property
    def is_full(self) -> bool:
        """Whether many bytes of answers wait for a link."""
        return any(queue.answer_bytes >= FULL_BYTES for queue in self._queues)

    async def wait_for_room(self) -> None:
        """Wait while many bytes of answers wait for a link."""
        for queue in self._queues:
            await queue.wait_for_room()

    def attach(self, link: Link, client: int = 0) -> None:
        """Process a new link of a client: waiting messages are sent over it."""
        self._link_windows[client] = LinkWindow(link)
        self._move_queues()

    def detach(self, client: int = 0, *, was_silent: bool = False) -> None:
        """Process the loss of a client's link: unconfirmed messages are sent again over the next one.

        `was_silent`: the broker did not close it.
        """
        if (link_window := self._link_windows.pop(client, None)) is not None:
            for queue in link_window.queues:
                queue.lose(was_silent=was_silent)
            self._move_queues()

    async def drain(self) -> None:
        """Wait until every message has ended."""
        for queue in self._queues:
            await queue.drain()

    def queue_for(self, about: Hashable, address: str) -> OrderedQueue:  # noqa: ARG002 - the subject decides here
        """Return the queue of messages about a subject that go to an address."""
        queues = self._queues
        return queues[0] if len(queues) == 1 else queues[hash(about) % len(queues)]

    def _move_queues(self) -> None:
        for home, queue in enumerate(self._queues):
            queue.use(self._link_windows.get(home) or self._host(home, queue))

    def _host(self, home: int, queue: OrderedQueue) -> LinkWindow | None:
        """Return another client's link for a queue whose own client has none."""
        if queue.is_suspect or not self._link_windows:
            return None
        others = sorted(self._link_windows)
        return self._link_windows[others[home % len(others)]]
