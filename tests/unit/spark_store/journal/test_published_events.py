"""Events in the order of their numbers, with their causes, and when messages were published."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mappings.ids import EntityId
from spark_store.errors import Unstorable
from spark_store.journal import erasure, published_events
from spark_store.journal.journal import Journal
from spark_store.journal.published_events import timestamp_of
from spark_store.records import Change, EventCause, PublishedEvent
from tests.support.journal_entries import LAMP, LATER, MUCH, POLICY, TANK, change, event, published, snapshot, timestamp
from tests.support.temporary_journal import TemporaryJournal, events_after, next_event

SECRET = EventCause("conn-1", {"correlation-id": "a secret"})


@pytest.fixture
def journal() -> Iterator[Journal]:
    made = TemporaryJournal()
    yield made
    made.close()


def caused(revision: int, cause: EventCause) -> Change:
    return Change((event(LAMP, revision),), (snapshot(LAMP, revision),), None, cause)


def test_causes_outlive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.open(path)
    journal.append([caused(1, SECRET)])
    journal.close()
    again = Journal.open(path)
    assert [found.cause for found in events_after(again, 0, 10, MUCH)] == [SECRET]
    again.close()


def test_an_erasure_takes_the_causes_along(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db")
    journal.append([caused(1, SECRET), change(POLICY, 1)])
    journal.append([caused(2, SECRET)])
    record = journal.within(lambda it: erasure.begin(it, "thing", str(LAMP), "", "operator"))
    journal.within(lambda it: erasure.take_entries(it, record))
    journal.commit()
    assert journal.scrub()
    assert [found.seq for found in events_after(journal, 0, 10, MUCH)] == [2]
    assert b"a secret" not in (tmp_path / "journal.db").read_bytes()
    journal.close()


def test_the_last_state_of_a_thing_is_stored_with_the_cause_of_its_deletion(journal: Journal) -> None:
    cause = EventCause("conn-1", {"correlation-id": "c-1"}, b'{"thingId":"x","attributes":{"n":2e3}}')
    journal.append([Change((event(LAMP, 1),), (snapshot(LAMP, 1),), None, cause)])
    journal.append([Change((event(LAMP, 2),), (snapshot(LAMP, 2),), None, cause._replace(last=None))])
    assert [each.cause for each in events_after(journal, 0, 10, MUCH)] == [cause, cause._replace(last=None)]
    assert len(events_after(journal, 0, 10, 30)) == 1, "the last state counts among the bytes"


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
    assert events_after(journal, 0, 10, MUCH) == expected
    assert events_after(journal, 1, 1, MUCH) == expected[1:2]
    assert events_after(journal, 3, 10, MUCH) == events_after(journal, 0, -1, MUCH) == []
    assert next_event(journal, POLICY, 1) == expected[1]
    assert next_event(journal, POLICY, 2) is None
    assert next_event(journal, LAMP, 1) == expected[0]
    assert journal.trim(1, LATER) == 1
    journal.commit()
    assert events_after(journal, 0, 10, MUCH) == expected[1:]
    assert next_event(journal, LAMP, 1) == expected[2], "the next one that is still there"


def test_a_page_of_events_that_are_followed_stops_at_the_byte_budget(journal: Journal) -> None:
    value = b'"' + b"x" * 96 + b'"'
    journal.append([change(LAMP, revision, value) for revision in range(1, 6)])
    assert [found.seq for found in events_after(journal, 0, 10, 1)] == [1]
    assert [found.seq for found in events_after(journal, 0, 10, 200)] == [1, 2]


@pytest.mark.parametrize(
    ("instant", "text"),
    [
        (1_700_000_000_123, "2023-11-14T22:13:20.123000Z"),
        (0, "1970-01-01T00:00:00.000000Z"),
        (-1, "1969-12-31T23:59:59.999000Z"),
        (-(10**16), ""),
        (10**16, "A"),
    ],
)
def test_an_instant_is_written_as_events_write_times(instant: int, text: str) -> None:
    assert timestamp_of(instant) == text
    assert timestamp_of(-(10**16)) < timestamp_of(0) < timestamp_of(10**16)


def first_published(journal: Journal, entity: EntityId, first: int, last: int, instant: int) -> int:
    return journal.read_in_worker(lambda it: published_events.first_published(it, entity, first, last, instant))


def test_large_messages_other_headers_and_other_entities_do_not_matter(tmp_path: Path) -> None:
    """If the publisher gave no time, the time of the service applies, for any other headers."""
    journal = Journal.open(tmp_path / "journal.db")
    large = b'"%b"' % (b"x" * 100_000)
    journal.append(
        [
            change(LAMP, 1),
            published(TANK, 1, large, b'{"ts":5}'),
            published(TANK, 2, headers=b'{"source":"s"}'),
            published(TANK, 3, large, b'{"ts":7,"source":"s"}'),
        ]
    )
    second = 1_894_665_600_000 + 2250
    assert timestamp_of(second) == timestamp(2)
    assert [first_published(journal, TANK, 1, 3, instant) for instant in (5, 6, second, second + 1)] == [1, 2, 2, 0]
    assert [first_published(journal, TANK, *bounds, 7) for bounds in ((3, 3), (1, 1), (3, 1))] == [3, 0, 0]
    assert first_published(journal, LAMP, 2, 9, 0) == 0
    journal.close()
