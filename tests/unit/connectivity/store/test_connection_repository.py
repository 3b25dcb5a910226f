"""Stored connections, through the store: durable when a call returns."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectivity.store import connection_repository as module
from connectivity.store.connection_repository import ConnectionRepository
from connectivity.store.store import Store
from spark_store.errors import StoreUnavailable
from spark_store.journal.journal import Journal
from spark_store.records import AuditEntry, FileNote, StoredRevision

AT = "2030-01-15T07:30:00+00:00"
REVISION = StoredRevision("depot", 1, "{}", AT, "ada", "create")
ENTRY = AuditEntry(AT, "ada", "create", "depot", 1)


async def test_a_repository_call_returns_after_its_changes_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STEP_NOTES", 2)
    journal = Journal.open(tmp_path / "journal.db")
    store = Store(journal)
    notes = [FileNote(f"file-{number}", 1, "aa", AT, None) for number in range(5)]
    stored = ConnectionRepository(store)
    await stored.add(REVISION, ENTRY)
    await stored.note_files(notes)
    await stored.override(closed := notes[1]._replace(override="closed"), ENTRY)
    await stored.audit(ENTRY)
    other = Store.open(tmp_path / "journal.db")
    seen = ConnectionRepository(other)
    assert (seen.current(), seen.revisions("depot")) == ([REVISION], [REVISION])
    assert seen.file_notes() == [notes[0], closed, *notes[2:]]
    assert seen.audit_entries(10) == [ENTRY] * 3
    await other.close()
    await store.close()
    with pytest.raises(StoreUnavailable):
        await stored.audit(ENTRY)
