"""Sessions in the journal's file: rows of a protocol, and the position of each session."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from spark_store.journal import sessions
from spark_store.journal.schema import migrate
from spark_store.records import SessionKey, SessionRow


@pytest.fixture
def file() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, "journal.db")
        yield connection


def row(address: str, key: str = "tank-9/0", last: int | None = 7, connection: str = "depot") -> SessionRow:
    return SessionRow(SessionKey(connection, "streamr", address, key), 1, b"\x00\xff", last)


def test_a_row_is_kept_as_it_was_given(file: sqlite3.Connection) -> None:
    kept = [row("r/a"), row("r/a", "tank-9/1", None), row("r/b", connection="annex")]
    sessions.keep(file, "streamr", kept)
    assert sessions.of_protocol(file, "streamr") == [kept[2], kept[0], kept[1]]
    assert sessions.of_protocol(file, "another") == []


def test_a_row_stored_under_an_existing_key_replaces_the_old_row(file: sqlite3.Connection) -> None:
    sessions.keep(file, "streamr", [row("r/a")])
    sessions.keep(file, "streamr", [again := row("r/a", last=2)._replace(source=0, row=b"")])
    assert sessions.of_protocol(file, "streamr") == [again]


def test_a_session_that_has_come_further_never_goes_back(file: sqlite3.Connection) -> None:
    sessions.keep(file, "streamr", [row("r/a"), row("r/b"), row("r/c", last=None)])
    sessions.move(file, "streamr", [(row("r/a").at, 9), (row("r/b").at, 6), (row("r/c").at, 3)])
    assert [each.last for each in sessions.of_protocol(file, "streamr")] == [9, 7, None]


def test_a_deleted_row_is_not_created_again_by_a_move(file: sqlite3.Connection) -> None:
    sessions.keep(file, "streamr", [row("r/a"), other := row("r/b")])
    sessions.forget(file, "streamr", [row("r/a").at, row("r/z").at])
    sessions.move(file, "streamr", [(row("r/a").at, 9)])
    assert sessions.of_protocol(file, "streamr") == [other]
