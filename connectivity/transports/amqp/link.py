"""A link to an AMQP broker: one connection, a channel for each source, one for publishing.

`consumer.py` handles deliveries, `publisher.py` messages. Deliveries rejected for redelivery are requeued at once; the
broker redelivers them on this link or to another consumer of the queue.

**Bounds.** From so many bytes of unsettled deliveries on, reading stops until half are settled. While confirms are
outstanding the link reads on and keeps more (`ReadLimit`); beyond that it takes nothing and, when all are settled, ends
itself, so that the broker requeues the rest in order.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from functools import partial

from connectivity.connections.model import Connection
from connectivity.errors import Detail, LinkError, LinkRenewed
from connectivity.transports.amqp.client import AmqpClient
from connectivity.transports.amqp.consumer import AmqpConsumer
from connectivity.transports.amqp.options import Options
from connectivity.transports.amqp.publisher import AmqpPublisher
from connectivity.transports.base import (
    CONSUME_DEFAULTS,
    ConsumeOptions,
    Delivery,
    Done,
    OutboundMessage,
    Readers,
    ReaderStatus,
    ReadLimit,
    ignore_reader_status,
)

WINDOW = 500


class AmqpLink:
    """A `connectivity.transports.base.Link` to an AMQP broker."""

    window: int
    lost: asyncio.Future[LinkError]
    throttled = 0

    def __init__(self, connection: Connection, options: Options, consume: ConsumeOptions = CONSUME_DEFAULTS) -> None:
        self.lost = asyncio.get_running_loop().create_future()
        self.target_faults: Mapping[int, str] = {}
        self.window = WINDOW
        self._is_started = self._is_over = self._is_full = False
        # The prefetch of the sources bounds the number.
        self._unsettled = ReadLimit(sys.maxsize, consume.unsettled_bytes)
        self._close_task: asyncio.Task[None] | None = None
        self.client = AmqpClient(connection, options)
        self.client.on_lost = self._die
        self.readers: Readers = ignore_reader_status
        self.publisher = AmqpPublisher(self.client, connection.id, self._forward_reader_status)
        self.client.frame_demultiplexer.on_blocked = self.publisher.blocked
        self.source_consumers = [
            AmqpConsumer(self.client, source, self.client.die, self, consume.payload, partial(consume.names_of, index))
            for index, source in enumerate(connection.sources)
        ]

    def __repr__(self) -> str:
        state = "over" if self._is_over else "blocked" if self.condition else "up"
        held = sum(len(intake) for intake in self.source_consumers)
        return f"<AmqpLink {state}, {held} deliveries unsettled, {len(self.publisher)} messages unconfirmed>"

    @property
    def condition(self) -> str | None:
        """The broker's reason for blocking publishing (memory or disk alarm); it still delivers."""
        if (reason := self.publisher.blocked_reason) is None:
            return None
        return f"{Detail.REFUSED_BY_BROKER.value}: the broker blocks publishing: {reason}"

    def consume(self, source: int) -> AsyncIterator[list[Delivery]]:
        return self.source_consumers[source].consume()

    def publish(self, message: OutboundMessage, done: Done) -> None:
        self.publisher.publish(message, done)
        if self.client.is_paused:
            self._balance()

    def arrived(self, size: int) -> bool:
        """Count a delivery (see `connectivity.transports.amqp.consumer.LinkReading`)."""
        self._is_full = self._is_full or self._unsettled.is_exceeded
        if not self._is_full:
            self._unsettled.arrived(size)
            self._balance()
        return not self._is_full

    def ended(self, size: int) -> None:
        """Count the end of a delivery."""
        unsettled = self._unsettled
        unsettled.count -= 1
        unsettled.size -= size
        if self._is_full and not unsettled.count:
            self._end()
            self._close_task = asyncio.get_running_loop().create_task(self._renew())
        else:
            self._balance()

    def mark_started(self) -> None:
        """Start the link after all of its consumers are open."""
        self._is_started = True
        self._balance()

    def _balance(self) -> None:
        waits = not self._is_started or self.publisher.waits_for_broker
        self.client.pause(self._unsettled.must_pause(is_paused=self.client.is_paused, waits_for_confirms=waits))

    async def _renew(self) -> None:
        """End this link in order, so that the broker redelivers what was not taken."""
        await self.client.close()
        self.lost.set_result(LinkRenewed(Detail.CONNECTING, "reconnecting: too many bytes of unsettled deliveries"))

    async def close(self) -> None:
        self._end()
        await self.client.close()

    def abandon(self) -> None:
        """Close without a closing handshake, after a failed attempt to connect."""
        self._end()
        self.client.abandon()

    def _forward_reader_status(self, address: str, reader_status: ReaderStatus) -> None:
        self.readers(address, reader_status)

    def _die(self, error: LinkError) -> None:
        if not self._is_over:
            self._end()
            self.lost.set_result(error)

    def _end(self) -> None:
        self._is_over = True
        self.publisher.end()
        for intake in self.source_consumers:
            intake.end()
