"""The socket of an MQTT link on uvloop, the service's event loop."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvloop
from structlog.testing import capture_logs

from connectivity.connections.model import Connection
from connectivity.errors import Detail, LinkError
from connectivity.transports.mqtt.async_client import READ_SIZE
from connectivity.transports.mqtt.connector import connect
from connectivity.transports.mqtt.link import MqttLink
from connectivity.transports.mqtt.mqtt311 import Mqtt311
from tests.support.wait import PATIENCE

CONNACK, SUBACK, PINGRESP = b"\x20\x02\x00\x00", b"\x90\x03\x00\x01\x01", b"\xd0\x00"
DISCONNECT = b"\xe0\x00"
RESET = struct.pack("ii", 1, 0)
"""`SO_LINGER` with which closing resets the link."""


@asynccontextmanager
async def linked(keep_alive: str = "1m", login_seconds: float = 0) -> AsyncIterator[tuple[MqttLink, socket.socket]]:
    """A link, and its broker's end of the socket. The broker takes so long for the login."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        document = {
            "id": "lab",
            "connectionType": "mqtt",
            "connectionStatus": "open",
            "uri": f"tcp://127.0.0.1:{listening.getsockname()[1]}",
            "sources": [{"addresses": ["lab/in"], "qos": 1, "authorizationContext": ["lab:all"]}],
            "specificConfig": {"keepAlive": keep_alive},
        }
        connecting = asyncio.create_task(connect(Mqtt311(), Connection.model_validate(document)))
        broker, _ = await loop.sock_accept(listening)
        with broker:
            for answer, seconds in ((CONNACK, login_seconds), (SUBACK, 0)):
                await loop.sock_recv(broker, 1000)
                await asyncio.sleep(seconds)
                await loop.sock_sendall(broker, answer)
            yield await connecting, broker


async def lost_behind(last_words: bytes) -> LinkError:
    """Return the error of a link whose broker sends these bytes and resets it at once."""
    async with linked() as (link, broker):
        broker.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        broker.send(last_words)
        broker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    return await asyncio.wait_for(link.lost, PATIENCE)


async def test_an_internal_error_while_reading_ends_the_link() -> None:
    """The packets behind it are lost, and what follows would be read from within a packet."""

    def fail(_: object) -> None:
        raise ZeroDivisionError("an internal error")

    async with linked() as (link, broker):
        link._in.on_arrival = fail
        await asyncio.get_running_loop().sock_sendall(broker, b"\x30\x0a\x00\x06lab/inhi" + PINGRESP[:1])
        with capture_logs() as lines:
            error = await asyncio.wait_for(link.lost, PATIENCE)
    assert (error.detail, error.text) == (Detail.CONNECTING, "reading failed: ZeroDivisionError")
    assert [line["event"] for line in lines] == ["unexpected error while reading"]


async def test_a_login_may_take_longer_than_the_keep_alive() -> None:
    """The broker checks a password elsewhere, and sends nothing meanwhile."""
    async with linked(keep_alive="1s", login_seconds=2) as (link, _):
        assert not link.lost.done()
        await link.close()


async def test_a_canceled_close_closes_the_socket() -> None:
    """The broker answers DISCONNECT by closing its side, which this one does not."""
    async with linked() as (link, broker):
        closing = asyncio.create_task(link.close())
        assert await asyncio.get_running_loop().sock_recv(broker, 1000) == DISCONNECT
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await link.close()
        assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(broker, 1000), PATIENCE) == b""


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("packets", [0, 1, READ_SIZE * 2 // len(PINGRESP)])
def test_a_connection_reset_is_reported_even_after_unread_bytes(run: object, packets: int) -> None:
    """libuv stops watching a socket with an error, and uvloop reports it once, also before unread bytes."""
    assert callable(run)
    error = run(lost_behind(PINGRESP * packets))
    assert (error.detail, error.text) == (Detail.CONNECTING, "the link was lost: Connection reset by peer")
