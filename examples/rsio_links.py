"""Links that carry reactive-streams-io to the service: MQTT messages, or a TCP connection.

    link = await connector("mqtt://127.0.0.1:1883")()
    await link.send(b"…")
    await link.receive()

A broken link does not reconnect: `rsio_client` opens another one.
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

TIMEOUT = 30.0
CLOSE_TIMEOUT = 2.0
CHUNK = 1 << 16

IN_FLIGHT = 20
"""The most messages that the broker has not acknowledged."""

ALPN_PROTOCOL = "rsio/0"


class Link(ABC):
    """A link to the service. Its methods raise OSError when it is broken."""

    has_messages: ClassVar[bool]
    """Whether bytes of one `send` arrive together."""

    @abstractmethod
    async def send(self, raw: bytes) -> None:
        """Send bytes, and wait while too many are in flight."""

    @abstractmethod
    async def receive(self) -> bytes:
        """The next received bytes."""

    @abstractmethod
    async def close(self) -> None:
        """Close the link after the bytes that were sent."""


class SocketLink(Link):
    """A TCP connection to a listener of the service."""

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
        # With TLS in Python 3.11.2, a second `close` would disable `abort`.
        if not self._writer.is_closing():
            self._writer.close()
        with suppress(OSError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._writer.wait_closed()
        # A service that reads nothing would keep the connection open.
        self._writer.transport.abort()


class MqttLink(Link):
    """Two topics, `<prefix>/<random>/up` and `down`. The random part excludes messages to earlier links."""

    has_messages = True

    def __init__(self, prefix: str) -> None:
        self._topic = f"{prefix}/{secrets.token_hex(8)}"
        self._loop = asyncio.get_running_loop()
        self._received: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._in_flight = asyncio.Semaphore(IN_FLIGHT)
        self._mqtt = Mqtt(CallbackAPIVersion.VERSION2, f"rsio-{secrets.token_hex(8)}", reconnect_on_failure=False)
        self._mqtt.on_connect = self._on_connect
        self._mqtt.on_subscribe = self._on_subscribe
        self._mqtt.on_message = self._on_message
        self._mqtt.on_publish = self._on_publish
        self._mqtt.on_disconnect = lambda *_: self._notify(None)

    @classmethod
    async def to(cls, host: str, port: int, prefix: str) -> Self:
        link = cls(prefix)
        try:
            async with asyncio.timeout(TIMEOUT):
                await asyncio.to_thread(link._mqtt.connect, host, port)
                link._mqtt.loop_start()
                # The subscription puts empty bytes first.
                await link.receive()
        except BaseException:
            await link.close()
            raise
        return link

    async def send(self, raw: bytes) -> None:
        await self._in_flight.acquire()
        self._mqtt.publish(f"{self._topic}/up", raw, 1)

    async def receive(self) -> bytes:
        if (raw := await self._received.get()) is not None:
            return raw
        raise ConnectionResetError("the broker has closed the link, or has refused the subscription")

    async def close(self) -> None:
        self._mqtt.disconnect()
        # The thread ends after the DISCONNECT; paho raises this error if it ends while paho looks for it.
        with suppress(AttributeError):
            await asyncio.to_thread(self._mqtt.loop_stop)
        # The client's thread may end before it has closed its socket.
        if (socket := self._mqtt.socket()) is not None:
            socket.close()

    # Callbacks in the thread of paho.

    def _on_connect(self, *_: Any) -> None:
        self._mqtt.subscribe(f"{self._topic}/down", 1)

    def _on_subscribe(self, _client: Mqtt, _data: Any, _number: int, codes: list[Any], _properties: Any) -> None:
        self._notify(None if codes[0].is_failure else b"")

    def _on_message(self, _client: Mqtt, _data: Any, message: MQTTMessage) -> None:
        self._notify(bytes(message.payload))

    def _on_publish(self, *_: Any) -> None:
        self._loop.call_soon_threadsafe(self._in_flight.release)

    def _notify(self, received: bytes | None) -> None:
        """Pass received bytes to the event loop; None if the link is broken."""
        self._loop.call_soon_threadsafe(self._received.put_nowait, received)


def connector(uri: str, *, prefix: str = "rsio", ca: str | None = None) -> Callable[[], Awaitable[Link]]:
    """A function that opens links to `mqtt://host:port`, `tcp://host:port` or `ssl://host:port`.

    `prefix` is the prefix of MQTT topics, `ca` a file of trusted certificates. Raises ValueError for any other URI.
    """
    parts = urlsplit(uri)
    host, port = parts.hostname, parts.port
    if host is None or port is None or parts.scheme not in ("mqtt", "tcp", "ssl"):
        raise ValueError(f"found {uri!r}, expected mqtt://, tcp:// or ssl:// with a host and a port")
    if parts.scheme == "mqtt":
        return lambda: MqttLink.to(host, port, prefix)
    if parts.scheme == "tcp":
        return lambda: SocketLink.to(host, port)
    tls = ssl.create_default_context(cafile=ca)
    tls.set_alpn_protocols([ALPN_PROTOCOL])
    return lambda: SocketLink.to(host, port, tls)
