"""uvicorn with bounds: time to receive a request's head, number of connections, invalid requests.

A connection that is silent or slow between requests is closed after `api.read_timeout`; bodies are bounded in
`connectivity.api.requests`. Connections beyond `api.max_clients` are closed at once, so that they take no file descriptors
from links to brokers. Bytes that a client sends at once are parsed in turns with other tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import Iterator
from time import perf_counter
from typing import Any
from urllib.parse import unquote

import h11
import msgspec
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from connectivity.api.errors import error_body, fault
from connectivity.api.responses import JSON
from connectivity.config.api_settings import ApiSettings

_GRACE_SECONDS = 1
"""How long pending responses may take when the service stops."""

_LOOPBACK = ["127.0.0.0/8", "::1", "::ffff:127.0.0.0/104"]
"""The addresses of proxies on this machine, whose `x-forwarded-for` is believed."""

PART_SIZE = 1024
"""How many bytes are parsed at once: the smallest chunks of a body take milliseconds."""

TURN_SECONDS = 0.0005
"""How long bytes of a connection are parsed before other tasks get a turn on the event loop."""


class Server(uvicorn.Server):
    """Signals are the service's: it drains before it stops."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def server_of(app: ASGIApp, settings: ApiSettings) -> Server:
    """The server of the application; `serve([socket])` runs it until `should_exit`."""

    class Bounded(_Protocol):
        head_seconds = settings.read_timeout.total_seconds()
        max_clients = settings.max_clients

    return Server(
        uvicorn.Config(
            _with_origin_form(app),
            http=Bounded,
            ws="none",
            log_config=None,
            lifespan="off",
            access_log=False,
            server_header=False,
            forwarded_allow_ips=_LOOPBACK,
            timeout_keep_alive=math.ceil(settings.read_timeout.total_seconds()),
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
    )


_ABSOLUTE_TARGET = re.compile(rb"https?://([^/]+)(/.*)?", re.IGNORECASE)


def _with_origin_form(app: ASGIApp) -> ASGIApp:
    """Return an application that takes path and host from absolute request targets (RFC 9112, 3.2.2)."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        if (target := _ABSOLUTE_TARGET.fullmatch(scope["raw_path"])) is not None:
            path = target[2] or b"/"
            headers = [(b"host", target[1]), *(each for each in scope["headers"] if each[0] != b"host")]
            scope = {**scope, "raw_path": path, "path": unquote(path.decode("ascii")), "headers": headers}
        await app(scope, receive, send)

    return run


class _Protocol(H11Protocol):
    """One connection of a client."""

    head_seconds: float
    max_clients: int

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_deadline: asyncio.TimerHandle | None = None
        self._unread = memoryview(b"")
        self._next_turn: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_clients:
            transport.close()
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unread = memoryview(b"".join((self._unread, data)))
        if self._next_turn is None:
            self._take_turn()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._next_turn is None:
            self._take_turn()

    def _take_turn(self) -> None:
        """Parse received bytes for a while; what follows a request waits for its response."""
        begun, self._next_turn = perf_counter(), None
        while self._unread and not self.transport.is_closing():
            if self.cycle is not None and not (self.cycle.more_body or self.cycle.response_complete):
                # The library would parse all of it at once after the response.
                self.transport.pause_reading()
                return
            part, self._unread = self._unread[:PART_SIZE], self._unread[PART_SIZE:]
            self._parse(bytes(part))
            if self._unread and perf_counter() - begun > TURN_SECONDS and not self.transport.is_closing():
                self.transport.pause_reading()
                self._next_turn = self.loop.call_soon(self._take_turn)
                return
        if not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _parse(self, part: bytes) -> None:
        super().data_received(part)
        # The library's own timer between two requests ends with the first byte, however long the others take.
        if self._is_between_requests:
            self._expect_head()
        else:
            self._cancel_head_deadline()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - the library's signature
        """Answer an invalid HTTP request in the form of every error, if that is still possible."""
        body = msgspec.json.encode(error_body(fault("api:request.invalid", "The request is not valid HTTP/1.1.")))
        headers = [("content-type", JSON), ("content-length", str(len(body))), ("connection", "close")]
        events = (h11.Response(status_code=400, headers=headers, reason=b"Bad Request"), h11.Data(data=body))
        with contextlib.suppress(h11.LocalProtocolError):
            for event in (*events, h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expect_head(self) -> None:
        if self._head_deadline is None:
            self._head_deadline = self.loop.call_later(self.head_seconds, self._close_idle)

    def _cancel_head_deadline(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _close_idle(self) -> None:
        self._head_deadline = None
        if self._is_between_requests and not self.transport.is_closing():
            self.transport.close()
