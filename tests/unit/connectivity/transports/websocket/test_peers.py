"""WebSocket peers that are too many, too large, too slow, silent or invalid; TLS; the port."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import pytest
import trustme
import uvloop
from structlog.testing import capture_logs
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus
from websockets.frames import CloseCode, Frame, Opcode

from connectivity.errors import Detail, NotConnected
from connectivity.fair_share import FairShare
from connectivity.transports import load_connection_type
from connectivity.transports.base import ReaderStatus
from connectivity.transports.listener import link as link_module
from connectivity.transports.listener.timeouts import OPENING
from connectivity.transports.websocket import server as server_module
from connectivity.transports.websocket.peer import WebSocketPeer
from tests.support.brokers import free_port
from tests.support.in_process.websocket_listener import (
    OpenListener,
    listener_connection,
    opened,
    own,
    pass_time,
    peer_of,
    token_entry,
    trusting,
)
from tests.support.table import each_row
from tests.support.wait import PATIENCE, wait_until


async def refusal(way: OpenListener, target: str = "/twins", **options: object) -> tuple[int, str]:
    """Return the status and the response text of a refused handshake."""
    with pytest.raises(InvalidStatus) as refused:
        await way.client(target, **options)
    response = refused.value.response
    assert response.body is not None
    return response.status_code, response.body.decode()


async def ended(client: ClientConnection) -> int | None:
    """The code that a client's socket is closed with."""
    with suppress(ConnectionClosed):
        while True:
            await asyncio.wait_for(client.recv(), PATIENCE)
    return client.close_code


@asynccontextmanager
async def raw(way: OpenListener) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", way.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def answer(way: OpenListener, request: bytes) -> bytes:
    """Return all that a listener sends in response to these bytes until it disconnects."""
    async with raw(way) as (reader, writer):
        writer.write(request)
        return await asyncio.wait_for(reader.read(), PATIENCE)


def peers_of(way: OpenListener) -> list[WebSocketPeer]:
    return list(way.link._sockets)


def later(way: OpenListener, seconds: float) -> None:
    pass_time(way.link, seconds)


# ── refused handshakes ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_unknown_path_a_forbidden_origin_and_a_missing_token_are_distinguished() -> None:
    async with opened(options={"tokens": token_entry("tablet-7", "s3cret")}) as way:
        shown = {"Authorization": "Bearer s3cret"}
        assert (await refusal(way))[0] == 401
        assert (await refusal(way, additional_headers={"Authorization": "Bearer wrong"}))[0] == 401
        assert (await refusal(way, "/nowhere", additional_headers=shown))[0] == 404
        assert (await refusal(way, origin="https://evil.example", additional_headers=shown))[0] == 403
        with capture_logs() as logs:
            later(way, 0)
        assert {(each["reason"][:3], each["count"]) for each in logs} == {("401", 2), ("404", 1), ("403", 1)}
        assert "wrong" not in str(logs)
        client = await way.client(additional_headers=shown)
        await client.send("let in")
        [delivery] = await way.take(1)
        assert delivery.envelope.header("websocket.user") == "tablet-7"


async def test_one_more_than_the_most_peers_has_to_wait_until_one_leaves() -> None:
    async with opened(options={"maxPeers": "1"}) as way:
        first = await way.client()
        code, words = await refusal(way)
        assert (code, "1 peers" in words) == (503, True)
        await first.close()
        await wait_until(lambda: not peers_of(way))
        await way.client()


async def test_sockets_that_ask_for_nothing_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "EXTRA_SOCKETS", 2)
    async with opened(options={"maxPeers": "1"}) as way, raw(way), raw(way), raw(way):
        await wait_until(lambda: len(peers_of(way)) == 3)
        with pytest.raises((InvalidMessage, OSError)):
            await way.client()


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /twins HTTP/1.1\r\nHost: listener\r\n\r\n", b"426"),
        (b"GET /nowhere HTTP/1.1\r\nHost: listener\r\n\r\n", b"404"),
        (
            b"GET /twins HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n",
            b"400",
        ),
        (
            b"GET /twins HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 8\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            b"400",
        ),
    ],
)
async def test_a_client_without_websocket_gets_an_http_error(request_line: bytes, status: bytes) -> None:
    async with opened() as way:
        response = await answer(way, request_line)
        assert response.startswith(b"HTTP/1.1 " + status)


async def test_a_tls_client_at_a_listener_without_tls_is_disconnected_and_logged() -> None:
    async with opened() as way:
        with pytest.raises((ssl.SSLError, OSError)):
            await way.client(ssl=ssl.create_default_context(), scheme="wss")
        with capture_logs() as logs:
            later(way, 0)
        [event] = logs
        assert "TLS" in event["reason"]


@pytest.mark.parametrize(
    "noise",
    [
        b"POST /twins HTTP/1.1\r\n\r\n",
        b"GET " + b"/" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /twins HTTP/1.1\r\n" + b"X-Many: yes\r\n" * 500 + b"\r\n",
        b"\x00" * 10_000 + b"\r\n",
    ],
)
async def test_noise_is_disconnected_and_affects_no_other_peer(noise: bytes) -> None:
    async with opened() as way:
        client, peer = await way.met()
        assert not (await answer(way, noise)).startswith(b"HTTP/1.1 101")
        assert await way.send(peer, b"still here") == [None]
        assert await client.recv() == "still here"


async def test_frames_after_a_refused_request_are_ignored() -> None:
    frame = Frame(Opcode.TEXT, b"sneaked in").serialize(mask=True)
    request = (
        b"GET /nowhere HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    async with opened() as way:
        assert (await answer(way, request + frame)).startswith(b"HTTP/1.1 404")
        assert way.taker.deliveries == []
        # The same frame after a valid request is a message.
        async with raw(way) as (_, writer):
            writer.write(request.replace(b"/nowhere", b"/twins") + frame)
            [delivery] = await way.take(1)
            assert delivery.envelope.payload == b"sneaked in"


async def test_a_socket_that_never_sends_a_request_is_disconnected() -> None:
    async with opened() as way, raw(way) as (reader, _):
        await wait_until(lambda: peers_of(way))
        later(way, OPENING + 1)
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""


# ── messages that cannot be ───────────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_that_is_too_large_closes_the_socket_also_in_parts_or_packed() -> None:
    async with opened(options={"maxFrame": "64KiB", "compression": "deflate"}) as way:
        for size, sent in ((1 << 16, 101), ((1 << 16) + 1, 1009)):
            for options in ({}, {"compression": "deflate"}):
                client = await way.client(**options)
                await client.send("x" * size)
                if sent == 101:
                    [delivery] = await way.take(1)
                    assert len(delivery.envelope.payload) == size
                else:
                    assert await ended(client) == sent
        client = await way.client()
        with suppress(ConnectionClosed):
            await client.send(["x" * 10_000] * 7)
        assert await ended(client) == 1009
        assert way.taker.deliveries == []


async def test_a_text_that_is_no_utf_8_closes_the_socket() -> None:
    async with opened() as way:
        client = await way.client()
        await client.send(b"\xff\xfe", text=True)
        assert await ended(client) == 1007
        assert way.taker.deliveries == []


async def test_a_protocol_violation_closes_only_its_own_socket() -> None:
    async with opened() as way:
        neighbour, peer = await way.met()
        client = await way.client()
        client.transport.write(Frame(Opcode.CONT, b"of nothing").serialize(mask=True))
        assert await ended(client) == 1002
        unmasked = await way.client()
        unmasked.transport.write(Frame(Opcode.TEXT, b"unmasked").serialize(mask=False))
        assert await ended(unmasked) == 1002
        assert await way.send(peer, b"still here") == [None]
        assert await neighbour.recv() == "still here"


async def test_many_small_messages_at_once_are_taken_bit_by_bit() -> None:
    """One read may contain thousands of messages: few are parsed before there is room."""
    many = 20_000
    async with opened(options={"maxUnsettled": "100"}) as way:
        client = await way.client()
        frame = Frame(Opcode.TEXT, b"x").serialize(mask=True)
        client.transport.write(frame * many)
        taken = 0
        while taken < many:
            await wait_until(lambda: way.taker.deliveries, PATIENCE, 0.0005)
            [peer] = peers_of(way)
            assert len(way.taker.deliveries) <= 100
            assert len(peer._messages) <= 16 * 1024 // len(frame) + 1
            taken += len(await way.taker.payloads(len(way.taker.deliveries)))


async def test_messages_of_all_peers_together_are_bounded_and_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers that flood the listener share half of the places; another one is served meanwhile.

    In the end all are served.
    """
    monkeypatch.setattr(link_module, "MAX_HELD", 60)
    async with opened() as way:
        late, peer = await way.met()
        clients = [await way.client() for _ in range(9)]
        for client in clients:
            for _ in range(30):
                await client.send("x")
        await wait_until(lambda: sum(each.times.is_reading for each in peers_of(way)) == 1)
        flooded = len(way.taker.deliveries)
        assert 30 <= flooded <= 30 + len(clients)
        held = await way.take(flooded)
        for text in ("late", "later"):
            await late.send(text)
            [delivery] = await way.take(1)
            assert (delivery.envelope.payload, peer_of(delivery)) == (text.encode(), peer)
            delivery.settle()
        assert await way.send(peer, b"there") == [None]
        assert await late.recv() == "there"
        for delivery in held:
            delivery.settle()
        for _ in range(270 - flooded):
            [delivery] = await way.take(1)
            delivery.settle()
        assert way.link._shares.used == 0


async def test_a_peer_without_room_is_read_from_as_soon_as_another_peer_has_fewer_unsettled_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "MAX_HELD", 60)
    monkeypatch.setattr(link_module, "CHECK_INTERVAL", 3600.0)
    async with opened() as way:
        first, second = await way.client(), await way.client()
        for _ in range(10):
            await first.send("x")
        held = await way.take(10)
        for _ in range(60):
            await second.send("y")
        await wait_until(lambda: sum(each.times.is_reading for each in peers_of(way)) == 1)
        assert len(way.taker.deliveries) == 14
        for delivery in held:
            delivery.settle()
        await wait_until(lambda: len(way.taker.deliveries) == 20)


async def test_a_user_is_served_beside_another_whose_peers_settle_nothing() -> None:
    """Fifty sockets with a hundred unsettled messages each use up half of the places at most."""
    tokens = ",".join(token_entry(name, name) for name in ("bad", "good"))
    frame = Frame(Opcode.TEXT, b"x").serialize(mask=True)
    async with opened(options={"tokens": tokens}) as way:
        way.link._bytes = FairShare(1 << 30)
        for client in [await way.client("/twins?access_token=bad") for _ in range(50)]:
            client.transport.write(frame * 100)
        await wait_until(lambda: not any(each.times.is_reading for each in peers_of(way)))
        flooded = len(await way.take(len(way.taker.deliveries)))
        assert link_module.MAX_HELD // 2 <= flooded <= link_module.MAX_HELD // 2 + 50
        for name in ("good", "bad"):
            _, peer = await way.met(f"/twins?access_token={name}")
            assert await way.send(peer, b"answered") == [None]
        client = await way.client("/twins?access_token=good")
        client.transport.write(frame * 100)
        await way.take(100)


# ── slow, silent, idle ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_target_does_not_wait_and_disconnects_peers_that_read_too_slowly() -> None:
    async with opened(options={"maxOutput": "1MiB"}) as way:
        slow, _ = await way.met(max_queue=1)
        fast, _ = await way.met()
        slow.transport.pause_reading()
        payload = os.urandom(256 * 1024)

        async def publish_once() -> bool:
            assert await way.send("/twins", payload) == [None]
            assert await asyncio.wait_for(fast.recv(), PATIENCE) == payload
            return any(peer.times.closing is not None for peer in peers_of(way))

        for _ in range(200):
            if await publish_once():
                break
        assert "1 peers" not in repr(way.link)
        slow.transport.resume_reading()
        assert await ended(slow) == 1013


async def test_a_peer_that_reads_no_output_is_disconnected() -> None:
    async with opened(options={"outputTimeout": "10s"}) as way:
        client, peer = await way.met(max_queue=1)
        signs: list[tuple[str, ReaderStatus]] = []
        way.link.readers = lambda address, sign: signs.append((address, sign))
        client.transport.pause_reading()
        sending = asyncio.create_task(way.send(peer, *[os.urandom(64 * 1024)] * 200))
        await wait_until(lambda: peers_of(way)[0].times.stuck is not None)
        later(way, 9)
        assert peers_of(way)
        later(way, 2)
        errors = [error for error in await sending if error is not None]
        assert errors
        await wait_until(lambda: signs == [(peer, ReaderStatus.GONE)])


async def test_a_peer_that_reads_slowly_stays_connected() -> None:
    async with opened(options={"outputTimeout": "10s"}) as way:
        client, peer = await way.met(max_queue=1)
        client.transport.pause_reading()
        payload = os.urandom(64 * 1024)
        sending = asyncio.create_task(way.send(peer, *[payload] * 200))
        await wait_until(lambda: peers_of(way)[0].times.stuck is not None)
        later(way, 9)
        client.transport.resume_reading()
        for _ in range(100):
            assert await client.recv() == payload
        later(way, 9)
        for _ in range(100):
            assert await client.recv() == payload
        assert await sending == [None] * 200


class Slow(asyncio.Transport):
    """A socket whose buffer is emptied by the test."""

    buffered = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass


async def test_each_byte_that_is_taken_gives_a_slow_peer_more_time() -> None:
    async with opened() as way:
        peer, transport = WebSocketPeer(way.link), Slow()
        peer.connection_made(transport)
        transport.buffered = 1000
        peer.pause_writing()
        assert peer.times.stuck is not None
        for taken, is_restarted in ((1000, False), (999, True), (999, False), (0, True)):
            peer.times.stuck = 0.0
            transport.buffered = taken
            peer.look()
            assert bool(peer.times.stuck) is is_restarted
        way.link._sockets.discard(peer)


async def test_a_silent_peer_is_asked_and_stays_if_it_answers() -> None:
    async with opened() as way:
        client, _ = await way.met()
        later(way, 25)
        [peer] = peers_of(way)
        assert peer.times.pinged is not None
        await wait_until(lambda: peer.times.pinged is None)
        later(way, 15)
        await client.send("still here")
        await way.take(1)


async def test_a_peer_that_leaves_a_ping_unanswered_is_aborted_and_reported() -> None:
    async with opened() as way:
        client, peer = await way.met()
        signs: list[tuple[str, ReaderStatus]] = []
        way.link.readers = lambda address, sign: signs.append((address, sign))
        client.transport.pause_reading()
        later(way, 25)
        later(way, 25)
        await wait_until(lambda: signs == [(peer, ReaderStatus.GONE)])


async def test_a_peer_that_is_not_read_from_is_not_blamed_for_pings_and_silence() -> None:
    async with opened(options={"maxUnsettled": "1", "idleTimeout": "1m"}) as way:
        client = await way.client()
        await client.send("1")
        [delivery] = await way.take(1)
        assert not peers_of(way)[0].times.is_reading
        await client.send("2")
        for _ in range(3):
            later(way, 100)
        delivery.settle()
        later(way, 50)
        [second] = await way.take(1)
        assert peer_of(second) == peer_of(delivery)


async def test_a_silent_peer_is_disconnected_if_configured() -> None:
    async with opened(options={"idleTimeout": "1m"}) as way:
        client, _ = await way.met()
        later(way, 50)
        later(way, 20)
        assert await ended(client) == 1000


async def test_an_unanswered_close_frame_has_a_timeout() -> None:
    async with opened(options={"idleTimeout": "1m"}) as way:
        client, _ = await way.met()
        client.transport.pause_reading()
        later(way, 70)
        assert peers_of(way)[0].times.closing is not None
        later(way, 70)
        await wait_until(lambda: not peers_of(way))


# ── TLS, the port ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def secure(authority: trustme.CA, **more: Any) -> dict[str, Any]:
    certificate = authority.issue_cert("localhost")
    return {"uri": f"wss://localhost:{free_port()}", "credentials": own(certificate), **more}


async def test_with_tls_the_listener_presents_its_certificate(authority: trustme.CA) -> None:
    async with opened(**secure(authority)) as way:
        client, peer = await way.met(ssl=trusting(authority))
        large = os.urandom(1 << 20)
        await client.send(large)
        [delivery] = await way.take(1)
        assert delivery.envelope.payload == large
        assert await way.send(peer, b"secret") == [None]
        assert await client.recv() == "secret"
        with pytest.raises(ssl.SSLCertVerificationError):
            await way.client(ssl=ssl.create_default_context())
        assert not (await answer(way, b"GET /twins HTTP/1.1\r\n\r\n")).startswith(b"HTTP")


async def test_with_a_ca_peers_show_certificates_and_have_their_names(authority: trustme.CA) -> None:
    trusted = trustme.CA()
    pem = trusted.cert_pem.bytes().decode()
    async with opened(**secure(authority, ca=pem)) as way:
        shown = trusted.issue_cert("device-9.test", common_name="device-9")
        client = await way.client(ssl=trusting(authority, shown))
        await client.send("me")
        [delivery] = await way.take(1)
        assert delivery.envelope.header("websocket.certificate") == "device-9"
        assert delivery.envelope.header("websocket.user") is None
        for stranger in (None, authority.issue_cert("device-9.test", common_name="device-9")):
            with pytest.raises((ssl.SSLError, OSError, InvalidMessage, ConnectionClosed)):
                await way.client(ssl=trusting(authority, stranger))


async def test_with_a_ca_and_tokens_either_is_accepted(authority: trustme.CA) -> None:
    trusted = trustme.CA()
    more = secure(authority, ca=trusted.cert_pem.bytes().decode())
    async with opened(options={"tokens": token_entry("tablet-7", "s3cret")}, **more) as way:
        shown = trusted.issue_cert("device-9.test", common_name="device-9")
        by_certificate = await way.client(ssl=trusting(authority, shown))
        by_token = await way.client(ssl=trusting(authority), additional_headers={"Authorization": "Bearer s3cret"})
        for client, names in ((by_certificate, (None, "device-9")), (by_token, ("tablet-7", None))):
            await client.send("me")
            [delivery] = await way.take(1)
            assert tuple(map(delivery.envelope.header, ("websocket.user", "websocket.certificate"))) == names
        assert (await refusal(way, ssl=trusting(authority)))[0] == 401


async def test_a_port_in_use_is_reported_and_not_affected_by_a_connection_test() -> None:
    broker = load_connection_type("websocket")
    async with opened() as way:
        with pytest.raises(NotConnected) as refused:
            await broker.connect(way.connection)
        assert refused.value.detail is Detail.REFUSED
        assert str(refused.value).endswith(f"cannot listen at 127.0.0.1:{way.port}: address already in use")
        found = await broker.examine(way.connection, "x-dry-run")
        assert "already in use" in found.note
        await way.client()
    found = await broker.examine(way.connection, "x-dry-run")
    assert (found.note, [each.error for each in found.sources[0]]) == ("", [None])
    assert [each.is_known for each in found.replies] == [False]


async def test_a_listener_can_be_reopened_at_once_at_the_same_port() -> None:
    broker = load_connection_type("websocket")
    connection = listener_connection(free_port())
    for _ in range(3):
        link = await broker.connect(connection)
        with closing(socket.create_connection(("127.0.0.1", connection.broker_uri.port))):
            await link.close()


@each_row(
    "promise",
    [
        test_a_peer_that_reads_no_output_is_disconnected,
        test_a_peer_that_reads_slowly_stays_connected,
        test_a_target_does_not_wait_and_disconnects_peers_that_read_too_slowly,
        test_a_peer_that_is_not_read_from_is_not_blamed_for_pings_and_silence,
        test_many_small_messages_at_once_are_taken_bit_by_bit,
        test_a_message_that_is_too_large_closes_the_socket_also_in_parts_or_packed,
        test_a_port_in_use_is_reported_and_not_affected_by_a_connection_test,
        test_a_listener_can_be_reopened_at_once_at_the_same_port,
    ],
)
def test_the_guarantees_apply_on_uvloop_too(promise: Callable[[], Coroutine[None, None, None]]) -> None:
    """Sockets are its business, and those of uvloop have buffers of their own."""
    uvloop.run(promise())


def test_tls_is_so_on_the_loop_of_the_service_too(authority: trustme.CA) -> None:
    uvloop.run(test_with_tls_the_listener_presents_its_certificate(authority))
    uvloop.run(test_with_a_ca_and_tokens_either_is_accepted(authority))


async def test_messages_before_a_close_frame_of_the_listener_are_taken_and_later_ones_dropped() -> None:
    async with opened(options={"maxUnsettled": "1"}) as way:
        signs: list[ReaderStatus] = []
        way.link.readers = lambda _, sign: signs.append(sign)
        client = await way.client()
        hello, more = (Frame(Opcode.TEXT, text).serialize(mask=True) for text in (b"hello", b"x" * 1000))
        client.transport.write(hello * 3)
        [first] = await way.take(1)
        [peer] = peers_of(way)
        await wait_until(lambda: len(peer._messages) == 2)
        peer.close(CloseCode.TRY_AGAIN_LATER, "peer reads too slowly")
        for _ in range(1000):
            client.transport.write(more)
        client.transport.write_eof()
        await wait_until(lambda: peer._transport is None)
        assert peer._unread == b""
        assert not signs
        first.settle()
        for _ in range(2):
            [each] = await way.take(1)
            each.settle()
        await wait_until(lambda: not peers_of(way))
        assert signs == [ReaderStatus.GONE]
