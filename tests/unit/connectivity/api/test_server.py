"""The HTTP server around the application: slow requests, many requests, and invalid HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from connectivity.api import server as server_module
from connectivity.api.responses import ResponseMiddleware
from connectivity.api.server import server_of
from connectivity.config.api_settings import ApiSettings
from tests.support.api.fake_management import app_of, management_with_connection
from tests.support.wait import PATIENCE

GET = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"


@asynccontextmanager
async def served(app: ASGIApp | None = None, **settings: Any) -> AsyncIterator[int]:
    """The port of a server that runs meanwhile."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        app = app or app_of(management_with_connection(), **settings)
        server = server_of(app, ApiSettings(**settings))
        running = asyncio.create_task(server.serve([listening]))
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            await running


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """Read everything until the server closes the connection."""
    async with asyncio.timeout(PATIENCE):
        return await reader.read()


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """The next answer of a connection that stays open."""
    async with asyncio.timeout(PATIENCE):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
        return int(head[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("127.0.0.1", "198.51.100.9"),
        ("127.0.0.2", "198.51.100.9"),
        ("::1", "198.51.100.9"),
        ("::ffff:127.0.0.1", "198.51.100.9"),
        ("192.0.2.4", "192.0.2.4"),
        ("::ffff:192.0.2.4", "::ffff:192.0.2.4"),
    ],
)
async def test_only_a_proxy_on_this_machine_names_the_address_of_a_client(
    peer: str, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Images of web applications may set it.
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    found = []

    async def application(scope: Any, *_: object) -> None:
        found.append(scope["client"][0])

    config = server_of(application, ApiSettings()).config
    config.load()
    headers = [(b"x-forwarded-for", b"203.0.113.7, 198.51.100.9")]
    scope: Any = {"type": "http", "client": (peer, 1), "raw_path": b"/", "headers": headers}
    application_of_server: Any = config.loaded_app
    await application_of_server(scope, None, None)
    assert found == [client]


async def test_several_requests_share_a_connection_and_no_response_names_the_server_software() -> None:
    async with served() as port, connected(port) as (reader, writer):
        for _ in range(3):
            writer.write(GET)
            status, headers, body = await answer(reader)
            assert (status, json.loads(body)) == (200, {"status": "live"})
            assert "server" not in headers


@pytest.mark.parametrize("begun", [b"", b"GET /health/live HT", b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n"])
async def test_a_head_that_does_not_arrive_is_not_waited_for(begun: bytes) -> None:
    async with served(read_timeout="200ms") as port, connected(port) as (reader, writer):
        writer.write(begun)
        assert await read_to_end(reader) == b""


def test_a_connection_waits_for_its_next_request_as_long_as_for_its_first() -> None:
    assert (
        server_of(app_of(management_with_connection()), ApiSettings(read_timeout="75s")).config.timeout_keep_alive == 75
    )


async def test_a_head_that_trickles_is_not_waited_for_either() -> None:
    async with served(read_timeout="200ms") as port, connected(port) as (reader, writer):
        writer.write(GET)
        assert (await answer(reader))[0] == 200
        reading = asyncio.create_task(read_to_end(reader))
        for byte in b"GET /health/live HTTP/1.1\r\nx: " + b"y" * 10_000:
            writer.write(bytes([byte]))
            done, _ = await asyncio.wait([reading], timeout=0.02)
            if done:
                break
        with contextlib.suppress(ConnectionResetError):
            # So the system calls a connection that was closed while more was on its way.
            assert await reading == b""
        assert reading.done(), "it was closed"


async def test_bytes_after_a_body_with_two_lengths_are_not_read_as_a_request() -> None:
    head = b"POST /api/2/connections HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    async with served() as port, connected(port) as (reader, writer):
        writer.write(head + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + GET)
        response = await read_to_end(reader)
    assert response.startswith(b"HTTP/1.1 400 ")
    assert b"api:request.invalid" in response
    assert response.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    ("target", "header", "expected"),
    [
        ("http://localhost/health/live", "localhost", 200),
        ("HTTP://localhost:80/health/%6Cive", "evil.example", 200),
        ("http://localhost/health/live", "", 200),
        ("http://localhost", "localhost", 404),
        ("http://localhost/api/2/connections?ids-only=true", "localhost", 200),
        ("http://evil.example/api/2/connections", "localhost", 403),
        ("http:///health/live", "localhost", 404),
    ],
)
async def test_rfc_9112_3_2_2_an_absolute_target_is_one_with_its_path_and_its_host(
    target: str, header: str, expected: int
) -> None:
    async with served() as port, connected(port) as (reader, writer):
        writer.write(f"GET {target} HTTP/1.1\r\nhost: {header}\r\n\r\n".encode())
        assert (await answer(reader))[0] == expected


async def test_a_body_that_trickles_is_answered_with_408() -> None:
    head = b"POST /api/2/connections HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    async with served(read_timeout="200ms") as port, connected(port) as (reader, writer):
        writer.write(head + b"content-length: 99\r\n\r\n{")
        status, _, body = await answer(reader)
        assert (status, json.loads(body)["error"]) == (408, "api:body.timeout")


@pytest.mark.parametrize(
    "garbage",
    [
        *(b"\x16\x03\x01\x02\x00", b"hello\r\n\r\n", b"GET /a b HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"),
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    ],
)
async def test_invalid_http_gets_a_regular_error_response(garbage: bytes) -> None:
    async with served() as port, connected(port) as (reader, writer):
        writer.write(garbage + b"\r\n\r\n")
        head, _, body = (await read_to_end(reader)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"application/json" in head
        assert json.loads(body)["error"] == "api:request.invalid"


async def test_garbage_after_a_request_ends_the_connection() -> None:
    async with served() as port, connected(port) as (reader, writer):
        writer.write(GET + b"\x00\x01\x02\r\n\r\n")
        assert (await read_to_end(reader)).startswith(b"HTTP/1.1 200 ")


async def test_connections_beyond_the_bound_are_closed_and_the_others_continue() -> None:
    async with served(max_clients=2) as port, connected(port) as first, connected(port) as second:
        for reader, writer in (first, second):
            writer.write(GET)
            assert (await answer(reader))[0] == 200
        async with connected(port) as (reader, _):
            assert await read_to_end(reader) == b""
        first[1].write(GET)
        assert (await answer(first[0]))[0] == 200


async def test_an_upgrade_to_a_websocket_is_no_more_than_a_request() -> None:
    head = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    async with served() as port, connected(port) as (reader, writer):
        writer.write(head)
        assert (await answer(reader))[0] == 200


async def test_a_body_of_very_many_chunks_leaves_turns_to_other_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "TURN_SECONDS", 0.0)
    turn = 0
    parts: list[tuple[int, int]] = []
    take = H11Protocol.data_received

    def taken(protocol: H11Protocol, data: bytes) -> None:
        parts.append((turn, len(data)))
        take(protocol, data)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(H11Protocol, "data_received", taken)
    chunks = b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"
    counting = asyncio.create_task(count_turns())
    async with served() as port, connected(port) as (reader, writer):
        writer.write(
            b"POST /api/2/connections HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n" + chunks
        )
        assert (await answer(reader))[0] == 400
        writer.write(GET)
        assert (await answer(reader))[0] == 200
    counting.cancel()
    assert max(size for _, size in parts) <= server_module.PART_SIZE
    assert sum(size for _, size in parts) > len(chunks)
    assert len({turn for turn, _ in parts}) > len(chunks) // server_module.PART_SIZE // 2


async def test_a_pipelined_body_of_very_many_chunks_is_parsed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    handle = H11Protocol.handle_events

    def handled(protocol: H11Protocol) -> None:
        sizes.append(len(protocol.conn.trailing_data[0]))
        handle(protocol)

    monkeypatch.setattr(H11Protocol, "handle_events", handled)
    post = (
        b"POST /api/2/connections HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    async with served() as port, connected(port) as (reader, writer):
        writer.write(GET + post + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n" + GET)
        assert [(await answer(reader))[0] for _ in range(3)] == [200, 400, 200]
    assert max(sizes) <= 2 * server_module.PART_SIZE


async def test_a_request_that_takes_longer_than_the_stop_gets_an_error_response(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "_GRACE_SECONDS", 0.05)
    has_begun = asyncio.Event()

    async def wait_forever(*_: object) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    async with contextlib.AsyncExitStack() as stack:
        async with served(ResponseMiddleware(wait_forever)) as port:
            reader, writer = await stack.enter_async_context(connected(port))
            writer.write(b"PUT /api/2/connections/depot HTTP/1.1\r\nhost: localhost\r\n\r\n")
            async with asyncio.timeout(PATIENCE):
                await has_begun.wait()
        status, _, body = await answer(reader)
    assert (status, json.loads(body)["error"]) == (503, "api:service.stopping")
    assert "Exception in ASGI application" not in caplog.text
