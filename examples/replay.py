"""Replays what happened to one device over the broker that you name, and shows every message.

python -m examples.replay amqp boiler-07

It talks to the service that `make serve` has started; `--port` is the broker's port if it is not the usual one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from aiormq import AMQPError
from confluent_kafka import KafkaException

from examples.amqp_party import AmqpParty
from examples.brokers import Broker
from examples.conversation import NotAsPromised, Replay
from examples.kafka_party import KafkaParty
from examples.mqtt_party import MqttParty
from examples.party import NoAnswer, Party
from examples.shown import show

PARTIES: dict[str, tuple[int, Callable[[Broker], Party]]] = {
    "mqtt": (
        1883,
        lambda broker: MqttParty(
            "client", broker, speaks="clients/app/ask", listens="clients/app/answers", names_place=True, show=show
        ),
    ),
    "mqtt-5": (
        1883,
        lambda broker: MqttParty(
            "gateway", broker, speaks="gateways/app/ask", listens="gateways/app/answers", is_5=True, show=show
        ),
    ),
    "amqp": (5672, lambda broker: AmqpParty("back end", broker, speaks="back-end.ask", show=show)),
    "kafka": (
        9092,
        lambda broker: KafkaParty("analytics", broker, speaks="analytics.ask", listens="analytics.answers", show=show),
    ),
}
"""The usual port of each broker, and who talks to it."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.replay", description="Replay the past of one device.")
    parser.add_argument("broker", choices=PARTIES)
    parser.add_argument("device", help="such as boiler-07")
    parser.add_argument("--port", type=int, help="the broker's port, if it is not the usual one")
    given = parser.parse_args(arguments)
    usual, party_of = PARTIES[given.broker]
    port = given.port or usual
    try:
        with party_of(Broker("as named", port, frozenset(), usual)) as party:
            replay = Replay(party, given.device, {"fromHistoricalRevision": 1})
            replay.rest()
    except (NoAnswer, NotAsPromised, OSError, AMQPError, KafkaException) as error:
        print(f"{given.broker} at port {port}: {error}", file=sys.stderr)
        return 1
    print(f"{len(replay.revisions)} events: revision {replay.revisions[0]} to {replay.revisions[-1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
