"""From an empty file to the newest schema, step by step."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_store.errors import SchemaTooNew
from spark_store.journal.schema import STEPS, migrate

ONE = ("CREATE TABLE a (x)", "INSERT INTO a VALUES (1)")
TWO = ("ALTER TABLE a ADD COLUMN y", "UPDATE a SET y = 2")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    yield connection
    connection.close()


def version(file: sqlite3.Connection) -> int:
    (found,) = file.execute("PRAGMA user_version").fetchone()
    return int(found)


def test_an_empty_file_gets_every_step(file: sqlite3.Connection) -> None:
    assert migrate(file, "journal.db", (ONE, TWO)) == 2
    assert version(file) == 2
    assert file.execute("SELECT x, y FROM a").fetchall() == [(1, 2)]


def test_a_file_gets_the_steps_it_has_not_seen(file: sqlite3.Connection) -> None:
    """The content of the file stays."""
    migrate(file, "journal.db", (ONE,))
    file.execute("INSERT INTO a VALUES (7)")
    assert migrate(file, "journal.db", (ONE, TWO)) == 1
    assert file.execute("SELECT x, y FROM a").fetchall() == [(1, 2), (7, 2)]


def test_a_file_at_the_newest_step_is_left_alone(file: sqlite3.Connection) -> None:
    migrate(file, "journal.db", (ONE,))
    assert migrate(file, "journal.db", (ONE,)) == 0
    assert file.execute("SELECT count(*) FROM a").fetchone() == (1,)


@pytest.mark.parametrize("number", [0, 1])
def test_a_step_that_fails_leaves_the_file_at_the_step_before(file: sqlite3.Connection, number: int) -> None:
    """Half a step is no step."""
    broken = (*TWO, "THIS IS NO SQL")
    steps = (ONE, broken) if number else (broken, ONE)
    with pytest.raises(sqlite3.OperationalError):
        migrate(file, "journal.db", steps)
    assert version(file) == number
    assert not file.in_transaction
    columns = [row[1] for row in file.execute("PRAGMA table_info(a)")]
    assert columns == ["x"] * number
    assert migrate(file, "journal.db", (ONE, TWO)) == 2 - number


def test_a_file_from_a_later_version_is_refused(file: sqlite3.Connection) -> None:
    file.execute("PRAGMA user_version = 3")
    with pytest.raises(SchemaTooNew, match=r"journal\.db: found schema version 3, expected at most 2"):
        migrate(file, "journal.db", (ONE, TWO))
    assert version(file) == 3


def test_the_steps_of_this_version_make_the_journals_tables(file: sqlite3.Connection) -> None:
    migrate(file, "journal.db")
    tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {"entities", "entries", "answers", "counters"} <= tables
    assert version(file) == len(STEPS)


def test_policies_with_an_expiry_are_due_when_they_are_written(file: sqlite3.Connection) -> None:
    migrate(file, "journal.db")
    entity = """
        INSERT INTO entities (key, type, id, revision, created, modified, state, newest_seq)
        VALUES (?, ?, ?, 1, '', '', ?, 1)
    """
    expiring, lasting = b'{"entries":{"G":{"subjects":{"x:g":{"expiry":"2030"}}}}}', b'{"entries":{}}'
    written = [("policy", expiring), ("policy", lasting), ("policy", None), ("thing", expiring), ("policy", expiring)]
    file.executemany(entity, [(key, type, f"acme:{key}", state) for key, (type, state) in enumerate(written, 1)])
    assert file.execute("SELECT entity, due, note FROM policy_due").fetchall() == [(1, "", None), (5, "", None)]
    file.execute("UPDATE entities SET state = NULL WHERE key = 1")
    file.execute("UPDATE entities SET state = ? WHERE key = 2", (expiring,))
    file.execute("UPDATE entities SET state = ? WHERE key = 5", (lasting,))
    assert file.execute("SELECT entity FROM policy_due").fetchall() == [(2,)]
