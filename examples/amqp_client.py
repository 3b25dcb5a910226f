"""A client on AMQP 0.9.1: the library aio-pika, with an event loop in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from examples.broker_client import TIMEOUT, BrokerClient, MessagePrinter, print_nothing
from examples.brokers import Broker

T = TypeVar("T")


class AmqpClient(BrokerClient):
    """Publishes to the queue `publish_to`, and consumes the queue `receive_from`.

    Without `receive_from`, it declares an exclusive queue.
    """

    transport = "AMQP"

    def __init__(
        self,
        name: str,
        broker: Broker,
        *,
        publish_to: str,
        receive_from: str | None = None,
        printer: MessagePrinter = print_nothing,
    ) -> None:
        super().__init__(name, printer)
        self._publish_to, self._receive_from = publish_to, receive_from
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        try:
            self._run(self._open(f"amqp://{broker.host}:{broker.port}/"))
        except BaseException:
            self._end_loop()
            raise

    async def _open(self, uri: str) -> None:
        self._connection = await aio_pika.connect(uri)
        self._channel = await self._connection.channel()
        own = self._receive_from is None
        self._queue = await self._channel.declare_queue(self._receive_from, exclusive=own, durable=not own)
        await self._queue.consume(self._on_message, no_ack=True)

    async def _on_message(self, message: AbstractIncomingMessage) -> None:
        self._on_payload(message.body)

    def _publish(self, payload: bytes, correlation_id: str) -> None:
        message = aio_pika.Message(
            payload, reply_to=self._queue.name, correlation_id=correlation_id, content_type="application/json"
        )
        self._run(self._channel.default_exchange.publish(message, self._publish_to))

    def close(self) -> None:
        try:
            self._run(self._connection.close())
        finally:
            self._end_loop()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
