"""A link to an AMQP broker: one connection, a channel for each source, one for publishing.

`consumer.py` handles deliveries, `publisher.py` messages. Deliveries rejected for redelivery are requeued at once; the
broker redelivers them on this link or to another consumer of the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from connectivity.connections.model import Connection
from connectivity.errors import Detail, LinkError
from connectivity.transports.amqp.client import AmqpClient
from connectivity.transports.amqp.consumer import AmqpConsumer
from connectivity.transports.amqp.options import Options
from connectivity.transports.amqp.publisher import AmqpPublisher
from connectivity.transports.base import Delivery, Done, OutboundMessage, Readers, ReaderStatus, ignore_reader_status

WINDOW = 500


class AmqpLink:
    """A `connectivity.transports.base.Link` to an AMQP broker."""

    window: int
    lost: asyncio.Future[LinkError]
    throttled = 0

    def __init__(self, connection: Connection, options: Options) -> None:
        self.lost = asyncio.get_running_loop().create_future()
        self.window = WINDOW
        self._is_over = False
        self.client = AmqpClient(connection, options)
        self.client.on_lost = self._die
        self.readers: Readers = ignore_reader_status
        self.publisher = AmqpPublisher(self.client, connection.id, self._forward_reader_status)
        self.client.on_blocked = self.publisher.blocked
        self.source_consumers = [AmqpConsumer(self.client, source, self.client.die) for source in connection.sources]

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
