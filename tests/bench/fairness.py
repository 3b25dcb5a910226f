"""Benchmark of fairness on one link: a client subscribes and cancels while many replays run."""

from __future__ import annotations

import json
import statistics
import time
from itertools import count
from pathlib import Path

from tests.bench.harness import FULL, MESSAGE_BYTES, SUBJECT, Scale, fill, serving, sink, thing
from tests.bench.report import Figure
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import client, connection, source

REPLAYS, EVENTS_EACH, SECONDS = 100, 9_000, 9.0
UNBOUNDED = 2**63 - 1
FEW = 5
"""The elements that the client receives before it cancels its replay."""


class Beside:
    """A client with its own source in the busy connection, and its waiting times in milliseconds."""

    def __init__(self, aside: MqttClient, echo: MqttClient) -> None:
        self._aside, self._echo = aside, echo
        aside.read = lambda payload: (time.perf_counter(), json.loads(payload))
        self.created: list[float] = []
        self.first: list[float] = []
        """From `request` to the first `next`."""
        self.echoes: list[float] = []
        """For messages that a bare client sends to itself at the same time."""
        self._cancelled: dict[str, float] = {}
        self._last: dict[str, float] = {}

    @property
    def late(self) -> list[float]:
        """The time from `cancel` to the last message of the subscription."""
        return [1000 * max(0.0, self._last[key] - cancelled) for key, cancelled in self._cancelled.items()]

    def subscribe_and_cancel(self, name: str) -> None:
        topic = f"acme.bench/{name}/things/twin/streaming"
        begun = time.perf_counter()
        self._aside.command(f"{topic}/subscribeForPersistedEvents", wait=False)
        key, came = self._arrival("created")
        self.created.append(1000 * (came - begun))
        begun = time.perf_counter()
        self._aside.command(f"{topic}/request", value={"subscriptionId": key, "demand": UNBOUNDED}, wait=False)
        self.first.append(1000 * (self._arrival("next", key)[1] - begun))
        for _ in range(FEW):
            self._arrival("next", key)
        self._cancelled[key] = time.perf_counter()
        self._aside.command(f"{topic}/cancel", value={"subscriptionId": key}, wait=False)
        begun = time.perf_counter()
        self._echo.send({"x": "y" * MESSAGE_BYTES}, wait=False)
        self._echo.next()
        self.echoes.append(1000 * (time.perf_counter() - begun))

    def take_the_rest(self) -> None:
        time.sleep(0.5)
        while not self._aside.received.empty():
            self._take()

    def _arrival(self, action: str, key: str = "") -> tuple[str, float]:
        """Return the subscription and the time of the next message of this kind."""
        while True:
            found, topic, came = self._take()
            if topic.endswith(f"/{action}") and key in ("", found):
                return found, came

    def _take(self) -> tuple[str, str, float]:
        came, message = self._aside.next()
        key = message["value"]["subscriptionId"]
        self._last[key] = came
        return key, message["topic"], came


def beside_replays(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """The times to `created` and to the last element after `cancel`, while 100 replays fill the link."""
    replays, events, lasting = scale.of(REPLAYS, 20), scale.of(EVENTS_EACH, 2_000), scale.of(SECONDS, 0.7)
    fill(folder / "data" / "journal.db", replays, events)
    with (
        Mosquitto.start(persistence=False) as broker,
        serving(folder, connection(broker, source("bench", SUBJECT), source("aside", SUBJECT))),
        client(broker, "aside") as aside,
        MqttClient(broker.host, broker.port, ask="echo", answers="echo") as echo,
        sink(broker, "bench/answers", replays * events) as replayed,
    ):
        topics = [f"acme.bench/{thing(number).name}/things/twin/streaming" for number in range(replays)]
        with client(broker, "bench") as many:
            opened = [many.ask_for(f"{topic}/subscribeForPersistedEvents")["value"] for topic in topics]
        beside = Beside(aside, echo)
        with MqttClient(broker.host, broker.port, ask="bench/ask", answers="bench/unused") as many:
            begun = time.perf_counter()
            for topic, value in zip(topics, opened, strict=True):
                many.command(f"{topic}/request", value={**value, "demand": UNBOUNDED}, wait=False)
            # Wait until all replays run at full speed.
            time.sleep(scale.of(0.5, 0.1))
            for number in count():
                # Quantiles need two times, and a busy machine may take longer for them.
                if number > 1 and time.perf_counter() > begun + lasting:
                    break
                beside.subscribe_and_cancel(thing(number % replays).name)
            seconds = time.perf_counter() - begun
        beside.take_the_rest()
        found = replayed()
    assert seconds < found["seconds"] + 0.5, (
        f"the replays took {found['seconds']:.1f} s, expected {seconds:.1f} s or more"
    )
    return figures(beside, found["seen"] / found["seconds"])


def figures(beside: Beside, rate: float) -> list[Figure]:
    created, first, late, echo = (
        statistics.quantiles(each, n=100) for each in (beside.created, beside.first, beside.late, beside.echoes)
    )
    bare = f"p50 {echo[49]:.1f} ms, p99 {echo[98]:.1f} ms (paho sends to itself)"
    return [
        Figure(
            f"`created` beside {REPLAYS} replays without bound, one MQTT link",
            f"p50 {created[49]:.1f} ms, p99 {created[98]:.1f} ms",
            bare,
            "p99 ≤ 50 ms",
            created[98] <= 50,
            f"longest {max(beside.created):.0f} ms; first `next` p50 {first[49]:.1f} ms, p99 {first[98]:.1f} ms; "
            f"{rate:,.0f} messages/s in all",
        ),
        Figure(
            "from `cancel` to the last element, beside them",
            f"p50 {late[49]:.1f} ms, p99 {late[98]:.1f} ms",
            bare,
            "p99 ≤ 100 ms",
            late[98] <= 100,
            f"longest {max(beside.late):.0f} ms of {len(beside.late):,}",
        ),
    ]
