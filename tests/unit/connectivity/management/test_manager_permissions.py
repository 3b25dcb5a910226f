"""Permissions of a caller, and the names that documents sent to the API may contain."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from connectivity.connections.model import Connection
from connectivity.errors import DefinitionError, OperationRefused, Problem
from connectivity.security.keys import new_key
from mappings.errors import Fault
from tests.support.in_process.connection_management import ManagementHarness, agree, document, error_of, put, refused


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ManagementHarness]:
    harness = await ManagementHarness(tmp_path, (new_key(),)).started()
    yield harness
    await harness.store.close()


async def test_documents_sent_to_the_api_can_only_name_allowed_files_and_variables(
    harness: ManagementHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_PASSWORD", "tulip")
    (tmp_path / "settings.yaml").write_text("api: {token: tulip}", encoding="utf-8")
    references = {
        "${env:OTHER_PASSWORD}": "a variable that matches no pattern in secrets.variables",
        "${env:NOWHERE}": "a variable that matches no pattern in secrets.variables",
        f"${{file:{tmp_path}/settings.yaml}}": "a file outside the folders in secrets.folders",
        f"${{file:{tmp_path}/nowhere}}": "a file outside the folders in secrets.folders",
        f"${{file:{tmp_path}/secrets/../settings.yaml}}": "a file outside the folders in secrets.folders",
    }
    await put(harness, "depot")
    for reference, reason in references.items():
        sent = document(specificConfig={"clientId": reference})
        for asked in (
            harness.manager.create({"id": "new", **sent}, "ada"),
            harness.manager.put("depot", sent, "ada", agree),
            harness.manager.test(sent),
        ):
            fault = await refused(asked)
            assert error_of(fault) == (400, "connectivity:connection.configuration.invalid")
            assert fault.message.startswith(f"specificConfig.clientId: found {reference}, {reason}, expected")
            assert "tulip" not in f"{fault}"


async def test_a_document_that_refers_to_files_does_not_keep_other_tasks_waiting(
    harness: ManagementHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files may be on a slow disk, and are compared with those of the service."""
    threads: list[threading.Thread] = []

    def parse(_document: Any) -> Any:
        threads.append(threading.current_thread())
        raise DefinitionError([Problem("ca", "nothing", "something")])

    monkeypatch.setattr(harness.manager, "_parse", parse)
    for ca in ("a certificate", "${file:/etc/ssl/ca.pem}"):
        await refused(harness.manager.create(document(ca=ca), "ada"))
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


async def test_connection_files_can_name_other_files_and_variables_than_documents_sent_to_the_api(
    harness: ManagementHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_PASSWORD", "tulip")
    harness.write("a.json", document(uri="tcp://ada:${env:OTHER_PASSWORD}@127.0.0.1:1883"))
    await harness.registry.refresh()
    assert harness.registry["a"].connection.uri.get_secret_value() == "tcp://ada:tulip@127.0.0.1:1883"


async def test_a_connection_that_is_not_permitted_is_neither_stored_nor_tested(harness: ManagementHarness) -> None:
    def permit(connection: Connection | None, _known: Iterable[Connection]) -> None:
        raise OperationRefused(Fault(403, "api:subject.forbidden", f"not {connection.id if connection else None}"))

    for asked in (
        harness.manager.create(document(id="depot"), "ada", permit),
        harness.manager.put("depot", document(), "ada", agree, permit),
        harness.manager.test(document(id="depot"), None, permit),
    ):
        assert (await refused(asked)).message == "not depot"
    assert (list(harness.manager.ids()), harness.done()) == ([], [])
    await put(harness, "depot", name="Depot")
    await refused(harness.manager.put("depot", document(name="Other"), "ada", agree, permit))
    assert (await harness.manager.definition("depot")).document["name"] == "Depot"


async def test_a_connection_of_others_can_be_neither_replaced_nor_controlled(harness: ManagementHarness) -> None:
    """Its secrets would go along: a document with masks keeps them."""
    await put(harness, "depot", uri="tcp://ada:tulip@127.0.0.1:1883", name="Depot")
    await put(harness, "own", name="Own")
    harness.done()

    def permit(connection: Connection | None, known: Iterable[Connection]) -> None:
        assert {each.id for each in known} == {"depot", "own"}
        if connection is None or connection.name == "Depot":
            raise OperationRefused(Fault(403, "api:subject.forbidden", "not this one"))

    manager, masked = harness.manager, document(uri="tcp://ada:*****@127.0.0.1:1883", name="Taken")
    for asked in (
        manager.put("depot", masked, "eve", agree, permit),
        manager.test({"id": "depot", **masked}, None, permit),
        manager.delete("depot", "eve", agree, permit),
        manager.open("depot", "eve", permit),
        manager.close("depot", "eve", permit),
        manager.reset_metrics("depot", "eve", permit),
        manager.enable_logs("depot", "eve", permit),
        manager.reset_logs("depot", "eve", permit),
    ):
        assert error_of(await refused(asked)) == (403, "api:subject.forbidden")
    assert (await manager.definition("depot")).document["name"] == "Depot"
    assert harness.done() == []
    await manager.put("own", document(name="Other"), "eve", agree, permit)
    await manager.delete("own", "eve", agree, permit)
