"""An HTTP server with constant responses, for tests of clients of the service.

with canned({"GET /api/2/connections": [{"id": "a"}]}) as server:
    ...
    assert server.requests[-1].headers["authorization"] == "Bearer …"
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

PROGRAM = (
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from connectivity.cli.main import main; main()",
)
"""`connectivity` as a process that accepts SIGINT, even if the test run ignores it."""


@dataclass(frozen=True)
class ReceivedRequest:
    """A request."""

    line: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """A response: a document or a body, or `raw`, which is written to the socket instead of a response."""

    document: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = "application/json"
    raw: bytes | None = None

    @property
    def data(self) -> bytes:
        if self.body is not None:
            return self.body
        return b"" if self.document is None else json.dumps(self.document).encode()


HTML = Reply(body=b"<html><h1>Welcome to nginx!</h1></html>", content_type="text/html")
"""A response of another server: the service is not behind this address."""


def fault(status: int, error: str, message: str, **more: Any) -> Reply:
    """Return an error response of the service."""
    return Reply({"status": status, "error": error, "message": message, **more}, status)


Answers: TypeAlias = Reply | list[Reply] | Callable[[ReceivedRequest], Reply]
"""The response to a request: constant, a list whose last item repeats, or a function of the request."""


class Canned:
    """A server on a free port of the loopback interface.

    Requests without a response in the tables return `connectivity:connection.notfound`.
    """

    def __init__(self, table: Mapping[str, Answers]) -> None:
        self.table = dict(table)
        self.requests: list[ReceivedRequest] = []
        self.released = threading.Event()
        self._counts: dict[str, int] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def lines(self) -> list[str]:
        return [each.line for each in self.requests]

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, asked: ReceivedRequest) -> Reply:
        self.requests.append(asked)
        found = self.table.get(asked.line)
        if found is None:
            return fault(404, "connectivity:connection.notfound", f"nothing at {asked.line}")
        if callable(found):
            return found(asked)
        if isinstance(found, list):
            count = self._counts[asked.line] = self._counts.get(asked.line, -1) + 1
            return found[min(count, len(found) - 1)]
        return found

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        canned = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                length = int(self.headers.get("content-length", 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                says = canned._answer(ReceivedRequest(f"{self.command} {self.path}", headers, self.rfile.read(length)))
                self.close_connection = True
                if says.raw is not None:
                    self.wfile.write(says.raw)
                    self.wfile.flush()
                    if says.status == SLOW:
                        canned.released.wait(60)
                    return
                self.send_response(says.status)
                for name, value in says.headers.items():
                    self.send_header(name, value)
                if says.data:
                    self.send_header("content-type", says.content_type)
                self.send_header("content-length", str(len(says.data)))
                self.end_headers()
                self.wfile.write(says.data)

            do_GET = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815 - the library's names

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        return Handler


SLOW = 1
"""The status of a raw response after which the server keeps the socket open."""


@contextmanager
def canned(table: Mapping[str, Answers]) -> Iterator[Canned]:
    server = Canned(table)
    try:
        yield server
    finally:
        server.close()
