"""One connection to an AMQP broker on aio-pika: connecting, login, writing, closing.

All frames of one turn of the loop leave in one write. By AMQP 0.9.1 §4.2.7 both sides send something in each heartbeat
interval, and a link is dead after two intervals without a byte; the library checks that and ends the link.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from aio_pika.abc import AbstractChannel

from connectivity.connections.model import Connection
from connectivity.errors import ClientCertificateRequired, ConnectionRefused, Detail, LinkError, NotConnected
from connectivity.transports.amqp.calls import CallFailed, CallRefused, CallTimedOut, call
from connectivity.transports.amqp.demultiplexer import FrameDemultiplexer, no_op
from connectivity.transports.amqp.errors import PRECONDITION_FAILED, login_error
from connectivity.transports.amqp.frames import Reason
from connectivity.transports.amqp.options import Options, seconds, virtual_host
from connectivity.transports.amqp.pika_connection import PikaConnection
from connectivity.transports.dialer import dial_error, handshake_error, lost_error, reach, run_in_thread, tls_context
from connectivity.transports.tls_layer import TlsTransport

T = TypeVar("T")

TLS_PATIENCE = 60.0
"""Seconds for the TLS handshake if `connectionTimeout` is 0.

Unlike that of TCP, the system does not limit it.
"""

MAX_SILENT_HEARTBEATS = 2
"""The number of heartbeat intervals without a byte after which a link is dead."""


class AmqpClient:
    """One AMQP connection; `on_lost` is called once if it ends unexpectedly."""

    def __init__(self, connection: Connection, options: Options) -> None:
        self._loop = asyncio.get_running_loop()
        self._definition, self._options = connection, options
        self.on_lost: Callable[[LinkError], None] = no_op
        self.frame_demultiplexer = FrameDemultiplexer(
            channel_max=options.requested_channel_max, frame_max=options.requested_frame_max
        )
        self.frame_demultiplexer.on_lost = self._transport_lost
        self._writer: asyncio.StreamWriter | None = None
        self._library: PikaConnection | None = None
        self._unsent: list[bytes] = []
        self._before_sending: list[Callable[[], None]] = []
        self._is_flushing = False
        self._ended = self._loop.create_future()
        self._loss: LinkError | None = None
        self.is_paused = False
        """Whether reading is stopped, so that the broker stops sending."""
        self._close_task: asyncio.Task[None] | None = None

    # ── the beginning ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def connect(self) -> None:
        """Connect to the broker and log in. Raises NotConnected, ConnectionRefused."""
        try:
            await self._dial()
            await self._login()
        except BaseException:
            self.abandon()
            raise

    async def _dial(self) -> None:
        patience = seconds(self._options.connection_timeout)
        uri = self._definition.broker_uri

        def work() -> tuple[socket.socket, ssl.SSLContext | None]:
            context = tls_context(self._definition) if uri.is_secure else None
            made = reach(uri.host, uri.port, patience)
            made.setblocking(False)
            return made, context

        try:
            async with asyncio.timeout(patience):
                made, context = await run_in_thread(
                    "amqp connect", work, lambda late: late[0].close() if late else None
                )
                # The event loop does not close a socket that it has not taken over.
                with contextlib.ExitStack() as cleanup:
                    cleanup.callback(made.close)
                    tls = TlsTransport(self.frame_demultiplexer, context, uri.host) if context else None
                    transport, _ = await self._loop.create_connection(
                        lambda: tls or self.frame_demultiplexer, sock=made
                    )
                    cleanup.pop_all()
                if tls is not None:
                    try:
                        async with asyncio.timeout(None if patience else TLS_PATIENCE):
                            await tls.establish()
                    except OSError as error:
                        raise handshake_error(error) from error
        except TimeoutError:
            words = f"no answer within {patience:g} s" if patience else "no answer"
            raise NotConnected(Detail.TIMEOUT, words) from None
        except Exception as error:
            raise dial_error(error) from error
        self._writer = asyncio.StreamWriter(
            tls or transport, self.frame_demultiplexer, self.frame_demultiplexer.reader, self._loop
        )

    async def _login(self) -> None:
        assert self._writer is not None
        uri, patience = self._definition.broker_uri, seconds(self._options.handshake_timeout)
        self._library = PikaConnection(
            (self.frame_demultiplexer.reader, self._writer),
            virtual_host(uri.path),
            self._is_silent,
            host=uri.host,
            port=uri.port,
            login=uri.username or "",
            password=uri.password.get_secret_value() if uri.password else "",
            auth=self._mechanism,
            heartbeat=self._options.requested_heartbeat,
            name=f"connectivity {self._definition.id}",
        )
        try:
            await call(self._library.log_in(), patience, self._ended)
        except CallTimedOut:
            raise NotConnected(Detail.TIMEOUT, f"the broker did not answer the login within {patience:g} s") from None
        except CallFailed as failed:
            raise self._login_error(failed) from failed

    @property
    def _mechanism(self) -> str:
        """The login mechanism: EXTERNAL, by which a certificate names the user, unless the uri does."""
        return "EXTERNAL" if self._definition.credentials and not self._definition.broker_uri.username else "PLAIN"

    def _login_error(self, error: CallFailed) -> LinkError:
        if self.frame_demultiplexer.closed is not None:
            return login_error(self.frame_demultiplexer.closed)
        if self.frame_demultiplexer.fault is not None:
            return NotConnected(Detail.REFUSED_BY_BROKER, self.frame_demultiplexer.fault)
        if isinstance(self._loss, ConnectionRefused):
            return self._loss
        assert self._library is not None
        if (offered := self._library.offered_mechanisms) and self._mechanism not in offered:
            words = f"the broker offers the login mechanisms {', '.join(offered)}, expected {self._mechanism}"
            return ConnectionRefused(Detail.BAD_CREDENTIALS, words)
        text = f"the broker closed the connection during login: {error}"
        if self._definition.broker_uri.is_secure and self._definition.credentials is None:
            # With TLS 1.3 a missing client certificate shows only after the handshake.
            words = f"{text}; the broker may require a client certificate"
            return ClientCertificateRequired(Detail.CERTIFICATE, words)
        return NotConnected(Detail.REFUSED_BY_BROKER, text)

    # ── channels ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def channel(self, *, confirms: bool = False) -> AbstractChannel:
        """Open a channel. Raises NotConnected."""
        try:
            return await self.call(self._open_channel(confirms))
        except CallFailed as failed:
            raise self.call_failed(failed) from failed

    async def _open_channel(self, confirms: bool) -> AbstractChannel:
        assert self._library is not None
        return await self._library.channel(publisher_confirms=confirms)

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a call on a channel, at most until the connection ends. Raises CallFailed."""
        return await call(work, seconds(self._options.channel_rpc_timeout), self._ended)

    def call_failed(self, failed: CallFailed) -> LinkError:
        """Return the error for a call that failed without a refusal by the broker."""
        if isinstance(failed, CallTimedOut):
            return NotConnected(Detail.TIMEOUT, f"the broker did not answer on a channel: {failed}")
        return self._loss or self._close_error(None)

    async def missing_reason(self, what: str, name: str) -> Reason | None:
        """Return why a queue or exchange (`what`) is missing or inaccessible, or None. Raises NotConnected."""

        async def ensure(channel: AbstractChannel) -> None:
            await (channel.get_queue(name) if what == "queue" else channel.get_exchange(name))

        return await self._find_refusal(ensure)

    async def unreadable(self, queue: str) -> Reason | None:
        """Return why consuming from a queue is refused, or None. Raises NotConnected.

        No message is taken from it. Brokers check permissions before arguments, so a consumer with an invalid argument
        is refused for the argument only if the permission exists. A consumer that the broker accepts anyway is canceled
        at once.
        """

        async def consume(channel: AbstractChannel) -> None:
            found = await channel.get_queue(queue, ensure=False)
            await found.consume(ignore_message, arguments={"x-priority": "not a number (connection test)"})

        reason = await self._find_refusal(consume)
        return None if reason is None or reason.code == PRECONDITION_FAILED else reason

    async def _find_refusal(self, ask: Callable[[AbstractChannel], Coroutine[Any, Any, None]]) -> Reason | None:
        """Return why the broker closes a channel after a request, or None. Raises NotConnected."""

        async def probe() -> None:
            assert self._library is not None
            async with self._library.channel(publisher_confirms=False) as channel:
                await ask(channel)

        try:
            await self.call(probe())
        except CallRefused as refused:
            return refused.reason
        except CallFailed as failed:
            raise self.call_failed(failed) from failed
        return None

    async def wait_released(self, channel: AbstractChannel) -> None:
        """Wait until the library has answered the broker's close of a channel: its number is free then."""
        await asyncio.wait((asyncio.ensure_future(channel.closed()), self._ended), return_when=asyncio.FIRST_COMPLETED)

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, frames: bytes) -> None:
        """Send frames together with all others of this turn of the loop."""
        self._unsent.append(frames)
        self._schedule()

    def call_before_send(self, fill: Callable[[], None]) -> None:
        """Call `fill` before this turn's frames are written: it may add its own."""
        self._before_sending.append(fill)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        fills, self._before_sending = self._before_sending, []
        for fill in fills:
            fill()
        self._is_flushing = False
        if self._unsent and self._writer is not None and not self._writer.is_closing():
            self._writer.write(b"".join(self._unsent))
        self._unsent.clear()

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def pause(self, is_paused: bool) -> None:
        """Stop or resume reading."""
        if is_paused is not self.is_paused:
            self.is_paused = is_paused
            self.frame_demultiplexer.pause(is_paused)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        """Send queued frames, close the connection and give the broker time to read it."""
        if not self._ended.done():
            self._flush()
            self._end()
            self.pause(False)
        if self._close_task is None:
            self._close_task = self._loop.create_task(self._leave())
        await asyncio.shield(self._close_task)

    async def _leave(self) -> None:
        """Let the library close the connection, or notice that it is closed."""
        if self._library is not None:
            with contextlib.suppress(CallFailed):
                await call(self._library.close(), seconds(self._options.shutdown_timeout))
        self.frame_demultiplexer.abort()

    def abandon(self) -> None:
        """Close the socket without a closing handshake."""
        self._end()
        self.frame_demultiplexer.abort()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
        self._unsent.clear()
        self._before_sending.clear()

    def die(self, error: LinkError) -> None:
        """End after a failure."""
        if not self._ended.done():
            self._loss = error
            self.abandon()
            self._close_task = self._loop.create_task(self._leave())
            self.on_lost(error)

    def _transport_lost(self, error: Exception | None) -> None:
        self.die(self._close_error(error))

    def _close_error(self, error: Exception | None) -> LinkError:
        if (reason := self.frame_demultiplexer.closed) is not None:
            return NotConnected(Detail.REFUSED_BY_BROKER, reason.text)
        if self.frame_demultiplexer.fault is not None:
            return NotConnected(Detail.REFUSED_BY_BROKER, self.frame_demultiplexer.fault)
        if error is not None:
            return lost_error(error)
        if self._is_silent():
            words = f"no data within {MAX_SILENT_HEARTBEATS} heartbeats of {self._options.requested_heartbeat} s"
            return NotConnected(Detail.TIMEOUT, words)
        return NotConnected(Detail.CONNECTING, "the broker closed the link")

    def _is_silent(self) -> bool:
        """Whether the link is dead. While reading is paused, silence proves nothing."""
        patience = MAX_SILENT_HEARTBEATS * self._options.requested_heartbeat
        silence = self._loop.time() - self.frame_demultiplexer.last_received
        return not self.is_paused and 0 < patience <= silence


async def ignore_message(_message: object) -> None:
    """The consumer callback required by the library, which is never called."""
