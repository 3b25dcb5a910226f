"""What the file of a journal keeps of causes; what every journal does about following is among the behaviours."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_store.errors import Unstorable
from spark_store.journal import erasure
from spark_store.journal.journal import SqliteJournal
from spark_store.records import Change, CursorPosition, EventCause
from tests.support.journal_entries import LAMP, MUCH, POLICY, change, event, snapshot

SECRET = EventCause("conn-1", {"correlation-id": "a secret"})


def caused(revision: int, cause: EventCause) -> Change:
    return Change((event(LAMP, revision),), (snapshot(LAMP, revision),), None, cause)


def test_causes_and_places_outlive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal.open(path)
    journal.append([caused(1, SECRET)])
    journal.follow("conn-1", ["0:out"])
    journal.commit()
    journal.close()
    again = SqliteJournal.open(path)
    assert again.places() == [CursorPosition("conn-1", "0:out", 1)]
    assert [found.cause for found in again.follow_on(0, 10, MUCH)] == [SECRET]
    again.close()


def test_an_erasure_takes_the_causes_along(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path / "journal.db")
    journal.append([caused(1, SECRET), change(POLICY, 1)])
    journal.append([caused(2, SECRET)])
    record = journal.within(lambda it: erasure.begin(it, "thing", str(LAMP), "", "operator"))
    journal.within(lambda it: erasure.take_entries(it, record))
    journal.commit()
    assert journal.scrub()
    assert [found.seq for found in journal.follow_on(0, 10, MUCH)] == [2]
    assert b"a secret" not in (tmp_path / "journal.db").read_bytes()
    journal.close()


def test_headers_that_are_no_json_cost_their_change_alone(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path / "journal.db")
    with pytest.raises(Unstorable, match="expected headers that are JSON"):
        journal.append([caused(1, EventCause("conn-1", {"x": object()}))])
    journal.append([caused(1, SECRET)])
    journal.close()
