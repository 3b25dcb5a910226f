"""Malicious or faulty peers of a TCP listener: each is bounded and disconnected, and others work.

In every test another client uses the service before, meanwhile and afterwards.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from structlog.testing import capture_logs

from connectivity.sessions.reactive_streams_io.peer import WINDOW_OF_A_PEER
from connectivity.transports.tcp.link import TcpPeer
from mappings.reactive_streams_io.frames import (
    Frame,
    OnError,
    OnSubscribe,
    Ping,
    Pong,
    RequestFrame,
    SubscribeFrame,
    encode,
)
from mappings.reactive_streams_io.limits import UNBOUNDED, EndpointLimits
from tests.support.in_process.reactive_streams_io import H
from tests.support.in_process.tcp_service import SERVER_HELLO, Caller, TcpService, open_tcp_service
from tests.support.in_process.websocket_listener import pass_time
from tests.support.wait import wait_until

LIMITS = EndpointLimits()
MIB = 1 << 20


@asynccontextmanager
async def with_other_client() -> AsyncIterator[tuple[TcpService, Caller]]:
    """A listener, and a well-behaved peer. Afterwards no state of any other peer is left."""
    async with open_tcp_service() as there:
        other_client = await there.greeted()
        await check_conversation(other_client)
        yield there, other_client
        await check_conversation(other_client)
        await there.keeps_only(1)
        await wait_until(lambda: list(there.rsio_harness.streams) == [])


async def check_conversation(other_client: Caller) -> None:
    other_client.send(SubscribeFrame("tck/range?n=3", 1, 2))
    await other_client.expect("81 01 00 82 01 01 31 82 01 01 32")
    other_client.send(RequestFrame(1, 5))
    await other_client.expect("82 01 01 33 86 01")


def stuck_peers(there: TcpService) -> list[TcpPeer]:
    """Return the peers that do not read their waiting output."""
    return [peer for peer in there.link.peers.values() if peer.times.stuck is not None]


@contextmanager
def allocates_less_than(raw: int) -> Iterator[None]:
    """Check that the block never has more bytes allocated than this."""
    tracemalloc.start()
    try:
        yield
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < raw, f"{most / MIB:.1f} MiB"


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        pytest.param(SubscribeFrame("tck/fixed?n=100000000&size=1000", 1, UNBOUNDED), 8 * MIB, id="small elements"),
        # The element itself needs memory too.
        pytest.param(SubscribeFrame("tck/big?bytes=16000000", 1, UNBOUNDED), 56 * MIB, id="one that is large"),
    ],
)
async def test_a_peer_that_never_reads_costs_little_and_is_cut_off(asked: SubscribeFrame, most: int) -> None:
    async with with_other_client() as (there, other_client):
        deaf = await there.caller()
        deaf.pause_reading()
        with allocates_less_than(most):
            deaf.send(H, asked)
            await wait_until(lambda: stuck_peers(there))
            for _ in range(20):
                await check_conversation(other_client)
        [peer] = stuck_peers(there)
        assert peer.waiting_output <= (WINDOW_OF_A_PEER + 1) * LIMITS.batch
        pass_time(there.link, 31)


async def test_a_peer_that_reads_its_requested_data_slowly_is_not_treated_as_silent() -> None:
    async with with_other_client() as (there, _):
        slow = await there.greeted("01 00 01 02")
        slow.pause_reading()
        slow.send(SubscribeFrame("tck/fixed?n=100000000&size=1000", 1, UNBOUNDED))
        await wait_until(lambda: stuck_peers(there))
        # The service reads nothing from it meanwhile.
        slow.send(Ping(b"1"))
        for _ in range(4):
            there.pass_time(60)
        slow.resume_reading()
        await slow.framed(lambda frames: Pong(b"1") in frames)
        assert len(there.clients) == 2
        await slow.leave()


async def test_a_peer_that_sends_without_end_and_never_reads_is_not_read_either() -> None:
    async with with_other_client() as (there, other_client):
        deaf = await there.greeted("01 00 01 02")
        deaf.pause_reading()
        deaf.keeps_little()
        there.keeps_little()

        async def flood() -> None:
            while True:
                deaf.send(*[encode(Ping(b"x" * 64))] * 1000)
                await deaf.writer.drain()

        with allocates_less_than(16 * MIB):
            flooding = asyncio.create_task(flood())
            await wait_until(lambda: stuck_peers(there))
            [peer] = stuck_peers(there)
            await wait_until(lambda: not peer.times.is_reading)
            await check_conversation(other_client)
        assert peer.waiting_output <= (WINDOW_OF_A_PEER + 1) * LIMITS.batch
        pass_time(there.link, 31)
        await wait_until(lambda: len(there.link.peers) == 1)
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)


async def test_a_peer_that_requests_ten_thousand_streams_gets_the_maximum_and_an_error() -> None:
    async with with_other_client() as (there, other_client):
        greedy = await there.greeted()
        greedy.send(*(SubscribeFrame("tck/never", number, 1) for number in range(1, 10_001)))
        refused = 10_000 - LIMITS.subscriptions
        frames = await greedy.framed(lambda found: len(found) >= 10_000 + refused)
        assert sum(isinstance(frame, OnSubscribe) for frame in frames) == 10_000
        assert [each.error[:3] for each in frames if isinstance(each, OnError)] == ["429"] * refused
        assert len(list(there.rsio_harness.streams)) == LIMITS.subscriptions
        await check_conversation(other_client)
        await greedy.leave()


@pytest.mark.parametrize(
    ("hello", "longest", "reason"),
    [
        pytest.param("01 00 00", 11, "idle", id="without keepalive a frame has its time"),
        pytest.param("01 00 01 02", 2, "idle", id="with keepalive bytes are no frames"),
    ],
)
async def test_a_peer_that_sends_one_byte_a_minute_is_disconnected(hello: str, longest: int, reason: str) -> None:
    async with with_other_client() as (there, other_client):
        slow = await there.greeted(hello)
        endless = encode(SubscribeFrame("x" * 300, 1, 0))
        minutes = 0
        while len(there.clients) > 1:
            slow.send(endless[minutes : minutes + 1])
            await wait_until(lambda sent=minutes + 1: waiting(there) == sent)  # type: ignore[misc]
            there.pass_time(60)
            other_client.send("13 09")
            minutes += 1
        assert minutes <= longest
        received = await slow.rest()
        assert received.endswith(reason.encode())


async def test_a_peer_that_sends_its_hello_byte_by_byte_has_ten_seconds_for_all_of_it() -> None:
    async with with_other_client() as (there, _):
        slow = await there.caller()
        await slow.expect(SERVER_HELLO)
        slow.send("01")
        there.pass_time(6)
        slow.send("00")
        there.pass_time(6)
        await slow.goodbye("protocol error: no hello in time")


async def test_a_peer_that_sends_one_frame_a_minute_may_stay() -> None:
    async with with_other_client() as (there, _):
        rare = await there.greeted("01 00 01 02")
        for _ in range(30):
            there.pass_time(60)
            rare.send("a8 00")
            assert (await rare.take(2)) in (b"\xa8\x00", b"\xa9\x00")
        rare.send("03 00")
        received = await rare.rest()
        assert received.endswith(bytes.fromhex("03 02 6f 6b"))


@pytest.mark.parametrize("connects", [300, pytest.param(10_000, marks=pytest.mark.soak(shard="properties"))])
async def test_peers_that_connect_and_leave_in_great_numbers_leave_nothing_behind(connects: int) -> None:
    """Some at once, some with half a hello, some in the middle of a stream."""
    async with with_other_client() as (there, other_client):
        with capture_logs() as logs:
            await come_and_go(there, other_client, connects)
        assert {each["log_level"] for each in logs} == {"debug"}, "a peer cannot fill the log of the service"
        await there.keeps_only(1)


async def come_and_go(there: TcpService, other_client: Caller, connects: int) -> None:
    for number in range(0, connects, 100):
        callers = [await Caller.at(there.port) for _ in range(100)]
        for place, caller in enumerate(callers):
            sent: list[str | Frame] = ["01", f"{H} 12", H, SubscribeFrame("tck/never", 1, 1)]
            caller.send(*sent[: place % 4])
        await asyncio.gather(*(caller.leave() for caller in callers))
        await check_conversation(other_client)
        assert len(there.link._sockets) <= number + 101


@pytest.mark.parametrize("peers", [200, pytest.param(5000, marks=pytest.mark.soak(shard="properties"))])
async def test_silent_peers_that_stay_are_disconnected_together(peers: int) -> None:
    async with with_other_client() as (there, other_client):
        callers = [await Caller.at(there.port) for _ in range(peers)]
        await wait_until(lambda: len(there.clients) == peers + 1)
        await check_conversation(other_client)
        there.pass_time(11)
        for caller in callers:
            await caller.expect(SERVER_HELLO)
            await caller.goodbye("protocol error: no hello in time")


def waiting(there: TcpService) -> int:
    """Return the number of buffered bytes of incomplete frames."""
    return sum(client.endpoint._decoder.waiting for client in there.clients)
