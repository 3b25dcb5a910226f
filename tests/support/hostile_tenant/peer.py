"""A hostile client of a listener that uses little processor time: WebSocket frames, encoded once."""

from __future__ import annotations

import json
import socket
import struct
import threading
from types import TracebackType
from typing import Any, Self

from tests.support.wait import PATIENCE
from tests.support.websocket_request import upgrade_request

_TEXT = 0x81
_UNMASKED = bytes(4)
"""A mask of zeros, which leaves the payload unchanged."""


def frame(document: dict[str, Any]) -> bytes:
    """Return a command as a client's text frame."""
    payload = json.dumps(document, separators=(",", ":")).encode()
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", _TEXT, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", _TEXT, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", _TEXT, 0x80 | 127, size)
    return head + _UNMASKED + payload


class Peer:
    """A WebSocket client. It reads only in `receive`, and in the thread of `discard`."""

    def __init__(self, port: int, path: str, host: str = "127.0.0.1") -> None:
        """`host` is the address to connect from; a listener without tokens takes each as a user."""
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE, (host, 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(upgrade_request(path))
        self._received = self._socket.makefile("rb")
        status = self._received.readline()
        assert b" 101 " in status, status
        while self._received.readline() != b"\r\n":
            pass
        self._socket.settimeout(None)

    def send(self, frames: bytes) -> None:
        """Send frames; block while the service does not read. Raises OSError."""
        self._socket.sendall(frames)

    def receive(self) -> dict[str, Any]:
        """Return the next message. Raises OSError if the service has closed the socket."""
        found: dict[str, Any] = json.loads(self.receive_bytes())
        return found

    def receive_bytes(self) -> bytes:
        """Return the bytes of the next message. Raises OSError if the service has closed the socket."""
        while True:
            head = self._received.read(2)
            if len(head) < 2:
                raise ConnectionError("closed by the service")
            size = head[1] & 0x7F
            if size > 125:
                form = "!H" if size == 126 else "!Q"
                (size,) = struct.unpack(form, self._received.read(struct.calcsize(form)))
            payload = self._received.read(size)
            if head[0] == _TEXT:
                return payload

    def ask(self, document: dict[str, Any]) -> dict[str, Any]:
        """Send a command and return the next message."""
        self.send(frame(document))
        return self.receive()

    def discard(self) -> None:
        """Read and discard all input, in a thread."""
        threading.Thread(target=self._discard, daemon=True).start()

    def _discard(self) -> None:
        room = bytearray(1 << 18)
        try:
            while self._socket.recv_into(room):
                pass
        except OSError:
            pass

    def close(self) -> None:
        self._received.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
