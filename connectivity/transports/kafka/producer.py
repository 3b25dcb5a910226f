"""The producer: sends messages and collects confirms.

Idempotent, with acknowledgements of all in-sync replicas: after reconnects by the library each record is in its
partition once and in order. The library sends in its own threads; its reports are polled on the event loop every
millisecond while messages are unconfirmed, which costs less than a thread that takes the interpreter lock for every
confirm.

The library remembers every topic, and looks at all of them often. Clients may choose topics, so after `MOST_TOPICS` a new
client of the library takes over. Messages to a topic that has unconfirmed ones at the former client wait for these.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from connectivity.errors import PublishFailed
from connectivity.transports.base import Done, OutboundMessage
from connectivity.transports.kafka.client_config import Settings
from connectivity.transports.kafka.errors import LINK_CAUSED_ERRORS, message_error
from connectivity.transports.kafka.records import ANY_PARTITION, SENDER, Header, parse_client_address, record_headers

POLL = 0.001
IDLE_POLL = 0.1
"""Seconds between two polls while messages are unconfirmed, and while none are."""

CONFIRM_TIMEOUT = 30.0
"""Seconds without a confirm, while messages are unconfirmed, after which the link is lost."""

FLUSH_TIMEOUT = 2.0

MOST_TOPICS = 1000
"""Topics of one client of the library, which takes about 5 KB for each."""

MOST_FORMER = 4
"""Former clients that still wait for confirms. Beyond them the last client takes further topics."""

SMALL = 4096
"""The largest payload in bytes of a doubtful message."""


class _Client:
    """A client of the library, and the topics that it knows."""

    __slots__ = ("producer", "topics")

    def __init__(self, settings: Settings) -> None:
        self.producer = Producer(settings)
        self.topics: dict[str, _Topic] = {}


class _Topic:
    """A topic at a client, with the number of its unconfirmed messages there."""

    __slots__ = ("client", "doubtful", "name", "unconfirmed")

    def __init__(self, name: str, client: _Client) -> None:
        self.name, self.client = name, client
        self.unconfirmed = 0
        self.doubtful: int | None = 0
        """The number of the small ones; None after a confirm, because the topic is not missing."""


class _Destination(NamedTuple):
    """The topic, key and headers of messages with one address, order and headers, as of a page."""

    address: str
    order: str | None
    headers: Mapping[str, str]
    topic: _Topic
    key: bytes | None
    partition: int
    record_headers: list[Header]


class KafkaProducer:
    """The producer of one link.

    `on_error` is called on the event loop with errors that are not about a message, `on_stuck` when confirms stop.
    """

    def __init__(
        self,
        settings: Settings,
        connection_id: str,
        *,
        on_error: Callable[[KafkaError, str], None],
        on_stuck: Callable[[], None],
        confirm_timeout: float = CONFIRM_TIMEOUT,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_error, self._on_stuck, self._stuck_after = on_error, on_stuck, confirm_timeout
        self._sender: list[Header] = [(SENDER, connection_id.encode())]
        self._destination: _Destination | None = None
        """That of the last message: the events of a page have the same."""
        self._settings = {**settings, "error_cb": self._failed}
        self._client = _Client(self._settings)
        self._former: list[_Client] = []
        """Earlier clients, with the topics that have unconfirmed messages there."""
        self._held: dict[str, deque[tuple[OutboundMessage, Done]]] = {}
        """Topic of a former client → messages that wait until it has confirmed the earlier ones."""
        self.unconfirmed = 0
        self.doubtful = 0
        """The number of small unconfirmed messages to topics that may be missing."""
        self._since = self._polled_at = self._loop.time()
        """When the last message was confirmed, or the first one sent after all were confirmed."""
        self._poll_timer: asyncio.TimerHandle | None = None
        self._is_polling_fast = self._is_stopping = False
        self._report = self._reported
        self.gone: Future[None] = Future()
        """Done when the producer is closed."""

    def start(self) -> None:
        self._poll()

    def send(self, message: OutboundMessage, done: Done) -> None:
        """Hand a message to the library. Never blocks, never raises."""
        if self._former and (topic := self._awaited_topic(message)) is not None:
            self._held.setdefault(topic, deque()).append((message, done))
            self.doubtful += len(message.envelope.payload) <= SMALL
        else:
            self._produce(message, done)

    def _produce(self, message: OutboundMessage, done: Done) -> None:
        envelope, destination = message.envelope, self._destination
        try:
            if (
                destination is None
                or envelope.headers is not destination.headers
                or message.address is not destination.address
                or message.order is not destination.order
            ):
                destination = self._destination = self._destination_of(message)
            topic = destination.topic
            topic.client.producer.produce(
                topic.name,
                envelope.payload,
                destination.key,
                destination.partition,
                partial(self._report, destination, done),
                headers=destination.record_headers,
            )
        except PublishFailed as error:
            done(error)
        except KafkaException as failure:
            self._refused(failure.args[0], message.address, done)
        except BufferError:
            done(PublishFailed("the Kafka client's send queue is full"))
        else:
            topic.unconfirmed += 1
            self.unconfirmed += 1
            if topic.doubtful is not None and len(envelope.payload) <= SMALL:
                topic.doubtful += 1
                self.doubtful += 1
            if not self._is_polling_fast:
                self._since = self._loop.time()
                self._schedule_poll(POLL)

    def _destination_of(self, message: OutboundMessage) -> _Destination:
        """Return where to send this message. Raises PublishFailed for an invalid address, and KafkaException."""
        name, key, partition = parse_client_address(message.address)
        if key is None and partition == ANY_PARTITION and message.order is not None:
            key = message.order.encode(errors="replace")
        if (topic := self._client.topics.get(name)) is None:
            client = self._client_for_new_topic()
            topic = client.topics[name] = _Topic(name, client)
        headers = message.envelope.headers
        return _Destination(
            message.address, message.order, headers, topic, key, partition, record_headers(headers, self._sender)
        )

    def stop(self, *, is_orderly: bool) -> None:
        """Stop polling (see `gone`). `is_orderly`: messages have a short time to reach the broker."""
        self._is_stopping = True
        if self._poll_timer is not None:
            self._poll_timer.cancel()
        clients = [*self._former, self._client]
        threading.Thread(target=self._end, args=(clients, is_orderly), name="kafka producer's end", daemon=True).start()

    # ── clients of the library ────────────────────────────────────────────────────────────────────────────────────────

    def _client_for_new_topic(self) -> _Client:
        """Return the last client, or another one in its place if it has enough topics. Raises KafkaException."""
        last = self._client
        if len(last.topics) >= MOST_TOPICS and len(self._former) < MOST_FORMER:
            self._client = _Client(self._settings)
            last.topics = {name: topic for name, topic in last.topics.items() if topic.unconfirmed}
            self._former.append(last)
        return self._client

    def _awaited_topic(self, message: OutboundMessage) -> str | None:
        """Return the topic of a message that must wait for a former client; None for other messages."""
        try:
            topic = parse_client_address(message.address).topic
        except PublishFailed:
            return None
        return topic if topic in self._held or self._is_at_former(topic) else None

    def _is_at_former(self, topic: str) -> bool:
        return any(topic in client.topics for client in self._former)

    def _release(self, topic: str) -> None:
        """Send the messages that have waited for a former client of their topic."""
        held = self._held.get(topic)
        # Meanwhile another client may take over again, or the link may end.
        while held and not self._is_at_former(topic) and not self._is_stopping:
            message, done = held.popleft()
            self.doubtful -= len(message.envelope.payload) <= SMALL
            self._produce(message, done)
        if held is not None and not held:
            del self._held[topic]

    def _end_former(self) -> None:
        """End the former clients whose messages are all confirmed."""
        for client in [client for client in self._former if not client.topics]:
            self._former.remove(client)
            threading.Thread(target=_end_client, args=(client,), name="kafka producer's end", daemon=True).start()

    # ── on the loop ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _schedule_poll(self, seconds: float) -> None:
        if self._poll_timer is not None:
            self._poll_timer.cancel()
        self._is_polling_fast = seconds == POLL
        self._poll_timer = self._loop.call_later(seconds, self._poll)

    def _poll(self) -> None:
        """Poll the library, which calls `_reported` and `_failed`; they may stop the producer."""
        self._polled_at = self._loop.time()
        try:
            for client in (*self._former, self._client):
                if not self._is_stopping:
                    client.producer.poll(0)
            if not self._is_stopping:
                self._end_former()
        finally:
            # Polling goes on after an error in one callback.
            if not self._is_stopping:
                self._schedule_poll(POLL if self.unconfirmed else IDLE_POLL)
                self._check_stuck()

    def _check_stuck(self) -> None:
        if self.unconfirmed and self._polled_at - self._since > self._stuck_after:
            self._since = self._polled_at
            self._on_stuck()

    def _reported(self, destination: _Destination, done: Done, error: KafkaError | None, message: Message) -> None:
        if self._is_stopping:
            return
        if error is None or error.code() not in LINK_CAUSED_ERRORS:
            self.unconfirmed -= 1
            self._since = self._polled_at
            topic = destination.topic
            topic.unconfirmed -= 1
            if topic.doubtful is not None:
                self._end_doubt(topic, message, is_known=error is None)
            if topic.client is not self._client and not topic.unconfirmed:
                del topic.client.topics[topic.name]
                self._release(topic.name)
        if error is None:
            done(None)
        else:
            self._refused(error, destination.address, done)

    def _end_doubt(self, topic: _Topic, message: Message, *, is_known: bool) -> None:
        """Process the outcome of a message to a topic that has confirmed none before."""
        assert topic.doubtful is not None
        if is_known:
            self.doubtful -= topic.doubtful
            topic.doubtful = None
        elif len(message) <= SMALL:
            self.doubtful -= 1
            topic.doubtful -= 1

    def _refused(self, error: KafkaError, address: str, done: Done) -> None:
        if error.code() in LINK_CAUSED_ERRORS:
            # The link ends; the message is sent again on the next one.
            self._on_error(error, "")
        else:
            topic, _, partition = parse_client_address(address)
            done(message_error(error, topic, has_partition=partition != ANY_PARTITION))

    def _failed(self, error: KafkaError) -> None:
        if not self._is_stopping:
            self._on_error(error, "")

    # ── in a thread ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _end(self, clients: Sequence[_Client], is_orderly: bool) -> None:
        deadline = time.monotonic() + FLUSH_TIMEOUT
        for client in clients:
            with contextlib.suppress(KafkaException):
                if is_orderly:
                    client.producer.flush(max(0.0, deadline - time.monotonic()))
                client.producer.purge()
                # The library keeps the callbacks of messages until it has called them.
                client.producer.poll(0)
            _end_client(client)
        self.gone.set_result(None)


def _end_client(client: _Client) -> None:
    # Deleting it waits for the library's threads, so it happens here and not on the event loop.
    del client.producer
