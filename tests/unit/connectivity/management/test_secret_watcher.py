"""Files of secrets that connections of the API refer to are watched, as those of connection files are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.connections import secret_references
from connectivity.connections.model import Connection
from connectivity.connections.vault import Document
from connectivity.management.secret_watcher import SecretWatcher
from connectivity.security.files import UnreadableFile, read_regular_file
from connectivity.security.keys import new_key
from tests.support.in_process.connection_management import ManagementHarness, agree, document, put


class Secrets:
    """The folder that documents may name, and the watcher of its files."""

    def __init__(self, folder: Path, harness: ManagementHarness) -> None:
        folder.mkdir()
        self.password = folder / "password"
        self.password.write_text("first", encoding="utf-8")
        self.uri = f"tcp://ada:${{file:{self.password}}}@127.0.0.1:1883"
        self.harness = harness
        self.watcher = SecretWatcher(harness.registry, harness.manager.revalidate)

    async def changes(self) -> list[str]:
        """Check the secrets once; return the resulting actions."""
        await self.watcher.look()
        return await self.harness.settled()

    def used(self) -> str:
        """The address that the connection runs with."""
        return self.harness.registry["depot"].connection.uri.get_secret_value()


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ManagementHarness]:
    harness = await ManagementHarness(tmp_path, (new_key(),)).started()
    yield harness
    await harness.store.close()


@pytest.fixture
async def secrets(harness: ManagementHarness, tmp_path: Path) -> Secrets:
    secrets = Secrets(tmp_path / "secrets", harness)
    await put(harness, "depot", uri=secrets.uri)
    await put(harness, "plain")
    await harness.settled()
    return secrets


async def test_a_changed_secret_opens_the_connection_again_that_refers_to_it(secrets: Secrets) -> None:
    assert (await secrets.changes(), await secrets.changes()) == ([], [])
    secrets.password.write_text("the second", encoding="utf-8")
    assert await secrets.changes() == ["close depot", "open depot"]
    assert secrets.used() == "tcp://ada:the%20second@127.0.0.1:1883"
    assert await secrets.changes() == []
    assert (await secrets.harness.manager.definition("depot")).revision == 1, "the document is the same"


async def test_a_secret_that_changes_before_the_first_round_is_noticed(secrets: Secrets) -> None:
    secrets.password.write_text("the second", encoding="utf-8")
    assert await secrets.changes() == ["close depot", "open depot"]


async def test_a_missing_secret_closes_nothing_and_is_reported_until_it_is_back(secrets: Secrets) -> None:
    await secrets.changes()
    secrets.password.unlink()
    with capture_logs() as logs:
        assert (await secrets.changes(), await secrets.changes()) == ([], [])
    assert [(it["event"], it["connection"]) for it in logs] == [
        ("changed secret of a connection cannot be used", "depot")
    ]
    (problem,) = secrets.harness.manager.status("depot")["problems"]
    assert problem.startswith("uri: found ${file:")
    secrets.password.write_text("the third", encoding="utf-8")
    assert await secrets.changes() == ["close depot", "open depot"]
    assert "problems" not in secrets.harness.manager.status("depot")


async def test_a_secret_is_read_again_when_its_permissions_change(
    secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_unless_forbidden(path: Path, **bounds: Any) -> bytes:
        if not path.stat().st_mode & 0o200:
            raise UnreadableFile("permission denied")
        return read_regular_file(path, **bounds)

    # The tests may run as a user that reads every file.
    monkeypatch.setattr(secret_references, "read_regular_file", read_unless_forbidden)
    secrets.password.write_text("the second", encoding="utf-8")
    secrets.password.chmod(0o400)
    assert await secrets.changes() == []
    assert "permission denied" in secrets.harness.manager.status("depot")["problems"][0]
    forbidden = secrets.password.stat().st_ctime_ns
    while secrets.password.stat().st_ctime_ns == forbidden:
        # The clock of a file system may be coarse.
        secrets.password.chmod(0o600)
    assert await secrets.changes() == ["close depot", "open depot"]
    assert "problems" not in secrets.harness.manager.status("depot")


async def test_a_secret_that_was_missing_at_the_start_opens_its_connection_when_it_appears(secrets: Secrets) -> None:
    harness = secrets.harness
    secrets.password.unlink()
    wanted = harness.registry.known["depot"]
    await harness.manager.delete("depot", "ada", agree)
    await harness.settled()
    harness.registry.put(replace(wanted, connection=None, problems=harness.manager.revalidate(wanted.document)[1]))
    with capture_logs() as logs:
        assert await secrets.changes() == []
    assert logs == [], "the start has logged the problem"
    secrets.password.write_text("first", encoding="utf-8")
    assert await secrets.changes() == ["open depot"]


async def test_a_closed_connection_stays_closed_and_opens_with_the_new_secret(secrets: Secrets) -> None:
    await secrets.harness.manager.close("depot", "ada")
    await secrets.changes()
    secrets.password.write_text("the second", encoding="utf-8")
    assert await secrets.changes() == []
    await secrets.harness.manager.open("depot", "ada")
    assert secrets.used() == "tcp://ada:the%20second@127.0.0.1:1883"


async def test_a_connection_that_is_being_changed_waits_for_the_next_round(secrets: Secrets) -> None:
    await secrets.changes()
    secrets.password.write_text("the second", encoding="utf-8")
    async with secrets.harness.registry.turn("depot"):
        await secrets.watcher.look()
        assert secrets.harness.done() == []
    assert await secrets.changes() == ["close depot", "open depot"]


async def test_a_connection_that_is_deleted_while_its_secret_is_read_stays_deleted(secrets: Secrets) -> None:
    registry, revalidate = secrets.harness.registry, secrets.harness.manager.revalidate

    def delete_meanwhile(stored: Document) -> tuple[Connection | None, tuple[str, ...]]:
        registry.remove("depot")
        return revalidate(stored)

    await SecretWatcher(registry, delete_meanwhile).look()
    assert "depot" not in registry.known


async def test_connections_of_files_are_left_to_the_watcher_of_their_folder(secrets: Secrets) -> None:
    harness = secrets.harness
    harness.write("site.json", document(uri=secrets.uri))
    await secrets.changes()
    secrets.password.write_text("the second", encoding="utf-8")
    await secrets.watcher.look()
    assert [it for it in await harness.settled() if it.startswith("close")] == ["close depot", "close site"]
