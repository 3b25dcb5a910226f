"""A party on Kafka, with the client of the confluent-kafka library."""

from __future__ import annotations

import threading

from confluent_kafka import Consumer, Producer, TopicPartition

from examples.brokers import Broker
from examples.party import PATIENCE, NoAnswer, Party, Show, quiet


class KafkaParty(Party):
    """Publishes to the topic `speaks`, and listens to what comes to the topic `listens` from now on."""

    transport = "Kafka"

    def __init__(self, name: str, broker: Broker, *, speaks: str, listens: str, show: Show = quiet) -> None:
        super().__init__(name, show)
        self._speaks = speaks
        self._is_over = threading.Event()
        settings = {"bootstrap.servers": f"{broker.host}:{broker.port}", "log_level": 0}
        self._producer = Producer({**settings, "linger.ms": 0})
        # A member of no group: the group's name is only asked for.
        self._consumer = Consumer({**settings, "group.id": name, "enable.auto.commit": False, "fetch.wait.max.ms": 50})
        _, end = self._consumer.get_watermark_offsets(TopicPartition(listens, 0), PATIENCE)
        self._consumer.assign([TopicPartition(listens, 0, end)])
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._is_over.is_set():
            for message in self._consumer.consume(100, 0.05):
                if message.error() is None:
                    self._heard(message.value() or b"null")

    def _send(self, payload: bytes, correlation_id: str) -> None:
        self._producer.produce(self._speaks, payload, headers={"correlation-id": correlation_id})
        if self._producer.flush(PATIENCE):
            raise NoAnswer(f"{self.name}: Kafka did not take a message within {PATIENCE:.0f} s")

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._consumer.close()
