"""The deliveries that a consumer hands over."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from connectivity.connections.model import Source
from connectivity.transports.amqp.consumer import HOLD_SECONDS, IN_FLIGHT, AmqpConsumer
from connectivity.transports.amqp.frames import BODY, CONTENT, DELIVER, HEADER, METHOD, METHOD_ID
from connectivity.transports.amqp.properties import pack_properties
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
    """The broker redelivers it, and may have done so over another link already."""
    client: Any = SimpleNamespace(frame_demultiplexer=SimpleNamespace(peer_has_closed=has_parted))
    source = Source(addresses=["commands"], authorizationContext=["acme:line"])
    intake = AmqpConsumer(client, source, lambda _: None, Reading(), 1 << 20)
    intake._inbox.waiting.extend(map(delivery, "12"))
    # After the turn in which the waiting deliveries are taken.
    asyncio.get_running_loop().call_soon(intake.end)
    assert [each.name async for ready in intake.consume() for each in ready] == expected


def content(size: int) -> bytes:
    """A content header without properties."""
    return CONTENT.pack(60, 0, size) + bytes(2)


DELIVERED = METHOD_ID.pack(*DELIVER) + b"\x010" + bytes(7) + b"\x01" + bytes(1)


async def test_b9_the_body_of_a_message_of_256_mb_is_skipped() -> None:
    client: Any = SimpleNamespace(call_before_send=lambda _: None)
    reading = Reading()
    source = Source(addresses=["commands"], authorizationContext=["acme:line"])
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


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"message-id": "m-1", "correlation-id": "c-1"}, "amqp:m-1"),
        ({"message-id": "", "correlation-id": "c-1"}, "amqp:c-1:"),
        ({"message-id": ""}, "amqp#commands#"),
    ],
)
async def test_a_delivery_is_named_by_its_message_id_unless_that_is_empty(headers: dict[str, str], name: str) -> None:
    intake = link([])
    intake.take(METHOD, DELIVERED)
    intake.take(HEADER, CONTENT.pack(60, 0, 2) + pack_properties(headers))
    intake.take(BODY, b"on")
    [found] = intake._inbox.waiting
    assert found.envelope.headers == headers
    assert str(found.name).startswith(name)


def arrive(intake: AmqpConsumer, payload: bytes, *, redelivered: bool, queue: int = 0) -> None:
    method = METHOD_ID.pack(*DELIVER) + b"\x01%d" % queue + bytes(7) + b"\x01" + bytes([redelivered])
    intake.take(METHOD, method)
    intake.take(HEADER, content(len(payload)))
    intake.take(BODY, payload)


def link(known: list[str], *queues: str) -> AmqpConsumer:
    """A consumer of a new link, after deliveries with these names were carried out."""
    client: Any = SimpleNamespace(
        call_before_send=lambda _: None, frame_demultiplexer=SimpleNamespace(peer_has_closed=0)
    )
    source = Source(addresses=["commands"], authorizationContext=["acme:line"])
    made = AmqpConsumer(client, source, lambda _: None, Reading(), 1 << 20, lambda _: KnownNames(carried_out=known))
    made._queues.update({b"%d" % number: queue for number, queue in enumerate(queues or ("commands",))})
    return made


def carried_out(*payloads: bytes) -> list[str]:
    """The names of first deliveries over an earlier link."""
    first = link([])
    for payload in payloads:
        arrive(first, payload, redelivered=False)
    return [str(each.name) for each in first._inbox.waiting]


async def test_b14_redeliveries_without_an_id_are_named_together_and_keep_their_order() -> None:
    earlier = carried_out(b"on", b"off")
    second = link(earlier)
    for payload in (b"on", b"off", b"on"):
        arrive(second, payload, redelivered=True)
    assert not second._inbox.waiting
    arrive(second, b"off", redelivered=False)
    found = list(second._inbox.waiting)
    assert [each.envelope.payload for each in found] == [b"on", b"off", b"on", b"off"]
    assert [each.name for each in found[:2]] == earlier
    assert len({each.name for each in found}) == 4
    second.end()


async def test_redeliveries_that_come_with_a_pause_are_named_together() -> None:
    earlier = carried_out(b"1", b"2")
    second = link(earlier)
    arrive(second, b"1", redelivered=True)
    await asyncio.sleep(HOLD_SECONDS / 10)
    arrive(second, b"2", redelivered=True)
    assert second._holding is not None
    assert second._holding.when() > asyncio.get_running_loop().time() + HOLD_SECONDS / 2
    arrive(second, b"3", redelivered=False)
    assert [each.name for each in second._inbox.waiting][:2] == earlier
    second.end()


async def test_redeliveries_are_held_until_each_of_their_queues_sends_something_new() -> None:
    second = link([], "commands", "others")
    arrive(second, b"1", redelivered=True)
    arrive(second, b"2", redelivered=True, queue=1)
    arrive(second, b"3", redelivered=False)
    assert not second._inbox.waiting
    arrive(second, b"4", redelivered=False, queue=1)
    assert [each.envelope.payload for each in second._inbox.waiting] == [b"1", b"2", b"3", b"4"]
    second.end()


async def test_redeliveries_that_fill_the_prefetch_are_not_held_any_longer() -> None:
    second = link([])
    for number in range(IN_FLIGHT):
        assert not second._inbox.waiting
        arrive(second, b"%d" % number, redelivered=True)
    assert len(second._inbox.waiting) == IN_FLIGHT
    second.end()
