"""The load: modifies things and replays their past over one broker, and logs what it is told, synced.

    python -m tests.support.kill_series.load URI ASK ANSWERS LOG FIRST keyed|bare [LABEL]

Each modify writes a number that is written never again (they begin at FIRST) to `/attributes/n` of one of several things.
With `keyed`, each command carries an `idempotency-key`, so what the client's own library sends twice is one command all the
same; without, only the broker's marks tell what comes again.
With a LABEL, each command asks for this acknowledgement beside `twin-persisted`, and is told both together.
Meanwhile several replays run, one after the other for each of some things. `log` says what is logged.

SIGTERM stops the sending; the process ends when everything that was sent is answered and every replay has ended.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.clients.mqtt import BrokerClient
from tests.support.kill_series.clients import join
from tests.support.kill_series.log import LogWriter
from tests.support.kill_series.replays import Replaying

THINGS = 5
REPLAYED = 3
IN_FLIGHT = 40
AT_ONCE = 100
LOOKS = 0.5
ANSWERED_WITHIN = 90.0
NAMESPACE = "acme.kill"
PERSISTED = "twin-persisted"
PATIENT = "3s"
"""How long a command waits for acknowledgements."""


def thing_of(number: int) -> str:
    return f"device-{number % THINGS}"


def streaming(thing: str, what: str) -> str:
    return f"{NAMESPACE}/{thing}/things/twin/streaming/{what}"


class Load:
    """What one party sends and is told."""

    def __init__(
        self, requester: BrokerClient, log: LogWriter, first: int, *, is_keyed: bool, label: str | None = None
    ) -> None:
        self._party, self._log, self._is_keyed = requester, log, is_keyed
        self._label = label
        self._run = f"{os.getpid()}-{first}"
        self._next = first
        self._open: set[int] = set()
        self._newest: dict[str, int] = {}
        """The highest revision of each thing that was answered."""
        self._replays: dict[int, Replaying] = {}
        self._begun = self._keys = 0
        self._lines: list[dict[str, Any]] = []
        self._sends: list[tuple[str, str, Any, dict[str, Any]]] = []

    def __repr__(self) -> str:
        waiting = [replay for replay in self._replays.values() if not replay.is_over]
        return f"<Load, unanswered: {sorted(self._open)}, replays that have not ended: {waiting}>"

    @property
    def is_done(self) -> bool:
        return not self._open and all(replay.is_over for replay in self._replays.values())

    def fill(self) -> None:
        """Send modifies until enough of them are open, and begin replays where none runs."""
        for number in range(self._next, self._next + IN_FLIGHT - len(self._open)):
            thing = thing_of(number)
            self._lines.append({"sent": number, "thing": thing})
            self._open.add(number)
            self._next += 1
            asked = {"requested-acks": [PERSISTED, self._label], "timeout": PATIENT} if self._label is not None else {}
            self._send(
                f"{NAMESPACE}/{thing}/things/twin/commands/modify", "/attributes/n", number, str(number), **asked
            )
        running = {replay.thing for replay in self._replays.values() if not replay.is_over}
        for thing in map(thing_of, range(REPLAYED)):
            if thing not in running and thing in self._newest:
                self._begun += 1
                send = partial(self._ask, thing, self._begun)
                self._replays[self._begun] = Replaying(
                    self._begun, thing, self._newest[thing], send, self._lines.append
                )

    def _ask(self, thing: str, replay: int, what: str, value: dict[str, Any]) -> None:
        self._send(streaming(thing, what), "/", value, f"r{replay}")

    def _send(self, topic: str, path: str, value: Any, correlation: str, **asked: Any) -> None:
        headers = {"correlation-id": correlation, **asked}
        if self._is_keyed:
            self._keys += 1
            headers["idempotency-key"] = f"{self._run}-{self._keys}"
        self._sends.append((topic, path, value, headers))

    def take(self, document: dict[str, Any]) -> None:
        headers = document["headers"]
        correlation = headers["correlation-id"]
        if correlation.startswith("r"):
            self._replays[int(correlation[1:])].take(document)
            return
        number, status = int(correlation), document["status"]
        if self._label is not None and document["topic"].endswith("/acks"):
            promised = document["value"][self._label]
            headers, status = (document["value"][PERSISTED][name] for name in ("headers", "status"))
            if promised["status"] < 300 and "ditto-weak-ack" not in promised["headers"]:
                self._lines.append({"promised": number})
        revision = headers.get("entity-revision")
        self._lines.append({"answered": number, "status": status, "revision": revision})
        self._open.discard(number)
        if revision is not None:
            self._newest[thing_of(number)] = max(revision, self._newest.get(thing_of(number), 0))

    def look(self) -> None:
        for replay in self._replays.values():
            replay.look()

    def flush(self) -> None:
        """Log, and only then send."""
        if self._lines:
            self._log.write(*self._lines)
            self._lines.clear()
        for topic, path, value, headers in self._sends:
            self._party.command(topic, path, value, headers, wait=False)
        self._sends.clear()


def what_came(received: queue.Queue[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is there already, or comes in a moment; often nothing."""
    came: list[dict[str, Any]] = []
    with contextlib.suppress(queue.Empty):
        came.append(received.get(timeout=LOOKS))
        while len(came) < AT_ONCE:
            came.append(received.get_nowait())
    return came


def run(load: Load, requester: BrokerClient, stopping: threading.Event) -> None:
    """Raises AssertionError where nothing comes for a long time."""
    heard = looked = time.monotonic()
    while not stopping.is_set() or not load.is_done:
        if not stopping.is_set():
            load.fill()
        load.flush()
        for document in what_came(requester.received):
            load.take(document)
            heard = time.monotonic()
        if time.monotonic() - looked > LOOKS:
            looked = time.monotonic()
            load.look()
            assert looked - heard < ANSWERED_WITHIN, f"nothing came for {ANSWERED_WITHIN} s: {load}"
    load.flush()


def main(
    uri: str, ask: str, answers: str, log_path: Path, first: int, *, is_keyed: bool, label: str | None = None
) -> int:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    log = LogWriter(log_path)
    with join(uri, ask, answers) as requester:
        run(Load(requester, log, first, is_keyed=is_keyed, label=label), requester, stopping)
    log.close()
    return 0


if __name__ == "__main__":
    _, uri, ask, answers, log_path, first, keyed, *labels = sys.argv
    sys.exit(
        main(
            uri,
            ask,
            answers,
            Path(log_path),
            int(first),
            is_keyed=keyed == "keyed",
            label=labels[0] if labels else None,
        )
    )
