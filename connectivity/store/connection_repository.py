"""The async face of what the journal's file keeps of connections: a step of this is durable when its call returns.

Each step shares a commit with whatever is being stored just then (`connectivity.store.store`), so none of it is half done.
What it is for is the business of `connectivity.management.manager`; how it lies in the file that of
`spark_store.journal.connections`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from connectivity.store.store import Store
from spark_store.journal import connections
from spark_store.journal.journal import SqliteJournal
from spark_store.records import AuditEntry, FileNote, StoredRevision

_STEP_NOTES = 500
"""How many notes one step writes: some milliseconds."""


class ConnectionRepository:
    """The stored connections of one journal. Every method raises StoreUnavailable."""

    def __init__(self, journal: SqliteJournal, store: Store) -> None:
        self._journal = journal
        self._store = store

    @property
    def is_available(self) -> bool:
        """Whether the store can write."""
        return self._store.is_available

    def current(self) -> list[StoredRevision]:
        """The newest revision of every connection of the API; also of those that are deleted."""
        return self._journal.read(connections.current)

    def revisions(self, connection_id: str) -> list[StoredRevision]:
        """The revisions of a connection of the API that are kept, the newest first."""
        return self._journal.read(lambda it: connections.revisions(it, connection_id))

    def file_notes(self) -> list[FileNote]:
        """What is kept of connections that files own."""
        return self._journal.read(connections.file_notes)

    def audited(self, limit: int) -> list[AuditEntry]:
        """Who changed what, the newest first."""
        return self._journal.read(lambda it: connections.audited(it, limit))

    async def add(self, revision: StoredRevision, entry: AuditEntry) -> None:
        """Store a revision, and who made it."""
        await self._take(lambda it: connections.store(it, revision, entry))

    async def override(self, note: FileNote, entry: AuditEntry) -> None:
        """Note what an operator wants of a connection that a file owns, and who that was."""

        def step(it: Any) -> None:
            connections.note_files(it, [note])
            connections.audit(it, entry)

        await self._take(step)

    async def note_files(self, notes: Sequence[FileNote]) -> None:
        """Keep notes of connections that files own."""
        for start in range(0, len(notes), _STEP_NOTES):
            await self._take(partial(connections.note_files, notes=notes[start : start + _STEP_NOTES]))

    async def audit(self, entry: AuditEntry) -> None:
        """Note that somebody did something that makes no revision."""
        await self._take(lambda it: connections.audit(it, entry))

    async def _take(self, step: Callable[[Any], object]) -> None:
        await self._store.take(lambda: self._journal.within(step))
