"""A second client of a Kafka broker: the bare library in a thread, without code of the service."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self, cast

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from mappings.model.envelope import Envelope
from tests.support.wait import PATIENCE


def text_headers(message: Message) -> dict[str, str]:
    """Return the headers of a record whose values are text."""
    return {name: value.decode() for name, value in cast(list[tuple[str, bytes]], message.headers() or [])}


class BareKafkaClient:
    """Publishes, and reads a topic from its beginning into the lists `received` and `messages`."""

    def __init__(self, bootstrap: str, topic: str, partitions: int = 1) -> None:
        self.received: list[Envelope] = []
        self.messages: list[Message] = []
        self._is_over = False
        settings = {"bootstrap.servers": bootstrap, "log_level": 0}
        # The library requires a group ID, but the consumer joins no group.
        consuming = {"group.id": "observer", "enable.auto.commit": False, "fetch.wait.max.ms": 50}
        self._consumer = Consumer({**settings, **consuming})
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        self._producer = Producer({**settings, "linger.ms": 0, "message.max.bytes": 10_000_000})
        self._thread = threading.Thread(target=self._run)

    def send(
        self,
        topic: str,
        payloads: Sequence[bytes | None],
        headers: Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]] | None = None,
        *,
        key: str | None = None,
        partition: int = -1,
    ) -> None:
        """Send in order, and return when the broker has confirmed all."""
        failures: list[object] = []
        given = list(headers.items()) if isinstance(headers, Mapping) else list(headers or [])
        for payload in payloads:
            self._producer.produce(
                topic,
                payload,
                key,
                partition,
                lambda error, _: failures.append(error) if error else None,
                headers=given,
            )
        assert self._producer.flush(PATIENCE) == 0, "the broker has not confirmed everything"
        assert failures == []

    def _run(self) -> None:
        while not self._is_over:
            for message in self._consumer.consume(500, 0.05):
                if message.error() is None:
                    self.messages.append(message)
                    headers = text_headers(message)
                    self.received.append(Envelope(message.value() or b"", headers))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self._thread.join(PATIENCE)
        self._consumer.close()
