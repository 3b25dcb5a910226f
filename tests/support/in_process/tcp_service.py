"""A service in this process with only a TCP listener; its clients are bare sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self, cast

from connectivity.connections.lifecycle import Status
from connectivity.connections.model import Connection
from connectivity.management.supervisor import Supervisor
from connectivity.sessions.reactive_streams_io.handler import RsioHandler
from connectivity.sessions.reactive_streams_io.peer import PeerSession
from connectivity.sessions.reactive_streams_io.sessions import RsioSessions
from connectivity.transports.base import ConsumeOptions
from connectivity.transports.tcp.link import TcpLink
from mappings.reactive_streams_io.decoder import Decoder
from mappings.reactive_streams_io.frames import CORE, Frame
from mappings.reactive_streams_io.limits import EndpointLimits
from tests.support.brokers import free_port
from tests.support.in_process.reactive_streams_io import RsioHarness, definition, raw
from tests.support.in_process.running_connection import AT_ONCE
from tests.support.in_process.service import NOW, OWNER
from tests.support.wait import PATIENCE, wait_until

SERVER_HELLO = "02 00 03 01 02 03"
MARK = "11 0d 74 63 6b 2f 72 61 6e 67 65 3f 6e 3d 30 7f 00"
"""A subscribe to an empty stream, with the number 127."""
MARKED = "81 7f 00 86 7f"
MOST_READ = 1 << 20


def document(port: int, **more: Any) -> dict[str, Any]:
    """Return a connection that listens at a port."""
    return {
        "id": "landing",
        "connectionType": "tcp",
        "connectionStatus": "open",
        "uri": f"tcp://127.0.0.1:{port}",
        "mappingDefinitions": definition(),
        "sources": [{"addresses": ["rsio"], "authorizationContext": [OWNER], "payloadMapping": ["rsio"]}],
        **more,
    }


class Caller:
    """A client: the bytes that it sends and receives."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sizes: dict[int, int] | None = None
    ) -> None:
        """`sizes`: the element sizes of resumed streams."""
        self.reader, self.writer = reader, writer
        self.received: list[Frame] = []
        """The received frames."""
        # A resumed session has begun its streams on another connection.
        self._decoder = Decoder(EndpointLimits(), CORE | {0x02, 0xA0, 0xA2, 0xA3, 0xA9}, 0x02, sizes or {})

    @classmethod
    async def at(cls, port: int, sizes: dict[int, int] | None = None, **options: Any) -> Self:
        made = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port, **options), PATIENCE)
        return cls(*made, sizes)

    def send(self, *parts: str | bytes | Frame) -> None:
        self.writer.write(raw(*parts))

    async def send_slowly(self, parts: str | bytes) -> None:
        """Send one byte at a time."""
        for byte in raw(parts):
            self.writer.write(bytes([byte]))
            await self.writer.drain()
            await asyncio.sleep(0)

    def pause_reading(self) -> None:
        """Stop reading, so that the buffers fill up and the service cannot write."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    @property
    def _transport(self) -> asyncio.Transport:
        # uvloop's transport has all methods, but is not derived from asyncio's.
        return cast(asyncio.Transport, self.writer.transport)

    def keeps_little(self) -> None:
        """Set small socket buffers, so that unread bytes stay with the service."""
        squeeze(self.writer.transport)

    async def take(self, number: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(number), PATIENCE)

    async def take_some(self, most: int) -> bytes:
        """Return the next bytes, at most `most`. Raises EOFError if the peer has closed."""
        found = await asyncio.wait_for(self.reader.read(most), PATIENCE)
        if not found:
            raise EOFError("the peer has closed the connection")
        return found

    async def expect(self, expected: str | bytes) -> None:
        """Check that these are the next bytes."""
        wanted = raw(expected)
        found = await self.take(len(wanted))
        assert found == wanted, f"{found.hex(' ')} is not {wanted.hex(' ')}"

    async def receives_nothing_more(self) -> None:
        """Check that no bytes arrive before the response to a new request."""
        self.send(MARK)
        await self.expect(MARKED)

    async def framed(self, is_enough: Callable[[list[Frame]], bool]) -> list[Frame]:
        """Return the next frames, as soon as there are enough."""
        found: list[Frame] = []
        while not is_enough(found):
            found += self._decoder.feed(await asyncio.wait_for(self.reader.read(MOST_READ), PATIENCE))
        self.received += found
        return found

    async def rest(self) -> bytes:
        """Return all bytes until the peer closes, and close too."""
        received = await asyncio.wait_for(self.reader.read(), PATIENCE)
        if not self.writer.is_closing():
            self.writer.close()
        return received

    async def goodbye(self, reason: str = "") -> str:
        """Check that the next bytes are a goodbye with a reason that begins so, and that the socket is closed.

        Returns the reason.
        """
        received = await self.rest()
        assert received[:1] == b"\x03", received.hex(" ")
        position = 2 if received[1] < 0x80 else 3
        found = received[position:].decode()
        assert len(found.encode()) == (received[1] & 0x7F) + (received[2] << 7 if position == 3 else 0)
        assert found.startswith(reason), found
        return found

    async def leave(self) -> None:
        self.writer.transport.abort()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


def squeeze(transport: asyncio.BaseTransport) -> None:
    """Set small buffers of a socket."""
    own = transport.get_extra_info("socket")
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


class TcpService:
    """A service with one TCP listener. The harness has the clock of the sessions."""

    def __init__(self, rsio_harness: RsioHarness, **more: Any) -> None:
        self.rsio_harness = rsio_harness
        self.connection = Connection.model_validate(document(free_port(), **more))
        self.port = self.connection.broker_uri.port
        self.supervisor = Supervisor(
            self.connection,
            rsio_harness.assembly,
            rsio_harness.store,
            rsio_harness.monitor,
            pauses=AT_ONCE,
            # Parts of a stream are not messages, so the limit does not apply to them.
            consume=ConsumeOptions(1000),
            now=lambda: NOW,
        )
        self._callers: list[Caller] = []

    @property
    def link(self) -> TcpLink:
        found = self.supervisor.clients[0].link
        assert isinstance(found, TcpLink)
        return found

    async def open(self) -> None:
        self.supervisor.open()
        await wait_until(lambda: self.supervisor.status is Status.OPEN)

    async def caller(self, **options: Any) -> Caller:
        """Return a connected client, which has received nothing."""
        made = await Caller.at(self.port, **options)
        self._callers.append(made)
        return made

    async def greeted(self, hello: str = "01 00 00", **options: Any) -> Caller:
        """Return a client that has exchanged hellos."""
        made = await self.caller(**options)
        made.send(hello)
        await made.expect(SERVER_HELLO)
        return made

    @property
    def clients(self) -> list[PeerSession]:
        """The sessions with a connection."""
        return [each for room in self._registries for each in room._peers.values()]

    async def keeps_only(self, number: int) -> None:
        """Wait until `number` clients are connected, and no state of other clients is left."""
        link = self.link
        await wait_until(lambda: len(link.peers) == len(link._sockets) == number)
        await wait_until(lambda: len(self.clients) == sum(len(room._at) for room in self._registries) == number)
        assert sum(len(room._offers) for room in self._registries) == number

    @property
    def _registries(self) -> list[RsioSessions]:
        return list(cast(RsioHandler, self.rsio_harness.handlers["reactive_streams_io"])._registries.values())

    def keeps_little(self) -> None:
        """Set small socket buffers for all connected clients, so that unread bytes stay with the service."""
        for peer in self.link.peers.values():
            assert peer._transport is not None
            squeeze(peer._transport)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock of the sessions and sweep."""
        self.rsio_harness.clock.advance(seconds)
        self.rsio_harness.sweep_sessions()

    async def close(self) -> None:
        # The server waits for open sockets.
        for caller in self._callers:
            await caller.leave()
        await self.supervisor.close()
        await self.rsio_harness.close()


@asynccontextmanager
async def open_tcp_service(rsio_harness: RsioHarness | None = None, **more: Any) -> AsyncIterator[TcpService]:
    made = TcpService(rsio_harness or RsioHarness(), **more)
    try:
        await made.open()
        yield made
    finally:
        await made.close()
