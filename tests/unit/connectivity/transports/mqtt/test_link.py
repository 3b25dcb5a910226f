"""Limits of the MQTT link that a well-behaved broker never reaches."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from connectivity.errors import ConnectivityError, Detail, LinkRenewed
from connectivity.transports.base import (
    CONSUME_DEFAULTS,
    MOST_BUDGETS,
    MOST_COUNTS,
    ConsumeOptions,
    Delivery,
    OutboundMessage,
    Outcome,
)
from connectivity.transports.mqtt.async_client import AsyncMqttClient
from connectivity.transports.mqtt.link import IN_FLIGHT, MqttLink
from connectivity.transports.mqtt.mqtt5 import Mqtt5
from connectivity.transports.mqtt.mqtt311 import Mqtt311
from connectivity.transports.mqtt.paho_client import SansIoPahoClient
from connectivity.transports.mqtt.properties import SUBSCRIPTION_IDENTIFIER, ServerLimits, pack_varint
from connectivity.transports.mqtt.protocol_version import ReceivedPublish
from connectivity.transports.mqtt.topics import CACHED_TOPICS
from mappings.model.envelope import Envelope
from tests.contract.link import DeliveryCollector, lost
from tests.support.wait import wait_until

MOST_HELD = MOST_COUNTS * IN_FLIGHT


async def keep_session() -> None:
    raise AssertionError("no session ends here")


def link(
    consume: ConsumeOptions = CONSUME_DEFAULTS, stalled_seconds: float | None = None
) -> tuple[MqttLink, SansIoPahoClient]:
    """A link whose client has no socket: its output stays in `unsent`."""
    made = MqttLink(Mqtt311(), [["lab/in"]], None, keep_session, consume=consume, stalled_seconds=stalled_seconds)
    client = SansIoPahoClient("lab", Mqtt311.protocol, clean_session=True)
    made.make_channel(client)
    made.made(ServerLimits())
    return made, client


def arrival(number: int, qos: int = 1) -> ReceivedPublish:
    return ReceivedPublish("lab/in", str(number).encode(), qos, False, False, number if qos else 0, b"")


def confirm(client: SansIoPahoClient, mid: int, reason: int = 0) -> None:
    """Let a client without a socket read a PUBACK."""
    client._sock = object()  # type: ignore[assignment]
    client.feed(bytes((0x40, 3, 0, mid, reason)))
    client._sock = None


async def test_a_link_ends_itself_if_nothing_follows_a_requeued_delivery() -> None:
    """It may fill the broker's window, as with `max_inflight_messages 1`."""
    made, client = link(stalled_seconds=0.001)
    taker = DeliveryCollector(made)
    for number in (1, 2):
        client.on_arrival(arrival(number))
    requeued, waiting = await taker.take(2)
    requeued.settle(Outcome.REDELIVER)
    for _ in range(3):
        await asyncio.sleep(0.002)
    assert not made.lost.done(), "the other delivery may be why nothing follows"
    waiting.settle()
    error = await lost(made)
    assert isinstance(error, LinkRenewed)
    assert error.text == "reconnecting for redelivery: nothing has arrived since a delivery was requeued"


async def test_a_link_with_a_requeued_delivery_stays_while_others_follow() -> None:
    made, client = link(stalled_seconds=0.5)
    taker = DeliveryCollector(made)
    client.on_arrival(arrival(1))
    [requeued] = await taker.take(1)
    requeued.settle(Outcome.REDELIVER)
    client.on_arrival(arrival(2))
    await settled(taker, 1)
    made._check_stall(0.5)
    assert not made.lost.done()
    made._check_stall(0.5)
    assert isinstance(await lost(made), LinkRenewed)


async def settled(taker: DeliveryCollector, count: int) -> list[Delivery]:
    deliveries = await taker.take(count)
    for delivery in deliveries:
        delivery.settle()
    return deliveries


async def test_more_than_can_be_held_is_left_to_the_next_link_in_order() -> None:
    """A broker without a window sends all it has: the rest stays unacknowledged, in order."""
    made, client = link()
    taker = DeliveryCollector(made)
    for number in range(1, MOST_HELD + 3):
        client.on_arrival(arrival(number))
    await settled(taker, MOST_HELD // 2)
    client.on_arrival(arrival(MOST_HELD + 3))
    await settled(taker, MOST_HELD - MOST_HELD // 2)
    assert (await lost(made)).detail is Detail.CONNECTING
    acknowledged = [int.from_bytes(packet[2:]) for packet in client.unsent if packet[0] == 0x40]
    assert acknowledged == list(range(1, MOST_HELD + 1))
    assert not taker.deliveries
    await made.close()


async def test_the_link_delivers_no_message_after_a_refused_message_even_if_qos_0_arrives_between() -> None:
    """Otherwise the next link would deliver the refused message after a later one."""
    made, client = link()
    taker = DeliveryCollector(made)
    for number in range(1, MOST_HELD + 2):
        client.on_arrival(arrival(number))
    client.on_arrival(arrival(0, qos=0))
    await settled(taker, 1)
    client.on_arrival(arrival(MOST_HELD + 2))
    await settled(taker, MOST_HELD - 1)
    assert (await lost(made)).detail is Detail.CONNECTING
    assert not taker.deliveries
    await made.close()


async def test_qos_0_beyond_the_bound_is_lost_and_the_link_stays() -> None:
    made, client = link()
    taker = DeliveryCollector(made)
    for number in range(MOST_HELD + 5):
        client.on_arrival(arrival(number, qos=0))
    deliveries = await settled(taker, MOST_HELD)
    assert deliveries[-1].envelope.payload == str(MOST_HELD - 1).encode()
    client.on_arrival(arrival(MOST_HELD + 5, qos=0))
    await settled(taker, 1)
    assert not made.lost.done()
    await made.close()


async def test_beyond_a_multiple_of_the_bound_in_bytes_messages_are_left_to_the_next_link() -> None:
    """While the link must read on for confirms; a message that fits is taken, however large."""
    made, client = link(ConsumeOptions(unsettled_bytes=1000))
    taker = DeliveryCollector(made)
    size = 1000 * MOST_BUDGETS
    client.on_arrival(ReceivedPublish("lab/in", bytes(size), 1, False, False, 1, b""))
    client.on_arrival(arrival(2))
    [delivery] = await taker.take(1)
    assert not taker.deliveries
    delivery.settle()
    assert (await lost(made)).detail is Detail.CONNECTING
    await made.close()


async def test_settled_deliveries_behind_an_unsettled_one_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait to be acknowledged in order, without their payloads."""
    monkeypatch.setattr("connectivity.transports.mqtt.link.MOST_WAITING", 10)
    made, client = link()
    taker = DeliveryCollector(made)
    for number in range(1, 13):
        client.on_arrival(arrival(number))
        if number == 1:
            [first] = await taker.take(1)
        elif number <= 10:
            [delivery] = await settled(taker, 1)
            assert delivery.envelope.payload == b""
    assert not taker.deliveries
    first.settle()
    assert (await lost(made)).detail is Detail.CONNECTING
    assert [int.from_bytes(packet[2:]) for packet in client.unsent if packet[0] == 0x40] == list(range(1, 11))
    await made.close()


async def test_a_list_is_never_longer_than_some_hundreds() -> None:
    made, client = link()
    for number in range(1, IN_FLIGHT + 1):
        client.on_arrival(arrival(number))
    taker = DeliveryCollector(made)
    await wait_until(lambda: len(taker.deliveries) == IN_FLIGHT)
    assert taker.lists == [500, 500]
    await made.close()


async def test_acknowledgements_go_out_in_the_order_of_arrival() -> None:
    made, client = link()
    for number in range(1, 6):
        client.on_arrival(arrival(number))
    one, two, three, four, five = await DeliveryCollector(made).take(5)
    for delivery in (three, two):
        delivery.settle()
    assert client.unsent == []
    one.settle()
    five.settle(Outcome.DROPPED)
    four.settle(Outcome.REDELIVER)
    await asyncio.sleep(0)
    assert [packet[3] for packet in client.unsent] == [1, 2, 3, 5]
    await made.close()


@pytest.mark.parametrize(
    ("reason", "is_taken"),
    [(0, True), (16, True), (128, False), (135, False), (151, False), (146, False), (149, False), (255, False)],
)
async def test_a_broker_refuses_a_message_by_a_reason_code_from_128_on(reason: int, is_taken: bool) -> None:
    made, client = link()
    outcomes: list[ConnectivityError | None] = []
    made.publish(OutboundMessage("lab/out", Envelope(b"", {})), outcomes.append)
    confirm(client, 1, reason)
    assert [error is None for error in outcomes] == [is_taken]
    await made.close()


@pytest.mark.parametrize(
    ("topic", "found"),
    [
        ("$SYS/broker", "a topic of the broker"),
        ("$share/lab/out", "a topic of the broker"),
        ("$share", "a topic of the broker"),
        ("/" * 201, "202 levels"),
    ],
)
async def test_a_message_to_a_topic_upon_which_brokers_close_the_link_fails_and_is_not_sent(
    topic: str, found: str
) -> None:
    """Mosquitto closes the link upon it."""
    made, client = link()
    outcomes: list[ConnectivityError | None] = []
    made.publish(OutboundMessage(topic, Envelope(b"", {})), outcomes.append)
    assert [str(error) for error in outcomes] == [f"the topic {topic[:200]!r} cannot be published to: found {found}"]
    assert client.unsent == []
    made.publish(OutboundMessage(f"$aws/things{'/' * 199}", Envelope(b"", {})), outcomes.append)
    assert len(client.unsent) == 1
    await made.close()


async def test_b12_a_slow_reader_costs_no_copy_for_each_write() -> None:
    """Bytes that the socket has not taken stay in place, for any number of writes."""
    made, client = link()
    (channel,) = made._channels
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        channel._socket = ours
        client.unsent.append(bytes(8 << 20))
        channel._flush()
        unsent = channel._rest.obj
        client.unsent.append(b"behind it")
        for _ in range(8):
            theirs.recv(64 << 10)
            channel._flush()
            assert channel._rest.obj is unsent
        channel._socket = None
        asyncio.get_running_loop().remove_writer(ours)
    await made.close()


@contextmanager
def connected(made: MqttLink) -> Iterator[AsyncMqttClient]:
    """The link's client with a socket, so that it can pause reading."""
    (channel,) = made._channels
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel._socket = ours
        yield channel
        channel._socket = None
        asyncio.get_running_loop().remove_reader(ours)


async def test_reading_pauses_with_the_delivery_that_reaches_a_limit_and_resumes_below_half_of_it() -> None:
    made, client = link()
    with connected(made) as channel:
        for number in range(1, IN_FLIGHT):
            client.on_arrival(arrival(number))
        assert not channel.is_paused
        client.on_arrival(arrival(IN_FLIGHT))
        assert channel.is_paused
        taker = DeliveryCollector(made)
        await settled(taker, IN_FLIGHT // 2)
        assert channel.is_paused
        await settled(taker, 1)
        assert not channel.is_paused
    await made.close()


async def test_a_link_over_its_limit_pauses_with_the_last_confirm() -> None:
    """Until then it reads on: the confirms arrive on the same socket."""
    made, client = link(ConsumeOptions(unsettled_bytes=10))
    with connected(made) as channel:
        for _ in range(2):
            made.publish(OutboundMessage("lab/out", Envelope(b"")), lambda _error: None)
        client.on_arrival(ReceivedPublish("lab/in", bytes(10), 1, False, False, 1, b""))
        confirm(client, 1)
        assert not channel.is_paused
        confirm(client, 2)
        assert channel.is_paused
        [delivery] = await DeliveryCollector(made).take(1)
        delivery.settle()
        assert not channel.is_paused
    await made.close()


def link_5(*filters: list[str]) -> tuple[MqttLink, SansIoPahoClient, dict[str, int]]:
    """A link of MQTT 5 with the sources of these filters, and the number of each filter's subscription."""
    made = MqttLink(Mqtt5(), filters, None, keep_session)
    client = SansIoPahoClient("lab", Mqtt5.protocol, clean_session=False)
    made.make_channel(client)
    made.made(ServerLimits())
    return made, client, {each: number for number, group in made.groups.items() for each in group}


def copy(
    topic: str, payload: bytes, number: int, *, redelivered: bool = False, retain: bool = False
) -> ReceivedPublish:
    """A message of the subscription with this number."""
    properties = bytes((SUBSCRIPTION_IDENTIFIER,)) + pack_varint(number)
    return ReceivedPublish(topic, payload, 1, retain, redelivered, 1, properties)


EARLIER = 7
"""The number of a subscription of an earlier document."""


async def test_a_queued_message_of_an_earlier_subscription_is_taken_after_one_of_an_unchanged_filter() -> None:
    """The broker queued both while the service was away: then a filter was added to the second source."""
    made, client, numbers = link_5(["lab/x"], ["lab/a", "lab/b"])
    client.on_arrival(copy("lab/x", b"unchanged", numbers["lab/x"]))
    client.on_arrival(copy("lab/a", b"queued", EARLIER))
    client.on_arrival(copy("lab/b", b"later", numbers["lab/b"]))
    client.on_arrival(copy("lab/a", b"queued too", EARLIER))
    taker = DeliveryCollector(made, 1)
    assert await taker.payloads(3) == [b"queued", b"later", b"queued too"]
    await made.close()


async def test_a_further_copy_of_an_earlier_subscription_is_left_out_once_its_topic_has_a_present_one() -> None:
    made, client, numbers = link_5(["lab/+"])
    for topic, payload, number in (
        ("lab/a", b"1", EARLIER),
        ("lab/a", b"1", numbers["lab/+"]),
        ("lab/a", b"2", EARLIER),
        ("lab/a", b"2", numbers["lab/+"]),
        ("lab/b", b"3", EARLIER),
    ):
        client.on_arrival(copy(topic, payload, number))
    assert await DeliveryCollector(made).payloads(4) == [b"1", b"1", b"2", b"3"]
    await made.close()


async def test_a_message_of_an_earlier_subscription_is_taken_by_the_sources_that_have_none_of_a_present_one() -> None:
    """The first source has not changed, so its copies say nothing about those that are queued for the second one."""
    made, client, numbers = link_5(["lab/+"], ["lab/a", "lab/b"])
    client.on_arrival(copy("lab/a", b"queued", numbers["lab/+"]))
    client.on_arrival(copy("lab/a", b"queued", EARLIER))
    first, second = DeliveryCollector(made), DeliveryCollector(made, 1)
    assert await first.payloads(1) == await second.payloads(1) == [b"queued"]
    assert not first.deliveries
    await made.close()


async def test_topics_whose_messages_have_arrived_are_forgotten_rather_than_kept_without_bound() -> None:
    made, client, numbers = link_5(["lab/#"])
    for number in range(CACHED_TOPICS + 1):
        client.on_arrival(copy(f"lab/{number}", b"", numbers["lab/#"]))
    client.on_arrival(copy("lab/" + "x" * 600, b"", numbers["lab/#"]))
    assert [len(topics) for topics in made._current] == [0, 1]
    await made.close()


@pytest.mark.parametrize("kind", ["redelivered", "retain"])
async def test_a_message_that_may_be_out_of_order_says_nothing_about_queued_ones(kind: str) -> None:
    made, client, numbers = link_5(["lab/+"])
    client.on_arrival(copy("lab/a", b"1", numbers["lab/+"], **{kind: True}))
    client.on_arrival(copy("lab/a", b"2", EARLIER))
    assert await DeliveryCollector(made).payloads(2) == [b"1", b"2"]
    await made.close()


async def test_messages_of_a_shared_subscription_are_taken_although_another_filter_of_the_source_matches() -> None:
    """The broker may send those of the other filter to other members of its group."""
    made, client, numbers = link_5(["$share/one/lab/+", "$share/two/lab/#"], ["$share/one/lab/+", "lab/#"])
    client.on_arrival(copy("lab/a", b"of two", numbers["$share/two/lab/#"]))
    client.on_arrival(copy("lab/a", b"of all", numbers["lab/#"]))
    client.on_arrival(copy("lab/a", b"of one", numbers["$share/one/lab/+"]))
    first, second = DeliveryCollector(made), DeliveryCollector(made, 1)
    assert await first.payloads(2) == [b"of two", b"of one"]
    assert await second.payloads(1) == [b"of all"]
    assert not second.deliveries
    await made.close()
