"""The whole service on a real Kafka: a replay of a thing's history, and commands through a crash."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from tests.support.brokers.kafka import Kafka
from tests.support.clients.kafka import KafkaClient
from tests.support.connection_documents import Reader, policy_for, topic
from tests.support.service_process import ServiceProcess
from tests.support.wait import PATIENCE, wait_until_sync

pytestmark = pytest.mark.broker("kafka")

OWNER = "acme:fleet"


def site_of(ask: str) -> str:
    """The id of the connection that listens at the topic `ask`."""
    return ask.removesuffix(".ask")


def connection(broker: Kafka, ask: str, answers: str, **source: Any) -> dict[str, Any]:
    return {
        "id": site_of(ask),
        "connectionType": "kafka",
        "connectionStatus": "open",
        "uri": broker.uri(),
        "specificConfig": {"bootstrapServers": broker.bootstrap, "consumerOffsetReset": "earliest"},
        "sources": [
            {
                "addresses": [ask],
                "qos": 1,
                "authorizationContext": [OWNER],
                "replyTarget": {"address": f"{answers}/{{{{ thing:id }}}}"},
                **source,
            }
        ],
    }


@pytest.fixture(scope="module")
def topics(kafka: Kafka) -> tuple[str, str]:
    name = uuid4().hex
    kafka.create(f"{name}.ask", f"{name}.answers")
    return f"{name}.ask", f"{name}.answers"


@pytest.fixture(scope="module")
def service(
    kafka: Kafka, topics: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    with ServiceProcess.start(tmp_path_factory.mktemp("kafka"), [connection(kafka, *topics)]) as running:
        yield running


@pytest.fixture(scope="module")
def client(kafka: Kafka, topics: tuple[str, str]) -> Iterator[KafkaClient]:
    ask, answers = topics
    with KafkaClient(kafka, ask=ask, answers=answers) as requester:
        yield requester


def make(client: KafkaClient, name: str) -> None:
    answer = client.ask_for(
        topic(name, "commands/create"), value={"_policy": policy_for(OWNER), "attributes": {"n": 0}}
    )
    assert answer["status"] == 201, answer


def test_a_thing_replays_its_past(service: ServiceProcess, client: KafkaClient) -> None:
    """Created, as many events as were requested, complete: the conversation that the service is made for."""
    make(client, "boiler-07")
    for value in range(1, 20):
        answer = client.ask_for(topic("boiler-07", "commands/modify"), "/attributes/n", value)
        assert answer["status"] == 204
    reader = Reader(client, "boiler-07")
    reader.request(5)
    first = [client.next() for _ in range(5)]
    assert [each["value"]["item"]["revision"] for each in first] == [1, 2, 3, 4, 5]
    assert {each["topic"] for each in first} == {topic("boiler-07", "streaming/next")}
    rest = reader.all()
    assert [item["value"] for item in rest] == list(range(5, 20))
    client.assert_nothing_came("boiler-07")
    assert {each["ditto-connection-id"] for each in client.headers} == {site_of(client.ask)}


def test_8_6_a_tombstone_is_passed_and_the_next_command_is_answered(
    service: ServiceProcess, client: KafkaClient
) -> None:
    make(client, "lamp-8")
    client._producer.produce(client.ask, None, key="lamp-8", headers={"reply-to": client.answers})
    client._producer.flush()
    answer = client.ask_for(topic("lamp-8", "commands/retrieve"))
    assert answer["status"] == 200


def test_a_record_that_is_too_large_to_decompress_is_refused_and_the_next_command_is_answered(
    service: ServiceProcess, client: KafkaClient, kafka: Kafka
) -> None:
    """The client library decompresses at most 100 MB of a batch, and reads a larger one again forever."""
    make(client, "lamp-9")
    bomb = Producer(
        {"bootstrap.servers": kafka.bootstrap, "compression.type": "zstd", "message.max.bytes": 120_000_000}
    )
    bomb.produce(client.ask, b"0" * 100_000_000, "lamp-9")
    assert bomb.flush(PATIENCE) == 0
    assert client.ask_for(topic("lamp-9", "commands/retrieve"))["status"] == 200
    [refused] = [record for record in service.records() if record.get("error") == "connectivity:message.toolarge"]
    assert refused["event"] == "delivery refused"


def test_commands_are_in_the_history_once_through_a_kill(service: ServiceProcess, client: KafkaClient) -> None:
    """Answered and uncommitted commands are read again, and answered from the stored responses."""
    make(client, "lamp-7")
    count = 300
    modify = {"topic": topic("lamp-7", "commands/modify"), "path": "/attributes/n"}
    client.send_all([{**modify, "value": n, "headers": {"correlation-id": f"c-{n}"}} for n in range(1, count + 1)])
    answered = {client.next()["headers"]["correlation-id"] for _ in range(20)}
    service.kill()
    service.start_again()
    wanted = {f"c-{n}" for n in range(1, count + 1)}
    # Earlier commands may be read again too, and are answered again.
    wait_until_sync(lambda: wanted <= _all_of(client, answered))
    wait_until_sync(lambda: service.metric("connectivity_deliveries_total", outcome="answered_again") > 0)
    client.ask_for(topic("lamp-7", "commands/retrieve"))  # behind it nothing more is answered again
    items = Reader(client, "lamp-7", {"fromHistoricalRevision": 2}).all()
    assert [item["value"] for item in items] == list(range(1, count + 1))


def _all_of(client: KafkaClient, answered: set[str]) -> set[str]:
    """Return `answered` with the newer responses."""
    while not client.received.empty():
        answered.add(client.received.get()["headers"]["correlation-id"])
    return answered
