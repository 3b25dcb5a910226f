"""Invalid payloads, topics, headers and reply addresses do not harm the service.

Each is answered with an error of its own type where an address for the answer resolves, counted, settled, and forgotten;
the next message is served as if nothing had been. Nothing is ever published where a client's value would lead it astray.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.bare_mqtt import BareMqttClient
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import client, connection, policy_for, source, topic
from tests.support.dice import examples
from tests.support.odd_messages import BAD, MEBIBYTE, MODIFY, ODD, STREAM, about
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.broker("mosquitto")

WRITER = "acme:writer"

STORM = settings(
    max_examples=examples(500),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # A service that has been harmed cannot be asked again for a smaller example.
    phases=(Phase.explicit, Phase.generate),
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    """A broker of its own, whose published messages are all checked."""
    with Mosquitto.start(config_lines=["sys_interval 0"]) as running:
        yield running


@pytest.fixture(scope="module")
def service(broker: Mosquitto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    chosen = source("b/chosen", WRITER)
    del chosen["replyTarget"]
    inside = source("b/inside", WRITER, replyTarget={"address": "b/at/{{ header:part }}/end"})
    mapped = source(
        "b/mapped",
        WRITER,
        replyTarget={"address": "b/mapped/answers", "headerMapping": {"mqtt.topic": "{{ header:elsewhere }}"}},
    )
    harness = connection(broker, source("b/fixed", WRITER), chosen, inside, mapped)
    with ServiceProcess.start(tmp_path_factory.mktemp("bad"), [harness]) as running:
        with client(broker, "b/fixed") as maker:
            made = maker.ask_for(topic("vase-1", "commands/create"), value={"_policy": policy_for(WRITER)})
            assert made["status"] == 201, made
        yield running


@pytest.fixture(scope="module")
def connected(service: ServiceProcess, broker: Mosquitto) -> Iterator[MqttClient]:
    with client(broker, "b/fixed") as requester:
        yield requester


@pytest.fixture
def fixed(connected: MqttClient) -> MqttClient:
    connected.assert_nothing_came("vase-1")
    return connected


def sent(service: ServiceProcess, outcome: str, direction: str = "in") -> float:
    return service.metric("connectivity_deliveries_total", connection="site", direction=direction, outcome=outcome)


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_answered_counted_and_acknowledged(service: ServiceProcess, fixed: MqttClient, name: str) -> None:
    payload, status, error = BAD[name]
    malformed, refused, settled = (sent(service, outcome) for outcome in ("malformed", "refused", "settled"))
    fixed.send(payload)
    answer = fixed.next()
    assert (answer["status"], answer["value"]["status"], answer["value"]["error"]) == (status, status, error)
    assert answer["topic"].endswith("/errors")
    assert answer["headers"]["correlation-id"]
    assert answer["headers"]["response-required"] is False
    assert len(json.dumps(answer)) < 4000, "an answer must not grow with what it answers"
    assert sent(service, "malformed") + sent(service, "refused") == malformed + refused + 1
    # Responses sent before the counters were read may be added to the settled ones later.
    wait_until_sync(lambda: sent(service, "settled") >= settled + 1)
    following = fixed.ask_for(topic("vase-1", "commands/retrieve"), "/policyId")
    assert following["status"] == 200


@pytest.mark.parametrize("name", ODD)
def test_odd_input_is_served(fixed: MqttClient, name: str) -> None:
    payload, expected = ODD[name]
    fixed.send(payload)
    answer = fixed.next()
    assert answer["status"] in (201, 204), answer
    assert answer["headers"]["ditto-originator"] == WRITER
    found = fixed.ask_for(topic("vase-1", "commands/retrieve"), "/attributes/odd")
    assert found["value"] == expected


def test_an_error_from_another_service_is_not_answered(fixed: MqttClient) -> None:
    """Two services that answer each other cause no endless loop."""
    fixed.send(about(topic("vase-1", "errors"), status=400, value={"status": 400, "error": "x", "message": "y"}))
    assert fixed.assert_nothing_came("vase-1")["status"] == 200


def test_a_malformed_message_is_answered_even_if_it_wants_no_response(fixed: MqttClient) -> None:
    fixed.send(about("nonsense", headers={"response-required": False, "correlation-id": "c-7"}))
    answer = fixed.next()
    assert (answer["topic"], answer["headers"]["correlation-id"]) == ("unknown/unknown/things/twin/errors", "c-7")


UNSAFE = {
    "a wildcard for one level": "b/+/x",
    "a wildcard for all levels": "b/#",
    "only a wildcard": "#",
    "the broker's own": "$SYS/broker/uptime",
    "a shared subscription": "$share/group/b/x",
    "a line feed": "b/x\ny",
    "carriage return and line feed": "b/x\r\nb/y",
    "U+0000": "b/\0",
    "a line separator": "b/\u2028",
    "an empty part": "b//x",
    "an empty part in front": "/b/x",
    "an empty part at the end": "b/x/",
    "nothing": "",
    "two dots": "b/../x",
}


@pytest.fixture
def listeners(service: ServiceProcess, broker: Mosquitto) -> Iterator[list[BareMqttClient]]:
    """Clients that subscribe to all topics, and to `$SYS`, where this broker publishes nothing."""
    with ExitStack() as stack:
        yield [stack.enter_context(BareMqttClient(broker.host, broker.port, topic)) for topic in ("#", "$SYS/#")]


def published(listeners: list[BareMqttClient]) -> list[str]:
    """Return the topics of all published messages, without those sent to the service."""
    topics = [envelope.headers["mqtt.topic"] for listener in listeners for envelope in listener.received]
    return [topic for topic in topics if not topic.endswith("/ask")]


@pytest.mark.parametrize("reply_to", UNSAFE.values(), ids=UNSAFE)
def test_nothing_is_published_where_a_reply_address_is_unsafe(
    service: ServiceProcess, broker: Mosquitto, listeners: list[BareMqttClient], reply_to: str
) -> None:
    failed, settled = sent(service, "failed", "out"), sent(service, "settled")
    with MqttClient(broker.host, broker.port, ask="b/chosen/ask", answers="b/back") as requester:
        for command in (topic("vase-1", "commands/retrieve"), "nonsense"):
            requester.send(about(command, headers={"reply-to": reply_to}))
        # A source publishes in order, so all earlier messages have been sent before this response.
        requester.ask_for(topic("vase-1", "commands/retrieve"), headers={"reply-to": "b/back"})
        wait_until_sync(lambda: "b/back" in published(listeners))
        assert set(published(listeners)) == {"b/back"}
        assert sent(service, "failed", "out") == failed + 2
        wait_until_sync(lambda: sent(service, "settled") >= settled + 3)


@pytest.mark.parametrize("part", UNSAFE.values(), ids=UNSAFE)
def test_a_part_of_an_address_is_checked_too(
    service: ServiceProcess, broker: Mosquitto, listeners: list[BareMqttClient], part: str
) -> None:
    with MqttClient(broker.host, broker.port, ask="b/inside/ask", answers="b/at/safe/end") as requester:
        requester.send(about(topic("vase-1", "commands/retrieve"), headers={"part": part}))
        requester.ask_for(topic("vase-1", "commands/retrieve"), headers={"part": "safe"})
        wait_until_sync(lambda: "b/at/safe/end" in published(listeners))
        assert set(published(listeners)) == {"b/at/safe/end"}


@pytest.mark.parametrize("elsewhere", UNSAFE.values(), ids=UNSAFE)
def test_a_mapped_topic_is_checked_too(
    service: ServiceProcess, broker: Mosquitto, listeners: list[BareMqttClient], elsewhere: str
) -> None:
    """The header `mqtt.topic` replaces the address, so a client's value is checked there as well."""
    with MqttClient(broker.host, broker.port, ask="b/mapped/ask", answers="b/mapped/answers") as requester:
        requester.send(about(topic("vase-1", "commands/retrieve"), headers={"elsewhere": elsewhere}))
        requester.ask_for(topic("vase-1", "commands/retrieve"))
        wait_until_sync(lambda: "b/mapped/answers" in published(listeners))
        assert set(published(listeners)) == {"b/mapped/answers"}


def test_a_command_without_a_reply_address_is_carried_out_and_acknowledged(
    service: ServiceProcess, broker: Mosquitto, fixed: MqttClient
) -> None:
    """Case 50 of the connection cases, also for a valid command: nothing is published."""
    unresolved, settled = sent(service, "address_unresolved", "out"), sent(service, "settled")
    with MqttClient(broker.host, broker.port, ask="b/chosen/ask", answers="b/back") as requester:
        requester.send(about(topic("vase-1", "commands/modify"), "/attributes/quiet", value=1))
        requester.send(b"no JSON")
        wait_until_sync(lambda: sent(service, "settled") >= settled + 2)
    assert sent(service, "address_unresolved", "out") == unresolved + 2
    assert fixed.ask_for(topic("vase-1", "commands/retrieve"), "/attributes/quiet")["value"] == 1


SEEDS = [
    {"topic": MODIFY.decode(), "headers": {"correlation-id": "c"}, "path": "/attributes/odd", "value": {"a": [1, "b"]}},
    {"topic": topic("vase-1", "commands/merge"), "path": "/features", "value": {"f": {"properties": {"p": None}}},
     "headers": {"content-type": "application/merge-patch+json", "if-match": '"rev:1"', "condition": "exists(a)"}},
    {"topic": topic("vase-1", "commands/retrieve"), "path": "/", "fields": "thingId,attributes(a,b)"},
    {"topic": topic("vase-2", "commands/create"), "path": "/", "value": {"_policy": policy_for(WRITER)}},
    {"topic": topic("vase-1", "commands/modify", "policies"), "path": "/entries/X/resources/thing:/attributes",
     "value": {"grant": ["READ"], "revoke": []}},
    {"topic": topic("vase-1", "streaming/subscribeForPersistedEvents"), "path": "/", "value": {
        "fromHistoricalRevision": -3, "filter": "and(eq(attributes/odd,1),in(thingId,'a','b'))",
        "toHistoricalTimestamp": "2999-01-01T00:00:00Z"}},
    {"topic": STREAM, "path": "/", "value": {"subscriptionId": "x", "demand": 3}},
    {"topic": topic("vase-1", "streaming/cancel"), "path": "/", "value": {"subscriptionId": "x"}},
]  # fmt: skip
"""One message of each kind, to be mutated."""

TREACHEROUS: list[Any] = [
    None, True, 0, -1, 1.5, 1e308, 2**63 - 1, -(2**63), [], {}, "", "/", "//", "~1", "_", "+", "#", "$SYS/x", "\0", "\n",
    "a" * 300, "{{ header:x }}", "fn:upper()", "eq(", "not(" * 100, "like(a,'" + "*a" * 50 + "')", "application/json",
]  # fmt: skip
JSON = st.recursive(
    st.sampled_from(TREACHEROUS) | st.text(max_size=8) | st.integers(-(2**70), 2**70) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every member of a document, as its container and its key."""
    members = document.items() if isinstance(document, dict) else enumerate(document)
    for key, member in members:
        yield document, key
        if isinstance(member, dict | list):
            yield from places(member)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Return a message of a known kind with changed, removed or added members and changed bytes."""
    document = json.loads(json.dumps(draw(st.sampled_from(SEEDS))))
    for _ in range(draw(st.integers(0, 3))):
        container, key = draw(st.sampled_from(list(places(document)) or [(document, "topic")]))
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                container[key] = draw(JSON)
            case "remove":
                container.pop(key, None) if isinstance(container, dict) else container.pop(key)
            case _:
                if isinstance(container, dict):
                    container[draw(st.text(max_size=8))] = draw(JSON)
    payload = bytearray(json.dumps(document, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass"))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(payload)))
        payload[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(payload)


def test_a_storm_of_mutated_messages_harms_nothing(service: ServiceProcess, broker: Mosquitto) -> None:
    """After every few messages a command succeeds; at the end there is no internal error.

    Memory is bounded.
    """
    process = psutil.Process(service.pid)
    with client(broker, "b/fixed") as requester:
        statuses: set[int] = set()

        @STORM
        @given(st.lists(mutated() | st.binary(max_size=50), min_size=1, max_size=10))
        def storm(messages: list[bytes]) -> None:
            for message in messages:
                requester.send(message, wait=False)
            correlation = requester.command(topic("vase-0", "commands/retrieve"))
            while (answer := requester.next())["headers"].get("correlation-id") != correlation:
                statuses.add(answer.get("status", 0))
            assert answer["status"] == 404

        storm()
        before = process.memory_info().rss
        storm()
        assert process.memory_info().rss < before + 32 * MEBIBYTE
    assert service.get("/health/ready")[0] == 200
    assert 500 not in statuses
    assert {204, 400} <= statuses, "the storm has to reach those who carry commands out"
    errors = [line for line in service.records() if line.get("level") in ("error", "critical")]
    assert errors == []


def test_refused_messages_are_not_delivered_again_after_a_restart(service: ServiceProcess, broker: Mosquitto) -> None:
    """Settled is settled: after a restart of the service the broker has nothing left for it."""
    with client(broker, "b/fixed") as requester:
        for payload, *_ in BAD.values():
            requester.send(payload, wait=False)
        for _ in BAD:
            requester.next()
        wait_until_sync(lambda: sent(service, "settled") >= len(BAD))
        assert service.stop()[0] == 0
        service.start_again()
        assert requester.ask_for(topic("vase-1", "commands/retrieve"))["status"] == 200
        wait_until_sync(lambda: sent(service, "settled") == 1)
        assert sent(service, "malformed") == 0
