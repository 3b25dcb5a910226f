"""Conversations over MQTT 5: response topic, correlation data, content type and user properties.

Case numbers are those of the behavior cases of connections. Differences of MQTT 5 and 3.1.1 are tested side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from paho.mqtt.client import MQTTMessage, MQTTv5

from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.bare_mqtt import headers_of
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import READ, Reader, connection, policy_for, source, topic
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.broker("mosquitto")

WRITER = "acme:writer"
MESSAGE = "application/vnd.eclipse.ditto+json"
MERGE_PATCH = "application/merge-patch+json"


def plain(name: str, *subjects: str, **more: Any) -> dict[str, Any]:
    """A source as `source` makes it, without a reply-target of its own."""
    made = source(name, *(subjects or (WRITER,)), **more)
    if "replyTarget" not in more:
        del made["replyTarget"]
    return made


MAPPED = {
    "headerMapping": {
        "device": "{{ header:device_id | fn:upper() }}",
        "came-by": "{{ header:mqtt.topic }} {{ header:mqtt.qos }} {{ header:mqtt.retain }}",
        "fixed": "constant",
    },
    "replyTarget": {
        "address": "five/mapped/answers",
        "headerMapping": {
            "device": "{{ header:device }}",
            "thing": "{{ entity:name }}",
            "by": "{{ connection:id }}",
            "absent": "{{ header:never-there }}",
            "mqtt.message-expiry-interval": "{{ header:expiry }}",
        },
    },
}

SOURCES = {
    "plain": plain("five/plain"),
    "explicit": source("five/explicit", WRITER),
    "mapped": plain("five/mapped", **MAPPED),
    "off": plain("five/off", replyTarget={"enabled": False}),
    "responses": source(
        "five/responses",
        WRITER,
        replyTarget={"address": "five/responses/answers", "expectedResponseTypes": ["response"]},
    ),
    "nothing": source(
        "five/nothing", WRITER, replyTarget={"address": "five/nothing/answers", "expectedResponseTypes": []}
    ),
    "by-header": source(
        "five/by-header",
        WRITER,
        enforcement={"input": "{{ header:device_id }}", "filters": ["{{ thing:id }}", "{{ policy:id }}"]},
    ),
    "by-subject": source("five/by-subject", "{{ header:who }}"),
    "elsewhere": source(
        "five/elsewhere",
        WRITER,
        replyTarget={
            "address": "five/never",
            "headerMapping": {"mqtt.topic": "five/other/answers", "mqtt.qos": "0", "mqtt.retain": "true"},
        },
    ),
}

BY_TOPIC = {
    "addresses": ["fleet/+/ask"],
    "enforcement": {
        "input": "{{ source:address }}",
        "filters": ["fleet/{{ thing:name }}/ask", "fleet/{{ policy:name }}/ask"],
    },
    "replyTarget": {"address": "fleet/{{ entity:name }}/answers"},
}


@pytest.fixture(scope="module")
def service(mosquitto: Mosquitto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    documents = [
        connection(mosquitto, *sources, id=f"five-{number}", connectionType="mqtt-5")
        for number, sources in enumerate(batched([*SOURCES.values()], 4))
    ]
    old = connection(mosquitto, source("fleet", WRITER, **BY_TOPIC), id="old")
    with ServiceProcess.start(tmp_path_factory.mktemp("five"), [*documents, old]) as running:
        yield running


def batched(items: list[Any], size: int) -> list[list[Any]]:
    """A connection has four sources at most."""
    return [items[start : start + size] for start in range(0, len(items), size)]


@pytest.fixture(scope="module")
def clients(service: ServiceProcess, mosquitto: Mosquitto) -> Iterator[dict[str, MqttClient]]:
    made = {
        name: MqttClient(
            mosquitto.host, mosquitto.port, ask=f"five/{name}/ask", answers=f"five/{name}/answers", version=MQTTv5
        )
        for name in SOURCES
    }
    answer = made["explicit"].ask_for(
        topic("kiln-1", "commands/create"),
        value={"_policy": policy_for(WRITER, acme_reader={"thing:/": READ}), "attributes": {"n": 0}},
    )
    assert answer["status"] == 201, answer
    yield made
    for requester in made.values():
        requester.close()


def command(topic: str, path: str = "/", **more: Any) -> dict[str, Any]:
    return {"topic": topic, "path": path, **more}


RETRIEVE = command(topic("kiln-1", "commands/retrieve"))


def headers_beside(message: MQTTMessage) -> dict[str, str]:
    assert message.properties is not None
    return headers_of(message.properties)


def exchange(requester: MqttClient, document: Any, **properties: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Send, and return the answer with the headers that MQTT carried beside it."""
    requester.send(document, **properties)
    answer = requester.next()
    found = headers_beside(requester.messages[-1])
    return answer, found


# --- the defaults of a source without a reply-target --------------------------------------------------------------------


def test_an_answer_goes_to_the_response_topic_with_the_correlation_data(clients: dict[str, MqttClient]) -> None:
    """Defaults of reply targets: address, correlation ID and content type come from the command."""
    requester = clients["plain"]
    answer, found = exchange(
        requester, RETRIEVE, ResponseTopic=requester.answers, CorrelationData=b"c-\xc3\xa4-1", ContentType=MESSAGE
    )
    assert (answer["status"], answer["headers"]["correlation-id"]) == (200, "c-ä-1")
    assert found["correlation-id"] == "c-ä-1"
    assert found["content-type"] == "application/json", "by default the content type of the signal"


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"\x00\xff\xfb", "base64:AP_7"),
        (b"base64:AP_7", "base64:YmFzZTY0OkFQXzc="),
        (b"base64: x", "base64: x"),
    ],
)
def test_a_response_returns_correlation_data_of_any_bytes(
    clients: dict[str, MqttClient], data: bytes, shown: str
) -> None:
    requester = clients["plain"]
    requester.send(RETRIEVE, ResponseTopic=requester.answers, CorrelationData=data)
    answer = requester.next()
    assert (answer["status"], answer["headers"]["correlation-id"]) == (200, shown)
    assert vars(requester.messages[-1].properties)["CorrelationData"] == data


def test_a_correlation_id_that_is_no_base64_is_sent_as_it_is(clients: dict[str, MqttClient]) -> None:
    requester = clients["plain"]
    document = {**RETRIEVE, "headers": {"correlation-id": "base64:+/#", "reply-to": requester.answers}}
    assert exchange(requester, document)[1]["correlation-id"] == "base64:+/#"


def test_the_headers_of_a_message_come_before_those_around_it(clients: dict[str, MqttClient]) -> None:
    """The source's header mapping fills gaps only."""
    requester = clients["plain"]
    document = {**RETRIEVE, "headers": {"correlation-id": "inner", "reply-to": requester.answers}}
    answer, found = exchange(requester, document, ResponseTopic="five/never", CorrelationData=b"outer")
    assert (answer["headers"]["correlation-id"], found["correlation-id"]) == ("inner", "inner")


def test_a_command_without_response_topic_is_acknowledged_and_not_answered(
    service: ServiceProcess, clients: dict[str, MqttClient]
) -> None:
    requester = clients["plain"]
    requester.send(command(topic("kiln-1", "commands/modify"), "/attributes/quiet", value=1))
    answer, _ = exchange(
        requester, command(topic("kiln-1", "commands/retrieve"), "/attributes/quiet"), ResponseTopic=requester.answers
    )
    assert answer["value"] == 1
    assert (
        service.metric(
            "connectivity_deliveries_total", connection="five-0", outcome="address_unresolved", direction="out"
        )
        >= 1
    )


@pytest.mark.parametrize("reply_to", ["$SYS/broker/x", "five//x", "/five/x"])
def test_an_unsafe_response_topic_is_never_published_to(clients: dict[str, MqttClient], reply_to: str) -> None:
    requester = clients["plain"]
    requester.send(RETRIEVE, ResponseTopic=reply_to)
    answer, _ = exchange(requester, RETRIEVE, ResponseTopic=requester.answers, CorrelationData=b"safe")
    assert answer["headers"]["correlation-id"] == "safe"


def test_an_unreadable_message_gets_an_error_at_its_response_topic(clients: dict[str, MqttClient]) -> None:
    requester = clients["plain"]
    answer, found = exchange(requester, b"\xff", ResponseTopic=requester.answers, CorrelationData=b"c-2")
    assert (answer["topic"], answer["value"]["error"]) == ("unknown/unknown/things/twin/errors", "json.invalid")
    assert found["correlation-id"] == "c-2"


def test_case_43_the_content_type_of_a_merge_may_stand_around_it(clients: dict[str, MqttClient]) -> None:
    requester = clients["plain"]
    merge = command(topic("kiln-1", "commands/merge"), "/attributes", value={"merged": 1})
    for content_type, status in ((MERGE_PATCH, 204), (MESSAGE, 415), (None, 415)):
        properties = {"ContentType": content_type} if content_type else {}
        answer, _ = exchange(requester, merge, ResponseTopic=requester.answers, **properties)
        assert answer["status"] == status
        assert answer["status"] == 204 or answer["value"]["error"] == "mediatype.unsupported"


# --- reply-targets as operators write them ------------------------------------------------------------------------------


def test_an_explicit_address_gets_the_plain_headers(clients: dict[str, MqttClient]) -> None:
    """No header mapping by default: content type and correlation id of the message itself."""
    answer, found = exchange(
        clients["explicit"], {**RETRIEVE, "headers": {"correlation-id": "c-3"}}, CorrelationData=b"outer"
    )
    assert answer["headers"]["correlation-id"] == "c-3"
    assert found == {"correlation-id": "c-3", "content-type": MESSAGE}


def test_case_19_20_user_properties_and_headers_are_mapped_both_ways(clients: dict[str, MqttClient]) -> None:
    requester = clients["mapped"]
    answer, found = exchange(
        requester,
        {**RETRIEVE, "headers": {"correlation-id": "c-4", "expiry": "60"}},
        UserProperty=[("device_id", "kiln-1"), ("private", "stays here")],
    )
    assert answer["headers"]["device"] == "KILN-1"
    assert answer["headers"]["fixed"] == "constant"
    assert "private" not in answer["headers"]
    assert found == {
        "correlation-id": "c-4",
        "content-type": MESSAGE,
        "device": "KILN-1",
        "thing": "kiln-1",
        "by": "five-0",
        "mqtt.message-expiry-interval": "60",
    }


def test_case_23_topic_qos_and_retain_can_be_mapped_and_are_not_passed_on(clients: dict[str, MqttClient]) -> None:
    answer, _ = exchange(clients["mapped"], RETRIEVE)
    assert answer["headers"]["came-by"] == "five/mapped/ask 1 false"
    assert not [name for name in answer["headers"] if name.startswith("mqtt.")]


def test_an_expiry_that_is_invalid_is_a_failure_that_is_seen_and_harms_nothing(
    service: ServiceProcess, clients: dict[str, MqttClient]
) -> None:
    def failed() -> float:
        return service.metric("connectivity_deliveries_total", connection="five-0", outcome="failed", direction="out")

    before = failed()
    requester = clients["mapped"]
    requester.send({**RETRIEVE, "headers": {"correlation-id": "lost", "expiry": "soon"}})
    answer, _ = exchange(requester, {**RETRIEVE, "headers": {"correlation-id": "c-5"}})
    assert answer["headers"]["correlation-id"] == "c-5"
    wait_until_sync(lambda: failed() == before + 1)


def test_case_24_a_mapping_sets_topic_qos_and_retain(mosquitto: Mosquitto, clients: dict[str, MqttClient]) -> None:
    clients["elsewhere"].send({**RETRIEVE, "headers": {"correlation-id": "kept"}})
    with MqttClient(mosquitto.host, mosquitto.port, ask="x", answers="five/other/answers", version=MQTTv5) as other:
        assert other.next()["headers"]["correlation-id"] == "kept"
        assert other.messages[0].qos == 0
    # A later subscriber gets it because it is retained.
    with MqttClient(mosquitto.host, mosquitto.port, ask="x", answers="five/other/answers", version=MQTTv5) as late:
        assert late.next()["headers"]["correlation-id"] == "kept"
        assert late.messages[0].retain
        late.ask = "five/other/answers"
        late.send(b"null")


def test_a_reply_target_that_is_off_publishes_nothing(
    service: ServiceProcess, mosquitto: Mosquitto, clients: dict[str, MqttClient]
) -> None:
    requester = clients["off"]
    with MqttClient(mosquitto.host, mosquitto.port, ask="x", answers="five/off-back", version=MQTTv5) as back:
        requester.send(
            command(topic("kiln-1", "commands/modify"), "/attributes/off", value=1), ResponseTopic="five/off-back"
        )
        requester.send(b"no JSON", ResponseTopic="five/off-back")
        wait_until_sync(
            lambda: service.metric("connectivity_deliveries_total", connection="five-0", outcome="no_reply_target") == 2
        )
        back.assert_nothing_came("kiln-1", to=clients["plain"].ask, ResponseTopic=back.answers)
    found, _ = exchange(clients["explicit"], command(topic("kiln-1", "commands/retrieve"), "/attributes/off"))
    assert found["value"] == 1


def test_errors_are_published_only_where_they_are_expected(clients: dict[str, MqttClient]) -> None:
    requester = clients["responses"]
    requester.send(command(topic("nowhere", "commands/retrieve"), headers={"correlation-id": "error"}))
    requester.send(b"no JSON")
    answer, _ = exchange(requester, {**RETRIEVE, "headers": {"correlation-id": "response"}})
    assert answer["headers"]["correlation-id"] == "response"


def test_case_27_subscription_events_pass_regardless_of_the_expected_response_types(
    clients: dict[str, MqttClient],
) -> None:
    """`failed` is an event and no error response: even an empty list of expected types lets it through."""
    for name in ("responses", "nothing"):
        requester = clients[name]
        requester.send({**RETRIEVE, "headers": {"correlation-id": "x"}})
        if name == "responses":
            assert requester.next()["status"] == 200
        subscription = Reader(requester, "never-there")
        subscription.request(1)
        assert requester.next()["value"]["error"]["status"] == 404


def test_case_02_each_source_answers_at_its_own_address(clients: dict[str, MqttClient]) -> None:
    for name in ("explicit", "mapped", "responses"):
        answer, _ = exchange(clients[name], {**RETRIEVE, "headers": {"correlation-id": name}})
        assert answer["headers"]["correlation-id"] == name
    # Some of these sources send no response; `plain` responds at any requested address.
    for requester in clients.values():
        requester.assert_nothing_came("kiln-1", to=clients["plain"].ask, ResponseTopic=requester.answers)


def test_case_26_30_events_carry_the_headers_of_the_latest_command(clients: dict[str, MqttClient]) -> None:
    """Subscribed by one source and requested by another of its connection, which gets the events."""
    subscription = Reader(clients["explicit"], "kiln-1", {"toHistoricalRevision": 1})
    other = clients["mapped"]
    other.send(
        command(
            topic("kiln-1", "streaming/request"), value={"subscriptionId": subscription.id, "demand": 5},
            headers={"correlation-id": "r-1"},
        ),
        UserProperty=[("device_id", "kiln-1")],
    )  # fmt: skip
    event, complete = other.until("complete")
    assert (event["headers"]["correlation-id"], event["headers"]["device"]) == ("r-1", "KILN-1")
    assert complete["headers"]["device"] == "KILN-1"
    assert headers_beside(other.messages[-2])["device"] == "KILN-1"


# --- sender checks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "group"), [("kiln-1", "things/twin"), ("pol-1", "policies")], ids=["case_11_thing", "case_12_policy"]
)
def test_case_11_12_13_the_sender_is_bound_to_its_entity_by_a_header(
    clients: dict[str, MqttClient], name: str, group: str
) -> None:
    requester = clients["by-header"]
    ask = command(topic(name, "commands/retrieve", group))
    answer, _ = exchange(requester, ask, UserProperty=[("device_id", "acme.site:other")])
    assert answer["topic"] == topic(name, "errors", group)
    assert (answer["status"], answer["value"]["error"]) == (400, "connectivity:connection.id.enforcement.failed")
    answer, _ = exchange(requester, ask)
    assert (answer["status"], answer["value"]["error"]) == (400, "placeholder:unresolved")
    answer, _ = exchange(requester, ask, UserProperty=[("device_id", f"acme.site:{name}")])
    assert answer["status"] == (200 if name == "kiln-1" else 404)


def test_case_117_a_command_for_another_thing_changes_nothing(clients: dict[str, MqttClient]) -> None:
    modify = command(topic("kiln-1", "commands/modify"), "/attributes/stolen", value=1)
    answer, _ = exchange(clients["by-header"], modify, UserProperty=[("device_id", "acme.site:thief")])
    assert answer["status"] == 400
    answer, _ = exchange(clients["explicit"], command(topic("kiln-1", "commands/retrieve"), "/attributes/stolen"))
    assert answer["status"] == 404


def test_streaming_is_enforced_too(clients: dict[str, MqttClient]) -> None:
    requester = clients["by-header"]
    subscribe = command(topic("kiln-1", "streaming/subscribeForPersistedEvents"))
    answer, _ = exchange(requester, subscribe, UserProperty=[("device_id", "acme.site:other")])
    assert answer["value"]["error"] == "connectivity:connection.id.enforcement.failed"
    answer, _ = exchange(requester, subscribe, UserProperty=[("device_id", "acme.site:kiln-1")])
    assert answer["topic"].endswith("/created")


def test_case_14_over_mqtt_311_the_topic_identifies_the_sender(service: ServiceProcess, mosquitto: Mosquitto) -> None:
    """The address of the message is compared with its entity, and also determines the reply address."""
    with MqttClient(mosquitto.host, mosquitto.port, ask="fleet/van-1/ask", answers="fleet/+/answers") as requester:
        create = topic("van-1", "commands/create")
        assert requester.ask_for(create, value={"_policy": policy_for(WRITER)})["status"] == 201
        answer = requester.ask_for(topic("van-2", "commands/create"), value={"_policy": policy_for(WRITER)})
        assert (answer["topic"], answer["value"]["error"]) == (
            topic("van-2", "errors"),
            "connectivity:connection.id.enforcement.failed",
        )
        assert requester.messages[-1].topic == "fleet/van-2/answers"
        assert requester.ask_for(topic("van-1", "commands/retrieve"))["status"] == 200


def test_case_15_the_subject_comes_from_a_header(clients: dict[str, MqttClient]) -> None:
    requester = clients["by-subject"]
    modify = command(topic("kiln-1", "commands/modify"), "/attributes/n", value=2)
    for who, status in ((WRITER, 204), ("acme:reader", 403), (None, 400)):
        properties = {"UserProperty": [("who", who)]} if who else {}
        answer, _ = exchange(requester, modify, **properties)
        assert answer["status"] == status
        error = {204: None, 403: "things:attribute.notmodifiable", 400: "placeholder:unresolved"}[status]
        assert answer.get("value", {}).get("error") == error


def test_an_answer_that_may_not_be_published_is_counted_and_its_delivery_acknowledged(tmp_path_factory: Any) -> None:
    """The broker's access list refuses the reply address: the command takes effect, nothing waits."""
    sources = [
        source("open", WRITER, replyTarget={"address": "open/{{ header:where }}"}),
        source("open/2", WRITER, replyTarget={"address": "closed/{{ header:where }}"}),
    ]
    with Mosquitto.start(allowed=["open/#"]) as broker:
        document = connection(broker, *sources, connectionType="mqtt-5")
        with (
            ServiceProcess.start(tmp_path_factory.mktemp("listed"), [document]) as service,
            MqttClient(broker.host, broker.port, ask="open/2/ask", answers="open/answers", version=MQTTv5) as requester,
        ):
            requester.send({**RETRIEVE, "headers": {"where": "answers"}})
            outcome = {"connection": "site", "direction": "out", "outcome": "failed"}
            wait_until_sync(lambda: service.metric("connectivity_deliveries_total", **outcome) == 1)
            settled = {"connection": "site", "direction": "in", "outcome": "settled"}
            wait_until_sync(lambda: service.metric("connectivity_deliveries_total", **settled) == 1)
            requester.ask = "open/ask"
            answer, _ = exchange(requester, {**RETRIEVE, "headers": {"where": "answers"}})
            assert answer["status"] == 404
