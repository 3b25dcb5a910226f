"""Errors because of which a consumer reads nothing, although the library tries again and again.

The library reports most errors of fetching, and of joining the group, at each of its attempts, which follow within seconds.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import structlog
from confluent_kafka import KafkaError

from connectivity.errors import Detail
from connectivity.security.redaction import redact

log = structlog.get_logger(__name__)

PATIENCE, MEMORY = 5.0, 10.0
"""Seconds until a repeated error is reported, and until one that does not occur again is over."""


class _Episode(NamedTuple):
    """When an error was first and last reported, in monotonic seconds, and its text."""

    first: float
    last: float
    text: str


class ReadErrors:
    """The errors of one consumer. Its thread notes them, and the event loop reads `lasting`."""

    def __init__(self) -> None:
        self._episodes: dict[str, _Episode] = {}

    def note(self, error: KafkaError, topic: str) -> None:
        """Note an error about a topic, or "" if it is about the group."""
        now = time.monotonic()
        text = redact(f"{topic}: {error.str()}" if topic else str(error.str()))
        before = self._episodes.get(topic)
        first = before.first if before is not None and now - before.last <= MEMORY else now
        self._episodes[topic] = _Episode(first, now, text)
        if before is not None and before.last - first < PATIENCE <= now - first:
            log.warning("records cannot be read", error=text)

    @property
    def lasting(self) -> str | None:
        """Return a condition for the status while an error lasts."""
        now = time.monotonic()
        for first, last, text in list(self._episodes.values()):
            if now - last <= MEMORY and last - first >= PATIENCE:
                return f"{Detail.CONNECTED.value}: records cannot be read: {text}"
        return None
