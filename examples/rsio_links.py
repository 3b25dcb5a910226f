"""How the octets of reactive-streams-io travel between a client and the service: as messages of MQTT, or over a socket.

    link = await connector("mqtt://127.0.0.1:1883")()
    await link.send(b"…")
    await link.receive()

A link is good until it breaks, and is not mended: `rsio_client` makes another one then.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

from paho.mqtt.client import Client as Mqtt
from paho.mqtt.client import MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

PATIENCE = 30.0
CLOSING = 2.0
CHUNK = 1 << 16

IN_FLIGHT = 20
"""Messages that the broker has not confirmed."""

VERSION = "rsio/0"
"""What a secure socket says that it wants to speak."""


class Link(ABC):
    """A way to the service. Its methods raise OSError once it is broken."""

    has_messages: ClassVar[bool]
    """Whether octets that are sent together come together."""

    @abstractmethod
    async def send(self, raw: bytes) -> None:
        """Send octets; waits while there is no room for them."""

    @abstractmethod
    async def receive(self) -> bytes:
        """What has come."""

    @abstractmethod
    async def close(self) -> None:
        """Leave, behind what was sent."""


class SocketLink(Link):
    """A socket at a door of the service."""

    has_messages = False

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, host: str, port: int, tls: ssl.SSLContext | None = None) -> Self:
        return cls(*await asyncio.open_connection(host, port, ssl=tls))

    async def send(self, raw: bytes) -> None:
        self._writer.write(raw)
        await self._writer.drain()

    async def receive(self) -> bytes:
        if raw := await self._reader.read(CHUNK):
            return raw
        raise ConnectionResetError("the service has closed the socket")

    async def close(self) -> None:
        # A second time is one too many for TLS in Python 3.11.2, which could not be cut off any more then.
        if not self._writer.is_closing():
            self._writer.close()
        with suppress(OSError):
            async with asyncio.timeout(CLOSING):
                await self._writer.wait_closed()
        # Where nothing is taken, nothing leaves either.
        self._writer.transport.abort()


class MqttLink(Link):
    """Two topics of its own, `<beginning>/<random>/up` and `down`: what was meant for an earlier link does not come here."""

    has_messages = True

    def __init__(self, beginning: str) -> None:
        self._place = f"{beginning}/{secrets.token_hex(8)}"
        self._loop = asyncio.get_running_loop()
        self._came: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self._mqtt = Mqtt(CallbackAPIVersion.VERSION2, f"rsio-{secrets.token_hex(8)}", reconnect_on_failure=False)
        self._mqtt.on_connect = self._on_connect
        self._mqtt.on_subscribe = self._on_subscribe
        self._mqtt.on_message = self._on_message
        self._mqtt.on_publish = self._on_publish
        self._mqtt.on_disconnect = lambda *_: self._notify(None)

    @classmethod
    async def to(cls, host: str, port: int, beginning: str) -> Self:
        link = cls(beginning)
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.to_thread(link._mqtt.connect, host, port)
                link._mqtt.loop_start()
                # The first that comes says that what follows will.
                await link.receive()
        except BaseException:
            await link.close()
            raise
        return link

    async def send(self, raw: bytes) -> None:
        await self._room.acquire()
        self._mqtt.publish(f"{self._place}/up", raw, 1)

    async def receive(self) -> bytes:
        if (raw := await self._came.get()) is not None:
            return raw
        raise ConnectionResetError("the broker has closed the link, or does not let us read")

    async def close(self) -> None:
        self._mqtt.disconnect()
        await asyncio.to_thread(self._mqtt.loop_stop)
        # The client's thread may end before it has closed its socket.
        if (socket := self._mqtt.socket()) is not None:
            socket.close()

    # These are called by the client's thread.

    def _on_connect(self, *_: Any) -> None:
        self._mqtt.subscribe(f"{self._place}/down", 1)

    def _on_subscribe(self, _client: Mqtt, _data: Any, _number: int, codes: list[Any], _properties: Any) -> None:
        self._notify(None if codes[0].is_failure else b"")

    def _on_message(self, _client: Mqtt, _data: Any, message: MQTTMessage) -> None:
        self._notify(bytes(message.payload))

    def _on_publish(self, *_: Any) -> None:
        self._loop.call_soon_threadsafe(self._room.release)

    def _notify(self, came: bytes | None) -> None:
        """Hand over what came; None says that nothing comes any more."""
        self._loop.call_soon_threadsafe(self._came.put_nowait, came)


def connector(uri: str, *, beginning: str = "rsio", ca: str | None = None) -> Callable[[], Awaitable[Link]]:
    """What makes links to `mqtt://host:port`, `tcp://host:port` or `ssl://host:port`.

    `beginning` is that of topics, `ca` a file with whom to trust. Raises ValueError for any other uri.
    """
    parts = urlsplit(uri)
    host, port = parts.hostname, parts.port
    if host is None or port is None or parts.scheme not in ("mqtt", "tcp", "ssl"):
        raise ValueError(f"found {uri!r}, expected mqtt://, tcp:// or ssl:// with a host and a port")
    if parts.scheme == "mqtt":
        return lambda: MqttLink.to(host, port, beginning)
    if parts.scheme == "tcp":
        return lambda: SocketLink.to(host, port)
    tls = ssl.create_default_context(cafile=ca)
    tls.set_alpn_protocols([VERSION])
    return lambda: SocketLink.to(host, port, tls)
