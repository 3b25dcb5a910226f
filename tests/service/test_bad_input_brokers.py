"""Invalid payloads, headers, properties and reply addresses on each broker, through the whole service.

One table is for all brokers, others are for one broker each. Each message is answered or ignored as the table says, settled,
counted, and logged without its content, and the next command succeeds. No message is published to an address that a client's
value would choose wrongly: an observer receives all messages at the broker.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.kafka import KafkaClient
from tests.support.clients.mqtt import BrokerClient, MqttClient
from tests.support.connection_documents import policy_for, topic
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
from tests.support.odd_messages import BAD, about
from tests.support.service_process import ServiceProcess
from tests.support.wait import PATIENCE, wait_until_sync

pytestmark = [pytest.mark.broker(name) for name in ("mosquitto", "rabbitmq", "kafka")]

CALLED_OFTEN = 100
MOST_BYTES = 200_000
"""The service's payload limit: below that of Kafka's topics, so that the service refuses."""

SECRET = "nobody-may-read-this"
"""A text in payloads and headers that must not be logged."""

RETRIEVE = about(topic("vase-1", "commands/retrieve"), "/policyId")


@pytest.fixture(scope="module")
def all_four(quiet_rabbitmq: RabbitMQ, quiet_kafka: Kafka) -> Iterator[dict[str, FourSources]]:
    with ExitStack() as stack:
        broker = stack.enter_context(Mosquitto.start(config_lines=["sys_interval 0"]))
        made = [
            MqttFourSources(broker),
            Mqtt5FourSources(broker),
            AmqpFourSources(quiet_rabbitmq),
            KafkaFourSources(quiet_kafka),
        ]
        for four in made:
            stack.callback(four.close)
        yield {four.kind: four for four in made}


@pytest.fixture(scope="module")
def service(all_four: dict[str, FourSources], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    documents = [four.document() for four in all_four.values()]
    folder = tmp_path_factory.mktemp("odd")
    with ServiceProcess.start(folder, documents, limits={"payload": MOST_BYTES}) as running:
        with all_four["mqtt"].requester("fixed") as maker:
            made = maker.ask_for(topic("vase-1", "commands/create"), value={"_policy": policy_for(OWNER)})
            assert made["status"] == 201, made
        yield running


@pytest.fixture(scope="module", params=KINDS)
def four(request: pytest.FixtureRequest, all_four: dict[str, FourSources]) -> FourSources:
    return all_four[request.param]


@pytest.fixture(scope="module")
def client_of(
    all_four: dict[str, FourSources], service: ServiceProcess
) -> Iterator[Callable[[FourSources, str], BrokerClient]]:
    """Return a function that gives the client of a source, made on first use."""
    made: dict[tuple[str, str], BrokerClient] = {}

    def requester(four: FourSources, source: str) -> BrokerClient:
        if (four.kind, source) not in made:
            made[four.kind, source] = four.requester(source)
        return made[four.kind, source]

    yield requester
    for each in made.values():
        each.close()


def has_published(four: FourSources, address: str) -> bool:
    return address in four.published()


def has_settled(service: ServiceProcess, four: FourSources, number: int) -> bool:
    return sent(service, four, "settled") == number


def sent(service: ServiceProcess, four: FourSources, outcome: str, direction: str = "in") -> float:
    return service.metric("connectivity_deliveries_total", connection=four.name, direction=direction, outcome=outcome)


# --- one table for all --------------------------------------------------------------------------------------------------

LARGE = about(topic("vase-1", "commands/modify"), "/attributes/odd", value="x" * MOST_BYTES)
PAYLOADS = {
    **{name: row for name, row in BAD.items() if len(row[0]) <= MOST_BYTES},
    "larger than the limit": (LARGE, 413, "connectivity:message.toolarge"),
    "one byte larger": (RETRIEVE.ljust(MOST_BYTES + 1), 413, "connectivity:message.toolarge"),
}


def test_bad_payloads_are_answered_in_order_and_acknowledged(
    service: ServiceProcess, four: FourSources, client_of: Callable[[FourSources, str], BrokerClient]
) -> None:
    requester, settled = client_of(four, "fixed"), sent(service, four, "settled")
    for payload, *_ in PAYLOADS.values():
        requester.send(payload, wait=False)
    requester.send(RETRIEVE.ljust(MOST_BYTES))
    answers = {name: status_and_error(requester.next()) for name in (*PAYLOADS, "as large as may be")}
    expected = {name: (status, error) for name, (_, status, error) in PAYLOADS.items()}
    assert answers == {**expected, "as large as may be": (200, None)}
    wait_until_sync(lambda: sent(service, four, "settled") >= settled + len(answers))
    requester.assert_nothing_came("vase-1")


# --- each broker's own --------------------------------------------------------------------------------------------------

NESTED = {"a": {"b": [1, None, True]}}

# A header of a command → the header `custom` of its response, None if it has none.
AMQP_HEADERS: dict[str, tuple[Any, str | None]] = {
    "a boolean": (True, "true"),
    "a small number": (-1, "-1"),
    "a large number": (2**63 - 1, "9223372036854775807"),
    "a double": (1.5, "1.5"),
    "a decimal": (Decimal("12.5"), "12.5"),
    "a time": (datetime(2030, 1, 15, 7, 30, tzinfo=UTC), "2030-01-15T07:30:00Z"),
    "bytes": (bytearray(b"\x00\xff"), "AP8="),
    "bytes of text": (bytearray(b"abc"), "abc"),
    "a list": ([1, "a", [None]], '[1,"a",[null]]'),
    "a table": (NESTED, '{"a":{"b":[1,null,true]}}'),
    "nothing": (None, None),
    "an empty text": ("", ""),
    "text in two lines": ("a\r\nb: c", "a\r\nb: c"),
    "an expression": ("{{ header:reply-to }}", "{{ header:reply-to }}"),
}

MQTT_5_PROPERTIES: dict[str, tuple[dict[str, Any], str | None]] = {
    "twice the same": ({"UserProperty": [("odd", "one"), ("odd", "two")]}, "two"),
    "in another case": ({"UserProperty": [("ODD", "loud")]}, "loud"),
    "an empty value": ({"UserProperty": [("odd", "")]}, ""),
    "an empty name": ({"UserProperty": [("", "x"), ("odd", "y")]}, "y"),
    "names of the service's own": (
        {"UserProperty": [("mqtt.topic", "x"), ("correlation-id", "x"), ("ditto-originator", "x"), ("odd", "z")]},
        "z",
    ),
    "text declared as bytes": ({"PayloadFormatIndicator": 0}, None),
    "an odd content type": ({"ContentType": "text/plain; charset=utf-16"}, None),
    "correlation data that is no text": ({"CorrelationData": b"\xff\xfe"}, None),
    "sixty kilobytes beside it": ({"UserProperty": [("big", SECRET * 3000)]}, None),
}

KAFKA_HEADERS: dict[str, tuple[list[tuple[str, str | bytes | None]], str | None]] = {
    "twice the same": ([("odd", "one"), ("odd", "two")], "two"),
    "no UTF-8": ([("odd", b"a\xff\xfe")], "a\ufffd\ufffd"),
    "no value": ([("odd", None)], None),
    "an empty value": ([("odd", b"")], ""),
    "an empty name": ([("", "x"), ("odd", "y")], "y"),
    "names of the service's own": ([("kafka.topic", "x"), ("ditto-originator", "x"), ("odd", "z")], "z"),
    "a time to live that is no number": ([("creation-time", "soon"), ("ttl", "x")], None),
    "a time to live beyond all numbers": ([("creation-time", "9" * 400), ("ttl", "-1")], None),
    "a creation time beyond what may be read": ([("creation-time", "9" * 5000), ("ttl", "1")], None),
    "64 kilobytes beside it": ([("big", SECRET * 3400)], None),
}

KAFKA_KEYS = {"no key": None, "an empty key": b"", "a key that is no text": b"\xff\x00", "a long key": b"k" * 60_000}

ODD: dict[str, dict[str, tuple[dict[str, Any], str | None]]] = {
    "mqtt-5": MQTT_5_PROPERTIES,
    "amqp-091": {
        **{name: ({"headers": {"odd": value}}, expected) for name, (value, expected) in AMQP_HEADERS.items()},
        "64 kilobytes beside it": ({"headers": {"big": SECRET * 3400}}, None),
        "the longest name": ({"headers": {"n" * 255: "x"}}, None),
        "an odd content type": ({"content_type": "application/octet-stream", "content_encoding": "gzip"}, None),
        "all other properties": (
            {
                "priority": 255,
                "expiration": 60,
                "type": "t",
                "app_id": "a",
                "timestamp": datetime(9999, 1, 1, tzinfo=UTC),
            },
            None,
        ),
        "no message id": ({"message_id": None}, None),
    },
    "kafka": {
        **{name: ({"headers": headers}, expected) for name, (headers, expected) in KAFKA_HEADERS.items()},
        **{name: ({"key": key}, None) for name, key in KAFKA_KEYS.items()},
    },
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, rows in ODD.items() for name in rows])
def test_odd_things_around_a_command_do_not_keep_it_from_being_served(
    all_four: dict[str, FourSources], client_of: Callable[[FourSources, str], BrokerClient], kind: str, name: str
) -> None:
    around, expected = ODD[kind][name]
    requester = client_of(all_four[kind], "fixed")
    requester.send(RETRIEVE, **around)
    answer = requester.next()
    assert status_and_error(answer) == (200, None)
    assert answer["headers"].get("custom") == expected
    assert answer["headers"]["ditto-originator"] == OWNER


# The payload, or the properties around it → the response.
REFUSED: dict[str, dict[str, tuple[bytes | None, dict[str, Any], int, str]]] = {
    "mqtt-5": {
        "bytes declared as text": (b"\xff\xfe", {"PayloadFormatIndicator": 1}, 400, "json.invalid"),
        "nothing declared as text": (b"", {"PayloadFormatIndicator": 1}, 400, "connectivity:message.mapping.failed"),
        "a header that is mapped and large": (
            RETRIEVE, {"UserProperty": [("odd", SECRET * 500)]}, 431, "headers.too.large",
        ),
    },
    "amqp-091": {
        "an empty body": (b"", {}, 400, "connectivity:message.mapping.failed"),
        "an empty correlation id": (RETRIEVE, {"headers": {"correlation-id": ""}}, 400, "header.invalid"),
        "a header of 64 kilobytes that is mapped": (
            RETRIEVE, {"headers": {"odd": SECRET * 3400}}, 431, "headers.too.large",
        ),
    },
    "kafka": {
        "a tombstone": (None, {"key": b"k"}, 400, "connectivity:message.mapping.failed"),
        "a tombstone without a key": (None, {}, 400, "connectivity:message.mapping.failed"),
        "an empty value": (b"", {}, 400, "connectivity:message.mapping.failed"),
        "a header of 64 kilobytes that is mapped": (
            RETRIEVE, {"headers": [("odd", SECRET * 3400)]}, 431, "headers.too.large",
        ),
    },
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, rows in REFUSED.items() for name in rows])
def test_an_unreadable_message_gets_its_specific_error(
    service: ServiceProcess,
    all_four: dict[str, FourSources],
    client_of: Callable[[FourSources, str], BrokerClient],
    kind: str,
    name: str,
) -> None:
    payload, around, *expected = REFUSED[kind][name]
    requester, settled = client_of(all_four[kind], "fixed"), sent(service, all_four[kind], "settled")
    requester.send(payload, **around)
    answer = requester.next()
    assert status_and_error(answer) == tuple(expected)
    assert len(json.dumps(answer)) < 4000, "an answer must not grow with what it answers"
    requester.send(RETRIEVE)
    assert status_and_error(requester.next()) == (200, None)
    wait_until_sync(lambda: sent(service, all_four[kind], "settled") >= settled + 2)


def test_a_record_with_a_header_name_that_is_no_text_is_served_without_its_headers(
    service: ServiceProcess, all_four: dict[str, FourSources], client_of: Callable[[FourSources, str], BrokerClient]
) -> None:
    """The client library cannot return its headers.

    It ends a process that reads the result, once the interpreter has optimized the call.
    """
    four = all_four["kafka"]
    requester = client_of(four, "fixed")
    assert isinstance(four, KafkaFourSources)
    for _ in range(CALLED_OFTEN):
        requester.send(RETRIEVE, wait=False)
    assert [status_and_error(requester.next()) for _ in range(CALLED_OFTEN)] == [(200, None)] * CALLED_OFTEN
    produce_with_bytes_for_a_name(four.broker, requester, b"\xff\xfe", RETRIEVE)
    assert status_and_error(requester.next()) == (200, None)
    [line] = [line for line in service.records() if line["event"].startswith("record headers ignored")]
    assert (line["level"], line["address"], line["partition"]) == ("warning", four.place("fixed", "ask"), 0)


def produce_with_bytes_for_a_name(broker: Kafka, requester: BrokerClient, name: bytes, payload: bytes) -> None:
    """Send one record through the C library: the Python client accepts only text as header names."""
    assert isinstance(requester, KafkaClient)
    [file] = Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka*/librdkafka*.so*")
    library, words = ctypes.CDLL(str(file)), ctypes.create_string_buffer(512)
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    for function in (library.rd_kafka_conf_new, library.rd_kafka_new, library.rd_kafka_headers_new):
        function.restype = pointer
    settings = pointer(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(settings, text(b"bootstrap.servers"), text(broker.bootstrap.encode()), words, size(512))
    producer = pointer(library.rd_kafka_new(ctypes.c_int(0), settings, words, size(512)))
    headers = pointer(library.rd_kafka_headers_new(size(1)))
    library.rd_kafka_header_add(headers, text(name), ctypes.c_ssize_t(len(name)), text(b"x"), ctypes.c_ssize_t(1))
    # Kinds of arguments, as rdkafka.h numbers them: the topic, flags ("copy the value"), the value, the headers, the end.
    ended = library.rd_kafka_producev(
        producer, 1, text(requester.ask.encode()), 7, 2, 4, text(payload), size(len(payload)), 10, headers, 0
    )
    assert ended == 0
    assert library.rd_kafka_flush(producer, ctypes.c_int(int(PATIENCE * 1000))) == 0
    library.rd_kafka_destroy(producer)


# --- reply addresses ----------------------------------------------------------------------------------------------------

UNSAFE = {
    "a wildcard for one level": "x/+/y",
    "a wildcard for all levels": "x/#",
    "only a wildcard": "#",
    "a star and a hash": "events.#",
    "the broker's own": "$SYS/broker/uptime",
    "a line feed": "x\ny",
    "carriage return and line feed": "x\r\ny",
    "U+0000": "x\0",
    "up and away": "x/../y",
    "an empty part": "x//y",
    "an empty part in front": "/x",
    "nothing": "",
    "what could not be read": "x\ufffd",
}

UNFIT = {
    "amqp-091": {
        "an exchange and a key": "amq.topic/x",
        "a queue that is not there": "nobody-is-here",
        "a key that is too long": "k" * 256,
    },
    "kafka": {
        "the broker's own topic": "__consumer_offsets",
        "a topic that is not there": "nobody-is-here",
        "a name that no topic has": "two words",
        "this folder": ".",
        "a partition that is not there": "{answers}#7",
        "another partition": "{answers}#0",
    },
}
"""Invalid or missing addresses of this broker, besides those that are unsafe anywhere."""


@pytest.fixture
def observed(four: FourSources) -> FourSources:
    four.observe()
    return four


def vain_addresses(four: FourSources) -> set[str]:
    """Return the addresses of queues that are missing: RabbitMQ returns the messages, and no client receives them."""
    return (
        {four.reply_address(queue) for queue in ("nobody-is-here", "#", "events.#")}
        if four.kind == "amqp-091"
        else set()
    )


def test_an_unsafe_or_invalid_reply_address_gets_no_message(
    service: ServiceProcess, observed: FourSources, client_of: Callable[[FourSources, str], BrokerClient]
) -> None:
    """A command and an unreadable message for each: both settled, neither answered, both logged."""
    four, requester = observed, client_of(observed, "chosen")
    places = {**UNSAFE, **UNFIT.get(four.kind, {})}
    settled, failed = sent(service, four, "settled"), sent(service, four, "failed", "out")
    ids = []
    for number, place in enumerate(places.values()):
        reply_to = place.format(answers=requester.answers)
        for what, document in (("good", topic("vase-1", "commands/retrieve")), ("bad", f"nonsense/{SECRET}")):
            ids.append(f"{four.name}-{what}-{number}")
            requester.send(about(document, headers={"reply-to": reply_to, "correlation-id": ids[-1]}))
    wait_until_sync(lambda: sent(service, four, "settled") >= settled + len(ids))
    assert requester.assert_nothing_came("vase-1")["status"] == 200
    # The observer receives messages in order: after this answer no earlier message can come.
    reachable = four.reply_address(requester.answers)
    wait_until_sync(lambda: reachable in four.published())
    assert four.published() - vain_addresses(four) == {reachable}
    assert sent(service, four, "failed", "out") == failed + len(ids)
    lines = [line for line in service.records() if line.get("correlation_id") in ids and line["level"] == "warning"]
    assert sorted(line["correlation_id"] for line in lines) == sorted(ids)
    for line in lines:
        assert line["event"] in ("signal not mapped", "message not published")
        assert (line["connection"], line["source"]) == (four.name, 1)
        assert line["error"]


def test_a_reply_address_around_a_message_is_checked_too(
    all_four: dict[str, FourSources], client_of: Callable[[FourSources, str], BrokerClient]
) -> None:
    """If the transport accepts such an address at all."""
    for kind in ("amqp-091", "kafka"):
        four, requester = all_four[kind], client_of(all_four[kind], "chosen")
        four.observe()
        for place in UNSAFE.values():
            requester.send(RETRIEVE, **four.carried(reply_to=place))
        requester.send(RETRIEVE, **four.carried(reply_to=requester.answers))
        assert status_and_error(requester.next()) == (200, None)
        reachable = four.reply_address(requester.answers)
        wait_until_sync(partial(has_published, four, reachable))
        assert four.published() - vain_addresses(four) == {reachable}


def test_an_answer_to_the_source_itself_causes_no_endless_loop(
    service: ServiceProcess, four: FourSources, client_of: Callable[[FourSources, str], BrokerClient]
) -> None:
    """The answer is no command, and the error about that is no command either."""
    requester = client_of(four, "chosen")
    asked = requester.command(topic("vase-1", "commands/retrieve"), headers={"reply-to": requester.ask})

    def refusals() -> int:
        lines = service.records()
        return sum(line["event"] == "delivery refused" and line["correlation_id"] == asked for line in lines)

    wait_until_sync(refusals)
    # Two responses after it: by then, an answer to its error would have been refused too.
    for _ in range(2):
        answer = requester.ask_for(topic("vase-1", "commands/retrieve"), headers={"reply-to": requester.answers})
        assert answer["status"] == 200
    assert refusals() == 1


# --- afterwards ---------------------------------------------------------------------------------------------------------


def test_a_refusal_is_logged_with_its_context_and_without_the_payload(
    service: ServiceProcess, four: FourSources, client_of: Callable[[FourSources, str], BrokerClient]
) -> None:
    requester = client_of(four, "fixed")
    for document, error in (
        (about(f"nonsense/{SECRET}", headers={"correlation-id": "a-1"}), "protocoladapter:unknown.topicpath"),
        (
            about(topic("vase-9", "commands/modify"), "/attributes/x", value=SECRET, headers={"correlation-id": "a-2"}),
            "things:thing.notfound",
        ),
    ):
        requester.send(document)
        correlation = json.loads(document)["headers"]["correlation-id"]
        assert status_and_error(requester.next())[1] == error
        mine = [
            line
            for line in service.records()
            if line.get("correlation_id") == correlation and line["connection"] == four.name
        ]
        [line] = mine
        assert line["event"] in ("delivery refused", "command refused")
        assert (line["level"], line["source"], line["error"]) == ("info", 0, error)
        assert line["address"] == (
            requester.ask if not isinstance(requester, MqttClient) else four.place("fixed", "ask")
        )


def test_nothing_has_failed_inside_and_no_content_is_in_the_log(service: ServiceProcess) -> None:
    errors = [line for line in service.records() if line["level"] in ("error", "critical")]
    assert errors == []
    text = service.log_file.read_text(encoding="utf-8")
    assert SECRET not in text
    assert "right" not in [word.strip('":@/') for word in text.split()], "the password of RabbitMQ's user"
    assert service.get("/health/ready")[0] == 200


def test_refused_messages_are_not_delivered_again_by_any_broker(
    service: ServiceProcess, all_four: dict[str, FourSources], client_of: Callable[[FourSources, str], BrokerClient]
) -> None:
    """Settled is settled: the brokers have nothing left for the service."""
    assert service.stop()[0] == 0
    assert {kind: four.left() for kind, four in all_four.items()} == dict.fromkeys(KINDS, 0)
    service.start_again()
    for four in all_four.values():
        requester = client_of(four, "fixed")
        requester.send(RETRIEVE)
        assert status_and_error(requester.next()) == (200, None)
        wait_until_sync(partial(has_settled, service, four, 1))
        assert sent(service, four, "malformed") == 0
