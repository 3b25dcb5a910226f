"""Which conversation a signal belongs to, as log lines and traces say it.

Two headers tell: `correlation-id`, which the client chose or was given, and `traceparent`, the context of a trace (W3C Trace
Context), which is there if the client sent one or the service makes traces (`connectivity.monitoring.tracing`). Log lines
call them `correlation_id` and `trace_id`, everywhere; what belongs to a connection is told by `connection`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
CORRELATION_ID = "correlation-id"

_CONTEXT = re.compile(r"[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}\b")


def trace_of(headers: Mapping[str, Any]) -> str | None:
    """The id of the trace that a signal with these headers belongs to, as 32 hexadecimal digits."""
    context = headers.get(TRACEPARENT)
    found = _CONTEXT.match(context) if isinstance(context, str) else None
    return found["trace"] if found is not None else None


def log_context(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a log line about a signal with these headers; `trace_id` only where there is a trace."""
    fields = {"correlation_id": headers.get(CORRELATION_ID)}
    if (trace := trace_of(headers)) is not None:
        fields["trace_id"] = trace
    return fields
