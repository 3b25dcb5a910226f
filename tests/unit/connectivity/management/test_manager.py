"""Requests of operators are checked, stored and carried out in that order, and results are durable."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.connections.lifecycle import Status
from connectivity.errors import OperationRefused
from connectivity.management.definition import Owner, PastRevision
from connectivity.security.keys import new_key
from connectivity.security.uri import MASK
from tests.support.failing_sqlite import Fragile
from tests.support.in_process.connection_management import (
    NOW,
    ManagementHarness,
    agree,
    document,
    error_of,
    only,
    put,
    refused,
)
from tests.support.in_process.service import pause
from tests.support.wait import wait_until


@pytest.fixture
async def harness(make: Callable[[], Any]) -> ManagementHarness:
    harness: ManagementHarness = await make()
    return harness


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[[], Any]]:
    """A service on the folder; one made later takes up what an earlier one has stored."""
    made: list[ManagementHarness] = []
    keys = (new_key(),)

    async def make() -> ManagementHarness:
        made.append(harness := ManagementHarness(tmp_path, keys))
        return await harness.started()

    yield make
    for harness in made:
        await harness.store.close()


# --- consecutive changes -------------------------------------------------------------------------------------------------


async def test_a_connection_is_created_shown_and_opened(harness: ManagementHarness) -> None:
    made = await harness.manager.create(document(), "ada")
    assert (made.revision, made.owner, made.modified) == (1, Owner.API, NOW)
    assert made.document == {**document(), "id": made.id}
    assert await harness.settled() == [f"open {made.id}"]
    assert await harness.manager.definition(made.id) == made
    assert harness.manager.ids() == [made.id]
    assert list(await harness.manager.definitions()) == [made]


@pytest.mark.parametrize("absent", [{}, {"connectionStatus": None}], ids=["missing", "null"])
async def test_a_connection_without_a_status_is_not_opened(absent: dict[str, Any], harness: ManagementHarness) -> None:
    written = document()
    del written["connectionStatus"]
    made = await harness.manager.create({**written, **absent, "id": "depot"}, "ada")
    assert (made.id, made.document["connectionStatus"]) == ("depot", "unknown")
    assert await harness.settled() == []


async def test_a_change_and_a_connection_test_require_the_connection_status(harness: ManagementHarness) -> None:
    for asked in (harness.manager.put("depot", {}, "ada", agree), harness.manager.test({})):
        with pytest.raises(OperationRefused) as refusal:
            await asked
        assert refusal.value.fault.status == 400
        assert {it.path for it in refusal.value.problems} >= {"connectionType", "connectionStatus", "uri"}
    assert harness.manager.ids() == []


async def test_a_connection_is_created_without_its_broker(harness: ManagementHarness) -> None:
    harness.broker = None
    await harness.manager.create(document(id="depot"), "ada")
    assert await harness.settled() == ["open depot"]


async def test_an_id_that_exists_is_a_conflict(harness: ManagementHarness) -> None:
    await harness.manager.create(document(id="depot"), "ada")
    assert error_of(await refused(harness.manager.create(document(id="depot"), "ada"))) == (
        409,
        "connectivity:connection.conflict",
    )


async def test_case_46_putting_an_unknown_id_creates_it(harness: ManagementHarness) -> None:
    found, is_new = await harness.manager.put("depot", document(), "ada", only(None))
    assert (found.id, found.revision, is_new) == ("depot", 1, True)
    found, is_new = await harness.manager.put("depot", document("other"), "ada", only(1))
    assert (found.revision, is_new) == (2, False)
    assert harness.done() == ["open depot", "close depot", "open depot"]


@pytest.mark.parametrize("named", ["other", None, 7])
async def test_a_document_with_another_id_than_its_path_is_refused(harness: ManagementHarness, named: object) -> None:
    fault = await refused(harness.manager.put("depot", document(id=named), "ada", agree))
    assert error_of(fault) == (400, "connectivity:id.notsettable")


async def test_case_44_two_targets_with_the_same_label_are_a_conflict(harness: ManagementHarness) -> None:
    target = {
        "address": "events",
        "topics": ["_/_/things/twin/events"],
        "authorizationContext": ["acme:x"],
        "issuedAcknowledgementLabel": "depot:done",
    }
    twice = document(targets=[target, {**target, "address": "others"}])
    assert error_of(await refused(harness.manager.put("depot", twice, "ada", agree))) == (
        409,
        "acknowledgement:label.not.unique",
    )


async def test_case_45_a_label_of_another_connection_is_invalid(harness: ManagementHarness) -> None:
    target = {
        "address": "events",
        "topics": ["_/_/things/twin/events"],
        "authorizationContext": ["acme:x"],
        "issuedAcknowledgementLabel": "other:done",
    }
    fault = await refused(harness.manager.put("depot", document(targets=[target]), "ada", agree))
    assert error_of(fault) == (400, "acknowledgement:label.invalid")


async def test_every_problem_of_a_document_is_reported_and_nothing_is_stored(harness: ManagementHarness) -> None:
    with pytest.raises(OperationRefused) as caught:
        await harness.manager.create(document(uri="nowhere", sources=[{"addresses": []}]), "ada")
    assert caught.value.fault.status == 400
    assert len(caught.value.problems) > 1
    assert (harness.manager.ids(), await harness.manager.audit()) == ([], [])


async def test_the_type_of_a_connection_stays(harness: ManagementHarness) -> None:
    await put(harness, "depot")
    fault = await refused(harness.manager.put("depot", document(connectionType="mqtt-5"), "ada", agree))
    assert error_of(fault) == (400, "connectivity:connection.configuration.invalid")
    assert fault.message == "ConnectionType <mqtt> of existing connection <depot> cannot be changed!"


async def test_a_change_is_stored_and_returns_504_when_the_broker_does_not_answer(harness: ManagementHarness) -> None:
    await put(harness, "depot")
    harness.broker = Status.MISCONFIGURED, "bad credentials: not authorized"
    fault = await refused(harness.manager.put("depot", document("other"), "ada", agree))
    assert error_of(fault) == (504, "connectivity:connection.failed")
    assert fault.description == "bad credentials: not authorized"
    assert (await harness.manager.definition("depot")).document["sources"][0]["addresses"] == ["other"]
    harness.broker = None
    fault = await refused(harness.manager.put("depot", document("third"), "ada", agree))
    assert (fault.status, fault.description) == (504, "no connection attempt completed within 0.05 s")


async def test_another_name_makes_no_link_again(harness: ManagementHarness) -> None:
    await put(harness, "depot")
    harness.done()
    found = await put(harness, "depot", name="Depot 7")
    assert (harness.done(), found.revision, harness.registry["depot"].connection.name) == ([], 2, "Depot 7")


async def test_closing_and_opening_are_revisions(harness: ManagementHarness) -> None:
    await put(harness, "depot")
    await harness.manager.close("depot", "ada")
    assert harness.done() == ["open depot", "close depot"]
    closed = await harness.manager.definition("depot")
    assert (closed.revision, closed.document["connectionStatus"]) == (2, "closed")
    await harness.manager.close("depot", "ada")
    assert (await harness.manager.definition("depot")).revision == 2, "nothing has changed"
    await harness.manager.open("depot", "eve")
    assert harness.done() == ["open depot"]
    assert [(it["revision"], it["by"], it["action"]) for it in await harness.manager.revisions("depot")] == [
        (3, "eve", "open"),
        (2, "ada", "close"),
        (1, "ada", "create"),
    ]


async def test_opening_again_tries_a_connection_without_link_at_once(harness: ManagementHarness) -> None:
    harness.broker = Status.FAILED, "connection refused"
    await put(harness, "depot")
    assert error_of(await refused(harness.manager.open("depot", "ada"))) == (504, "connectivity:connection.failed")
    harness.broker = Status.OPEN, "connected"
    await harness.manager.open("depot", "ada")
    await harness.manager.open("depot", "ada")
    assert harness.done() == ["open depot", *(["close depot", "open depot"] * 2)]


async def test_a_deleted_connection_is_not_found_and_its_id_continues_its_revisions(harness: ManagementHarness) -> None:
    await put(harness, "depot")
    assert error_of(await refused(harness.manager.delete("depot", "ada", only(7)))) == (
        412,
        "connectivity:precondition.failed",
    )
    await harness.manager.delete("depot", "ada", only(1))
    assert harness.done() == ["open depot", "close depot"]
    not_found = (404, "connectivity:connection.notfound")
    assert error_of(await refused(harness.manager.definition("depot"))) == not_found
    assert error_of(await refused(harness.manager.delete("depot", "ada", agree))) == not_found
    assert error_of(await refused(harness.manager.open("depot", "ada"))) == not_found
    with pytest.raises(OperationRefused, match="notfound"):
        harness.manager.status("depot")
    assert (await put(harness, "depot")).revision == 3


async def test_a_deleted_connection_leaves_no_cursors_despite_an_invalid_file(harness: ManagementHarness) -> None:
    """The broken file cannot contain the deleted connection."""
    await put(harness, "depot")
    harness.write("annex.json", "{")
    with capture_logs():
        await harness.registry.refresh()
    assert harness.may_be_open("depot")
    assert harness.may_be_open("annex")
    await harness.manager.delete("depot", "ada", agree)
    assert not harness.may_be_open("depot")
    assert harness.may_be_open("annex")


async def test_the_past_of_a_connection_is_shown_by_revision_and_by_time(harness: ManagementHarness) -> None:
    await put(harness, "depot", topic="one")
    harness.time += timedelta(minutes=1)
    await put(harness, "depot", topic="two")

    async def topic(at: PastRevision) -> str:
        found = await harness.manager.definition("depot", at)
        address: str = found.document["sources"][0]["addresses"][0]
        return address

    assert await topic(1) == "one"
    assert await topic(2) == "two"
    assert await topic(NOW + timedelta(seconds=30)) == "one"
    assert await topic(NOW + timedelta(days=1)) == "two"
    for moment in (3, NOW - timedelta(seconds=1)):
        fault = await refused(harness.manager.definition("depot", moment))
        assert error_of(fault) == (404, "connectivity:connection.history.notfound")


async def test_the_audit_log_records_user_action_connection_and_revision(harness: ManagementHarness) -> None:
    await put(harness, "depot")
    await harness.manager.close("depot", "eve")
    await harness.manager.reset_metrics("depot", "eve")
    found = [(it["by"], it["action"], it["connection"], it["revision"]) for it in await harness.manager.audit()]
    assert found == [("eve", "reset metrics", "depot", 2), ("eve", "close", "depot", 2), ("ada", "create", "depot", 1)]
    assert [it["at"] for it in await harness.manager.audit(1)] == [NOW]


async def test_logs_are_kept_and_reset_where_something_runs(harness: ManagementHarness) -> None:
    await put(harness, "depot")
    meter = harness.monitor.meter("depot")
    meter.log.enable()
    meter.source(["in"])["in"].acknowledged.note(None)
    assert meter.log.read()["connectionLogs"]
    harness.logs.clear()
    await harness.manager.enable_logs("depot", "eve")
    await harness.manager.reset_logs("depot", "eve")
    assert (harness.logs, meter.log.read()["connectionLogs"]) == (["enable depot"], [])
    await harness.manager.close("depot", "eve")
    meter.log.disable()
    await harness.manager.enable_logs("depot", "eve")
    assert harness.logs == ["enable depot"]
    assert harness.manager.logs("depot") == {"connectionId": "depot", "connectionLogs": []}


async def test_metrics_of_a_closed_connection_are_kept_and_can_be_reset(harness: ManagementHarness) -> None:
    await put(harness, "depot")
    harness.monitor.meter("depot").source(["in"])["in"].acknowledged.note(None)
    await harness.manager.close("depot", "eve")
    for expected in (1, 0):
        counted = harness.manager.metrics("depot")["connectionMetrics"]["inbound"]["acknowledged"]
        assert counted["success"]["PT1M"] == expected
        await harness.manager.reset_metrics("depot", "eve")


async def test_deleting_a_connection_removes_its_counts(harness: ManagementHarness) -> None:
    await put(harness, "depot")
    harness.monitor.meter("depot").inbound("refused")
    await harness.manager.delete("depot", "eve", agree)
    assert harness.monitor.find_meter("depot").deliveries() == {}


async def test_subscriptions_are_those_of_the_table(harness: ManagementHarness) -> None:
    assert list(harness.manager.subscriptions(10)) == []
    assert error_of(await refused(harness.manager.cancel_subscription("ab", "ada"))) == (
        404,
        "connectivity:subscription.notfound",
    )
    assert await harness.manager.audit() == []


async def test_the_log_says_that_an_operator_closed_a_connection_of_a_file(harness: ManagementHarness) -> None:
    harness.write("depot.json", document())
    await harness.registry.refresh()
    with capture_logs() as lines:
        await harness.manager.close("depot", "ada")
    assert [(line["event"], line["reason"]) for line in lines] == [("connection closed", "set to closed")]


# --- secrets ------------------------------------------------------------------------------------------------------------


async def test_a_secret_is_sealed_shown_masked_and_kept(harness: ManagementHarness, make: Callable[[], Any]) -> None:
    made = await put(harness, "depot", uri="tcp://ada:tulip-37@127.0.0.1:1883")
    assert made.document["uri"] == f"tcp://ada:{MASK}@127.0.0.1:1883"
    await harness.manager.put("depot", {**made.document, "name": "Depot"}, "ada", agree)
    await harness.store.close()
    assert b"tulip-37" not in (harness.folder.parent / "journal.db").read_bytes()
    again = await make()
    uri = again.registry["depot"].connection.uri.get_secret_value()
    assert uri == "tcp://ada:tulip-37@127.0.0.1:1883"


async def test_a_stored_connection_that_cannot_be_used_any_more_stops_no_other(
    harness: ManagementHarness, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPOT_PASSWORD", "tulip")
    made = await put(harness, "depot", uri="tcp://ada:${env:DEPOT_PASSWORD}@127.0.0.1:1883")
    assert made.document["uri"] == "tcp://ada:${env:DEPOT_PASSWORD}@127.0.0.1:1883"
    await put(harness, "other")
    await harness.store.close()
    monkeypatch.delenv("DEPOT_PASSWORD")
    with capture_logs() as lines:
        again = await make()
    assert [line["connection"] for line in lines if line["event"] == "stored connection cannot be used"] == ["depot"]
    assert again.done() == ["open other"]
    assert again.may_be_open("depot"), "its targets go on where they were"
    status = again.manager.status("depot")
    assert (status["connectionStatus"], status["liveStatus"]) == ("open", "misconfigured")
    assert "DEPOT_PASSWORD" in status["problems"][0]
    fault = await refused(again.manager.open("depot", "ada"))
    assert error_of(fault) == (400, "connectivity:connection.configuration.invalid")
    await again.manager.close("depot", "ada")
    assert not again.may_be_open("depot")
    closed = again.manager.status("depot")
    assert (closed["connectionStatus"], closed["liveStatus"]) == ("closed", "misconfigured")
    assert closed["problems"] == status["problems"], "the reason is still true"
    monkeypatch.setenv("DEPOT_PASSWORD", "rose")
    await again.manager.open("depot", "ada")
    assert again.done() == ["open depot"]
    assert again.manager.status("depot")["liveStatus"] == "open"


# --- concurrent changes --------------------------------------------------------------------------------------------------


async def test_of_two_operators_at_once_one_is_refused(harness: ManagementHarness) -> None:
    await put(harness, "depot")
    changes = [harness.manager.put("depot", document(name), name, only(1)) for name in ("ada", "eve")]
    found = await asyncio.gather(*changes, return_exceptions=True)
    assert [it.fault.status for it in found if isinstance(it, OperationRefused)] == [412]
    assert [it["revision"] for it in await harness.manager.revisions("depot")] == [2, 1]


async def test_commands_on_one_connection_wait_for_each_other_and_others_do_not(harness: ManagementHarness) -> None:
    await put(harness, "depot")
    harness.may_close.clear()
    closing = asyncio.ensure_future(harness.manager.close("depot", "ada"))
    await wait_until(lambda: "close depot" in harness.reported)
    opening = asyncio.ensure_future(harness.manager.open("depot", "eve"))
    await put(harness, "other")
    assert harness.manager.status("depot")["connectionStatus"] == "closed", "questions are answered from the present"
    assert not opening.done()
    harness.may_close.set()
    await closing
    await opening
    assert harness.done() == ["open depot", "close depot", "open other", "open depot"]


async def test_a_command_finishes_after_its_caller_is_cancelled(harness: ManagementHarness) -> None:
    await put(harness, "depot")
    harness.may_close.clear()
    changing = asyncio.ensure_future(put(harness, "depot", topic="other"))
    await wait_until(lambda: "close depot" in harness.reported)
    changing.cancel()
    await pause()
    harness.may_close.set()
    await wait_until(lambda: harness.reported[-1] == "open depot")
    assert harness.registry["depot"].connection.sources[0].addresses == ("other",)


# --- files and API together ---------------------------------------------------------------------------------------------


async def test_the_manager_does_not_change_a_connection_owned_by_a_file(harness: ManagementHarness) -> None:
    harness.write("depot.json", document())
    await harness.registry.refresh()
    for asked in (
        harness.manager.create(document(id="depot"), "ada"),
        harness.manager.put("depot", document(), "ada", agree),
        harness.manager.delete("depot", "ada", agree),
    ):
        fault = await refused(asked)
        assert error_of(fault) == (409, "connectivity:connection.conflict")
        assert str(harness.folder / "depot.json") in fault.message
    found = await harness.manager.definition("depot")
    assert (found.owner, found.file, found.revision) == (Owner.FILE, harness.folder / "depot.json", 1)


async def test_a_connection_of_a_file_is_closed_in_spite_of_it_until_the_file_changes(
    harness: ManagementHarness, make: Callable[[], Any]
) -> None:
    harness.write("depot.json", document())
    await harness.registry.refresh()
    await harness.manager.close("depot", "ada")
    assert harness.done() == ["open depot", "close depot"]
    found = await harness.manager.definition("depot")
    assert (found.override, found.document["connectionStatus"], found.revision) == ("closed", "closed", 2)
    assert harness.manager.status("depot")["override"] == "closed"
    await harness.store.close()
    again = await make()
    assert again.done() == [], "it outlives the service"
    harness.write("depot.json", " " + json.dumps(document()))
    assert await again.settled() == [], "the same meaning is no change"
    again.write("depot.json", document("other"))
    assert await again.settled() == ["open depot"]
    found = await again.manager.definition("depot")
    assert (found.override, found.revision) == (None, 3)


async def test_an_operator_override_of_a_file_survives_file_notes_that_are_stored_later(
    harness: ManagementHarness, make: Callable[[], Any]
) -> None:
    harness.write("depot.json", document())
    Fragile.arm(1)
    with capture_logs():
        await harness.registry.refresh()
    await harness.store.commits.wait_available()
    await harness.manager.close("depot", "ada")
    await harness.registry.refresh()
    await harness.store.close()
    again = await make()
    assert (await again.manager.definition("depot")).override == "closed"


async def test_an_operator_can_end_their_override_of_a_file(harness: ManagementHarness) -> None:
    harness.write("depot.json", document(connectionStatus="closed"))
    await harness.registry.refresh()
    await harness.manager.open("depot", "ada")
    assert (await harness.manager.definition("depot")).override == "open"
    await harness.manager.close("depot", "ada")
    assert (await harness.manager.definition("depot")).override is None
    assert harness.done() == ["open depot", "close depot"]


async def test_a_file_with_an_id_of_the_api_is_a_problem_and_the_api_continues(harness: ManagementHarness) -> None:
    await put(harness, "depot")
    harness.write("depot.json", document("elsewhere"))
    with capture_logs() as lines:
        await harness.registry.refresh()
    assert [line["path"] for line in lines] == ["id"]
    found = await harness.manager.definition("depot")
    assert (found.owner, found.document["sources"][0]["addresses"]) == (Owner.API, ["in"])
    assert harness.done() == ["open depot"]
    await harness.manager.delete("depot", "ada", agree)
    await harness.registry.refresh()
    found = await harness.manager.definition("depot")
    assert (found.owner, found.document["sources"][0]["addresses"], found.revision) == (Owner.FILE, ["elsewhere"], 3)
    assert harness.done() == ["close depot", "open depot"]


async def test_a_file_that_becomes_unusable_is_reported_with_its_connection(harness: ManagementHarness) -> None:
    harness.write("depot.json", document())
    await harness.registry.refresh()
    harness.write("depot.json", "{")
    with capture_logs():
        await harness.registry.refresh()
    found = await harness.manager.definition("depot")
    assert found.document == {**document(), "id": "depot"}
    assert "line 1" in found.problems[0]
    harness.write("depot.json", document())
    await harness.registry.refresh()
    assert (await harness.manager.definition("depot")).problems == ()
