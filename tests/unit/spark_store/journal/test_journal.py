"""The SQLite journal: the behaviors of every journal, faults, full disks, other processes, kills."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mappings.ids import EntityId, EntityType
from spark_store.errors import SchemaTooNew, StoreUnavailable, Unstorable
from spark_store.journal.journal import Journal
from spark_store.journal.schema import STEPS
from spark_store.records import Change, StoredAnswer
from tests.contract.journal import JournalBehavior
from tests.support.failing_sqlite import Fragile
from tests.support.journal_entries import (
    ALL,
    LAMP,
    LATER,
    MUCH,
    POLICY,
    NanoClock,
    answered,
    change,
    delivery,
    event,
    history,
    recorded,
    revisions,
    snapshot,
)
from tests.support.paths import ROOT
from tests.support.reference_journal import MemoryJournal


class TestJournal(JournalBehavior):
    def make(self, folder: Path, clock: NanoClock) -> Journal:
        return Journal.open(folder / "journal.db", clock=clock)


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal.open(tmp_path / "journal.db", factory=Fragile)
    yield journal
    Fragile.arm(0)
    journal.close()


@pytest.mark.parametrize("late", [False, True], ids=["not carried out", "carried out"])
def test_an_append_with_a_failing_operation_is_stored_completely_or_not_at_all(fragile: Journal, late: bool) -> None:
    """For each operation; later appends succeed. Only a commit whose result is lost is stored."""

    def batch() -> list[Change]:
        return [change(LAMP, newest + 1, answer=answered(newest)), change(LAMP, newest + 2)]

    newest = 2
    fragile.append(history(LAMP, newest))
    Fragile.arm(0)
    fragile.append(batch())
    newest += 2
    operations, landed = Fragile.count, []
    assert operations > 8
    for number in range(1, operations + 1):
        Fragile.arm(number, late)
        with pytest.raises(StoreUnavailable, match="disk I/O error"):
            fragile.append(batch())
        Fragile.arm(0)
        assert fragile.latest(LAMP) in (newest, newest + 2)
        if fragile.latest(LAMP) > newest:
            landed.append(number)
        else:
            assert fragile.answer(delivery(newest)) is None
            fragile.append(batch())
        assert fragile.answer(delivery(newest)) == b"done"
        newest += 2
        assert revisions(fragile.events(LAMP, 1, ALL, 1000, MUCH)) == list(range(1, newest + 1))
        assert fragile.snapshot(LAMP) == snapshot(LAMP, newest)
        assert fragile.newest_seq() == newest
    assert landed == ([operations] if late else [])


@pytest.mark.parametrize("commits", [False, True])
def test_a_failed_rollback_is_repeated(fragile: Journal, commits: bool) -> None:
    """Nothing is written after uncommitted changes, and none of them is committed."""
    fragile.write([change(LAMP, 1)])
    Fragile.arm(1)
    fragile.rollback()
    Fragile.arm(0)
    if commits:
        fragile.commit()
        assert fragile.latest(LAMP) == 0
    fragile.append([change(LAMP, 1), change(LAMP, 2)])
    assert revisions(fragile.events(LAMP, 1, ALL, 10, MUCH)) == [1, 2]


def test_reading_that_fails_is_unavailable(fragile: Journal) -> None:
    fragile.append(history(LAMP, 3))
    for read in (
        lambda: fragile.snapshot(LAMP),
        lambda: fragile.latest(LAMP),
        lambda: fragile.events(LAMP, 1, 3, 3, MUCH),
        lambda: fragile.answer(delivery(1)),
        fragile.newest_seq,
    ):
        Fragile.arm(1)
        with pytest.raises(StoreUnavailable, match="disk I/O error"):
            read()


def replace_file(file: Path) -> None:
    shutil.copy(file, file.with_suffix(".copy"))
    file.with_suffix(".copy").replace(file)


def delete_file(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize("take_away", [delete_file, replace_file])
def test_nothing_is_stored_in_a_file_that_is_not_at_its_path_any_more(
    tmp_path: Path, take_away: Callable[[Path], object]
) -> None:
    """Otherwise, changes that were confirmed would be gone at the next start."""
    file = tmp_path / "data" / "journal.db"
    file.parent.mkdir()
    journal = Journal.open(file)
    journal.append(history(LAMP, 2))
    with contextlib.closing(journal):
        take_away(file)
        with pytest.raises(StoreUnavailable, match=r"journal.db: .*deleted or replaced.*put it back, or restart"):
            journal.append([change(LAMP, 3)])
        with pytest.raises(StoreUnavailable, match="deleted or replaced"):
            journal.probe()
        assert journal.latest(LAMP) == 2


def test_a_file_that_is_moved_back_is_used_again(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with contextlib.closing(Journal.open(folder / "journal.db")) as journal:
        journal.append(history(LAMP, 2))
        folder.rename(tmp_path / "away")
        with pytest.raises(StoreUnavailable, match="put it back"):
            journal.append([change(LAMP, 3)])
        (tmp_path / "away").rename(folder)
        journal.probe()
        journal.append([change(LAMP, 3)])
        assert journal.latest(LAMP) == 3


def test_a_full_file_stores_nothing_of_the_batch_and_continues_with_free_space(tmp_path: Path) -> None:
    """A real SQLITE_FULL, through the file's size limit; a probe sees it too."""
    journal = Journal.open(tmp_path / "journal.db")
    journal.append(history(LAMP, 2))
    (pages,) = journal._writer.execute("PRAGMA page_count").fetchone()
    journal._writer.execute(f"PRAGMA max_page_count = {pages + 2}")
    large = b'"' + b"x" * 30_000 + b'"'
    with pytest.raises(StoreUnavailable, match=r"full.*free space"):
        journal.append([change(POLICY, 1), change(LAMP, 3, large)])
    with pytest.raises(StoreUnavailable, match="full"):
        journal.probe()
    assert (journal.latest(LAMP), journal.latest(POLICY)) == (2, 0)
    journal._writer.execute("PRAGMA max_page_count = 1000000")
    journal.probe()
    journal.append([change(POLICY, 1), change(LAMP, 3, large)])
    assert (journal.latest(LAMP), journal.latest(POLICY)) == (3, 1)
    journal.close()


def test_probes_use_the_same_room_again_and_again(tmp_path: Path) -> None:
    """On a nearly full disk they would otherwise use the space that commits wait for."""
    journal = Journal.open(tmp_path / "journal.db")
    journal.append(history(LAMP, 2))
    for _ in range(30):
        journal.probe()
    assert (tmp_path / "journal.db-wal").stat().st_size < 300_000
    assert journal.latest(LAMP) == 2
    journal.close()


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db")
    journal._writer.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreUnavailable, match=r"readonly.*cannot be written"):
        journal.append([change(LAMP, 1)])
    with pytest.raises(StoreUnavailable):
        journal.probe()
    journal._writer.execute("PRAGMA query_only = OFF")
    journal.append([change(LAMP, 1)])
    journal.close()


def test_a_foreign_lock_is_unavailable_and_soon(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db")
    other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="another process has locked"):
        journal.append([change(LAMP, 1)])
    other.execute("ROLLBACK")
    other.close()
    journal.append([change(LAMP, 1)])
    journal.close()


def test_a_damaged_file_is_unavailable_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"this is no database" * 1000)
    with pytest.raises(StoreUnavailable, match=r"restore the file from a backup"):
        Journal.open(path)


def test_a_missing_folder_is_unavailable_with_advice(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="check its folder"):
        Journal.open(tmp_path / "nowhere" / "journal.db")


def test_a_file_of_a_later_version_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    Journal.open(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {len(STEPS) + 1}")
    connection.close()
    with pytest.raises(SchemaTooNew, match=f"found schema version {len(STEPS) + 1}"):
        Journal.open(path)


@pytest.mark.parametrize(
    "wrong",
    [event(LAMP, 2, path="/\ud800"), event(LAMP, 2)._replace(value=object()), event(LAMP, 2)._replace(path=None)],  # type: ignore[arg-type]
    ids=["surrogate", "no bytes", "no path"],
)
def test_a_value_that_sqlite_cannot_take_fails_alone(tmp_path: Path, wrong: Any) -> None:
    """Earlier writes stay in the transaction, and no change of the failed batch does."""
    journal = Journal.open(tmp_path / "journal.db")
    journal.write([change(LAMP, 1)])
    with pytest.raises(Unstorable):
        journal.write([change(POLICY, 1), Change((wrong,), (snapshot(LAMP, 2),))])
    journal.commit()
    assert (journal.latest(LAMP), journal.latest(POLICY), journal.newest_seq()) == (1, 0, 1)
    journal.append([change(LAMP, 2)])
    journal.close()


def test_a_batch_is_written_in_steps_and_all_of_it_is_taken_back_if_one_fails(tmp_path: Path) -> None:
    """Otherwise a batch of many entities would hold the event loop."""
    journal = Journal.open(tmp_path / "journal.db")
    journal.write([change(POLICY, 1)])
    assert len(list(journal.steps(history(LAMP, 100)))) > 10
    journal.commit()
    wrong = event(LAMP, 300, path="/\ud800")
    steps = journal.steps([*history(LAMP, 299)[100:], Change((wrong,), (snapshot(LAMP, 300),))])
    next(steps)
    with pytest.raises(Unstorable):
        list(steps)
    journal.commit()
    assert (journal.latest(LAMP), journal.latest(POLICY), journal.newest_seq()) == (100, 1, 101)
    journal.close()


def test_a_step_writes_few_large_values(tmp_path: Path) -> None:
    lamps = [EntityId(EntityType.THING, "acme.site", f"lamp-{number}") for number in range(8)]
    with contextlib.closing(Journal.open(tmp_path / "journal.db")) as journal:
        numbers = []
        for revision, size in ((1, 10), (2, 100_000)):
            text = "x" * size
            changes = [
                Change(
                    (event(lamp, revision, f'"{text}"'.encode()),),
                    (snapshot(lamp, revision, {"attributes": {"counter": text}}),),
                )
                for lamp in lamps
            ]
            numbers.append(len(list(journal.steps(changes))))
    small, large = numbers
    assert (small, large) == (3, 1 + 2 * len(lamps))


def test_everything_exists_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.open(path)
    journal.append([*history(LAMP, 5), change(POLICY, 1, answer=answered(1))])
    journal.write([change(LAMP, 6)])
    journal.close()
    journal = Journal.open(path)
    assert revisions(journal.events(LAMP, 1, ALL, 10, MUCH)) == [1, 2, 3, 4, 5]
    assert journal.snapshot(POLICY) == snapshot(POLICY, 1)
    assert journal.answer(delivery(1)) == b"done"
    assert journal.newest_seq() == 6
    journal.close()


def test_running_numbers_never_come_again(tmp_path: Path) -> None:
    """Also when the entries that had them are gone."""
    path = tmp_path / "journal.db"
    journal = Journal.open(path)
    journal.append(history(LAMP, 5))
    journal._writer.execute("DELETE FROM entries")
    journal.close()
    journal = Journal.open(path)
    journal.append([change(LAMP, 6)])
    rows = sqlite3.connect(path)
    assert rows.execute("SELECT seq FROM entries").fetchall() == [(6,)]
    rows.close()
    journal.close()


def test_running_numbers_lead_through_all_entries_in_order(tmp_path: Path) -> None:
    """A journal reader reads every entry once in this way."""
    path = tmp_path / "journal.db"
    journal = Journal.open(path)
    journal.append([change(LAMP, 1), change(POLICY, 1), change(LAMP, 2)])
    journal.append([change(POLICY, 2)])
    rows = sqlite3.connect(path)
    found = rows.execute(
        "SELECT seq, type, entries.revision FROM entries JOIN entities ON key = entity WHERE seq > 1 ORDER BY seq"
    ).fetchall()
    plan = rows.execute("EXPLAIN QUERY PLAN SELECT * FROM entries WHERE seq > 1 ORDER BY seq LIMIT 10").fetchall()
    rows.close()
    journal.close()
    assert found == [(2, "policy", 1), (3, "thing", 2), (4, "policy", 2)]
    assert "entries_by_seq" in str(plan)
    assert "TEMP B-TREE" not in str(plan)


def test_the_writer_lets_sqlite_wait_for_the_disk_at_every_commit(tmp_path: Path) -> None:
    """WAL alone does not wait: both pragmas are needed."""
    journal = Journal.open(tmp_path / "journal.db")
    assert journal._writer.execute("PRAGMA synchronous").fetchone() == (2,)
    assert journal._writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    journal.close()


def test_only_a_batch_that_joins_a_transaction_takes_a_savepoint(tmp_path: Path) -> None:
    """SQLite copies every page that is changed within one."""
    journal = Journal.open(tmp_path / "journal.db")
    statements: list[str] = []
    journal._writer.set_trace_callback(statements.append)
    journal.write([change(LAMP, 1)])
    assert not [it for it in statements if "SAVEPOINT" in it]
    journal.write([change(LAMP, 2)])
    assert [it for it in statements if "SAVEPOINT" in it]
    journal.close()


def test_both_journals_agree_on_the_same_series(tmp_path: Path) -> None:
    """The memory journal is the specification in code."""
    memory, file = MemoryJournal(), Journal.open(tmp_path / "journal.db")
    for journal in (memory, file):
        for revision in range(1, 40):
            journal.append([change(LAMP, revision, b'"' + b"y" * (revision * 37 % 90) + b'"')])
    for first, last, limit, size in [(1, 39, 10, 100), (5, 30, 50, 333), (1, ALL, 40, 5000), (38, 100, 5, 1)]:
        assert memory.events(LAMP, first, last, limit, size) == file.events(LAMP, first, last, limit, size)
    file.close()


WRITER = """
import sys
from spark_store.journal.journal import Journal
from tests.support.journal_entries import LAMP, answered, change
journal = Journal.open(sys.argv[1])
revision = journal.latest(LAMP)
while True:
    journal.append([change(LAMP, revision + n, answer=answered(revision + n)) for n in (1, 2, 3)])
    revision += 3
    sys.stdout.write(f"{revision}\\n")
    sys.stdout.flush()
"""


def test_a_durable_commit_survives_a_kill_and_is_stored_once(tmp_path: Path) -> None:
    """A child process writes and reports each commit; it is killed several times with the same file."""
    path = tmp_path / "journal.db"
    reported = 0
    for round_number in range(2):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert child.stdout is not None
        for _ in range(20 + 37 * round_number):
            reported = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        reported = max([reported, *map(int, child.stdout.read().split("\n")[:-1])])
        child.wait()
        child.stdout.close()
        journal = Journal.open(path)
        latest = journal.latest(LAMP)
        found = journal.events(LAMP, 1, ALL, 1_000_000, 1 << 30)
        assert latest >= reported
        assert latest % 3 == 0
        assert revisions(found) == list(range(1, latest + 1))
        assert journal.newest_seq() == latest
        assert journal.snapshot(LAMP) == snapshot(LAMP, latest)
        assert all(journal.answer(delivery(revision)) == b"done" for revision in range(1, latest + 1))
        journal.close()


def test_pages_of_trimmed_events_are_used_again(tmp_path: Path) -> None:
    """New events reuse the pages of old ones: the file of a trimmed journal does not grow."""
    journal = Journal.open(tmp_path / "journal.db")
    lamps = [EntityId(EntityType.THING, "acme.site", f"lamp-{number}") for number in range(50)]

    def append_revisions(first: int) -> None:
        for revision in range(first, first + 40):
            journal.append([change(lamp, revision, b'"' + b"x" * 400 + b'"') for lamp in lamps])

    def pages() -> int:
        (count,) = journal._writer.execute("PRAGMA page_count").fetchone()
        return int(count)

    append_revisions(1)
    full = pages()
    for age in range(1, 5):
        while journal.trim(journal.newest_seq(), LATER):
            journal.commit()
        append_revisions(1 + 40 * age)
    assert pages() < 1.15 * full
    plan = [row[3] for row in journal._writer.execute("EXPLAIN QUERY PLAN DELETE FROM entries WHERE seq <= 7")]
    assert plan == ["SEARCH entries USING COVERING INDEX entries_by_seq (seq<?)"]
    journal.close()


class CountingLookups(sqlite3.Connection):
    """Counts the questions for answers."""

    count = 0

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        CountingLookups.count += sql.lstrip().startswith("SELECT digest, answer")
        return super().execute(sql, *parameters)


def test_a_record_newer_than_every_answered_one_of_its_partition_needs_no_lookup(tmp_path: Path) -> None:
    def lookups(answer: StoredAnswer, expected: bytes | None) -> int:
        before = CountingLookups.count
        assert journal.answer(answer.delivery) == expected
        return CountingLookups.count - before

    journal = Journal.open(tmp_path / "journal.db", factory=CountingLookups)
    for number, offset in enumerate((7, 3), 1):
        journal.append([change(LAMP, number, answer=recorded(offset))])
    for _ in range(2):
        assert (lookups(recorded(3), b"done"), lookups(recorded(7), b"done")) == (1, 1)
        assert (lookups(recorded(5), None), lookups(recorded(8), None), lookups(recorded(0, "topic/1"), None)) == (
            1,
            0,
            0,
        )
        journal.close()
        journal = Journal.open(tmp_path / "journal.db", factory=CountingLookups)
    journal.close()


def test_a_command_with_a_key_of_its_own_is_looked_up_at_every_offset(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db")
    name = recorded(7).delivery._replace(name="key:once", digest=b"")
    journal.append([change(LAMP, 1, answer=StoredAnswer(name, b"done"))])
    assert journal.answer(name._replace(offset=8)) == b"done"
    journal.close()


@pytest.mark.parametrize("written", [[], [change(LAMP, 1)]], ids=["alone", "after a change"])
def test_a_step_that_fails_half_way_leaves_nothing_behind(tmp_path: Path, written: list[Change]) -> None:
    def step(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO counters (name, value) VALUES ('half', 1)")
        raise ValueError("the other half")

    journal = Journal.open(tmp_path / "journal.db")
    if written:
        journal.write(written)
    with pytest.raises(ValueError, match="the other half"):
        journal.within(step)
    journal.commit()
    assert journal.read(lambda it: it.execute("SELECT count(*) FROM counters WHERE name = 'half'").fetchone()) == (0,)
    assert journal.latest(LAMP) == len(written)
    journal.close()
