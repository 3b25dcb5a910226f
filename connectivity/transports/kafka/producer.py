"""The producer: sends messages and collects confirms.

Idempotent, with acknowledgements of all in-sync replicas: after reconnects by the library each record is in its
partition once and in order. The library sends in its own threads; its reports are polled on the event loop every
millisecond while messages are unconfirmed, which costs less than a thread that takes the interpreter lock for every
confirm.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial

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


class KafkaProducer:
    """One producer.

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
        self._shared: tuple[Mapping[str, str], list[Header]] = ({}, self._sender)
        """The headers of the last envelope and their record headers: the events of a page have the same."""
        self._producer = Producer({**settings, "error_cb": self._failed})
        self.unconfirmed = 0
        self._since = self._loop.time()
        """When the last message was confirmed, or the first one sent after all were confirmed."""
        self._poll_timer: asyncio.TimerHandle | None = None
        self._is_polling_fast = self._is_stopping = False
        self.gone: Future[None] = Future()
        """Done when the producer is closed."""

    def start(self) -> None:
        self._poll()

    def send(self, message: OutboundMessage, done: Done) -> None:
        """Hand a message to the library. Never blocks, never raises."""
        envelope = message.envelope
        try:
            topic, key, number = parse_client_address(message.address)
            if key is None and number == ANY_PARTITION and message.order is not None:
                key = message.order.encode(errors="replace")
            self._producer.produce(
                topic,
                envelope.payload,
                key,
                number,
                partial(self._reported, done, number != ANY_PARTITION),
                headers=self._headers(envelope.headers),
            )
        except PublishFailed as error:
            done(error)
        except KafkaException as failure:
            self._refused(failure.args[0], topic, done, has_partition=number != ANY_PARTITION)
        except BufferError:
            done(PublishFailed("the Kafka client's send queue is full"))
        else:
            self.unconfirmed += 1
            if not self._is_polling_fast:
                self._since = self._loop.time()
                self._schedule_poll(POLL)

    def _headers(self, headers: Mapping[str, str]) -> list[Header]:
        known, found = self._shared
        if headers is not known:
            found = record_headers(headers, self._sender)
            self._shared = headers, found
        return found

    def stop(self, *, is_orderly: bool) -> None:
        """Stop polling (see `gone`). `is_orderly`: messages have a short time to reach the broker."""
        self._is_stopping = True
        if self._poll_timer is not None:
            self._poll_timer.cancel()
        threading.Thread(target=self._end, args=(is_orderly,), name="kafka producer's end", daemon=True).start()

    # ── on the loop ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _schedule_poll(self, seconds: float) -> None:
        if self._poll_timer is not None:
            self._poll_timer.cancel()
        self._is_polling_fast = seconds == POLL
        self._poll_timer = self._loop.call_later(seconds, self._poll)

    def _poll(self) -> None:
        """Poll the library, which calls `_reported` and `_failed`; they may stop the producer."""
        try:
            self._producer.poll(0)
        finally:
            # Polling goes on after an error in one callback.
            if not self._is_stopping:
                self._schedule_poll(POLL if self.unconfirmed else IDLE_POLL)
                self._check_stuck()

    def _check_stuck(self) -> None:
        if self.unconfirmed and self._loop.time() - self._since > self._stuck_after:
            self._since = self._loop.time()
            self._on_stuck()

    def _reported(self, done: Done, has_partition: bool, error: KafkaError | None, message: Message) -> None:
        if self._is_stopping:
            return
        if error is None:
            self._confirmed()
            done(None)
        else:
            if error.code() not in LINK_CAUSED_ERRORS:
                self._confirmed()
            self._refused(error, message.topic() or "", done, has_partition=has_partition)

    def _refused(self, error: KafkaError, topic: str, done: Done, *, has_partition: bool) -> None:
        if error.code() in LINK_CAUSED_ERRORS:
            # The link ends; the message is sent again on the next one.
            self._on_error(error, "")
        else:
            done(message_error(error, topic, has_partition=has_partition))

    def _confirmed(self) -> None:
        self.unconfirmed -= 1
        self._since = self._loop.time()

    def _failed(self, error: KafkaError) -> None:
        if not self._is_stopping:
            self._on_error(error, "")

    # ── in a thread ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _end(self, is_orderly: bool) -> None:
        with contextlib.suppress(KafkaException):
            if is_orderly:
                self._producer.flush(FLUSH_TIMEOUT)
            self._producer.purge()
        # Deleting it waits for the library's threads, so it happens here and not on the event loop.
        del self._producer
        self.gone.set_result(None)
