"""Log fields that identify the conversation of a signal: `correlation_id` and `trace_id`.

They come from two headers: `correlation-id`, which the client or the service has set, and `traceparent` (W3C Trace Context),
which is there if the client has sent one or the service records traces (`connectivity.monitoring.tracing`). The field
`connection` of a log line is the ID of the connection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
CORRELATION_ID = "correlation-id"

_CONTEXT = re.compile(r"[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}\b")


def trace_of(headers: Mapping[str, Any]) -> str | None:
    """Return the trace ID in the headers of a signal, 32 hexadecimal digits, if any."""
    context = headers.get(TRACEPARENT)
    match = _CONTEXT.match(context) if isinstance(context, str) else None
    return match["trace"] if match is not None else None


def log_context(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the log fields of a signal with these headers; `trace_id` only if there is a trace."""
    fields = {"correlation_id": headers.get(CORRELATION_ID)}
    if (trace := trace_of(headers)) is not None:
        fields["trace_id"] = trace
    return fields
