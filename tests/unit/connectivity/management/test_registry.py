"""The running connections follow their files, and nothing else is touched."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.connections.model import Connection
from connectivity.management.files import ReadFile, read_file
from connectivity.management.registry import ConnectionRegistry
from connectivity.management.watcher import FolderWatcher
from spark_store.records import FileNote
from tests.support.wait import wait_until


class FakeSupervisor:
    """Records the actions on a connection."""

    def __init__(self, connection: Connection, harness: RegistryHarness) -> None:
        self.connection = connection
        self._actions, self._harness = harness.reported, harness

    def open(self) -> None:
        self._actions.append(f"open {self.connection.id}")

    async def hand_over(self, successor: Connection | None, others: Sequence[Connection]) -> None:
        self._harness.successors[self.connection.id] = successor
        self._harness.others[self.connection.id] = [other.id for other in others]

    async def close(self, drain: float = 0.0) -> None:
        self._actions.append(f"close {self.connection.id}")


class RegistryHarness:
    def __init__(self, folder: Path) -> None:
        self.folder, self.reported = folder, list[str]()
        self.successors: dict[str, Connection | None] = {}
        """What connections were handed over to when they were closed."""
        self.others: dict[str, list[str]] = {}
        """The IDs of the other connections at that time."""
        self.may_be_open: Callable[[str], bool] = lambda _id: True
        self.registry = ConnectionRegistry(
            FolderWatcher(folder, pause=lambda _seconds: None),
            lambda connection: FakeSupervisor(connection, self),  # type: ignore[arg-type, return-value]
            lambda connection_id: self.reported.append(f"ended {connection_id}"),
            self._known,
            keep_notes=self._keep_notes,
        )

    async def _keep_notes(self, _notes: Sequence[FileNote]) -> None:
        """Keep the notes in memory only."""

    def _known(self, may_be_open: Callable[[str], bool]) -> None:
        self.may_be_open = may_be_open

    def write(self, name: str, text: str) -> None:
        file = self.folder / name
        file.write_text(text, encoding="utf-8")
        # Two changes within one tick of the file system's clock are still two.
        stamp = file.stat().st_mtime_ns + len(self.reported) + 1
        os.utime(file, ns=(stamp, stamp))

    async def changes(self) -> list[str]:
        self.reported.clear()
        await self.registry.refresh()
        return list(self.reported)


@pytest.fixture
def harness(tmp_path: Path) -> RegistryHarness:
    return RegistryHarness(tmp_path)


def document(topic: str = "in", **more: Any) -> str:
    return json.dumps(
        {
            "connectionType": "mqtt",
            "connectionStatus": "open",
            "uri": "tcp://127.0.0.1:1883",
            "sources": [{"addresses": [topic], "qos": 1, "authorizationContext": ["acme:x"]}],
            **more,
        }
    )


async def test_every_open_connection_of_the_folder_is_opened(harness: RegistryHarness) -> None:
    harness.write("one.json", document())
    harness.write("two.json", document(connectionStatus="closed"))
    assert await harness.changes() == ["open one"]
    assert [supervisor.connection.id for supervisor in harness.registry] == ["one"], "one that is closed costs nothing"
    assert sorted(harness.registry.known) == ["one", "two"]


async def test_a_connection_that_is_closed_is_reported_also_while_another_file_is_broken(
    harness: RegistryHarness,
) -> None:
    """A missing connection may be in the unreadable file, and open."""
    harness.write("one.json", document())
    harness.write("two.json", document(connectionStatus="closed"))
    await harness.changes()
    assert [harness.may_be_open(id) for id in ("one", "two", "other")] == [True, False, False]
    harness.write("three.json", "{")
    with capture_logs():
        await harness.changes()
    assert [harness.may_be_open(id) for id in ("one", "two", "other")] == [True, False, True]
    harness.write("one.json", document(connectionStatus="closed"))
    with capture_logs():
        await harness.changes()
    assert [harness.may_be_open(id) for id in ("one", "two", "other")] == [False, False, True]


async def test_an_unchanged_folder_changes_nothing(harness: RegistryHarness) -> None:
    harness.write("one.json", document())
    await harness.changes()
    assert await harness.changes() == []


async def test_only_the_connection_that_differs_is_made_again(harness: RegistryHarness) -> None:
    harness.write("one.json", document())
    harness.write("two.json", document())
    await harness.changes()
    harness.write("two.json", document("elsewhere"))
    assert await harness.changes() == ["close two", "ended two", "open two"]


async def test_a_file_written_again_with_the_same_meaning_touches_nothing(harness: RegistryHarness) -> None:
    harness.write("one.json", document())
    await harness.changes()
    harness.write("one.json", " " + document())
    assert await harness.changes() == []


async def test_a_new_file_is_a_new_connection_and_a_file_that_is_gone_closes_its_own(harness: RegistryHarness) -> None:
    harness.write("one.json", document())
    await harness.changes()
    harness.write("two.json", document())
    assert await harness.changes() == ["open two"]
    (harness.folder / "one.json").unlink()
    with capture_logs() as lines:
        assert await harness.changes() == ["close one", "ended one"]
        harness.write("two.json", document("elsewhere"))
        await harness.changes()
    assert [(line["event"], line["reason"], line["connection"]) for line in lines] == [
        ("connection closed", "document deleted", "one"),
        ("connection closed", "document or secret changed", "two"),
    ]


async def test_the_log_says_that_a_connection_was_closed_for_a_new_link(harness: RegistryHarness) -> None:
    harness.write("one.json", document())
    await harness.changes()
    with capture_logs() as lines:
        await harness.registry.carry_out("one", reconnect=True)
    assert [(line["event"], line["reason"]) for line in lines] == [("connection closed", "opened again by an operator")]


async def test_a_file_that_becomes_unusable_stops_nothing(harness: RegistryHarness) -> None:
    harness.write("one.json", document())
    harness.write("two.json", document())
    await harness.changes()
    harness.write("one.json", "{")
    assert await harness.changes() == []
    assert harness.registry["one"].connection.id == "one"
    harness.write("one.json", document("repaired"))
    assert await harness.changes() == ["close one", "ended one", "open one"]


async def test_a_folder_that_vanishes_stops_nothing(harness: RegistryHarness) -> None:
    harness.write("one.json", document())
    await harness.changes()
    (harness.folder / "one.json").rename(harness.folder.parent / "kept.json")
    harness.folder.rmdir()
    assert await harness.changes() == []
    assert harness.registry["one"].connection.id == "one"
    assert harness.registry.folder_problem == f"{harness.folder}: No such file or directory"
    harness.folder.mkdir()
    await harness.changes()
    assert harness.registry.folder_problem == ""


async def test_a_folder_that_comes_back_unchanged_hides_no_connection_any_more(harness: RegistryHarness) -> None:
    harness.write("one.json", document())
    await harness.changes()
    away = harness.folder.with_name("away")
    harness.folder.rename(away)
    with capture_logs():
        await harness.changes()
    away.rename(harness.folder)
    await harness.changes()
    assert not harness.may_be_open("other")


async def test_a_file_takes_an_id_that_became_free_while_its_folder_was_away(harness: RegistryHarness) -> None:
    harness.write("one.json", document())
    away = harness.folder.with_name("away")
    with harness.registry.claim("one"), capture_logs():
        assert await harness.changes() == []
        harness.folder.rename(away)
    with capture_logs():
        assert await harness.changes() == []
    away.rename(harness.folder)
    assert await harness.changes() == ["open one"]


async def test_a_link_that_leads_nowhere_hides_no_other_file(harness: RegistryHarness) -> None:
    """Editors leave such links while a file is being edited."""
    harness.write("one.json", document())
    (harness.folder / "two.json").symlink_to(harness.folder / "nowhere.json")
    (harness.folder / ".#one.json").symlink_to("somebody@somewhere")
    assert await harness.changes() == ["open one"]
    harness.write("three.json", document())
    assert await harness.changes() == ["open three"]


async def test_a_connection_can_be_found_until_it_is_closed(harness: RegistryHarness) -> None:
    """Stopping the service while a connection closes must drain that one too."""
    harness.write("one.json", document())
    await harness.changes()
    found: list[list[str]] = []

    async def close(drain: float = 0.0) -> None:
        found.append([supervisor.connection.id for supervisor in harness.registry])

    harness.registry["one"].close = close  # type: ignore[method-assign]
    (harness.folder / "one.json").unlink()
    await harness.changes()
    assert found == [["one"]]
    assert list(harness.registry) == []


async def test_a_connection_that_does_not_close_in_order_is_given_up_and_made_again(harness: RegistryHarness) -> None:
    harness.write("one.json", document())
    await harness.changes()

    async def fail(_drain: float) -> None:
        raise OSError("the link does not answer")

    harness.registry["one"].close = fail  # type: ignore[method-assign, assignment]
    harness.write("one.json", document("elsewhere"))
    with capture_logs() as lines:
        assert await harness.changes() == ["ended one", "open one"]
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["connection not closed cleanly"]


async def test_a_changed_connection_is_handed_over_to_its_successor_and_a_deleted_one_to_none(
    harness: RegistryHarness,
) -> None:
    """The successor may be closed."""
    for name in ("changed", "deleted", "closed"):
        harness.write(f"{name}.json", document())
    await harness.changes()
    harness.write("changed.json", document("elsewhere"))
    (harness.folder / "deleted.json").unlink()
    harness.write("closed.json", document(connectionStatus="closed"))
    await harness.changes()
    known = harness.registry.known
    assert harness.successors == {
        "changed": known["changed"].connection,
        "closed": known["closed"].connection,
        "deleted": None,
    }
    assert harness.others == {"changed": ["closed"], "closed": ["changed"], "deleted": ["changed", "closed"]}


async def test_a_connection_closes_although_it_cannot_be_handed_over(harness: RegistryHarness) -> None:
    harness.write("one.json", document())
    await harness.changes()

    async def fail(successor: Connection | None, others: Sequence[Connection]) -> None:
        raise OSError("the link does not answer")

    harness.registry["one"].hand_over = fail  # type: ignore[method-assign]
    harness.write("one.json", document("elsewhere"))
    with capture_logs() as lines:
        assert await harness.changes() == ["close one", "ended one", "open one"]
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["connection not closed cleanly"]


async def test_an_id_that_the_api_did_not_take_after_all_is_the_file_s(harness: RegistryHarness) -> None:
    """The file is seen while the API stores a connection under its id, and that fails."""
    harness.write("one.json", document())
    with harness.registry.claim("one"), capture_logs():
        assert await harness.changes() == []
    assert await harness.changes() == ["open one"]


async def test_another_name_or_tag_makes_no_link_again(harness: RegistryHarness) -> None:
    harness.write("one.json", document())
    await harness.changes()
    harness.write("one.json", document(name="Ground floor", tags=["site"]))
    assert await harness.changes() == []
    assert harness.registry["one"].connection.name == "Ground floor"


async def test_a_changed_secret_opens_the_connections_again_that_refer_to_it(harness: RegistryHarness) -> None:
    """The document does not have to change."""
    harness.write("password", "first")
    harness.write("a.json", document(uri="tcp://ada:${file:password}@127.0.0.1:1883"))
    harness.write("b.json", document())
    assert sorted(await harness.changes()) == ["open a", "open b"]
    assert await harness.changes() == []
    harness.write("password", "second")
    assert await harness.changes() == ["close a", "ended a", "open a"]
    assert await harness.changes() == []
    (harness.folder / "password").unlink()
    assert await harness.changes() == [], "what runs goes on with what it has"
    harness.write("password", "third")
    assert await harness.changes() == ["close a", "ended a", "open a"]


async def test_validation_does_not_block_the_event_loop(
    harness: RegistryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation loads the scripts of documents, which takes long."""
    begun, may_end = threading.Event(), threading.Event()

    def read_slowly(file: Path, **named: Any) -> ReadFile:
        begun.set()
        assert may_end.wait(60)
        return read_file(file, **named)

    monkeypatch.setattr("connectivity.management.watcher.read_file", read_slowly)
    harness.write("one.json", document())
    changes = asyncio.ensure_future(harness.changes())
    await wait_until(begun.is_set, 60)
    assert (changes.done(), harness.registry.looked.is_set()) == (False, False)
    may_end.set()
    assert await changes == ["open one"]
    assert harness.registry.looked.is_set()
