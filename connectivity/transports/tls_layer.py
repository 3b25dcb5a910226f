"""TLS on the event loop, a few records in each turn.

The event loop and SSL sockets process all received records at once, even those without data, such as changes of keys. So a
peer could stop the loop for as long as it sends them. Here records are cut from the received bytes (RFC 8446, 5.1), and
other tasks get their turn after `MOST_RECORDS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any, cast

from connectivity.transports.dialer import receive_until

MOST_RECORDS = 16
"""The maximum number of records in one turn: 256 KiB of data, or milliseconds of changed keys."""

MOST_ANSWERS = 64 * 1024
"""The maximum bytes of answers that the peer has not read: more than a thousand changes of keys."""

_UNREAD = "the peer does not read the answers to its changes of TLS keys"

_HEADER = 5
"""Bytes before the content of a record; the last two are its length."""

_READ_SIZE = 32 * 1024
"""Bytes of one read, and of data that is encrypted at once; a record has fewer."""


class TlsRecords:
    """One side of TLS without a socket: received bytes in, data out, a few records at a time."""

    def __init__(self, context: ssl.SSLContext, *, server_hostname: str | None = None) -> None:
        """`server_hostname`: the name of the server, for a client."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_hostname is None, server_hostname=server_hostname
        )
        self.is_established = self.is_closed = False
        """Whether the handshake is complete, and whether nothing more can be received."""
        self.failure: ssl.SSLError | None = None
        """Why TLS has failed; `to_send` then has an alert."""
        self._received = bytearray()
        self._left = 0
        """Bytes of the present record that are still to come."""

    def receive(self, data: bytes) -> None:
        self._received += data

    @property
    def has_more(self) -> bool:
        """Whether received bytes can be processed."""
        return not self.is_closed and len(self._received) >= (1 if self._left else _HEADER)

    def process(self) -> bytes:
        """Process received records and return their data."""
        data: list[bytes] = []
        for _ in range(MOST_RECORDS):
            if not self.has_more:
                break
            self._incoming.write(self._next_part())
            if not self.is_established:
                self.handshake()
                if self.is_established:
                    break
                continue
            try:
                part = self.tls.read(_READ_SIZE)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                self._fail(error)
            else:
                data.append(part)
                self.is_closed = not part
        return b"".join(data)

    def handshake(self) -> None:
        """Begin or continue the handshake."""
        try:
            self.tls.do_handshake()
            # Raises the error for unreadable names now, and not for each later caller.
            certificate = self.tls.getpeercert()
            # The library checks certificates in a complete handshake only.
            if self.tls.session_reused and certificate and _has_expired(certificate):
                raise ssl.SSLError(ssl.SSL_ERROR_SSL, "the certificate of the resumed session has expired")
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._fail(error)
        except ValueError as error:
            self._fail(ssl.SSLError(ssl.SSL_ERROR_SSL, f"the certificate of the peer is unreadable: {error}"))
        else:
            self.is_established = True

    def read_alert(self, descriptor: int) -> ssl.SSLError | None:
        """Return the alert by which the peer has reset the connection of a socket, None if there is none.

        A failed write ends a connection before what has arrived is read. With TLS 1.3 a server refuses a client's
        certificate only after the client has begun to send.
        """
        with contextlib.suppress(OSError):
            self.receive(os.read(descriptor, _READ_SIZE))
            self.process()
        return self.failure

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt data for `to_send`. Raises ssl.SSLError."""
        self.tls.write(data)

    def to_send(self) -> bytes:
        """Return the bytes for the peer."""
        return self._outgoing.read()

    @property
    def unsent(self) -> int:
        """How many bytes `to_send` would return."""
        return self._outgoing.pending

    def end(self) -> None:
        """End the own side."""
        with contextlib.suppress(ssl.SSLError):
            self.tls.unwrap()

    def _fail(self, error: ssl.SSLError) -> None:
        self.failure, self.is_closed = error, True

    def _next_part(self) -> bytes:
        """Return the next bytes, at most up to the end of the present record."""
        if not self._left:
            self._left = _HEADER + int.from_bytes(self._received[3:_HEADER], "big")
        part = bytes(self._received[: self._left])
        del self._received[: self._left]
        self._left -= len(part)
        return part


def _has_expired(certificate: Mapping[str, Any]) -> bool:
    return ssl.cert_time_to_seconds(certificate["notAfter"]) < time.time()


class TlsTransport(asyncio.Protocol, asyncio.Transport):
    """The TLS layer of a socket: the protocol of its transport, and the transport of another protocol.

    The other protocol is connected after the handshake, for which `establish` waits.
    """

    def __init__(self, protocol: asyncio.Protocol, context: ssl.SSLContext, server_hostname: str | None = None) -> None:
        """`server_hostname`: the name of the server, for a client."""
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._records = TlsRecords(context, server_hostname=server_hostname)
        self._is_client = server_hostname is not None
        self._established: asyncio.Future[None] = self._loop.create_future()
        self._socket: asyncio.Transport | None = None
        self._next_turn: asyncio.Handle | None = None
        self._failure: Exception | None = None
        self._is_connected = self._has_ended = self._has_written_end = False
        """Whether the protocol is connected, the peer has closed its side, and the own side is closed."""
        self._is_wanted = True
        """Whether the protocol wants data."""
        self._answers = 0
        """Bytes of answers since the peer has last read everything."""

    async def establish(self) -> None:
        """Wait for the handshake, and abort the connection if it fails or is cancelled. Raises OSError."""
        try:
            await self._established
        except BaseException:
            self.abort()
            raise

    # ── the protocol of the socket ────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        if self._is_client:
            self._records.handshake()
            self._flush()

    def data_received(self, data: bytes) -> None:
        # After the own end, the rest is only read so that the peer receives the end.
        if not self._has_written_end:
            self._records.receive(data)
            if self._next_turn is None:
                self._take_turn()

    def eof_received(self) -> bool:
        self._has_ended = True
        if self._next_turn is None:
            self._take_turn()
        # Records that wait for their turn are processed first.
        return self._records.has_more and not self._has_written_end

    def connection_lost(self, error: Exception | None) -> None:
        if isinstance(error, ConnectionError) and self._failure is None and self._socket is not None:
            self._failure = self._records.read_alert(self._socket.get_extra_info("socket").fileno())
        self._socket = None
        if self._next_turn is not None:
            self._next_turn.cancel()
        failure = self._failure or error
        if self._is_connected:
            self._protocol.connection_lost(failure)
        elif not self._established.done():
            self._established.set_exception(failure or ConnectionResetError("the peer has closed the connection"))

    def pause_writing(self) -> None:
        if self._is_connected:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._is_connected:
            self._protocol.resume_writing()

    # ── records ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _take_turn(self) -> None:
        self._next_turn = None
        if self.is_closing():
            return
        records = self._records
        if self._is_wanted and not self._has_written_end:
            data = records.process()
            if self._is_connected:
                self._answers = records.unsent + (self._answers if self.get_write_buffer_size() else 0)
                if self._answers > MOST_ANSWERS:
                    self._failure = ConnectionAbortedError(_UNREAD)
                    self.abort()
                    return
            self._flush()
            if records.is_established and not self._is_connected:
                self._connect()
            if data:
                self._protocol.data_received(data)
        if records.failure is not None:
            self._fail(records.failure)
        elif records.is_closed or (self._has_ended and not records.has_more):
            if self._is_connected:
                self._protocol.eof_received()
            self.close()
        else:
            self._update_reading()

    def _take_later_turn(self) -> None:
        try:
            self._take_turn()
        except Exception as error:
            # In the first turn, the event loop does this.
            self._failure = error
            self.abort()
            raise

    def _connect(self) -> None:
        self._is_connected = True
        self._protocol.connection_made(self)
        if not self._established.done():
            self._established.set_result(None)

    def _update_reading(self) -> None:
        """Read the socket, or process what was read, as far as the protocol wants data."""
        if self._next_turn is not None or self._socket is None or self._socket.is_closing():
            return
        has_more = self._records.has_more and not self._has_written_end
        if has_more and self._is_wanted:
            self._next_turn = self._loop.call_soon(self._take_later_turn)
        if has_more or not self._is_wanted:
            self._socket.pause_reading()
        else:
            self._socket.resume_reading()

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._flush()
        if self._socket is not None:
            self._socket.close()

    def _flush(self) -> None:
        data = self._records.to_send()
        if data and self._socket is not None and not self._has_written_end:
            self._socket.write(data)

    # ── the transport of the protocol ─────────────────────────────────────────────────────────────────────────────────

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peercert":
            return self._records.tls.getpeercert()
        return default if self._socket is None else self._socket.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._socket is None or self._socket.is_closing()

    def pause_reading(self) -> None:
        self._is_wanted = False
        self._update_reading()

    def resume_reading(self) -> None:
        self._is_wanted = True
        self._update_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._socket is not None:
            self._socket.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._socket is None else self._socket.get_write_buffer_size()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not data or self._has_written_end or self.is_closing():
            return
        try:
            self._records.send(data)
        except ssl.SSLError as error:
            self._fail(error)
        else:
            self._flush()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._socket is None or self._has_written_end or self._socket.is_closing():
            return
        self._records.end()
        self._flush()
        self._has_written_end = True
        self._socket.write_eof()
        self._update_reading()

    def close(self) -> None:
        if self._socket is not None and not self._socket.is_closing():
            if self._is_connected and not self._has_written_end:
                self._records.end()
                self._flush()
            self._socket.close()

    def abort(self) -> None:
        if self._socket is not None:
            self._socket.abort()


class TlsSocket:
    """A client's socket with TLS, for code that watches its descriptor.

    As with a non-blocking SSL socket, data that was not sent must be passed to `send` again.
    """

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, server_hostname: str) -> None:
        self._socket = connected
        self._records = TlsRecords(context, server_hostname=server_hostname)
        self._unsent = b""
        """Bytes for the peer, and how much data they have."""
        self._unsent_data = 0

    def do_handshake(self, patience: float) -> None:
        """Complete the handshake within so many seconds; blocks. Raises OSError."""
        records, end = self._records, time.monotonic() + patience
        records.handshake()
        while True:
            self._socket.sendall(records.to_send())
            if records.failure is not None:
                raise records.failure
            if records.is_established:
                return
            if not records.has_more:
                if not (data := receive_until(end, self._socket, _READ_SIZE)):
                    raise ConnectionResetError("the peer has closed the connection")
                records.receive(data)
            records.process()

    @property
    def has_more(self) -> bool:
        """Whether received bytes wait for `recv`, which the descriptor does not show."""
        return self._records.has_more

    def recv(self, size: int) -> bytes:
        """Return data, or nothing at its end. Raises OSError, ssl.SSLWantReadError without data."""
        records = self._records
        if not records.has_more and not records.is_closed:
            if not (received := self._socket.recv(size)):
                return b""
            records.receive(received)
        data = records.process()
        if records.unsent > MOST_ANSWERS:
            raise ConnectionAbortedError(_UNREAD)
        if data:
            return data
        if records.failure is not None:
            raise records.failure
        if records.is_closed:
            return b""
        raise ssl.SSLWantReadError

    def send(self, data: bytes | memoryview) -> int:
        """Send some of the data and return how much. Raises OSError."""
        if not self._unsent:
            part = memoryview(data)[:_READ_SIZE]
            self._records.send(part)
            self._unsent, self._unsent_data = self._records.to_send(), len(part)
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except ConnectionError as error:
            raise self._records.read_alert(self._socket.fileno()) or error from None
        return self._unsent_data

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, is_blocking: bool) -> None:
        self._socket.setblocking(is_blocking)

    def close(self) -> None:
        self._socket.close()
