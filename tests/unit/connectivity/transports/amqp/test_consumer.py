"""The deliveries that a consumer hands over."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from connectivity.connections.model import Source
from connectivity.transports.amqp.consumer import AmqpConsumer
from connectivity.transports.base import Delivery
from mappings.model.envelope import Envelope


def delivery(name: str) -> Delivery:
    return Delivery(Envelope(b"", {}), "commands", name, False, lambda *_: None)


@pytest.mark.parametrize(("has_parted", "expected"), [(False, ["1", "2"]), (True, [])])
async def test_remaining_deliveries_of_a_link_ended_by_the_broker_are_discarded(
    has_parted: bool, expected: list[str]
) -> None:
    """The broker brings it again, marked, and perhaps has done so over another link."""
    client: Any = SimpleNamespace(frame_demultiplexer=SimpleNamespace(peer_has_closed=has_parted))
    source = Source(addresses=["commands"], authorization_context=["acme:line"])
    intake = AmqpConsumer(client, source, lambda _: None)
    intake._inbox.waiting.extend(map(delivery, "12"))
    # Behind the turn in which what waits is taken.
    asyncio.get_running_loop().call_soon(intake.end)
    assert [each.name async for ready in intake.consume() for each in ready] == expected
