"""When an AMQP link stops reading, and what happens to messages beyond its bounds."""

from __future__ import annotations

import pytest

from connectivity.connections.model import Connection
from connectivity.errors import LinkRenewed
from connectivity.transports.amqp.link import AmqpLink
from connectivity.transports.amqp.options import Options
from connectivity.transports.base import MOST_BUDGETS, ConsumeOptions, OutboundMessage
from mappings.model.envelope import Envelope
from tests.contract.link import lost

CONNECTION = Connection.model_validate(
    {
        "id": "depot",
        "connectionType": "amqp-091",
        "connectionStatus": "open",
        "uri": "amqp://127.0.0.1:5672",
        "sources": [{"addresses": ["commands"], "authorizationContext": ["acme:line"]}],
    }
)


@pytest.fixture
async def link() -> AmqpLink:
    """A link without a socket, with room for 100 bytes."""
    made = AmqpLink(CONNECTION, Options(), ConsumeOptions(unsettled_bytes=100))
    made.mark_started()
    return made


async def test_reading_stops_at_the_bound_and_continues_when_half_is_settled(link: AmqpLink) -> None:
    assert link.arrived(60)
    assert not link.client.is_paused
    assert link.arrived(60)
    assert link.client.is_paused
    link.ended(60)
    assert link.client.is_paused
    link.ended(60)
    assert not link.client.is_paused


async def test_a_link_that_waits_for_confirms_reads_on(link: AmqpLink) -> None:
    link.arrived(100)
    assert link.client.is_paused
    link.publisher.blocked("memory")
    link.publish(OutboundMessage("ex/key", Envelope(b"")), lambda _: None)
    assert not link.client.is_paused
    link.arrived(100)
    assert not link.client.is_paused


async def test_a_link_that_is_being_made_reads_on() -> None:
    made = AmqpLink(CONNECTION, Options(), ConsumeOptions(unsettled_bytes=100))
    made.arrived(100)
    assert not made.client.is_paused
    made.mark_started()
    assert made.client.is_paused


async def test_beyond_a_multiple_of_the_bound_the_rest_is_left_to_the_next_link(link: AmqpLink) -> None:
    size = 100 * MOST_BUDGETS
    assert link.arrived(size)
    assert not link.arrived(1)
    link.ended(size)
    assert isinstance(await lost(link), LinkRenewed)
