"""Audit entries about users who act on behalf of others.

There is one in an hour for the same user, action and names, so that a dashboard does not displace other entries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

from spark_store.records import AuditEntry

_INTERVAL: Final = timedelta(hours=1)
_MOST_REMEMBERED: Final = 1_000


class BehalfAudit:
    """Writes the entries. `note` adds one to the audit log."""

    def __init__(self, now: Callable[[], datetime], note: Callable[[AuditEntry], Awaitable[None]]) -> None:
        self._now = now
        self._note = note
        self._noted: dict[tuple[str, str, frozenset[str]], datetime] = {}

    async def record(self, by: str, action: str, subjects: Iterable[str]) -> None:
        """Note that a user acts on behalf of subjects. Raises StoreError."""
        now, key = self._now(), (by, action, frozenset(subjects))
        if (before := self._noted.get(key)) is not None and timedelta() <= now - before < _INTERVAL:
            return
        names = ", ".join(sorted(key[2]))
        await self._note(AuditEntry(now.isoformat(), by, f"{action} on behalf of others", "", None, names))
        if len(self._noted) >= _MOST_REMEMBERED:
            self._noted.clear()
        self._noted[key] = now
