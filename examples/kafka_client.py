"""A client on Kafka: the library confluent-kafka."""

from __future__ import annotations

import threading

from confluent_kafka import Consumer, Producer, TopicPartition

from examples.broker_client import TIMEOUT, BrokerClient, MessagePrinter, NoResponse, print_nothing
from examples.brokers import Broker


class KafkaClient(BrokerClient):
    """Publishes to the topic `publish_to`, and reads new records of partition 0 of `receive_from`."""

    transport = "Kafka"

    def __init__(
        self,
        name: str,
        broker: Broker,
        *,
        publish_to: str,
        receive_from: str,
        printer: MessagePrinter = print_nothing,
    ) -> None:
        super().__init__(name, printer)
        self._publish_to = publish_to
        self._is_closed = threading.Event()
        settings = {"bootstrap.servers": f"{broker.host}:{broker.port}", "log_level": 0}
        self._producer = Producer({**settings, "linger.ms": 0})
        # The library requires a group name, although this consumer joins no group.
        self._consumer = Consumer({**settings, "group.id": name, "enable.auto.commit": False, "fetch.wait.max.ms": 50})
        _, end = self._consumer.get_watermark_offsets(TopicPartition(receive_from, 0), TIMEOUT)
        self._consumer.assign([TopicPartition(receive_from, 0, end)])
        self._thread = threading.Thread(target=self._consume)
        self._thread.start()

    def _consume(self) -> None:
        while not self._is_closed.is_set():
            for record in self._consumer.consume(100, 0.05):
                if record.error() is None:
                    self._on_payload(record.value() or b"null")

    def _publish(self, payload: bytes, correlation_id: str) -> None:
        self._producer.produce(self._publish_to, payload, headers={"correlation-id": correlation_id})
        if self._producer.flush(TIMEOUT):
            raise NoResponse(f"{self.name}: Kafka did not acknowledge a record within {TIMEOUT:.0f} s")

    def close(self) -> None:
        self._is_closed.set()
        self._thread.join()
        self._consumer.close()
