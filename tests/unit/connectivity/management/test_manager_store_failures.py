"""Requests of operators while the store fails: what is shown is what is stored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.errors import OperationRefused
from connectivity.security.keys import new_key
from mappings.model.signals import SubscriptionKind
from spark_store.errors import StoreUnavailable
from spark_store.records import AuditEntry, FileNote, StoredRevision
from tests.support.failing_sqlite import Fragile
from tests.support.in_process.connection_management import (
    ManagementHarness,
    agree,
    document,
    error_of,
    put,
    refused,
)
from tests.support.wait import PATIENCE


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ManagementHarness]:
    harness = await ManagementHarness(tmp_path, (new_key(),)).started()
    yield harness
    await harness.store.close()


async def test_an_action_without_an_audit_line_is_not_done(
    harness: ManagementHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says that nothing was changed."""
    await put(harness, "depot")
    harness.monitor.meter("depot").replies.published.note(None)
    peer = SimpleNamespace(has_session=False)
    live = SimpleNamespace(key="abcd", kind=SubscriptionKind.SEARCH, connection_id="depot", entity=None, peer=peer)
    monkeypatch.setattr(type(harness.streams), "__iter__", lambda _: iter([live]))
    revoked: list[Any] = []
    monkeypatch.setattr(harness.streams, "revoke", lambda *given: revoked.append(given))
    actions: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: harness.manager.reset_metrics("depot", "ada"),
        lambda: harness.manager.cancel_subscription("ab", "ada"),
    )
    for ask in actions:
        Fragile.arm(1)
        with capture_logs():
            assert error_of(await refused(ask())) == (503, "api:store.unavailable")
        await harness.store.commits.wait_available()
    assert revoked == []
    assert harness.manager.metrics("depot")["connectionMetrics"]["outbound"]["published"]["success"]["PT1M"] == 1
    await harness.manager.cancel_subscription("ab", "ada")
    assert [(entry["action"], entry["details"]) for entry in await harness.manager.audit(1)] == [
        ("cancel subscription", "ab")
    ]
    assert [given[0] for given in revoked] == [live]


async def test_a_command_that_cannot_be_stored_has_no_effect(harness: ManagementHarness) -> None:
    await put(harness, "depot")
    harness.done()
    await harness.store.close()
    for asked in (
        harness.manager.create(document(id="other"), "ada"),
        harness.manager.put("depot", document("other"), "ada", agree),
        harness.manager.close("depot", "ada"),
        harness.manager.delete("depot", "ada", agree),
    ):
        assert error_of(await refused(asked)) == (503, "api:store.unavailable")
    assert (harness.done(), harness.manager.ids()) == ([], ["depot"])
    assert (await harness.manager.definition("depot")).revision == 1


@pytest.mark.parametrize("is_asked", [False, True], ids=["by itself", "before the next command"])
async def test_a_change_stored_despite_a_store_error_is_applied(
    harness: ManagementHarness, monkeypatch: pytest.MonkeyPatch, is_asked: bool
) -> None:
    """After a restart it would be there too."""
    await asyncio.gather(put(harness, "depot"), put(harness, "annex"))
    harness.monitor.meter("annex").inbound("refused")
    harness.done()
    adding = harness.definitions.add

    async def add(revision: StoredRevision, entry: AuditEntry) -> None:
        await adding(revision, entry)
        raise StoreUnavailable("the disk did not answer")

    monkeypatch.setattr(harness.definitions, "add", add)
    for asked in (
        harness.manager.put("depot", document("other"), "ada", agree),
        harness.manager.delete("annex", "ada", agree),
    ):
        assert error_of(await refused(asked)) == (503, "api:store.unavailable")
    assert (harness.done(), harness.manager.ids()) == ([], ["annex", "depot"])
    monkeypatch.setattr(harness.definitions, "add", adding)
    if is_asked:
        assert (await put(harness, "depot", topic="third")).revision == 3
        assert harness.done() == ["close depot", "open depot"] * 2
    else:
        async with harness.registry.turn("annex"):
            # Files are looked at in the same rounds: they do not wait for a command that waits for its broker.
            await asyncio.wait_for(harness.manager.recover(), PATIENCE)
            assert harness.manager.ids() == ["annex", "depot"]
        await harness.manager.recover()
        assert (harness.manager.ids(), harness.monitor.find_meter("annex").deliveries()) == (["depot"], {})
        assert (await harness.manager.definition("depot")).revision == 2
        assert sorted(harness.done()) == ["close annex", "close depot", "open depot"]


async def test_a_file_override_stored_despite_an_error_is_applied(
    harness: ManagementHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.write("depot.json", document())
    await harness.registry.refresh()
    harness.done()
    overriding = harness.definitions.override

    async def override(note: FileNote, entry: AuditEntry) -> None:
        await overriding(note, entry)
        raise StoreUnavailable("the disk did not answer")

    monkeypatch.setattr(harness.definitions, "override", override)
    assert error_of(await refused(harness.manager.close("depot", "ada"))) == (503, "api:store.unavailable")
    assert (harness.done(), (await harness.manager.definition("depot")).override) == ([], None)
    await harness.manager.recover()
    assert (harness.done(), (await harness.manager.definition("depot")).override) == (["close depot"], "closed")
    await harness.manager.recover()
    assert (harness.done(), (await harness.manager.definition("depot")).revision) == ([], 2)


@pytest.mark.parametrize("late", [False, True], ids=["not carried out", "carried out without saying so"])
async def test_a_disk_failure_at_any_step_leaves_nothing_half_done(harness: ManagementHarness, late: bool) -> None:
    """The shown state is the stored one, every change reported as stored is there, and none reported as not made."""
    await put(harness, "depot")
    outcomes: set[object] = set()
    unknown = 0
    for number in range(1, 16):
        before = (await harness.manager.definition("depot")).revision
        Fragile.arm(number, late)
        (answer,) = await asyncio.gather(put(harness, "depot", topic=f"t{number}"), return_exceptions=True)
        outcomes.add(error_of(answer.fault) if isinstance(answer, OperationRefused) else type(answer).__name__)
        was_stored = Fragile.count < number
        Fragile.arm(0)
        await harness.store.commits.wait_available()
        await harness.manager.recover()
        (stored,) = harness.definitions.current()
        shown = await harness.manager.definition("depot")
        assert shown.revision == stored.revision
        if isinstance(answer, OperationRefused):
            is_unknown = answer.fault.description != "Nothing was changed."
            assert is_unknown or stored.revision == before
            unknown += is_unknown
        sources = shown.document["sources"]
        assert json.loads(stored.document or "")["sources"] == sources
        assert harness.registry["depot"].connection.sources[0].addresses[0] == sources[0]["addresses"][0]
        if was_stored:
            assert sources[0]["addresses"] == [f"t{number}"]
    assert outcomes == {"Definition", (503, "api:store.unavailable")}
    assert unknown == 1, "only the commit itself leaves doubt"
