"""Connections in the journal's file: every revision, notes of files, authors of changes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from spark_store.journal import connections
from spark_store.journal.schema import migrate
from spark_store.records import AuditEntry, FileNote, StoredRevision

AT = "2030-01-15T07:30:00+00:00"


@pytest.fixture
def file() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, "journal.db")
        yield connection


def revision(connection_id: str, number: int, document: str | None = "{}") -> StoredRevision:
    return StoredRevision(connection_id, number, document, AT, "ada", "modify")


def entry(number: int) -> AuditEntry:
    return AuditEntry(AT, "ada", "modify", "depot", number, "details")


def test_the_newest_revision_is_the_connection_and_the_others_are_its_past(file: sqlite3.Connection) -> None:
    rows = [revision("depot", 1), revision("depot", 2, '{"a": 1}'), revision("annex", 1), revision("depot", 3, None)]
    for row in rows:
        connections.store(file, row, entry(row.revision))
    assert connections.current(file) == [rows[2], rows[3]]
    assert connections.revisions(file, "depot") == [rows[3], rows[1], rows[0]]
    assert connections.revisions(file, "nobody") == []


def test_of_the_past_of_a_connection_the_newest_revisions_are_kept(file: sqlite3.Connection) -> None:
    connections.store(file, revision("annex", 1), entry(1), keep=2)
    for number in range(1, 5):
        connections.store(file, revision("depot", number), entry(number), keep=2)
    assert connections.revisions(file, "depot") == [revision("depot", 4), revision("depot", 3)]
    assert connections.revisions(file, "annex") == [revision("annex", 1)]


def test_a_revision_is_stored_once(file: sqlite3.Connection) -> None:
    connections.store(file, revision("depot", 1), entry(1))
    with pytest.raises(sqlite3.IntegrityError):
        connections.store(file, revision("depot", 1), entry(1))


def test_of_a_file_the_newest_note_is_kept(file: sqlite3.Connection) -> None:
    connections.note_files(file, [FileNote("depot", 1, "aa", AT, None), FileNote("annex", 1, "bb", AT, None)])
    connections.note_files(file, [FileNote("depot", 2, "cc", AT, "closed")])
    assert connections.file_notes(file) == [
        FileNote("annex", 1, "bb", AT, None),
        FileNote("depot", 2, "cc", AT, "closed"),
    ]


def test_a_note_that_comes_late_takes_nothing_back(file: sqlite3.Connection) -> None:
    """Notes of many files are written in many steps, and an operator's change may come in between."""
    wanted = FileNote("depot", 2, "aa", AT, "closed")
    connections.note_files(file, [wanted])
    connections.note_files(file, [FileNote("depot", 1, "aa", AT, None)])
    assert connections.file_notes(file) == [wanted]
    gone = wanted._replace(digest="", override=None)
    connections.note_files(file, [gone])
    assert connections.file_notes(file) == [gone], "a file that is gone makes no revision"


def test_the_newest_entries_of_the_audit_log_are_kept(file: sqlite3.Connection) -> None:
    for number in range(1, 6):
        connections.audit(file, entry(number), keep=3)
    assert connections.audit_entries(file, 10) == [entry(5), entry(4), entry(3)]
    assert connections.audit_entries(file, 1) == [entry(5)]


def test_documents_are_put_in_the_place_of_others_and_nothing_else_changes(file: sqlite3.Connection) -> None:
    rows = [revision("depot", 1), revision("depot", 2, None), revision("annex", 1, "[]")]
    for row in rows:
        connections.store(file, row, entry(row.revision))
    asked: list[StoredRevision] = []

    def change(row: StoredRevision) -> str | None:
        asked.append(row)
        return "[1]" if row.id == "depot" else None

    assert connections.rewrite(file, change) == 1
    assert asked == [rows[2], rows[0]]
    assert connections.revisions(file, "depot") == [rows[1], rows[0]._replace(document="[1]")]
    assert connections.revisions(file, "annex") == [rows[2]]
