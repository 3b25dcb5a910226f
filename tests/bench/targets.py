"""Events at targets: their latency, their rate with filters, and the cost of a target for a command."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.bench.harness import FULL, MESSAGE_BYTES, SUBJECT, Scale, fill, processor_seconds, run, serving
from tests.bench.modify import THINGS
from tests.bench.report import Figure
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.connection_documents import connection, source
from tests.support.wait import wait_until_sync

EVENTS = "_/_/things/twin/events"
READING = "features/sensor/properties/reading/n"
TARGETS, OF_ONE = 20, 4
PATIENCE = 120.0


def target_connection(broker: Mosquitto, id: str, *targets: dict[str, Any]) -> dict[str, Any]:
    return connection(broker, id=id, targets=list(targets))


def target(address: str, topic: str = EVENTS) -> dict[str, Any]:
    return {"address": address, "topics": [topic], "authorizationContext": [SUBJECT], "qos": 1}


def event_latency(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """The time from a modify to its event at a target of another connection, at a thousand per second."""
    fill(folder / "data" / "journal.db", THINGS, 3)
    with Mosquitto.start(persistence=False) as broker:
        documents = connection(broker, source("bench", SUBJECT)), target_connection(broker, "events", target("events"))
        with serving(folder, *documents):
            run("modify", broker.host, broker.port, scale.of(3_000, 100), MESSAGE_BYTES, 1_000, "modify", 0, "events")
            paced = run(
                "modify", broker.host, broker.port, scale.of(10_000, 200), MESSAGE_BYTES, 1_000, "modify", 0, "events"
            )
    return [
        Figure(
            "modify → event at a target, QoS 1, 1,000/s",
            f"p50 {paced['p50']:.1f} ms, p99 {paced['p99']:.1f} ms",
            "–",
            "p50 ≤ 5 ms, p99 ≤ 25 ms",
            paced["p50"] <= 5 and paced["p99"] <= 25,
            f"longest {paced['max']:.1f} ms",
        )
    ]


def filtered(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """Modifies as fast as possible, with twenty targets that each accept a twentieth of the events."""
    fill(folder / "data" / "journal.db", THINGS, 3)
    count = scale.of(20_000, 400)
    part = count // TARGETS
    targets = [
        target(f"events/{n}", f"{EVENTS}?filter=and(ge({READING},{n * part}),lt({READING},{(n + 1) * part}))")
        for n in range(TARGETS)
    ]
    with Mosquitto.start(persistence=False) as broker:
        alone = _fast(folder / "alone", broker, count, [])
        together = _fast(folder / "together", broker, count, targets)
    rate, processor = together
    return [
        Figure(
            "one event, 20 targets with different filters",
            f"{rate:,.0f} events/s",
            f"{alone[0]:,.0f}/s without targets",
            "≥ 3,000 events/s",
            rate >= 3_000,
            f"service: {processor:.0f} µs of processor time per event, {alone[1]:.0f} µs without targets",
        )
    ]


def _fast(folder: Path, broker: Mosquitto, count: int, targets: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the events per second until all targets are done, and the processor microseconds of each."""
    fill(folder / "data" / "journal.db", THINGS, 3)
    starts = range(0, len(targets), OF_ONE)
    documents = [
        connection(broker, source("bench", SUBJECT)),
        *(target_connection(broker, f"targets-{start}", *targets[start : start + OF_ONE]) for start in starts),
    ]
    with serving(folder, *documents) as service:
        run("modify", broker.host, broker.port, count // 10, MESSAGE_BYTES, 0)
        before, begun = processor_seconds(service), time.perf_counter()
        run("modify", broker.host, broker.port, count, MESSAGE_BYTES, 0)
        wait_until_sync(lambda: service.metric("connectivity_target_lag_events") == 0)
        seconds = time.perf_counter() - begun
        return count / seconds, (processor_seconds(service) - before) / count * 1e6
