"""Clients of a WebSocket listener are limited before admission: sockets, requests, guesses."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from unittest.mock import patch

import pytest
import trustme
import uvloop
from structlog.testing import capture_logs
from websockets.exceptions import InvalidMessage, InvalidStatus

from connectivity.transports.listener import acceptor
from connectivity.transports.listener.admission import AdmissionLimits
from connectivity.transports.websocket import link as link_module
from connectivity.transports.websocket import server as server_module
from connectivity.transports.websocket.peer import MAX_OPENING, WebSocketPeer
from tests.support.brokers import free_port
from tests.support.in_process.websocket_listener import OpenListener, opened, own, pass_time, token_entry, trusting
from tests.support.wait import PATIENCE, wait_until

HERE = "127.0.0.1"
GUARDED = {"tokens": token_entry("tablet-7", "s3cret")}
RIGHT, WRONG = ({"Authorization": f"Bearer {token}"} for token in ("s3cret", "wrong"))


@asynccontextmanager
async def raw(way: OpenListener) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", way.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def reasons(way: OpenListener) -> dict[str, int]:
    """Return the logged reasons of refusals with their numbers."""
    with capture_logs() as lines:
        pass_time(way.link, 0)
    return {line["reason"]: line["count"] for line in lines if line["event"] == "peers refused"}


def sockets(way: OpenListener) -> list[WebSocketPeer]:
    return list(way.link._sockets)


# ── sockets ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def tls_handshakes_are_counted() -> None:
    authority = trustme.CA()
    more = {"uri_scheme": "wss", "credentials": own(authority.issue_cert("localhost"))}
    async with secure(more) as way:
        async with raw(way), raw(way), raw(way):
            await wait_until(lambda: len(sockets(way)) == 3)
            with pytest.raises((OSError, InvalidMessage)):
                await way.client(ssl=trusting(authority))
            assert reasons(way) == {"too many sockets": 1}
        await wait_until(lambda: not sockets(way))
        await way.client(ssl=trusting(authority))


@asynccontextmanager
async def secure(more: dict[str, Any]) -> AsyncIterator[OpenListener]:
    uri = f"{more.pop('uri_scheme')}://127.0.0.1:{free_port()}"
    async with opened(options={"maxPeers": "1"}, uri=uri, **more) as way:
        yield way


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_sockets_in_a_tls_handshake_are_bounded_like_all_others(
    run: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "EXTRA_SOCKETS", 2)
    run(tls_handshakes_are_counted())


async def test_a_listener_closes_at_once_while_clients_are_in_a_tls_handshake() -> None:
    authority = trustme.CA()
    async with secure({"uri_scheme": "wss", "credentials": own(authority.issue_cert("localhost"))}) as way:
        async with raw(way) as (reader, _):
            await wait_until(lambda: sockets(way))
            before = asyncio.get_running_loop().time()
            await way.link.close()
            assert asyncio.get_running_loop().time() - before < 1
            assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        assert sockets(way) == []


async def test_a_client_that_fails_its_tls_handshake_is_not_counted_any_more() -> None:
    authority = trustme.CA()
    async with secure({"uri_scheme": "wss", "credentials": own(authority.issue_cert("localhost"))}) as way:
        for _ in range(3):
            with pytest.raises((ssl.SSLError, OSError)):
                await way.client(ssl=ssl.create_default_context())
            await wait_until(lambda: not sockets(way))
        await way.client(ssl=trusting(authority))


async def test_an_address_has_no_more_sockets_than_the_option_allows() -> None:
    async with opened(options={"maxPeersPerAddress": "2"}) as way:
        first = await way.client()
        async with raw(way):
            await wait_until(lambda: len(sockets(way)) == 2)
            with pytest.raises((OSError, InvalidMessage)):
                await way.client()
            assert reasons(way) == {"too many sockets of one address": 1}
        await wait_until(lambda: len(sockets(way)) == 1)
        await way.client()
        await first.close()


async def test_the_options_of_addresses_limit_the_accepted_sockets() -> None:
    options = {"maxPeers": "7", "maxPeersPerAddress": "3", "maxAcceptsPerAddress": "2"}
    for given, expected in ((options, AdmissionLimits(107, 3, 2)), ({}, AdmissionLimits(10_100, 0, 1000))):
        async with opened(options=given) as way:
            assert way.link._admission._limits == expected


async def test_a_socket_with_one_of_the_last_descriptors_is_closed() -> None:
    async with opened() as way:
        await way.client()
        with patch.object(acceptor, "is_reserved", lambda _: True), pytest.raises((OSError, InvalidMessage)):
            await way.client()
        assert reasons(way) == {"the process has too few file descriptors left": 1}
        await way.client()


async def test_after_a_socket_with_one_of_the_last_descriptors_others_wait() -> None:
    async with opened() as way:
        present = await way.client()
        with patch.object(acceptor, "is_reserved", lambda _: True), patch.object(acceptor, "FULL_PAUSE", 3600.0):
            async with raw(way):
                await wait_until(lambda: bool(reasons(way)))
                async with raw(way):
                    for _ in range(20):
                        await (await present.ping())
                    assert reasons(way) == {}, "the second socket is not accepted yet"


# ── the opening request ───────────────────────────────────────────────────────────────────────────────────────────────


async def answer(way: OpenListener, *parts: bytes) -> bytes:
    async with raw(way) as (reader, writer):
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await asyncio.wait_for(reader.read(), PATIENCE)


@pytest.mark.parametrize(
    "parts",
    [
        [b"GET /twins HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (it, b"x" * 8000) for it in range(100)) + b"\r\n"],
        [b"GET /twins HTTP/1.1\r\n", *(b"X-%d: %s\r\n" % (it, b"x" * 500) for it in range(100))],
        [b"GET /" + b"x" * 8000 + b" HTTP/1.1\r\nX: " + b"x" * 8000 + b"\r\nY: " + b"x" * 8000 + b"\r\n\r\n"],
    ],
)
async def test_a_request_of_more_than_16_kib_is_refused_whole_or_in_parts(parts: list[bytes]) -> None:
    async with opened() as way:
        # Or a reset, since the rest of the request is not read.
        with suppress(ConnectionError):
            assert (await answer(way, *parts)).startswith(b"HTTP/1.1 431 ")
        await wait_until(lambda: not way.link.peers)
        for peer in sockets(way):
            assert peer.times.closing is not None
        await way.client()


async def test_an_incomplete_request_is_refused_at_16_kib() -> None:
    begin = b"GET /twins HTTP/1.1\r\n"
    lines = b"X: y\r\n" * 100
    rest = b"Z: " + b"x" * 8000 + b"\r\nW: "
    sent = begin + lines + rest
    async with opened() as way, raw(way) as (reader, writer):
        writer.write(sent + b"x" * (MAX_OPENING - len(sent)))
        response = await asyncio.wait_for(reader.read(), PATIENCE)
        assert response.startswith(b"HTTP/1.1 431 ")
        assert response.endswith(b"The request is longer than 16384 bytes.\n")


@pytest.mark.parametrize(
    "request_line",
    [b"GET /twins HTTP/1.0", b"HEAD /twins HTTP/1.1", b"POST /twins HTTP/1.1", b"GET /" + b"x" * 9000 + b" HTTP/1.1"],
    ids=["HTTP/1.0", "HEAD", "POST", "long"],
)
async def test_a_request_that_is_not_a_get_of_http_1_1_is_refused_with_400(request_line: bytes) -> None:
    async with opened() as way:
        response = await answer(way, request_line + b"\r\nHost: localhost\r\n\r\n")
        assert response.startswith(b"HTTP/1.1 400 ")
        assert b"Expected a GET request of HTTP/1.1" in response
        await wait_until(lambda: not sockets(way))


async def test_a_request_up_to_16_kib_is_admitted_with_frames_behind_it() -> None:
    async with opened() as way:
        sent = {f"X-{number}": "x" * 4000 for number in range(3)}
        client = await way.client(additional_headers={**sent, "X-Last": "x" * (MAX_OPENING - 3 * 4000 - 1000)})
        await client.send("x" * 100_000)
        [delivery] = await way.take(1)
        assert len(delivery.envelope.payload) == 100_000


# ── wrong tokens ──────────────────────────────────────────────────────────────────────────────────────────────────────


def delays(way: OpenListener) -> list[float]:
    """Return the delays of the responses to wrong tokens, in seconds, sorted."""
    now = asyncio.get_running_loop().time()
    return sorted(round(peer._delayed.when() - now, 1) for peer in sockets(way) if peer._delayed is not None)


def fail(way: OpenListener, times: int) -> None:
    """Let wrong tokens have come from this machine."""
    for _ in range(times):
        way.link._delays.record_failure(HERE)
        way.link._delays.record_answer(HERE)


async def test_a_wrong_token_waits_for_its_refusal() -> None:
    async with opened(options=GUARDED) as way:
        fail(way, 9)
        async with raw(way) as (_, writer):
            writer.write(upgrade("wrong"))
            await wait_until(lambda: delays(way))
            assert 3 < delays(way)[0] <= 4
            # A right one never waits.
            await way.client(additional_headers=RIGHT)
            assert delays(way) != []
        await wait_until(lambda: delays(way) == [])
        assert await status_of(way, {}) == 401


async def test_a_delayed_refusal_is_sent() -> None:
    async with opened(options=GUARDED) as way:
        assert await status_of(way, WRONG) == 401
        assert (failures(way), way.link._delays._peers[HERE].waiting) == (1, 0)


def failures(way: OpenListener) -> int:
    found = way.link._delays._peers.get(HERE)
    return 0 if found is None else found.failures


async def status_of(way: OpenListener, headers: dict[str, str]) -> int:
    with pytest.raises(InvalidStatus) as refused:
        await way.client(additional_headers=headers)
    return refused.value.response.status_code


async def test_no_token_is_checked_while_many_wrong_ones_of_its_address_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "MOST_DELAYED", 2)
    async with opened(options=GUARDED) as way:
        fail(way, 9)
        async with AsyncExitStack() as clients:
            for _ in range(2):
                _, writer = await clients.enter_async_context(raw(way))
                writer.write(upgrade("wrong"))
            await wait_until(lambda: way.link._delays.is_full(HERE))
            assert [await status_of(way, headers) for headers in (RIGHT, WRONG)] == [429, 429]
        # Clients that disconnected before their delay ended are removed.
        await wait_until(lambda: not way.link._delays.is_full(HERE))
        await way.client(additional_headers=RIGHT)


def upgrade(token: str, *more: bytes) -> bytes:
    lines = [
        b"GET /twins HTTP/1.1",
        b"Host: listener",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        b"Authorization: Bearer " + token.encode(),
        b"",
        b"",
    ]
    return b"\r\n".join(lines) + b"".join(more)


async def test_input_during_a_pending_refusal_is_not_processed() -> None:
    async with opened(options=GUARDED) as way, raw(way) as (reader, writer):
        writer.write(upgrade("wrong", b"\x81\x80abcd"))
        await wait_until(lambda: delays(way))
        [peer] = sockets(way)
        writer.write(b"\x81\x80abcd" * 100_000)
        await wait_until(lambda: not peer.times.is_reading)
        response = await asyncio.wait_for(reader.read(100), PATIENCE)
        assert response.startswith(b"HTTP/1.1 401 ")
        assert (way.taker.deliveries, peer.is_plain) == ([], True)


async def test_a_client_without_a_token_is_refused_at_once() -> None:
    async with opened(options=GUARDED) as way:
        for _ in range(3):
            assert await status_of(way, {}) == 401
        assert failures(way) == 0
