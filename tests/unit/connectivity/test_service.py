"""The composition root: how components are connected, without a broker.

The running process is tested in tests/service.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from connectivity import __version__
from connectivity import service as module
from connectivity.authorization.quotas import Quantity, QuotaHolder
from connectivity.config.settings import Settings
from connectivity.connections.model import Connection, ConnectionStatus
from connectivity.errors import Detail, NotConnected, OperationRefused, TwinError
from connectivity.management.files import LoadedFolder
from connectivity.management.supervisor import Supervisor
from connectivity.service import PortInUse, Service, _listen, main
from connectivity.stop_signals import stop_signals
from connectivity.store.folder_lock import lock_folder
from connectivity.subscriptions.feed import FeedFailed
from mappings.errors import Fault
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Command, HistoryQuery, Subscribe, SubscriptionKind
from spark_store.errors import StoreUnavailable
from spark_store.journal.journal import Journal
from spark_store.records import Change
from tests.support.connection_documents import masked_document
from tests.support.in_process.service import command, connection, creation, searching, source, streaming, until
from tests.support.memory_transport import MemoryBroker
from tests.support.wait import PATIENCE

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
OWNER = ("acme:owner",)
NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    (tmp_path / "connections").mkdir()
    made = Service(Settings(connections_dir=tmp_path / "connections", data_dir=tmp_path), lambda: NOW)
    yield made
    await made.close()


async def create(service: Service) -> None:
    decision = service.decider.decide(Command(LAMP, "create", "/", b"{}", {}), OWNER)
    await service.store.commits.submit([Change(decision.events, decision.snapshots)])


def subscribe(filter: str | None = None) -> Subscribe:
    return Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP, filter=filter), {})


async def test_the_settings_decide_who_creates_things(tmp_path: Path) -> None:
    creation = {"grant": [{"subjects": ["acme:owner"]}]}
    made = Service(Settings(connections_dir=tmp_path, data_dir=tmp_path, creation=creation))
    await create(made)
    with pytest.raises(TwinError, match=r"creation\.notallowed"):
        made.decider.decide(Command(LAMP, "create", "/", b"{}", {}), ("acme:stranger",))
    await made.close()


@pytest.mark.parametrize(
    ("configured", "files"),
    [({}, []), ({"connections_dir": "connections"}, ["connections: No such file or directory"])],
    ids=["default", "configured"],
)
async def test_only_a_configured_folder_of_connections_must_exist(
    configured: dict[str, Any], files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = Service(Settings(data_dir=tmp_path, **configured), lambda: NOW)
    with capture_logs() as lines:
        await made.registry.refresh()
    assert [line["folder"] for line in lines if line["log_level"] == "error"] == files
    assert [text.partition(";")[0] for text in made.readiness()[1]["files"]] == files
    await made.close()


async def test_the_use_of_quotas_per_day_is_stored_at_the_stop(tmp_path: Path) -> None:
    key = QuotaHolder.SUBJECT, "acme:owner", Quantity.EVENTS_PER_DAY
    settings = Settings(connections_dir=tmp_path, data_dir=tmp_path, quotas=[{"subjects": ["*"], "events_per_day": 5}])
    made = Service(settings, lambda: NOW)
    await made.quota_check.resume()
    made.quota_check._quotas.take({key: 5}, "2030-01-15")
    await made.close()
    made = Service(settings, lambda: NOW)
    await made.quota_check.resume()
    assert made.readiness()[1]["quotas"] == ["the subject 'acme:owner' uses 5 of its quota events_per_day of 5"]
    await made.close()


@pytest.mark.extra("spark")
async def test_quotas_bound_the_searches_of_the_service(tmp_path: Path) -> None:
    quotas = [{"subjects": ["*"], "searches": 1}]
    made = Service(Settings(connections_dir=tmp_path, data_dir=tmp_path, quotas=quotas), lambda: NOW)
    assert made.past is not None
    for queue in (made.searching.searches, made.past.searches):
        async with queue.slot(OWNER):
            with pytest.raises(FeedFailed, match="the subject 'acme:owner' uses 1 of its quota searches of 1"):
                await queue.slot(OWNER).__aenter__()
    await made.close()


async def test_a_subscribe_without_permission_has_a_fault_for_a_feed(service: Service) -> None:
    await create(service)
    refused = service._open_feed(subscribe(), ("acme:stranger",))
    assert isinstance(refused, Fault)
    assert refused.error == "things:thing.notfound"
    assert not isinstance(service._open_feed(subscribe(), OWNER), Fault)


async def test_a_subscribe_with_an_unreadable_filter_has_a_fault_for_a_feed(service: Service) -> None:
    await create(service)
    refused = service._open_feed(subscribe("eq("), OWNER)
    assert isinstance(refused, Fault)
    assert refused.error == "rql.expression.invalid"


@pytest.mark.extra("spark")
async def test_a_service_without_connections_is_ready(service: Service) -> None:
    assert service.readiness()[0] is False, "not checked yet"
    await service.registry.refresh()
    assert service.readiness() == (
        True,
        {
            "status": "ready",
            "store": "writable",
            "connections": {},
            "closed": 0,
            "files": [],
            "quotas": [],
            "jobs": [],
            "lake": "starting",
        },
    )


async def test_an_unreadable_connections_folder_is_reported_and_the_service_stays_ready(
    service: Service,
) -> None:
    folder = service.settings.connections_dir
    folder.rmdir()
    await service.registry.refresh()
    is_ready, report = service.readiness()
    assert (is_ready, report["files"]) == (
        True,
        [f"{folder}: No such file or directory; running connections stay open"],
    )
    assert b"\nconnectivity_file_problems 1.0\n" in await service.monitor.scrape()
    folder.mkdir()
    await service.registry.refresh()
    assert service.readiness()[1]["files"] == []
    assert b"\nconnectivity_file_problems 0.0\n" in await service.monitor.scrape()


async def test_the_commits_of_the_journal_are_measured(service: Service) -> None:
    await create(service)
    assert b"connectivity_journal_commit_seconds_count 1.0" in generate_latest(service.monitor.registry)


def test_a_port_that_is_in_use_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PortInUse, match="another process uses"):
            _listen("127.0.0.1", taken.getsockname()[1])


def test_port_zero_selects_a_free_port() -> None:
    with _listen("127.0.0.1", 0) as listening:
        assert listening.getsockname()[1] > 0


# with connections


_names = count()


class ServiceInProcess:
    """A service with connections to a broker inside the process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        name = f"service-{next(_names)}"
        (folder / "connections").mkdir()
        self.broker = MemoryBroker.named(name)
        self.service = Service(Settings(connections_dir=folder / "connections", data_dir=folder, **settings))
        self.documents = [connection(source("in"), source("other"), id="site", uri=f"memory://{name}:1")]
        # Documents of users may not name this broker, so the folder is read for them.
        monkeypatch.setattr(self.service.registry._watcher, "look", self._look)
        self._looked: list[Connection] = []

    def _look(self, *, reload: bool = False) -> LoadedFolder | None:
        if self._looked == self.documents and not reload:
            return None
        self._looked = list(self.documents)
        files = {document.id: Path("site.json") for document in self.documents}
        documents = {document.id: masked_document(document) for document in self.documents}
        return LoadedFolder({document.id: document for document in self.documents}, documents, files)

    async def opened(self) -> ServiceInProcess:
        await self.service.registry.refresh()
        await until(lambda: self.service.readiness()[0])
        return self

    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(envelope.payload) for envelope in self.broker.sent_to("out")]

    async def ask(self, payload: bytes, to: str = "in") -> dict[str, Any]:
        """The next answer."""
        before = len(self.answers())
        self.broker.send(to, payload)
        await until(lambda: len(self.answers()) > before)
        return self.answers()[before]

    def metric(self, name: str, **labels: str) -> float | None:
        return self.service.monitor.registry.get_sample_value(name, labels)

    def details(self) -> dict[str, str]:
        found: dict[str, str] = self.service.readiness()[1]["connections"]["site"]
        return found


@pytest.fixture
async def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServiceInProcess]:
    settings = {"reconnect": {"min": "1ms", "max": "2ms"}, "journal": {"historical_headers": ["ditto-originator"]}}
    made = ServiceInProcess(tmp_path, monkeypatch, **settings)
    yield made
    await made.service.close()


async def test_a_thing_is_made_changed_and_its_history_replayed(harness: ServiceInProcess) -> None:
    """Cases 1, 26 and 27 of subscriptions, through everything but a real broker."""
    await harness.opened()
    assert (await harness.ask(creation()))["status"] == 201
    for number in range(5):
        await harness.ask(command("modify", "/attributes/n", number))
    key = (await harness.ask(streaming("subscribeForPersistedEvents", {})))["value"]["subscriptionId"]
    assert (harness.metric("connectivity_subscriptions", connection="site")) == 1
    harness.broker.send("other", streaming("request", {"subscriptionId": key, "demand": 4}))
    await until(lambda: len(harness.answers()) == 11)
    assert harness.metric("connectivity_demand", connection="site") == 0
    harness.broker.send("in", streaming("request", {"subscriptionId": key, "demand": 9}))
    await until(lambda: len(harness.answers()) == 14)
    *items, last = harness.answers()[7:]
    assert [item["value"]["item"]["revision"] for item in items] == [1, 2, 3, 4, 5, 6]
    assert items[0]["value"]["item"]["headers"]["historical-headers"] == {"ditto-originator": "acme:owner"}
    assert last["topic"] == "acme.site/lamp-7/things/twin/streaming/complete"
    assert harness.metric("connectivity_events_sent_total", connection="site") == 6
    assert harness.metric("connectivity_subscriptions", connection="site") == 0


async def test_things_are_found_and_a_search_that_runs_is_notified_when_the_service_stops(
    harness: ServiceInProcess,
) -> None:
    await harness.opened()
    for name in ("lamp-1", "lamp-2", "lamp-3"):
        assert (await harness.ask(creation(name)))["status"] == 201
        assert (await harness.ask(command("modify", "/attributes/room", "hall", name=name)))["status"] == 201
    value = {"filter": 'eq(attributes/room,"hall")', "options": "size(2)"}
    key = (await harness.ask(searching("subscribe", value)))["value"]["subscriptionId"]
    page = await harness.ask(searching("request", {"subscriptionId": key, "demand": 1}))
    assert [thing["thingId"] for thing in page["value"]["items"]] == ["acme.site:lamp-1", "acme.site:lamp-2"]
    waiting = (await harness.ask(searching("subscribe", value)))["value"]["subscriptionId"]
    before = len(harness.answers())
    await harness.service.close()
    (response,) = harness.answers()[before:]
    assert (response["value"]["subscriptionId"], response["topic"]) == (key, "_/_/things/twin/search/failed")
    assert response["value"]["error"]["error"] == "thing-search:subscription.aborted"
    assert waiting != key


async def test_design_8_09_ready_once_every_connection_has_ended_its_first_attempt(
    harness: ServiceInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bool] = []
    opening = Supervisor.open

    def opened(supervisor: Supervisor) -> None:
        opening(supervisor)
        begun.append(harness.service.readiness()[0])

    monkeypatch.setattr(Supervisor, "open", opened)
    harness.broker.refusal = NotConnected(Detail.TIMEOUT, "no answer")
    with capture_logs():
        await harness.service.registry.refresh()
        assert begun == [False]
        await until(lambda: harness.service.readiness()[0])
        assert harness.details() == {"status": "failed", "details": "timeout: no answer"}
        harness.broker.refusal = None
        await until(lambda: harness.details()["status"] == "open")
    assert harness.details() == {"status": "open", "details": "connected"}


async def test_a_connection_that_is_to_stay_closed_is_not_waited_for(harness: ServiceInProcess) -> None:
    harness.documents[0] = harness.documents[0].model_copy(update={"connection_status": ConnectionStatus.CLOSED})
    await harness.service.registry.refresh()
    assert harness.service.readiness()[0] is True
    assert (harness.service.readiness()[1]["connections"], harness.service.readiness()[1]["closed"]) == ({}, 1)


async def test_the_service_is_not_ready_while_its_store_cannot_write(
    harness: ServiceInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.opened()
    assert (await harness.ask(creation()))["status"] == 201

    def fail() -> None:
        raise StoreUnavailable("the disk is full")

    with monkeypatch.context() as patched, capture_logs():
        patched.setattr(harness.service.store._journal, "commit", fail)
        harness.broker.send("in", command("modify", "/attributes/n", 1))
        await until(lambda: not harness.service.store.commits.is_available)
        is_ready, shown = harness.service.readiness()
        assert (is_ready, shown["status"], shown["store"]) == (False, "not ready", "unavailable: the disk is full")
        assert harness.details() == {"status": "open", "details": "store unavailable: the disk is full"}
    with capture_logs():
        await until(lambda: harness.service.readiness()[0])
        await until(lambda: len(harness.answers()) == 2)
    assert harness.answers()[1]["status"] == 201


async def test_a_background_job_that_fails_is_shown_until_it_succeeds(
    harness: ServiceInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.opened()

    def fail() -> None:
        raise ZeroDivisionError("unexpected")

    with monkeypatch.context() as patched, capture_logs():
        patched.setattr(harness.service.subscriptions, "_clock", fail)
        harness.service.jobs.start()
        await until(lambda: harness.service.readiness()[1]["jobs"])
        assert harness.service.readiness()[1]["jobs"] == ["end idle subscriptions: ZeroDivisionError: unexpected"]
    await until(lambda: not harness.service.readiness()[1]["jobs"])
    await harness.service.jobs.stop()


async def test_closing_lets_answers_arrive_and_ends_subscriptions(harness: ServiceInProcess) -> None:
    await harness.opened()
    await harness.ask(creation())
    await harness.ask(streaming("subscribeForPersistedEvents", {}))
    harness.broker.send("in", command("modify", "/attributes/n", 1))
    await until(
        lambda: (
            harness.service.store.commits._queue
            or harness.service.store.commits._written
            or len(harness.answers()) == 3
        )
    )
    await harness.service.close()
    assert harness.answers()[2]["status"] == 201
    assert (list(harness.service.subscriptions), harness.broker.links) == ([], [])
    with pytest.raises(StoreUnavailable):
        harness.service.store.newest_seq()


async def test_one_connection_that_does_not_close_keeps_nothing_else_open(
    harness: ServiceInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.opened()
    supervisor = harness.service.registry["site"]
    close = supervisor.close

    async def mistaken(drain: float = 0.0) -> None:
        await close(drain)
        raise ZeroDivisionError("internal error")

    monkeypatch.setattr(supervisor, "close", mistaken)
    with capture_logs() as lines:
        await harness.service.close()
    assert [line["event"] for line in lines] == ["connection not closed cleanly"]
    with pytest.raises(StoreUnavailable):
        harness.service.store.newest_seq()
    monkeypatch.undo()


# the process


class Exit:
    """The result of `main` in this process, without a change of the process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.first: Mapping[str, Any] = {}
        monkeypatch.setattr("connectivity.service.logs.configure", lambda **_: None)
        monkeypatch.setattr("connectivity.service.sys.setswitchinterval", lambda _: None)

    def code(self, **settings: Any) -> tuple[int, str]:
        """The exit code, and the log's explanation of it."""
        given = {"data_dir": self.folder, "connections_dir": self.folder / "connections", "api": {"port": 0}}
        with capture_logs() as lines:
            code = main(Settings(**{**given, **settings}))
        self.first = lines[0]
        return code, lines[-1]["reason"]


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Exit:
    return Exit(tmp_path, monkeypatch)


def test_the_first_line_of_the_log_has_the_version(ended: Exit) -> None:
    (ended.folder / "journal.db").write_bytes(b"no journal" * 100)
    ended.code()
    assert (ended.first["event"], ended.first["version"]) == ("starting", __version__)


def test_exit_code_1_is_a_journal_that_cannot_be_opened(ended: Exit) -> None:
    (ended.folder / "journal.db").write_bytes(b"no journal" * 100)
    code, reason = ended.code()
    assert code == 1
    assert "journal.db" in reason


def test_exit_code_1_is_a_journal_of_a_later_version_too(ended: Exit) -> None:
    database = sqlite3.connect(ended.folder / "journal.db")
    database.execute("PRAGMA user_version = 1000")
    database.close()
    code, reason = ended.code()
    assert code == 1
    assert "start the newer service" in reason


def test_exit_code_2_is_an_address_that_this_machine_does_not_have(ended: Exit) -> None:
    code, reason = ended.code(api={"host": "192.0.2.1", "port": 0, "token": "a-token-that-is-long-enough"})
    assert code == 2
    assert reason.startswith("api.host 192.0.2.1")


def test_exit_code_2_is_a_data_folder_that_cannot_be_made(ended: Exit) -> None:
    (ended.folder / "file").write_text("in the way")
    code, reason = ended.code(data_dir=ended.folder / "file" / "data")
    assert code == 2
    assert reason.startswith("data_dir")


def test_exit_code_3_is_a_data_folder_that_another_service_has(ended: Exit) -> None:
    with lock_folder(ended.folder):
        assert ended.code()[0] == 3


def test_exit_code_4_is_a_port_in_use(ended: Exit) -> None:
    with _listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        code, reason = ended.code(api={"port": port})
    assert (code, reason) == (
        4,
        f"another process uses 127.0.0.1:{port}; choose another port with api.port or CONNECTIVITY_API__PORT",
    )


@pytest.fixture
def hang_up_ends_a_process() -> Iterator[None]:
    """As without `nohup`, which these tests may run with."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hang_up_ends_a_process")
def test_a_hang_up_that_is_ignored_stays_ignored() -> None:
    """As `nohup` wants it."""
    assert set(stop_signals()) == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert set(stop_signals()) == {signal.SIGTERM, signal.SIGINT}


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_address_of_ip_6_may_be_written_with_or_without_brackets(host: str) -> None:
    with _listen(host, 0) as listening:
        assert listening.family is socket.AF_INET6


@pytest.mark.usefixtures("hang_up_ends_a_process")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_ends_the_service_in_good_order(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It logs its address, and answers while it runs."""
    (tmp_path / "connections").mkdir()
    monkeypatch.setattr(module, "quiet_garbage_collection", lambda: None)
    settings = Settings(
        data_dir=tmp_path,
        connections_dir=tmp_path / "connections",
        api={"port": 0, "token": "secret"},
        spark={"mode": "off"},
    )

    def events_named(event: str) -> list[Any]:
        return [line for line in lines if line["event"] == event]

    with capture_logs() as lines:
        running = asyncio.create_task(module._run(settings))
        await until(lambda: events_named("api listening"))
        (listening,) = events_named("api listening")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listening['port']}", trust_env=False) as client:
            assert (await client.get("/health/live")).status_code == 200
            assert (await client.get("/health/ready")).json()["status"] == "ready"
            assert (await client.get("/metrics")).status_code == 401
            answer = await client.get("/metrics", headers={"authorization": "Bearer secret"})
            assert "connectivity_journal_commit_seconds" in answer.text
        os.kill(os.getpid(), number)
        await asyncio.wait_for(running, PATIENCE)
    assert [line["event"] for line in lines][-2:] == ["draining", "stopped"]
    assert lines[-2]["signal"] == number.name
    with _listen("127.0.0.1", listening["port"]):
        Journal.open(tmp_path / "journal.db").close()


async def test_no_document_can_read_the_settings_file_or_the_data_folder(tmp_path: Path) -> None:
    for name in ("connections", "open"):
        (tmp_path / name).mkdir()
    (tmp_path / "open" / "word").write_text("client-7", encoding="utf-8")
    file = tmp_path / "open" / "settings.yaml"
    file.write_text("api: {token: geheim}", encoding="utf-8")
    settings = Settings(
        data_dir=tmp_path / "data",
        connections_dir=tmp_path / "connections",
        secrets={"folders": [tmp_path / "open", tmp_path / "data"]},
        spark={"mode": "off"},
    )
    (tmp_path / "data").mkdir()
    service = Service(settings, lambda: NOW, file)
    try:
        for path, reason in (
            (file, "belongs to the service"),
            (tmp_path / "data" / "journal.db", "belongs to the service"),
        ):
            sent = {
                "connectionType": "mqtt",
                "uri": "tcp://127.0.0.1:1883",
                "sources": [{"addresses": ["in"], "qos": 1, "authorizationContext": ["acme:x"]}],
                "specificConfig": {"clientId": f"${{file:{path}}}"},
            }
            with pytest.raises(OperationRefused) as caught:
                await service.management.create(sent, "ada")
            assert reason in caught.value.fault.message
            (tmp_path / "connections" / "site.json").write_text(json.dumps(sent), encoding="utf-8")
            await service.registry.refresh()
            assert reason in str(service.registry.problems[0])
            (tmp_path / "connections" / "site.json").unlink()
        allowed = {**sent, "specificConfig": {"clientId": f"${{file:{tmp_path}/open/word}}"}}
        made = await service.management.create({**allowed, "connectionStatus": "closed"}, "ada")
        assert service.registry.known[made.id].connection is not None
    finally:
        await service.close()


@pytest.mark.parametrize("token", [None, ""])
async def test_without_a_token_or_with_an_empty_one_metrics_are_open_to_this_machine(
    token: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "connections").mkdir()
    monkeypatch.setattr(module, "quiet_garbage_collection", lambda: None)
    settings = Settings(
        data_dir=tmp_path,
        connections_dir=tmp_path / "connections",
        api={"port": 0, "token": token},
        spark={"mode": "off"},
    )
    with capture_logs() as lines:
        running = asyncio.create_task(module._run(settings))
        await until(lambda: any(line["event"] == "api listening" for line in lines))
        (port,) = [line["port"] for line in lines if line["event"] == "api listening"]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            assert (await client.get("/metrics")).status_code == 200
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, PATIENCE)
