"""Requests that arrive while the service starts."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import httpx
import pytest

from connectivity.api.app import application
from connectivity.connections.model import Connection
from connectivity.connections.vault import Document
from connectivity.management.definition import Owner
from connectivity.security.keys import new_key
from tests.support.in_process.connection_management import ManagementHarness, document, put


def _client_of(harness: ManagementHarness) -> httpx.AsyncClient:
    app = application(
        harness.monitor,
        lambda: (False, {"status": "not ready"}),
        management=harness.manager,
        looked=harness.registry.looked,
    )
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost:8080")


async def test_a_change_of_a_connection_that_is_being_loaded_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = (new_key(),)
    earlier = await ManagementHarness(tmp_path, keys).started()
    await put(earlier, "depot", topic="old")
    await earlier.store.close()
    harness = ManagementHarness(tmp_path, keys)
    may_load = threading.Event()
    revalidate = harness.manager.revalidate

    def slow(stored: Document) -> tuple[Connection | None, tuple[str, ...]]:
        may_load.wait()
        return revalidate(stored)

    monkeypatch.setattr(harness.manager, "revalidate", slow)
    async with _client_of(harness) as client:
        starting = asyncio.create_task(harness.started())
        changing = asyncio.create_task(client.put("/api/2/connections/depot", json=document("new")))
        await asyncio.wait([changing], timeout=0.2)
        may_load.set()
        await starting
        answer = await changing
        assert (answer.status_code, answer.headers["etag"]) == (204, '"rev:2"')
        shown = (await client.get("/api/2/connections/depot")).json()
        assert shown["sources"][0]["addresses"] == ["new"]
    await harness.store.close()


async def test_a_request_waits_for_the_connection_files(tmp_path: Path) -> None:
    harness = ManagementHarness(tmp_path, (new_key(),))
    harness.write("depot.json", document())
    await harness.manager.load()
    async with _client_of(harness) as client:
        changing = asyncio.create_task(client.put("/api/2/connections/depot", json=document("new")))
        reading = asyncio.create_task(client.get("/api/2/connections?ids-only=true"))
        await asyncio.wait([changing, reading], timeout=0.2)
        assert (await client.get("/health/live")).status_code == 200
        await harness.registry.refresh()
        assert (await changing).status_code == 409
        assert (await reading).json() == ["depot"]
    assert harness.registry.known["depot"].owner is Owner.FILE
    await harness.store.close()
