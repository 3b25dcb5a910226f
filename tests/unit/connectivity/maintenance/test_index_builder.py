"""The search index is built in the background: commands continue, and a failed build can be repeated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from connectivity.maintenance.index_builder import MARK, IndexBuilder, request_rebuild
from connectivity.maintenance.job_runner import Job, JobRunner
from connectivity.store.store import Store
from mappings.ids import EntityId, EntityType
from spark_store.errors import StoreUnavailable
from spark_store.journal.journal import Journal
from spark_store.search import index_builder
from tests.support.failing_sqlite import Fragile
from tests.support.journal_entries import LAMP, change
from tests.support.oracles.search_index import expected, found
from tests.support.wait import wait_until

THINGS = 30


class JournalWithIndexer:
    """A journal of things without an index, the store on it, and who makes the index."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.db"
        self.journal = Journal.open(self.path, factory=Fragile)
        self.journal.append([change(EntityId(EntityType.THING, "acme", str(number)), 1) for number in range(THINGS)])
        self.journal.within(lambda it: it.execute("DELETE FROM search_values"))
        self.journal.within(lambda it: it.execute("UPDATE search_progress SET indexed = 0"))
        self.journal.commit()
        self.store = Store(self.journal)
        self.indexer = IndexBuilder(self.store)
        self.failed: list[str] = []
        self.jobs = JobRunner([], self.failed.append)

    def start(self) -> None:
        self.jobs = JobRunner([Job("index", self.indexer.round, 0.01)], self.failed.append)
        self.jobs.start()

    async def complete(self) -> None:
        await wait_until(lambda: self.indexer.progress().is_complete)

    async def close(self) -> None:
        Fragile.arm(0)
        await self.jobs.stop()
        await self.store.close()
        assert self.failed == []


@pytest.fixture
async def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JournalWithIndexer]:
    monkeypatch.setattr(index_builder, "STEP_ENTITIES", 2)
    monkeypatch.setattr("connectivity.maintenance.index_builder.RETRY_SECONDS", 0.01)
    made = JournalWithIndexer(tmp_path)
    yield made
    await made.close()


async def test_an_old_journal_gets_its_index_while_commands_continue(harness: JournalWithIndexer) -> None:
    harness.start()
    for revision in range(1, 41):
        await harness.store.commits.submit([change(LAMP, revision)])
    await harness.complete()
    assert found(harness.path) == expected(harness.path)
    assert len(found(harness.path).values) == 2 * (THINGS + 1)


async def test_it_is_logged_how_it_continues_and_nothing_where_nothing_is_missing(harness: JournalWithIndexer) -> None:
    with structlog.testing.capture_logs() as logs:
        harness.start()
        await harness.complete()
        await wait_until(lambda: [it for it in logs if it["event"] == "search index built"])
        await harness.jobs.stop()
        logged = len(logs)
        harness.indexer = IndexBuilder(harness.store)
        harness.start()
        await harness.store.commits.submit([change(LAMP, 1)])
        await harness.store.commits.barrier()
    assert logs[0] == {"event": "search index build in progress", "log_level": "info", "indexed": 2, "entities": THINGS}
    assert len(logs) == logged


async def test_the_index_is_built_again_on_request(harness: JournalWithIndexer) -> None:
    harness.start()
    await harness.complete()
    await harness.store.commits.execute(lambda it: it.execute("UPDATE search_values SET value = 7"))
    assert found(harness.path) != expected(harness.path)
    request_rebuild(harness.path.parent)
    await wait_until(lambda: found(harness.path) == expected(harness.path) and harness.indexer.progress().is_complete)
    assert len(found(harness.path).values) == 2 * THINGS
    assert not (harness.path.parent / MARK).exists()


async def test_declared_paths_get_indexes_of_their_own_and_lose_them(harness: JournalWithIndexer) -> None:
    for declared, rows in ((["/attributes/counter"], THINGS), ([], 0)):
        harness.indexer = IndexBuilder(harness.store, declared)
        harness.start()
        await harness.complete()
        await wait_until(lambda rows=rows: len(found(harness.path).declared) == rows)  # type: ignore[misc]
        assert found(harness.path) == expected(harness.path)
        await harness.jobs.stop()


async def test_a_step_that_fails_is_taken_again(harness: JournalWithIndexer) -> None:
    with structlog.testing.capture_logs() as logs:
        harness.start()
        await wait_until(lambda: harness.indexer.progress().indexed)
        Fragile.arm(5)
        # Reading the progress is an operation too, and could be the failing one.
        await wait_until(lambda: "search index waits for the store" in [it["event"] for it in logs])
        await harness.complete()
    assert [it["reason"] for it in logs if it["event"] == "search index waits for the store"]
    assert found(harness.path) == expected(harness.path)


async def test_a_journal_that_cannot_be_read_is_reported(
    harness: JournalWithIndexer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_function: object) -> None:
        raise StoreUnavailable("the index is damaged")

    monkeypatch.setattr(harness.store, "read", read)
    with structlog.testing.capture_logs() as logs:
        await harness.indexer.round()
    assert [(it["event"], it["reason"]) for it in logs] == [
        ("search index waits for the store", "the index is damaged")
    ]
