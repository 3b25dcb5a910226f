"""What an AMQP publisher keeps about exchanges, whose names clients may choose in a `reply-to`."""

from __future__ import annotations

import pytest

from connectivity.connections.model import Connection
from connectivity.errors import ConnectivityError
from connectivity.transports.amqp import publisher as publishing
from connectivity.transports.amqp.client import AmqpClient
from connectivity.transports.amqp.errors import NOT_FOUND
from connectivity.transports.amqp.frames import Reason
from connectivity.transports.amqp.options import Options
from connectivity.transports.amqp.publisher import AmqpPublisher
from connectivity.transports.base import OutboundMessage, ignore_reader_status
from mappings.model.envelope import Envelope
from tests.support.wait import wait_until

CONNECTION = Connection.model_validate(
    {"id": "depot", "connectionType": "amqp-091", "connectionStatus": "open", "uri": "amqp://127.0.0.1:5672"}
)


async def test_a_client_that_names_ever_new_exchanges_takes_a_bounded_amount_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def missing(what: str, name: str) -> Reason:
        return Reason(NOT_FOUND, f"NOT_FOUND - no {what} '{name}'")

    monkeypatch.setattr(publishing, "MAX_CACHED_ADDRESSES", 10)
    client = AmqpClient(CONNECTION, Options())
    monkeypatch.setattr(client, "missing_reason", missing)
    publisher = AmqpPublisher(client, CONNECTION.id, ignore_reader_status)
    outcomes: list[ConnectivityError | None] = []
    for number in range(25):
        publisher.publish(OutboundMessage(f"nowhere-{number}/key", Envelope(b"")), outcomes.append)
    await wait_until(lambda: len(outcomes) == 25)
    assert [str(outcome) for outcome in outcomes] == [
        f"missing address: NOT_FOUND - no exchange 'nowhere-{number}'" for number in range(25)
    ]
    assert len(publisher._missing) <= 10
    publisher.end()
