"""Behaviors of every journal. Inherit `JournalBehavior` and define how to make a journal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mappings.ids import partition_entity
from mappings.model.signals import Event
from spark_store.errors import RevisionConflict, StoreUnavailable, Unstorable
from spark_store.journal.journal import Journal
from spark_store.records import (
    Change,
    HistoryStart,
    NumberedEvent,
    OldestEvent,
    Snapshot,
    StoredAnswer,
)
from tests.support.journal_entries import (
    ALL,
    LAMP,
    LATER,
    MUCH,
    POLICY,
    TANK,
    NanoClock,
    answered,
    change,
    delivery,
    event,
    history,
    published,
    recorded,
    revisions,
    snapshot,
    timestamp,
)


class JournalBehavior:
    def make(self, _folder: Path, _clock: NanoClock) -> Journal:
        """An empty journal."""
        raise AssertionError("say how a journal is made")

    @pytest.fixture
    def nanoseconds(self) -> NanoClock:
        return NanoClock()

    @pytest.fixture
    def journal(self, tmp_path: Path, nanoseconds: NanoClock) -> Iterator[Journal]:
        made = self.make(tmp_path, nanoseconds)
        yield made
        made.close()

    # entries

    def test_an_appended_event_is_read_back_byte_for_byte(self, journal: Journal) -> None:
        """Every field of an event comes back, byte for byte."""
        events = (
            Event(LAMP, 1, timestamp(1), "created", "/", b'{"attributes":{"a":1.50}}', b'{"who":"acme:writer"}'),
            Event(LAMP, 2, timestamp(2), "merged", "/attributes", b'{"a":null}', b"{}"),
            Event(LAMP, 3, timestamp(3), "deleted", "/attributes", None, b"{}"),
        )
        journal.append([Change(events, (snapshot(LAMP, 3),))])
        assert journal.events(LAMP, 1, ALL, 10, MUCH) == list(events)
        assert all(type(found) is Event for found in journal.events(LAMP, 1, ALL, 10, MUCH))

    @pytest.mark.parametrize(
        ("first", "last", "limit", "found"),
        [
            (1, ALL, 100, list(range(1, 11))),
            (4, 6, 100, [4, 5, 6]),
            (1, ALL, 3, [1, 2, 3]),
            (9, ALL, 5, [9, 10]),
            (6, 4, 100, []),
            (11, ALL, 100, []),
            (1, 0, 100, []),
            (1, ALL, 0, []),
            (1, ALL, -1, []),
        ],
    )
    def test_events_are_bounded_and_ascending(
        self, journal: Journal, first: int, last: int, limit: int, found: list[int]
    ) -> None:
        journal.append(history(LAMP, 10))
        journal.append(history(POLICY, 12))
        assert revisions(journal.events(LAMP, first, last, limit, MUCH)) == found

    def test_events_stop_at_the_byte_budget_but_one_is_never_too_large(self, journal: Journal) -> None:
        """The event with which values and headers reach the budget is the last one."""
        value = b'"' + b"x" * 96 + b'"'
        journal.append([change(LAMP, revision, value) for revision in range(1, 6)])
        assert revisions(journal.events(LAMP, 1, ALL, 10, 1)) == [1]
        assert revisions(journal.events(LAMP, 1, ALL, 10, 200)) == [1, 2]
        assert revisions(journal.events(LAMP, 1, ALL, 10, 201)) == [1, 2, 3]

    def test_entities_of_one_id_and_different_types_are_two(self, journal: Journal) -> None:
        journal.append([*history(LAMP, 2), *history(POLICY, 1)])
        assert (journal.latest(LAMP), journal.latest(POLICY)) == (2, 1)

    def test_a_partition_of_a_stream_is_an_entity_like_others(self, journal: Journal) -> None:
        """Its messages are read as published, by its own revisions and by the sequence numbers of all events."""
        messages = [published(TANK, 1, rb'"{\"v\":1}"'), published(TANK, 2, b'"null"', b'{"ts":1700000000123}')]
        journal.append([change(LAMP, 1), messages[0], published(partition_entity("tank"), 1), messages[1]])
        assert journal.events(TANK, 1, ALL, 10, MUCH) == [each.events[0] for each in messages]
        assert journal.snapshot(TANK) == messages[1].snapshots[0]
        assert journal.latest(TANK) == 2
        second = journal.newest_up_to(3)
        assert second is not None
        assert second.event.entity == ("stream", "", "tank")
        assert journal.newest_up_to(4) == NumberedEvent(4, messages[1].events[0])

    def test_an_entity_that_never_was_has_nothing(self, journal: Journal) -> None:
        assert journal.snapshot(LAMP) is None
        assert journal.latest(LAMP) == 0
        assert journal.events(LAMP, 1, ALL, 10, MUCH) == []

    def test_the_sequence_number_increases_with_each_event_of_every_entity(self, journal: Journal) -> None:
        assert journal.newest_seq() == 0
        journal.append([*history(LAMP, 3), *history(POLICY, 2)])
        assert journal.newest_seq() == 5
        journal.append([change(LAMP, 4)])
        assert journal.newest_seq() == 6

    # states

    def test_the_snapshot_is_the_newest_state(self, journal: Journal) -> None:
        state = {"thingId": "acme.site:lamp-7", "attributes": {"x": [1, 2.5, "ä", None, True]}}
        journal.append([change(LAMP, 1)])
        journal.append([Change((event(LAMP, 2),), (snapshot(LAMP, 2, state),))])
        assert journal.snapshot(LAMP) == snapshot(LAMP, 2, state)

    def test_a_deleted_entity_keeps_its_revision_and_policy(self, journal: Journal) -> None:
        """The revisions of a re-creation continue."""
        gone = Snapshot(LAMP, 2, timestamp(1), timestamp(2), None, "acme.site:policy")
        deleted = Event(LAMP, 2, timestamp(2), "deleted", "/", None, b"{}")
        journal.append([change(LAMP, 1)])
        journal.append([Change((deleted,), (gone,))])
        assert journal.snapshot(LAMP) == gone
        assert journal.latest(LAMP) == 2
        journal.append([change(LAMP, 3)])
        assert revisions(journal.events(LAMP, 1, ALL, 10, MUCH)) == [1, 2, 3]

    def test_one_change_may_touch_several_entities(self, journal: Journal) -> None:
        """A thing that is created with a policy of its own."""
        both = Change((event(POLICY, 1), event(LAMP, 1)), (snapshot(POLICY, 1), snapshot(LAMP, 1)))
        journal.append([both])
        assert journal.snapshot(LAMP) == snapshot(LAMP, 1)
        assert journal.snapshot(POLICY) == snapshot(POLICY, 1)

    # transactions

    def test_written_changes_are_visible_after_the_commit(self, journal: Journal) -> None:
        journal.write(history(LAMP, 2))
        assert journal.snapshot(LAMP) is None
        assert journal.latest(LAMP) == 0
        assert journal.newest_seq() == 0
        journal.write([change(LAMP, 3, answer=answered(1))])
        assert journal.answer(delivery(1)) is None
        journal.commit()
        assert journal.snapshot(LAMP) == snapshot(LAMP, 3)
        assert revisions(journal.events(LAMP, 1, ALL, 10, MUCH)) == [1, 2, 3]
        assert journal.answer(delivery(1)) == b"done"

    def test_rolled_back_changes_leave_no_trace(self, journal: Journal) -> None:
        journal.append([change(LAMP, 1)])
        journal.write([change(LAMP, 2, answer=answered(2)), change(POLICY, 1)])
        journal.rollback()
        journal.commit()
        assert (journal.latest(LAMP), journal.latest(POLICY), journal.newest_seq()) == (1, 0, 1)
        assert journal.answer(delivery(2)) is None
        journal.append([change(LAMP, 2)])
        assert journal.latest(LAMP) == 2

    def test_a_commit_without_changes_is_nothing(self, journal: Journal) -> None:
        journal.commit()
        journal.append([])
        assert journal.newest_seq() == 0

    @pytest.mark.parametrize(("revision", "expected"), [(1, 0), (2, 1), (4, 3), (9, 8)])
    def test_a_revision_that_does_not_follow_is_a_conflict_and_stores_nothing(
        self, journal: Journal, revision: int, expected: int
    ) -> None:
        """The error has both numbers; the rest of the batch is not stored either."""
        journal.append(history(LAMP, 2))
        with pytest.raises(RevisionConflict) as conflict:
            journal.append([change(POLICY, 1), change(LAMP, revision)])
        assert (conflict.value.entity, conflict.value.expected, conflict.value.found) == (LAMP, expected, 2)
        assert (journal.latest(LAMP), journal.latest(POLICY), journal.newest_seq()) == (2, 0, 2)

    def test_a_gap_inside_a_batch_is_a_conflict(self, journal: Journal) -> None:
        with pytest.raises(RevisionConflict):
            journal.append([change(LAMP, 1), change(LAMP, 3)])
        assert journal.latest(LAMP) == 0

    def test_a_revision_conflict_keeps_earlier_writes(self, journal: Journal) -> None:
        journal.write([change(LAMP, 1)])
        with pytest.raises(RevisionConflict):
            journal.write([change(POLICY, 1), change(LAMP, 1)])
        journal.commit()
        assert (journal.latest(LAMP), journal.latest(POLICY)) == (1, 0)

    @pytest.mark.parametrize(
        "wrong",
        [
            Change((event(LAMP, 1),), ()),
            Change((), (snapshot(LAMP, 1),)),
            Change((event(LAMP, 1),), (snapshot(LAMP, 2),)),
            Change((event(LAMP, 1),), (snapshot(POLICY, 1),)),
            Change((event(LAMP, 1),), (snapshot(LAMP, 1, {"attributes": object()}),)),
        ],
        ids=["no state", "no event", "another revision", "another entity", "no JSON"],
    )
    def test_a_change_that_is_wrong_in_itself_is_unstorable(self, journal: Journal, wrong: Change) -> None:
        """It takes nothing with it."""
        journal.write([change(POLICY, 1)])
        with pytest.raises(Unstorable):
            journal.write([change(POLICY, 2), wrong])
        journal.commit()
        assert (journal.latest(LAMP), journal.latest(POLICY)) == (0, 1)

    # answers

    def test_an_answer_is_found_by_the_whole_name_of_its_delivery(self, journal: Journal) -> None:
        journal.append([change(LAMP, 1, answer=answered(1, b"first")), change(LAMP, 2, answer=answered(2, b"second"))])
        assert journal.answer(delivery(1)) == b"first"
        assert journal.answer(delivery(2)) == b"second"
        name = delivery(1)
        for other in (
            name._replace(connection="conn-2"),
            name._replace(source=1),
            name._replace(name="3"),
            name._replace(digest=b"other"),
        ):
            assert journal.answer(other) is None

    def test_the_newest_names_of_answered_deliveries_are_found_by_their_beginning(self, journal: Journal) -> None:
        for number, name in enumerate(("a#1", "a#2", "b#1", "a#3")):
            answer = StoredAnswer(delivery(1)._replace(connection="site", source=0, name=name), b"answer")
            journal.append([change(LAMP, number + 1, answer=answer)])
        assert journal.answered_names("site", 0, "a#", 2) == ["a#2", "a#3"]
        assert journal.answered_names("site", 1, "a#") == journal.answered_names("desk", 0, "a#") == []

    def test_a_reused_delivery_name_returns_the_newest_answer(self, journal: Journal) -> None:
        """Packet identifiers come again."""
        journal.append([change(LAMP, 1, answer=answered(1, b"old"))])
        journal.append([change(LAMP, 2, answer=answered(1, b"new"))])
        assert journal.answer(delivery(1)) == b"new"

    def test_a_newer_delivery_of_the_same_name_replaces_the_older_answer(self, journal: Journal) -> None:
        """Once a broker has used a name again, the delivery that had it before cannot come again."""
        journal.append([change(LAMP, 1, answer=answered(1, b"old"))])
        journal.append([change(LAMP, 2, answer=StoredAnswer(delivery(1, b"other bytes"), b"new"))])
        assert journal.answer(delivery(1)) is None
        assert journal.answer(delivery(1, b"other bytes")) == b"new"

    def test_an_answer_of_long_ago_is_not_known(self, journal: Journal, nanoseconds: NanoClock) -> None:
        """Though it has not been forgotten yet."""
        journal.append([change(LAMP, 1, answer=answered(1))])
        assert journal.answer(delivery(1), nanoseconds.now) == b"done"
        assert journal.answer(delivery(1), nanoseconds.now + 1) is None
        assert journal.answer(delivery(1)) == b"done"

    def test_old_answers_are_forgotten(self, journal: Journal, nanoseconds: NanoClock) -> None:
        for number in range(1, 6):
            nanoseconds.now += 10
            journal.append([change(LAMP, number, answer=answered(number))])
        assert journal.forget_answers(nanoseconds.now - 20) == 2
        journal.commit()
        assert [journal.answer(delivery(number)) for number in range(1, 6)] == [None, None, b"done", b"done", b"done"]

    def test_answers_are_bounded_in_number(self, journal: Journal, nanoseconds: NanoClock) -> None:
        journal.append([change(LAMP, number, answer=answered(number)) for number in range(1, 6)])
        assert journal.forget_answers(nanoseconds.now - 1000, keep=2) == 3
        journal.commit()
        assert [number for number in range(1, 6) if journal.answer(delivery(number))] == [4, 5]

    def test_b11_an_answer_is_known_until_the_offset_of_its_record_is_committed(
        self, journal: Journal, nanoseconds: NanoClock
    ) -> None:
        answers = [recorded(1), recorded(2), recorded(1, "topic/1"), answered(4)]
        journal.append([change(LAMP, number, answer=answer) for number, answer in enumerate(answers, 1)])
        nanoseconds.now += 1000

        def known() -> list[bool]:
            return [journal.answer(answer.delivery, nanoseconds.now) is not None for answer in answers]

        assert known() == [True, True, True, False]
        journal.committed["conn-1", "topic/0"] = 2
        journal.committed["conn-2", "topic/1"] = 9
        assert known() == [False, True, True, False]
        assert journal.forget_answers(nanoseconds.now) == 2
        journal.commit()
        assert [journal.answer(answer.delivery) is not None for answer in answers] == [False, True, True, False]
        journal.committed["conn-1", "topic/1"] = 2
        assert sum(journal.forget_answers(nanoseconds.now) for _ in range(2)) == 1
        journal.commit()
        assert [journal.answer(answer.delivery) is not None for answer in answers] == [False, True, False, False]

    def test_uncommitted_answers_do_not_keep_others_from_being_forgotten(
        self, journal: Journal, nanoseconds: NanoClock
    ) -> None:
        journal.append([change(LAMP, number, answer=recorded(number)) for number in range(1, 11)])
        journal.append([change(LAMP, number, answer=answered(number)) for number in range(11, 21)])
        nanoseconds.now += 1000
        journal.append([change(LAMP, 21, answer=answered(21))])
        assert sum(journal.forget_answers(nanoseconds.now, limit=4) for _ in range(6)) == 10
        journal.committed["conn-1", "topic/0"] = 11
        assert sum(journal.forget_answers(nanoseconds.now, limit=4) for _ in range(6)) == 10
        journal.commit()
        assert journal.answer(delivery(21)) == b"done"

    def test_uncommitted_answers_are_bounded_in_number(self, journal: Journal, nanoseconds: NanoClock) -> None:
        journal.append([change(LAMP, number, answer=recorded(number)) for number in range(1, 6)])
        assert journal.forget_answers(nanoseconds.now + 1000, keep=2) == 3
        journal.commit()
        assert [number for number in range(1, 6) if journal.answer(recorded(number).delivery)] == [4, 5]

    def test_forgetting_is_bounded(self, journal: Journal, nanoseconds: NanoClock) -> None:
        assert journal.forget_answers(nanoseconds.now) == 0
        journal.append([change(LAMP, number, answer=answered(number)) for number in range(1, 6)])
        assert journal.forget_answers(nanoseconds.now + 1, limit=4) == 4
        assert journal.forget_answers(nanoseconds.now + 1, limit=4) == 1
        assert journal.forget_answers(nanoseconds.now + 1, limit=4) == 0
        journal.commit()
        assert journal.answer(delivery(5)) is None

    # trimming

    def test_the_oldest_events_go_and_everything_else_stays(self, journal: Journal) -> None:
        journal.append([change(LAMP, 1), change(POLICY, 1), *history(LAMP, 4, 2)])
        assert (journal.oldest(), journal.last_trimmed()) == (OldestEvent(1, timestamp(1)), 0)
        assert journal.trim(3, LATER) == 3
        journal.commit()
        assert (journal.oldest(), journal.last_trimmed(), journal.newest_seq()) == (OldestEvent(4, timestamp(3)), 3, 5)
        assert (journal.oldest(3), journal.oldest(5)) == (OldestEvent(4, timestamp(3)), None)
        assert revisions(journal.events(LAMP, 1, ALL, 10, MUCH)) == [3, 4]
        assert journal.events(POLICY, 1, ALL, 10, MUCH) == []
        assert (journal.snapshot(POLICY), journal.latest(POLICY)) == (snapshot(POLICY, 1), 1)
        assert journal.trim(99, LATER) == 2
        journal.commit()
        assert (journal.oldest(), journal.last_trimmed()) == (None, 5)
        journal.append([change(POLICY, 2), change(LAMP, 5)])
        assert (journal.oldest(), journal.newest_seq()) == (OldestEvent(6, timestamp(2)), 7)
        assert revisions(journal.events(LAMP, 1, ALL, 10, MUCH)) == [5]

    def test_where_an_entity_starts_is_known_also_when_all_its_events_are_gone(self, journal: Journal) -> None:
        assert journal.beginning(LAMP) == HistoryStart(0, 1)
        journal.append([change(LAMP, 1), change(POLICY, 1), *history(LAMP, 4, 2)])
        assert journal.beginning(LAMP) == HistoryStart(0, 1)
        assert journal.beginning(LAMP).is_here
        journal.trim(3, LATER)
        journal.commit()
        assert (journal.beginning(LAMP), journal.beginning(POLICY)) == (HistoryStart(0, 3), HistoryStart(0, 2))
        journal.trim(99, LATER)
        journal.commit()
        assert journal.beginning(LAMP) == HistoryStart(0, 5)
        journal.append([change(LAMP, 5)])
        assert journal.beginning(LAMP) == HistoryStart(0, 5)
        assert not journal.beginning(LAMP).is_here

    def test_the_newest_event_up_to_a_number_is_known_with_its_number(self, journal: Journal) -> None:
        assert journal.newest_up_to(9) is None
        journal.append([change(LAMP, 1), change(POLICY, 1), change(LAMP, 2)])
        assert [journal.newest_up_to(seq) for seq in (1, 2, 3, 9)] == [
            NumberedEvent(1, event(LAMP, 1)),
            NumberedEvent(2, event(POLICY, 1)),
            *[NumberedEvent(3, event(LAMP, 2))] * 2,
        ]
        assert journal.trim(1, LATER) == 1
        journal.commit()
        assert journal.newest_up_to(1) is None

    def test_trimming_keeps_young_events_and_all_later_ones(self, journal: Journal) -> None:
        late = event(POLICY, 1)._replace(timestamp=timestamp(60))
        journal.append([change(LAMP, 1), Change((late,), (snapshot(POLICY, 1),)), change(LAMP, 2)])
        assert journal.trim(99, timestamp(1)) == 0
        assert journal.trim(99, timestamp(30)) == 1
        journal.commit()
        assert journal.last_trimmed() == 1
        assert revisions(journal.events(LAMP, 1, ALL, 10, MUCH)) == [2]

    def test_trimming_is_bounded_and_can_be_rolled_back(self, journal: Journal) -> None:
        assert journal.trim(99, LATER) == 0
        journal.append(history(LAMP, 5))
        assert journal.trim(99, LATER, limit=2) == 2
        assert journal.trim(99, LATER, limit=2) == 2
        journal.rollback()
        assert revisions(journal.events(LAMP, 1, ALL, 10, MUCH)) == [1, 2, 3, 4, 5]
        assert journal.trim(2, LATER, limit=9) == 2
        journal.commit()
        assert revisions(journal.events(LAMP, 1, ALL, 10, MUCH)) == [3, 4, 5]

    def test_the_open_transaction_knows_its_newest_number(self, journal: Journal) -> None:
        journal.append(history(LAMP, 2))
        journal.write([change(LAMP, 3), change(POLICY, 1)])
        assert (journal.newest_written(), journal.newest_seq()) == (4, 2)
        journal.rollback()
        assert journal.newest_written() == 2

    # trouble

    def test_a_probe_changes_nothing(self, journal: Journal) -> None:
        journal.append(history(LAMP, 2))
        journal.write([change(LAMP, 3)])
        journal.probe()
        journal.commit()
        assert (journal.latest(LAMP), journal.newest_seq()) == (2, 2)

    def test_a_closed_journal_is_unavailable(self, journal: Journal) -> None:
        journal.close()
        journal.close()
        for call in (
            lambda: journal.write([change(LAMP, 1)]),
            lambda: journal.snapshot(LAMP),
            lambda: journal.latest(LAMP),
            lambda: journal.events(LAMP, 1, 2, 3, 4),
            lambda: journal.answer(delivery(1)),
            journal.newest_seq,
            journal.oldest,
            lambda: journal.trim(1, LATER),
            journal.commit,
            journal.probe,
        ):
            with pytest.raises(StoreUnavailable):
                call()

    def test_a_snapshot_is_a_private_copy(self, journal: Journal) -> None:
        """A change of a snapshot that was read or stored does not change the journal."""
        state: dict[str, Any] = {"attributes": {"counter": 0}}
        journal.append([Change((event(LAMP, 1),), (snapshot(LAMP, 1, state),))])
        state["attributes"]["counter"] = 99
        found = journal.snapshot(LAMP)
        assert found is not None
        assert found.state is not None
        found.state["attributes"]["counter"] = 77
        again = journal.snapshot(LAMP)
        assert again is not None
        assert msgspec.json.encode(again.state) == b'{"attributes":{"counter":0}}'
