"""A client of the service over AMQP, for tests; see `tests.client`."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from tests.client import PATIENCE, Party

T = TypeVar("T")


class AmqpClient(Party):
    """Publishes to the queue `ask`, receives everything that comes into the queue `answers`; declares both."""

    def __init__(self, uri: str, *, ask: str, answers: str) -> None:
        super().__init__()
        self.ask, self.answers = ask, answers
        self.consumers = 0
        """How many consumers the queue `ask` had when it was declared last."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="amqp client", daemon=True)
        self._thread.start()
        self._do(self._begin(uri))

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE * 3)

    async def _begin(self, uri: str) -> None:
        self._connection = await aio_pika.connect(uri)
        self._channel = await self._connection.channel()
        await self._declare()
        answers = await self._channel.declare_queue(self.answers, durable=True)
        await answers.consume(self._hear, no_ack=True)

    async def _declare(self) -> tuple[int, int]:
        found = (await self._channel.declare_queue(self.ask, durable=True)).declaration_result
        return found.message_count or 0, found.consumer_count or 0

    async def _hear(self, message: AbstractIncomingMessage) -> None:
        self.received.put(json.loads(message.body))

    def waiting_and_consumers(self) -> tuple[int, int]:
        """Messages of `ask` that nobody has taken, and how many consumers there are."""
        return self._do(self._declare())

    def send(self, document: Any, *, wait: bool = True) -> None:
        payload = document if isinstance(document, bytes) else json.dumps(document).encode()
        message = aio_pika.Message(payload, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        sending = self._channel.default_exchange.publish(message, self.ask)
        if wait:
            self._do(sending)  # type: ignore[arg-type]
        else:
            asyncio.run_coroutine_threadsafe(sending, self._loop)  # type: ignore[arg-type]

    def close(self) -> None:
        self._do(self._connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
