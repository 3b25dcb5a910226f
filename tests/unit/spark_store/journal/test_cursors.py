"""The positions of targets in the journal."""

from __future__ import annotations

from pathlib import Path

from spark_store.journal.journal import Journal
from spark_store.records import CursorPosition
from tests.support.journal_entries import LAMP, change, history
from tests.support.temporary_journal import TemporaryJournal, advance, keep_only, positions


def test_positions_outlive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.open(path)
    journal.append([change(LAMP, 1)])
    keep_only(journal, "conn-1", ["0:out"])
    journal.commit()
    journal.close()
    again = Journal.open(path)
    assert positions(again) == [CursorPosition("conn-1", "0:out", 1)]
    again.close()


def test_a_new_position_is_after_the_newest_event_and_goes_forward_only() -> None:
    """Removed targets of a connection lose their positions; those of another connection stay."""
    journal = TemporaryJournal()
    journal.append(history(LAMP, 2))
    journal.write([change(LAMP, 3)])
    keep_only(journal, "conn-1", ["0:a", "0:b"])
    keep_only(journal, "conn-2", ["0:a"])
    assert positions(journal) == []
    journal.commit()
    assert positions(journal) == [
        CursorPosition("conn-1", "0:a", 3),
        CursorPosition("conn-1", "0:b", 3),
        CursorPosition("conn-2", "0:a", 3),
    ]
    journal.append([change(LAMP, 4)])
    advance(
        journal,
        [
            CursorPosition("conn-1", "0:b", 4, 2, (("acme:lamp", 3), ("acme:größe", 4))),
            CursorPosition("conn-2", "0:a", 1, 0, (("acme:lamp", 1),)),
            CursorPosition("conn-3", "0:a", 4),
        ],
    )
    keep_only(journal, "conn-1", ["0:b", "0:c"])
    journal.commit()
    assert positions(journal) == [
        CursorPosition("conn-1", "0:b", 4, 2, (("acme:lamp", 3), ("acme:größe", 4))),
        CursorPosition("conn-1", "0:c", 4),
        CursorPosition("conn-2", "0:a", 3),
    ]
    keep_only(journal, "conn-1", [])
    journal.rollback()
    keep_only(journal, "conn-2", [])
    journal.commit()
    assert [position.connection for position in positions(journal)] == ["conn-1", "conn-1"]
    journal.close()
