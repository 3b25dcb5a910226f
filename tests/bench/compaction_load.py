"""Benchmark of the effect of Spark on the clients of the service, on the same cores.

A Java that has compacted before, as in a long run, compacts a lake repeatedly, with idle times between. The comparison is
between compaction and idle time in the same minutes, so that a slow machine affects both. The effect of a Java that has
just started is reported separately.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.cold_history import pipeline
from tests.bench.harness import FULL, MESSAGE_BYTES, SUBJECT, Scale, fill, serving, thing
from tests.bench.long_journals import write_long_past
from tests.bench.report import Figure
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import client, connection, source
from tests.support.lake.pipeline_process import given

THINGS, EVENTS_EACH = 200, 50
WARM, ROUNDS = 2, 5
IDLE_SECONDS = 5.0


class Waits:
    """Milliseconds from `request` to the first `next`, and of messages that a bare client sends to itself."""

    def __init__(self) -> None:
        self.firsts: list[float] = []
        self.echoes: list[float] = []


def while_compacting(folder: Path, scale: Scale = FULL, events: int = 0) -> list[Figure]:
    """Measure the first `next` of a hot history while Spark compacts a lake of many small files."""
    events, warm, rounds = events or scale.of(500_000, 2_000), scale.of(WARM, 1), scale.of(ROUNDS, 1)
    idle_seconds = scale.of(IDLE_SECONDS, 0.5)
    small = folder / "small"
    write_long_past(small / "journal.db", events)
    rows = events // scale.of(25, 3)
    pipeline("run", small, *given(once=True, max_batch_rows=rows, optimize_batches=1_000_000))
    fill(folder / "data" / "journal.db", THINGS, EVENTS_EACH)
    idle, fresh, during = Waits(), Waits(), Waits()
    seconds = []
    with (
        Mosquitto.start(persistence=False) as broker,
        serving(folder, connection(broker, source("bench", SUBJECT))),
        client(broker, "bench") as mqtt_client,
        MqttClient(broker.host, broker.port, ask="echo", answers="echo") as echo,
        compactions(small) as compact,
    ):
        ask(mqtt_client, echo, Waits(), lasting(idle_seconds))
        for number in range(warm + rounds):
            if number >= warm:
                ask(mqtt_client, echo, idle, lasting(idle_seconds))
            begun = time.monotonic()
            ask(mqtt_client, echo, fresh if number == 0 else during if number >= warm else Waits(), compact())
            seconds.append(time.monotonic() - begun)
    before, after = statistics.quantiles(idle.firsts, n=100), statistics.quantiles(during.firsts, n=100)
    own_before, own_after = statistics.quantiles(idle.echoes, n=100), statistics.quantiles(during.echoes, n=100)
    ratio = after[98] / before[98]
    return [
        Figure(
            "first `next`, hot, while Spark compacts",
            f"p50 {after[49]:.1f} ms, p99 {after[98]:.1f} ms",
            f"p50 {before[49]:.1f} ms, p99 {before[98]:.1f} ms (nobody works)",
            "p99 ≤ 4 times as long",
            ratio <= 4,
            f"ratio {ratio:.1f}; {len(during.firsts):,} samples in {rounds} compactions of "
            f"{statistics.median(seconds[warm:]):.1f} s; longest {max(during.firsts):.0f} ms; p99 in the first compaction "
            f"of a Java that has just started ({seconds[0]:.0f} s) {statistics.quantiles(fresh.firsts, n=100)[98]:.1f} ms; "
            f"paho to itself: p99 {own_before[98]:.1f} ms, while Spark compacts {own_after[98]:.1f} ms",
        )
    ]


@contextmanager
def compactions(folder: Path) -> Iterator[Callable[[], Callable[[], bool]]]:
    """Yield a function that starts a compaction, and returns a function that is true while it runs."""
    command = [sys.executable, "-m", "tests.bench.compacting", str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines, stdin = iter(process.stdout), process.stdin

        def wait_for_line(begin: str) -> None:
            while not next(lines).startswith(begin):
                pass

        def compact() -> Callable[[], bool]:
            wait_for_line("ready")
            stdin.write("\n")
            stdin.flush()
            waiting = threading.Thread(target=wait_for_line, args=("{",), daemon=True)
            waiting.start()
            return waiting.is_alive

        yield compact
        stdin.close()


def lasting(seconds: float) -> Callable[[], bool]:
    until = time.monotonic() + seconds
    return lambda: time.monotonic() < until


def ask(mqtt_client: MqttClient, echo: MqttClient, found: Waits, is_running: Callable[[], bool]) -> None:
    """Replay, and send a message to itself, in turn while `is_running` is true."""
    chosen = random.Random(19)
    while is_running():
        prefix = f"acme.bench/{thing(chosen.randrange(THINGS)).name}/things/twin/streaming"
        found.firsts.append(_first_next(mqtt_client, prefix))
        found.echoes.append(_echo(echo))
        mqtt_client.messages.clear()
        echo.messages.clear()


def _echo(echo: MqttClient) -> float:
    begun = time.perf_counter()
    echo.send({"x": "y" * MESSAGE_BYTES}, wait=False)
    echo.next()
    return (time.perf_counter() - begun) * 1000


def _first_next(mqtt_client: MqttClient, prefix: str) -> float:
    created = mqtt_client.ask_for(f"{prefix}/subscribeForPersistedEvents")
    begun = time.perf_counter()
    mqtt_client.send(
        {"topic": f"{prefix}/request", "path": "/", "value": {**created["value"], "demand": 1}}, wait=False
    )
    mqtt_client.next()
    waited = (time.perf_counter() - begun) * 1000
    mqtt_client.command(f"{prefix}/cancel", value=created["value"])
    return waited
