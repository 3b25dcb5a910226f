"""Checkpoints beside the commits."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from spark_store.journal.checkpoint import COMMITS_BETWEEN
from spark_store.journal.journal import Journal
from tests.support.journal_entries import LAMP, change
from tests.support.wait import wait_until_sync


class Watched(sqlite3.Connection):
    """Says when a checkpoint begins, and lets it go on when it may; it fails if it is told to."""

    began = threading.Semaphore(0)
    may_go_on = threading.Event()
    fails = False

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if "wal_checkpoint" in sql:
            Watched.began.release()
            Watched.may_go_on.wait(10)
            if Watched.fails:
                raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *parameters)


@pytest.fixture(autouse=True)
def no_checkpoint_yet() -> None:
    Watched.began, Watched.may_go_on, Watched.fails = threading.Semaphore(0), threading.Event(), False


def commit(journal: Journal, count: int) -> None:
    for _ in range(count):
        journal.append([change(LAMP, journal.latest(LAMP) + 1)])


def events_in_file(journal: Journal) -> int:
    """How many events the file has without the log."""
    copy = sqlite3.connect(shutil.copy(journal.path, f"{journal.path}-copy"))
    tables = {name for (name,) in copy.execute("SELECT name FROM sqlite_master")}
    count = copy.execute("SELECT count(*) FROM entries").fetchone()[0] if "entries" in tables else 0
    copy.close()
    return int(count)


def test_the_log_is_copied_into_the_file_while_commits_go_on(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db", factory=Watched)
    commit(journal, COMMITS_BETWEEN)
    assert Watched.began.acquire(timeout=10)
    commit(journal, 2 * COMMITS_BETWEEN)
    assert events_in_file(journal) == 0
    Watched.may_go_on.set()
    wait_until_sync(lambda: events_in_file(journal) >= COMMITS_BETWEEN, 10)
    journal.close()


def test_a_journal_is_closed_after_its_running_checkpoint(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db", factory=Watched)
    commit(journal, COMMITS_BETWEEN)
    assert Watched.began.acquire(timeout=10)
    closing = threading.Thread(target=journal.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    Watched.may_go_on.set()
    closing.join(10)
    assert not closing.is_alive()
    assert events_in_file(journal) == COMMITS_BETWEEN


def test_a_checkpoint_that_fails_loses_nothing_and_is_tried_again(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db", factory=Watched)
    Watched.fails = True
    Watched.may_go_on.set()
    for _ in range(2):
        commit(journal, COMMITS_BETWEEN)
        assert Watched.began.acquire(timeout=10)
    assert journal.latest(LAMP) == 2 * COMMITS_BETWEEN
    journal.close()
