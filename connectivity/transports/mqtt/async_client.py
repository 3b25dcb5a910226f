"""Runs a SansIoPahoClient with its socket on the event loop.

All packets of one turn of the loop leave in one write, and each turn reads once until nothing is left. A timer lets paho
check the keep-alive. `pause` stops reading: packets then fill the system's buffers until the broker stops sending.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import structlog
from paho.mqtt.client import ConnectFlags, DisconnectFlags
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from connectivity.errors import ConnectionRefused, Detail, LinkError, NotConnected
from connectivity.transports.dialer import dial_error, lost_error, run_in_thread
from connectivity.transports.mqtt.errors import connack_error, reason_text, suback_error
from connectivity.transports.mqtt.paho_client import SansIoPahoClient
from connectivity.transports.tls_layer import TlsSocket

log = structlog.get_logger(__name__)

PATIENCE = 10.0
"""Seconds for connecting and login, and again for the answer to each subscription."""

READ_SIZE = 65536
"""Bytes of one read."""

DISCONNECT_TIMEOUT = 1.0
"""Seconds that the broker has to receive a DISCONNECT."""

MAX_TICK = 5.0
MIN_TICK = 0.25
KEEP_ALIVE_TIMEOUT = 141
UNANSWERED = "the link was lost before its subscriptions were changed"

_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError)
_EMPTY = memoryview(b"")


class ConnAck(NamedTuple):
    """The broker's reply to CONNECT."""

    session_present: bool
    properties: Properties | None


class AsyncMqttClient:
    """One connected client.

    `on_lost` is called once if the connection ends unexpectedly.
    """

    def __init__(self, client: SansIoPahoClient, on_lost: Callable[[LinkError], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.client = client
        self._on_lost = on_lost
        self._socket: socket.socket | TlsSocket | None = None
        self._rest = _EMPTY
        self._is_closing = self._is_reading_on = False
        self._written: list[Callable[[], None]] = []
        self._connack: asyncio.Future[ConnAck] = self._loop.create_future()
        self._answers: dict[int, asyncio.Future[tuple[Sequence[ReasonCode], Properties | None]]] = {}
        """The expected answers to SUBSCRIBE and UNSUBSCRIBE by packet identifier."""
        self._socket_closed: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self.is_paused = False
        self.is_port_reached = False
        """Whether the broker's port is reached, with TLS if configured."""
        client.on_connect = self._connected
        client.on_subscribe = client.on_unsubscribe = self._handle_answer
        client.on_disconnect = self._disconnected
        client.on_socket_close = self._forget_socket

    async def connect(self, dial: Callable[[], None]) -> ConnAck:
        """Open the socket with `dial` in a thread, and log in. Raises NotConnected, ConnectionRefused."""
        try:
            self.client.connect_timeout = PATIENCE
            async with asyncio.timeout(PATIENCE):
                await run_in_thread("mqtt connect", dial, lambda _: self.client.drop_socket())
                self._attach()
                self.is_port_reached = True
                return await self._connack
        except TimeoutError:
            self.abandon()
            raise NotConnected(Detail.TIMEOUT, f"the broker did not answer the login within {PATIENCE:g} s") from None
        except asyncio.CancelledError:
            self.abandon()
            raise
        except Exception as error:
            self.abandon()
            raise dial_error(error) from error

    async def subscribe(self, filters: Sequence[str], qos: int, properties: Properties | None) -> int:
        """Send one SUBSCRIBE with all filters. Return the lowest QoS that the broker grants.

        Raises ConnectionRefused if the broker refuses one, NotConnected if the link is lost.
        """
        try:
            _, mid = self.client.subscribe([(topic_filter, qos) for topic_filter in filters], properties=properties)
        except ValueError as error:
            raise ConnectionRefused(Detail.MISSING_ADDRESS, f"{', '.join(filters)}: {error}") from error
        try:
            async with asyncio.timeout(PATIENCE):
                reasons, said = await self._answer(mid)
        except TimeoutError:
            raise NotConnected(
                Detail.TIMEOUT, f"the broker did not answer a subscription within {PATIENCE:g} s"
            ) from None
        for topic_filter, reason in zip(filters, reasons, strict=False):
            if reason.is_failure:
                raise suback_error(topic_filter, reason, said)
        return min((int(reason.value) for reason in reasons), default=qos)

    async def unsubscribe(self, filters: Sequence[str]) -> None:
        """Send one UNSUBSCRIBE and wait for its answer. Raises NotConnected if the link is lost."""
        _, mid = self.client.unsubscribe(list(filters))
        await self._answer(mid)

    async def _answer(self, mid: int | None) -> tuple[Sequence[ReasonCode], Properties | None]:
        """Return the answer to a SUBSCRIBE or UNSUBSCRIBE by its packet identifier; None: it was not sent."""
        if mid is None:
            raise NotConnected(Detail.CONNECTING, UNANSWERED)
        answer: asyncio.Future[tuple[Sequence[ReasonCode], Properties | None]] = self._loop.create_future()
        self._answers[mid] = answer
        try:
            return await answer
        finally:
            del self._answers[mid]

    def when_written(self, done: Callable[[], None]) -> None:
        """Call `done` when all packets queued so far are written to the socket."""
        self._written.append(done)

    def pause(self) -> None:
        """Stop reading."""
        if not self.is_paused and self._socket is not None:
            self.is_paused = True
            self._loop.remove_reader(self._socket)

    def resume(self) -> None:
        """Resume reading."""
        if self.is_paused and self._socket is not None:
            self.is_paused = False
            self.client.feed(b"")
            self._loop.add_reader(self._socket, self._readable)
            if isinstance(self._socket, TlsSocket):
                self._read_on()

    async def close(self) -> None:
        """Send DISCONNECT, give the broker time to read it, and close the socket."""
        if self._socket is None or self._is_closing:
            return
        self._is_closing = True
        said: asyncio.Future[None] = self._loop.create_future()
        self.when_written(lambda: _resolve(said))
        self.client.disconnect()
        try:
            async with asyncio.timeout(DISCONNECT_TIMEOUT):
                await asyncio.wait((said, self._socket_closed), return_when=asyncio.FIRST_COMPLETED)
                # Closing with unread bytes would reset the connection before the broker reads DISCONNECT.
                self.resume()
                await asyncio.shield(self._socket_closed)
        except TimeoutError:
            pass
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the socket without DISCONNECT."""
        self._is_closing = True
        self.client.drop_socket()

    # ── the socket ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _attach(self) -> None:
        sock = self.client.socket()
        if not isinstance(sock, socket.socket | TlsSocket):
            raise NotConnected(Detail.REFUSED, "the socket was closed while the service was connecting")
        self._socket = sock
        self._loop.add_reader(sock, self._readable)
        self.client.on_unsent = partial(self._loop.call_soon, self._flush)
        self._flush()

    def _flush(self) -> None:
        """Send the queued packets in as few writes as the system allows."""
        if (sock := self._socket) is None:
            return
        # Nothing is left if it was written in the meantime, with other bytes or when the socket became writable.
        unsent = self.client.unsent
        if not self._rest and not unsent:
            return
        had_rest = bool(self._rest)
        try:
            while self._rest or unsent:
                if not self._rest:
                    self._rest = memoryview(b"".join(unsent))
                    unsent.clear()
                self._rest = self._rest[sock.send(self._rest) :]
            # An empty view would keep what it is a view of.
            self._rest = _EMPTY
        except _WOULD_BLOCK:
            pass
        except OSError as error:
            self._rest = _EMPTY
            self._die(lost_error(error))
            return
        self.client.spoke()
        if self._rest and not had_rest:
            self._loop.add_writer(sock, self._flush)
        elif had_rest and not self._rest:
            self._loop.remove_writer(sock)
        if not self._rest and self._written:
            written, self._written = self._written, []
            for done in written:
                done()

    def _readable(self) -> None:
        """Read once; the rest is read in another turn."""
        if (sock := self._socket) is None or self.is_paused:
            return
        try:
            data = sock.recv(READ_SIZE)
        except _WOULD_BLOCK:
            if isinstance(sock, TlsSocket) and sock.has_more:
                self._read_on()
            if self._rest:
                self._flush()
            return
        except OSError as error:
            self._die(lost_error(error))
            return
        if not data:
            self._ended()
            return
        if not self._is_closing:
            try:
                self.client.feed(data)
            except Exception as error:
                # The rest of the data is lost: what follows would be read from within a packet.
                log.exception("unexpected error while reading")
                self._die(NotConnected(Detail.CONNECTING, f"reading failed: {type(error).__name__}"))
            if self._socket is None:
                return
        if len(data) == READ_SIZE or isinstance(sock, TlsSocket):
            # There may be more, and no further event would report it.
            self._read_on()
        # uvloop reports a reset connection only once, even if data came before it.
        elif (code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) != 0:
            self._die(lost_error(OSError(code, os.strerror(code))))
            return
        if self._rest:
            self._flush()

    def _read_on(self) -> None:
        if not self._is_reading_on:
            self._is_reading_on = True
            self._loop.call_soon(self._continue_reading)

    def _continue_reading(self) -> None:
        self._is_reading_on = False
        self._readable()

    def _ended(self) -> None:
        if self._connack.done():
            self._die(NotConnected(Detail.CONNECTING, "the broker closed the link"))
        else:
            self._die(
                NotConnected(
                    Detail.REFUSED_BY_BROKER, "the broker closed the connection without an answer to the login"
                )
            )

    def _forget_socket(self, *_: object) -> None:
        """Stop watching the socket, which paho is about to close."""
        if self._timer is not None:
            self._timer.cancel()
        if (sock := self._socket) is not None:
            self._socket = None
            self._loop.remove_reader(sock)
            self._loop.remove_writer(sock)
        for answer in self._answers.values():
            _fail(answer, NotConnected(Detail.CONNECTING, UNANSWERED))
        _resolve(self._socket_closed)

    def _tick(self) -> None:
        keep_alive = self.client.keepalive
        if self.is_paused:
            self.client.feed(b"")  # While reading is paused, a missing PINGRESP proves nothing
        if self.client.loop_misc() == MQTTErrorCode.MQTT_ERR_SUCCESS and self._socket is not None and keep_alive:
            pause = min(max(keep_alive / 4, MIN_TICK), MAX_TICK)
            self._timer = self._loop.call_later(pause, self._tick)

    # ── callbacks of paho ─────────────────────────────────────────────────────────────────────────────────────────────

    def _connected(
        self, _client: object, _data: object, flags: ConnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if self._connack.done():
            return
        if reason.is_failure:
            self._connack.set_exception(connack_error(reason, properties))
        else:
            self.client.is_resumed = flags.session_present
            # Not before: the login has a time limit of its own, and the broker may change the keep-alive.
            self._timer = self._loop.call_later(0, self._tick)
            self._connack.set_result(ConnAck(flags.session_present, properties))

    def _handle_answer(
        self, _client: object, _data: object, mid: int, reasons: list[ReasonCode], properties: Properties | None
    ) -> None:
        answer = self._answers.get(mid)
        if answer is not None and not answer.done():
            answer.set_result((reasons, properties))

    def _disconnected(
        self, _client: object, _data: object, flags: DisconnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        words = reason_text(reason, properties)
        if flags.is_disconnect_packet_from_server:
            self._die(NotConnected(Detail.REFUSED_BY_BROKER, words))
        elif reason.value == KEEP_ALIVE_TIMEOUT:
            self._die(
                NotConnected(
                    Detail.TIMEOUT, f"the broker did not answer within the keep-alive of {self.client.keepalive} s"
                )
            )
        else:
            self._die(NotConnected(Detail.REFUSED_BY_BROKER, f"unreadable packet: {words}"))

    def _die(self, error: LinkError) -> None:
        """Handle the unexpected end of the link."""
        for answer in self._answers.values():
            _fail(answer, error)
        self.client.drop_socket()
        _fail(self._connack, error)
        if not self._is_closing:
            self._is_closing = True
            self._on_lost(error)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[Any], error: LinkError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # retrieved, so that asyncio does not warn if there is no waiter any more
