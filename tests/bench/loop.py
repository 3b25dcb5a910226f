"""Measures how long the service's event loop is blocked by several kinds of load.

The loads are bursts of commands, large values, filtered replays and large policies. A probe in the service's process has
a timer of 1 ms (`tests.bench.probed_service`), and a client requests `/health/live`. Other load of the machine causes the
longest gaps, so the second column is the processor time of the event loop's thread between two ticks.
"""

from __future__ import annotations

import http.client
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.bench.harness import (
    FULL,
    MESSAGE_BYTES,
    SUBJECT,
    Scale,
    fill,
    processor_seconds,
    run,
    serving,
    sink,
    thing,
)
from tests.bench.modify import THINGS
from tests.bench.probed_service import VARIABLE, ticks
from tests.bench.report import Figure
from tests.bench.twins import ENTRIES, fill_under_large_policy
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import client, connection, source
from tests.support.service_process import ServiceCommand

LARGE = 100_000
LONGEST_MS, P99_MS = 10.0, 3.0
PAUSE = 0.005
LAST = "eq(features/sensor/properties/reading/n,{})"


class ProbedService(ServiceCommand):
    """A service with a probe on its event loop."""

    program = (sys.executable, "-m", "tests.bench.probed_service")


def stalls(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """The gaps between the probe's ticks for each load."""
    history = scale.of(100_000, 2_000)
    path = folder / "data" / "journal.db"
    fill(path, THINGS, 3)
    fill(path, 1, history, first=2 * THINGS)
    fill_under_large_policy(path, range(THINGS, 2 * THINGS))
    probe = folder / "probe"
    with (
        Mosquitto.start(persistence=False) as broker,
        patch.dict("os.environ", {VARIABLE: str(probe)}),
        serving(folder, connection(broker, source("bench", SUBJECT)), program=ProbedService) as service,
    ):
        loads: dict[str, Callable[[], object]] = {
            "nothing": lambda: time.sleep(scale.of(3, 0.2)),
            "bursts of 500 small modifies": lambda: _burst(broker, 500, MESSAGE_BYTES, scale.of(40, 1)),
            "bursts of 100 values of 100 KB": lambda: _burst(broker, 100, LARGE, scale.of(20, 1)),
            "eight filtered replays": lambda: _replay(broker, history, 8),
            f"bursts of 500 modifies, a policy of {ENTRIES} entries": lambda: _burst(
                broker, 500, MESSAGE_BYTES, scale.of(40, 1), THINGS
            ),
        }
        return [_measured(service, probe, what, load) for what, load in loads.items()]


def _measured(service: ServiceCommand, probe: Path, what: str, load: Callable[[], object]) -> Figure:
    with _asking(service) as waits:
        begun, spent = time.monotonic(), processor_seconds(service)
        load()
        while not (found := ticks(probe, begun, time.monotonic())):
            # On a busy machine the service may not run during a short load.
            time.sleep(PAUSE)
        ended, spent = time.monotonic(), processor_seconds(service) - spent
    late, computing = sorted(tick.late * 1000 for tick in found), sorted(tick.computing * 1000 for tick in found)
    waits.sort()
    return Figure(
        f"event loop: {what}",
        f"longest {late[-1]:.1f} ms, p99 {_p99(late):.1f} ms",
        f"longest {computing[-1]:.1f} ms, p99 {_p99(computing):.1f} ms (processor time)",
        f"longest ≤ {LONGEST_MS:g} ms, p99 ≤ {P99_MS:g} ms",
        late[-1] <= LONGEST_MS and _p99(late) <= P99_MS,
        f"{ended - begun:.1f} s, {spent:.1f} s of processor; `/health/live` p50 {statistics.median(waits):.1f} ms, "
        f"p99 {_p99(waits):.1f} ms, longest {waits[-1]:.1f} ms",
    )


def _p99(ranked: list[float]) -> float:
    return ranked[len(ranked) * 99 // 100]


@contextmanager
def _asking(service: ServiceCommand) -> Iterator[list[float]]:
    """Request `/health/live` repeatedly, and yield the milliseconds of each response."""
    waits: list[float] = []
    is_over = threading.Event()

    def ask() -> None:
        link = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
        while not is_over.wait(PAUSE) or len(waits) < 2:
            begun = time.perf_counter()
            link.request("GET", "/health/live")
            assert link.getresponse().read()
            waits.append((time.perf_counter() - begun) * 1000)
        link.close()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield waits
    finally:
        is_over.set()
        asking.join()


def _burst(broker: Mosquitto, count: int, size: int, bursts: int, first: int = 0) -> dict[str, Any]:
    return run("bursts", broker.host, broker.port, count, size, bursts, first)


def _replay(broker: Mosquitto, events: int, at_once: int) -> None:
    """Run concurrent replays whose filter matches only the last event."""
    prefix = f"acme.bench/{thing(2 * THINGS).name}/things/twin/streaming"
    with client(broker, "bench") as mqtt_client:
        opened = [
            mqtt_client.ask_for(f"{prefix}/subscribeForPersistedEvents", value={"filter": LAST.format(events - 3)})
            for _ in range(at_once)
        ]
    with (
        MqttClient(broker.host, broker.port, ask="bench/ask", answers="bench/unused") as mqtt_client,
        sink(broker, "bench/answers", 2 * at_once) as figures,
    ):
        for created in opened:
            mqtt_client.command(f"{prefix}/request", value={**created["value"], "demand": 10})
        figures()
