"""Conversations across brokers and sources: who may use a subscription, and where its events go.

A subscription belongs to the connection that it was made on. Within it, every request is answered, at the reply-target of
the source of the latest request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_setup import AmqpSetup, BrokerSetup, KafkaSetup, Mqtt5Setup, MqttSetup
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.mqtt import BrokerClient
from tests.support.connection_documents import Reader, policy_for, topic
from tests.support.service_process import ServiceProcess
from tests.support.wait import PATIENCE

pytestmark = [pytest.mark.broker("mosquitto"), pytest.mark.broker("rabbitmq"), pytest.mark.broker("kafka")]

OWNER = "acme:owner"
CHANGES = 299
THING = "boiler-07"


@pytest.fixture(scope="module")
def setups(mosquitto: Mosquitto, rabbitmq: RabbitMQ, kafka: Kafka) -> list[BrokerSetup]:
    return [Mqtt5Setup(mosquitto), AmqpSetup(rabbitmq), KafkaSetup(kafka)]


@pytest.fixture(scope="module")
def harnesses(
    setups: list[BrokerSetup], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, list[BrokerClient]]]:
    """Start three connections on three brokers, each with two sources. Returns two clients per kind.

    Each has a thing with a history.
    """
    with ExitStack() as stack:
        clients = {setup.kind: [stack.enter_context(setup.client(name)) for name in ("a", "b")] for setup in setups}
        documents = [setup.connection("site", setup.source("a", OWNER), setup.source("b", OWNER)) for setup in setups]
        stack.enter_context(ServiceProcess.start(tmp_path_factory.mktemp("sites"), documents))
        make(clients["mqtt-5"][0], THING, CHANGES)
        yield clients


def make(requester: BrokerClient, name: str, changes: int) -> None:
    """A thing that has changed so many times."""
    value = {"_policy": policy_for(OWNER), "attributes": {"n": 0}}
    assert requester.ask_for(topic(name, "commands/create"), value=value)["status"] == 201
    for number in range(1, changes + 1):
        requester.command(topic(name, "commands/modify"), "/attributes/n", number, wait=False)
    assert [requester.next()["status"] for _ in range(changes)] == [204] * changes


def kind_of(message: dict[str, Any]) -> str:
    return str(message["topic"].rpartition("/")[2])


def replay(requester: BrokerClient, name: str, demand: int, total: int) -> None:
    """Replay a whole history in portions: at most the requested events, each once and in order."""
    reader = Reader(requester, name)
    revisions: list[int] = []
    while len(revisions) < total:
        wanted = min(demand, total - len(revisions))
        reader.request(demand)
        events = [requester.next() for _ in range(wanted)]
        assert [kind_of(event) for event in events] == ["next"] * wanted
        revisions += [event["value"]["item"]["revision"] for event in events]
        if wanted == demand and len(revisions) < total:
            requester.assert_nothing_came(name)
    assert revisions == list(range(1, total + 1))
    if total % demand == 0:
        # The end comes immediately, or with the next request.
        reader.request(1)
    last = requester.next()
    assert (kind_of(last), last["value"]["subscriptionId"]) == ("complete", reader.id)
    drain(requester)


def drain(requester: BrokerClient) -> None:
    """Read all messages up to the response to a new command."""
    correlation = requester.command(topic(THING, "commands/retrieve"))
    while requester.next()["headers"]["correlation-id"] != correlation:
        pass


def side_by_side(works: list[Callable[[], None]]) -> None:
    """Run all at the same time; the first failure of any."""
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # raised again by the test
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * PATIENCE)
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads)


def test_three_connections_on_three_brokers_replay_the_same_at_the_same_time_each_at_its_own_pace(
    harnesses: dict[str, list[BrokerClient]],
) -> None:
    demands = {"mqtt-5": 7, "amqp-091": 50, "kafka": 1000}
    side_by_side(
        [
            lambda requester=clients[0], kind=kind: replay(requester, THING, demands[kind], CHANGES + 1)  # type: ignore[misc]
            for kind, clients in harnesses.items()
        ]
    )


@pytest.mark.parametrize("kind", ["mqtt-5", "amqp-091", "kafka"])
def test_case_28_a_subscription_of_one_connection_does_not_exist_for_another(
    harnesses: dict[str, list[BrokerClient]], kind: str
) -> None:
    mine = harnesses[kind][0]
    reader = Reader(mine, THING)
    for other, (stranger, _) in harnesses.items():
        if other == kind:
            continue
        for action, more in (("request", {"demand": 5}), ("cancel", {})):
            command = topic(THING, f"streaming/{action}")
            failed = stranger.ask_for(command, value={"subscriptionId": reader.id, **more})
            assert (kind_of(failed), failed["value"]["error"]["status"]) == ("failed", 404)
            assert failed["value"]["error"]["error"] == "streaming.subscription.not.found"
    reader.request(2)
    assert [mine.next()["value"]["item"]["revision"] for _ in range(2)] == [1, 2]
    reader.cancel()
    drain(mine)


@pytest.mark.parametrize("kind", ["mqtt-5", "amqp-091", "kafka"])
def test_case_30_events_go_to_the_source_that_asked_last_with_its_correlation_id(
    harnesses: dict[str, list[BrokerClient]], kind: str
) -> None:
    a, b = harnesses[kind]
    reader = Reader(a, THING)
    reader.request(3)
    assert [a.next()["value"]["item"]["revision"] for _ in range(3)] == [1, 2, 3]
    request = {"subscriptionId": reader.id, "demand": 4}
    asked = b.command(topic(THING, "streaming/request"), value=request)
    events = [b.next() for _ in range(4)]
    assert [event["value"]["item"]["revision"] for event in events] == [4, 5, 6, 7]
    assert {event["headers"]["correlation-id"] for event in events} == {asked}
    a.assert_nothing_came(THING)
    asked = reader.request(1_000)
    rest = a.until("complete")
    assert [event["value"]["item"]["revision"] for event in rest[:-1]] == list(range(8, CHANGES + 2))
    assert {event["headers"]["correlation-id"] for event in rest} == {asked}
    b.assert_nothing_came(THING)


def test_twenty_connections_in_one_service_talk_at_the_same_time(
    mosquitto: Mosquitto, rabbitmq: RabbitMQ, kafka: Kafka, tmp_path: Path
) -> None:
    setups: list[BrokerSetup] = [
        *(MqttSetup(mosquitto) for _ in range(6)),
        *(Mqtt5Setup(mosquitto) for _ in range(5)),
        *(AmqpSetup(rabbitmq) for _ in range(6)),
        *(KafkaSetup(kafka) for _ in range(3)),
    ]
    with ExitStack() as stack:
        clients = [stack.enter_context(setup.client("line")) for setup in setups]
        documents = [setup.connection("site", setup.source("line", OWNER)) for setup in setups]
        service = stack.enter_context(ServiceProcess.start(tmp_path, documents))
        assert {service.status(document["id"])["status"] for document in documents} == {"open"}
        # All replay one thing, which the first one makes, and a thing of their own.
        make(clients[0], THING, 20)

        def exchange(requester: BrokerClient, number: int) -> None:
            make(requester, f"lamp-{number}", 10)
            replay(requester, f"lamp-{number}", 4, 11)
            replay(requester, THING, number + 1, 21)

        side_by_side([partial(exchange, requester, number) for number, requester in enumerate(clients)])
