"""The load: modifies things, retrieves and replays their past over one broker, with an fsynced log.

    python -m tests.support.kill_series.load URI ASK ANSWERS LOG OPTIONS

OPTIONS are `LoadOptions` as JSON. Each modify writes a unique number to `/attributes/n` of one of several things, with
the producers in turn (`Producer`). At the same time, replays run one after the other for each of some things, and some
retrieves read the past. `log` describes the lines of the log.

After SIGTERM it sends nothing, and ends when it has all responses and every replay has ended, or after a long silence;
the checker then finds the missing responses.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import signal
import sys
import threading
import time
from collections import deque
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.support.clients.mqtt import BrokerClient
from tests.support.dice import dice
from tests.support.kill_series.clients import join, publish
from tests.support.kill_series.log import LogWriter
from tests.support.kill_series.replays import Replaying

APART = 1_000_000_000
"""The distance between the first numbers of two loads."""

THINGS = 5
REPLAYED = 3
AT_ONCE = 100
LOOKS = 0.1
ANSWERED_WITHIN = 75.0
NAMESPACE = "acme.kill"
SUBSCRIBE = "subscribeForPersistedEvents"
PERSISTED = "twin-persisted"
TAG = "load-tag"
"""A header of the load that responses repeat. It identifies a command, but not for the service."""
PATIENT = "3s"
"""The timeout of acknowledgements."""
IMPATIENT = 0.4
"""Seconds until a producer sends a command again."""
MOST_RETRIES = 3
PAST_AT_ONCE = 3
REMEMBERED = 200


class Producer(StrEnum):
    """How a producer identifies its commands for the service.

    MESSAGE_ID: by the message ID, and retried with it (AMQP; over other brokers only with the same bytes). ENVELOPE: by
    the correlation ID in the payload. NONE: by nothing. KEYED: by an `idempotency-key`, and retried.
    """

    MESSAGE_ID = "message-id"
    ENVELOPE = "envelope"
    NONE = "none"
    KEYED = "keyed"


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a load; `first` is the first number.

    `label`: each command requests this acknowledgement and `twin-persisted`, and receives both together. `tolerated`:
    the statuses of injected faults. `is_lossy`: the broker loses confirmed messages, so all commands are retried until
    they have a response, without other requests and without an order.
    """

    first: int = 0
    producers: tuple[Producer, ...] = tuple(Producer)
    label: str | None = None
    tolerated: tuple[int, ...] = ()
    is_lossy: bool = False
    in_flight: int = 40


class Sending(NamedTuple):
    """A message for the next flush."""

    document: dict[str, Any]
    message_id: str | None


class Open:
    """A modify without a response."""

    __slots__ = ("due", "is_counted", "retries", "sending")

    def __init__(self, sending: Sending, *, is_counted: bool, retries: int) -> None:
        """`is_counted`: without a key, each sending is a new command. `retries`: the remaining retries."""
        self.sending, self.is_counted, self.retries = sending, is_counted, retries
        self.due = time.monotonic() + IMPATIENT


def thing_of(number: int) -> str:
    return f"device-{number % THINGS}"


def streaming(thing: str, what: str) -> str:
    return f"{NAMESPACE}/{thing}/things/twin/streaming/{what}"


def command(thing: str, action: str) -> str:
    return f"{NAMESPACE}/{thing}/things/twin/commands/{action}"


class Load:
    """The requests and responses of one client."""

    def __init__(self, requester: BrokerClient, log: LogWriter, options: LoadOptions) -> None:
        self._party, self._log, self._options = requester, log, options
        self._run = f"{os.getpid()}-{options.first}"
        self._next = options.first
        self._dice = dice("load", options.first)
        self._open: dict[int, Open] = {}
        self._newest: dict[str, int] = {}
        """The highest revision of each thing in a response."""
        self._instants: dict[str, deque[str]] = {thing_of(number): deque(maxlen=REMEMBERED) for number in range(THINGS)}
        """The times of responses about each thing."""
        self._replays: dict[int, Replaying] = {}
        self._past: set[int] = set()
        self._ids = itertools.count(1)
        self._lines: list[dict[str, Any]] = [{"load": msgspec.to_builtins(options)}]
        self._sends: list[Sending] = []
        requester.on_resend = self._note_resend

    def __repr__(self) -> str:
        waiting = [replay for replay in self._replays.values() if not replay.is_over]
        return f"<Load, unanswered: {sorted(self._open)}, of the past: {self._past}, replays that have not ended: {waiting}>"

    @property
    def is_done(self) -> bool:
        return not self._open and not self._past and all(replay.is_over for replay in self._replays.values())

    def fill(self) -> None:
        """Send modifies until enough are open, retrieve the past, and start replays."""
        for number in range(self._next, self._next + self._options.in_flight - len(self._open)):
            self._modify(number)
            self._next += 1
        if self._options.is_lossy:
            return
        while len(self._past) < PAST_AT_ONCE and self._newest:
            self._look_back()
        running = {replay.thing for replay in self._replays.values() if not replay.is_over}
        for thing in map(thing_of, range(REPLAYED)):
            if thing not in running and thing in self._newest:
                number = next(self._ids)
                send = partial(self._ask, thing, number)
                self._replays[number] = Replaying(number, thing, self._newest[thing], send, self._lines.append)

    def _modify(self, number: int) -> None:
        thing, producer = thing_of(number), self._options.producers[number % len(self._options.producers)]
        self._lines.append({"sent": number, "thing": thing, "at": time.time()})
        headers: dict[str, Any] = {}
        if (label := self._options.label) is not None:
            headers |= {"requested-acks": [PERSISTED, label], "timeout": PATIENT}
        sending = self._send(command(thing, "modify"), "/attributes/n", number, str(number), producer, headers)
        retries = sys.maxsize if self._options.is_lossy else MOST_RETRIES
        if producer not in (Producer.MESSAGE_ID, Producer.KEYED) or label is not None:
            retries = 0
        self._open[number] = Open(sending, is_counted=producer is not Producer.KEYED, retries=retries)
        if retries and self._dice.random() < 0.1:
            # Both messages are in flight.
            self._retry(number)

    def _retry(self, number: int) -> None:
        it = self._open[number]
        it.retries -= 1
        it.due = time.monotonic() + IMPATIENT
        if it.is_counted:
            self._lines.append({"again": number})
        self._sends.append(it.sending)

    def _look_back(self) -> None:
        thing = self._dice.choice(sorted(self._newest))
        number = next(self._ids)
        if self._newest[thing] > 2 and self._dice.random() < 0.5:
            header, value = "at-historical-revision", str(self._dice.randrange(2, self._newest[thing]))
        else:
            header, value = "at-historical-timestamp", self._dice.choice(self._instants[thing])
        self._lines.append({"asked": number, "thing": thing, "header": header, "value": value, "at": time.time()})
        self._past.add(number)
        producer = self._dice.choice(self._options.producers)
        self._send(command(thing, "retrieve"), "/attributes/n", None, f"p{number}", producer, {header: value})

    def _ask(self, thing: str, replay: int, what: str, value: dict[str, Any]) -> None:
        producer = Producer.KEYED if replay % 2 else Producer.MESSAGE_ID
        self._send(streaming(thing, what), "/", value, f"r{replay}", producer, {})

    def _send(
        self, topic: str, path: str, value: Any, tag: str, producer: Producer, headers: dict[str, Any]
    ) -> Sending:
        headers[TAG] = tag
        if producer is not Producer.NONE:
            headers["correlation-id"] = tag
        name = f"{self._run}-{next(self._ids)}"
        if producer is Producer.KEYED:
            headers["idempotency-key"] = name
        document = {"topic": topic, "path": path, "headers": headers}
        if value is not None:
            document["value"] = value
        sending = Sending(document, name if producer in (Producer.MESSAGE_ID, Producer.KEYED) else None)
        self._sends.append(sending)
        return sending

    def _note_resend(self, payload: bytes) -> None:
        """Log that the client sends a message again, which without a key is a new command for the service."""
        document = json.loads(payload)
        tag = document["headers"][TAG]
        if "idempotency-key" in document["headers"]:
            return
        if tag.isdecimal():
            self._log.write({"again": int(tag)})
        elif document["topic"].endswith("/request"):
            self._log.write({"replay": int(tag[1:]), "demanded": document["value"]["demand"]})

    def take(self, document: dict[str, Any]) -> None:
        headers = document["headers"]
        tag = headers[TAG]
        if tag.startswith("r"):
            self._replays[int(tag[1:])].take(document)
        elif tag.startswith("p"):
            number, shown = int(tag[1:]), document.get("value")
            self._lines.append({"shown": number, "status": document["status"], "n": shown, "at": time.time()})
            self._past.discard(number)
        else:
            self._take_answer(int(tag), document)

    def _take_answer(self, number: int, document: dict[str, Any]) -> None:
        headers, status = document["headers"], document["status"]
        if (label := self._options.label) is not None and document["topic"].endswith("/acks"):
            acknowledgement = document["value"][label]
            headers, status = (document["value"][PERSISTED][name] for name in ("headers", "status"))
            if acknowledgement["status"] < 300 and "ditto-weak-ack" not in acknowledgement["headers"]:
                self._lines.append({"acknowledged": number})
        revision = headers.get("entity-revision")
        self._lines.append({"answered": number, "status": status, "revision": revision, "at": time.time()})
        self._open.pop(number, None)
        if status < 300 and revision is not None:
            thing = thing_of(number)
            self._newest[thing] = max(revision, self._newest.get(thing, 0))
            self._instants[thing].append(datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"))

    def look(self) -> None:
        """Send again the commands and requests whose response is late."""
        for replay in self._replays.values():
            replay.look()
        now = time.monotonic()
        for number, it in self._open.items():
            if it.retries and now >= it.due:
                self._retry(number)

    def flush(self) -> None:
        """Write the log, and then send."""
        if self._lines:
            self._log.write(*self._lines)
            self._lines.clear()
        for document, message_id in self._sends:
            publish(self._party, document, message_id)
        self._sends.clear()


def received_messages(received: queue.Queue[dict[str, Any]], within: float = LOOKS) -> list[dict[str, Any]]:
    """Return the messages that have arrived or arrive soon, often none."""
    came: list[dict[str, Any]] = []
    with contextlib.suppress(queue.Empty):
        came.append(received.get(timeout=within))
        while len(came) < AT_ONCE:
            came.append(received.get_nowait())
    return came


def run(load: Load, requester: BrokerClient, stopping: threading.Event) -> None:
    """Run until stopped and all responses are here, or until nothing arrives for long."""
    last_message = looked = time.monotonic()
    while not stopping.is_set() or not load.is_done:
        if requester.is_linked:
            if not stopping.is_set():
                load.fill()
            load.flush()
        for document in received_messages(requester.received):
            load.take(document)
            last_message = time.monotonic()
        if time.monotonic() - looked > LOOKS:
            looked = time.monotonic()
            load.look()
            if looked - last_message > ANSWERED_WITHIN:
                print(f"nothing came for {ANSWERED_WITHIN} s: {load}", file=sys.stderr)
                break
    load.flush()


def main(uri: str, ask: str, answers: str, log_path: Path, options: LoadOptions) -> int:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    log = LogWriter(log_path)
    with join(uri, ask, answers) as requester:
        run(Load(requester, log, options), requester, stopping)
    log.close()
    return 0


if __name__ == "__main__":
    _, uri, ask, answers, log_path, options = sys.argv
    sys.exit(main(uri, ask, answers, Path(log_path), msgspec.json.decode(options, type=LoadOptions)))
