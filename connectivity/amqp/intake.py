"""The deliveries of one source: a channel with a consumer for each of its queues.

At most `IN_FLIGHT` deliveries of a source are unsettled; there the broker holds back (prefetch). Outcomes go to the broker
in the order of arrival, many in one frame: all that have the same outcome and follow each other are one acknowledgement, or
one rejection, "up to this one".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from aiormq.abc import DeliveredMessage

from connectivity.amqp.client import CallFailed, Client, call
from connectivity.amqp.faults import consume_error
from connectivity.amqp.frames import (
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
from connectivity.amqp.tables import read_properties
from connectivity.brokers.base import Delivery, Inbox, Outcome, Watermark
from connectivity.errors import Detail, LinkError, NotConnected
from connectivity.model import Source
from mappings.envelope import Envelope

IN_FLIGHT = 1000


class _Taken(Delivery):
    """A delivery that knows its tag."""

    __slots__ = ("tag",)

    tag: int


class Intake:
    """`on_lost` is called when the broker ends a consumer or the channel."""

    def __init__(self, client: Client, source: Source, on_lost: Callable[[LinkError], None]) -> None:
        self._client, self._source, self._on_lost = client, source, on_lost
        self._channel = 0
        self._queues: dict[bytes, str] = {}
        self._watermark = Watermark()
        self._inbox = Inbox()
        self._reason: Reason | None = None
        self._is_open = self._is_over = False
        self._ended = self._delivery_ended
        self._outcomes: list[tuple[Outcome, int]] = []
        self._coming: tuple[bytes, int, bool] | None = None
        self._properties = b""
        self._parts: list[bytes] = []
        self._missing = 0

    def __len__(self) -> int:
        return len(self._watermark)

    async def open(self) -> None:
        """Begin to consume. Raises NotConnected, ConnectionRefused."""
        channel = await self._client.channel()
        self._channel = channel.number
        self._client.traffic.takers[channel.number] = self
        queues = [queue for queue in self._source.addresses for _ in range(self._source.consumer_count)]
        queue = ""
        patience = self._client.patience
        try:
            # For each consumer by itself: quorum queues know no bound for a whole channel.
            await call(channel.basic_qos(prefetch_count=max(1, IN_FLIGHT // len(queues)), timeout=patience))
            for number, queue in enumerate(queues):
                tag = f"{number}"
                self._queues[tag.encode()] = queue
                await call(channel.basic_consume(queue, _nobody, consumer_tag=tag, timeout=patience))
        except CallFailed as failed:
            if self._reason is not None:
                raise consume_error(queue, self._reason) from failed
            raise self._client.gone(failed) from failed
        self._is_open = True

    # ── in ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, kind: int, payload: bytes) -> bool:
        """See `connectivity.amqp.traffic.Taker`."""
        if kind == METHOD:
            method = METHOD_ID.unpack_from(payload)
            if method == DELIVER:
                self._coming = read_delivery(payload, METHOD_ID.size)
                return True
            if method == CANCEL:
                self._cancelled(read_short(payload, METHOD_ID.size)[0])
            return False
        if self._coming is None:
            return False
        if kind == HEADER:
            self._missing = CONTENT.unpack_from(payload)[2]
            self._properties = payload[CONTENT.size :]
        elif kind == BODY:
            self._parts.append(payload)
            self._missing -= len(payload)
        if self._missing <= 0:
            self._arrived(*self._coming)
        return True

    def closed(self, reason: Reason) -> None:
        """See `connectivity.amqp.traffic.Taker`."""
        self._reason = reason
        if self._is_open:
            self._on_lost(NotConnected(Detail.REFUSED_BY_BROKER, reason.words))

    def _arrived(self, consumer: bytes, tag: int, redelivered: bool) -> None:
        parts = self._parts
        payload = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._coming = None
        if self._is_over:
            return
        headers, name = read_properties(self._properties)
        delivery = _Taken(
            Envelope(payload, headers),
            self._queues.get(consumer, ""),
            f"amqp:{name}" if name is not None else None,
            redelivered,
            self._ended,
        )
        delivery.tag = tag
        self._watermark.arrived(delivery)
        self._inbox.waiting.append(delivery)
        self._inbox.wake()

    def consume(self) -> AsyncIterator[list[Delivery]]:
        """See `connectivity.brokers.base.Link.consume`."""
        return self._inbox.lists()

    # ── settling ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _delivery_ended(self, delivery: Delivery, outcome: Outcome) -> None:
        if self._is_over:
            return
        outcomes = self._outcomes
        was_empty = not outcomes
        for ended, ending in self._watermark.ended(delivery, outcome):
            assert isinstance(ended, _Taken)
            if outcomes and outcomes[-1][0] is ending:
                outcomes[-1] = ending, ended.tag
            else:
                outcomes.append((ending, ended.tag))
        if was_empty and outcomes:
            self._client.before_sending(self._send_outcomes)

    def _send_outcomes(self) -> None:
        for outcome, tag in self._outcomes:
            if outcome is Outcome.SETTLED:
                self._client.send(pack_ack(self._channel, tag))
            else:
                self._client.send(pack_nack(self._channel, tag, requeue=outcome is Outcome.REDELIVER))
        self._outcomes.clear()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def end(self) -> None:
        """Hand nothing over any more."""
        self._is_over = True
        self._inbox.end()

    def _cancelled(self, consumer: bytes) -> None:
        queue = self._queues.get(consumer, "")
        words = f"queue {queue!r}: the broker ended its consumer; the queue may be deleted or moved"
        self._on_lost(NotConnected(Detail.MISSING_ADDRESS, words))


async def _nobody(_message: DeliveredMessage) -> None:
    """The library's own consumer, to which nothing comes."""
