"""A second client of an AMQP broker: aio-pika on the test's event loop, without code of the service."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import aio_pika
import aiormq
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aiormq.abc import ChannelFrame
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from mappings.model.envelope import Envelope

PROPERTIES = {"content-type": "content_type", "correlation-id": "correlation_id", "reply-to": "reply_to"}


class BareAmqpClient:
    """Declares queues, publishes to them, and consumes one of them into the list `received`."""

    def __init__(self, uri: str) -> None:
        self.received: list[Envelope] = []
        self.messages: list[AbstractIncomingMessage] = []
        self._uri = uri
        self._connection: AbstractConnection | None = None

    async def __aenter__(self) -> Self:
        self._connection = await aio_pika.connect(self._uri)
        self.channel: AbstractChannel = await self._connection.channel()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._connection is not None
        await self._connection.close()

    async def another_channel(self) -> AbstractChannel:
        """Open a second channel of the same connection."""
        assert self._connection is not None
        return await self._connection.channel()

    async def queue(self, name: str, *, durable: bool = True, **arguments: Any) -> AbstractQueue:
        return await self.channel.declare_queue(name, durable=durable, arguments=arguments or None)

    async def listen(self, queue: str) -> None:
        """Declare a queue and consume it."""
        declared = await self.queue(queue)
        await declared.consume(self._on_message, no_ack=True)

    async def _on_message(self, message: AbstractIncomingMessage) -> None:
        self.messages.append(message)
        headers = {name: str(value) for name, value in message.headers.items()}
        self.received.append(Envelope(message.body, headers))

    async def send(
        self,
        queue: str,
        payloads: Sequence[bytes],
        headers: Mapping[str, Any] | None = None,
        **properties: Any,
    ) -> None:
        """Send in order, and return when the broker has confirmed all. Four of the headers become properties."""
        table = dict(headers or {})
        for name, attribute in PROPERTIES.items():
            if name in table:
                properties.setdefault(attribute, table.pop(name))
        exchange = self.channel.default_exchange

        async def one(payload: bytes) -> None:
            fields = {"message_id": uuid4().hex, "delivery_mode": aio_pika.DeliveryMode.PERSISTENT, **properties}
            await exchange.publish(aio_pika.Message(payload, headers=table, **fields), queue)

        await asyncio.gather(*(one(payload) for payload in payloads))

    async def send_bare(self, queue: str, payload: bytes, **properties: Any) -> None:
        """Send without a message ID, which the library would generate."""
        channel = (await self.channel.get_underlay_channel()).connection
        bare = await channel.channel(publisher_confirms=False)
        assert isinstance(bare, aiormq.Channel)
        header = aiormq.spec.Basic.Properties(**properties)
        frames: list[Frame | ContentHeader | ContentBody] = [
            aiormq.spec.Basic.Publish(exchange="", routing_key=queue),
            ContentHeader(properties=header, body_size=len(payload)),
            ContentBody(payload),
        ]
        await bare.write_queue.put(ChannelFrame.marshall(bare.number, frames))
        await bare.close()
