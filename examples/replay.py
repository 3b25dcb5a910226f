"""Replays the history of one device over a broker, and prints every message.

    python -m examples.replay amqp boiler-07

It uses the service of `make serve`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from aiormq import AMQPError
from confluent_kafka import KafkaException

from examples.amqp_client import AmqpClient
from examples.broker_client import BrokerClient, NoResponse
from examples.brokers import Broker
from examples.kafka_client import KafkaClient
from examples.mqtt_client import MqttClient
from examples.scenario import Replay, UnexpectedResult
from examples.terminal import print_message

CLIENTS: dict[str, tuple[int, Callable[[Broker], BrokerClient]]] = {
    "mqtt": (
        1883,
        lambda broker: MqttClient(
            "client",
            broker,
            publish_to="clients/app/ask",
            receive_from="clients/app/answers",
            has_reply_header=True,
            printer=print_message,
        ),
    ),
    "mqtt-5": (
        1883,
        lambda broker: MqttClient(
            "gateway",
            broker,
            publish_to="gateways/app/ask",
            receive_from="gateways/app/answers",
            is_5=True,
            printer=print_message,
        ),
    ),
    "amqp": (5672, lambda broker: AmqpClient("back end", broker, publish_to="back-end.ask", printer=print_message)),
    "kafka": (
        9092,
        lambda broker: KafkaClient(
            "analytics", broker, publish_to="analytics.ask", receive_from="analytics.answers", printer=print_message
        ),
    ),
}
"""The usual port of each broker, and the client for it."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.replay", description="Replay the history of one device.")
    parser.add_argument("broker", choices=CLIENTS)
    parser.add_argument("device", help="name of the device, such as boiler-07")
    parser.add_argument("--port", type=int, help="port of the broker (default: the usual one)")
    given = parser.parse_args(arguments)
    usual_port, new_client = CLIENTS[given.broker]
    port = given.port or usual_port
    try:
        with new_client(Broker("the command line", port, frozenset(), usual_port)) as client:
            replay = Replay(client, given.device, {"fromHistoricalRevision": 1})
            replay.rest()
    except (NoResponse, UnexpectedResult, OSError, AMQPError, KafkaException) as error:
        print(f"{given.broker} at port {port}: {error}", file=sys.stderr)
        return 1
    print(f"{len(replay.revisions)} events: revision {replay.revisions[0]} to {replay.revisions[-1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
