"""Commands on things, compared with bare clients: retrieves, large policies, a million things.

The journals are filled by the store's own writer, so that only commands are measured.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.journal.journal import Journal
from spark_store.records import Change
from tests.bench.harness import (
    FULL,
    MESSAGE_BYTES,
    STAMP,
    SUBJECT,
    Scale,
    events_of,
    fill,
    processor_seconds,
    run,
    serving,
    sink,
    thing,
)
from tests.bench.modify import THINGS
from tests.bench.report import Figure
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import client, connection, policy_for, source
from tests.support.replayed import fold

ENTRIES = 50
ROUNDS = 5
SAMPLES = 400


def retrieves(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """Retrieves of whole things as fast as possible, compared with paho with messages of the same size."""
    fill(folder / "data" / "journal.db", THINGS, 3)
    count, rounds = scale.of(30_000, 200), scale.of(3, 1)
    with Mosquitto.start(persistence=False) as broker:
        with serving(folder, connection(broker, source("bench", SUBJECT))) as service:
            run("modify", broker.host, broker.port, scale.of(3_000, 100), MESSAGE_BYTES, 0, "retrieve")
            before = processor_seconds(service)
            rates = [
                count / run("modify", broker.host, broker.port, count, MESSAGE_BYTES, 0, "retrieve")["seconds"]
                for _ in range(rounds)
            ]
            processor = processor_seconds(service) - before
        bare = _published(broker, count)
    rate = statistics.median(rates)
    return [
        Figure(
            "retrieve of a thing, QoS 1",
            f"{rate:,.0f}/s",
            f"{bare:,.0f}/s (paho publishing alone)",
            "≥ 6,000/s",
            rate >= 6_000,
            f"ratio {rate / bare:.2f}; service: {processor / rounds / count * 1e6:.0f} µs of processor time per command",
        )
    ]


def _published(broker: Mosquitto, count: int) -> float:
    """Return the messages per second that paho publishes to a counting subscriber."""
    with sink(broker, "bare", count) as figures:
        run("bare", broker.host, broker.port, "bare", count, MESSAGE_BYTES)
        found: float = count / figures()["seconds"]
        return found


def fill_under_large_policy(path: Path, numbers: Sequence[int]) -> None:
    """Add things with these numbers, all under one policy with many entries."""
    others = {
        f"acme_other{number}": {
            "thing:/": {"grant": ["READ"], "revoke": []},
            f"thing:/features/sensor/properties/p{number}": {"grant": ["WRITE"], "revoke": ["READ"]},
        }
        for number in range(ENTRIES - 1)
    }
    rules = policy_for(SUBJECT, **others)
    _add(path, numbers, EntityId(EntityType.POLICY, "acme.bench", "many"), rules)


def policies_with_many_entries(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """Modifies under a policy with one entry and under one with fifty, alternately."""
    path = folder / "data" / "journal.db"
    fill(path, THINGS, 3)
    fill_under_large_policy(path, range(THINGS, 2 * THINGS))
    count = scale.of(10_000, 200)
    rates: dict[int, list[float]] = {0: [], THINGS: []}
    with (
        Mosquitto.start(persistence=False) as broker,
        serving(folder, connection(broker, source("bench", SUBJECT))),
    ):
        for first in rates:
            run("modify", broker.host, broker.port, scale.of(3_000, 100), MESSAGE_BYTES, 0, "modify", first)
        rounds = scale.of(ROUNDS, 1)
        for _ in range(rounds):
            for first, found in rates.items():
                seconds = run("modify", broker.host, broker.port, count, MESSAGE_BYTES, 0, "modify", first)["seconds"]
                found.append(count / seconds)
    one, many = (statistics.median(found) for found in rates.values())
    return [
        Figure(
            f"modify with response, a policy of {ENTRIES} entries",
            f"{many:,.0f}/s",
            f"{one:,.0f}/s (a policy of one entry)",
            "ratio ≥ 0.9",
            many / one >= 0.9,
            f"ratio {many / one:.2f}, medians of {rounds} turns",
        )
    ]


def a_million_things(folder: Path, scale: Scale = FULL, number: int = 0) -> list[Figure]:
    """The start of a service with `number` things, its memory, and the time of a command for a cold one."""
    number, samples = number or scale.of(1_000_000, 500), scale.of(SAMPLES, 10)
    entity = EntityId(EntityType.POLICY, "acme.bench", "all")
    _add(folder / "data" / "journal.db", range(number), entity, policy_for(SUBJECT))
    with Mosquitto.start(persistence=False) as broker:
        begun = time.perf_counter()
        with serving(folder, connection(broker, source("bench", SUBJECT))) as service:
            started = time.perf_counter() - begun
            assert service.process is not None
            process = psutil.Process(service.process.pid)
            with client(broker, "bench") as mqtt_client:
                _modify(mqtt_client, 0)
                cold = [_modify(mqtt_client, 1 + sample * (number - 2) // samples) for sample in range(samples)]
                hot = [_modify(mqtt_client, 0) for _ in range(samples)]
            run("modify", broker.host, broker.port, scale.of(20_000, 200), MESSAGE_BYTES, 0)
            memory = process.memory_info().rss / 1e6
    medians = statistics.median(cold), statistics.median(hot)
    called = f"{number:,} things"
    return [
        Figure(f"start with {called}", f"{started:.1f} s", "–", "≤ 5 s", started <= 5, "until it is ready"),
        Figure(f"memory with {called}", f"{memory:.0f} MB", "–", "≤ 400 MB", memory <= 400, "after 20,000 modifies"),
        Figure(
            f"modify of a cold thing among {called}",
            f"p50 {medians[0]:.2f} ms",
            f"p50 {medians[1]:.2f} ms (hot)",
            "≤ 2 ms more",
            medians[0] - medians[1] <= 2,
            f"{samples} of each, one at a time",
        ),
    ]


def _modify(mqtt_client: MqttClient, number: int) -> float:
    """Return the milliseconds until the response to a modify."""
    topic = f"acme.bench/{thing(number).name}/things/twin/commands/modify"
    begun = time.perf_counter()
    answer = mqtt_client.ask_for(topic, "/attributes/n", 1)
    taken = (time.perf_counter() - begun) * 1000
    assert answer["status"] in (201, 204), answer
    return taken


def _add(path: Path, numbers: Sequence[int], policy: EntityId, rules: dict[str, Any]) -> None:
    """Add things with a sensor, all under one policy."""
    path.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal.open(path)
    document = {"policyId": str(policy), "imports": {}, **rules}
    written = Event(policy, 1, STAMP, "created", "/", json.dumps(document).encode(), b"{}")
    journal.append([Change((written,), (fold([written]),))])
    for start in range(0, len(numbers), 5_000):
        changes = []
        for number in numbers[start : start + 5_000]:
            first, *rest = events_of(thing(number), 2)
            value = json.dumps(
                {"thingId": str(thing(number)), "policyId": str(policy), "attributes": {"n": 0}}
            ).encode()
            happened = (first._replace(value=value), *rest)
            changes.append(Change(happened, (fold(happened),)))
        journal.append(changes)
    journal.close()
