"""The producer and its thread: messages out from the loop, confirms back to it in batches.

Idempotent, with acknowledgements of all in-sync replicas: through cuts that the library mends, each record is in its
partition once and in order. The thread does nothing but wait for confirms, and tells the loop with one wake for as many as
are there.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from connectivity.brokers.base import Done, Outgoing
from connectivity.errors import PublishFailed
from connectivity.kafka.addresses import place_of
from connectivity.kafka.configuration import Settings
from connectivity.kafka.faults import WITHDRAWN, message_error
from connectivity.kafka.records import SENDER, Header, record_headers

POLL = 0.1
STUCK_AFTER = 30.0
"""Seconds without a confirm while messages wait for one."""

FAREWELL = 2.0


class Publishing:
    """One producer. `on_error` is called on the loop with errors that are about no message, `on_stuck` when nothing is
    confirmed any more."""

    def __init__(
        self,
        settings: Settings,
        connection_id: str,
        *,
        on_error: Callable[[KafkaError, str], None],
        on_stuck: Callable[[], None],
        stuck_after: float = STUCK_AFTER,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_error, self._on_stuck, self._stuck_after = on_error, on_stuck, stuck_after
        self._sender: list[Header] = [(SENDER, connection_id.encode())]
        self._producer = Producer({**settings, "error_cb": self._failed})
        self._outcomes: deque[tuple[Done, KafkaError | None, str]] = deque()
        self._sent = self._confirmed = 0
        self._is_waking = self._is_stopping = self._is_orderly = False
        self.gone: Future[None] = Future()
        """Done when the thread has ended and the producer is gone."""
        self._thread = threading.Thread(target=self._run, name="kafka producer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def unconfirmed(self) -> int:
        return self._sent - self._confirmed

    def send(self, message: Outgoing, done: Done) -> None:
        """Hand a message to the library. Never blocks, never raises."""
        envelope = message.envelope
        try:
            topic, key, number = place_of(message.address)
            self._producer.produce(
                topic,
                envelope.payload,
                key,
                number,
                partial(self._reported, done),
                headers=record_headers(envelope, self._sender),
            )
        except PublishFailed as error:
            done(error)
        except KafkaException as failure:
            done(message_error(failure.args[0], topic))
        except BufferError:
            done(PublishFailed("more is on its way than the client library holds"))
        else:
            self._sent += 1

    def stop(self, *, is_orderly: bool) -> None:
        """End the thread; see `gone`. `is_orderly`: what was handed over is given a moment to reach the broker."""
        self._is_stopping, self._is_orderly = True, is_orderly

    # ── in the thread ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        confirmed, since = 0, time.monotonic()
        while not self._is_stopping:
            self._producer.poll(POLL)
            if self._outcomes and not self._is_waking:
                self._is_waking = True
                self._call(self._wake)
            now = time.monotonic()
            if self._confirmed != confirmed or self._sent == self._confirmed:
                confirmed, since = self._confirmed, now
            elif now - since > self._stuck_after:
                self._call(self._on_stuck)
                since = now
        with contextlib.suppress(KafkaException):
            if self._is_orderly:
                self._producer.flush(FAREWELL)
            self._producer.purge()
        # Its end waits for the library's threads, so it comes here and not on the loop.
        del self._producer
        self.gone.set_result(None)

    def _reported(self, done: Done, error: KafkaError | None, message: Message) -> None:
        self._outcomes.append((done, error, "" if error is None else message.topic() or ""))

    def _failed(self, error: KafkaError) -> None:
        self._call(lambda: self._on_error(error, ""))

    def _call(self, what: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(what)

    # ── on the loop ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _wake(self) -> None:
        self._is_waking = False
        outcomes = self._outcomes
        while outcomes and not self._is_stopping:
            done, error, topic = outcomes.popleft()
            if error is None:
                self._confirmed += 1
                done(None)
            elif error.code() in WITHDRAWN:
                # The link ends; the message goes out again on the next one.
                self._on_error(error, "")
            else:
                self._confirmed += 1
                done(message_error(error, topic))
