"""A client of the service over Kafka, for tests; see `tests.support.clients.mqtt`."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.clients.bare_kafka import text_headers
from tests.support.clients.mqtt import BrokerClient
from tests.support.wait import PATIENCE

Headers = Sequence[tuple[str, str | bytes | None]]


class Reachable(Protocol):
    """A broker with the bootstrap servers that a client needs."""

    @property
    def bootstrap(self) -> str: ...


class KafkaClient(BrokerClient):
    """Publishes to the topic `ask`, and receives the new messages of the topic `answers`.

    Messages are published once and received once, even if the broker restarts.
    """

    def __init__(self, broker: Reachable, *, ask: str, answers: str) -> None:
        super().__init__()
        self.ask, self.answers = ask, answers
        self.headers: list[dict[str, str]] = []
        self._is_over = False
        settings = {"bootstrap.servers": broker.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 500}
        self._producer = Producer({**settings, "linger.ms": 0, "enable.idempotence": True, "acks": "all"})
        self._consumer = Consumer(
            {**settings, "group.id": "nobody", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        )
        _, end = self._consumer.get_watermark_offsets(TopicPartition(answers, 0), PATIENCE)
        self._consumer.assign([TopicPartition(answers, 0, end)])
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def send(
        self,
        document: Any,
        *,
        wait: bool = True,
        headers: Headers | None = None,
        key: bytes | None = None,
        to: str | None = None,
    ) -> None:
        """`headers` replace the header `reply-to`; a document of None is a tombstone."""
        payload = document if isinstance(document, bytes | None) else json.dumps(document).encode()
        given: list[tuple[str, str | bytes | None]] = [("reply-to", self.answers)] if headers is None else list(headers)
        self._producer.produce(to or self.ask, payload, key or _entity_of(document), headers=given)
        if wait:
            assert self._producer.flush(PATIENCE) == 0

    def send_all(self, documents: list[Any]) -> None:
        """Send many documents at once."""
        for document in documents:
            payload = json.dumps(document).encode()
            self._producer.produce(self.ask, payload, _entity_of(document), headers={"reply-to": self.answers})
        assert self._producer.flush(PATIENCE) == 0

    def _listen(self) -> None:
        while not self._is_over:
            for message in self._consumer.consume(100, 0.02):
                if message.error() is None:
                    self.headers.append(text_headers(message))
                    self.received.put(self.read(message.value() or b"null"))

    def close(self) -> None:
        self._is_over = True
        self._thread.join(PATIENCE)
        self._consumer.close()


def _entity_of(document: Any) -> str | None:
    """Return the key that keeps the commands of an entity in one partition."""
    return "/".join(str(document.get("topic")).split("/")[:2]) if isinstance(document, dict) else None
