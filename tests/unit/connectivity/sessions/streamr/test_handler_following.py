"""Subscriptions of sessions: the messages each one receives once, and the end of subscriptions.

Case numbers are those of the cases for Streamr.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectivity.management.subscription_table import CANCELLED
from connectivity.sessions.streamr.live_subscription import WINDOW
from connectivity.subscriptions.live_feed import LagTolerance
from mappings.ids import EntityId
from mappings.model.signals import SubscriptionKind
from mappings.streams.stream_id import partition_id
from spark_store.errors import StoreUnavailable
from tests.support.in_process.service import ConnectionHarness, pause, until
from tests.support.in_process.streamr import (
    OTHER,
    OWNER_SOURCE,
    PUBLIC,
    WRITER,
    StreamrHarness,
    definition,
    error,
    offsets,
    publish,
    resend,
    source,
    subscribe,
    subscribed,
    unsubscribe,
    unsubscribed,
)
from tests.support.wait import wait_until

pytestmark = pytest.mark.usefixtures("harnesses")


async def test_cases_s01_to_s04_a_subscriber_gets_a_confirmation_and_the_published_messages() -> None:
    streamr_harness = await StreamrHarness.filled()
    assert await streamr_harness.exchange("a", subscribe()) == [subscribed()]
    (first,) = await streamr_harness.exchange("a", publish('{"v":1}'))
    assert first == [0, 0, "", [28, "tank", 0, first[3][3], 0, 1, None, 27, '{"v":1}']]
    (second,) = await streamr_harness.exchange("a", publish('{"v":2}'))
    assert second[3][5:] == [2, 1, 27, '{"v":2}']
    assert len(await streamr_harness.settled(3)) == 3


async def test_case_s05_each_of_two_subscribers_gets_one_frame_of_the_same_bytes() -> None:
    streamr_harness = await StreamrHarness.filled()
    for client in "ab":
        assert await streamr_harness.exchange(client, subscribe()) == [subscribed()]
    streamr_harness.forget()
    await streamr_harness.exchange("a", publish())
    await streamr_harness.frames("b", 1)
    one, other = (message.envelope.payload for message in streamr_harness.link.published)
    assert one == other


async def test_case_s06_a_message_without_subscribers_is_stored_and_not_sent() -> None:
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.send("b", publish('{"v":1}'))
    await streamr_harness.settled(1)
    await pause()
    assert streamr_harness.link.published == []
    assert streamr_harness.stored() == ['{"v":1}']


async def test_case_s07_a_client_that_subscribes_twice_gets_two_confirmations_and_each_message_once() -> None:
    streamr_harness = await StreamrHarness.filled()
    assert (
        await streamr_harness.exchange("a", subscribe())
        == await streamr_harness.exchange("a", subscribe())
        == [subscribed()]
    )
    assert offsets(await streamr_harness.exchange("a", publish())) == [1]


async def test_case_s08_one_unsubscribe_ends_a_repeated_subscription() -> None:
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.send("a", subscribe(), subscribe(), unsubscribe(), publish())
    assert await streamr_harness.frames("a", 3) == [subscribed(), subscribed(), unsubscribed()]


@pytest.mark.parametrize("others", [["b"], []], ids=["S09, another one follows", "S10, nobody follows"])
async def test_cases_s09_and_s10_unsubscribe_without_a_subscription_returns_404(others: list[str]) -> None:
    streamr_harness = await StreamrHarness.filled()
    for other in others:
        await streamr_harness.exchange(other, subscribe())
    (refused,) = await streamr_harness.exchange("a", unsubscribe())
    assert error(refused) == {
        "error": "Not subscribed to stream tank partition 0!",
        "status": 404,
        "code": "streamr:subscription.notfound",
        "stream": "tank",
        "partition": 0,
    }
    for other in others:
        assert offsets(await streamr_harness.exchange(other, publish())) == [1]


async def test_case_s11_without_a_partition_the_only_one_that_is_followed_is_left() -> None:
    streamr_harness = await StreamrHarness.filled()
    assert await streamr_harness.exchange("a", subscribe(stream="tanks", partition=2)) == [subscribed("tanks", 2)]
    assert await streamr_harness.exchange("a", unsubscribe(stream="tanks")) == [unsubscribed("tanks", 2)]
    await streamr_harness.publish(20, "tanks")
    assert await streamr_harness.frames("a", 2)


async def test_case_s12_without_a_partition_the_first_of_several_is_left() -> None:
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.send("a", *(subscribe(stream="tanks", partition=partition) for partition in (1, 0)))
    await streamr_harness.frames("a", 2)
    assert await streamr_harness.exchange("a", unsubscribe(stream="tanks")) == [unsubscribed("tanks", 0)]
    streamr_harness.forget()
    await streamr_harness.publish(40, "tanks")
    await pause()
    assert {frame[3][2] for frame in streamr_harness.received("a")} == {1}


@pytest.mark.parametrize("others", [[], [subscribe()]], ids=["S13", "S14"])
async def test_cases_s13_and_s14_requests_of_a_session_are_carried_out_in_their_order(others: list[Any]) -> None:
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.send("a", subscribe(), unsubscribe(), *others)
    assert await streamr_harness.frames("a", 2 + len(others)) == [
        subscribed(),
        unsubscribed(),
        *([subscribed()] if others else []),
    ]
    await streamr_harness.publish(1)
    await pause()
    assert offsets(streamr_harness.received("a")) == ([1] if others else [])


async def test_case_s15_no_partition_is_the_first() -> None:
    streamr_harness = await StreamrHarness.filled()
    assert await streamr_harness.exchange("a", subscribe(stream="tanks", partition=None)) == [subscribed("tanks", 0)]


@pytest.mark.parametrize(
    "partition", [9, "1", -1, 1.5, 256], ids=["S16", "S17 text", "S17 negative", "S17 part", "S17"]
)
async def test_cases_s16_and_s17_a_missing_partition_is_refused(partition: Any) -> None:
    streamr_harness = await StreamrHarness.filled()
    (refused,) = await streamr_harness.exchange("a", subscribe(stream="tanks", partition=partition))
    response = error(refused)
    assert (response["error"], response["status"]) == (
        f"Invalid partition {json.dumps(partition)} for stream tanks",
        400,
    )
    await wait_until(lambda: list(streamr_harness.streams) == [])


async def test_case_s18_a_subscribe_needs_a_stream() -> None:
    streamr_harness = await StreamrHarness.filled()
    (refused,) = await streamr_harness.exchange("a", {"type": "subscribe"})
    assert error(refused)["error"] == "Error: stream id not defined. Are you using an outdated client?"


@pytest.mark.parametrize(
    ("stream", "key"),
    [
        pytest.param("tank", "not a key", id="S19, an unknown key"),
        pytest.param("tank", WRITER, id="S19, a key that may only write"),
        pytest.param("tank", OTHER, id="S19, a key that may nothing"),
        pytest.param("tank", None, id="S19, without a key"),
        pytest.param("nowhere", "K", id="S20, no such stream"),
        pytest.param("things/", "K", id="S20, nobody's name"),
    ],
)
async def test_cases_s19_and_s20_subscribe_without_permission_does_not_reveal_whether_the_stream_exists(
    stream: str, key: str | None
) -> None:
    streamr_harness = await StreamrHarness.filled()
    (refused,) = await streamr_harness.exchange("a", subscribe(key, stream=stream))
    assert error(refused) == {
        "error": f"Not authorized to subscribe to stream {stream} and partition 0",
        "status": 403,
        "code": "streamr:stream.forbidden",
        "stream": stream,
        "partition": 0,
    }
    await wait_until(lambda: list(streamr_harness.streams) == [])


async def test_case_s21_a_public_stream_needs_no_key() -> None:
    streamr_harness = await StreamrHarness.filled()
    assert await streamr_harness.exchange("a", subscribe(None, stream=PUBLIC)) == [subscribed(PUBLIC)]


async def test_case_s22_members_that_no_subscribe_has_mean_nothing() -> None:
    streamr_harness = await StreamrHarness.filled(messages=2)
    assert await streamr_harness.exchange("a", subscribe(resend_all=True, foo={"bar": 1})) == [subscribed()]


async def test_a_subscriber_does_not_get_messages_published_earlier_in_the_same_batch() -> None:
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.send("a", publish('"before"'), subscribe(), publish('"after"'))
    frames = await streamr_harness.frames("a", 2)
    assert frames[0] == subscribed()
    assert frames[1][3][5:] == [2, 1, 27, '"after"']


async def test_a_message_is_broadcast_only_after_it_is_durable() -> None:
    streamr_harness = await StreamrHarness.filled()
    await streamr_harness.exchange("a", subscribe())
    streamr_harness.disk.hold()
    streamr_harness.send("b", publish())
    await pause()
    assert offsets(streamr_harness.received("a")) == []
    streamr_harness.disk.release()
    assert offsets(await streamr_harness.frames("a", 2)) == [1]


async def test_a_session_has_no_more_on_its_way_than_its_window() -> None:
    streamr_harness = await StreamrHarness.filled()
    await streamr_harness.exchange("a", subscribe())
    streamr_harness.link.confirms = False
    streamr_harness.link.window = 10_000
    await streamr_harness.publish(3 * WINDOW)
    await pause()
    assert offsets(streamr_harness.received("a")) == list(range(1, WINDOW + 1))
    streamr_harness.link.confirm(WINDOW)
    await pause()
    assert offsets(streamr_harness.received("a")) == list(range(1, 2 * WINDOW + 1))
    streamr_harness.link.confirms = True
    streamr_harness.link.confirm()
    assert offsets(await streamr_harness.frames("a", 3 * WINDOW + 1)) == list(range(1, 3 * WINDOW + 1))


async def test_case_b11_a_slow_session_skips_messages_and_the_next_message_shows_the_gap() -> None:
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.following.leeway = LagTolerance(events=3, seconds=2)
    streamr_harness.link.window = 10_000
    await streamr_harness.exchange("a", subscribe())
    streamr_harness.link.confirms = False
    await streamr_harness.publish(WINDOW)
    await pause()
    await streamr_harness.publish(6)
    streamr_harness.clock.advance(3)
    streamr_harness.link.confirms = True
    streamr_harness.link.confirm()
    frames = await streamr_harness.frames("a", 1 + WINDOW + 1)
    assert offsets(frames) == [*range(1, WINDOW + 1), WINDOW + 6]
    assert frames[-1][3][6] == WINDOW + 5
    missed = await streamr_harness.exchange("a", resend(resend_from=WINDOW + 1, resend_to=frames[-1][3][6]), 7)
    assert offsets(missed, 1) == list(range(WINDOW + 1, WINDOW + 6))


async def test_a_session_follows_on_for_as_long_as_it_lives() -> None:
    """A Streamr client sends no demand, so the engine must not end the stream for lack of it."""
    streamr_harness = await StreamrHarness.filled()
    await streamr_harness.exchange("a", subscribe())
    for _ in range(50):
        streamr_harness.clock.advance(60)
        streamr_harness.streams.sweep()
        streamr_harness.sweep_sessions()
    assert offsets(await streamr_harness.exchange("b", publish(), 0)) == []
    assert offsets(await streamr_harness.frames("a", 2)) == [1]


async def test_a_session_gets_an_error_when_an_operator_cancels_its_subscription() -> None:
    streamr_harness = await StreamrHarness.filled()
    await streamr_harness.exchange("a", subscribe())
    (live,) = streamr_harness.streams
    assert live.kind is SubscriptionKind.LIVE
    streamr_harness.streams.revoke(live, CANCELLED[SubscriptionKind.LIVE])
    frames = await streamr_harness.frames("a", 2)
    assert error(frames[1])["code"] == CANCELLED[SubscriptionKind.LIVE].error
    assert await streamr_harness.exchange("a", subscribe()) == [subscribed()]
    assert offsets(await streamr_harness.exchange("a", publish())) == [1]


async def test_messages_that_cannot_be_written_end_the_subscription_and_use_up_no_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streamr_harness = await StreamrHarness.filled()
    await streamr_harness.exchange("a", subscribe())

    def unreadable(_: EntityId) -> int:
        raise StoreUnavailable("the disk is gone")

    monkeypatch.setattr(streamr_harness.store, "oldest_revision", unreadable)
    await streamr_harness.publish(1)
    frames = await streamr_harness.frames("a", 2)
    assert error(frames[1])["status"] == 500
    assert streamr_harness.streams.budgets["site"].used_bytes == 0


class TwoMappings(StreamrHarness):
    """A connection with two mappings of the protocol, one for each source."""

    def __init__(self) -> None:
        mappings = {**definition(), "others": definition()["tanks"]}
        sources = source(), source("in-2", payloadMapping=["others"]), OWNER_SOURCE
        ConnectionHarness.__init__(self, *sources, mappingDefinitions=mappings)


async def test_a_client_that_uses_two_mappings_at_one_address_has_two_sessions() -> None:
    streamr_harness = await TwoMappings.filled(messages=2)
    for number in range(2):
        assert await streamr_harness.exchange("a", subscribe(), source=number) == [subscribed()]
    for number in range(2):
        streamr_harness.send("a", resend(resend_all=True), source=number)
    assert sorted(frame[1] for frame in (await streamr_harness.frames("a", 10))[2:]) == [1, 1, 1, 1, 4, 4, 5, 5]
    assert offsets(await streamr_harness.exchange("a", publish(), 2)) == [3, 3]
    assert await streamr_harness.exchange("a", unsubscribe(), source=1) == [unsubscribed()]
    assert offsets(await streamr_harness.exchange("a", publish(), 1)) == [4]


async def test_a_subscription_too_many_of_a_connection_is_refused() -> None:
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.streams.shares["site"].used = 30_000
    (refused,) = await streamr_harness.exchange("a", subscribe())
    assert error(refused)["status"] == 429
    streamr_harness.streams.shares["site"].used = 0
    assert await streamr_harness.exchange("a", subscribe()) == [subscribed()]
    assert offsets(await streamr_harness.exchange("a", publish())) == [1]


async def test_cases_h01_to_h03_a_stream_object_lives_from_the_first_follower_to_the_last() -> None:
    streamr_harness = await StreamrHarness.filled(messages=1)
    tank = partition_id("tank", 0)
    (refused,) = await streamr_harness.exchange("a", subscribe(OTHER))
    assert (refused[1], streamr_harness.following.followers(partition_id(OTHER, 0))) == (7, 0)
    await streamr_harness.exchange("a", resend(resend_all=True), 3)
    assert streamr_harness.following.followers(tank) == 0
    for client in "aba":
        await streamr_harness.exchange(client, subscribe())
    assert streamr_harness.following.followers(tank) == 2, "one for each client, however often it subscribes"
    await streamr_harness.exchange("a", unsubscribe())
    assert streamr_harness.following.followers(tank) == 1
    streamr_harness.send("b", {"type": "disconnect"})
    await until(lambda: streamr_harness.following.followers(tank) == 0)
