"""A commit begins soon, for any concurrent changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest.mock import patch

import pytest

from connectivity.store import commit
from connectivity.store.journal_thread import JournalThread
from connectivity.store.store import Store
from spark_store.errors import CommitFailed
from tests.support.journal_entries import LAMP, change
from tests.support.temporary_journal import TemporaryJournal

MANY = 25
"""Passes of the event loop in each of which something is submitted."""


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    made = Store(TemporaryJournal())
    yield made
    await made.close()


async def passes_before_the_commit(store: Store, meanwhile: Callable[[int], object]) -> int:
    """Submit a change, then call `meanwhile` in each pass of the event loop until the commit begins.

    Returns the number of passes.
    """
    begun = False

    def begin(*arguments: Any) -> None:
        nonlocal begun
        begun = True
        call(*arguments)

    call = JournalThread.call
    with patch.object(JournalThread, "call", begin):
        store.commits.submit([change(LAMP, 1)])
        passes = 0
        while not begun and passes < MANY:
            await asyncio.sleep(0)
            passes += 1
            meanwhile(passes)
    await store.commits.barrier()
    return passes


async def test_barriers_do_not_delay_the_commit_of_changes_before_them(store: Store) -> None:
    """Retrieves of one client must not keep back the changes of another."""
    assert await passes_before_the_commit(store, lambda _: store.commits.barrier()) < 5


async def test_changes_that_keep_coming_are_gathered_while_one_user_sends_them(store: Store) -> None:
    assert (
        await passes_before_the_commit(store, lambda number: store.commits.submit([change(LAMP, 1 + number)])) == MANY
    )


async def test_changes_that_keep_coming_delay_no_commit_while_several_users_send_them(store: Store) -> None:
    store.commits.progress.is_shared = True

    def submit(number: int) -> None:
        # The turns of several users bound the number of their queued changes.
        if number < 5:
            store.commits.submit([change(LAMP, 1 + number)])

    assert await passes_before_the_commit(store, submit) < 10


async def test_a_commit_that_fails_is_reported_after_those_before_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Reports wait.
    monkeypatch.setattr(commit, "_TURN_WEIGHT", 0)
    monkeypatch.setattr(store.commits._reports, "_left", 0)
    ended: list[BaseException | None] = []
    first = store.commits.submit([change(LAMP, 1)])
    await store.commits.progress.wait()
    journal_commit = store._journal.commit

    def fail() -> None:
        journal_commit()
        raise CommitFailed("the disk has failed")

    monkeypatch.setattr(store._journal, "commit", fail)
    second = store.commits.submit([change(LAMP, 2)])
    for each in (second, first):
        each.add_done_callback(lambda done: ended.append(done.exception()))
    await asyncio.wait([first, second])
    assert [type(error) for error in ended] == [type(None), CommitFailed]
