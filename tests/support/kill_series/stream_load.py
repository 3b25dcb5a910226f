"""A writer and a reader of a stream, each as a process with an fsynced log.

    python -m tests.support.kill_series.stream_load write|read|recall URI ASK ANSWERS LOG

The writer publishes unique numbers, each with its own key (`Correlation Data`, `correlation-id`), so that a repeated
publish is one message. The reader works like the protocol's own clients: it subscribes once, and requests missing
messages by their predecessors. `recall` requests all messages as a new client, and ends when they have arrived. SIGUSR1
stops the publishing, SIGTERM ends writer and reader. Streamr protocol, client behavior.

One JSON object a line of the logs:

    {"published": n}                                                      before it is sent
    {"got": offset, "partition": …, "previous": …, "n": n, "digest": …}   a message, each time that it arrives
    {"read": offset, "partition": …, "n": n}                              a message that the client delivers, in its order
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from paho.mqtt.client import MQTTv5

from tests.support.clients.amqp import AmqpClient
from tests.support.clients.mqtt import BrokerClient, MqttClient
from tests.support.kill_series.clients import join
from tests.support.kill_series.log import LogWriter

STREAM = "acme.kill:tank"
PARTITIONS = 2

SPREAD = 7
"""The number of partition keys; both partitions have some of them."""

PACE = 0.02
"""Seconds between two messages."""

LOOKS = 0.2
AGAIN = 10.0
"""Seconds without a response, or a message of a recall, after which a request is sent again."""

ANSWERED_WITHIN = 90.0

Send = Callable[[dict[str, Any]], None]
Note = Callable[[dict[str, Any]], None]


def line_of(message: list[Any], partition: int) -> dict[str, Any]:
    """Return the log line for a received message."""
    _, _, _, _, _, offset, previous, _, content = message
    digest = blake2b(json.dumps(message).encode(), digest_size=8).hexdigest()
    number = json.loads(content)["n"]
    return {"got": offset, "partition": partition, "previous": previous, "n": number, "digest": digest}


class Partition:
    """A reader of one partition."""

    def __init__(self, number: int, send: Send, note: Note, *, recalls: bool = False) -> None:
        self.number = number
        self.is_subscribed = self.is_recalled = False
        self.last: int | None = None
        self._ahead: dict[int, dict[str, Any]] = {}
        """Messages after a gap, by offset."""
        self._send, self._note, self._recalls = send, note, recalls
        self._asked: float | None = None
        """The time of a request without a response."""
        self._subs = 0

    def __repr__(self) -> str:
        return f"<{self.number}: read {self.last}, {len(self._ahead)} behind a hole, asked at {self._asked}>"

    def look(self, now: float) -> None:
        """Send the request that is needed next, unless one is waiting for its response."""
        if self._asked is not None and now < self._asked + AGAIN:
            return
        wish = self._wish()
        self._asked = now if wish is not None else None
        if wish is not None:
            self._send({**wish, "stream": STREAM, "partition": self.number})

    def _wish(self) -> dict[str, Any] | None:
        if self._recalls:
            return None if self.is_recalled else {"type": "resend", "sub": self._sub(), "resend_all": True}
        if not self.is_subscribed:
            return {"type": "subscribe"}
        if self._ahead:
            first = self._ahead[min(self._ahead)]
            start = 1 if self.last is None else self.last + 1
            return {"type": "resend", "sub": self._sub(), "resend_from": start, "resend_to": first["previous"]}
        return None

    def _sub(self) -> str:
        self._subs += 1
        return f"{self.number}-{self._subs}"

    def answered(self, kind: int, sub: str | None, now: float) -> None:
        """Handle the response to a request."""
        if kind == 2:
            self.is_subscribed = True
        elif sub != f"{self.number}-{self._subs}":
            return
        self.is_recalled = self.is_recalled or kind in (5, 6)
        # Request missing messages again a little later.
        self._asked = now - AGAIN + 1.0 if kind == 7 else None
        self.look(now)

    def came(self, message: list[Any], now: float) -> None:
        got = line_of(message, self.number)
        self._note(got)
        if self._recalls:
            # The response comes after all messages.
            self._asked = now
        if self.last is None or got["got"] > self.last:
            self._ahead[got["got"]] = got
        while self._ahead and self._fits(first := self._ahead[min(self._ahead)]):
            del self._ahead[first["got"]]
            self.last = first["got"]
            self._note({"read": self.last, "partition": self.number, "n": first["n"]})
        self.look(now)

    def _fits(self, message: dict[str, Any]) -> bool:
        return message["previous"] is None or (self.last is not None and message["previous"] <= self.last)


class Reader:
    """A reader of all partitions."""

    def __init__(self, send: Send, note: Note, *, recalls: bool = False) -> None:
        self.partitions = [Partition(number, send, note, recalls=recalls) for number in range(PARTITIONS)]

    def __repr__(self) -> str:
        return f"<Reader {self.partitions}>"

    @property
    def is_done(self) -> bool:
        return all(partition.is_recalled for partition in self.partitions)

    def look(self, now: float) -> None:
        for partition in self.partitions:
            partition.look(now)

    def take(self, frame: list[Any], now: float) -> None:
        _, kind, _, payload = frame
        if kind in (0, 1):
            self.partitions[payload[2]].came(payload, now)
        elif kind in (2, 5, 6, 7):
            self.partitions[payload.get("partition") or 0].answered(kind, payload.get("sub"), now)


def frames_of(requester: BrokerClient) -> list[list[Any]]:
    """Return the frames that have arrived or arrive soon, often none."""
    came: list[Any] = []
    with contextlib.suppress(queue.Empty):
        came.append(requester.received.get(timeout=LOOKS))
        while True:
            came.append(requester.received.get_nowait())
    return came


def read(requester: BrokerClient, log_path: Path, stopping: threading.Event, *, recalls: bool) -> None:
    """Read until stopped or all messages are here. Raises AssertionError if they do not arrive in time."""
    lines: list[dict[str, Any]] = []
    reader = Reader(lambda request: requester.send(request, wait=False), lines.append, recalls=recalls)
    log = LogWriter(log_path)
    end = time.monotonic() + ANSWERED_WITHIN
    while not stopping.is_set() and not (recalls and reader.is_done):
        now = time.monotonic()
        assert not recalls or now < end, f"not everything came within {ANSWERED_WITHIN} s: {reader}"
        reader.look(now)
        for frame in frames_of(requester):
            reader.take(frame, time.monotonic())
        if lines:
            log.write(*lines)
            lines.clear()
    log.close()


def write(requester: BrokerClient, log_path: Path, stopping: threading.Event) -> None:
    """Publish until SIGUSR1, then wait for SIGTERM while the library sends the rest."""
    enough = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: enough.set())
    log = LogWriter(log_path)
    number = 0
    while not enough.is_set():
        # Not `Event.wait`: a signal handler that sets the event while the wait holds its lock would block forever.
        time.sleep(PACE)
        number += 1
        log.write({"published": number})
        message = {"type": "publish", "stream": STREAM, "pkey": f"k{number % SPREAD}", "msg": json.dumps({"n": number})}
        if isinstance(requester, AmqpClient):
            requester.send(message, wait=False, correlation_id=f"key-{number}")
        elif isinstance(requester, MqttClient):
            requester.send(message, wait=False, CorrelationData=f"key-{number}".encode())
        # The reader checks the responses.
        with contextlib.suppress(queue.Empty):
            while True:
                requester.received.get_nowait()
    log.write({"over": number})
    log.close()
    while not stopping.is_set():
        time.sleep(PACE)


def writer(uri: str, ask: str, answers: str) -> BrokerClient:
    """Return a client whose messages have keys: over MQTT, one of MQTT 5."""
    requester = join(uri, ask, answers)
    if not isinstance(requester, MqttClient):
        return requester
    requester.close()
    host, _, port = uri.removeprefix("tcp://").rpartition(":")
    return MqttClient(host, int(port), ask=ask, answers=answers, version=MQTTv5)


def main(what: str, uri: str, ask: str, answers: str, log_path: Path) -> int:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with writer(uri, ask, answers) if what == "write" else join(uri, ask, answers) as requester:
        if what == "write":
            write(requester, log_path, stopping)
        else:
            read(requester, log_path, stopping, recalls=what == "recall")
    return 0


if __name__ == "__main__":
    _, what, uri, ask, answers, log_path = sys.argv
    sys.exit(main(what, uri, ask, answers, Path(log_path)))
