"""Limits in bytes that links to brokers keep."""

from __future__ import annotations

from typing import Protocol

from connectivity.transports.base import ConsumeOptions
from tests.contract.link import DeliveryCollector, LinkSetup, drain
from tests.support.wait import wait_until

LARGE = 64 << 10


class LimitedSetup(LinkSetup, Protocol):
    consume: ConsumeOptions
    """The limits of the next link."""


class ByteLimits:
    """Inherit it together with `BrokerBehavior`."""

    async def test_bytes_of_unsettled_deliveries_are_bounded_and_flow_again(self, harness: LimitedSetup) -> None:
        harness.consume = ConsumeOptions(unsettled_bytes=LARGE * 8)
        link = await harness.connect()
        taker = DeliveryCollector(link)
        sent = [bytes([number]) * LARGE for number in range(60)]
        await harness.send(sent)
        await wait_until(lambda: len(taker.deliveries) >= 8)
        await harness.send([b"last"])
        # The reads of one turn come on top.
        assert len(taker.deliveries) <= 8 + 16
        assert await drain(taker, 61) == [*sent, b"last"]
        await link.close()

    async def test_a_delivery_larger_than_the_bound_in_bytes_passes_alone(self, harness: LimitedSetup) -> None:
        harness.consume = ConsumeOptions(unsettled_bytes=LARGE * 2)
        link = await harness.connect()
        taker = DeliveryCollector(link)
        sent = [letter * LARGE * 12 for letter in (b"1", b"2", b"3")]
        await harness.send(sent)
        assert await drain(taker, 3) == sent
        await link.close()

    async def test_the_payload_of_a_message_that_is_too_large_is_skipped(self, harness: LimitedSetup) -> None:
        """If the transport delivers it, the reader refuses it."""
        harness.consume = ConsumeOptions(payload=LARGE)
        link = await harness.connect()
        taker = DeliveryCollector(link)
        await harness.send([bytes(LARGE * 12), b"next"])
        large, following = await taker.take(2)
        assert large.skipped == LARGE * 12
        assert (large.envelope.payload, following.envelope.payload) == (b"", b"next")
        large.settle()
        following.settle()
        await link.close()
