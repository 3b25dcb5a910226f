"""A reader of a stream over reactive-streams-io, as a process, with an fsynced log of its elements.

    python -m tests.support.kill_series.stream_frame_reader URI ASK ANSWERS LOG

It subscribes to each partition of the stream of `stream_load`, over a broker or a TCP listener (`rsio://host:port`,
without ASK and ANSWERS). A proxy resets its link repeatedly, so links break at any byte, and over MQTT messages are
lost. If a link or a message is lost, the reader resumes its session over another link; if the service does not know the
session, it subscribes again after the last message. It logs each element as it arrives, without correcting order or
duplicates. SIGTERM ends it.

Its log has the lines of `tests.support.kill_series.stream_load`, and lines about sessions:

    {"session": "begun"} or "cut", "interrupted", "resumed", "not resumed", "over", with a "reason"
"""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import signal
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from paho.mqtt.client import MQTTv5
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from mappings.reactive_streams_io.endpoint import Endpoint, EndpointRole
from mappings.reactive_streams_io.events import (
    Closed,
    Completed,
    ElementsReceived,
    EndpointEvent,
    Interrupted,
    NotResumed,
    Resumed,
    StreamFailed,
)
from mappings.reactive_streams_io.limits import EndpointLimits
from mappings.reactive_streams_io.resumption import ResumeToken
from tests.support.brokers.proxy import ProxyThread
from tests.support.clients.amqp import AmqpClient
from tests.support.clients.mqtt import BrokerClient, MqttClient
from tests.support.dice import dice
from tests.support.kill_series.log import LogWriter
from tests.support.kill_series.stream_load import PARTITIONS, STREAM, line_of

LOOKS = 0.2
PAUSE = 0.2
PAGE = 16
"""The number of elements per request."""

LIMITS = EndpointLimits(hello_timeout=5.0, silence_before_ping=1.0, silence_before_loss=6.0)
"""Shorter timeouts than usual, to notice soon that the service was killed."""

CONFIRMED_WITHIN = 5.0
"""Seconds until an unconfirmed message is lost; the MQTT library may lose one during a reconnect."""

LIVES = (0.2, 2.5)
"""The shortest and longest life of a link, in seconds."""


class Lost(Exception):
    """The link is lost."""


class Way(ABC):
    """A link to the service, from connect to close."""

    has_messages: bool

    @abstractmethod
    def send(self, raw: bytes) -> None:
        """Send bytes. Raises Lost."""

    @abstractmethod
    def receive(self) -> list[bytes]:
        """Return the bytes that have arrived or arrive soon. Raises Lost."""

    @abstractmethod
    def close(self) -> None: ...


class ImpatientClient(MqttClient):
    """An MQTT 5 client that raises an error if the broker does not confirm a message soon."""

    def send(self, document: Any, *, answers: str = "", **_: Any) -> None:
        """Publish bytes. Raises TimeoutError."""
        properties = Properties(PacketTypes.PUBLISH)
        properties.ResponseTopic = answers
        sent = self._client.publish(self.ask, document, 1, properties=properties)
        sent.wait_for_publish(CONFIRMED_WITHIN)
        if not sent.is_published():
            raise TimeoutError(f"not confirmed within {CONFIRMED_WITHIN} s")


class BrokerWay(Way):
    """A client of the broker with a reply address of its own. It survives the loss of its link."""

    has_messages = True

    def __init__(self, uri: str, ask: str, answers: str) -> None:
        """Connect. Raises Lost."""
        parts = urlsplit(uri)
        try:
            self._party: BrokerClient = (
                AmqpClient(uri, ask=ask, answers=answers)
                if parts.scheme == "amqp"
                else ImpatientClient(
                    str(parts.hostname), int(parts.port or 0), ask=ask, answers=answers, version=MQTTv5
                )
            )
        except (OSError, TimeoutError, AssertionError) as error:
            raise Lost(str(error)) from error
        self._party.read = bytes
        self._says: dict[str, Any] = {} if parts.scheme == "amqp" else {"answers": answers}

    def send(self, raw: bytes) -> None:
        # One message at a time, to keep their order when the link changes.
        try:
            self._party.send(raw, **self._says)
        except (OSError, TimeoutError, RuntimeError, ValueError) as error:
            raise Lost(str(error)) from error

    def receive(self) -> list[bytes]:
        came: list[bytes] = []
        with contextlib.suppress(queue.Empty):
            came.append(self._party.received.get(timeout=LOOKS))
            while True:
                came.append(self._party.received.get_nowait())
        return came

    def close(self) -> None:
        with contextlib.suppress(OSError, TimeoutError, RuntimeError):
            self._party.close()


class SocketPath(Way):
    """A TCP socket."""

    has_messages = False

    def __init__(self, host: str, port: int) -> None:
        """Connect. Raises Lost."""
        try:
            self._socket = socket.create_connection((host, port), timeout=5)
        except OSError as error:
            raise Lost(str(error)) from error

    def send(self, raw: bytes) -> None:
        try:
            self._socket.sendall(raw)
        except OSError as error:
            raise Lost(str(error)) from error

    def receive(self) -> list[bytes]:
        self._socket.settimeout(LOOKS)
        try:
            came = self._socket.recv(1 << 16)
        except TimeoutError:
            return []
        except OSError as error:
            raise Lost(str(error)) from error
        if not came:
            raise Lost("the peer has closed the connection")
        return [came]

    def close(self) -> None:
        self._socket.close()


class Ways:
    """Opens links through one proxy, and resets them."""

    def __init__(self, uri: str, ask: str, answers: str) -> None:
        self._uri, self._ask, self._answers = urlsplit(uri), ask, answers
        self._numbers = itertools.count(1)
        self.proxy = ProxyThread(str(self._uri.hostname), int(self._uri.port or 0))
        self._next_cut = 0.0
        self._dice = dice("lives of links", self._uri.scheme)

    def open(self) -> Way:
        """Open a link. Raises Lost."""
        if self._uri.scheme == "rsio":
            return SocketPath(self.proxy.host, self.proxy.port)
        login, at, _ = self._uri.netloc.rpartition("@")
        netloc = f"{login}{at}{self.proxy.host}:{self.proxy.port}"
        separator = "/" if "/" in self._answers else "."
        answers = f"{self._answers}{separator}{next(self._numbers)}"
        return BrokerWay(urlunsplit(self._uri._replace(netloc=netloc)), self._ask, answers)

    def cut(self, now: float) -> bool:
        """Reset all links if it is time, and return whether it was."""
        if now < self._next_cut:
            return False
        is_first = not self._next_cut
        self._next_cut = now + self._dice.uniform(*LIVES)
        if not is_first:
            self.proxy.cut()
        return not is_first


class Reader:
    """Follows the stream from one session to the next."""

    def __init__(self, ways: Ways, log: LogWriter) -> None:
        self._ways, self._log = ways, log
        self._lines: list[dict[str, Any]] = []
        self._way: Way | None = None
        self._endpoint: Endpoint | None = None
        self._ticket: ResumeToken | None = None
        self._last: dict[int, int] = {}
        """The offset of the last message, by partition."""
        self._partitions: dict[int, int] = {}
        """The partition, by stream."""
        self._wanted: dict[int, int] = {}
        """The requested elements that have not arrived, by stream."""
        self._again: dict[int, float] = {}
        """When to subscribe again, by partition without a subscription."""

    def run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                self._turn(time.monotonic())
            except Lost as error:
                self._lose(str(error))
                stopping.wait(PAUSE)
            if self._lines:
                self._log.write(*self._lines)
                self._lines.clear()
        self._leave()

    def _turn(self, now: float) -> None:
        """Send and receive once."""
        if self._ways.cut(now):
            self._note("cut")
        way, endpoint = self._linked(now)
        for partition in [each for each, due in self._again.items() if now >= due]:
            del self._again[partition]
            self._subscribe(endpoint, partition)
        while payload := endpoint.take():
            way.send(payload)
        events: list[EndpointEvent] = []
        for raw in way.receive():
            events += endpoint.receive(raw, time.monotonic())
        events += endpoint.tick(time.monotonic())
        self._react(endpoint, events)

    def _linked(self, now: float) -> tuple[Way, Endpoint]:
        if self._way is None or self._endpoint is None:
            self._way = self._ways.open()
            has_messages = self._way.has_messages
            self._endpoint = Endpoint(
                EndpointRole.CLIENT, time.monotonic(), limits=LIMITS, has_messages=has_messages, ticket=self._ticket
            )
            if self._ticket is None:
                self._note("begun")
                self._begin_anew(now)
        return self._way, self._endpoint

    def _begin_anew(self, due: float) -> None:
        self._partitions.clear()
        self._wanted.clear()
        self._again = dict.fromkeys(range(PARTITIONS), due)

    def _subscribe(self, endpoint: Endpoint, partition: int) -> None:
        start = self._last.get(partition)
        where = "resend_all=true" if start is None else f"resend_from={start + 1}"
        stream = endpoint.subscribe(f"streams/{STREAM}/{partition}?{where}&follow=true", PAGE)
        self._partitions[stream], self._wanted[stream] = partition, PAGE

    def _react(self, endpoint: Endpoint, events: list[EndpointEvent]) -> None:
        for event in events:
            match event:
                case ElementsReceived(stream, elements):
                    self._came(endpoint, stream, elements)
                case StreamFailed(stream) | Completed(stream):
                    partition = self._partitions.pop(stream)
                    self._again[partition] = time.monotonic() + PAUSE
                case Resumed():
                    self._note("resumed")
                case NotResumed(reason):
                    self._note("not resumed", reason)
                case Interrupted(reason):
                    self._note("interrupted", reason)
                    self._ticket = endpoint.ticket()
                    self._leave()
                case Closed(reason):
                    self._note("over", reason)
                    self._ticket = None
                    self._leave()
                case _:
                    pass

    def _came(self, endpoint: Endpoint, stream: int, elements: Any) -> None:
        partition = self._partitions[stream]
        for element in elements:
            got = line_of(json.loads(element), partition)
            self._last[partition] = got["got"]
            self._lines += (got, {"read": got["got"], "partition": partition, "n": got["n"]})
        self._wanted[stream] -= len(elements)
        if self._wanted[stream] <= PAGE // 2 and endpoint.session.request(stream, PAGE):
            self._wanted[stream] += PAGE

    def _lose(self, reason: str) -> None:
        if self._endpoint is not None:
            self._react(self._endpoint, self._endpoint.lose(time.monotonic(), reason))
        self._leave()

    def _leave(self) -> None:
        if self._way is not None:
            self._way.close()
        self._way = self._endpoint = None

    def _note(self, what: str, reason: str = "") -> None:
        self._lines.append({"session": what, "reason": reason})


@contextlib.contextmanager
def through_a_proxy(uri: str, ask: str, answers: str) -> Iterator[Ways]:
    ways = Ways(uri, ask, answers)
    with ways.proxy:
        yield ways


def main(uri: str, ask: str, answers: str, log_path: Path) -> int:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    log = LogWriter(log_path)
    with through_a_proxy(uri, ask, answers) as ways:
        Reader(ways, log).run(stopping)
    log.close()
    return 0


if __name__ == "__main__":
    _, uri, ask, answers, log_path = sys.argv
    sys.exit(main(uri, ask, answers, Path(log_path)))
