"""reactive-streams-io through a WebSocket listener: binary messages both ways, each socket a session.

Case numbers are those of the cases for reactive-streams-io.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from mappings.reactive_streams_io.decoder import Decoder
from mappings.reactive_streams_io.frames import CORE, Frame, OnComplete, OnNext, ServerHello
from mappings.reactive_streams_io.limits import EndpointLimits
from tests.support.in_process.reactive_streams_io import HISTORY, H, RsioHarness, definition, raw, revisions, subscribe
from tests.support.in_process.service import OWNER
from tests.support.in_process.websocket_service import WebSocketService
from tests.support.wait import PATIENCE, wait_until

PATH = "/streams"
SERVER_HELLO = raw("02 00 03 01 02 03")
RSIO = Subprotocol("rsio.v0")


@pytest.fixture
async def websocket_service() -> AsyncIterator[WebSocketService]:
    rsio_harness = await RsioHarness.filled(revisions=3)
    sources = [
        {"addresses": [PATH], "authorizationContext": [OWNER], "payloadMapping": ["rsio"]},
        {"addresses": ["/twins"], "authorizationContext": [OWNER]},
    ]
    made = WebSocketService(rsio_harness, sources=sources, mappingDefinitions=definition())
    await made.open()
    yield made
    await made.close()


async def client_with_protocols(
    websocket_service: WebSocketService, path: str = PATH, *offered: Subprotocol
) -> ClientConnection:
    """A client that offers subprotocols, the protocol's own unless others are named."""
    made = await connect(
        f"ws://127.0.0.1:{websocket_service.port}{path}",
        subprotocols=list(offered or (RSIO,)),
        proxy=None,
        open_timeout=PATIENCE,
    )
    websocket_service.keep(made)
    return made


async def receive(client: ClientConnection) -> bytes:
    message = await asyncio.wait_for(client.recv(), PATIENCE)
    assert isinstance(message, bytes), "bytes are sent as binary messages"
    return message


async def ended(client: ClientConnection) -> tuple[bytes, int | None]:
    """Return all that a client still receives, and the close code of its socket."""
    rest = b""
    with suppress(ConnectionClosed):
        while True:
            rest += await receive(client)
    return rest, client.close_code


async def conversation(client: ClientConnection) -> list[Frame]:
    """Subscribe to a whole history; return the received frames."""
    await client.send(raw(H, subscribe(HISTORY, 1, 10)))
    reader, found = Decoder(EndpointLimits(), CORE | {0x02}, 0x02, {}), list[Frame]()
    while not any(isinstance(frame, OnComplete) for frame in found):
        found += reader.feed(await receive(client))
    return found


async def test_each_socket_that_subscribes_to_a_history_receives_all_of_it(websocket_service: WebSocketService) -> None:
    for client in (
        await websocket_service.client(PATH),
        await websocket_service.client(PATH),
        await client_with_protocols(websocket_service),
    ):
        frames = await conversation(client)
        assert isinstance(frames[0], ServerHello)
        assert revisions([frame.element for frame in frames if isinstance(frame, OnNext)]) == [1, 2, 3]


async def test_the_subprotocol_is_used_if_both_sides_support_it(websocket_service: WebSocketService) -> None:
    assert (await client_with_protocols(websocket_service)).subprotocol == RSIO
    assert (await client_with_protocols(websocket_service, PATH, Subprotocol("mqtt"), RSIO)).subprotocol == RSIO
    assert (await client_with_protocols(websocket_service, PATH, Subprotocol("mqtt"))).subprotocol is None
    assert (await client_with_protocols(websocket_service, "/twins")).subprotocol is None
    assert (await websocket_service.client(PATH)).subprotocol is None


async def test_case_h02_with_the_subprotocol_the_service_sends_first_and_does_not_wait_forever(
    websocket_service: WebSocketService,
) -> None:
    silent, other = await client_with_protocols(websocket_service), await client_with_protocols(websocket_service)
    assert await receive(silent) == SERVER_HELLO
    await other.send(raw(H))
    assert await receive(other) == SERVER_HELLO
    websocket_service.harness.clock.advance(11)
    websocket_service.harness.sweep_sessions()
    received, code = await ended(silent)
    assert received.startswith(b"\x03")
    assert b"protocol error: no hello in time" in received
    assert code == 1002
    await other.send(raw(subscribe("tck/range?n=0", 1, 0)))
    assert await receive(other) == raw("81 01 00 86 01")


async def test_without_the_subprotocol_the_client_sends_first_at_any_time(
    websocket_service: WebSocketService,
) -> None:
    client = await websocket_service.client(PATH)
    websocket_service.harness.clock.advance(1000)
    websocket_service.harness.sweep_sessions()
    await client.send(raw(H))
    assert await receive(client) == SERVER_HELLO
    websocket_service.harness.clock.advance(1000)
    websocket_service.harness.sweep_sessions()
    await client.send(raw(subscribe("tck/range?n=0", 1, 0)))
    assert await receive(client) == raw("81 01 00 86 01"), "a socket that is silent is still there"


@pytest.mark.parametrize(
    ("message", "found", "code"),
    [
        pytest.param(raw("12 01"), b"a message that ends inside a frame", 1002, id="a cut frame"),
        pytest.param(raw("55"), b"an unknown frame code", 1002, id="V07"),
        pytest.param(raw(H), b"a second hello", 1002, id="H10"),
        pytest.param(raw("12 01 01").decode(), b"a text message instead of a binary one", 1003, id="a text"),
    ],
)
@pytest.mark.parametrize("is_agreed", [True, False])
async def test_a_protocol_violation_is_reported_by_a_goodbye_and_the_close_code(
    websocket_service: WebSocketService, is_agreed: bool, message: bytes | str, found: bytes, code: int
) -> None:
    client = await (client_with_protocols(websocket_service) if is_agreed else websocket_service.client(PATH))
    await client.send(raw(H))
    assert await receive(client) == SERVER_HELLO
    await client.send(message)
    received, closed = await ended(client)
    assert received.startswith(b"\x03")
    assert b"protocol error: " + found in received
    assert closed == code


async def test_case_h09_a_peer_that_does_not_start_with_hello_gets_an_error(
    websocket_service: WebSocketService,
) -> None:
    client = await websocket_service.client(PATH)
    await client.send(raw("12 05 0a"))
    received, code = await ended(client)
    assert b"protocol error: no session" in received
    assert code == 1002


async def test_a_first_message_that_is_text_is_reported_as_such(websocket_service: WebSocketService) -> None:
    client = await websocket_service.client(PATH)
    await client.send('{"type": "subscribe"}')
    received, code = await ended(client)
    assert b"protocol error: a text message instead of a binary one" in received
    assert code == 1003


async def test_case_g01_a_goodbye_is_answered_and_the_socket_closed(websocket_service: WebSocketService) -> None:
    client = await client_with_protocols(websocket_service)
    assert await receive(client) == SERVER_HELLO
    await client.send(raw(H, subscribe("tck/never", 1, 1)))
    assert await receive(client) == raw("81 01 00")
    await client.send(raw("03 04 64 6f 6e 65"))
    assert await ended(client) == (raw("03 02 6f 6b"), 1000)
    await wait_until(lambda: list(websocket_service.harness.streams) == [])


async def test_case_d22_with_its_socket_all_streams_of_a_client_end(websocket_service: WebSocketService) -> None:
    client = await client_with_protocols(websocket_service)
    await client.send(raw(H, *(subscribe("tck/never", number, 1) for number in (1, 2, 3))))
    await wait_until(lambda: len(list(websocket_service.harness.streams)) == 3)
    await client.close()
    await wait_until(lambda: not list(websocket_service.harness.streams))
