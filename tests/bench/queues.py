"""Benchmarks over AMQP and Kafka, compared with the bare clients, and over three brokers at once."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from tests.bench.harness import FULL, MESSAGE_BYTES, SUBJECT, Scale, fill, processor_seconds, run, serving, thing
from tests.bench.measured_brokers import MeasuredAmqp, MeasuredBroker, MeasuredKafka, rate, wait_for
from tests.bench.modify import THINGS, command
from tests.bench.report import Figure
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import client, connection, source
from tests.support.service_process import ServiceCommand

ROUNDS = 3
EVENTS = {"amqp": 60_000, "kafka": 240_000}
"""Some seconds of replay each, so that the time of the request is negligible."""

COMMANDS = 30_000
STREAMING = f"acme.bench/{thing(0).name}/things/twin/streaming"
LONGEST_ROUND = 2.0
EitherBroker: TypeAlias = MeasuredAmqp | MeasuredKafka
Judge: TypeAlias = Callable[[float, float], bool]
"""Whether the goal is met, given the rates of the service and of the bare client."""


@contextmanager
def amqp(*queues: str) -> Iterator[MeasuredAmqp]:
    with RabbitMQ.start() as broker, closing(MeasuredAmqp(broker, *queues)) as place:
        yield place


@contextmanager
def kafka(*topics: str) -> Iterator[MeasuredKafka]:
    with Kafka.start() as broker, closing(MeasuredKafka(broker, *topics)) as place:
        yield place


def bare(place: MeasuredAmqp | MeasuredKafka, what: str, count: int, size: int, *places: str) -> float:
    """Return the messages per second of the bare client in another process, by its own clock."""
    address = place.uri.replace("tcp:", "amqp:") if isinstance(place, MeasuredAmqp) else place.bootstrap
    seconds: float = run("bare_queues", place.kind, what, address, count, size, *map(place.address, places))["seconds"]
    return count / seconds


def subscribe(place: MeasuredBroker, demand: int, answers: str) -> float:
    """Request `demand` events of the first thing, sent to `answers`. Returns the time of the request."""
    opened = f"{answers}-opened"
    place.send("ask", [_ask("subscribeForPersistedEvents")], opened)
    created = json.loads(place.first(opened))
    asked = time.perf_counter()
    place.send("ask", [_ask("request", {**created["value"], "demand": demand})], answers)
    return asked


def _ask(what: str, value: Any = None) -> bytes:
    document = {"topic": f"{STREAMING}/{what}", "path": "/"}
    return json.dumps(document if value is None else {**document, "value": value}).encode()


def _next(folder: Path, scale: Scale, place: EitherBroker, goal: str, is_met: Judge) -> Figure:
    count = scale.of(EVENTS[place.kind], 500)
    fill(folder / "data" / "journal.db", 1, count)
    ours, theirs, processor, size = [], [], 0.0, MESSAGE_BYTES
    with serving(folder, place.document()) as service:
        for number in range(scale.of(ROUNDS, 1)):
            before = processor_seconds(service)
            asked = subscribe(place, count, f"ours-{number}")
            wait_for(place, f"ours-{number}", count)
            ours.append(count / (time.perf_counter() - asked))
            processor = (processor_seconds(service) - before) / count
            size = len(place.first(f"ours-{number}"))
            theirs.append(bare(place, "publish", count, size, f"bare-{number}"))
    found, beside = statistics.median(ours), statistics.median(theirs)
    note = f"ratio {found / beside:.2f}; {size} bytes; service: {processor * 1e6:.0f} µs of processor time per event"
    library = "aiormq on uvloop" if place.kind == "amqp" else "confluent-kafka with callbacks"
    name = f"`next` events over {_title(place)}"
    return Figure(name, f"{found:,.0f}/s", f"{beside:,.0f}/s ({library})", goal, is_met(found, beside), note)


def _drained(folder: Path, scale: Scale, place: EitherBroker, goal: str, is_met: Judge) -> Figure:
    """Process commands that wait at the start; both runs have the same number."""
    fill(folder / "data" / "journal.db", THINGS, 3)
    count = scale.of(COMMANDS, 300)
    commands = [command(number, MESSAGE_BYTES, "modify", 0) for number in range(count)]
    ours, theirs, processor, size = [], [], 0.0, MESSAGE_BYTES
    for number in range(scale.of(ROUNDS, 1)):
        place.send(f"ask-{number}", commands, f"ours-{number}")
        document = {**place.document(f"ask-{number}"), "id": f"{place.kind}-{number}"}
        with serving(folder / str(number), document, data_dir=str(folder / "data")) as service:
            ours.append(rate(place, f"ours-{number}", count))
            processor = processor_seconds(service) / count
        size = len(place.first(f"ours-{number}"))
        place.send(f"bare-ask-{number}", commands, "")
        theirs.append(bare(place, "turn", count, size, f"bare-{number}", f"bare-ask-{number}"))
    found, beside = statistics.median(ours), statistics.median(theirs)
    note = f"ratio {found / beside:.2f}; service: {processor * 1e6:.0f} µs of processor time per command"
    name = f"durable modify with response, drained over {_title(place)}"
    return Figure(
        name, f"{found:,.0f}/s", f"{beside:,.0f}/s (receive, publish, acknowledge)", goal, is_met(found, beside), note
    )


def _title(place: MeasuredBroker) -> str:
    return "AMQP, confirmed" if place.kind == "amqp" else "Kafka, acks=all"


def _names(*kinds: str) -> list[str]:
    return [f"{kind}-{number}" for kind in kinds for number in range(ROUNDS)]


NEXT_PLACES = ["ask", *_names("ours", "bare"), *(f"ours-{number}-opened" for number in range(ROUNDS))]
DRAINED_PLACES = _names("ask", "ours", "bare-ask", "bare")


def next_over_amqp(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """`next` events with publisher confirms, compared with aiormq with publisher confirms."""
    with amqp(*NEXT_PLACES) as place:
        return [_next(folder, scale, place, "ratio ≥ 1.2", lambda found, beside: found >= 1.2 * beside)]


def next_over_kafka(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """`next` events to a topic, compared with a producer with callbacks."""
    with kafka(*NEXT_PLACES) as place:
        return [_next(folder, scale, place, "ratio ≥ 0.35", lambda found, beside: found >= 0.35 * beside)]


def drained_over_amqp(folder: Path, scale: Scale = FULL) -> list[Figure]:
    with amqp(*DRAINED_PLACES) as place:
        return [_drained(folder, scale, place, "≥ 8,000/s", lambda found, _: found >= 8_000)]


def drained_over_kafka(folder: Path, scale: Scale = FULL) -> list[Figure]:
    with kafka(*DRAINED_PLACES) as place:
        return [_drained(folder, scale, place, "≥ 10,000/s", lambda found, _: found >= 10_000)]


def three_at_once(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """Replays of one thing to three brokers: one after the other, then at the same time."""
    fill(folder / "data" / "journal.db", 1, scale.of(400_000, 10_000))
    names = ["alone", "together"]
    places = ["ask", *names, *(f"{name}-opened" for name in names)]
    with ExitStack() as stack:
        mosquitto = stack.enter_context(Mosquitto.start(persistence=False))
        queues, topics = stack.enter_context(amqp(*places)), stack.enter_context(kafka(*places))
        harness = {**connection(mosquitto, source("bench", SUBJECT)), "id": "mqtt"}
        documents = [harness, queues.document(), topics.document()]
        service = stack.enter_context(serving(folder, *documents))
        replays: dict[str, Callable[[str], object]] = {
            "mqtt": lambda _: _replay_to(mosquitto),
            "amqp": lambda name: subscribe(queues, 1_000_000, name),
            "kafka": lambda name: subscribe(topics, 1_000_000, name),
        }
        alone = {}
        for kind, start_replay in replays.items():
            alone[kind] = _sent(service, scale, "alone", {kind: start_replay})[kind]
            _wait_over(service, kind)
        together = _sent(service, scale, "together", replays)
    total, mean = sum(together.values()), statistics.mean(alone.values())
    least = min(together[kind] / (alone[kind] / len(alone)) for kind in alone)
    shown = ", ".join(f"{kind} {value:,.0f}" for kind, value in together.items())
    return [
        Figure(
            "three brokers replaying at once",
            f"{total:,.0f}/s ({shown})",
            f"{mean:,.0f}/s (mean of the three alone)",
            "sum ≥ 0.8 of the mean; each ≥ 15 % of its share",
            total >= 0.8 * mean and least >= 0.15,
            f"ratio {total / mean:.2f}; least share {least:.0%}",
        )
    ]


def _replay_to(broker: Mosquitto) -> None:
    with client(broker, "bench") as mqtt_client:
        created = mqtt_client.ask_for(f"{STREAMING}/subscribeForPersistedEvents")
    with MqttClient(broker.host, broker.port, ask="bench/ask", answers="bench/unused") as mqtt_client:
        mqtt_client.command(f"{STREAMING}/request", value={**created["value"], "demand": 1_000_000})


def _sent(
    service: ServiceCommand, scale: Scale, name: str, replays: Mapping[str, Callable[[str], object]]
) -> dict[str, float]:
    """Return the events per second to each broker while all replays run."""
    before = {kind: _count(service, kind) for kind in replays}
    for start_replay in replays.values():
        start_replay(name)
    while any(_count(service, kind) < before[kind] + scale.of(5_000, 100) for kind in replays):
        time.sleep(0.01)
    begun, first = time.perf_counter(), {kind: _count(service, kind) for kind in replays}
    time.sleep(scale.of(LONGEST_ROUND, 0.1))
    seconds, last = time.perf_counter() - begun, {kind: _count(service, kind) for kind in replays}
    return {kind: max(1.0, last[kind] - first[kind]) / seconds for kind in replays}


def _count(service: ServiceCommand, kind: str) -> float:
    return service.metric("connectivity_events_sent_total", connection=kind)


def _wait_over(service: ServiceCommand, kind: str) -> None:
    before = -1.0
    while (now := _count(service, kind)) != before:
        before = now
        time.sleep(0.5)
