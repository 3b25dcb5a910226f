"""One trace through the service: a command over MQTT 5, its response and event over four brokers.

The transport headers of downstream readers and the collector have the same trace.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import MQTTMessage

from tests.support.broker_setup import AmqpSetup, BrokerSetup, KafkaSetup, Mqtt5Setup, MqttSetup
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.amqp import AmqpClient
from tests.support.clients.kafka import KafkaClient
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import policy_for, topic
from tests.support.service_process import ServiceProcess
from tests.support.span_collector import Collector, Span, collector
from tests.support.wait import wait_until_sync

pytestmark = [pytest.mark.broker("mosquitto"), pytest.mark.broker("rabbitmq"), pytest.mark.broker("kafka")]

OWNER = "acme:owner"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = f"00-{TRACE}-{PARENT}-01"
EVENTS = ["_/_/things/twin/events"]


def target_connection(setup: BrokerSetup) -> dict[str, Any]:
    """Return a connection with a target for events, whose source receives nothing from the test."""
    target = {"address": setup.reply_address("receiver"), "topics": EVENTS, "authorizationContext": [OWNER], "qos": 1}
    return setup.connection("receiver", setup.source("receiver", OWNER), targets=[target])


def users(message: MQTTMessage) -> dict[str, str]:
    """The user properties of a message."""
    found: list[tuple[str, str]] = getattr(message.properties, "UserProperty", [])
    names = [name for name, _ in found]
    assert len(set(names)) == len(names), "no property occurs twice"
    return dict(found)


def test_a_trace_goes_in_over_mqtt_5_and_out_over_mqtt_5_amqp_and_kafka(
    mosquitto: Mosquitto, rabbitmq: RabbitMQ, kafka: Kafka, tmp_path: Path
) -> None:
    requests, mqtt_5, mqtt = Mqtt5Setup(mosquitto), Mqtt5Setup(mosquitto), MqttSetup(mosquitto)
    amqp, records = AmqpSetup(rabbitmq), KafkaSetup(kafka)
    setups: list[BrokerSetup] = [mqtt_5, mqtt, amqp, records]
    with (
        collector() as spans,
        requests.client("sender") as sender,
        mqtt_5.client("receiver") as by_mqtt_5,
        mqtt.client("receiver") as by_mqtt,
        amqp.client("receiver") as by_amqp,
        records.client("receiver") as by_kafka,
    ):
        assert isinstance(sender, MqttClient)
        assert isinstance(by_mqtt_5, MqttClient)
        assert isinstance(by_amqp, AmqpClient)
        assert isinstance(by_kafka, KafkaClient)
        documents = [requests.connection("sender", requests.source("sender", OWNER)), *map(target_connection, setups)]
        tracing = {"endpoint": spans.address, "service": "twins", "ratio": 0}
        with ServiceProcess.start(tmp_path, documents, tracing=tracing) as service:
            made = {
                "topic": topic("lamp-1", "commands/create"),
                "headers": {"correlation-id": "c-1"},
                "path": "/",
                "value": {"_policy": policy_for(OWNER)},
            }
            sender.send(made, UserProperty=[("traceparent", CONTEXT), ("tracestate", "acme=7")])
            assert sender.next()["status"] == 201
            received = [requester.next() for requester in (by_mqtt_5, by_mqtt, by_amqp, by_kafka)]
            lost = {"topic": topic("lamp-2", "commands/retrieve"), "headers": {"correlation-id": "c-2"}, "path": "/"}
            sender.send(lost, UserProperty=[("traceparent", CONTEXT)])
            assert sender.next()["status"] == 404
            code, _ = service.stop()
            assert code == 0
            log = service.records()
    ours = [span for span in spans.taken if span.attributes.get("messaging.message.conversation_id") == "c-1"]
    (consumer,) = [span for span in ours if span.name.startswith("process ")]
    producers = {span.attributes["connectivity.connection"]: span for span in ours if span is not consumer}
    assert (consumer.trace, consumer.parent, consumer.service) == (TRACE, PARENT, "twins")
    assert {(span.trace, span.parent) for span in producers.values()} == {(TRACE, consumer.id)}
    carried = {
        "sender": users(sender.messages[0]),
        "mqtt-5": users(by_mqtt_5.messages[0]),
        "amqp-091": {name: str(value) for name, value in by_amqp.messages[0].headers.items()},
        "kafka": by_kafka.headers[0],
    }
    by_kind = {
        "sender": producers[documents[0]["id"]],
        **{setup.kind: producers[document["id"]] for setup, document in zip(setups, documents[1:], strict=True)},
    }
    for kind, headers in carried.items():
        assert headers["traceparent"] == f"00-{TRACE}-{by_kind[kind].id}-01", kind
        assert headers["tracestate"] == "acme=7", kind
    assert systems(by_kind) == {
        "sender": "mqtt", "mqtt-5": "mqtt", "mqtt": "mqtt", "amqp-091": "rabbitmq", "kafka": "kafka",
    }  # fmt: skip
    # MQTT 3.1.1 has no transport headers; the headers of the signal carry the trace.
    assert received[1]["headers"]["traceparent"] == f"00-{TRACE}-{consumer.id}-01"
    (line,) = [line for line in log if line["event"] == "command refused"]
    assert (line["trace_id"], line["correlation_id"], line["connection"]) == (TRACE, "c-2", documents[0]["id"])
    assert foreign_spans(spans) == [], "with a ratio of 0 the service begins no trace of its own"


def systems(spans: dict[str, Span]) -> dict[str, str]:
    return {kind: span.attributes["messaging.system"] for kind, span in spans.items()}


def foreign_spans(spans: Collector) -> list[Span]:
    return [span for span in spans.taken if span.trace != TRACE]


def test_an_unavailable_collector_delays_no_response(mosquitto: Mosquitto, tmp_path: Path) -> None:
    setup = MqttSetup(mosquitto)
    with collector() as spans:
        """Its port is free again."""
    with (
        setup.client("a") as requester,
        ServiceProcess.start(
            tmp_path, [setup.connection("site", setup.source("a", OWNER))], tracing={"endpoint": spans.address}
        ) as service,
    ):
        for number in range(600):
            requester.command(topic(f"lamp-{number}", "commands/retrieve"), wait=False)
        assert [requester.next()["status"] for _ in range(600)] == [404] * 600
        wait_until_sync(lambda: "spans are lost" in service.log_file.read_text(encoding="utf-8"))
        code, seconds = service.stop()
        assert (code, seconds < 10) == (0, True)
        warnings = [line for line in service.records() if line["level"] in ("warning", "error")]
        assert [line["event"] for line in warnings] == ["spans are lost"]
