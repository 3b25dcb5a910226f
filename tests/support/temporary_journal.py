"""A real journal that is deleted with its object, in a folder in memory if the system has one."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mappings.ids import EntityId
from spark_store.journal import cursors, policy_expiry, published_events
from spark_store.journal.journal import Journal
from spark_store.records import CursorPosition, PolicyDue, PublishedEvent
from tests.support.paths import MEMORY


class _Unsynced(sqlite3.Connection):
    """A connection that does not wait for the disk, because the file need not survive a power cut."""

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        return super().execute("PRAGMA synchronous=OFF" if sql.startswith("PRAGMA synchronous") else sql, *parameters)


class TemporaryJournal(Journal):
    """A journal in its own folder."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        """`clock` returns nanoseconds since 1970."""
        folder = tempfile.mkdtemp(prefix="journal-", dir=MEMORY)
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        opened = Journal.open(Path(folder) / "journal.db", clock=clock, factory=_Unsynced)
        super().__init__(opened.path, opened._writer, opened._reader, clock)


def events_after(journal: Journal, after: int, limit: int, max_bytes: int) -> list[PublishedEvent]:
    return journal.read(lambda it: published_events.events_after(it, after, limit, max_bytes))


def next_event(journal: Journal, entity: EntityId, revision: int) -> PublishedEvent | None:
    return journal.read(lambda it: published_events.next_event(it, entity, revision))


def positions(journal: Journal) -> list[CursorPosition]:
    return journal.read(cursors.positions)


def keep_only(journal: Journal, connection: str, targets: Sequence[str]) -> None:
    journal.within(lambda it: cursors.keep_only(it, connection, targets))


def advance(journal: Journal, positions: Sequence[CursorPosition]) -> None:
    journal.within(lambda it: cursors.advance(it, positions))


def due(journal: Journal, until: str, limit: int) -> list[PolicyDue]:
    return journal.read(lambda it: policy_expiry.due(it, until, limit))
