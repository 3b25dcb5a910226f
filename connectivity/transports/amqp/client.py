"""One connection to an AMQP broker on aiormq: connecting, login, writing, heartbeats, closing.

All frames of one turn of the loop leave in one write. A timer checks the heartbeats: by AMQP 0.9.1 §4.2.7 both sides
send something in each heartbeat interval, and a link is dead after two intervals without a byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import aiormq
from aiormq.abc import AbstractChannel
from aiormq.connection import TransportFactory
from pamqp.common import FieldValue

from connectivity.connections.model import Connection
from connectivity.errors import Detail, LinkError, NotConnected
from connectivity.transports.amqp.demultiplexer import FrameDemultiplexer, no_op
from connectivity.transports.amqp.errors import PRECONDITION_FAILED, login_error
from connectivity.transports.amqp.frames import Reason
from connectivity.transports.amqp.options import Options, seconds, virtual_host
from connectivity.transports.dialer import dial_error, handshake_error, lost_error, reach, run_in_thread, tls_context

# The supervisor reports failures with the broker's text; the library would log them a second time.
logging.getLogger("aiormq").setLevel(logging.CRITICAL)

T = TypeVar("T")

MAX_SILENT_HEARTBEATS = 2
"""The number of heartbeat intervals without a byte after which a link is dead."""


class ExistingTransport(TransportFactory):
    """A transport factory that returns an existing transport to the library."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._streams = reader, writer

    async def create(self, url: Any, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:  # noqa: ARG002
        return self._streams


class CallFailed(Exception):
    """A failed call on the library.

    The handler of the channel knows the broker's reason for a refusal, if there is one.
    """


class CallTimedOut(CallFailed):
    """A call on the library that the broker did not answer in time."""


async def call(work: Coroutine[Any, Any, T], patience: float | None, end: asyncio.Future[None] | None = None) -> T:
    """Wait for a call on the library, at most `patience` seconds and until `end` is done.

    The library does not end every call with its connection: on Python 3.11 `asyncio.wait_for` loses a cancellation that
    comes together with a result, and the call waits for a reply that cannot come. Raises CallFailed.
    """
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(_retrieve)
    try:
        await asyncio.wait((task, end) if end else (task,), timeout=patience, return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
    if not task.done() and not (end and end.done()):
        raise CallTimedOut(f"no answer within {patience:g} s")
    if not task.done() or task.cancelled():
        raise CallFailed("the connection ended")
    if (error := task.exception()) is not None:
        raise CallFailed(str(error)) from error
    return task.result()


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of a call that is no longer awaited, since the event loop would log it."""
    if not task.cancelled():
        task.exception()


class AmqpClient:
    """One AMQP connection.

    `on_lost` is called once if it ends unexpectedly, `on_blocked` as `FrameDemultiplexer.on_blocked`.
    """

    def __init__(self, connection: Connection, options: Options) -> None:
        self._loop = asyncio.get_running_loop()
        self._definition, self._options = connection, options
        self.on_lost: Callable[[LinkError], None] = no_op
        self.on_blocked: Callable[[str | None], None] = no_op
        self.frame_demultiplexer = FrameDemultiplexer(
            channel_max=options.requested_channel_max, frame_max=options.requested_frame_max
        )
        self.frame_demultiplexer.on_lost = self._transport_lost
        self.frame_demultiplexer.on_blocked = self._blocked
        self._writer: asyncio.StreamWriter | None = None
        self._library: aiormq.Connection | None = None
        self._unsent: list[bytes] = []
        self._before_sending: list[Callable[[], None]] = []
        self._is_flushing = False
        self._ended = self._loop.create_future()
        self.is_paused = False
        """Whether reading is stopped, so that the broker stops sending."""
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._close_task: asyncio.Task[None] | None = None

    @property
    def frame_max(self) -> int:
        return self.frame_demultiplexer.frame_max

    # ── the beginning ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def connect(self) -> None:
        """Connect to the broker and log in. Raises NotConnected, ConnectionRefused."""
        try:
            await self._dial()
            await self._login()
        except BaseException:
            self.abandon()
            raise
        heartbeat = self._options.requested_heartbeat
        if heartbeat:
            self._heartbeat_timer = self._loop.call_later(heartbeat, self._check_heartbeat, heartbeat)

    async def _dial(self) -> None:
        patience = seconds(self._options.connection_timeout)
        uri = self._definition.broker_uri

        def work() -> tuple[socket.socket, ssl.SSLContext | None]:
            context = tls_context(self._definition, client_certificate=False) if uri.is_secure else None
            made = reach(uri.host, uri.port, patience)
            made.setblocking(False)
            return made, context

        try:
            async with asyncio.timeout(patience):
                made, context = await run_in_thread(
                    "amqp connect", work, lambda late: late[0].close() if late else None
                )
                name = uri.host if context else None
                # The event loop does not close a socket that it has not taken over.
                with contextlib.ExitStack() as cleanup:
                    cleanup.callback(made.close)
                    try:
                        transport, _ = await self._loop.create_connection(
                            lambda: self.frame_demultiplexer, sock=made, ssl=context, server_hostname=name
                        )
                    except OSError as error:  # the port is reached, so it is about TLS
                        raise handshake_error(error) from error
                    cleanup.pop_all()
        except TimeoutError:
            words = f"no answer within {patience:g} s" if patience else "no answer"
            raise NotConnected(Detail.TIMEOUT, words) from None
        except Exception as error:
            raise dial_error(error) from error
        self._writer = asyncio.StreamWriter(
            transport, self.frame_demultiplexer, self.frame_demultiplexer.reader, self._loop
        )

    async def _login(self) -> None:
        assert self._writer is not None
        uri, patience = self._definition.broker_uri, seconds(self._options.handshake_timeout)
        user, password = uri.username or "", uri.password.get_secret_value() if uri.password else ""
        host = f"[{uri.host}]" if ":" in uri.host else uri.host
        query = urlencode(
            {"heartbeat": self._options.requested_heartbeat, "name": f"connectivity {self._definition.id}"}
        )
        url = f"amqp://{quote(user, safe='')}:{quote(password, safe='')}@{host}:{uri.port}?{query}"
        library = aiormq.Connection(
            url, transport_factory=ExistingTransport(self.frame_demultiplexer.reader, self._writer)
        )
        library.vhost = virtual_host(uri.path)
        try:
            await call(library.connect(), patience, self._ended)
        except CallTimedOut:
            raise NotConnected(Detail.TIMEOUT, f"no answer to the login within {patience:g} s") from None
        except CallFailed as failed:
            raise self._login_error(failed) from failed
        self._library = library

    def _login_error(self, error: CallFailed) -> LinkError:
        if self.frame_demultiplexer.closed is not None:
            return login_error(self.frame_demultiplexer.closed)
        if self.frame_demultiplexer.fault is not None:
            return NotConnected(Detail.REFUSED_BY_BROKER, self.frame_demultiplexer.fault)
        return NotConnected(Detail.REFUSED_BY_BROKER, f"the broker closed the connection during login: {error}")

    # ── channels ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def channel(self, *, confirms: bool = False) -> AbstractChannel:
        """Open a channel. Raises NotConnected."""
        assert self._library is not None
        try:
            return await self.call(self._library.channel(publisher_confirms=confirms))
        except CallFailed as failed:
            raise self.call_failed(failed) from failed

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a call on a channel, at most until the connection ends. Raises CallFailed."""
        return await call(work, seconds(self._options.channel_rpc_timeout), self._ended)

    def call_failed(self, failed: CallFailed) -> NotConnected:
        """Return the error for a call that failed without a refusal by the broker."""
        if isinstance(failed, CallTimedOut):
            return NotConnected(Detail.TIMEOUT, f"{failed} on a channel")
        return NotConnected(*self._close_reason(None))

    async def missing_reason(self, what: str, name: str) -> Reason | None:
        """Return why a queue or exchange (`what`) is missing or inaccessible, or None. Raises NotConnected."""

        def declare(channel: AbstractChannel) -> Coroutine[Any, Any, object]:
            ask = channel.queue_declare if what == "queue" else channel.exchange_declare
            return ask(name, passive=True)

        return await self._find_refusal(declare)

    async def unreadable(self, queue: str) -> Reason | None:
        """Return why consuming from a queue is refused, or None. Raises NotConnected.

        No message is taken from it. Brokers check permissions before arguments, so a consumer with an invalid argument
        is refused for the argument only if the permission exists. A consumer that the broker accepts anyway is canceled
        at once.
        """

        def consume(channel: AbstractChannel) -> Coroutine[Any, Any, object]:
            arguments: dict[str, FieldValue] = {"x-priority": "not a number (connection test)"}
            return channel.basic_consume(queue, ignore_message, arguments=arguments)

        reason = await self._find_refusal(consume)
        return None if reason is None or reason.code == PRECONDITION_FAILED else reason

    async def _find_refusal(self, ask: Callable[[AbstractChannel], Coroutine[Any, Any, object]]) -> Reason | None:
        """Return why the broker closes a channel after a request, or None. Raises NotConnected."""
        probe_channel = await self.channel()
        listener = _CloseRecorder()
        self.frame_demultiplexer.takers[probe_channel.number] = listener
        try:
            await self.call(ask(probe_channel))
            await self.call(probe_channel.close())
        except CallFailed as failed:
            if listener.reason is None:
                raise self.call_failed(failed) from failed
            await self.wait_released(probe_channel)
        finally:
            self.frame_demultiplexer.takers.pop(probe_channel.number, None)
        return listener.reason

    async def wait_released(self, channel: AbstractChannel) -> None:
        """Wait until the library has released the number of a channel that the broker has closed."""
        if not channel.is_closed:
            await asyncio.wait((channel.closing, self._ended), return_when=asyncio.FIRST_COMPLETED)

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
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()

    def die(self, error: LinkError) -> None:
        """End after a failure."""
        if not self._ended.done():
            self.abandon()
            self._close_task = self._loop.create_task(self._leave())
            self.on_lost(error)

    def _transport_lost(self, error: Exception | None) -> None:
        self.die(NotConnected(*self._close_reason(error)))

    def _close_reason(self, error: Exception | None) -> tuple[Detail, str]:
        if (reason := self.frame_demultiplexer.closed) is not None:
            return Detail.REFUSED_BY_BROKER, reason.text
        if self.frame_demultiplexer.fault is not None:
            return Detail.REFUSED_BY_BROKER, self.frame_demultiplexer.fault
        if error is not None:
            lost = lost_error(error)
            return lost.detail, lost.text
        return Detail.CONNECTING, "the broker closed the link"

    def _check_heartbeat(self, heartbeat: int) -> None:
        if self.is_paused:
            self.frame_demultiplexer.note_alive()
        silence = self._loop.time() - self.frame_demultiplexer.last_received
        if silence >= heartbeat * MAX_SILENT_HEARTBEATS:
            self.die(
                NotConnected(Detail.TIMEOUT, f"no data within {MAX_SILENT_HEARTBEATS} heartbeats of {heartbeat} s")
            )
        else:
            self._heartbeat_timer = self._loop.call_later(max(0.25, heartbeat / 4), self._check_heartbeat, heartbeat)

    def _blocked(self, reason: str | None) -> None:
        self.on_blocked(reason)


class _CloseRecorder:
    """Records why the broker closes a channel, and handles no frames."""

    reason: Reason | None = None

    def take(self, kind: int, payload: bytes) -> bool:  # noqa: ARG002
        return False

    def closed(self, reason: Reason) -> None:
        self.reason = reason


async def ignore_message(_message: object) -> None:
    """The consumer callback required by the library, which is never called."""
