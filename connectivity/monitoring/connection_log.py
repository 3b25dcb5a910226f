"""The log of a connection: its latest successes and failures of each kind at each address.

Of each kind of entry at each address, a `ConnectionLog` keeps the last ten successes and the last ten failures. The log
switches itself off, and is emptied, one hour after it was switched on, read, or written to, whichever came last (Ditto
connections, connection logs).

Writing is cheap: an entry is a tuple until the log is read, and is not made while the log is off. Payloads are never
stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from mappings.ids import EntityId
from mappings.texts import shorten

KEPT_SECONDS: Final = 3600.0
"""How long a log stays on, in seconds."""

MOST_KEPT: Final = 10
"""The most entries of one kind at one address, for successes and for failures each."""

MOST_BYTES: Final = 250_000
"""The largest log, as JSON in bytes; the oldest entries are left out."""

NOT_PROVIDED: Final = "<not-provided>"
"""The correlation ID of an entry without one (Ditto)."""

LogEntry: TypeAlias = "tuple[float, str | None, EntityId | None, str | None]"
"""Seconds since the epoch, correlation ID, entity, and the message unless it is the usual one."""


class EntryKind(NamedTuple):
    """The properties that all entries of a ring share."""

    category: str
    type: str
    address: str | None
    is_success: bool


class ConnectionLog:
    """The log of one connection; off until it is enabled."""

    __slots__ = ("_messages", "_rings", "_until", "is_on", "now", "since")

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` returns seconds since the epoch."""
        self.now = now
        self.is_on = False
        self.since = self._until = 0.0
        self._rings: dict[EntryKind, deque[LogEntry]] = {}
        self._messages: dict[EntryKind, str] = {}
        """The usual message of each ring."""

    def enable(self) -> None:
        """Switch the log on, or keep it on for another hour."""
        if not self.is_on:
            self.is_on, self.since = True, self.now()
        self._until = self.now() + KEPT_SECONDS

    def disable(self) -> None:
        """Switch the log off and delete its entries."""
        self.is_on = False
        self.reset()

    def reset(self) -> None:
        """Delete all entries."""
        for ring in self._rings.values():
            ring.clear()

    def ring(self, kind: EntryKind, words: str) -> tuple[deque[LogEntry], str | None]:
        """Return the ring for entries of this kind, always the same one, and the message to store in an entry.

        The message is None where `words` is the usual message of the ring. Append only while the log `is_on`.
        """
        ring = self._rings.get(kind)
        if ring is None:
            ring = self._rings[kind] = deque(maxlen=MOST_KEPT)
            self._messages[kind] = words
        return ring, None if self._messages[kind] == words else words

    def write(self, kind: EntryKind, words: str) -> None:
        """Write an entry that is about no signal; for rare events."""
        if self.is_on:
            ring, message = self.ring(kind, words)
            ring.append((self.now(), None, None, message))

    def drop(self, kind: EntryKind) -> None:
        """Delete the entries of this kind, which no longer occurs."""
        self._rings.pop(kind, None)
        self._messages.pop(kind, None)

    def expire(self) -> None:
        """Switch the log off if its time is over. To be called regularly."""
        if self.is_on and self.now() >= self.expires_at:
            self.disable()

    @property
    def expires_at(self) -> float:
        """When the log switches itself off unless it is written to before, in seconds since the epoch."""
        return max(self._until, max((ring[-1][0] for ring in self._rings.values() if ring), default=0.0) + KEPT_SECONDS)

    def read(self) -> Mapping[str, Any]:
        """Return the entries, oldest first, and while the log is on its times (Ditto). Keeps it on."""
        self.expire()
        if not self.is_on:
            return {"connectionLogs": []}
        self.enable()
        written = ((entry, kind) for kind, ring in self._rings.items() for entry in ring)
        newest_first = sorted(written, key=lambda each: each[0][0])[::-1]
        shown = list(_limit_size(_entry_as_json(kind, entry, self._messages[kind]) for entry, kind in newest_first))
        return {
            "connectionLogs": shown[::-1],
            "enabledSince": instant(self.since),
            "enabledUntil": instant(self.expires_at),
        }


def instant(seconds: float) -> str:
    """Format seconds since the epoch as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _entry_as_json(kind: EntryKind, entry: LogEntry, usual_message: str) -> dict[str, Any]:
    at, correlation_id, entity, words = entry
    shown: dict[str, Any] = {
        "correlationId": shorten(str(correlation_id)) if correlation_id is not None else NOT_PROVIDED,
        "timestamp": instant(at),
        "category": kind.category,
        "type": kind.type,
        "level": "success" if kind.is_success else "failure",
        "message": words if words is not None else usual_message,
    }
    if kind.address is not None:
        shown["address"] = kind.address
    if entity is not None:
        shown["entityType"], shown["entityId"] = entity.type.value, str(entity)
    return shown


def _limit_size(newest_first: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the entries that fit into `MOST_BYTES`."""
    bytes_left = MOST_BYTES
    for shown in newest_first:
        bytes_left -= len(msgspec.json.encode(shown)) + 1
        if bytes_left < 0:
            return
        yield shown
