"""The first retained revisions of histories: kept in memory, never too low, and exact after a look-up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from connectivity.store.retained_history import CACHE_SECONDS, MOST
from connectivity.store.store import Store
from mappings.ids import partition_entity
from spark_store.errors import HistoryUnavailable
from spark_store.journal import erasure
from spark_store.journal.journal import Journal
from spark_store.lake.history_reader import LakeHistory
from spark_store.lake.tables import Lake
from tests.support.clock import Clock
from tests.support.journal_entries import LAMP, LATER, MUCH, TANK, change, published, timestamp
from tests.support.lake.tables import append_events, forget
from tests.support.temporary_journal import TemporaryJournal

OTHER = partition_entity("acme.site:hall/tank/1")


class TrimmedMessages:
    """Ten messages of the tank, the first six of them in the lake alone, which has eight."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.lake = Clock(), Lake(folder)
        self.journal = Journal.open(self.lake.journal)
        self.journal.append([published(TANK, offset) for offset in range(1, 11)])
        append_events(self.lake, list(enumerate(self.journal.events(TANK, 1, 8, 8, MUCH), 1)))
        opened = LakeHistory(self.lake, clock=self.clock.now)
        self.store = Store(self.journal, cold=lambda: opened)
        self.retained_history = self.store.retained_history
        self.retained_history._clock = self.clock.now

    async def round(self) -> int:
        """A second passes."""
        self.clock.advance(1.0)
        await self.retained_history.round()
        return self.store.oldest_revision(TANK)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[TrimmedMessages]:
    made = TrimmedMessages(tmp_path)
    assert made.store.oldest_revision(TANK) == 1
    assert await made.store.commits.trim(6, LATER) == 6
    yield made
    await made.store.close()


async def test_the_oldest_revision_of_a_complete_journal_needs_no_lake() -> None:
    store = Store(TemporaryJournal())
    assert store.oldest_revision(LAMP) == 1
    await store.commits.submit([change(LAMP, 1), change(LAMP, 2)])
    assert (store.oldest_revision(LAMP), await store.retained_history.look(LAMP)) == (1, 1)
    await store.commits.trim(1, LATER)
    assert (store.oldest_revision(LAMP), await store.retained_history.look(LAMP)) == (2, 2)
    await store.commits.trim(2, LATER)
    assert store.oldest_revision(LAMP) == 3
    await store.close()


async def test_trimmed_revisions_are_retained_once_the_lake_lookup_has_found_them(harness: TrimmedMessages) -> None:
    assert harness.store.oldest_revision(TANK) == 7
    assert await harness.retained_history.look(TANK) == 1
    assert harness.store.oldest_revision(TANK) == 1


async def test_a_requested_entity_is_looked_up_in_the_next_round(harness: TrimmedMessages) -> None:
    assert harness.store.oldest_revision(TANK) == 7
    assert await harness.round() == 1
    harness.clock.advance(CACHE_SECONDS)
    assert harness.store.oldest_revision(TANK) == 7
    assert await harness.round() == 1


async def test_revisions_deleted_by_retention_disappear_with_the_next_round(harness: TrimmedMessages) -> None:
    assert await harness.retained_history.look(TANK) == 1
    forget(harness.lake, "revision <= 4")
    assert await harness.round() == 7
    assert await harness.round() == 5
    forget(harness.lake, "revision <= 6")
    harness.clock.advance(1.0)
    assert await harness.retained_history.look(TANK) == 7
    assert harness.store.oldest_revision(TANK) == 7


async def test_the_journal_decides_the_oldest_revision_when_the_lake_is_empty(harness: TrimmedMessages) -> None:
    forget(harness.lake, "true")
    assert (await harness.retained_history.look(TANK), harness.store.oldest_revision(TANK)) == (7, 7)
    assert await harness.store.commits.trim(8, LATER) == 2
    assert (await harness.retained_history.look(TANK), harness.store.oldest_revision(TANK)) == (9, 9)


async def test_an_erasure_takes_everything_up_to_it(harness: TrimmedMessages) -> None:
    assert await harness.retained_history.look(TANK) == 1
    await harness.store.commits.execute(
        lambda it: erasure.begin(it, "stream", TANK.id, timestamp(11), "operator"), forgets=harness.store.snapshot(TANK)
    )
    # The entries themselves go in steps of their own.
    assert (harness.store.oldest_revision(TANK), await harness.retained_history.look(TANK)) == (11, 11)
    await harness.store.commits.submit([published(TANK, 11), published(TANK, 12)])
    assert harness.store.oldest_revision(TANK) == 11


async def test_while_the_lake_cannot_be_read_nothing_is_known_of_it(tmp_path: Path) -> None:
    journal = TemporaryJournal()
    journal.append([published(TANK, offset) for offset in range(1, 5)])
    store = Store(journal, cold=lambda: LakeHistory(Lake(tmp_path)))
    await store.commits.trim(2, LATER)
    assert store.oldest_revision(TANK) == 3
    await store.retained_history.round()
    assert store.oldest_revision(TANK) == 3
    with pytest.raises(HistoryUnavailable):
        await store.retained_history.look(TANK)
    await store.close()


async def test_each_partition_has_its_own_oldest_revision_and_the_cache_is_limited(harness: TrimmedMessages) -> None:
    await harness.store.commits.submit([published(OTHER, 1)])
    assert (await harness.retained_history.look(TANK), harness.store.oldest_revision(OTHER)) == (1, 1)
    for number in range(MOST):
        harness.store.oldest_revision(partition_entity(f"stream/{number}"))
    assert repr(harness.retained_history) == f"<RetainedHistory of {MOST} entities, 1 of them in the lake>"
    assert harness.store.oldest_revision(TANK) == 1
