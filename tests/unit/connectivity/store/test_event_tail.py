"""The newest events for followers: from memory if they keep up, from the journal if they lag."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar

import pytest

from connectivity.store.event_tail import EventTail
from spark_store.records import Change
from tests.support.journal_entries import LAMP, LATER, POLICY, change, history
from tests.support.temporary_journal import TemporaryJournal, next_event

T = TypeVar("T")


class CountingJournal(TemporaryJournal):
    """Counts how often it is read."""

    reads = 0

    def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        self.reads += 1
        return super().read(query)


class FollowedTail:
    def __init__(self, most: int = 100, most_bytes: int = 1 << 20) -> None:
        self.journal = CountingJournal()
        self.tail = EventTail(self.journal, most, most_bytes)
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    def commit(self, *changes: Change) -> None:
        self.journal.append(changes)
        self.tail.extend(self.journal.newest_seq(), changes)

    def seqs(self, after: int, limit: int = 100) -> list[int]:
        return [found.seq for found in self.tail.after(after, limit)]


@pytest.fixture
def it() -> FollowedTail:
    made = FollowedTail()
    made.commit(*history(LAMP, 3))
    made.tail.follow(made.wake)
    return made


def test_a_subscriber_that_keeps_up_is_woken_and_reads_from_memory(it: FollowedTail) -> None:
    it.commit(change(LAMP, 4), change(POLICY, 1))
    it.commit(change(LAMP, 5))
    assert (it.woken, it.tail.newest) == (2, 6)
    assert it.seqs(3) == [4, 5, 6]
    assert it.seqs(4, 1) == [5]
    assert it.seqs(6) == it.seqs(9) == []
    assert it.journal.reads == 0
    assert it.tail.one(5) == next_event(it.journal, POLICY, 1)


def test_a_slow_subscriber_reads_the_journal_up_to_the_newest_reported_event(it: FollowedTail) -> None:
    it.commit(change(LAMP, 4))
    assert it.seqs(1) == [2, 3, 4]
    assert it.journal.reads == 1
    it.journal.append([change(LAMP, 5)])
    assert it.seqs(1) == [2, 3, 4], "the fifth event has not been notified"
    it.tail.reach(5)
    assert it.seqs(3) == [4]
    assert it.seqs(4) == [5]


def test_the_tail_skips_the_numbers_of_trimmed_events(it: FollowedTail) -> None:
    it.journal.trim(2, LATER)
    it.journal.commit()
    assert it.seqs(0) == [3]
    found = it.tail.one(1)
    assert found is not None
    assert found.seq == 3


def test_the_events_in_memory_are_limited_by_number_and_bytes() -> None:
    for following, last in ((FollowedTail(most=8), 20), (FollowedTail(most_bytes=20), 40)):
        following.tail.follow(following.wake)
        for one in history(LAMP, last):
            following.commit(one)
        assert len(following.tail._events) <= 8
        assert following.seqs(0, 100) == list(range(1, last + 1))
        assert following.seqs(last - 1) == [last]
        assert following.journal.reads == 1


def test_the_tail_keeps_only_the_events_after_a_gap_in_memory(it: FollowedTail) -> None:
    """After a disk failure: the events committed meanwhile are read from the journal."""
    it.commit(change(LAMP, 4))
    it.journal.append([change(LAMP, 5)])
    it.commit(change(LAMP, 6))
    assert it.seqs(3) == [4, 5, 6]
    assert it.seqs(5) == [6]
    assert it.journal.reads == 1


def test_the_tail_keeps_no_events_without_subscribers() -> None:
    following = FollowedTail()
    following.commit(*history(LAMP, 3))
    assert (following.tail.is_followed, following.tail.newest, following.tail._events) == (False, 0, [])
    following.tail.follow(following.wake)
    following.commit(change(LAMP, 4))
    following.tail.leave(following.wake)
    following.commit(change(LAMP, 5))
    assert (following.tail.is_followed, following.tail._events, following.woken) == (False, [], 1)


def test_several_follow_and_each_may_leave(it: FollowedTail) -> None:
    others: list[int] = []

    def wake() -> None:
        others.append(it.tail.newest)

    it.tail.follow(wake)
    it.commit(change(LAMP, 4))
    assert (it.woken, others) == (1, [4])
    it.tail.leave(it.wake)
    it.commit(change(LAMP, 5))
    assert (it.woken, others, it.seqs(3)) == (1, [4, 5], [4, 5])
    assert it.journal.reads == 0, "one who leaves takes nothing away from the others"
    it.tail.leave(wake)
    assert not it.tail.is_followed


def test_catching_up_reports_events_committed_while_a_subscriber_joined(it: FollowedTail) -> None:
    it.journal.append([change(LAMP, 4)])
    it.tail.notify(None, ())
    assert (it.woken, it.seqs(3)) == (1, [4])


def test_forgetting_the_tail_makes_readers_use_the_journal_again(it: FollowedTail) -> None:
    it.commit(change(LAMP, 4))
    before = it.tail.forgotten
    it.commit(change(LAMP, 5))
    assert it.tail.forgotten == before
    it.tail.forget()
    assert it.tail.forgotten == before + 1
    assert (it.seqs(3), it.journal.reads) == ([4, 5], 1)
