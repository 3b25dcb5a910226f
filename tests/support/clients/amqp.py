"""A client of the service over AMQP 0.9.1, which reconnects if the broker restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import Collection, Coroutine, Mapping
from typing import Any, TypeVar
from uuid import uuid4

import aio_pika
import aiormq
from aio_pika.abc import AbstractExchange, AbstractIncomingMessage, AbstractQueue

from tests.support.clients.mqtt import BrokerClient
from tests.support.wait import PATIENCE

# This client is for brokers that go down, so their errors are no news.
logging.getLogger("aiormq").setLevel(logging.CRITICAL)

PAUSE = 0.1
T = TypeVar("T")
GONE = (aiormq.AMQPError, aio_pika.exceptions.AMQPException, OSError, RuntimeError, TimeoutError)


class _NamelessProperties(aiormq.spec.Basic.Properties):
    """Properties without the message ID that the library generates to identify its own messages."""

    def marshal(self) -> bytes:
        made_up, self.message_id = self.message_id, None
        try:
            return super().marshal()
        finally:
            self.message_id = made_up


class _NamelessMessage(aio_pika.Message):
    """A message that reaches the broker without a message ID."""

    @property
    def properties(self) -> aiormq.spec.Basic.Properties:
        properties = super().properties
        return _NamelessProperties(**{name: getattr(properties, name) for name in properties.attributes()})


class CollectedConnection(aio_pika.Connection):
    """A connection that the garbage collector, in whatever thread it runs, does not try to close."""

    def __del__(self) -> None:
        """Override the library's, which leaves a coroutine that is never awaited."""


class AmqpClient(BrokerClient):
    """Publishes to the queue `ask`, receives from the queue `answers`, and declares both as durable.

    Messages without a confirm are sent again on the next link, in order and with the same message IDs. A response is
    acknowledged when it is in `received`, so it may arrive twice.
    """

    def __init__(self, uri: str, *, ask: str, answers: str, says_where: bool = True, **arguments: Any) -> None:
        """`says_where`: whether messages have the property `reply-to` by default.

        `arguments` are those of the response queue, e.g. `x-max-length`.
        """
        super().__init__()
        self.ask, self.answers = ask, answers
        self.messages: list[AbstractIncomingMessage] = []
        self._arguments = arguments or None
        self._properties = {"reply_to": answers} if says_where else {}
        self._uri = uri
        self._loop = asyncio.new_event_loop()
        self._exchange: asyncio.Future[AbstractExchange] = self._loop.create_future()
        """The exchange of the current link, once there is a link."""
        self._thread = threading.Thread(target=self._loop.run_forever, name="amqp client", daemon=True)
        self._thread.start()
        self._own: set[asyncio.Task[Any] | None] = set()
        self._sending: set[asyncio.Task[None]] = set()
        self._unconfirmed: dict[aio_pika.Message, str] = {}
        """Messages sent with `wait=False` and not yet confirmed, in order, with their queues."""
        asyncio.run_coroutine_threadsafe(self._stay_linked(), self._loop)
        self._call(self._has_link())

    def send(
        self,
        document: Any,
        *,
        wait: bool = True,
        headers: Mapping[str, Any] | None = None,
        to: str | None = None,
        **properties: Any,
    ) -> None:
        """Publish a JSON document or bytes; `to` overrides `ask`; a `message_id` of None leaves it out."""
        payload = document if isinstance(document, bytes) else json.dumps(document).encode()
        fields = {"message_id": uuid4().hex, **self._properties, **properties}
        persistent = aio_pika.DeliveryMode.PERSISTENT
        kind = _NamelessMessage if fields["message_id"] is None else aio_pika.Message
        message = kind(payload, headers=dict(headers or {}), delivery_mode=persistent, **fields)
        if wait:
            self._call(self._publish(message, to or self.ask))
        else:
            self._loop.call_soon_threadsafe(self._publish_later, message, to or self.ask)

    def waiting(self, queue: str | None = None) -> int:
        """Return the number of messages that are ready in a queue, by default `ask`."""
        return self._call(self._counted(queue or self.ask))[0]

    def consumers(self) -> int:
        """Return the number of consumers of the queue `ask`."""
        return self._call(self._counted(self.ask))[1]

    def close(self) -> None:
        try:
            self._call(self._end())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE)
            self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    # ── in the thread ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _has_link(self) -> None:
        await asyncio.shield(self._exchange)

    async def _stay_linked(self) -> None:
        self._own.add(asyncio.current_task())
        sent: Collection[aio_pika.Message] = ()
        while True:
            with contextlib.suppress(*GONE):
                connection = await aio_pika.connect(self._uri, timeout=PATIENCE, connection_class=CollectedConnection)
                lost = asyncio.Event()
                connection.close_callbacks.add(lambda *_, lost=lost: lost.set())
                async with connection:
                    channel = await connection.channel()
                    await channel.declare_queue(self.ask, durable=True)
                    answers = await channel.declare_queue(self.answers, durable=True, arguments=self._arguments)
                    await self._prepare(answers)
                    await answers.consume(self._on_message)
                    self._exchange.set_result(channel.default_exchange)
                    self._publish_unconfirmed(sent)
                    await lost.wait()
            if self._exchange.done():
                self._exchange = self._loop.create_future()
                sent = set(self._unconfirmed)
            await asyncio.sleep(PAUSE)

    async def _prepare(self, answers: AbstractQueue) -> None:
        """Declare what a subclass needs before responses arrive."""

    async def _on_message(self, message: AbstractIncomingMessage) -> None:
        self.messages.append(message)
        self.received.put(self.read(message.body))
        with contextlib.suppress(*GONE):
            await message.ack()

    async def _counted(self, queue: str) -> tuple[int, int]:
        exchange = await asyncio.shield(self._exchange)
        assert isinstance(exchange, aio_pika.Exchange)
        found = (await exchange.channel.declare_queue(queue, passive=True)).declaration_result
        return found.message_count or 0, found.consumer_count or 0

    def _publish_later(self, message: aio_pika.Message, to: str) -> None:
        self._unconfirmed[message] = to
        if self._exchange.done():
            self._publish_once(message)

    def _publish_unconfirmed(self, sent: Collection[aio_pika.Message]) -> None:
        """Publish all unconfirmed messages over a new link; those in `sent` were published before."""
        for message in self._unconfirmed:
            if message in sent:
                self.on_resend(message.body)
            self._publish_once(message)

    def _publish_once(self, message: aio_pika.Message) -> None:
        task = self._loop.create_task(self._confirmed(message, self._exchange.result()))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _confirmed(self, message: aio_pika.Message, exchange: AbstractExchange) -> None:
        with contextlib.suppress(*GONE):
            await exchange.publish(message, self._unconfirmed[message], timeout=PATIENCE)
            del self._unconfirmed[message]

    async def _publish(self, message: aio_pika.Message, to: str) -> None:
        """Publish until the broker confirms."""
        while True:
            exchange = await asyncio.shield(self._exchange)
            try:
                await exchange.publish(message, to, timeout=PATIENCE)
            except asyncio.CancelledError:
                # The library cancels what waits for a dead link; only a cancellation of this task is passed on.
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise
            except GONE:
                pass
            else:
                return
            await asyncio.sleep(PAUSE)

    async def _end(self) -> None:
        """Cancel the client's own tasks first, because the library needs its tasks to close the connection."""
        await self._cancel({*self._own, *self._sending})
        await self._cancel(asyncio.all_tasks() - {asyncio.current_task()})

    async def _cancel(self, tasks: Collection[asyncio.Task[Any] | None]) -> None:
        for task in tasks:
            if task is not None:
                task.cancel()
        if tasks:
            await asyncio.wait([task for task in tasks if task is not None], timeout=PATIENCE / 3)
