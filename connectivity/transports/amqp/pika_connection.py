"""aio-pika's connection over a transport of the service: login and channels.

Not aio-pika's robust connection: the life cycle of a connection reconnects, with its own delays and statuses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import aio_pika
import aiormq
from aio_pika.abc import UnderlayConnection
from aio_pika.connection import make_url
from aio_pika.tools import OneShotCallback
from aiormq.auth import AuthMechanism
from aiormq.connection import TransportFactory

from connectivity.transports.amqp.demultiplexer import no_op

# The supervisor reports failures with the broker's text; the libraries would log them a second time.
for _library in ("aio_pika", "aiormq"):
    logging.getLogger(_library).setLevel(logging.CRITICAL)

# RabbitMQ takes names of any characters and up to 255 bytes; the libraries take fewer.
for _method in (aiormq.spec.Exchange.Declare, aiormq.spec.Queue.Declare, aiormq.spec.Basic.Consume):
    _method.validate = no_op  # type: ignore[assignment]

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _ExistingTransport(TransportFactory):
    """A transport factory that returns an existing transport to the library."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def create(self, url: Any, **kwargs: Any) -> Streams:  # noqa: ARG002
        return self._streams


class _Underlay(aiormq.Connection):
    """aiormq's connection with any virtual host, one observer of its end, and another measure of silence."""

    def __init__(self, url: Any, virtual_host: str, is_silent: Callable[[], bool], streams: Streams) -> None:
        super().__init__(url, transport_factory=_ExistingTransport(streams))
        # The library reads `%2F` as a slash even where a URL says that it belongs to the name.
        self.vhost = virtual_host
        self._is_silent = is_silent
        self.offered_mechanisms: Sequence[str] = ()
        self._observer: asyncio.Future[Any] = super().closing

    @property
    def closing(self) -> asyncio.Future[Any]:
        """Return the one observer: aio-pika asks for another with each channel and keeps it until the end."""
        return self._observer

    @property
    def is_connection_was_stuck(self) -> bool:
        """Whether the connection is dead; the library, which sees few of the frames, then ends it."""
        return self._is_silent()

    def _credentials_class(self, start_frame: aiormq.spec.Connection.Start) -> AuthMechanism:
        self.offered_mechanisms = start_frame.mechanisms.split()
        return super()._credentials_class(start_frame)


class _Channel(aio_pika.Channel):
    """aio-pika's channel, which leaves nothing with the connection when it is closed."""

    async def _on_close(self, closing: asyncio.Future[Any]) -> BaseException | None:
        if self._channel is not None:
            self._channel.channel.connection.closing.remove_done_callback(self._channel.close_callback)
        return await super()._on_close(closing)


class PikaConnection(aio_pika.Connection):
    """A connection that logs in over existing streams."""

    CHANNEL_CLASS = _Channel

    def __init__(self, streams: Streams, virtual_host: str, is_silent: Callable[[], bool], **login: Any) -> None:
        """`is_silent`: whether the broker is silent for too long; asked before each heartbeat.

        `login`: what `aio_pika.connect` takes: `login`, `password`, `auth`, `heartbeat`, `name`, …
        """
        super().__init__(make_url(**login))
        self._underlay = _Underlay(self.url, virtual_host, is_silent, streams)

    @property
    def offered_mechanisms(self) -> Sequence[str]:
        """The login mechanisms that the broker offers; none before it has."""
        return self._underlay.offered_mechanisms

    async def log_in(self) -> None:
        """Do what the library's `connect` does, over the existing streams."""
        await self._underlay.connect()
        closed = OneShotCallback(self._on_connection_close)
        self._underlay.closing.add_done_callback(closed)
        self.transport = UnderlayConnection(self._underlay, closed)
        await self._on_connected()
