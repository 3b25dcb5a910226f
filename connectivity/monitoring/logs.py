"""Logs: text for people, one JSON object a line for machines. Both carry connection and correlation id where there is one.

Only this file knows structlog's settings. The standard library's loggers, which client libraries use, end in the same stream
and format, and so does what nobody has caught. No line shows a secret that is in use (`connectivity.security.redaction`).
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from types import TracebackType

import structlog
from structlog.typing import Processor

from connectivity.security.redaction import redact


def configure(*, log_format: str, level: str) -> None:
    """Send every log line to standard error as `log_format` (`text` or `json`), from `level` on."""
    shared: Sequence[Processor] = (
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info if log_format == "json" else _keep,
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        # Traces without the values of variables: there may be secrets among them.
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _Hiding(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn.access", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def log_what_nobody_caught() -> None:
    """Send the traces of exceptions that end the process, a thread or an object's life to the log as well."""
    log = structlog.get_logger(__name__)

    def ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        log.critical("the process ends for a reason that nobody foresaw", exc_info=(kind, error, trace))

    def thread_ended(about: threading.ExceptHookArgs) -> None:
        name = about.thread.name if about.thread is not None else "unknown"
        trace = (about.exc_type, about.exc_value or about.exc_type(), about.exc_traceback)
        log.error("a thread has ended for a reason that nobody foresaw", thread=name, exc_info=trace)

    def unraisable(about: sys.UnraisableHookArgs) -> None:
        error = about.exc_value or about.exc_type()
        where = getattr(about.object, "__qualname__", type(about.object).__name__)
        log.error(
            "an exception that could go nowhere", where=where, exc_info=(about.exc_type, error, about.exc_traceback)
        )

    sys.excepthook, threading.excepthook, sys.unraisablehook = ended, thread_ended, unraisable


class _Hiding(structlog.stdlib.ProcessorFormatter):
    """Writes lines without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def _keep(_logger: object, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return event
