"""The deliveries that a consumer hands over."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from connectivity.connections.model import Source
from connectivity.transports.amqp.consumer import AmqpConsumer
from connectivity.transports.amqp.frames import BODY, CONTENT, DELIVER, HEADER, METHOD, METHOD_ID
from connectivity.transports.base import Delivery, KnownNames
from mappings.model.envelope import Envelope


class Reading:
    def __init__(self) -> None:
        self.sizes: list[int] = []

    def arrived(self, size: int) -> bool:
        self.sizes.append(size)
        return True

    def ended(self, size: int) -> None:
        self.sizes.remove(size)


def delivery(name: str) -> Delivery:
    return Delivery(Envelope(b"", {}), "commands", name, False, lambda *_: None)


@pytest.mark.parametrize(("has_parted", "expected"), [(False, ["1", "2"]), (True, [])])
async def test_remaining_deliveries_of_a_link_ended_by_the_broker_are_discarded(
    has_parted: bool, expected: list[str]
) -> None:
    """The broker brings it again, marked, and perhaps has done so over another link."""
    client: Any = SimpleNamespace(frame_demultiplexer=SimpleNamespace(peer_has_closed=has_parted))
    source = Source(addresses=["commands"], authorization_context=["acme:line"])
    intake = AmqpConsumer(client, source, lambda _: None, Reading(), 1 << 20)
    intake._inbox.waiting.extend(map(delivery, "12"))
    # Behind the turn in which what waits is taken.
    asyncio.get_running_loop().call_soon(intake.end)
    assert [each.name async for ready in intake.consume() for each in ready] == expected


def content(size: int) -> bytes:
    """A content header without properties."""
    return CONTENT.pack(60, 0, size) + bytes(2)


DELIVERED = METHOD_ID.pack(*DELIVER) + b"\x010" + bytes(7) + b"\x01" + bytes(1)


async def test_b9_the_body_of_a_message_of_256_mb_is_skipped() -> None:
    client: Any = SimpleNamespace(call_before_send=lambda _: None)
    reading = Reading()
    source = Source(addresses=["commands"], authorization_context=["acme:line"])
    intake = AmqpConsumer(client, source, lambda _: None, reading, 1 << 20)
    body, frames = bytes(1 << 17), 2048
    intake.take(METHOD, DELIVERED)
    intake.take(HEADER, content(len(body) * frames))
    for _ in range(frames):
        intake.take(BODY, body)
        assert not intake._parts
    intake.take(METHOD, DELIVERED)
    intake.take(HEADER, content(4))
    intake.take(BODY, b"next")
    large, following = intake._inbox.waiting
    assert (large.envelope.payload, large.skipped) == (b"", 256 << 20)
    assert (following.envelope.payload, following.skipped) == (b"next", 0)
    assert reading.sizes == [2, 6]
    large.settle()
    assert reading.sizes == [6]


def arrive(intake: AmqpConsumer, payload: bytes, *, redelivered: bool) -> None:
    method = METHOD_ID.pack(*DELIVER) + b"\x010" + bytes(7) + b"\x01" + bytes([redelivered])
    intake.take(METHOD, method)
    intake.take(HEADER, content(len(payload)))
    intake.take(BODY, payload)


async def test_b14_redeliveries_without_an_id_are_named_together_and_keep_their_order() -> None:
    client: Any = SimpleNamespace(
        call_before_send=lambda _: None, frame_demultiplexer=SimpleNamespace(peer_has_closed=0)
    )
    source = Source(addresses=["commands"], authorization_context=["acme:line"])
    first = AmqpConsumer(client, source, lambda _: None, Reading(), 1 << 20)
    first._queues[b"0"] = "commands"
    for payload in (b"on", b"off"):
        arrive(first, payload, redelivered=False)
    earlier = [str(each.name) for each in first._inbox.waiting]
    second = AmqpConsumer(client, source, lambda _: None, Reading(), 1 << 20, lambda _: KnownNames(carried_out=earlier))
    second._queues[b"0"] = "commands"
    for payload in (b"on", b"off", b"on"):
        arrive(second, payload, redelivered=True)
    arrive(second, b"off", redelivered=False)
    assert not second._inbox.waiting
    second._release()
    found = list(second._inbox.waiting)
    assert [each.envelope.payload for each in found] == [b"on", b"off", b"on", b"off"]
    assert [each.name for each in found[:2]] == earlier
    assert len({each.name for each in found}) == 4
    second.end()
