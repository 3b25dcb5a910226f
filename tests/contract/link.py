"""Behaviors of every broker's link. A broker's test file inherits them and defines its harness.

Where a broker cannot do something, its test file overrides the test with what it does instead, and says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol
from uuid import uuid4

import pytest

from connectivity.connections.model import Connection, Target
from connectivity.errors import ConnectivityError, Detail, LinkError
from connectivity.transports import load_connection_type
from connectivity.transports.base import Delivery, Link, OutboundMessage, Outcome, ProbeReport, ReaderStatus
from mappings.model.envelope import Envelope
from tests.support.wait import PATIENCE, wait_until

MANY = 300


class LinkSetup(Protocol):
    """One connection, its broker, and another client of the same broker."""

    out: str
    """The address that the other client subscribes to."""

    most_unsettled: int
    """No more deliveries than this are handed out before one is ended."""

    absent: str | None
    """An address that the broker does not have; None where it has them all."""

    marks_what_has_waited: bool
    """Whether a delivery is marked as redelivered that was there before its link."""

    is_renewed_for_redelivery: bool
    """Whether a rejected delivery comes again on the next link only."""

    @property
    def definition(self) -> Connection:
        """The connection."""

    async def connect(self) -> Link:
        """A link of the connection; each one is the successor of the last."""

    async def connect_client(self, client: int, clients: int) -> Link:
        """A link for one of several clients of the connection."""

    async def send(self, payloads: Sequence[bytes], headers: Mapping[str, str] | None = None) -> None:
        """Let the other client send to the source's address, in order, until the broker has it."""

    def received(self) -> list[Envelope]:
        """Return what the other client has received at `out` so far."""

    async def cut(self) -> None:
        """Break all links without a word."""

    async def withhold_confirms(self) -> None:
        """From now on the broker takes messages and its confirms are lost, until the next link."""


class DeliveryCollector:
    """Takes all deliveries of a source."""

    def __init__(self, link: Link, source: int = 0) -> None:
        self.deliveries: list[Delivery] = []
        self.lists: list[int] = []
        self._link, self._source = link, source
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for ready in self._link.consume(self._source):
            assert ready, "a list is never empty"
            self.lists.append(len(ready))
            self.deliveries += ready

    async def take(self, count: int, deadline: float = PATIENCE) -> list[Delivery]:
        """The next `count` deliveries."""
        await wait_until(lambda: len(self.deliveries) >= count, deadline)
        taken, self.deliveries = self.deliveries[:count], self.deliveries[count:]
        return taken

    async def payloads(self, count: int, *, settle: bool = True) -> list[bytes]:
        taken = await self.take(count)
        payloads = [delivery.envelope.payload for delivery in taken]
        if settle:
            for delivery in taken:
                delivery.settle()
        return payloads


async def drain(taker: DeliveryCollector, count: int) -> list[bytes]:
    """Settle deliveries as they come, until there were so many; return their payloads."""
    payloads: list[bytes] = []
    while len(payloads) < count:
        await wait_until(lambda: taker.deliveries)
        payloads += await taker.payloads(len(taker.deliveries))
    return payloads


class Publishing:
    """Messages on their way through a link, never more than its window, and what became of each."""

    def __init__(self, link: Link) -> None:
        self.outcomes: list[tuple[int, ConnectivityError | None]] = []
        self.given = 0
        self._link = link
        self._waiting: list[OutboundMessage] = []
        self._is_sending = False

    def give(self, *messages: OutboundMessage) -> None:
        self._waiting += messages
        self._send()

    def _send(self) -> None:
        if self._is_sending:
            # A link may confirm within `publish`.
            return
        self._is_sending = True
        while self._waiting and self.given - len(self.outcomes) < self._link.window:
            message, number = self._waiting.pop(0), self.given
            self.given += 1
            self._link.publish(message, self._done(number))
        self._is_sending = False

    def _done(self, number: int) -> Callable[[ConnectivityError | None], None]:
        def done(error: ConnectivityError | None) -> None:
            assert number not in dict(self.outcomes), "an outcome comes once"
            self.outcomes.append((number, error))
            self._send()

        return done

    async def all_done(self, deadline: float = PATIENCE) -> list[ConnectivityError | None]:
        await wait_until(lambda: not self._waiting and len(self.outcomes) == self.given, deadline)
        return [error for _, error in sorted(self.outcomes, key=lambda outcome: outcome[0])]


def signs_of(link: Link) -> list[tuple[str, ReaderStatus]]:
    """Record the reader status of each published message that the link reports from now on."""
    signs: list[tuple[str, ReaderStatus]] = []
    link.readers = lambda address, sign: signs.append((address, sign))
    return signs


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [f"message {number}".encode() for number in range(start, start + count)]


async def examined(connection: Connection) -> ProbeReport:
    examine = load_connection_type(connection.connection_type).examine
    return await examine(connection, f"{uuid4()}-dry-run")


async def lost(link: Link, deadline: float = PATIENCE) -> LinkError:
    return await asyncio.wait_for(asyncio.shield(link.lost), deadline)


class BrokerBehavior:
    """Inherit it and define the fixture `harness`."""

    @pytest.fixture
    async def link(self, harness: LinkSetup) -> AsyncIterator[Link]:
        made = await harness.connect()
        yield made
        await made.close()

    # ── consuming ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_message_arrives_with_its_bytes_and_address(self, harness: LinkSetup, link: Link) -> None:
        taker = DeliveryCollector(link)
        await harness.send([b"\x00\xff not text"])
        [delivery] = await taker.take(1)
        assert delivery.envelope.payload == b"\x00\xff not text"
        assert delivery.address
        assert delivery.name
        assert not delivery.redelivered
        delivery.settle()

    async def test_headers_arrive(self, harness: LinkSetup, link: Link) -> None:
        taker = DeliveryCollector(link)
        await harness.send([b"{}"], {"x-line": "north", "reply-to": "replies/7"})
        [delivery] = await taker.take(1)
        assert delivery.envelope.header("x-line") == "north"
        assert delivery.envelope.header("reply-to") == "replies/7"
        delivery.settle()

    async def test_messages_arrive_in_order_and_once(self, harness: LinkSetup, link: Link) -> None:
        taker = DeliveryCollector(link)
        await harness.send(numbered(MANY))
        assert await taker.payloads(MANY) == numbered(MANY)
        await harness.send([b"last"])
        assert await taker.payloads(1) == [b"last"]

    async def test_messages_that_arrive_before_consuming_starts_are_kept(self, harness: LinkSetup, link: Link) -> None:
        await harness.send(numbered(3))
        assert await DeliveryCollector(link).payloads(3) == numbered(3)

    async def test_an_empty_payload_arrives(self, harness: LinkSetup, link: Link) -> None:
        await harness.send([b""])
        assert await DeliveryCollector(link).payloads(1) == [b""]

    async def test_unsettled_deliveries_are_bounded_and_flow_again(self, harness: LinkSetup, link: Link) -> None:
        """At the bound the link stops taking; nothing is lost by it."""
        count = harness.most_unsettled + MANY
        taker = DeliveryCollector(link)
        await harness.send(numbered(count))
        held = await taker.take(1)
        await wait_until(lambda: len(taker.deliveries) >= min(harness.most_unsettled, 20) - 1)
        await harness.send([b"last"])
        assert len(taker.deliveries) + len(held) <= harness.most_unsettled
        payloads = [held[0].envelope.payload]
        held[0].settle()
        payloads += await drain(taker, count)
        assert payloads == [*numbered(count), b"last"]

    # ── settling ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_acknowledged_delivery_does_not_come_again(self, harness: LinkSetup) -> None:
        first = await harness.connect()
        await harness.send(numbered(2))
        await DeliveryCollector(first).payloads(2)
        await first.close()
        second = await harness.connect()
        await harness.send([b"new"])
        assert await DeliveryCollector(second).payloads(1) == [b"new"]
        await second.close()

    async def test_a_dropped_delivery_does_not_come_again(self, harness: LinkSetup) -> None:
        first = await harness.connect()
        await harness.send([b"bad"])
        [delivery] = await DeliveryCollector(first).take(1)
        delivery.settle(Outcome.DROPPED)
        await first.close()
        second = await harness.connect()
        await harness.send([b"new"])
        assert await DeliveryCollector(second).payloads(1) == [b"new"]
        await second.close()

    async def test_a_rejected_delivery_comes_again_marked(self, harness: LinkSetup) -> None:
        link = await harness.connect()
        taker = DeliveryCollector(link)
        await harness.send([b"later"])
        [first] = await taker.take(1)
        first.settle(Outcome.REDELIVER)
        if harness.is_renewed_for_redelivery:
            await link.close()
            link = await harness.connect()
            taker = DeliveryCollector(link)
        [second] = await taker.take(1)
        assert (second.envelope.payload, second.redelivered, second.name) == (b"later", True, first.name)
        second.settle()
        await link.close()

    async def test_a_lost_link_redelivers_unsettled_deliveries_marked_and_in_order(self, harness: LinkSetup) -> None:
        """The link drops between receive and settle."""
        link = await harness.connect()
        taker = DeliveryCollector(link)
        await harness.send(numbered(4))
        one, two, three, four = await taker.take(4)
        one.settle()
        await harness.cut()
        await lost(link)
        await asyncio.wait_for(taker.task, PATIENCE)
        two.settle()  # too late: it is not received
        await link.close()
        second = await harness.connect()
        again = await DeliveryCollector(second).take(3)
        expected = [delivery.envelope.payload for delivery in (two, three, four)]
        # The first settlement may or may not have been received before the cut.
        got = [delivery.envelope.payload for delivery in again if delivery.envelope.payload != one.envelope.payload]
        assert got == expected[: len(got)]
        assert all(delivery.redelivered for delivery in again)
        assert again[-1].name in {delivery.name for delivery in (three, four)}
        await second.close()

    async def test_closing_with_deliveries_in_flight_leaves_them_to_the_broker(self, harness: LinkSetup) -> None:
        first = await harness.connect()
        await harness.send(numbered(3))
        await DeliveryCollector(first).take(3)
        await first.close()
        second = await harness.connect()
        assert await DeliveryCollector(second).payloads(3) == numbered(3)
        await second.close()

    async def test_a_later_delivery_may_be_acknowledged_first(self, harness: LinkSetup) -> None:
        """The deliveries after it stay unsettled until their own turn."""
        first = await harness.connect()
        await harness.send(numbered(3))
        one, two, three = await DeliveryCollector(first).take(3)
        three.settle()
        two.settle()
        one.settle()
        await first.close()
        second = await harness.connect()
        await harness.send([b"new"])
        assert await DeliveryCollector(second).payloads(1) == [b"new"]
        await second.close()

    # ── several clients ───────────────────────────────────────────────────────────────────────────────────────────────

    async def test_clients_of_one_connection_share_the_messages(self, harness: LinkSetup) -> None:
        """Each message is delivered to one client, and has a unique name."""
        links = [await harness.connect_client(client, 3) for client in range(3)]
        takers = [DeliveryCollector(link) for link in links]
        await harness.send(numbered(MANY))
        await wait_until(lambda: sum(len(taker.deliveries) for taker in takers) >= MANY)
        deliveries = [delivery for taker in takers for delivery in taker.deliveries]
        assert sorted(delivery.envelope.payload for delivery in deliveries) == sorted(numbered(MANY))
        assert len({delivery.name for delivery in deliveries}) == MANY
        for delivery in deliveries:
            delivery.settle()
        for link in links:
            await link.close()

    async def test_closing_one_client_redelivers_only_its_unacknowledged_messages(self, harness: LinkSetup) -> None:
        first, second = [await harness.connect_client(client, 2) for client in range(2)]
        leaving, staying = DeliveryCollector(first), DeliveryCollector(second)
        await harness.send(numbered(40))
        await wait_until(lambda: len(leaving.deliveries) + len(staying.deliveries) >= 40)
        left = {delivery.envelope.payload for delivery in leaving.deliveries}
        await staying.payloads(len(staying.deliveries))
        await first.close()
        again = await harness.connect_client(0, 2)
        returning = DeliveryCollector(again)
        await wait_until(lambda: len(returning.deliveries) + len(staying.deliveries) >= len(left))
        deliveries = returning.deliveries + staying.deliveries
        assert {delivery.envelope.payload for delivery in deliveries} == left
        assert all(delivery.redelivered for delivery in deliveries)
        for delivery in deliveries:
            delivery.settle()
        for link in (again, second):
            await link.close()

    # ── publishing ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_published_message_arrives_and_is_confirmed(self, harness: LinkSetup, link: Link) -> None:
        publishing = Publishing(link)
        publishing.give(OutboundMessage(harness.out, Envelope(b"\x00\xff answer")))
        assert await publishing.all_done() == [None]
        await wait_until(harness.received)
        assert harness.received()[0].payload == b"\x00\xff answer"

    async def test_headers_are_published(self, harness: LinkSetup, link: Link) -> None:
        publishing = Publishing(link)
        publishing.give(OutboundMessage(harness.out, Envelope(b"{}", {"x-line": "north", "correlation-id": "c-7"})))
        assert await publishing.all_done() == [None]
        await wait_until(harness.received)
        assert harness.received()[0].header("x-line") == "north"
        assert harness.received()[0].header("correlation-id") == "c-7"

    async def test_many_messages_arrive_in_order_and_each_is_confirmed_once(
        self, harness: LinkSetup, link: Link
    ) -> None:
        publishing = Publishing(link)
        publishing.give(*(OutboundMessage(harness.out, Envelope(payload)) for payload in numbered(MANY)))
        assert await publishing.all_done() == [None] * MANY
        await wait_until(lambda: len(harness.received()) >= MANY)
        assert [envelope.payload for envelope in harness.received()] == numbered(MANY)

    async def test_a_large_message_passes_both_ways(self, harness: LinkSetup, link: Link) -> None:
        large = bytes(range(256)) * 3000
        taker, publishing = DeliveryCollector(link), Publishing(link)
        await harness.send([large])
        assert await taker.payloads(1) == [large]
        publishing.give(OutboundMessage(harness.out, Envelope(large)))
        assert await publishing.all_done() == [None]
        await wait_until(harness.received)
        assert harness.received()[0].payload == large

    async def test_a_lost_confirm_is_no_confirm(self, harness: LinkSetup) -> None:
        """The broker has the message, but its confirm is lost: no outcome is reported, so it is sent again."""
        first = await harness.connect()
        await harness.withhold_confirms()
        publishing = Publishing(first)
        publishing.give(OutboundMessage(harness.out, Envelope(b"once or twice")))
        await wait_until(harness.received)
        await harness.cut()
        await lost(first)
        await first.close()
        assert publishing.outcomes == []
        second = await harness.connect()
        again = Publishing(second)
        again.give(OutboundMessage(harness.out, Envelope(b"once or twice")))
        assert await again.all_done() == [None]
        await second.close()

    # ── examining ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_connection_test_finds_existing_addresses(self, harness: LinkSetup) -> None:
        target = Target.model_validate({"address": harness.out, "topics": [], "authorizationContext": ["lab:all"]})
        found = await examined(harness.definition.model_copy(update={"targets": (target,)}))
        sources = harness.definition.sources
        assert [[each.address for each in source] for source in found.sources] == [list(it.addresses) for it in sources]
        assert [each.error for source in found.sources for each in source if each.is_known] == [None] * len(sources)
        assert [(each.address, each.error) for each in found.targets] == [(harness.out, None)]
        assert [each.is_known for each in found.replies] == [False] * len(sources)

    async def test_a_connection_test_reports_missing_addresses_and_continues(self, harness: LinkSetup) -> None:
        assert harness.absent is not None
        [source] = harness.definition.sources
        addresses = (harness.absent, *source.addresses)
        changed = source.model_copy(update={"addresses": addresses})
        [[missing, there]] = (await examined(harness.definition.model_copy(update={"sources": (changed,)}))).sources
        assert missing.error is not None
        assert (missing.address, missing.error.detail) == (harness.absent, Detail.MISSING_ADDRESS)
        assert there.error is None

    async def test_a_connection_test_does_not_disturb_a_running_connection(self, harness: LinkSetup) -> None:
        """Also to a closed one: each delivery reaches the connection, once and unmarked."""
        first = await harness.connect()
        taker = DeliveryCollector(first)
        await harness.send(numbered(20))
        held = await taker.take(5)
        for _ in range(3):
            await examined(harness.definition)
            await harness.send([b"meanwhile"])
        rest = await taker.take(18)
        assert [each.envelope.payload for each in held + rest] == [*numbered(20), *[b"meanwhile"] * 3]
        assert not any(each.redelivered for each in held + rest)
        for delivery in held + rest:
            delivery.settle()
        assert not first.lost.done()
        await first.close()
        await harness.send([b"while away"])
        await examined(harness.definition)
        second = await harness.connect()
        [delivery] = await DeliveryCollector(second).take(1)
        assert (delivery.envelope.payload, delivery.redelivered) == (b"while away", harness.marks_what_has_waited)
        delivery.settle()
        await second.close()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_cut_link_is_reported_once_and_its_consumers_end(self, harness: LinkSetup, link: Link) -> None:
        taker = DeliveryCollector(link)
        await harness.cut()
        error = await lost(link)
        assert isinstance(error, LinkError)
        await asyncio.wait_for(taker.task, PATIENCE)
        publishing = Publishing(link)
        publishing.give(OutboundMessage(harness.out, Envelope(b"too late")))
        await link.close()
        assert publishing.outcomes == []

    async def test_closing_ends_consumers_is_no_loss_and_may_be_done_twice(
        self, harness: LinkSetup, link: Link
    ) -> None:
        assert harness.out
        taker = DeliveryCollector(link)
        await link.close()
        await link.close()
        await asyncio.wait_for(taker.task, PATIENCE)
        assert not link.lost.done()
