"""Behaviors that Streamr's public clients rely on. A test class inherits them and names the listener.

The numbers of outcomes are those which any server of these clients has to reach; other names say themselves what they show.
The versions differ in what they can: 0.9.3 and 0.11.2 publish elsewhere, 1.0.2 keeps its dead socket after a cut.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.support.public_client import VERSIONS, PublicClient
from tests.support.public_client.wire import Frame, Peer, Wire

RECONNECTING = ("0.9.3", "0.11.2", "0.12.2")
PUBLISHING = ("0.12.2", "1.0.2")
MOST_REQUESTS = 100
"""A client whose gap cannot be closed sends fewer resend requests than this in a minute."""

MOST_STREAMS = 60
"""Number of streams of each kind that a listener must know: `open-0`, `open-1` …"""

_numbers = itertools.count()

each_version = pytest.mark.parametrize(
    "version",
    [*(pytest.param(older, marks=pytest.mark.soak(shard="public-clients")) for older in VERSIONS[:-1]), VERSIONS[-1]],
)
"""The newest client in `make test`, every one in `make soak`."""


@dataclass(frozen=True)
class PublicClientSetup:
    """A wire to a listener, and a peer that publishes there."""

    wire: Wire
    peer: Peer
    key: str

    def stream(self, kind: str = "open") -> str:
        """Return an unused stream. An `open` one is for every client, a `closed` one for clients with the key."""
        return f"{kind}-{next(_numbers)}"


class PublicClientBehaviors:
    """Tests of a public client. Every test takes a `harness`.

    A subclass has a fixture `listener`: its address, and a key that it knows.
    """

    @pytest.fixture
    async def harness(self, listener: tuple[str, str]) -> AsyncIterator[PublicClientSetup]:
        address, key = listener
        async with Wire.to(address) as wire, Peer.at(address) as peer:
            yield PublicClientSetup(wire, peer, key)

    @each_version
    async def test_outcome_1_stored_messages_arrive_before_live_messages(
        self, harness: PublicClientSetup, version: str
    ) -> None:
        stream = harness.stream()
        stored = await harness.peer.publish(stream, *({"v": n} for n in range(4)))
        async with PublicClient.started(version, harness.wire.url) as client:
            await client.subscribe("a", stream=stream, resend_all=True)
            await client.until(lambda: client.happened("resent", "a"))
            live = await harness.peer.publish(stream, {"v": 4})
            await client.until(lambda: len(client.offsets("a")) == 5)
            assert course(client, "a") == course_of(version, "subscribed", "resending", *stored, "resent", *live)
            assert client.contents("a") == [{"v": n} for n in range(5)]

    @each_version
    async def test_outcome_2_a_gap_is_asked_for_once_and_filled_in_order(
        self, harness: PublicClientSetup, version: str
    ) -> None:
        stream = harness.stream()
        async with PublicClient.started(version, harness.wire.url) as client:
            await client.subscribe("a", stream=stream)
            await client.until(lambda: client.happened("subscribed", "a"))
            first = await harness.peer.publish(stream, {"v": 0})
            await client.until(lambda: client.offsets("a") == first)
            harness.wire.loses = broadcasts_of({"v": 1}, {"v": 2})
            missed = await harness.peer.publish(stream, {"v": 1}, {"v": 2}, {"v": 3})
            await client.until(lambda: len(client.offsets("a")) == 4)
            assert client.offsets("a") == [*first, *missed]
            assert client.contents("a") == [{"v": n} for n in range(4)]
            assert len(harness.wire.lost) == 2
        asked = [(each["resend_from"], each["resend_to"]) for each in harness.wire.asked("resend")]
        gap = (first[0] + 1, missed[1])
        assert asked[0] == gap
        # 1.0.2 receives the end of a resend before it has processed the messages, and requests the rest until it has.
        assert len(asked) == 1 or version == "1.0.2"
        assert all(gap[0] <= start <= end == gap[1] for start, end in asked), asked

    @pytest.mark.parametrize("version", RECONNECTING)
    async def test_outcome_3_a_message_missed_during_a_cut_arrives_once(
        self, harness: PublicClientSetup, version: str
    ) -> None:
        stream = harness.stream()
        stored = await harness.peer.publish(stream, {"v": 0}, {"v": 1})
        async with PublicClient.started(version, harness.wire.url) as client:
            await client.subscribe("a", stream=stream, resend_all=True)
            await client.until(lambda: client.happened("resent", "a"))
            harness.wire.cut()
            await client.until(lambda: client.happened("disconnected"))
            missed = await harness.peer.publish(stream, {"v": 2})
            await client.until(lambda: len(client.happened("resent", "a")) == 2)
            live = await harness.peer.publish(stream, {"v": 3})
            await client.until(lambda: len(client.offsets("a")) == 4)
            assert client.offsets("a") == [*stored, *missed, *live]
        asked = harness.wire.asked("resend")
        assert [each.get("resend_from") for each in asked] == [None, stored[-1] + 1]

    @each_version
    async def test_outcome_4_two_subscriptions_are_one_on_the_wire(
        self, harness: PublicClientSetup, version: str
    ) -> None:
        stream = harness.stream()
        async with PublicClient.started(version, harness.wire.url) as client:
            await client.subscribe("a", stream=stream)
            await client.until(lambda: client.happened("subscribed", "a"))
            await client.subscribe("b", stream=stream)
            await client.until(lambda: client.happened("subscribed", "b"))
            sent = await harness.peer.publish(stream, {"v": 0}, {"_bye": True})
            await client.until(lambda: client.happened("unsubscribed", "a") and client.happened("unsubscribed", "b"))
            assert client.offsets("a") == client.offsets("b") == sent
            # The client disconnects after the end of its last subscription.
            await client.until(lambda: client.happened("disconnected"))
        assert [each["type"] for each in harness.wire.requests] == ["subscribe", "unsubscribe"]
        assert [each[1] for each in harness.wire.frames] == [2, 0, 0, 3]

    @pytest.mark.parametrize("version", PUBLISHING)
    async def test_a_client_publishes_and_receives_itself(self, harness: PublicClientSetup, version: str) -> None:
        stream = harness.stream()
        async with PublicClient.started(version, harness.wire.url) as client:
            await client.subscribe("a", stream=stream)
            await client.until(lambda: client.happened("subscribed", "a"))
            for n in range(3):
                await client.publish(stream, {"v": n, "text": "grün"})
            await client.until(lambda: len(client.offsets("a")) == 3)
            assert client.contents("a") == [{"v": n, "text": "grün"} for n in range(3)]
            assert [each["previousOffset"] for each in client.happened("message", "a")] == [
                None,
                *client.offsets("a")[:2],
            ]

    @each_version
    async def test_resends_start_where_they_are_asked_to(self, harness: PublicClientSetup, version: str) -> None:
        stream = harness.stream()
        stored = await harness.peer.publish(stream, *({"v": n} for n in range(4)))
        moments = {frame[3][5]: frame[3][3] for frame in harness.peer.frames if frame[1] == 0}
        since = moments[stored[2]]
        async with PublicClient.started(version, harness.wire.url) as client:
            wanted: dict[str, dict[str, Any]] = {
                "last": {"resend_last": 2},
                "from": {"resend_from": stored[1]},
                "time": {"resend_from_time": since},
                "none": {"resend_from": stored[-1] + 1},
            }
            late = [offset for offset in stored if offset >= min(o for o in stored if moments[o] >= since)]
            expected = {"last": stored[2:], "from": stored[1:], "time": late, "none": []}
            for name, option in wanted.items():
                await client.subscribe(name, stream=stream, **option)
                await client.until(partial(client.happened, "resent" if expected[name] else "no_resend", name))
                await client.until(lambda name=name: client.offsets(name) == expected[name])  # type: ignore[misc]
            for name, offsets in expected.items():
                ends = ["resending", *offsets, "resent"] if offsets else ["no_resend"]
                assert course(client, name) == course_of(version, "subscribed", *ends)

    @each_version
    async def test_an_unsubscribed_stream_delivers_no_more_messages(
        self, harness: PublicClientSetup, version: str
    ) -> None:
        stream, other = harness.stream(), harness.stream()
        async with PublicClient.started(version, harness.wire.url) as client:
            for name, of in (("a", stream), ("b", other)):
                await client.subscribe(name, stream=of)
                await client.until(partial(client.happened, "subscribed", name))
            await client.unsubscribe("a")
            await client.until(lambda: client.happened("unsubscribed", "a"))
            await harness.peer.publish(stream, {"v": 0})
            published = await harness.peer.publish(other, {"v": 1})
            await client.until(lambda: client.offsets("b") == published)
            assert client.offsets("a") == []

    async def test_a_client_with_a_key_reads_a_closed_stream(self, harness: PublicClientSetup) -> None:
        stream = harness.stream("closed")
        async with PublicClient.started("0.12.2", harness.wire.url, apiKey=harness.key) as client:
            await client.subscribe("a", stream=stream)
            await client.until(lambda: client.happened("subscribed", "a"))
            sent = await harness.peer.publish(stream, {"v": 0}, authKey=harness.key)
            await client.until(lambda: client.offsets("a") == sent)

    @pytest.mark.parametrize("version", PUBLISHING)
    async def test_a_refused_subscription_causes_an_error_event(self, harness: PublicClientSetup, version: str) -> None:
        stream = harness.stream("closed")
        async with PublicClient.started(version, harness.wire.url) as client:
            await client.subscribe("a", stream=stream)
            await client.until(lambda: client.happened("error"))
            await client.subscribe("b", stream=harness.stream())
            await client.until(lambda: client.happened("subscribed", "b"))
            assert len(client.happened("error")) == 1
            assert client.happened("subscribed", "a") == []


Course = list[str | int]


def course_of(version: str, *steps: str | int) -> tuple[Course, ...]:
    """Return the expected course of a subscription, in order: event names, and messages as offsets.

    Client 1.0.2 takes messages in later than words, so that only the order among each of them can be known.
    """
    if version != "1.0.2":
        return (list(steps),)
    return [each for each in steps if isinstance(each, str)], [each for each in steps if isinstance(each, int)]


def course(client: PublicClient, name: str) -> tuple[Course, ...]:
    """Return the actual course of a subscription, in the form of `course_of`."""
    return course_of(client.version, *client.course(name))


def broadcasts_of(*contents: Any) -> Callable[[Frame], bool]:
    """Return a function that returns whether a frame is the broadcast of one of these."""
    texts = {json.dumps(content) for content in contents}

    def is_one(frame: Frame) -> bool:
        return frame[1] == 0 and frame[3][8] in texts

    return is_one
