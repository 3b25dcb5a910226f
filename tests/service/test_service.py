"""The service as an operator meets it: signals, exit codes, ports, logs, metrics, and clients that take nothing."""

from __future__ import annotations

import queue
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import is_listening
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.proxy import ProxyThread
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import Reader, client, connection, policy_for, source, topic
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.broker("mosquitto")

OWNER = "acme:owner"
DRAINED_WITHIN = 10.0


def make(party: MqttClient, name: str, changes: int = 0) -> None:
    """A thing with `changes` + 1 revisions."""
    answer = party.ask_for(topic(name, "commands/create"), value={"_policy": policy_for(OWNER), "attributes": {"n": 0}})
    assert answer["status"] == 201, answer
    for number in range(changes):
        party.send(modify(name, number), wait=False)
    for _ in range(changes):
        assert party.next(30)["status"] == 204


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
    """A thread that keeps a few dozen modifies in flight; what it was answered, by number."""

    def __init__(self, party: MqttClient, name: str) -> None:
        self.party, self.name = party, name
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
        wait_until_sync(lambda: len(self.answers) >= enough, 30)

    def _send(self) -> None:
        while not self._stopped.is_set():
            if self._room.acquire(timeout=0.1):
                self.party.send(modify(self.name, self.sent), wait=False)
                self.sent += 1

    def _listen(self) -> None:
        while not (self._all_sent.is_set() and len(self.answers) == self.sent):
            try:
                answer = self.party.received.get(timeout=0.1)
            except queue.Empty:
                continue
            number = int(answer["headers"]["correlation-id"])
            if number not in self.answers:
                self._room.release()
            said = (answer["status"], answer["headers"].get("entity-revision"))
            self.answers.setdefault(number, []).append(said)

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


def test_sigterm_under_load_drains_and_loses_nothing(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """Exit code 0 within ten seconds; every answer is in the history, at the revision that it named, and nothing is
    answered twice in two ways."""
    with (
        ServiceProcess.start(tmp_path, [connection(mosquitto, source("stop", OWNER))]) as service,
        client(mosquitto, "stop") as party,
    ):
        make(party, "clock-1")
        with Load(party, "clock-1") as load:
            for _ in range(3):
                load.wait_for(500)
                code, seconds = service.stop()
                assert code == 0
                assert seconds < DRAINED_WITHIN
                service.start_again()
        assert all(len(set(said)) == 1 for said in load.answers.values())
        answered = {said[0][1]: number for number, said in load.answers.items()}
        assert {said[0][0] for said in load.answers.values()} == {204}
        history = {item["revision"]: item["value"] for item in Reader(party, "clock-1").all()[1:]}
        assert history == answered
        events = [line["event"] for line in service.records()]
        assert events.count("stopped") == 3
        assert not [line for line in service.records() if line["level"] in ("error", "critical")]


@pytest.mark.parametrize("name", ["SIGTERM while the broker is away", "SIGTERM while a client takes nothing"])
def test_sigterm_does_not_wait_for_ever(tmp_path: Path, name: str) -> None:
    with (
        Mosquitto.start() as broker,
        ProxyThread(broker.host, broker.port) as proxy,
        ServiceProcess.start(tmp_path, [connection(proxy, source("stop", OWNER))]) as service,
        client(broker, "stop") as party,
    ):
        make(party, "clock-1")
        if "away" in name:
            proxy.refuse()
            wait_until_sync(lambda: service.status("site")["status"] == "failed")
        else:
            proxy.stall(to_client=False)
            party.send(modify("clock-1", 1))
            wait_until_sync(lambda: service.metric("connectivity_journal_commit_seconds_count") >= 2)
        code, seconds = service.stop()
        assert code == 0
        assert seconds < DRAINED_WITHIN


def test_ctrl_c_stops_as_sigterm_does(tmp_path: Path) -> None:
    with ServiceProcess.start(tmp_path, []) as service:
        assert service.process is not None
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(DRAINED_WITHIN) == 0


def test_case_33_a_subscription_does_not_outlive_the_service(mosquitto: Mosquitto, tmp_path: Path) -> None:
    with (
        ServiceProcess.start(tmp_path, [connection(mosquitto, source("stop", OWNER))]) as service,
        client(mosquitto, "stop") as party,
    ):
        make(party, "clock-1")
        subscription = Reader(party, "clock-1")
        service.stop()
        service.start_again()
        subscription.request(1)
        assert party.next()["value"]["error"]["error"] == "streaming.subscription.not.found"


# --- starting -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"api": {"host": "0.0.0.0"}}, "api.token"),
        ({"journl": {}}, "did you mean journal"),
        ({"spark": {"mode": "sometimes"}}, "spark.mode"),
        ({"data_dir": "/dev/null/data"}, "data_dir"),
        ({"api": {"host": "203.0.113.7", "token": "x"}}, "203.0.113.7"),
    ],
    ids=["outside without token", "unknown setting", "unknown choice", "no folder", "an address of somebody else"],
)
def test_exit_code_2_for_settings_that_cannot_be_used(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    service = ServiceProcess(tmp_path, settings)
    service.start_again(ready=False)
    assert service.process is not None
    assert service.process.wait(20) == 2
    assert words in service.log()
    assert "Traceback" not in service.log()


def test_exit_code_3_for_a_data_folder_that_another_service_owns(tmp_path: Path) -> None:
    with ServiceProcess.start(tmp_path, []) as first:
        second = ServiceProcess(tmp_path / "second", {"data_dir": str(first.data)})
        second.folder.mkdir()
        second.start_again(ready=False)
        assert second.process is not None
        assert second.process.wait(20) == 3
        assert f"process {first.pid}" in second.log()
        assert "Traceback" not in second.log()
        assert first.get("/health/ready")[0] == 200
        first.kill()
        second.start_again()
        assert second.stop()[0] == 0


def test_exit_code_4_for_a_port_in_use(tmp_path: Path) -> None:
    with ServiceProcess.start(tmp_path, []) as first:
        second = ServiceProcess(tmp_path / "second", {})
        second.folder.mkdir()
        second.port = first.port
        second.start_again(ready=False)
        assert second.process is not None
        assert second.process.wait(20) == 4
        assert str(first.port) in second.log()
        assert "Traceback" not in second.log()


def test_port_0_takes_a_free_one_and_logs_it(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path, {})
    service.port = 0
    service.start_again(ready=False)
    try:

        def listening() -> list[int]:
            return [line["port"] for line in service.records() if line["event"] == "api listening"]

        wait_until_sync(listening, 20)
        (service.port,) = listening()
        assert is_listening("127.0.0.1", service.port)
        assert service.get("/health/live") == (200, b'{"status":"live"}')
    finally:
        assert service.stop()[0] == 0


def test_metrics_want_the_token_and_health_does_not(tmp_path: Path) -> None:
    with ServiceProcess.start(tmp_path, [], api={"token": "let-me-in"}) as service:
        assert service.get("/health/live")[0] == 200
        assert service.get("/metrics")[0] == 401
        assert service.get("/metrics", token="let-me-out")[0] == 401
        assert service.get("/metrics", token="let-me-in")[0] == 200


# --- watching -----------------------------------------------------------------------------------------------------------

METRICS = {
    "connectivity_deliveries_total": {"connection", "direction", "outcome"},
    "connectivity_events_sent_total": {"connection"},
    "connectivity_subscriptions": {"connection"},
    "connectivity_demand": {"connection"},
    "connectivity_connection_up": {"connection"},
    "connectivity_journal_commit_seconds_count": set(),
}


def test_metrics_have_the_names_and_labels_that_dashboards_rely_on(mosquitto: Mosquitto, tmp_path: Path) -> None:
    with (
        ServiceProcess.start(tmp_path, [connection(mosquitto, source("count", OWNER))]) as service,
        client(mosquitto, "count") as party,
    ):
        make(party, "clock-1", 4)
        subscription = Reader(party, "clock-1")
        subscription.request(3)
        assert [party.next()["value"]["item"]["revision"] for _ in range(3)] == [1, 2, 3]
        found: dict[str, set[str]] = {}
        for line in service.get("/metrics")[1].decode().splitlines():
            if not line.startswith("#"):
                matched = re.fullmatch(r"(\w+)(?:\{(.*)\})? \S+", line)
                assert matched is not None, line
                name, labels = matched.groups()
                found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels or ""))
        assert {name: found.get(name) for name in METRICS} == METRICS
        assert service.metric("connectivity_events_sent_total", connection="site") == 3
        assert service.metric("connectivity_subscriptions", connection="site") == 1
        assert service.metric("connectivity_demand", connection="site") == 0
        assert service.metric("connectivity_connection_up", connection="site") == 1
        assert service.metric("connectivity_journal_commit_seconds_count") >= 1
        settled = {"connection": "site", "direction": "in", "outcome": "settled"}
        wait_until_sync(lambda: service.metric("connectivity_deliveries_total", **settled) == 7)
        assert "clock-1" not in service.get("/metrics")[1].decode()


SECRETS = ("s3cret-password", "s3cret-token", "s3cret-device")


def test_logs_are_json_lines_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the most talkative level, with logins that work, that do not, and that stand in a broken document."""
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
            with client(broker, "log", username="ada", password="s3cret-password") as party:
                make(party, "clock-1")
                party.send(b"no JSON")
                assert party.next()["status"] == 400
            with client(broker, "log2", username="dev", password="s3cret-device") as party:
                assert party.ask_for(topic("clock-1", "commands/retrieve"))["status"] == 200
            assert service.status("wrong")["details"].startswith("bad credentials")
            broker.restart()
            wait_until_sync(lambda: service.status("site")["details"] == "connected", 20)
            shown = service.get("/health/ready")[1].decode() + service.get("/metrics", "s3cret-token")[1].decode()
            assert service.stop()[0] == 0
        text = service.log_file.read_text(encoding="utf-8")
        assert not [secret for secret in SECRETS if secret in text + shown]
        assert all({"event", "level", "logger", "timestamp"} <= set(line) for line in service.records())
        assert {line.get("connection") for line in service.records()} >= {"site", "by-reference", "wrong"}
        assert [line for line in service.records() if "broken.json" in str(line.get("file"))]


# --- those who take nothing ---------------------------------------------------------------------------------------------


EVENTS = 1500
"""Three pages; times twenty replays far more than what fits into the buffers of a link."""


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[tuple[ServiceProcess, ProxyThread, MqttClient, MqttClient]]:
    """Two connections to one broker, one of them by way of a proxy; a thing with a long history."""
    with (
        Mosquitto.start() as broker,
        ProxyThread(broker.host, broker.port) as proxy,
        ServiceProcess.start(
            tmp_path,
            [
                connection(proxy, source("slow", OWNER), id="slow", specificConfig={"clientId": "slow"}),
                connection(broker, source("quick", OWNER), id="quick", specificConfig={"clientId": "quick"}),
            ],
        ) as service,
        client(broker, "slow") as slow,
        client(broker, "quick") as quick,
    ):
        make(quick, "clock-1", EVENTS - 1)
        yield service, proxy, slow, quick


def test_a_link_that_takes_nothing_delays_no_other_connection(
    stalled: tuple[ServiceProcess, ProxyThread, MqttClient, MqttClient],
) -> None:
    """Many replays wait on the one link, each with a page at most; on the other one everything flows."""
    service, proxy, slow, quick = stalled
    waiting = [Reader(slow, "clock-1") for _ in range(20)]
    proxy.stall(to_client=False)
    for subscription in waiting:
        subscription.request(1_000_000)
    slow.send(modify("clock-1", 7))
    wait_until_sync(lambda: service.metric("connectivity_demand", connection="slow") < 20 * 1_000_000)
    for _ in range(3):
        assert len(Reader(quick, "clock-1").all()) >= EVENTS
        assert quick.ask_for(topic("clock-1", "commands/retrieve"))["status"] == 200
    assert service.metric("connectivity_events_sent_total", connection="slow") <= 20 * 500
    proxy.flow()
    revisions: dict[str, list[int]] = {subscription.id: [] for subscription in waiting}
    ended = 0
    while ended < len(waiting):
        event = slow.next(30)
        if event["topic"].endswith("/complete"):
            ended += 1
        elif "item" in event.get("value", {}):
            revisions[event["value"]["subscriptionId"]].append(event["value"]["item"]["revision"])
    assert all(found == list(range(1, EVENTS + 1)) for found in revisions.values())


def test_a_subscription_without_demand_costs_the_others_nothing(
    stalled: tuple[ServiceProcess, ProxyThread, MqttClient, MqttClient],
) -> None:
    """It was asked for ten events, and ten it has got, whatever happens beside it."""
    _, _, slow, quick = stalled
    subscription = Reader(slow, "clock-1")
    subscription.request(10)
    assert [slow.next()["value"]["item"]["revision"] for _ in range(10)] == list(range(1, 11))
    assert len(Reader(quick, "clock-1").all()) == EVENTS
    assert slow.received.empty()
