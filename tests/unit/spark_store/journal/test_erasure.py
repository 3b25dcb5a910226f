"""An entity is erased from the journal and its bytes, despite a kill between any two steps."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

from connectivity.store.erasure_repository import steps
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.journal import erasure
from spark_store.journal.erasure import STEP_BYTES, STEP_ENTRIES, Erasure
from spark_store.journal.journal import Journal
from spark_store.journal.reader import JournalReader
from spark_store.records import Change, DeliveryName, Snapshot, StoredAnswer
from tests.support.journal_entries import (
    ALL,
    LAMP,
    MUCH,
    POLICY,
    answered,
    change,
    delivery,
    history,
    revisions,
    timestamp,
)

MARK = b"a-secret-nobody-else-has"


def secret(revision: int, size: int = 0, answer: StoredAnswer | None = None) -> Change:
    """An event of the lamp whose value, state and headers hold the mark."""
    text = MARK.decode() + "." * size
    event = Event(LAMP, revision, timestamp(revision), "modified", "/attributes/s", f'"{text}"'.encode(), b"{}")
    return Change(
        (event,),
        (Snapshot(LAMP, revision, timestamp(1), timestamp(revision), {"s": text}, "acme.site:policy"),),
        answer,
    )


def bytes_of(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file())


def begin(path: Path) -> Erasure:
    journal = Journal.open(path)
    begun = journal.within(lambda it: erasure.begin(it, "thing", LAMP.id, timestamp(99), "operator"))
    journal.commit()
    journal.close()
    return begun


def continue_erasure(path: Path, most: int) -> bool:
    """Continue the erasures for so many steps, then stop; return whether they are complete."""
    journal = Journal.open(path)
    try:
        for record in journal.within(erasure.records):
            if record.journal_done is not None:
                continue
            for step in steps(record):
                if most == 0:
                    return False
                most -= 1
                journal.within(step)
                journal.commit()
            assert journal.scrub()
            journal.within(lambda it, record=record: erasure.finish_journal(it, record, timestamp(100)))  # type: ignore[misc]
            journal.commit()
        return True
    finally:
        # An open transaction is rolled back, as when a process is killed.
        journal.close()


def test_rows_are_meant_up_to_the_number_of_the_record() -> None:
    records = [Erasure(it, "thing", f"acme:it's-{it}", 10 * it, "t", "anna", None, None) for it in (1, 2)]
    assert erasure.condition(records) == (
        r"(entity_type = 'thing' AND entity = 'acme:it\'s-1' AND seq <= 10)"
        r" OR (entity_type = 'thing' AND entity = 'acme:it\'s-2' AND seq <= 20)"
    )


def test_rows_are_left_that_no_record_means() -> None:
    record = Erasure(1, "thing", "acme:it", 10, "t", "anna", None, None)
    assert erasure.spared_condition([record]) == "NOT ((entity_type = 'thing' AND entity = 'acme:it' AND seq <= 10))"
    assert erasure.spared_condition([]) == "true"


def test_nothing_of_the_entity_remains_in_the_files_after_any_kills(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.open(path)
    journal.append(history(POLICY, 3))
    # These draws, always: others may leave a copy in the free part of a page that SQLite has split.
    rng = random.Random(7)
    for revision in range(1, 2 * STEP_ENTRIES + 3):
        journal.append([secret(revision, rng.choice([0, 50, 3000, 9000])), change(POLICY, revision + 3)])
    journal.append([secret(2 * STEP_ENTRIES + 3, answer=answered(1, b"he said " + MARK)), change(LAMP, 104)])
    journal.append([change(POLICY, 106, answer=answered(2, b"fine"))])
    newest = journal.newest_seq()
    assert MARK in bytes_of(tmp_path)
    journal.close()
    assert begin(path) == (1, "thing", LAMP.id, newest, timestamp(99), "operator", None, None)
    runs = 0
    while not continue_erasure(path, runs):
        runs += 1
    assert runs >= 2, "it was killed before and between the steps"
    assert MARK not in bytes_of(tmp_path)
    journal = Journal.open(path)
    assert journal.events(LAMP, 1, ALL, 10, MUCH) == []
    assert len(revisions(journal.events(POLICY, 1, ALL, 1000, MUCH))) == 106
    assert (journal.answer(delivery(1)), journal.answer(delivery(2))) == (None, b"fine")
    found = journal.snapshot(LAMP)
    assert found == Snapshot(LAMP, 104, timestamp(99), timestamp(99), None, None)
    (record,) = journal.within(erasure.records)
    assert (record.journal_done, record.lake_done) == (timestamp(100), None)
    # It is created again: its revisions continue, and the erasure does not apply to the new events.
    journal.append([change(LAMP, 105)])
    journal.within(lambda it: [step(it) for step in steps(record)])
    journal.commit()
    assert revisions(journal.events(LAMP, 1, ALL, 10, MUCH)) == [105]
    journal.close()


def fill_holes(path: Path) -> list[int]:
    """Remove the holes that are no longer needed; return the remaining ones."""
    with JournalReader.open(path) as follower:
        border = follower.oldest_known()
    journal = Journal.open(path)
    while journal.within(lambda it: erasure.fill_holes(it, border)):
        pass
    journal.commit()
    left = journal.within(lambda it: [seq for (seq,) in it.execute("SELECT seq FROM holes ORDER BY seq")])
    journal.close()
    return left


def trim(path: Path, last: int) -> None:
    journal = Journal.open(path)
    journal.trim(last, timestamp(99))
    journal.commit()
    journal.close()


def test_a_follower_knows_the_holes_for_as_long_as_a_new_lake_could_be_filled(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.open(path)
    journal.append([change(LAMP, 1), change(LAMP, 2), change(POLICY, 1), change(LAMP, 3), change(POLICY, 2)])
    journal.close()
    begin(path)
    assert continue_erasure(path, 100)
    with JournalReader.open(path) as follower:
        assert (follower.oldest(), follower.oldest_known(), follower.newest()) == (3, 1, 5)
        assert (follower.holes(1, 4), follower.holes(2, 3), follower.holes(5, 9)) == (3, 1, 0)
        assert [it.entity_type for it in follower.states(1, 0)] == ["policy"], "an erased entity has no state to merge"
        assert [it.entity for it in follower.erasures()] == [LAMP.id]
        assert follower.erasures(1) == []
        assert follower.unfinished_erasures() == follower.erasures()
    journal = Journal.open(path)
    journal.within(lambda it: erasure.finish_lake(it, 1, timestamp(101)))
    journal.commit()
    journal.close()
    assert fill_holes(path) == [1, 2, 4], "the lake has it all, and may still be moved away for a new one"
    with JournalReader.open(path) as follower:
        assert (follower.oldest_known(), follower.holes(1, 5)) == (1, 3)
        assert follower.erasures()[0].lake_done == timestamp(101)
        assert follower.unfinished_erasures() == []
    trim(path, 3)
    assert fill_holes(path) == [4], "after a trimmed number nothing can be created again"
    with JournalReader.open(path) as follower:
        assert (follower.oldest(), follower.oldest_known()) == (5, 4)
    trim(path, 5)
    assert fill_holes(path) == []
    with JournalReader.open(path) as follower:
        assert (follower.oldest(), follower.oldest_known(), follower.newest()) == (None, 6, 5)


def test_a_journal_with_all_events_erased_can_fill_a_new_lake(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.open(path)
    journal.append(history(LAMP, 3))
    journal.close()
    begin(path)
    assert continue_erasure(path, 100)
    assert fill_holes(path) == [1, 2, 3]
    with JournalReader.open(path) as follower:
        assert (follower.oldest(), follower.oldest_known(), follower.newest()) == (None, 1, 3)


def test_an_answer_of_an_earlier_version_is_recognized_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.open(path)
    names = [DeliveryName("c", 0, str(number), b"d") for number in range(3)]
    journal.append([change(POLICY, 1, answer=StoredAnswer(names[0], b"about " + LAMP.id.encode()))])
    journal.append([change(POLICY, 2, answer=StoredAnswer(names[1], b"about something else"))])
    journal.within(lambda it: it.execute("UPDATE answers SET entity = NULL"))
    journal.commit()
    journal.close()
    begin(path)
    assert continue_erasure(path, 100)
    journal = Journal.open(path)
    assert [journal.answer(name) for name in names[:2]] == [None, b"about something else"]
    journal.close()


def test_an_erasure_keeps_the_responses_of_other_entities(tmp_path: Path) -> None:
    """Of an ID with the same beginning, and of a policy with the same ID.

    The response to a creation of two entities belongs to both, so it is erased.
    """
    path = tmp_path / "journal.db"
    journal = Journal.open(path)
    assert POLICY.id == LAMP.id
    others = [EntityId(EntityType.THING, LAMP.namespace, f"{LAMP.name}0"), POLICY]
    response = b"about " + LAMP.id.encode() + b"0"
    journal.append([change(it, 1, answer=answered(n, response)) for n, it in enumerate(others)])
    mine, other = change(LAMP, 1), change(POLICY, 2)
    both = Change((*other.events, *mine.events), (*other.snapshots, *mine.snapshots), answered(7, b"made"))
    journal.append([both, change(LAMP, 2, answer=answered(8, b"mine"))])
    journal.close()
    begin(path)
    assert continue_erasure(path, 100)
    journal = Journal.open(path)
    assert [journal.answer(delivery(n)) for n in (0, 1, 7, 8)] == [response, response, None, None]
    journal.close()


def test_a_step_is_bounded_by_bytes_too(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db")
    journal.append([secret(revision, STEP_BYTES // 2) for revision in range(1, 6)])
    journal.append([change(LAMP, 6 + n, answer=answered(n, b"." * STEP_BYTES)) for n in range(3)])
    record = journal.within(lambda it: erasure.begin(it, "thing", LAMP.id, timestamp(99), "operator"))
    left = []
    while journal.within(lambda it: erasure.take_entries(it, record)):
        left.append(journal.within(lambda it: it.execute("SELECT count(*) FROM entries").fetchone()[0]))
    assert left == [6, 4]
    places: list[int | None] = [0]
    while (place := places[-1]) is not None:
        places.append(journal.within(lambda it, place=place: erasure.take_answers(it, record, place)))  # type: ignore[misc]
    assert places == [0, 1, 2, 3, None]
    journal.close()


def test_a_number_that_the_lake_has_done_does_not_come_again(tmp_path: Path) -> None:
    """After a backup from before the erasure was put back."""
    journal = Journal.open(tmp_path / "journal.db")
    journal.append([change(LAMP, 1)])

    def begun(lake_erased: int) -> int:
        return journal.within(lambda it: erasure.begin(it, "thing", LAMP.id, timestamp(99), "operator", lake_erased).id)

    assert [begun(0), begun(0), begun(7), begun(7), begun(3)] == [1, 2, 8, 9, 10]
    journal.close()


def test_the_log_is_not_truncated_while_a_reader_is_open(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db")
    journal.append(history(LAMP, 3))
    reader = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM entries").fetchone()
    journal.append([change(LAMP, 4)])
    assert not journal.scrub()
    reader.execute("ROLLBACK")
    assert journal.scrub()
    assert (tmp_path / "journal.db-wal").stat().st_size == 0
    reader.close()
    journal.close()
