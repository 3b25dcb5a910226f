"""A collector of spans, for tests: an HTTP server that keeps the exports of OpenTelemetry in memory.

with collector() as spans:
    ... Settings(tracing={"endpoint": spans.address}) ...
    spans.taken
"""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Span(NamedTuple):
    """An exported span, with hexadecimal IDs; the parent's ID is empty for a root span."""

    trace: str
    id: str
    parent: str
    name: str
    service: str
    attributes: dict[str, Any]


class Collector:
    """The received spans. `refusals` are the error statuses of the first responses."""

    def __init__(self, *refusals: int) -> None:
        self.address = ""
        self.paths: list[str] = []
        self.taken: list[Span] = []
        self._refusals = list(refusals)

    def take(self, path: str, body: bytes) -> int:
        """Record an export, and return the status of the response."""
        self.paths.append(path)
        if self._refusals:
            return self._refusals.pop(0)
        for of_service in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _attributes(of_service.resource)["service.name"]
            for scope in of_service.scope_spans:
                for span in scope.spans:
                    ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
                    self.taken.append(Span(*ids, span.name, service, _attributes(span)))
        return 200


@contextmanager
def collector(*refusals: int) -> Iterator[Collector]:
    """Start a collector on a free port."""
    kept = Collector(*refusals)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(kept.take(self.path, body))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    kept.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _attributes(of: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in of.attributes}
