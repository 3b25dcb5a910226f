"""The deliveries of one source: a channel with a consumer for each of its queues.

At most `IN_FLIGHT` deliveries of a source are unsettled (prefetch). The body of a message that is too large is skipped.
Outcomes go to the broker in the order of arrival; consecutive equal outcomes are sent as one `basic.ack` or `basic.nack`
with `multiple`.

A delivery without a message ID is named by its correlation ID and payload; redeliveries without any ID are held until all
have come, since their order says which they are (`connectivity.transports.amqp.delivery_names`). A queue sends all of them
before anything new.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import groupby
from typing import Protocol

from connectivity.connections.model import Source
from connectivity.errors import Detail, LinkError, NotConnected
from connectivity.transports.amqp.calls import CallFailed, CallRefused
from connectivity.transports.amqp.client import AmqpClient, ignore_message
from connectivity.transports.amqp.delivery_names import NumberedNames, UnsettledNames
from connectivity.transports.amqp.errors import address_error
from connectivity.transports.amqp.frames import (
    BODY,
    CANCEL,
    CONTENT,
    DELIVER,
    HEADER,
    METHOD,
    METHOD_ID,
    Reason,
    pack_ack,
    pack_nack,
    read_delivery,
    read_short,
)
from connectivity.transports.amqp.properties import CORRELATION, MESSAGE_ID, read_properties
from connectivity.transports.base import Delivery, Inbox, InOrderSettlement, KnownNames, Outcome
from mappings.model.envelope import Envelope

IN_FLIGHT = 1000
HOLD_SECONDS = 1.0
"""How long a link waits for a further redelivery of a queue that has sent nothing new."""

_ENVELOPE_ID = re.compile(rb'"correlation-id"\s*:\s*"[^"]')


class _TaggedDelivery(Delivery):
    """A delivery with its tag, its size, and the common part of its name (None: not needed)."""

    __slots__ = ("common", "size", "tag")

    common: str | None
    size: int
    tag: int


class LinkReading(Protocol):
    """The reading of the link that all of its sources share."""

    def arrived(self, size: int) -> bool:
        """Count a delivery; False if it must not be kept, nor any after it."""

    def ended(self, size: int) -> None:
        """Count the end of a delivery."""


class AmqpConsumer:
    """The consumers of one source; `on_lost` is called when the broker ends one or the channel."""

    def __init__(
        self,
        client: AmqpClient,
        source: Source,
        on_lost: Callable[[LinkError], None],
        reading: LinkReading,
        max_payload: int,
        names_of: Callable[[str], KnownNames] = lambda _prefix: KnownNames(),
    ) -> None:
        """`names_of` returns the names with a prefix of deliveries that may come again."""
        self._client, self._source, self._on_lost = client, source, on_lost
        self._reading, self._max_payload, self._names_of = reading, max_payload, names_of
        self._channel = 0
        self._queues: dict[bytes, str] = {}
        self._settlement = InOrderSettlement()
        self._names = UnsettledNames()
        self._numbered: dict[str, NumberedNames] = {}
        """By queue."""
        self._held: list[_TaggedDelivery] = []
        """From the first redelivery without an ID on."""
        self._holding: asyncio.TimerHandle | None = None
        self._redelivering: set[str] = set()
        """The queues with held redeliveries that have sent nothing new."""
        self._inbox = Inbox()
        self._is_open = self._is_over = False
        self._ended = self._delivery_ended
        self._outcomes: list[tuple[Outcome, int]] = []
        self._current: tuple[bytes, int, bool] | None = None
        self._properties = b""
        self._parts: list[bytes] = []
        self._remaining = self._skipped = 0

    def __len__(self) -> int:
        return len(self._settlement)

    async def open(self) -> None:
        """Start consuming. Raises NotConnected, ConnectionRefused."""
        channel = await self._client.channel()
        self._channel = (await channel.get_underlay_channel()).number
        self._client.frame_demultiplexer.takers[self._channel] = self
        queues = [queue for queue in self._source.addresses for _ in range(self._source.consumer_count)]
        queue = ""
        try:
            # A limit for each consumer: quorum queues do not support a limit for a channel.
            await self._client.call(channel.set_qos(max(1, IN_FLIGHT // len(queues))))
            for number, queue in enumerate(queues):
                tag = f"{number}"
                self._queues[tag.encode()] = queue
                found = await channel.get_queue(queue, ensure=False)
                await self._client.call(found.consume(ignore_message, consumer_tag=tag))
        except CallRefused as refused:
            raise address_error("queue", queue, refused.reason) from refused
        except CallFailed as failed:
            raise self._client.call_failed(failed) from failed
        self._is_open = True

    # ── in ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, kind: int, payload: bytes) -> bool:
        """Handle a frame (see `connectivity.transports.amqp.demultiplexer.FrameHandler`)."""
        if kind == METHOD:
            method = METHOD_ID.unpack_from(payload)
            if method == DELIVER:
                self._current = read_delivery(payload, METHOD_ID.size)
                return True
            if method == CANCEL:
                self._canceled(read_short(payload, METHOD_ID.size)[0])
            return False
        if self._current is None:
            return False
        if kind == HEADER:
            self._remaining = size = CONTENT.unpack_from(payload)[2]
            self._skipped = size if size > self._max_payload else 0
            self._properties = payload[CONTENT.size :]
        elif kind == BODY:
            if not self._skipped:
                self._parts.append(payload)
            self._remaining -= len(payload)
        if self._remaining <= 0:
            self._arrived(*self._current)
        return True

    def closed(self, reason: Reason) -> None:
        """Handle the end of the channel (see `connectivity.transports.amqp.demultiplexer.FrameHandler`)."""
        if self._is_open:
            self._on_lost(NotConnected(Detail.REFUSED_BY_BROKER, reason.text))

    def _arrived(self, consumer: bytes, tag: int, redelivered: bool) -> None:
        parts = self._parts
        payload = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._current = None
        size = len(payload) + len(self._properties)
        if self._is_over or not self._reading.arrived(size):
            return
        headers = read_properties(self._properties)
        name, common = None, None
        if message_id := headers.get(MESSAGE_ID):
            name = f"amqp:{message_id}"
        elif (correlation := headers.get(CORRELATION, "")) or _ENVELOPE_ID.search(payload):
            # Also an ID in the payload alone says that equal payloads are one command.
            common, name = self._names.delivery_name(correlation, payload)
        address = self._queues.get(consumer, "")
        envelope = Envelope(payload, headers)
        delivery = _TaggedDelivery(envelope, address, name, redelivered, self._ended, skipped=self._skipped)
        delivery.tag, delivery.common, delivery.size = tag, common, size
        self._settlement.arrived(delivery)
        if name is None and redelivered:
            if self._holding is not None:
                self._holding.cancel()
            self._holding = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._release)
            self._redelivering.add(address)
        if self._holding is not None:
            self._held.append(delivery)
            if not redelivered:
                self._redelivering.discard(address)
            if not self._redelivering or len(self._held) >= IN_FLIGHT:
                self._holding.cancel()
                self._release()
            return
        if name is None:
            delivery.name = self._numbers(address).first(payload)
        self._inbox.waiting.append(delivery)
        self._inbox.wake()

    def _release(self) -> None:
        """Name the held deliveries, and hand them over."""
        held, self._held, self._holding = self._held, [], None
        self._redelivering.clear()
        try:
            self._name(held)
        finally:
            self._inbox.waiting.extend(held)
            self._inbox.wake()

    def _name(self, held: Sequence[_TaggedDelivery]) -> None:
        unnamed = sorted(
            [delivery for delivery in held if delivery.name is None], key=lambda it: (it.address, not it.redelivered)
        )
        for queue, of_queue in groupby(unnamed, key=lambda it: it.address):
            deliveries = list(of_queue)
            again = [it.envelope.payload for it in deliveries if it.redelivered]
            numbers = self._numbers(queue)
            names = numbers.again(again, self._names_of(numbers.prefix))
            names += [numbers.first(it.envelope.payload) for it in deliveries[len(again) :]]
            for delivery, name in zip(deliveries, names, strict=True):
                delivery.name = name

    def _numbers(self, queue: str) -> NumberedNames:
        return self._numbered.get(queue) or self._numbered.setdefault(queue, NumberedNames(queue))

    async def consume(self) -> AsyncIterator[list[Delivery]]:
        """Yield lists of deliveries (see `connectivity.transports.base.Link.consume`).

        When the broker ends a link, it requeues unsettled deliveries and often redelivers them on another link at once.
        The copies still waiting here lack the redelivered flag, so they are discarded: each would be processed twice.
        """
        async for ready in self._inbox.lists():
            if not self._client.frame_demultiplexer.peer_has_closed:
                yield ready

    # ── settling ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _delivery_ended(self, delivery: Delivery, outcome: Outcome) -> None:
        if self._is_over:
            return
        outcomes = self._outcomes
        was_empty = not outcomes
        for ended, ending in self._settlement.ended(delivery, outcome):
            assert isinstance(ended, _TaggedDelivery)
            if ended.common is not None:
                self._names.ended(ended.common)
            if outcomes and outcomes[-1][0] is ending:
                outcomes[-1] = ending, ended.tag
            else:
                outcomes.append((ending, ended.tag))
        if was_empty and outcomes:
            self._client.call_before_send(self._send_outcomes)
        assert isinstance(delivery, _TaggedDelivery)
        self._reading.ended(delivery.size)

    def _send_outcomes(self) -> None:
        for outcome, tag in self._outcomes:
            if outcome is Outcome.SETTLED:
                self._client.send(pack_ack(self._channel, tag))
            else:
                self._client.send(pack_nack(self._channel, tag, requeue=outcome is Outcome.REDELIVER))
        self._outcomes.clear()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def end(self) -> None:
        """Stop yielding deliveries."""
        self._is_over = True
        if self._holding is not None:
            self._holding.cancel()
        self._inbox.end()

    def _canceled(self, consumer: bytes) -> None:
        queue = self._queues.get(consumer, "")
        words = f"queue {queue!r}: the broker canceled the consumer; the queue may have been deleted or moved"
        self._on_lost(NotConnected(Detail.MISSING_ADDRESS, words))
