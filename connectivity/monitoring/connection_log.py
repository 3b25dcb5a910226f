"""What has happened to a connection lately, as its log shows it.

A `ConnectionLog` keeps, of each kind of happening at each address, the last ten that went well and the last ten that did
not, and that for an hour: counted from when it was switched on, from when somebody last read it, or from when something
was last written down, whichever came last. When its time is over it forgets everything (Ditto connections, connection logs).

Whoever writes something down is in a hurry: an entry is a tuple until somebody reads it, and nothing at all while the log
is off. Payloads are never kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from mappings.ids import EntityId

KEPT_SECONDS: Final = 3600.0
"""So long a log stays on."""

MOST_KEPT: Final = 10
"""So many entries of one kind at one address that went well, and as many that did not."""

MOST_BYTES: Final = 250_000
"""What a log may have, as JSON; the oldest entries give way."""

NOT_PROVIDED: Final = "<not-provided>"
"""Stands for a correlation id that nobody gave."""

Entry: TypeAlias = "tuple[float, str | None, EntityId | None, str | None]"
"""Seconds since the epoch, correlation id, what it was about, and the message where it is not the usual one of its ring."""


class EntryKind(NamedTuple):
    """What entries of a ring have in common."""

    category: str
    type: str
    address: str | None
    is_success: bool


class ConnectionLog:
    """The log of one connection; off until somebody switches it on."""

    __slots__ = ("_rings", "_until", "_words", "is_on", "now", "since")

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` gives seconds since the epoch."""
        self.now = now
        self.is_on = False
        self.since = self._until = 0.0
        self._rings: dict[EntryKind, deque[Entry]] = {}
        self._words: dict[EntryKind, str] = {}
        """The usual message of each ring."""

    def __repr__(self) -> str:
        return f"<ConnectionLog {'on' if self.is_on else 'off'}, {sum(map(len, self._rings.values()))} entries>"

    def enable(self) -> None:
        """Switch on, or on for longer."""
        if not self.is_on:
            self.is_on, self.since = True, self.now()
        self._until = self.now() + KEPT_SECONDS

    def disable(self) -> None:
        """Switch off, and forget everything."""
        self.is_on = False
        self.reset()

    def reset(self) -> None:
        """Forget everything that was written down."""
        for ring in self._rings.values():
            ring.clear()

    def ring(self, kind: EntryKind, words: str) -> tuple[deque[Entry], str | None]:
        """Where entries of this kind go while the log `is_on`, the same one for as long as there is a log; and what stands
        in an entry that says `words`: nothing, where that is the usual message of the ring."""
        ring = self._rings.get(kind)
        if ring is None:
            ring = self._rings[kind] = deque(maxlen=MOST_KEPT)
            self._words[kind] = words
        return ring, None if self._words[kind] == words else words

    def write(self, kind: EntryKind, words: str) -> None:
        """Write down what seldom happens."""
        if self.is_on:
            ring, words_beside = self.ring(kind, words)
            ring.append((self.now(), None, None, words_beside))

    def drop(self, kind: EntryKind) -> None:
        """Nothing of this kind happens any more."""
        self._rings.pop(kind, None)
        self._words.pop(kind, None)

    def expire(self) -> None:
        """Once in a while: forget everything when the time is over."""
        if self.is_on and self.now() >= self.until:
            self.disable()

    @property
    def until(self) -> float:
        """When it switches itself off, unless something happens before."""
        return max(self._until, max((ring[-1][0] for ring in self._rings.values() if ring), default=0.0) + KEPT_SECONDS)

    def read(self) -> Mapping[str, Any]:
        """`connectionLogs`, oldest first, and while it is on `enabledSince` and `enabledUntil`. Keeps it on."""
        self.expire()
        if not self.is_on:
            return {"connectionLogs": []}
        self.enable()
        written = ((entry, kind) for kind, ring in self._rings.items() for entry in ring)
        newest_first = sorted(written, key=lambda each: each[0][0])[::-1]
        shown = list(_bounded(_shown(kind, entry, self._words[kind]) for entry, kind in newest_first))
        return {
            "connectionLogs": shown[::-1],
            "enabledSince": instant(self.since),
            "enabledUntil": instant(self.until),
        }


def instant(seconds: float) -> str:
    """Seconds since the epoch, as operators read them."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _shown(kind: EntryKind, entry: Entry, usual: str) -> dict[str, Any]:
    at, correlation_id, entity, words = entry
    shown: dict[str, Any] = {
        "correlationId": correlation_id if correlation_id is not None else NOT_PROVIDED,
        "timestamp": instant(at),
        "category": kind.category,
        "type": kind.type,
        "level": "success" if kind.is_success else "failure",
        "message": words if words is not None else usual,
    }
    if kind.address is not None:
        shown["address"] = kind.address
    if entity is not None:
        shown["entityType"], shown["entityId"] = entity.type.value, str(entity)
    return shown


def _bounded(newest_first: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """As many as there is room for."""
    room = MOST_BYTES
    for shown in newest_first:
        room -= len(msgspec.json.encode(shown)) + 1
        if room < 0:
            return
        yield shown
