"""Due policies in the journal's file; `JournalBehavior` has the tests for every journal."""

from __future__ import annotations

from pathlib import Path

from mappings.model.signals import Event
from spark_store.journal import erasure, statements
from spark_store.journal.journal import Journal
from spark_store.records import Change, PolicyDue, Snapshot
from tests.support.journal_entries import POLICY, timestamp
from tests.support.temporary_journal import due

SUBJECT = b"a-subject-nobody-else-has"


def test_an_erased_policy_leaves_no_subject_to_announce(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db")
    state = {"entries": {"A": {"subjects": {"a:b": {"expiry": "2030-01-15T08:00:00Z"}}}}}
    event = Event(POLICY, 1, timestamp(1), "created", "/", b"{}", b"{}")
    journal.append([Change((event,), (Snapshot(POLICY, 1, timestamp(1), timestamp(1), state, None),))])
    journal.within(lambda it: statements.look_again(it, POLICY, 1, timestamp(2), SUBJECT))
    journal.commit()
    assert due(journal, timestamp(2), 10) == [PolicyDue(POLICY, SUBJECT)]
    journal.within(lambda it: erasure.begin(it, "policy", POLICY.id, timestamp(99), "operator"))
    journal.commit()
    assert due(journal, timestamp(99), 10) == []
    assert journal.scrub()
    journal.close()
    assert SUBJECT not in b"".join(each.read_bytes() for each in tmp_path.iterdir())


def test_every_write_of_a_policy_state_makes_the_policy_due(tmp_path: Path) -> None:
    """Also the writes of a rebuild."""
    journal = Journal.open(tmp_path / "journal.db")
    entity = "INSERT INTO entities (type, id, revision, created, modified, state) VALUES ('policy', ?, 1, '', '', ?)"
    journal.within(lambda it: it.execute(entity, (POLICY.id, b'{"subjects":{"a:b":{"expiry":"x"}}}')))
    journal.commit()
    assert due(journal, "", 10) == [PolicyDue(POLICY, None)]
    journal.within(lambda it: statements.look_again(it, POLICY, 1, timestamp(5), None))
    journal.commit()
    assert due(journal, "", 10) == []
    journal.within(lambda it: it.execute("UPDATE entities SET state = state, policy = 'a:p'"))
    journal.commit()
    assert due(journal, "", 10) == [PolicyDue(POLICY, None)]
    journal.close()
