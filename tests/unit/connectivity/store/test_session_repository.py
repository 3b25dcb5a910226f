"""Session state of a protocol: readable at once, stored with the next commit, no wait for a response."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from connectivity.store import session_repository as module
from connectivity.store.options import StoreOptions
from connectivity.store.session_repository import SessionRepository
from connectivity.store.store import Store
from spark_store.errors import StoreUnavailable
from spark_store.journal import sessions
from spark_store.journal.journal import Journal
from spark_store.records import SessionKey, SessionRow
from tests.support.wait import wait_until


class SessionJournal:
    """A journal's file, the store on it, and the rows of one protocol."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.db"
        self.journal = Journal.open(self.path)
        self.store = Store(self.journal, StoreOptions(probe_min=0.01))
        self.sessions = SessionRepository(self.store, "streamr")

    def written(self) -> list[SessionRow]:
        """Return the durable rows."""
        with closing(sqlite3.connect(self.path)) as other:
            return sessions.of_protocol(other, "streamr")


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[SessionJournal]:
    made = SessionJournal(tmp_path)
    yield made
    await made.store.close()


def row(address: str = "r/a", key: str = "tank-9/0", last: int | None = 7, connection: str = "depot") -> SessionRow:
    return SessionRow(SessionKey(connection, "streamr", address, key), 1, b"\x00", last)


def rows(count: int) -> Sequence[SessionRow]:
    return [row(f"r/{number:04}") for number in range(count)]


async def test_a_kept_session_is_durable_with_the_next_commit(harness: SessionJournal) -> None:
    """More than one step holds, too."""
    many = rows(2 * module.STEP_ROWS + 1)
    for each in many:
        harness.sessions.keep(each)
    assert harness.sessions.rows("depot") == many
    await harness.store.commits.submit(())
    assert harness.written() == many


async def test_a_session_kept_during_a_commit_is_durable_with_the_following_commit(harness: SessionJournal) -> None:
    harness.sessions.keep(row("r/a"))
    first = harness.store.commits.submit(())
    harness.sessions.keep(row("r/b"))
    await harness.store.commits.submit(())
    assert harness.written() == [row("r/a"), row("r/b")]
    assert first.done()


async def test_a_forgotten_session_is_deleted_with_the_next_commit(harness: SessionJournal) -> None:
    harness.sessions.keep(row("r/a"))
    harness.sessions.keep(row("r/b"))
    await harness.store.commits.submit(())
    harness.sessions.forget(row("r/a").at)
    harness.sessions.forget(row("r/z").at)
    assert harness.sessions.rows("depot") == [row("r/b")]
    await harness.store.commits.submit(())
    assert harness.written() == [row("r/b")]


async def test_how_far_a_session_has_come_is_written_down_once_in_a_while(harness: SessionJournal) -> None:
    for each in (row("r/a"), row("r/b"), row("r/c", last=None)):
        harness.sessions.keep(each)
    await harness.store.commits.submit(())
    for last in (8, 9, 6):
        harness.sessions.sent(row("r/a").at, last)
    harness.sessions.sent(row("r/z").at, 3)
    assert [each.last for each in harness.sessions.rows("depot")] == [9, 7, None]
    await harness.store.commits.submit(())
    assert [each.last for each in harness.written()] == [7, 7, None]
    harness.sessions.sweep()
    await harness.store.commits.barrier()
    assert [each.last for each in harness.written()] == [9, 7, None]


async def test_a_row_that_is_kept_again_continues_from_where_it_is(harness: SessionJournal) -> None:
    """After a second subscribe, elements that were sent already are not sent again."""
    harness.sessions.keep(row())
    harness.sessions.sent(row().at, 12)
    harness.sessions.keep(row(last=3)._replace(row=b"\x01"))
    await harness.store.commits.submit(())
    assert harness.written() == [row(last=12)._replace(row=b"\x01")]


async def test_a_row_that_was_forgotten_and_is_kept_again_starts_again(harness: SessionJournal) -> None:
    harness.sessions.keep(row())
    harness.sessions.sent(row().at, 12)
    await harness.store.commits.submit(())
    harness.sessions.forget(row().at)
    harness.sessions.keep(row(last=3))
    harness.sessions.sweep()
    await harness.store.commits.submit(())
    assert harness.written() == harness.sessions.rows("depot") == [row(last=3)]


async def test_a_service_that_ends_normally_has_written_everything(tmp_path: Path, harness: SessionJournal) -> None:
    harness.sessions.keep(row())
    harness.sessions.sent(row().at, 12)
    await harness.sessions.close()
    assert harness.written() == [row(last=12)]
    again = SessionRepository(harness.store, "streamr")
    assert again.rows("depot") == [row(last=12)]
    assert SessionRepository(harness.store, "another").rows("depot") == []


async def test_nothing_is_kept_of_a_connection_that_is_not_to_be_open(harness: SessionJournal) -> None:
    harness.sessions.keep(row())
    harness.sessions.keep(other := row(connection="annex"))
    harness.sessions.keep_only(lambda connection_id: connection_id == "annex")
    await harness.store.commits.submit(())
    assert harness.sessions.rows("depot") == []
    assert harness.written() == [other]


async def test_session_changes_are_written_when_the_store_is_available_again(
    harness: SessionJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise StoreUnavailable("the disk is full")

    harness.sessions.keep(row("r/a"))
    harness.sessions.keep(row("r/b"))
    await harness.store.commits.submit(())
    with monkeypatch.context() as broken:
        broken.setattr(harness.journal, "commit", refuse)
        broken.setattr(harness.journal, "probe", refuse)
        harness.sessions.sent(row("r/a").at, 12)
        harness.sessions.sweep()
        harness.sessions.forget(row("r/b").at)
        harness.sessions.keep(row("r/c"))
        with pytest.raises(StoreUnavailable):
            await harness.store.commits.submit(())
        harness.sessions.keep(row("r/d"))
        harness.sessions.sweep()
    await wait_until(lambda: harness.store.commits.is_available)
    assert harness.written() == [row("r/a"), row("r/b")]
    harness.sessions.sweep()
    await harness.store.commits.barrier()
    assert harness.written() == harness.sessions.rows("depot") == [row("r/a", last=12), row("r/c"), row("r/d")]
