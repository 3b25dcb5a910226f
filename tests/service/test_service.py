"""The service as operators use it: signals, exit codes, ports, logs, metrics, and slow clients."""

from __future__ import annotations

import queue
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.brokers import is_listening
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.proxy import ProxyThread
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import (
    Reader,
    added,
    client,
    connection,
    policy_for,
    running,
    source,
    topic,
    wait_until_open,
)
from tests.support.service_process import ServiceCommand, ServiceProcess
from tests.support.wait import PATIENCE, wait_until_sync

pytestmark = pytest.mark.broker("mosquitto")

OWNER = "acme:owner"
DRAINED_WITHIN = 10.0
PAUSES = {"min": "0.1s", "max": "0.5s"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    with Mosquitto.start() as started:
        yield started


@pytest.fixture(scope="module")
def proxy(broker: Mosquitto) -> Iterator[ProxyThread]:
    with ProxyThread(broker.host, broker.port) as started:
        yield started


@pytest.fixture(scope="module")
def own_service(
    broker: Mosquitto, proxy: ProxyThread, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    """A service with two connections to one broker, `slow` through a proxy."""
    documents = [
        connection(proxy, source("slow", OWNER), id="slow", specificConfig={"clientId": "slow"}),
        connection(broker, source("quick", OWNER), source("beside", OWNER), id="quick"),
    ]
    with ServiceProcess.start(tmp_path_factory.mktemp("service"), documents, reconnect=PAUSES) as started:
        yield started


@pytest.fixture
def service(own_service: ServiceProcess, proxy: ProxyThread) -> ServiceProcess:
    """The service, which the test may stop."""
    proxy.flow()
    started = running(own_service)
    wait_until_open(started, "slow", "quick")
    return started


def make(requester: MqttClient, name: str, changes: int = 0) -> None:
    """A thing with `changes` + 1 revisions."""
    answer = requester.ask_for(
        topic(name, "commands/create"), value={"_policy": policy_for(OWNER), "attributes": {"n": 0}}
    )
    assert answer["status"] == 201, answer
    for number in range(changes):
        requester.send(modify(name, number), wait=False)
    for _ in range(changes):
        assert requester.next()["status"] == 204


def modify(name: str, number: int, **headers: Any) -> dict[str, Any]:
    """A command that writes a number."""
    return {
        "topic": topic(name, "commands/modify"),
        "path": "/attributes/n",
        "headers": {"correlation-id": str(number), **headers},
        "value": number,
    }


# --- stopping -----------------------------------------------------------------------------------------------------------


class Load:
    """A thread that keeps a few dozen modifies in flight, and collects the responses by number."""

    def __init__(self, requester: MqttClient, name: str) -> None:
        self.requester, self.name = requester, name
        self.sent = 0
        self.answers: dict[int, list[tuple[int, Any]]] = {}
        self._room = threading.Semaphore(50)
        self._stopped = threading.Event()
        self._all_sent = threading.Event()
        self._sender = threading.Thread(target=self._send)
        self._listener = threading.Thread(target=self._listen)

    def wait_for(self, more: int) -> None:
        """Wait until so many further answers have come."""
        enough = len(self.answers) + more
        wait_until_sync(lambda: len(self.answers) >= enough)

    def _send(self) -> None:
        while not self._stopped.is_set():
            if self._room.acquire(timeout=0.1):
                self.requester.send(modify(self.name, self.sent), wait=False)
                self.sent += 1

    def _listen(self) -> None:
        while not (self._all_sent.is_set() and len(self.answers) == self.sent):
            try:
                answer = self.requester.received.get(timeout=0.1)
            except queue.Empty:
                continue
            number = int(answer["headers"]["correlation-id"])
            if number not in self.answers:
                self._room.release()
            response = (answer["status"], answer["headers"].get("entity-revision"))
            self.answers.setdefault(number, []).append(response)

    def __enter__(self) -> Load:
        self._sender.start()
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._sender.join()
        # Only now is the number of commands final, so only now can the listener know that all are answered.
        self._all_sent.set()
        self._listener.join()


@pytest.mark.parametrize("stops", [1, pytest.param(10, marks=pytest.mark.soak(shard="kills-mqtt"))])
def test_sigterm_under_load_drains_and_loses_nothing(service: ServiceProcess, broker: Mosquitto, stops: int) -> None:
    """Exit code 0 within ten seconds; every response is in the history, at its revision.

    No command gets two different responses. Case 33: a subscription ends with the service.
    """
    name, earlier = f"clock-{stops}", len(service.records())
    with client(broker, "quick") as requester, client(broker, "beside") as beside:
        make(requester, name)
        subscription = Reader(beside, name)
        with Load(requester, name) as load:
            for _ in range(stops):
                load.wait_for(500)
                code, seconds = service.stop()
                assert code == 0
                assert seconds < DRAINED_WITHIN
                service.start_again()
        subscription.request(1)
        assert beside.next()["value"]["error"]["error"] == "streaming.subscription.not.found"
        assert all(len(set(responses)) == 1 for responses in load.answers.values())
        answered = {responses[0][1]: number for number, responses in load.answers.items()}
        assert {responses[0][0] for responses in load.answers.values()} == {204}
        history = {item["revision"]: item["value"] for item in Reader(requester, name).all()[1:]}
        assert history == answered
        records = service.records()[earlier:]
        assert [line["event"] for line in records].count("stopped") == stops
        assert not [line for line in records if line["level"] in ("error", "critical")]


# --- starting -----------------------------------------------------------------------------------------------------------


def test_exit_code_2_for_settings_that_cannot_be_used(tmp_path: Path) -> None:
    """The reasons are tested in `tests/unit`: `test_settings`, and `test_service` for those at the start."""
    service = ServiceProcess(tmp_path, {"journl": {}})
    service.start_again(ready=False)
    assert service.process is not None
    assert service.process.wait(PATIENCE) == 2
    assert "did you mean journal" in service.log()
    assert "Traceback" not in service.log()


def test_exit_code_3_for_a_data_folder_that_another_service_owns(service: ServiceProcess, tmp_path: Path) -> None:
    second = ServiceProcess(tmp_path, {"data_dir": str(service.data)})
    second.start_again(ready=False)
    assert second.process is not None
    assert second.process.wait(PATIENCE) == 3
    assert f"process {service.pid}" in second.log()
    assert "Traceback" not in second.log()
    assert service.get("/health/ready")[0] == 200


def test_port_0_takes_a_free_one_and_logs_it_and_ctrl_c_stops_as_sigterm_does(tmp_path: Path) -> None:
    service = ServiceCommand(tmp_path, {})
    service.port = 0
    service.start_again(ready=False)
    with service:

        def listening() -> list[int]:
            return [line["port"] for line in service.records() if line["event"] == "api listening"]

        wait_until_sync(listening)
        (service.port,) = listening()
        assert is_listening("127.0.0.1", service.port)
        assert service.get("/health/live") == (200, b'{"status":"live"}')
        assert service.process is not None
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(DRAINED_WITHIN) == 0


def stopped_by(number: signal.Signals, service: ServiceProcess, event: str) -> int:
    """Return the exit code after a signal that comes at this line of the log."""
    assert service.process is not None
    wait_until_sync(lambda: service.log_file.exists() and any(line["event"] == event for line in service.records()))
    service.process.send_signal(number)
    return service.process.wait(DRAINED_WITHIN)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_the_service_starts_is_no_error(number: signal.Signals, tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, {}) as service:
        service.start_again(ready=False)
        assert stopped_by(number, service, "starting") == 0
        assert "Traceback" not in service.log()
        service.start_again()


def test_a_second_signal_does_not_change_the_exit_code(tmp_path: Path) -> None:
    with ServiceCommand.start(tmp_path, []) as service:
        assert service.process is not None
        service.process.send_signal(signal.SIGTERM)
        assert stopped_by(signal.SIGTERM, service, "stopped") == 0


# --- watching -----------------------------------------------------------------------------------------------------------

METRICS = {
    "connectivity_deliveries_total": {"connection", "direction", "outcome"},
    "connectivity_events_sent_total": {"connection"},
    "connectivity_subscriptions": {"connection"},
    "connectivity_demand": {"connection"},
    "connectivity_connection_up": {"connection"},
    "connectivity_journal_commit_seconds_count": set(),
}


def test_metrics_have_the_names_and_labels_that_dashboards_rely_on(service: ServiceProcess, broker: Mosquitto) -> None:
    with (
        added(service, connection(broker, source("count", OWNER), id="count")),
        client(broker, "count") as requester,
    ):
        make(requester, "counted", 4)
        subscription = Reader(requester, "counted")
        subscription.request(3)
        assert [requester.next()["value"]["item"]["revision"] for _ in range(3)] == [1, 2, 3]
        found: dict[str, set[str]] = {}
        for line in service.get("/metrics")[1].decode().splitlines():
            if not line.startswith("#"):
                matched = re.fullmatch(r"(\w+)(?:\{(.*)\})? \S+", line)
                assert matched is not None, line
                name, labels = matched.groups()
                found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels or ""))
        assert {name: found.get(name) for name in METRICS} == METRICS
        # Counted when the broker has confirmed them, which may be after the client has them.
        wait_until_sync(lambda: service.metric("connectivity_events_sent_total", connection="count") == 3)
        assert service.metric("connectivity_subscriptions", connection="count") == 1
        assert service.metric("connectivity_demand", connection="count") == 0
        assert service.metric("connectivity_connection_up", connection="count") == 1
        assert service.metric("connectivity_journal_commit_seconds_count") >= 1
        settled = {"connection": "count", "direction": "in", "outcome": "settled"}
        wait_until_sync(lambda: service.metric("connectivity_deliveries_total", **settled) == 7)
        assert "counted" not in service.get("/metrics")[1].decode()


SECRETS = ("s3cret-password", "s3cret-token", "s3cret-device")


def test_logs_are_json_lines_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the most verbose level, with valid and invalid logins, and logins in a broken document."""
    monkeypatch.setenv("BROKER_PASSWORD", "s3cret-device")
    with Mosquitto.start(users={"ada": "s3cret-password", "dev": "s3cret-device"}) as broker:
        at = f"{broker.host}:{broker.port}"
        wrong = {"uri": f"tcp://ada:s3cret-password-mistyped@{at}"}
        documents = [
            connection(broker, source("log", OWNER), uri=f"tcp://ada:s3cret-password@{at}"),
            connection(
                broker, source("log2", OWNER), id="by-reference", uri=f"tcp://dev:${{env:BROKER_PASSWORD}}@{at}"
            ),
            connection(broker, source("log3", OWNER), id="wrong", **wrong),
            connection(
                broker, source("log4", OWNER), id="broken", uri=f"udp://ada:s3cret-password@{at}", clientCount="2"
            ),
        ]
        with ServiceProcess.start(
            tmp_path, documents, api={"token": "s3cret-token"}, log={"format": "json", "level": "debug"}
        ) as service:
            with client(broker, "log", username="ada", password="s3cret-password") as requester:
                make(requester, "clock-1")
                requester.send(b"no JSON")
                assert requester.next()["status"] == 400
            with client(broker, "log2", username="dev", password="s3cret-device") as requester:
                assert requester.ask_for(topic("clock-1", "commands/retrieve"))["status"] == 200
            assert service.status("wrong")["details"].startswith("bad credentials")
            broker.restart()
            wait_until_sync(lambda: service.status("site")["details"] == "connected")
            shown = service.get("/health/ready")[1].decode() + service.get("/metrics", "s3cret-token")[1].decode()
            assert service.stop()[0] == 0
        text = service.log_file.read_text(encoding="utf-8")
        assert not [secret for secret in SECRETS if secret in text + shown]
        assert all({"event", "level", "logger", "timestamp"} <= set(line) for line in service.records())
        assert {line.get("connection") for line in service.records()} >= {"site", "by-reference", "wrong"}
        assert [line for line in service.records() if "broken.json" in str(line.get("file"))]


# --- those who take nothing ---------------------------------------------------------------------------------------------


EVENTS = 1100
"""Three pages of 500: for several replays far more than may be unconfirmed on a link."""
REPLAYS = 6


class Stalling(NamedTuple):
    """One client on the link that stalls, and one beside it; the thing `long` has a long history."""

    slow: MqttClient
    quick: MqttClient


@pytest.fixture(scope="module")
def stalling(own_service: ServiceProcess, broker: Mosquitto) -> Iterator[Stalling]:
    running(own_service)
    with client(broker, "slow") as slow, client(broker, "quick") as quick:
        make(quick, "long", EVENTS - 1)
        yield Stalling(slow, quick)


@pytest.mark.usefixtures("service")
def test_a_subscription_without_demand_costs_the_others_nothing(stalling: Stalling) -> None:
    """It requested ten events and received ten, whatever other subscriptions do."""
    slow, quick = stalling
    subscription = Reader(slow, "long")
    subscription.request(10)
    assert [slow.next()["value"]["item"]["revision"] for _ in range(10)] == list(range(1, 11))
    assert len(Reader(quick, "long").all()) == EVENTS
    slow.assert_nothing_came("long")


def test_a_link_that_takes_nothing_delays_no_other_connection(
    service: ServiceProcess, proxy: ProxyThread, stalling: Stalling
) -> None:
    """Many replays wait on the one link, each with a page at most; on the other one everything flows."""
    slow, quick = stalling
    waiting = [Reader(slow, "long") for _ in range(REPLAYS)]
    before = service.metric("connectivity_events_sent_total", connection="slow")
    proxy.stall(to_client=False)
    for subscription in waiting:
        subscription.request(1_000_000)
    slow.send({**modify("long", 7), "path": "/attributes/last"})
    wait_until_sync(lambda: 0 < service.metric("connectivity_demand", connection="slow") < REPLAYS * 1_000_000)
    for _ in range(2):
        assert len(Reader(quick, "long").all()) >= EVENTS
        assert quick.ask_for(topic("long", "commands/retrieve"))["status"] == 200
    assert service.metric("connectivity_events_sent_total", connection="slow") - before <= REPLAYS * 500
    proxy.flow()
    revisions: dict[str, list[int]] = {subscription.id: [] for subscription in waiting}
    ended = 0
    while ended < len(waiting):
        event = slow.next()
        if event["topic"].endswith("/complete"):
            ended += 1
        elif event["topic"].endswith("/next"):
            revisions[event["value"]["subscriptionId"]].append(event["value"]["item"]["revision"])
    assert all(found == list(range(1, EVENTS + 1)) for found in revisions.values())


def test_sigterm_waits_neither_for_an_unreachable_broker_nor_for_a_stalled_one(
    service: ServiceProcess, broker: Mosquitto, proxy: ProxyThread, stalling: Stalling
) -> None:
    """The last test here, since a service that has ended keeps the connection that was added."""
    with (
        ProxyThread(broker.host, broker.port) as leaving,
        added(service, connection(leaving, source("away", OWNER), id="away")),
    ):
        leaving.refuse()
        wait_until_sync(lambda: service.status("away")["status"] == "failed")
        commits = service.metric("connectivity_journal_commit_seconds_count")
        proxy.stall(to_client=False)
        stalling.slow.send({**modify("long", 8), "path": "/attributes/last"})
        wait_until_sync(lambda: service.metric("connectivity_journal_commit_seconds_count") > commits)
        code, seconds = service.stop()
    assert code == 0
    assert seconds < DRAINED_WITHIN
