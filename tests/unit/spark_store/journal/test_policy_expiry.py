"""Policies with subjects that expire, in the journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from mappings.model.signals import Event
from spark_store.journal import erasure, policy_expiry
from spark_store.journal.journal import Journal
from spark_store.records import Change, PolicyDue, Snapshot
from tests.support.journal_entries import LAMP, LATER, POLICY, change, event, snapshot, timestamp
from tests.support.temporary_journal import TemporaryJournal, due

SUBJECT = b"a-subject-of-this-policy-alone"


def test_an_erased_policy_leaves_no_subject_to_announce(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db")
    state = {"entries": {"A": {"subjects": {"a:b": {"expiry": "2030-01-15T08:00:00Z"}}}}}
    created = Event(POLICY, 1, timestamp(1), "created", "/", b"{}", b"{}")
    journal.append([Change((created,), (Snapshot(POLICY, 1, timestamp(1), timestamp(1), state, None),))])
    journal.within(lambda it: policy_expiry.reschedule(it, POLICY, 1, timestamp(2), SUBJECT))
    journal.commit()
    assert due(journal, timestamp(2), 10) == [PolicyDue(POLICY, 1, SUBJECT)]
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
    assert due(journal, "", 10) == [PolicyDue(POLICY, 1, None)]
    journal.within(lambda it: policy_expiry.reschedule(it, POLICY, 1, timestamp(5), None))
    journal.commit()
    assert due(journal, "", 10) == []
    journal.within(lambda it: it.execute("UPDATE entities SET state = state, policy = 'a:p'"))
    journal.commit()
    assert due(journal, "", 10) == [PolicyDue(POLICY, 1, None)]
    journal.close()


def test_a_policy_with_an_expiry_is_due_until_it_was_checked() -> None:
    """The noted value is returned too; a change makes the policy due again; a deleted one is not due."""
    journal = TemporaryJournal()
    expiring = {"entries": {"A": {"subjects": {"a:b": {"expiry": "2030-01-15T08:00:00Z"}}}}}

    def write(revision: int, state: dict[str, Any] | None) -> None:
        left = msgspec.structs.replace(snapshot(POLICY, revision, {}), state=state)
        journal.append([Change((event(POLICY, revision),), (left,))])

    def reschedule(revision: int, at: str | None, note: bytes | None = None) -> None:
        journal.within(lambda it: policy_expiry.reschedule(it, POLICY, revision, at, note))
        journal.commit()

    journal.append([change(LAMP, 1)])
    write(1, {"entries": {}})
    assert due(journal, LATER, 10) == []
    write(2, expiring)
    assert due(journal, "", 10) == [PolicyDue(POLICY, 2, None)]
    reschedule(2, "2030-01-15T07:00:00.000000Z", b"notified")
    assert due(journal, "2030-01-15T06:59:59.999999Z", 10) == []
    assert due(journal, "2030-01-15T07:00:00.000000Z", 10) == [PolicyDue(POLICY, 2, b"notified")]
    assert due(journal, LATER, 0) == []
    write(3, expiring)
    assert due(journal, "", 10) == [PolicyDue(POLICY, 3, b"notified")]
    reschedule(2, "2030-01-15T07:00:00.000000Z", b"too late")
    assert due(journal, "", 10) == [PolicyDue(POLICY, 3, b"too late")]
    reschedule(2, None)
    assert due(journal, LATER, 10) != []
    reschedule(3, None)
    assert due(journal, LATER, 10) == []
    reschedule(3, LATER, b"not due any more")
    assert due(journal, LATER, 10) == []
    write(4, expiring)
    write(5, None)
    assert due(journal, LATER, 10) == []
    journal.close()
