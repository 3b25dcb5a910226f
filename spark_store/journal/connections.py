"""Connections in the journal: those of the API, notes on those of files, and the audit log.

Every change of a connection of the API is a row: the newest one is the present, a bounded number of others its past. A
deleted connection has a newest row without document, so that a new one with its ID continues the revisions. Of a connection
that a file owns only the number of changes and an operator's override are stored.

Each function is one short step, on the reading connection or inside the caller's transaction; documents are JSON text with
sealed secrets. Times are UTC text as in events.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from spark_store.records import AuditEntry, FileNote, StoredRevision

KEPT_AUDIT_ENTRIES = 100_000
"""How many entries of the audit log are kept."""

KEPT_REVISIONS = 100
"""How many revisions of a connection are kept."""

_COLUMNS = "id, revision, document, modified, modified_by, action"
# SQLite takes the other columns of the row that has the largest revision.
_CURRENT = f"SELECT {_COLUMNS}, max(revision) FROM connections GROUP BY id ORDER BY id"
_REVISIONS = f"SELECT {_COLUMNS} FROM connections WHERE id = ? ORDER BY revision DESC"
_IDS = "SELECT DISTINCT id FROM connections ORDER BY id"
_REWRITE = "UPDATE connections SET document = ? WHERE id = ? AND revision = ?"
_INSERT = f"INSERT INTO connections ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"
_FORGET = "DELETE FROM connections WHERE id = ? AND revision <= ?"
_FILES = "SELECT id, revision, digest, modified, override FROM connection_files ORDER BY id"
_NOTE_FILE = """
    INSERT INTO connection_files (id, revision, digest, modified, override) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET revision = excluded.revision, digest = excluded.digest, modified = excluded.modified,
    override = excluded.override WHERE excluded.revision >= connection_files.revision
"""
_AUDIT = (
    "INSERT INTO connection_audit (at, requested_by, action, connection, revision, details) VALUES (?, ?, ?, ?, ?, ?)"
)
_FORGET_AUDIT = "DELETE FROM connection_audit WHERE number <= ?"
_AUDITED = """
    SELECT at, requested_by, action, connection, revision, details FROM connection_audit ORDER BY number DESC LIMIT ?
"""


def current(connection: sqlite3.Connection) -> list[StoredRevision]:
    """The newest revision of every connection of the API, sorted by id; also of those that are deleted."""
    return [StoredRevision._make(row[:-1]) for row in connection.execute(_CURRENT)]


def revisions(connection: sqlite3.Connection, connection_id: str) -> list[StoredRevision]:
    """The revisions of a connection that are kept, the newest first."""
    return [StoredRevision._make(row) for row in connection.execute(_REVISIONS, (connection_id,))]


def rewrite(connection: sqlite3.Connection, change: Callable[[StoredRevision], str | None]) -> int:
    """Replace the document of each revision for which `change` returns one; return how many.

    If `change` raises, the caller rolls back the transaction.
    """
    count = 0
    for (connection_id,) in connection.execute(_IDS).fetchall():
        for revision in revisions(connection, connection_id):
            document = change(revision) if revision.document is not None else None
            if document is not None and document != revision.document:
                connection.execute(_REWRITE, (document, revision.id, revision.revision))
                count += 1
    return count


def store(
    connection: sqlite3.Connection, revision: StoredRevision, entry: AuditEntry, keep: int = KEPT_REVISIONS
) -> None:
    """Add a revision and its audit entry; keep only the newest `keep` revisions."""
    connection.execute(_INSERT, revision)
    connection.execute(_FORGET, (revision.id, revision.revision - keep))
    audit(connection, entry)


def file_notes(connection: sqlite3.Connection) -> list[FileNote]:
    """Return the notes on connections that files own."""
    return [FileNote._make(row) for row in connection.execute(_FILES)]


def note_files(connection: sqlite3.Connection, notes: Sequence[FileNote]) -> None:
    """Keep this of connections that files own. A note that comes late takes nothing newer back."""
    connection.executemany(_NOTE_FILE, notes)


def audit(connection: sqlite3.Connection, entry: AuditEntry, keep: int = KEPT_AUDIT_ENTRIES) -> None:
    """Add an audit entry, and keep only the newest `keep`."""
    number = connection.execute(_AUDIT, entry).lastrowid
    assert number is not None
    connection.execute(_FORGET_AUDIT, (number - keep,))


def audit_entries(connection: sqlite3.Connection, limit: int) -> list[AuditEntry]:
    """Return the newest audit entries, the newest first."""
    return [AuditEntry._make(row) for row in connection.execute(_AUDITED, (limit,))]
