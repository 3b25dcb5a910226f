"""Events in the order of storing, the cursors of targets, and policies with an expiring subject."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from spark_store.errors import Unstorable
from spark_store.journal import erasure, statements
from spark_store.journal.journal import Journal
from spark_store.records import Change, CursorPosition, EventCause, PolicyDue, PublishedEvent
from tests.support.journal_entries import LAMP, LATER, MUCH, POLICY, change, event, history, snapshot
from tests.support.temporary_journal import TemporaryJournal, due, follow, follow_on, followed, move, places

SECRET = EventCause("conn-1", {"correlation-id": "a secret"})


@pytest.fixture
def journal() -> Iterator[Journal]:
    made = TemporaryJournal()
    yield made
    made.close()


def caused(revision: int, cause: EventCause) -> Change:
    return Change((event(LAMP, revision),), (snapshot(LAMP, revision),), None, cause)


def test_causes_and_places_outlive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.open(path)
    journal.append([caused(1, SECRET)])
    follow(journal, "conn-1", ["0:out"])
    journal.commit()
    journal.close()
    again = Journal.open(path)
    assert places(again) == [CursorPosition("conn-1", "0:out", 1)]
    assert [found.cause for found in follow_on(again, 0, 10, MUCH)] == [SECRET]
    again.close()


def test_an_erasure_takes_the_causes_along(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db")
    journal.append([caused(1, SECRET), change(POLICY, 1)])
    journal.append([caused(2, SECRET)])
    record = journal.within(lambda it: erasure.begin(it, "thing", str(LAMP), "", "operator"))
    journal.within(lambda it: erasure.take_entries(it, record))
    journal.commit()
    assert journal.scrub()
    assert [found.seq for found in follow_on(journal, 0, 10, MUCH)] == [2]
    assert b"a secret" not in (tmp_path / "journal.db").read_bytes()
    journal.close()


def test_the_last_state_of_a_thing_is_stored_with_the_cause_of_its_deletion(journal: Journal) -> None:
    cause = EventCause("conn-1", {"correlation-id": "c-1"}, b'{"thingId":"x","attributes":{"n":2e3}}')
    journal.append([Change((event(LAMP, 1),), (snapshot(LAMP, 1),), None, cause)])
    journal.append([Change((event(LAMP, 2),), (snapshot(LAMP, 2),), None, cause._replace(last=None))])
    assert [each.cause for each in follow_on(journal, 0, 10, MUCH)] == [cause, cause._replace(last=None)]
    assert len(follow_on(journal, 0, 10, 30)) == 1, "the last state counts among the bytes"


def test_headers_that_are_no_json_cost_their_change_alone(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db")
    with pytest.raises(Unstorable, match="expected headers that are JSON"):
        journal.append([caused(1, EventCause("conn-1", {"x": object()}))])
    journal.append([caused(1, SECRET)])
    journal.close()


def test_the_journal_returns_all_events_in_order_with_their_causes(journal: Journal) -> None:
    cause = EventCause("conn-1", {"correlation-id": "c-1", "requested-acks": ["conn-2:x"], "größe": 1.5})
    journal.append([change(LAMP, 1), Change((event(POLICY, 1),), (snapshot(POLICY, 1),), None, cause)])
    journal.append([change(LAMP, 2)])
    expected = [
        PublishedEvent(1, event(LAMP, 1), None),
        PublishedEvent(2, event(POLICY, 1), cause),
        PublishedEvent(3, event(LAMP, 2), None),
    ]
    assert follow_on(journal, 0, 10, MUCH) == expected
    assert follow_on(journal, 1, 1, MUCH) == expected[1:2]
    assert follow_on(journal, 3, 10, MUCH) == follow_on(journal, 0, -1, MUCH) == []
    assert followed(journal, POLICY, 1) == expected[1]
    assert followed(journal, POLICY, 2) is None
    assert followed(journal, LAMP, 1) == expected[0]
    assert journal.trim(1, LATER) == 1
    journal.commit()
    assert follow_on(journal, 0, 10, MUCH) == expected[1:]
    assert followed(journal, LAMP, 1) == expected[2], "the next one that is still there"


def test_a_page_of_events_that_are_followed_stops_at_the_byte_budget(journal: Journal) -> None:
    value = b'"' + b"x" * 96 + b'"'
    journal.append([change(LAMP, revision, value) for revision in range(1, 6)])
    assert [found.seq for found in follow_on(journal, 0, 10, 1)] == [1]
    assert [found.seq for found in follow_on(journal, 0, 10, 200)] == [1, 2]


def test_a_new_place_is_after_the_newest_event_and_goes_forward_only(journal: Journal) -> None:
    """Removed targets of a connection lose their cursors; those of another connection stay."""
    journal.append(history(LAMP, 2))
    journal.write([change(LAMP, 3)])
    follow(journal, "conn-1", ["0:a", "0:b"])
    follow(journal, "conn-2", ["0:a"])
    assert places(journal) == []
    journal.commit()
    assert places(journal) == [
        CursorPosition("conn-1", "0:a", 3),
        CursorPosition("conn-1", "0:b", 3),
        CursorPosition("conn-2", "0:a", 3),
    ]
    journal.append([change(LAMP, 4)])
    move(
        journal,
        [
            CursorPosition("conn-1", "0:b", 4, 2, (("acme:lamp", 3), ("acme:größe", 4))),
            CursorPosition("conn-2", "0:a", 1, 0, (("acme:lamp", 1),)),
            CursorPosition("conn-3", "0:a", 4),
        ],
    )
    follow(journal, "conn-1", ["0:b", "0:c"])
    journal.commit()
    assert places(journal) == [
        CursorPosition("conn-1", "0:b", 4, 2, (("acme:lamp", 3), ("acme:größe", 4))),
        CursorPosition("conn-1", "0:c", 4),
        CursorPosition("conn-2", "0:a", 3),
    ]
    follow(journal, "conn-1", [])
    journal.rollback()
    follow(journal, "conn-2", [])
    journal.commit()
    assert [place.connection for place in places(journal)] == ["conn-1", "conn-1"]


def test_a_policy_with_an_expiry_is_due_until_it_was_checked(journal: Journal) -> None:
    """The noted value is returned too; a change makes the policy due again; a deleted one is not due."""
    expiring = {"entries": {"A": {"subjects": {"a:b": {"expiry": "2030-01-15T08:00:00Z"}}}}}

    def write(revision: int, state: dict[str, Any] | None) -> None:
        left = msgspec.structs.replace(snapshot(POLICY, revision, {}), state=state)
        journal.append([Change((event(POLICY, revision),), (left,))])

    def look(revision: int, at: str | None, note: bytes | None = None) -> None:
        journal.within(lambda it: statements.look_again(it, POLICY, revision, at, note))
        journal.commit()

    journal.append([change(LAMP, 1)])
    write(1, {"entries": {}})
    assert due(journal, LATER, 10) == []
    write(2, expiring)
    assert due(journal, "", 10) == [PolicyDue(POLICY, None)]
    look(2, "2030-01-15T07:00:00.000000Z", b"notified")
    assert due(journal, "2030-01-15T06:59:59.999999Z", 10) == []
    assert due(journal, "2030-01-15T07:00:00.000000Z", 10) == [PolicyDue(POLICY, b"notified")]
    assert due(journal, LATER, 0) == []
    write(3, expiring)
    assert due(journal, "", 10) == [PolicyDue(POLICY, b"notified")]
    look(2, "2030-01-15T07:00:00.000000Z", b"too late")
    assert due(journal, "", 10) == [PolicyDue(POLICY, b"too late")]
    look(2, None)
    assert due(journal, LATER, 10) != []
    look(3, None)
    assert due(journal, LATER, 10) == []
    look(3, LATER, b"nobody")
    assert due(journal, LATER, 10) == []
    write(4, expiring)
    write(5, None)
    assert due(journal, LATER, 10) == []
