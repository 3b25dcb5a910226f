"""Cases of the connection model on each broker, and messages that are too large for the broker.

Case numbers are those of the cases for connections. More cases for MQTT are in `test_mqtt_5.py` and `test_streaming.py`; the
ones here must be the same on each broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.amqp import AmqpClient
from tests.support.clients.kafka import KafkaClient
from tests.support.clients.mqtt import BrokerClient
from tests.support.connection_documents import READ, Reader, policy_for, topic
from tests.support.four_sources import (
    KINDS,
    OWNER,
    AmqpFourSources,
    FourSources,
    KafkaFourSources,
    Mqtt5FourSources,
    MqttFourSources,
    status_and_error,
)
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

pytestmark = [pytest.mark.broker(name) for name in ("mosquitto", "rabbitmq", "kafka")]

ENFORCED = "connectivity:connection.id.enforcement.failed"
MERGE_PATCH = "application/merge-patch+json"
SMALL = 20_000
"""The size of the largest message that the limited addresses accept, in bytes."""

ClientFactory = Callable[[FourSources, str], BrokerClient]


@pytest.fixture(scope="module")
def all_four(mosquitto: Mosquitto, rabbitmq: RabbitMQ, kafka: Kafka) -> Iterator[dict[str, FourSources]]:
    with ExitStack() as stack:
        made = [
            MqttFourSources(mosquitto),
            Mqtt5FourSources(mosquitto),
            AmqpFourSources(rabbitmq),
            KafkaFourSources(kafka),
        ]
        for four in made:
            stack.callback(four.close)
        yield {four.kind: four for four in made}


@pytest.fixture(scope="module")
def narrow(kafka: Kafka, all_four: dict[str, FourSources]) -> dict[str, dict[str, Any]]:
    """Connections whose answers go where only small messages are taken."""
    amqp, record = all_four["amqp-091"], all_four["kafka"]
    kafka.create(f"{record.name}.narrow.ask")
    kafka.create(f"{record.name}.narrow.answers", max_message_bytes=str(SMALL))
    AmqpClient(amqp.uri, ask=f"{amqp.name}.narrow.ask", answers=f"{amqp.name}.narrow.answers").close()
    made = {}
    for four in (amqp, record):
        document = four.document()
        source = {
            **document["sources"][0],
            "addresses": [four.place("narrow", "ask")],
            "replyTarget": {
                "address": four.reply_address(four.place("narrow", "answers")),
                "headerMapping": {"copied": "{{ header:long }}", "again": "{{ header:long }}"},
            },
        }
        made[four.kind] = {**document, "id": f"{four.name}-narrow", "sources": [source]}
    made["amqp-091"]["specificConfig"] = {"requestedFrameMax": "4096"}
    return made


@pytest.fixture(scope="module")
def service(
    all_four: dict[str, FourSources], narrow: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    documents = [*(four.document() for four in all_four.values()), *narrow.values()]
    with ServiceProcess.start(tmp_path_factory.mktemp("cases"), documents) as running:
        yield running


@pytest.fixture(scope="module")
def client_of(all_four: dict[str, FourSources], service: ServiceProcess) -> Iterator[ClientFactory]:
    """Return a function that returns the client of a source, made on first use.

    Each broker has its own thing.
    """
    made: dict[tuple[str, str], BrokerClient] = {}

    def requester(four: FourSources, source: str) -> BrokerClient:
        if (four.kind, source) not in made:
            made[four.kind, source] = four.requester(source)
        return made[four.kind, source]

    assert service.get("/health/ready")[0] == 200
    for four in all_four.values():
        value = {"_policy": policy_for(OWNER, acme_reader={"thing:/": READ}), "attributes": {"n": 0}}
        answer = requester(four, "fixed").ask_for(topic(thing(four), "commands/create"), value=value)
        assert answer["status"] == 201, answer
    yield requester
    for each in made.values():
        each.close()


def thing(four: FourSources) -> str:
    return f"thing-{four.name}"


@pytest.fixture(scope="module", params=KINDS)
def four(request: pytest.FixtureRequest, all_four: dict[str, FourSources]) -> FourSources:
    return all_four[request.param]


def exchange(requester: BrokerClient, document: dict[str, Any], **around: Any) -> dict[str, Any]:
    requester.send({"path": "/", **document}, **around)
    answer: dict[str, Any] = requester.next()
    return answer


def test_case_01_02_an_answer_has_the_correlation_id_and_comes_to_the_reply_target_of_its_source_alone(
    four: FourSources, client_of: ClientFactory
) -> None:
    fixed, chosen = client_of(four, "fixed"), client_of(four, "chosen")
    retrieve = topic(thing(four), "commands/retrieve")
    assert fixed.ask_for(retrieve)["status"] == 200
    assert chosen.ask_for(retrieve, headers={"reply-to": chosen.answers})["status"] == 200
    for requester in (fixed, chosen):
        requester.assert_nothing_came(thing(four))


def test_case_09_a_path_with_an_empty_part_is_an_error(four: FourSources, client_of: ClientFactory) -> None:
    answer = client_of(four, "fixed").ask_for(topic(thing(four), "commands/modify"), "/attributes//x", 1)
    assert status_and_error(answer) == (400, "json.pointer.invalid")


def test_case_10_events_have_the_order_of_the_commands(four: FourSources, client_of: ClientFactory) -> None:
    requester, name = client_of(four, "fixed"), f"order-{four.name}"
    assert requester.ask_for(topic(name, "commands/create"), value={"_policy": policy_for(OWNER)})["status"] == 201
    modify = {"topic": topic(name, "commands/modify"), "path": "/attributes/n"}
    for number in range(100):
        requester.send({**modify, "value": number}, wait=False)
    revisions = [requester.next()["headers"]["entity-revision"] for _ in range(100)]
    assert revisions == list(range(2, 102))
    items = Reader(requester, name, {"fromHistoricalRevision": 2}).all()
    assert [item["value"] for item in items] == list(range(100))


@pytest.mark.parametrize("group", ["things/twin", "policies"], ids=["case_11_thing", "case_12_policy"])
def test_case_11_12_13_14_the_sender_speaks_for_the_entity_that_the_transport_names_and_for_no_other(
    four: FourSources, client_of: ClientFactory, group: str
) -> None:
    """By a header, or over MQTT 3.1.1 by the topic that the message arrived on."""
    requester, name = client_of(four, "bound"), thing(four)
    ask = {"topic": topic(name, "commands/retrieve", group), "headers": {"correlation-id": "c-1"}}
    answer = exchange(requester, ask, **four.identify_as(requester, "somebody-else"))
    assert (answer["topic"], status_and_error(answer)) == (topic(name, "errors", group), (400, ENFORCED))
    assert answer["headers"]["correlation-id"] == "c-1"
    answer = exchange(requester, ask, **four.identify_as(requester, name))
    assert answer["status"] == 200
    if four.has_headers:
        assert status_and_error(exchange(requester, ask, **four.carried())) == (400, "placeholder:unresolved")


def test_case_11_a_command_for_another_thing_changes_nothing(four: FourSources, client_of: ClientFactory) -> None:
    requester = client_of(four, "bound")
    modify = {"topic": topic(thing(four), "commands/modify"), "path": "/attributes/stolen", "value": 1}
    assert status_and_error(exchange(requester, modify, **four.identify_as(requester, "thief"))) == (400, ENFORCED)
    found = client_of(four, "fixed").ask_for(topic(thing(four), "commands/retrieve"), "/attributes/stolen")
    assert status_and_error(found) == (404, "things:attribute.notfound")


def test_case_15_the_subject_comes_from_a_header(all_four: dict[str, FourSources], client_of: ClientFactory) -> None:
    for kind in ("mqtt-5", "amqp-091", "kafka"):
        four = all_four[kind]
        requester = client_of(four, "subject")
        modify = {"topic": topic(thing(four), "commands/modify"), "path": "/attributes/n", "value": 2}
        assert exchange(requester, modify, **four.carried(who=OWNER))["status"] == 204
        refused = exchange(requester, modify, **four.carried(who="acme:reader"))
        assert status_and_error(refused) == (403, "things:attribute.notmodifiable")
        assert status_and_error(exchange(requester, modify, **four.carried())) == (400, "placeholder:unresolved")


def test_case_19_a_mapped_header_comes_back_with_the_correlation_id(
    all_four: dict[str, FourSources], client_of: ClientFactory
) -> None:
    for kind in ("mqtt-5", "amqp-091", "kafka"):
        four = all_four[kind]
        ask = {"topic": topic(thing(four), "commands/retrieve")}
        answer = exchange(client_of(four, "fixed"), ask, **four.carried(odd="yes", correlation_id="c-9"))
        assert (answer["headers"]["custom"], answer["headers"]["correlation-id"]) == ("yes", "c-9")


def test_case_26_28_31_32_streaming_is_the_same_everywhere(four: FourSources, client_of: ClientFactory) -> None:
    requester, name = client_of(four, "fixed"), thing(four)
    subscription = Reader(requester, name, {"toHistoricalRevision": 1})
    subscription.request(1)
    first, complete = requester.until("complete")
    assert first["value"]["item"]["revision"] == 1
    assert complete["topic"] == topic(name, "streaming/complete")
    subscription.id = "nobody-has-this"
    subscription.request(1)
    assert requester.next()["value"]["error"]["status"] == 404
    unknown = Reader(requester, "never-there")
    unknown.request(1)
    failed = requester.next()
    assert failed["topic"].endswith("/failed")
    assert failed["value"]["error"]["error"] == "things:thing.notfound"
    malformed = requester.ask_for(topic(name, "streaming/request"), value={"demand": 1})
    assert (malformed["topic"], malformed["status"]) == (topic(name, "errors"), 400)


def test_case_42_a_condition_that_does_not_hold_and_one_that_is_invalid(
    four: FourSources, client_of: ClientFactory
) -> None:
    requester, modify = client_of(four, "fixed"), topic(thing(four), "commands/modify")
    for condition, status in (("eq(attributes/n,-1)", 412), ("eq(attributes/n", 400)):
        answer = requester.ask_for(modify, "/attributes/n", 3, headers={"condition": condition})
        assert answer["status"] == status


def test_case_43_a_merge_has_its_content_type(four: FourSources, client_of: ClientFactory) -> None:
    requester, merge = client_of(four, "fixed"), topic(thing(four), "commands/merge")
    for content_type, status in ((MERGE_PATCH, 204), ("application/json", 415)):
        answer = requester.ask_for(merge, "/attributes", {"merged": 1}, headers={"content-type": content_type})
        assert answer["status"] in (status, 201 if status == 204 else status)


def test_case_50_an_unreadable_message_without_a_reply_address_is_acknowledged_and_counted(
    service: ServiceProcess, four: FourSources, client_of: ClientFactory
) -> None:
    def count(outcome: str, direction: str) -> float:
        labels = {"connection": four.name, "direction": direction, "outcome": outcome}
        return service.metric("connectivity_deliveries_total", **labels)

    requester = client_of(four, "chosen")
    settled, malformed, unresolved = (
        count("settled", "in"),
        count("malformed", "in"),
        count("address_unresolved", "out"),
    )
    requester.send(b"no JSON", **four.carried())
    wait_until_sync(lambda: count("settled", "in") >= settled + 1)
    assert count("malformed", "in") == malformed + 1
    assert count("address_unresolved", "out") == unresolved + 1


def test_case_52_things_and_headers_have_a_largest_size(four: FourSources, client_of: ClientFactory) -> None:
    requester, modify = client_of(four, "fixed"), topic(thing(four), "commands/modify")
    assert requester.ask_for(modify, "/attributes/large", "x" * 110_000)["status"] == 413
    assert requester.ask_for(modify, "/attributes/n", 1, headers={"big": "x" * 6000})["status"] == 431
    assert requester.ask_for(modify, "/attributes/n", 1)["status"] == 204


# --- what a broker does not carry ---------------------------------------------------------------------------------------


def narrow_client(four: FourSources) -> BrokerClient:
    ask, answers = four.place("narrow", "ask"), four.place("narrow", "answers")
    if isinstance(four, KafkaFourSources):
        return KafkaClient(four.broker, ask=ask, answers=answers)
    assert isinstance(four, AmqpFourSources)
    return AmqpClient(four.uri, ask=ask, answers=answers)


@pytest.fixture(scope="module")
def large(all_four: dict[str, FourSources], client_of: ClientFactory) -> tuple[FourSources, str]:
    """A thing with more in it than the narrow place takes: its third event is alone too large."""
    four = all_four["kafka"]
    name = f"large-{four.name}"
    requester = client_of(four, "fixed")
    requester.ask_for(topic(name, "commands/create"), value={"_policy": policy_for(OWNER)})
    for value in ("small", "x" * SMALL, "small again"):
        assert requester.ask_for(topic(name, "commands/modify"), "/attributes/a", value)["status"] in (201, 204)
    requester.ask_for(topic(name, "commands/modify"), "/attributes/large", "x" * SMALL)
    return four, name


def test_an_answer_that_is_too_large_is_followed_by_an_error(
    service: ServiceProcess, large: tuple[FourSources, str]
) -> None:
    four, name = large
    with narrow_client(four) as requester:
        answer = requester.ask_for(topic(name, "commands/retrieve"))
        assert status_and_error(answer) == (413, "connectivity:message.sending.failed")
        assert requester.ask_for(topic(name, "commands/retrieve"), "/attributes/a")["value"] == "small again"
    labels = {"connection": f"{four.name}-narrow", "direction": "out", "outcome": "failed"}
    assert service.metric("connectivity_deliveries_total", **labels) >= 1
    assert any(line["event"] == "message not published" for line in service.records())
    assert service.status(f"{four.name}-narrow")["details"] == "connected"


def test_a_stream_ends_at_an_event_that_is_too_large(large: tuple[FourSources, str]) -> None:
    """The stream ends rather than having an unnoticed gap."""
    four, name = large
    with narrow_client(four) as requester:
        Reader(requester, name).request(100)
        answers = [requester.next()]
        while answers[-1]["topic"].endswith("/next"):
            answers.append(requester.next())
        assert answers[-1]["topic"].endswith("/failed")
        assert answers[-1]["value"]["error"]["status"] == 413
        assert 3 not in [answer["value"]["item"]["revision"] for answer in answers[:-1]]


def test_headers_that_no_frame_of_the_broker_holds_cost_their_answer_alone(
    service: ServiceProcess, all_four: dict[str, FourSources], client_of: ClientFactory
) -> None:
    """AMQP has all properties of a message in one frame, and 4096 bytes were agreed upon."""
    four = all_four["amqp-091"]
    with narrow_client(four) as requester:
        headers = {"long": "x" * 4000, "correlation-id": "too-long"}
        requester.command(topic(thing(four), "commands/retrieve"), headers=headers)
        assert requester.assert_nothing_came(thing(four))["status"] == 200
    client_of(four, "fixed").assert_nothing_came(thing(four))
    [line] = [line for line in service.records() if line.get("correlation_id") == "too-long"]
    assert (line["event"], line["connection"]) == ("message not published", f"{four.name}-narrow")
    assert "expected at most" in line["error"]
