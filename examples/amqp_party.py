"""A party on AMQP 0.9.1, with the client of the aio-pika library on a loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from examples.brokers import Broker
from examples.party import PATIENCE, Party, Show, quiet

T = TypeVar("T")


class AmqpParty(Party):
    """Publishes to the queue `speaks`, and listens at `listens`, or else at a queue of its own that is gone with it."""

    transport = "AMQP"

    def __init__(
        self, name: str, broker: Broker, *, speaks: str, listens: str | None = None, show: Show = quiet
    ) -> None:
        super().__init__(name, show)
        self._speaks, self._listens = speaks, listens
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
        own = self._listens is None
        self._answers = await self._channel.declare_queue(self._listens, exclusive=own, durable=not own)
        await self._answers.consume(self._on_message, no_ack=True)

    async def _on_message(self, message: AbstractIncomingMessage) -> None:
        self._heard(message.body)

    def _send(self, payload: bytes, correlation_id: str) -> None:
        message = aio_pika.Message(
            payload, reply_to=self._answers.name, correlation_id=correlation_id, content_type="application/json"
        )
        self._run(self._channel.default_exchange.publish(message, self._speaks))

    def close(self) -> None:
        try:
            self._run(self._connection.close())
        finally:
            self._end_loop()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
