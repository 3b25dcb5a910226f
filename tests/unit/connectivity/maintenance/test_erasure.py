"""Erasing an entity in a running service: in order with changes, and visible to later commands.

An interrupted erasure is completed without an operator.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from connectivity.maintenance import erasure as module
from connectivity.maintenance.erasure import (
    ERASED,
    Eraser,
    ErasureUnavailable,
    InvalidEntity,
    UnknownEntity,
    entity_of,
    erase_offline,
    read_records,
)
from connectivity.maintenance.job_runner import Job, JobRunner
from connectivity.store.folder_lock import DataFolderLocked, lock_folder
from connectivity.store.store import Store
from connectivity.subscriptions.limits import SubscriptionLimits
from connectivity.subscriptions.manager import Subscriber, SubscriptionManager
from mappings.ids import EntityId, EntityType, partition_entity
from mappings.model.signals import Created, Failed, HistoryQuery, Request, Subscribe, SubscriptionKind
from spark_store.errors import StoreUnavailable
from spark_store.history.replay import evolve
from spark_store.journal import erasure
from spark_store.journal.journal import Journal
from spark_store.journal.reader import JournalReader
from spark_store.lake.tables import Lake
from spark_store.lake.watermark import Watermark, publish_watermark, read_watermark
from spark_store.records import Change, Snapshot
from tests.support.in_process.fakes import KeepingReply, ListFeed
from tests.support.journal_entries import (
    ALL,
    LAMP,
    MUCH,
    POLICY,
    TANK,
    change,
    history,
    published,
    revisions,
    snapshot,
    timestamp,
)
from tests.support.wait import PATIENCE, wait_until

NOW = datetime(2031, 1, 15, tzinfo=UTC)
OTHER = partition_entity("acme.site:hall/tank/1")
MARK = b"a-secret-nobody-else-has"


class DataFolder:
    """Store, streams and eraser of one data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = Journal.open(folder / "journal.db")
        self.store = Store(self.journal)
        self.streams = SubscriptionManager(lambda *_: ListFeed(range(1, 102)), SubscriptionLimits(), lambda: 0.0)
        self.lake = Lake(folder)
        self.hidden: dict[EntityId, int] = {}
        self.eraser = Eraser(self.store, self.streams, self.lake, self.hidden, lambda: NOW)
        self.failed: list[str] = []
        self.jobs = JobRunner([Job("erase", self.eraser.round)], self.failed.append)

    def start(self) -> None:
        self.jobs.start()

    async def close(self) -> None:
        await self.jobs.stop()
        await self.store.close()
        assert self.failed == []

    def record(self) -> dict[str, Any]:
        return read_records(self.folder)[-1]

    def bytes(self) -> bytes:
        return b"".join(file.read_bytes() for file in sorted(self.folder.rglob("*")) if file.is_file())


@pytest.fixture
async def data_folder(tmp_path: Path) -> AsyncIterator[DataFolder]:
    made = DataFolder(tmp_path)
    yield made
    await made.close()


async def test_an_erasure_clears_the_journal_and_records_the_operator_and_the_time(data_folder: DataFolder) -> None:
    for revision in range(1, 121):
        await data_folder.store.commits.submit([change(LAMP, revision, b'"' + MARK + b'"')])
    await data_folder.store.commits.submit(history(POLICY, 3))
    data_folder.start()
    assert (await data_folder.eraser.erase(LAMP, "anna"))["journal_done"] is None
    await wait_until(lambda: data_folder.record()["journal_done"])
    assert MARK not in data_folder.bytes(), "while the journal is open"
    assert data_folder.journal.events(LAMP, 1, ALL, 10, MUCH) == []
    assert len(data_folder.journal.events(POLICY, 1, ALL, 10, MUCH)) == 3
    at = "2031-01-15T00:00:00.000000Z"
    assert data_folder.record() == {
        "id": 1, "entity_type": "thing", "entity": LAMP.id, "seq": 123, "requested_at": at, "requested_by": "anna",
        "journal_done": at, "lake_done": None,
    }  # fmt: skip
    assert data_folder.hidden == {LAMP: 123}, "the lake may still have what must not be shown"
    # The pipeline says that it has carried it out.
    data_folder.lake.pipeline.mkdir(parents=True)
    publish_watermark(data_folder.lake.watermark, Watermark(123, erased=1, erased_at=at))
    assert data_folder.record()["lake_done"] == at
    await wait_until(lambda: data_folder.hidden == {})
    file = sqlite3.connect(data_folder.folder / "journal.db")
    assert file.execute("SELECT lake_done FROM erasures").fetchone() == (at,)
    assert file.execute("SELECT count(*) FROM holes").fetchone() == (120,), "a new lake may still be wanted"
    assert file.execute("SELECT path FROM search_paths").fetchall() == [], "names of places tell something too"
    file.close()


def holes(folder: Path) -> int:
    with contextlib.closing(sqlite3.connect(folder / "journal.db")) as file:
        return int(file.execute("SELECT count(*) FROM holes").fetchone()[0])


async def test_holes_are_forgotten_in_as_many_steps_as_it_takes(
    data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "STEP_HOLES", 2)
    await data_folder.store.commits.submit([*history(LAMP, 5), *history(POLICY, 1)])
    data_folder.start()
    await data_folder.eraser.erase(LAMP, "anna")
    await wait_until(lambda: data_folder.record()["journal_done"])
    assert holes(data_folder.folder) == 5
    assert await data_folder.store.commits.trim(6, "2099") == 1
    data_folder.lake.pipeline.mkdir(parents=True)
    publish_watermark(data_folder.lake.watermark, Watermark(6, erased=1))
    await wait_until(lambda: holes(data_folder.folder) == 0)


async def test_an_erasure_reads_the_watermark_off_the_event_loop_and_covers_concurrent_changes(
    data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await data_folder.store.commits.submit(history(LAMP, 3))
    is_reading, goes_on = threading.Event(), threading.Event()

    def slow(path: Path) -> Watermark:
        is_reading.set()
        assert goes_on.wait(10), "the loop waits for the disk"
        return read_watermark(path)

    monkeypatch.setattr(module, "read_watermark", slow)
    erasing = [asyncio.create_task(data_folder.eraser.erase(LAMP, "anna")) for _ in range(2)]
    await wait_until(is_reading.is_set)
    await data_folder.store.commits.submit([change(LAMP, 4)])
    goes_on.set()
    records = [await it for it in erasing]
    assert sorted((it["id"], it["seq"]) for it in records) == [(1, 4), (2, 4)]
    assert snapshot(LAMP, 4) != data_folder.store.snapshot(LAMP)


async def test_a_number_that_the_lake_has_done_does_not_come_again(data_folder: DataFolder) -> None:
    """After the journal is restored from a backup, an earlier erasure in the lake is not this erasure."""
    await data_folder.store.commits.submit(history(LAMP, 3))
    data_folder.lake.pipeline.mkdir(parents=True)
    publish_watermark(data_folder.lake.watermark, Watermark(3, erased=4, erased_at="2030"))
    data_folder.start()
    assert (await data_folder.eraser.erase(LAMP, "anna"))["id"] == 5
    await wait_until(lambda: data_folder.record()["journal_done"])
    assert (data_folder.record()["lake_done"], data_folder.hidden) == (None, {LAMP: 3})
    await data_folder.close()
    assert erase_offline(data_folder.folder, LAMP, "anna")["id"] == 6


@pytest.mark.parametrize("turns", range(6))
async def test_the_eraser_ends_when_it_is_cancelled_while_an_erasure_is_asked_for(
    data_folder: DataFolder, turns: int
) -> None:
    """`asyncio.wait_for` would swallow a cancellation at the moment of its result."""
    data_folder.start()
    await wait_until(lambda: data_folder.eraser._is_requested._waiters)
    data_folder.eraser._is_requested.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    await asyncio.wait_for(data_folder.jobs.stop(), PATIENCE)


async def test_an_erasure_that_cannot_be_stored_keeps_the_entity_of_an_earlier_erasure_hidden(
    data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await data_folder.store.commits.submit(history(LAMP, 3))
    await data_folder.eraser.erase(LAMP, "anna")
    await data_folder.store.commits.submit([change(LAMP, 4)])

    def full() -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(data_folder.journal, "commit", full)
    for _ in range(2):
        with pytest.raises(ErasureUnavailable):
            await data_folder.eraser.erase(LAMP, "anna")
    monkeypatch.undo()
    assert data_folder.hidden == {LAMP: 3}
    await asyncio.wait_for(data_folder.store.commits.wait_available(), PATIENCE)
    await data_folder.eraser.erase(LAMP, "anna")
    assert data_folder.hidden == {LAMP: 4}
    # The lake has done the first one only.
    data_folder.lake.pipeline.mkdir(parents=True)
    publish_watermark(data_folder.lake.watermark, Watermark(4, erased=1))
    data_folder.start()
    await wait_until(lambda: read_records(data_folder.folder)[0]["lake_done"])
    assert data_folder.hidden == {LAMP: 4}
    publish_watermark(data_folder.lake.watermark, Watermark(4, erased=2))
    await wait_until(lambda: data_folder.hidden == {})


async def test_the_loop_reads_no_records(data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read in other threads, and while the lake is waited for not at all."""
    await data_folder.store.commits.submit(history(LAMP, 3))
    loops, threads = threading.get_ident(), []
    opened = JournalReader.open

    def noted(path: Path) -> JournalReader:
        threads.append(threading.get_ident())
        return opened(path)

    monkeypatch.setattr("connectivity.maintenance.erasure.JournalReader.open", noted)
    data_folder.start()
    await data_folder.eraser.erase(LAMP, "anna")
    assert [it["entity"] for it in await data_folder.eraser.all()] == [LAMP.id]
    looks: list[int] = []
    read = read_watermark

    def looked(path: Path) -> Watermark:
        looks.append(len(threads))
        return read(path)

    monkeypatch.setattr("connectivity.maintenance.erasure.read_watermark", looked)
    await wait_until(lambda: len(looks) >= 3)
    assert loops not in threads
    assert len(set(looks[1:])) == 1, "nothing was opened between two looks at the watermark"


async def test_an_erasure_removes_earlier_changes_and_later_changes_start_a_new_history(
    data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a pass of the event loop in between, so nothing is durable yet."""

    async def at_once(read: Callable[..., Any], *arguments: Any) -> Any:
        return read(*arguments)

    await data_folder.store.commits.submit(history(LAMP, 3))
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    before = data_folder.store.commits.submit([change(LAMP, 4)])
    erasing = asyncio.create_task(data_folder.eraser.erase(LAMP, "anna"))
    await asyncio.sleep(0)
    seen = data_folder.store.snapshot(LAMP)
    assert seen is not None
    assert (seen.revision, seen.state, seen.policy) == (4, None, None)
    monkeypatch.undo()
    after = data_folder.store.commits.submit([change(LAMP, 5)])
    await asyncio.gather(before, erasing, after)
    data_folder.start()
    await wait_until(lambda: data_folder.record()["journal_done"])
    assert [it.revision for it in data_folder.journal.events(LAMP, 1, ALL, 10, MUCH)] == [5]
    assert data_folder.store.snapshot(LAMP) == snapshot(LAMP, 5)


async def test_an_erased_stream_partition_continues_after_its_last_offset(data_folder: DataFolder) -> None:
    """Its offsets continue, and earlier ones cannot be requested."""
    for offset in range(1, 61):
        await data_folder.store.commits.submit([published(TANK, offset, b'"' + MARK + b'"')])
    await data_folder.store.commits.submit([published(OTHER, 1)])
    data_folder.start()
    await data_folder.eraser.erase(TANK, "anna")
    assert (data_folder.store.oldest_revision(TANK), data_folder.store.oldest_revision(OTHER)) == (61, 1)
    gone = data_folder.store.snapshot(TANK)
    assert gone is not None
    assert (gone.is_deleted, gone.revision) == (True, 60)
    message = published(TANK, 61).events[0]
    await data_folder.store.commits.submit([Change((message,), (evolve(gone, message),))])
    await wait_until(lambda: data_folder.record()["journal_done"])
    assert MARK not in data_folder.bytes()
    assert data_folder.record()["entity_type"] == "stream"
    assert revisions(data_folder.journal.events(TANK, 1, ALL, 10, MUCH)) == [61]
    assert (data_folder.store.oldest_revision(TANK), await data_folder.store.retained_history.look(TANK)) == (61, 61)
    assert data_folder.store.snapshot(TANK) == Snapshot(TANK, 61, timestamp(61), timestamp(61), {}, None)


async def test_the_state_is_gone_for_every_later_command(data_folder: DataFolder) -> None:
    await data_folder.store.commits.submit(history(LAMP, 3))
    assert data_folder.store.snapshot(LAMP) is not None
    await data_folder.eraser.erase(LAMP, "anna")
    found = data_folder.store.snapshot(LAMP)
    assert found is not None
    assert (found.revision, found.state, found.policy) == (3, None, None)
    assert (found.created, found.modified) == ("2031-01-15T00:00:00.000000Z",) * 2


async def test_subscriptions_on_the_entity_fail_and_others_continue(data_folder: DataFolder) -> None:
    await data_folder.store.commits.submit([*history(LAMP, 1), *history(POLICY, 1)])
    replies = []
    for entity in (LAMP, POLICY):
        reply = KeepingReply()
        peer = Subscriber(reply, ("reader",), entity)
        data_folder.streams.subscribe(Subscribe(SubscriptionKind.HISTORY, HistoryQuery(entity), {}), peer)
        created = reply.signals[-1]
        assert isinstance(created, Created)
        data_folder.streams.request(Request(SubscriptionKind.HISTORY, created.key, 1, {}, entity), peer)
        await wait_until(lambda reply=reply: reply.elements == [1])  # type: ignore[misc]
        replies.append(reply)
    await data_folder.eraser.erase(LAMP, "anna")
    assert [it.reason for it in replies[0].signals if isinstance(it, Failed)] == [ERASED]
    assert "Failed" not in replies[1].names


async def test_an_erasure_of_an_unknown_entity_or_without_storage_fails(
    data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownEntity, match=r"found no thing acme\.site:lamp-7"):
        await data_folder.eraser.erase(LAMP, "anna")
    await data_folder.store.commits.submit(history(LAMP, 3))

    def full() -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(data_folder.journal, "commit", full)
    with pytest.raises(ErasureUnavailable, match="the disk is full"):
        await data_folder.eraser.erase(LAMP, "anna")
    monkeypatch.undo()
    await asyncio.wait_for(data_folder.store.commits.wait_available(), PATIENCE)
    assert read_records(data_folder.folder) == []
    assert data_folder.store.snapshot(LAMP) == snapshot(LAMP, 3), "what was not durable never happened"
    assert data_folder.hidden == {}


async def test_a_restarted_service_finishes_the_erasure_of_a_killed_one(tmp_path: Path) -> None:
    first = DataFolder(tmp_path)
    await first.store.commits.submit(history(LAMP, 3))
    await first.eraser.erase(LAMP, "anna")
    await first.close()
    second = DataFolder(tmp_path)
    assert second.hidden == {LAMP: 3}
    second.start()
    await wait_until(lambda: second.record()["journal_done"])
    assert second.journal.events(LAMP, 1, ALL, 10, MUCH) == []
    await second.close()


async def test_a_store_that_fails_is_waited_for(data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    await data_folder.store.commits.submit(history(LAMP, 3))
    await data_folder.eraser.erase(LAMP, "anna")
    failures = []

    def broken() -> bool:
        failures.append(1)
        raise StoreUnavailable("the disk is away")

    monkeypatch.setattr(data_folder.journal, "scrub", broken)
    data_folder.start()
    await wait_until(lambda: failures)
    monkeypatch.undo()
    await wait_until(lambda: data_folder.record()["journal_done"])


def test_without_a_service_it_is_done_at_once_under_the_folders_lock(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db")
    journal.append([change(LAMP, 1, b'"' + MARK + b'"'), *history(POLICY, 2)])
    journal.close()
    with lock_folder(tmp_path), pytest.raises(DataFolderLocked):
        erase_offline(tmp_path, LAMP, "anna")
    assert erase_offline(tmp_path, LAMP, "anna")["journal_done"] is not None
    assert not [it for it in tmp_path.iterdir() if it.is_file() and MARK in it.read_bytes()]
    assert [it["requested_by"] for it in read_records(tmp_path)] == ["anna"]
    with pytest.raises(UnknownEntity):
        erase_offline(tmp_path, LAMP._replace(name="never-was"), "anna")
    with pytest.raises(ErasureUnavailable, match="found no journal"):
        read_records(tmp_path / "nowhere")
    with pytest.raises(ErasureUnavailable, match="found no journal"):
        erase_offline(tmp_path / "nowhere", LAMP, "anna")
    assert not (tmp_path / "nowhere").exists()


def test_an_unreadable_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder belongs to the service alone; others who ask are not its owner."""

    def refuses(_: Path, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuses)
    with pytest.raises(ErasureUnavailable, match=r"journal\.db: cannot be used: Permission denied"):
        erase_offline(tmp_path, LAMP, "anna")


def test_an_entity_is_named_by_its_type_and_id() -> None:
    assert entity_of("acme.site:lamp-7", "thing") == LAMP
    assert entity_of("acme.site:lamp-7", "policy").type is EntityType.POLICY
    assert entity_of("acme.site:hall/tank/0", "stream") == TANK
    for text, kind, expected in (
        ("tank", "stream", "the id of a stream, such as tank-9/0"),
        ("lamp", "thing", "the id of a thing, such as acme.site:lamp-7"),
        ("acme:a/b", "policy", "the id of a policy, such as acme.site:lamp-7"),
        ("acme:lamp", "lamp", "the type thing, policy or stream"),
    ):
        with pytest.raises(InvalidEntity, match=f"expected {expected}"):
            entity_of(text, kind)
