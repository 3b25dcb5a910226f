"""The connections that the journal stores: revisions, notes on connection files, and the audit log.

Each step shares a commit with the changes that are stored at the same time, and is durable when the call returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from connectivity.store.store import Store
from spark_store.journal import connections
from spark_store.records import AuditEntry, FileNote, StoredRevision

_STEP_NOTES = 500
"""How many notes one step writes: a few milliseconds of the event loop."""


class ConnectionRepository:
    """The stored connections of one journal. Every method raises StoreUnavailable."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def is_available(self) -> bool:
        """Whether the store can write."""
        return self._store.commits.is_available

    def current(self) -> list[StoredRevision]:
        """Return the newest revision of every connection that the API owns, deleted ones included."""
        return self._store.read(connections.current)

    def revisions(self, connection_id: str) -> list[StoredRevision]:
        """Return the stored revisions of a connection that the API owns, the newest first."""
        return self._store.read(lambda it: connections.revisions(it, connection_id))

    def file_notes(self) -> list[FileNote]:
        """Return the notes on connections that files own."""
        return self._store.read(connections.file_notes)

    def audit_entries(self, limit: int) -> list[AuditEntry]:
        """Return the newest entries of the audit log, the newest first."""
        return self._store.read(lambda it: connections.audit_entries(it, limit))

    async def add(self, revision: StoredRevision, entry: AuditEntry) -> None:
        """Store a revision and its audit entry."""
        await self._store.commits.execute(lambda it: connections.store(it, revision, entry))

    async def override(self, note: FileNote, entry: AuditEntry) -> None:
        """Store how an operator overrides a connection that a file owns, and its audit entry."""

        def step(it: Any) -> None:
            connections.note_files(it, [note])
            connections.audit(it, entry)

        await self._store.commits.execute(step)

    async def note_files(self, notes: Sequence[FileNote]) -> None:
        """Store notes on connections that files own."""
        for start in range(0, len(notes), _STEP_NOTES):
            await self._store.commits.execute(partial(connections.note_files, notes=notes[start : start + _STEP_NOTES]))

    async def audit(self, entry: AuditEntry) -> None:
        """Store the audit entry of an action that creates no revision."""
        await self._store.commits.execute(lambda it: connections.audit(it, entry))
