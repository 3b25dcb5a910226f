"""Configuration of logging: text for people, or one JSON object per line for machines.

The only module with structlog settings. Logs of client libraries, which use the standard library's loggers, and uncaught
exceptions go to the same stream in the same format. Secrets in use are removed from every line
(`connectivity.security.redaction`).
"""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from textwrap import indent
from types import TracebackType
from typing import Any, TextIO

import structlog
from structlog.typing import ExcInfo, Processor

from connectivity.security.redaction import redact
from mappings.texts import escape_control_characters, shorten

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
CORRELATION_ID = "correlation-id"

_RENDERED_AS_THEY_ARE = frozenset({"event", "level", "logger", "timestamp"})
_INDENT = "    "
_CONTEXT = re.compile(r"[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}\b")


def configure(*, log_format: str, level: str) -> None:
    """Send every log line to standard error as `log_format` (`text` or `json`), from `level` on."""
    shared: Sequence[Processor] = (
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info if log_format == "json" else _unchanged,
    )
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderers: Sequence[Processor] = (
        (structlog.processors.JSONRenderer(),)
        if log_format == "json"
        else (
            _escape_controls,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_write_traceback),
        )
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _RedactingFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn.access", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def install_exception_hooks() -> None:
    """Log exceptions that end the process or a thread, or that an object's finalizer raises."""
    log = structlog.get_logger(__name__)

    def process_ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        log.critical("process ends with an uncaught exception", exc_info=(kind, error, trace))

    def thread_ended(about: threading.ExceptHookArgs) -> None:
        name = about.thread.name if about.thread is not None else "unknown"
        trace = (about.exc_type, about.exc_value or about.exc_type(), about.exc_traceback)
        log.error("thread ended with an uncaught exception", thread=name, exc_info=trace)

    def unraisable(about: sys.UnraisableHookArgs) -> None:
        error = about.exc_value or about.exc_type()
        where = getattr(about.object, "__qualname__", type(about.object).__name__)
        log.error("exception could not be raised", where=where, exc_info=(about.exc_type, error, about.exc_traceback))

    sys.excepthook, threading.excepthook, sys.unraisablehook = process_ended, thread_ended, unraisable


class _RedactingFormatter(structlog.stdlib.ProcessorFormatter):
    """Removes secrets from lines."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def _unchanged(_logger: object, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return event


def _escape_controls(_logger: object, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape control characters, which a terminal may obey, in the event and all fields."""
    for name, value in event.items():
        if name == "exc_info":
            continue
        text = value if isinstance(value, str) else repr(value)
        if not text.isprintable():
            # The renderer quotes fields with white space, and escapes it.
            event[name] = escape_control_characters(text, keep="" if name in _RENDERED_AS_THEY_ARE else "\t\n\r")
    return event


def _write_traceback(line: TextIO, about: ExcInfo) -> None:
    """Write a traceback, without the values of variables, which may be secrets.

    Its lines are indented: no text of an exception looks like a line of the log.
    """
    written = io.StringIO()
    structlog.dev.plain_traceback(written, about)
    line.write(indent(escape_control_characters(written.getvalue(), keep="\t\n"), _INDENT))


def trace_of(headers: Mapping[str, Any]) -> str | None:
    """Return the trace ID in the headers of a signal, 32 hexadecimal digits, if any."""
    context = headers.get(TRACEPARENT)
    match = _CONTEXT.match(context) if isinstance(context, str) else None
    return match["trace"] if match is not None else None


def log_context(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the log fields of a signal with these headers; `trace_id` only if there is a trace."""
    correlation = headers.get(CORRELATION_ID)
    fields = {"correlation_id": shorten(correlation) if isinstance(correlation, str) else correlation}
    if (trace := trace_of(headers)) is not None:
        fields["trace_id"] = trace
    return fields
