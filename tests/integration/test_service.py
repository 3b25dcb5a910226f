"""The service as a process: how it starts, what it says of itself, how it stops."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.brokers.mosquitto import Mosquitto
from tests.brokers.proxy import ProxyThread
from tests.client import MqttClient
from tests.helpers import wait_until_sync
from tests.integration.documents import Reader, client, connection, policy_for, source, topic
from tests.kill.checker import Entry
from tests.service import ServiceProcess

pytestmark = pytest.mark.broker("mosquitto")

WRITER = "acme:writer"


@pytest.fixture
def name() -> str:
    """A prefix for topics, so that tests on one broker do not hear each other."""
    return f"svc-{secrets.token_hex(3)}"


@pytest.fixture
def service(mosquitto: Mosquitto, tmp_path: Path, name: str) -> Iterator[ServiceProcess]:
    with ServiceProcess.start(tmp_path, [connection(mosquitto, source(name, WRITER))]) as running:
        yield running


def create(writer: MqttClient, thing: str) -> None:
    answer = writer.ask_for(topic(thing, "commands/create"), value={"_policy": policy_for(WRITER)})
    assert answer["status"] == 201, answer


def logged(service: ServiceProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in service.log_file.read_text("utf-8").splitlines() if line.startswith("{")]


def test_sigterm_under_load_drains_and_ends_with_0(service: ServiceProcess, mosquitto: Mosquitto, name: str) -> None:
    """Within ten seconds; what was answered before and while it stopped is in the history, once."""
    with client(mosquitto, name) as writer:
        create(writer, "lamp-1")
        sent = threading.Event()

        def send_many() -> None:
            for number in range(3_000):
                writer.command(topic("lamp-1", "commands/modify"), "/attributes/n", number, wait=False)
                if number == 500:
                    sent.set()

        sender = threading.Thread(target=send_many)
        sender.start()
        assert sent.wait(10)
        code, seconds = service.stop()
        sender.join()
        assert code == 0, service.log()
        assert seconds < 10
        service.start_again()
        answered = [writer.next()["headers"]["correlation-id"] for _ in range(3_000)]
        items = Reader(writer, "lamp-1").all()
    assert len(set(answered)) == 3_000
    history = [Entry(item["revision"], item["path"], item.get("value")) for item in items]
    assert [entry.revision for entry in history] == list(range(1, 3_002))
    assert [entry.value for entry in history[1:]] == list(range(3_000))


def run_once(folder: Path, settings: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    file = folder / "once.json"
    file.write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "connectivity", "serve", "--settings", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_settings_that_cannot_be_used_end_with_2_and_name_each_problem(tmp_path: Path) -> None:
    ended = run_once(tmp_path, {"api": {"port": "many"}, "jornal": {}})
    assert ended.returncode == 2
    assert "api.port" in ended.stderr
    assert "did you mean journal" in ended.stderr


def test_design_8_19_a_second_service_on_the_same_folder_ends_with_3(service: ServiceProcess, tmp_path: Path) -> None:
    ended = run_once(tmp_path, {"data_dir": str(service.data), "api": {"port": 0}, "spark": {"mode": "off"}})
    assert ended.returncode == 3, ended.stderr


def test_design_8_19_a_port_in_use_ends_with_4(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = run_once(
            tmp_path, {"data_dir": str(tmp_path / "data"), "api": {"port": port}, "spark": {"mode": "off"}}
        )
    assert ended.returncode == 4, ended.stderr


def test_design_8_19_port_0_takes_a_free_one_and_logs_it(mosquitto: Mosquitto, tmp_path: Path, name: str) -> None:
    service = ServiceProcess(tmp_path, {"api": {"port": 0}})
    (tmp_path / "connections").mkdir()
    with service:
        service.start_again(ready=False)
        wait_until_sync(lambda: any(line["event"] == "api listening" for line in logged(service)), 20)
        service.port = next(line["port"] for line in logged(service) if line["event"] == "api listening")
        assert service.get("/health/live")[0] == 200


def test_design_8_21_the_metrics_have_their_names(service: ServiceProcess, mosquitto: Mosquitto, name: str) -> None:
    with client(mosquitto, name) as writer:
        create(writer, "lamp-1")
        Reader(writer, "lamp-1").all()
        waiting = Reader(writer, "lamp-1", {"filter": "eq(attributes/none,1)"})
        shown = service.get("/metrics")[1].decode()
        waiting.cancel()
    for metric in (
        'connectivity_deliveries_total{connection="site",direction="in",outcome="settled"}',
        'connectivity_deliveries_total{connection="site",direction="out",outcome="published"}',
        'connectivity_events_sent_total{connection="site"} 1.0',
        'connectivity_subscriptions{connection="site"} 1.0',
        'connectivity_demand{connection="site"} 0.0',
        'connectivity_connection_up{connection="site"} 1.0',
        "connectivity_journal_commit_seconds_count",
    ):
        assert metric in shown, shown


def test_the_log_is_json_with_the_connection_and_never_a_secret(tmp_path: Path, name: str) -> None:
    with Mosquitto.start(users={"fleet": "right-Password-1"}) as broker:
        document = connection(broker, source(name, WRITER))
        document["uri"] = f"tcp://fleet:wrong-Password-2@{broker.host}:{broker.port}"
        with ServiceProcess.start(tmp_path, [document], log={"format": "json", "level": "debug"}) as service:
            assert service.status("site")["details"].startswith("bad credentials")
            service.stop()
            lines = logged(service)
            assert "wrong-Password-2" not in service.log_file.read_text("utf-8")
    assert any(line.get("connection") == "site" and line["level"] == "warning" for line in lines)
    assert all({"event", "level", "timestamp"} <= line.keys() for line in lines)


def test_a_changed_connection_file_is_picked_up_while_running(
    service: ServiceProcess, mosquitto: Mosquitto, name: str
) -> None:
    """A new connection answers without a restart, and the one that was there goes on."""
    other = f"{name}-other"
    document = connection(mosquitto, source(other, WRITER), id="other")
    (service.folder / "connections" / "other.json").write_text(json.dumps(document), encoding="utf-8")
    wait_until_sync(lambda: service.status("other").get("status") == "open", 10)
    with client(mosquitto, other) as late, client(mosquitto, name) as early:
        create(late, "lamp-2")
        assert early.ask_for(topic("lamp-2", "commands/retrieve"), "/policyId")["status"] == 200


def test_a_client_that_takes_nothing_never_delays_another_connection(
    mosquitto: Mosquitto, tmp_path: Path, name: str
) -> None:
    """One connection's broker stops reading in the middle of a replay; the other connection replays at full speed."""
    slow, fast = f"{name}-slow", f"{name}-fast"
    with ProxyThread(mosquitto.host, mosquitto.port) as proxy:
        stalled = connection(mosquitto, source(slow, WRITER), id="slow", uri=f"tcp://{proxy.host}:{proxy.port}")
        lively = connection(mosquitto, source(fast, WRITER), id="fast")
        with (
            ServiceProcess.start(tmp_path, [stalled, lively]),
            client(mosquitto, slow) as slow_client,
            client(mosquitto, fast) as fast_client,
        ):
            create(fast_client, "lamp-1")
            for number in range(2_000):
                fast_client.command(topic("lamp-1", "commands/modify"), "/attributes/n", number, wait=False)
            for _ in range(2_000):
                fast_client.next()
            waiting = Reader(slow_client, "lamp-1")
            waiting.request(1)
            assert slow_client.next()["topic"].endswith("/next")
            proxy.stall(to_broker=True)
            slow_client.command(
                topic("lamp-1", "streaming/request"), value={"subscriptionId": waiting.id, "demand": 10**6}
            )
            assert len(Reader(fast_client, "lamp-1").all()) == 2_001


def test_the_service_ends_on_ctrl_c_as_on_sigterm(service: ServiceProcess) -> None:
    assert service.process is not None
    os.kill(service.process.pid, signal.SIGINT)
    assert service.process.wait(10) == 0
