"""Errors of Kafka's client library that end a link: those of its producer, and those of its consumer."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError

from connectivity.connections.model import Connection
from connectivity.errors import ConnectivityError
from connectivity.transports.base import OutboundMessage
from connectivity.transports.kafka.connector import connect
from connectivity.transports.kafka.link import KafkaLink
from connectivity.transports.kafka.producer import KafkaProducer
from mappings.model.envelope import Envelope
from tests.support.brokers.kafka import Kafka
from tests.support.wait import PATIENCE, wait_until

OF_THE_PRODUCER = [
    KafkaError._FATAL,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
    KafkaError._FENCED,
]


class Message:
    def topic(self) -> str:
        return "answers"


@pytest.mark.parametrize("code", OF_THE_PRODUCER)
async def test_an_error_of_the_producer_ends_the_link_and_refuses_no_message(code: int) -> None:
    """The message goes out again on the next link; as refused, it would be lost."""
    link, ended = KafkaLink([]), list[ConnectivityError | None]()
    publishing = KafkaProducer(
        {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, "site", on_error=link.failed, on_stuck=link.stuck
    )
    link.mark_started()
    destination = publishing._destination_of(OutboundMessage("answers", Envelope(b"")))
    publishing._reported(destination, ended.append, KafkaError(code), Message())  # type: ignore[arg-type]
    publishing.start()
    try:
        await wait_until(link.lost.done)
    finally:
        publishing.stop(is_orderly=False)
        await wait_until(publishing.gone.done)
    assert ended == []


@pytest.mark.broker("kafka")
async def test_a_fatal_library_error_is_not_written_to_the_terminal(
    kafka: Kafka, capfd: pytest.CaptureFixture[str]
) -> None:
    """There the service's log is, a JSON object in each line."""
    topic, name = uuid4().hex, uuid4().hex
    kafka.create(topic)
    document = {
        "id": f"lab-{name}",
        "connectionType": "kafka",
        "connectionStatus": "open",
        "uri": kafka.uri(),
        "specificConfig": {"bootstrapServers": kafka.bootstrap},
        "sources": [{"addresses": [topic], "qos": 1, "authorizationContext": ["lab:all"]}],
    }
    former = await connect(Connection.model_validate(document))
    latter = await connect(Connection.model_validate(document))
    assert "fenced" in str(await asyncio.wait_for(former.lost, PATIENCE))
    await latter.close()
    assert capfd.readouterr() == ("", "")
