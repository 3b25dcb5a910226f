"""What operators ask is checked, stored and done in that order, and what was answered is durable."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.definitions import Definitions
from connectivity.errors import OperationRefused
from connectivity.lifecycle import Status
from connectivity.management import Definition, Judge, Moment, Owner, Sample
from connectivity.managing import Manager
from connectivity.model import Connection
from connectivity.monitor import Monitor
from connectivity.observing import MonitorObserver
from connectivity.registry import Registry
from connectivity.store import Store
from connectivity.streams import Bounds, Streams
from connectivity.subscriptions import SubscriptionTable
from connectivity.uri import MASK
from connectivity.vault import Vault, new_key
from connectivity.watching import Watcher
from mappings.errors import INTERNAL_ERROR, Fault
from spark_store.journal import SqliteJournal
from tests.connectivity.site import pause
from tests.helpers import wait_until

NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)


def agree(_revision: int | None) -> None:
    """Whatever is there may be replaced."""


def only(wanted: int | None) -> Judge:
    """Replace this revision alone."""

    def judge(found: int | None) -> None:
        if found != wanted:
            raise OperationRefused(Fault(412, "connectivity:precondition.failed", f"found {found}"))

    return judge


class FakeSupervisor:
    """Notes what is done with a connection, and is open at once, unless the bench says otherwise."""

    def __init__(self, connection: Connection, bench: Bench) -> None:
        self.connection = connection
        self.attempted = asyncio.Event()
        self.status, self.status_details = Status.UNKNOWN, "connecting"
        self.clients: list[Any] = []
        self._bench = bench

    def status_report(self, wanted: str) -> dict[str, Any]:
        return {"connectionStatus": wanted, "liveStatus": self.status.value}

    def enable_logs(self) -> None:
        self._bench.logs.append(f"enable {self.connection.id}")

    def reset_logs(self) -> None:
        self._bench.logs.append(f"reset {self.connection.id}")

    def open(self) -> None:
        self._bench.told.append(f"open {self.connection.id}")
        self.answer()

    def answer(self) -> None:
        if self._bench.broker is not None:
            self.status, self.status_details = self._bench.broker
            self.attempted.set()

    async def close(self, drain: float = 0.0) -> None:
        self._bench.told.append(f"close {self.connection.id}")
        await self._bench.may_close.wait()


class Bench:
    """A manager with a real journal, and brokers that do as they are told."""

    def __init__(self, folder: Path, keys: tuple[bytes, ...]) -> None:
        self.folder = folder / "connections"
        self.folder.mkdir(exist_ok=True)
        self.told: list[str] = []
        self.monitor = Monitor()
        self.logs: list[str] = []
        """What was done with logs."""
        self.broker: tuple[Status, str] | None = (Status.OPEN, "connected")
        self.may_close = asyncio.Event()
        self.may_close.set()
        self.time = NOW
        self.journal = SqliteJournal.open(folder / "journal.db")
        self.store = Store(self.journal)
        definitions = Definitions(self.journal, self.store)
        vault = Vault(keys)
        self.streams = Streams(lambda _signal, _subjects: INTERNAL_ERROR, Bounds(), lambda: 0.0)
        self.registry = Registry(
            Watcher(self.folder, pause=lambda _seconds: None),
            lambda connection: FakeSupervisor(connection, self),  # type: ignore[arg-type, return-value]
            lambda _id: None,
            shown=vault.masked,
            now=self.now,
            keep_notes=definitions.note_files,
        )
        self.manager = Manager(
            self.registry,
            definitions,
            vault,
            MonitorObserver(self.monitor),
            SubscriptionTable(self.streams),
            now=self.now,
            patience=0.05,
        )

    def now(self) -> datetime:
        return self.time

    async def started(self) -> Bench:
        await self.manager.load()
        await self.registry.refresh()
        return self

    def write(self, name: str, content: object) -> None:
        file = self.folder / name
        file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        self.time += timedelta(seconds=1)
        stamp = int(self.time.timestamp() * 1e9)
        os.utime(file, ns=(stamp, stamp))

    def done(self) -> list[str]:
        told, self.told = self.told, []
        return told

    async def settled(self) -> list[str]:
        """What was done when nothing is left to do."""
        await self.registry.refresh()
        return self.done()


@pytest.fixture
async def bench(make: Callable[[], Any]) -> Bench:
    bench: Bench = await make()
    return bench


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[[], Any]]:
    """A service on the folder; one made later takes up what an earlier one has stored."""
    made: list[Bench] = []
    keys = (new_key(),)

    async def make() -> Bench:
        made.append(bench := Bench(tmp_path, keys))
        return await bench.started()

    yield make
    for bench in made:
        await bench.store.close()


def document(topic: str = "in", **more: Any) -> dict[str, Any]:
    return {
        "connectionType": "mqtt",
        "connectionStatus": "open",
        "uri": "tcp://127.0.0.1:1883",
        "sources": [{"addresses": [topic], "qos": 1, "authorizationContext": ["acme:x"]}],
        **more,
    }


async def refused(asked: Any) -> Fault:
    with pytest.raises(OperationRefused) as caught:
        await asked
    return caught.value.fault


def said(fault: Fault) -> tuple[int, str]:
    return fault.status, fault.error


async def put(bench: Bench, connection_id: str, **more: Any) -> Definition:
    found, _ = await bench.manager.put(connection_id, document(**more), "ada", agree)
    return found


# --- one after the other ------------------------------------------------------------------------------------------------


async def test_a_connection_is_created_shown_and_opened(bench: Bench) -> None:
    made = await bench.manager.create(document(), "ada")
    assert (made.revision, made.owner, made.modified) == (1, Owner.API, NOW)
    assert made.document == {**document(), "id": made.id}
    assert await bench.settled() == [f"open {made.id}"]
    assert await bench.manager.definition(made.id) == made
    assert bench.manager.ids() == [made.id]
    assert list(await bench.manager.definitions()) == [made]


async def test_a_connection_that_does_not_say_whether_it_is_to_be_open_is_not(bench: Bench) -> None:
    written = document()
    del written["connectionStatus"]
    made = await bench.manager.create({**written, "id": "depot"}, "ada")
    assert (made.id, made.document["connectionStatus"]) == ("depot", "unknown")
    assert await bench.settled() == []


async def test_creating_says_nothing_about_the_broker(bench: Bench) -> None:
    bench.broker = None
    await bench.manager.create(document(id="depot"), "ada")
    assert await bench.settled() == ["open depot"]


async def test_an_id_that_exists_is_a_conflict(bench: Bench) -> None:
    await bench.manager.create(document(id="depot"), "ada")
    assert said(await refused(bench.manager.create(document(id="depot"), "ada"))) == (
        409,
        "connectivity:connection.conflict",
    )


async def test_case_46_putting_an_unknown_id_creates_it(bench: Bench) -> None:
    found, is_new = await bench.manager.put("depot", document(), "ada", only(None))
    assert (found.id, found.revision, is_new) == ("depot", 1, True)
    found, is_new = await bench.manager.put("depot", document("other"), "ada", only(1))
    assert (found.revision, is_new) == (2, False)
    assert bench.done() == ["open depot", "close depot", "open depot"]


async def test_a_document_with_another_id_than_its_address_is_refused(bench: Bench) -> None:
    fault = await refused(bench.manager.put("depot", document(id="other"), "ada", agree))
    assert said(fault) == (400, "connectivity:id.notsettable")


async def test_case_44_two_targets_with_the_same_label_are_a_conflict(bench: Bench) -> None:
    target = {
        "address": "events",
        "topics": ["_/_/things/twin/events"],
        "authorizationContext": ["acme:x"],
        "issuedAcknowledgementLabel": "depot:done",
    }
    twice = document(targets=[target, {**target, "address": "others"}])
    assert said(await refused(bench.manager.put("depot", twice, "ada", agree))) == (
        409,
        "acknowledgement:label.not.unique",
    )


async def test_case_45_a_label_of_another_connection_is_invalid(bench: Bench) -> None:
    target = {
        "address": "events",
        "topics": ["_/_/things/twin/events"],
        "authorizationContext": ["acme:x"],
        "issuedAcknowledgementLabel": "other:done",
    }
    fault = await refused(bench.manager.put("depot", document(targets=[target]), "ada", agree))
    assert said(fault) == (400, "acknowledgement:label.invalid")


async def test_every_problem_of_a_document_is_told_and_nothing_is_stored(bench: Bench) -> None:
    with pytest.raises(OperationRefused) as caught:
        await bench.manager.create(document(uri="nowhere", sources=[{"addresses": []}]), "ada")
    assert caught.value.fault.status == 400
    assert len(caught.value.problems) > 1
    assert (bench.manager.ids(), await bench.manager.audit()) == ([], [])


async def test_the_type_of_a_connection_stays(bench: Bench) -> None:
    await put(bench, "depot")
    fault = await refused(bench.manager.put("depot", document(connectionType="mqtt-5"), "ada", agree))
    assert said(fault) == (400, "connectivity:connection.configuration.invalid")
    assert fault.message == "ConnectionType <mqtt> of existing connection <depot> cannot be changed!"


async def test_a_change_whose_broker_does_not_answer_is_stored_and_told(bench: Bench) -> None:
    await put(bench, "depot")
    bench.broker = Status.MISCONFIGURED, "bad credentials: not authorized"
    fault = await refused(bench.manager.put("depot", document("other"), "ada", agree))
    assert said(fault) == (504, "connectivity:connection.failed")
    assert fault.description == "bad credentials: not authorized"
    assert (await bench.manager.definition("depot")).document["sources"][0]["addresses"] == ["other"]
    bench.broker = None
    fault = await refused(bench.manager.put("depot", document("third"), "ada", agree))
    assert (fault.status, fault.description) == (504, "no answer within 0.05 s")


async def test_another_name_makes_no_link_anew(bench: Bench) -> None:
    await put(bench, "depot")
    bench.done()
    found = await put(bench, "depot", name="Depot 7")
    assert (bench.done(), found.revision, bench.registry["depot"].connection.name) == ([], 2, "Depot 7")


async def test_closing_and_opening_are_revisions(bench: Bench) -> None:
    await put(bench, "depot")
    await bench.manager.close("depot", "ada")
    assert bench.done() == ["open depot", "close depot"]
    closed = await bench.manager.definition("depot")
    assert (closed.revision, closed.document["connectionStatus"]) == (2, "closed")
    await bench.manager.close("depot", "ada")
    assert (await bench.manager.definition("depot")).revision == 2, "nothing has changed"
    await bench.manager.open("depot", "eve")
    assert bench.done() == ["open depot"]
    assert [(it["revision"], it["by"], it["action"]) for it in await bench.manager.revisions("depot")] == [
        (3, "eve", "open"),
        (2, "ada", "close"),
        (1, "ada", "create"),
    ]


async def test_opening_again_tries_a_connection_without_link_at_once(bench: Bench) -> None:
    bench.broker = Status.FAILED, "connection refused"
    await put(bench, "depot")
    assert said(await refused(bench.manager.open("depot", "ada"))) == (504, "connectivity:connection.failed")
    bench.broker = Status.OPEN, "connected"
    await bench.manager.open("depot", "ada")
    await bench.manager.open("depot", "ada")
    assert bench.done() == ["open depot", *(["close depot", "open depot"] * 2)]


async def test_a_deleted_connection_is_gone_and_its_id_counts_on(bench: Bench) -> None:
    await put(bench, "depot")
    assert said(await refused(bench.manager.delete("depot", "ada", only(7)))) == (
        412,
        "connectivity:precondition.failed",
    )
    await bench.manager.delete("depot", "ada", only(1))
    assert bench.done() == ["open depot", "close depot"]
    not_found = (404, "connectivity:connection.notfound")
    assert said(await refused(bench.manager.definition("depot"))) == not_found
    assert said(await refused(bench.manager.delete("depot", "ada", agree))) == not_found
    assert said(await refused(bench.manager.open("depot", "ada"))) == not_found
    with pytest.raises(OperationRefused, match="notfound"):
        bench.manager.status("depot")
    assert (await put(bench, "depot")).revision == 3


async def test_the_past_of_a_connection_is_shown_by_revision_and_by_time(bench: Bench) -> None:
    await put(bench, "depot", topic="one")
    bench.time += timedelta(minutes=1)
    await put(bench, "depot", topic="two")

    async def topic(at: Moment) -> str:
        found = await bench.manager.definition("depot", at)
        address: str = found.document["sources"][0]["addresses"][0]
        return address

    assert await topic(Moment(revision=1)) == "one"
    assert await topic(Moment(revision=2)) == "two"
    assert await topic(Moment(time=NOW + timedelta(seconds=30))) == "one"
    assert await topic(Moment(time=NOW + timedelta(days=1))) == "two"
    for moment in (Moment(revision=3), Moment(time=NOW - timedelta(seconds=1))):
        fault = await refused(bench.manager.definition("depot", moment))
        assert said(fault) == (404, "connectivity:connection.history.notfound")


async def test_the_audit_log_says_who_did_what(bench: Bench) -> None:
    await put(bench, "depot")
    await bench.manager.close("depot", "eve")
    await bench.manager.reset_metrics("depot", "eve")
    found = [(it["by"], it["action"], it["connection"], it["revision"]) for it in await bench.manager.audit()]
    assert found == [("eve", "reset metrics", "depot", 2), ("eve", "close", "depot", 2), ("ada", "create", "depot", 1)]
    (newest,) = await bench.manager.audit(1)
    assert newest["at"] == NOW


async def test_logs_are_kept_and_reset_where_something_runs(bench: Bench) -> None:
    await put(bench, "depot")
    bench.logs.clear()
    await bench.manager.enable_logs("depot", "eve")
    await bench.manager.reset_logs("depot", "eve")
    assert bench.logs == ["enable depot", "reset depot"]
    await bench.manager.close("depot", "eve")
    await bench.manager.enable_logs("depot", "eve")
    await bench.manager.reset_logs("depot", "eve")
    assert bench.logs == ["enable depot", "reset depot"]
    assert bench.manager.logs("depot") == {"connectionId": "depot", "connectionLogs": []}


async def test_a_connection_that_was_deleted_is_forgotten_with_what_it_has_counted(bench: Bench) -> None:
    await put(bench, "depot")
    bench.monitor.meter("depot").inbound("refused")
    await bench.manager.delete("depot", "eve", agree)
    assert bench.monitor.known("depot").deliveries() == {}


async def test_subscriptions_are_those_of_the_table(bench: Bench) -> None:
    assert list(bench.manager.subscriptions()) == []
    assert said(await refused(bench.manager.cancel_subscription("ab", "ada"))) == (
        404,
        "connectivity:subscription.notfound",
    )
    assert await bench.manager.audit() == []


# --- secrets ------------------------------------------------------------------------------------------------------------


async def test_a_secret_is_stored_sealed_shown_masked_and_kept(bench: Bench, make: Callable[[], Any]) -> None:
    made = await put(bench, "depot", uri="tcp://ada:tulip-37@127.0.0.1:1883")
    assert made.document["uri"] == f"tcp://ada:{MASK}@127.0.0.1:1883"
    await bench.manager.put("depot", {**made.document, "name": "Depot"}, "ada", agree)
    await bench.store.close()
    assert b"tulip-37" not in (bench.folder.parent / "journal.db").read_bytes()
    again = await make()
    uri = again.registry["depot"].connection.uri.get_secret_value()
    assert uri == "tcp://ada:tulip-37@127.0.0.1:1883"


async def test_a_stored_connection_that_cannot_be_used_any_more_stops_no_other(
    bench: Bench, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPOT_PASSWORD", "tulip")
    made = await put(bench, "depot", uri="tcp://ada:${env:DEPOT_PASSWORD}@127.0.0.1:1883")
    assert made.document["uri"] == "tcp://ada:${env:DEPOT_PASSWORD}@127.0.0.1:1883"
    await put(bench, "other")
    await bench.store.close()
    monkeypatch.delenv("DEPOT_PASSWORD")
    with capture_logs() as lines:
        again = await make()
    assert [line["connection"] for line in lines if line["event"] == "a stored connection cannot be used"] == ["depot"]
    assert again.done() == ["open other"]
    status = again.manager.status("depot")
    assert (status["connectionStatus"], status["liveStatus"]) == ("open", "misconfigured")
    assert "DEPOT_PASSWORD" in status["problems"][0]
    fault = await refused(again.manager.open("depot", "ada"))
    assert said(fault) == (400, "connectivity:connection.configuration.invalid")
    monkeypatch.setenv("DEPOT_PASSWORD", "rose")
    await again.manager.open("depot", "ada")
    assert again.done() == ["open depot"]
    assert again.manager.status("depot")["liveStatus"] == "open"


# --- several at once ----------------------------------------------------------------------------------------------------


async def test_of_two_operators_at_once_one_is_refused(bench: Bench) -> None:
    await put(bench, "depot")
    changes = [bench.manager.put("depot", document(name), name, only(1)) for name in ("ada", "eve")]
    found = await asyncio.gather(*changes, return_exceptions=True)
    (lost,) = [it for it in found if isinstance(it, OperationRefused)]
    assert lost.fault.status == 412
    assert [it["revision"] for it in await bench.manager.revisions("depot")] == [2, 1]


async def test_commands_on_one_connection_wait_for_each_other_and_others_do_not(bench: Bench) -> None:
    await put(bench, "depot")
    bench.may_close.clear()
    closing = asyncio.ensure_future(bench.manager.close("depot", "ada"))
    await wait_until(lambda: "close depot" in bench.told, 30)
    opening = asyncio.ensure_future(bench.manager.open("depot", "eve"))
    await put(bench, "other")
    assert bench.manager.status("depot")["connectionStatus"] == "closed", "questions are answered from the present"
    assert not opening.done()
    bench.may_close.set()
    await closing
    await opening
    assert bench.done() == ["open depot", "close depot", "open other", "open depot"]


async def test_a_command_goes_on_to_its_end_when_nobody_waits_any_more(bench: Bench) -> None:
    await put(bench, "depot")
    bench.may_close.clear()
    changing = asyncio.ensure_future(put(bench, "depot", topic="other"))
    await wait_until(lambda: "close depot" in bench.told, 30)
    changing.cancel()
    await pause()
    bench.may_close.set()
    await wait_until(lambda: bench.told[-1] == "open depot", 30)
    assert bench.registry["depot"].connection.sources[0].addresses == ("other",)


# --- files and API together ---------------------------------------------------------------------------------------------


async def test_what_a_file_owns_is_not_changed_here(bench: Bench) -> None:
    bench.write("depot.json", document())
    await bench.registry.refresh()
    for asked in (
        bench.manager.create(document(id="depot"), "ada"),
        bench.manager.put("depot", document(), "ada", agree),
        bench.manager.delete("depot", "ada", agree),
    ):
        fault = await refused(asked)
        assert said(fault) == (409, "connectivity:connection.conflict")
        assert str(bench.folder / "depot.json") in fault.message
    found = await bench.manager.definition("depot")
    assert (found.owner, found.file, found.revision) == (Owner.FILE, bench.folder / "depot.json", 1)


async def test_a_connection_of_a_file_is_closed_in_spite_of_it_until_the_file_changes(
    bench: Bench, make: Callable[[], Any]
) -> None:
    bench.write("depot.json", document())
    await bench.registry.refresh()
    await bench.manager.close("depot", "ada")
    assert bench.done() == ["open depot", "close depot"]
    found = await bench.manager.definition("depot")
    assert (found.override, found.document["connectionStatus"], found.revision) == ("closed", "closed", 2)
    assert bench.manager.status("depot")["override"] == "closed"
    await bench.store.close()
    again = await make()
    assert again.done() == [], "it outlives the service"
    bench.write("depot.json", " " + json.dumps(document()))
    assert await again.settled() == [], "the same meaning is no change"
    again.write("depot.json", document("other"))
    assert await again.settled() == ["open depot"]
    found = await again.manager.definition("depot")
    assert (found.override, found.revision) == (None, 3)


async def test_an_operator_ends_what_he_wanted_in_spite_of_a_file_himself(bench: Bench) -> None:
    bench.write("depot.json", document(connectionStatus="closed"))
    await bench.registry.refresh()
    await bench.manager.open("depot", "ada")
    assert (await bench.manager.definition("depot")).override == "open"
    await bench.manager.close("depot", "ada")
    assert (await bench.manager.definition("depot")).override is None
    assert bench.done() == ["open depot", "close depot"]


async def test_a_file_with_an_id_of_the_api_is_a_problem_and_the_api_goes_on(bench: Bench) -> None:
    await put(bench, "depot")
    bench.write("depot.json", document("elsewhere"))
    with capture_logs() as lines:
        await bench.registry.refresh()
    assert [line["path"] for line in lines] == ["id"]
    found = await bench.manager.definition("depot")
    assert (found.owner, found.document["sources"][0]["addresses"]) == (Owner.API, ["in"])
    assert bench.done() == ["open depot"]
    await bench.manager.delete("depot", "ada", agree)
    await bench.registry.refresh()
    found = await bench.manager.definition("depot")
    assert (found.owner, found.document["sources"][0]["addresses"], found.revision) == (Owner.FILE, ["elsewhere"], 3)
    assert bench.done() == ["close depot", "open depot"]


async def test_a_file_that_becomes_unusable_is_told_with_its_connection(bench: Bench) -> None:
    bench.write("depot.json", document())
    await bench.registry.refresh()
    bench.write("depot.json", "{")
    with capture_logs():
        await bench.registry.refresh()
    found = await bench.manager.definition("depot")
    assert found.document == {**document(), "id": "depot"}
    assert "line 1" in found.problems[0]
    bench.write("depot.json", document())
    await bench.registry.refresh()
    assert (await bench.manager.definition("depot")).problems == ()


# --- trouble ------------------------------------------------------------------------------------------------------------


async def test_what_cannot_be_stored_is_not_done(bench: Bench) -> None:
    await put(bench, "depot")
    bench.done()
    await bench.store.close()
    for asked in (
        bench.manager.create(document(id="other"), "ada"),
        bench.manager.put("depot", document("other"), "ada", agree),
        bench.manager.close("depot", "ada"),
        bench.manager.delete("depot", "ada", agree),
    ):
        assert said(await refused(asked)) == (503, "api:store.unavailable")
    assert (bench.done(), bench.manager.ids()) == ([], ["depot"])
    assert (await bench.manager.definition("depot")).revision == 1


# --- trying out ---------------------------------------------------------------------------------------------------------


TARGET = {"address": "out", "topics": ["_/_/things/twin/events"], "qos": 1, "authorizationContext": ["acme:x"]}


class Tried:
    """Notes what it is given to try out."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []

    async def __call__(self, connection: Connection, sample: Sample | None) -> dict[str, Any]:
        self.connections.append(connection)
        return {"connection": "open"}


@pytest.fixture
def tried(bench: Bench) -> Tried:
    bench.manager._trial = made = Tried()
    return made


async def test_case_16_a_target_that_issues_a_label_of_its_connection_may_be_tried_out(
    bench: Bench, tried: Tried
) -> None:
    for label in ("depot-7:delivered", "{{ connection:id }}:delivered"):
        given = document(targets=[{**TARGET, "issuedAcknowledgementLabel": label}], id="depot-7")
        assert await bench.manager.test(given) == {"connection": "open"}
    assert [each.id for each in tried.connections] == ["depot-7", "depot-7"]
    assert await bench.manager.definitions() == []


async def test_7_1_a_document_without_an_id_is_tried_out_under_one_that_nobody_has(bench: Bench, tried: Tried) -> None:
    await bench.manager.test(document())
    [connection] = tried.connections
    assert connection.id.endswith("-dry-run")


@pytest.mark.parametrize(
    ("targets", "status", "code"),
    [
        (["depot-7:seen", "depot-7:seen"], 409, "acknowledgement:label.not.unique"),
        (["other:seen"], 400, "acknowledgement:label.invalid"),
    ],
    ids=["case_44", "case_45"],
)
async def test_case_44_45_labels_are_judged_before_anybody_is_asked(
    bench: Bench, tried: Tried, targets: list[str], status: int, code: str
) -> None:
    given = [
        {**TARGET, "address": f"out/{index}", "issuedAcknowledgementLabel": it} for index, it in enumerate(targets)
    ]
    assert said(await refused(bench.manager.test(document(targets=given, id="depot-7")))) == (status, code)
    assert tried.connections == []
