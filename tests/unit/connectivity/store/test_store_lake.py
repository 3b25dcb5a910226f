"""The store and its lake: trimming steps, and pages of trimmed events."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from connectivity.store.options import StoreOptions
from connectivity.store.store import Store
from mappings.model.signals import HistoryQuery
from spark_store.errors import HistoryUnavailable, StoreUnavailable
from spark_store.lake.history_reader import LakeHistory
from spark_store.lake.tables import Lake
from spark_store.records import OldestEvent
from tests.support.in_process.service import Disk
from tests.support.journal_entries import LAMP, LATER, MUCH, change, event, history, revisions, timestamp
from tests.support.lake.tables import append_events
from tests.support.temporary_journal import TemporaryJournal
from tests.support.wait import PATIENCE

NOW = datetime(2030, 1, 15, tzinfo=UTC)
HASTY = StoreOptions(probe_min=0.001, probe_max=0.002)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
async def store(disk: Disk) -> AsyncIterator[Store]:
    made = Store(disk, HASTY)
    yield made
    disk.full = False
    disk.release()
    await made.close()


@pytest.fixture
async def trimmed(tmp_path: Path) -> AsyncIterator[Store]:
    """A store with ten revisions of the lamp, the first six of them in the lake only."""
    journal = TemporaryJournal()
    journal.append(history(LAMP, 10))
    append_events(Lake(tmp_path), list(enumerate(journal.events(LAMP, 1, 8, 8, MUCH), 1)))
    store = Store(journal, HASTY, cold=lambda: LakeHistory(Lake(tmp_path)))
    assert await store.commits.trim(6, LATER) == 6
    yield store
    await store.close()


async def test_trimming_that_is_asked_for_while_a_step_runs_aside_is_done_after_it(store: Store, disk: Disk) -> None:
    """Otherwise closing the store would wait for ever."""
    await store.commits.submit(history(LAMP, 5))
    is_running, may_end = threading.Event(), threading.Event()

    def step(_: object) -> None:
        is_running.set()
        assert may_end.wait(60)

    aside = asyncio.ensure_future(store.commits.execute_alone(step))
    assert await asyncio.to_thread(is_running.wait, 60)
    trimming = asyncio.ensure_future(store.commits.trim(3, LATER))
    await asyncio.sleep(0)
    may_end.set()
    await aside
    await asyncio.wait_for(store.close(), PATIENCE)
    assert await trimming == 3


async def test_a_step_of_trimming_rides_on_a_commit(store: Store, disk: Disk) -> None:
    await store.commits.submit(history(LAMP, 5))
    commits = disk.commits
    disk.hold()
    durable = store.commits.submit([change(LAMP, 6)])
    step = asyncio.ensure_future(store.commits.trim(3, LATER))
    await asyncio.sleep(0)
    disk.release()
    await durable
    assert await asyncio.wait_for(step, PATIENCE) == 3
    assert disk.commits <= commits + 2
    assert store.oldest() == OldestEvent(4, timestamp(4))
    assert await store.commits.trim(3, LATER) == 0


async def test_trimming_fails_with_the_store(store: Store, disk: Disk) -> None:
    await store.commits.submit(history(LAMP, 5))
    disk.full = True
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        await store.commits.trim(3, LATER)
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        await store.commits.trim(3, LATER)
    disk.full = False
    await asyncio.wait_for(store.commits.wait_available(), PATIENCE)
    assert await store.commits.trim(3, LATER) == 3
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.commits.trim(3, LATER)


@pytest.mark.parametrize("limit", [1, 4, 100])
async def test_a_history_runs_across_the_border(trimmed: Store, limit: int) -> None:
    range = trimmed.open_range(HistoryQuery(LAMP), NOW)
    position, found, ended = 0, [], False
    while not ended:
        events, position, ended, *_ = await trimmed.page(range, position, limit, MUCH)
        found += events
    assert found == [event(LAMP, revision) for revision in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)]


async def test_events_trimmed_after_a_commit_are_read_from_the_lake(trimmed: Store) -> None:
    durable = trimmed.commits.submit([change(LAMP, 11)])
    range = trimmed.open_range(HistoryQuery(LAMP, -6), NOW)
    await durable
    first = await trimmed.page(range, 0, 1, MUCH)
    assert revisions(first.events) == [6]
    assert revisions((await trimmed.page(range, 6, 100, MUCH)).events) == [7, 8, 9, 10, 11]


async def test_without_a_lake_only_the_pages_with_trimmed_revisions_fail(store: Store, disk: Disk) -> None:
    await store.commits.submit(history(LAMP, 5))
    await store.commits.trim(3, LATER)
    with pytest.raises(
        HistoryUnavailable, match=r"trimmed revisions 1 to 3, and there is no lake.* found spark.mode off"
    ):
        await store.page(store.open_range(HistoryQuery(LAMP), NOW), 0, 10, MUCH)
    assert revisions((await store.page(store.open_range(HistoryQuery(LAMP, 4), NOW), 0, 10, MUCH)).events) == [4, 5]
