"""Changes that are decided and not durable yet."""

from __future__ import annotations

from connectivity.store.commit import UncommittedState
from spark_store.records import Change
from tests.support.journal_entries import LAMP, answered, change, snapshot


def test_removing_durable_changes_keeps_the_later_uncommitted_changes() -> None:
    decided, first, second = UncommittedState(), change(LAMP, 1, answer=answered(1)), change(LAMP, 2)
    for one in (first, second):
        decided.add(one)
    decided.remove_durable([first])
    assert (decided.snapshots, decided.answers) == ({LAMP: snapshot(LAMP, 2)}, {})
    decided.remove_durable([second])
    assert decided.snapshots == {}


def test_a_state_that_was_put_in_its_place_is_not_dropped_with_the_former_one() -> None:
    decided, one = UncommittedState(), change(LAMP, 1)
    decided.add(one)
    decided.drop(Change((), (snapshot(LAMP, 1),)).snapshots[0])
    assert decided.snapshots[LAMP] is one.snapshots[0]


def test_clearing_the_uncommitted_state_removes_all_changes() -> None:
    decided = UncommittedState()
    decided.add(change(LAMP, 1, answer=answered(1)))
    decided.clear()
    assert (decided.snapshots, decided.answers) == ({}, {})
