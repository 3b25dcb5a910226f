"""The examples find brokers on any machine, their connections open, and their processes end with them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import psutil
import pyarrow
import pytest
import yaml
from deltalake import write_deltalake
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from connectivity.management.files import load
from examples import brokers as module
from examples import kafka_client, lake, replay
from examples import prepare as preparing
from examples.broker_client import NoResponse
from examples.brokers import AvailableBrokers, Broker, BrokerFailed, brokers
from examples.lake import ReplayResult
from examples.monitoring import ConnectionReport, connection_report
from examples.prepare import PreparationFailed, prepare, write_connections
from examples.processes import Interrupted, interruptible, start, stop
from examples.programs import KAFKA, MOSQUITTO, PROGRAMS, RABBITMQ, Command
from examples.rsio_reader import descriptions
from examples.scenario import UnexpectedResult
from examples.service import RunningService
from mappings.reactive_streams_io.frames import (
    CancelFrame,
    ClientHello,
    Goodbye,
    OnComplete,
    OnNext,
    OnNextPacked,
    OnSubscribe,
    RequestFrame,
    Seq,
    ServerHello,
    SubscribeFrame,
)
from tests.support.brokers import free_port
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.paho_end import end_client
from tests.support.wait import wait_until_sync

ALL = {
    "alarms.yaml",
    "analytics.json",
    "back-end.yaml",
    "application.yaml",
    "devices.yaml",
    "doorbells.yaml",
    "gateways.json",
    "onboarding.yaml",
    "readers.yaml",
    "sensors.yaml",
    "streams.yaml",
}
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"

# Logs its arguments and the ports; fails if the arguments contain FAILING.
FAKE_DOCKER = """\
#!/bin/sh
echo "$* $MQTT_PORT $AMQP_PORT $KAFKA_PORT" >>"$CALLS"
case "$*" in *"$FAILING"*) echo "no space left" >&2; exit 1;; esac
"""


def answer_of(port: int, version: MQTTProtocolVersion) -> str:
    """Return the broker's connect reason for a client."""
    answers: list[str] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=version, reconnect_on_failure=False)
    client.on_connect = lambda _client, _data, _flags, reason, _properties: answers.append(str(reason))
    client.connect("127.0.0.1", port)
    client.loop_start()
    wait_until_sync(lambda: answers)
    end_client(client)
    return answers[0]


def found_at(port: int, *names: str) -> AvailableBrokers:
    """Return the brokers of these compose services as if found at a port."""
    running = {each.service: Broker("a test", port, each.connection_types, each.usual_port) for each in PROGRAMS}
    return AvailableBrokers({name: running[name] for name in names}, {})


@pytest.fixture
def mosquitto_alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(module, "PROGRAMS", (MOSQUITTO,))
    return monkeypatch


@pytest.mark.broker("mosquitto")
def test_mosquitto_supports_both_versions(tmp_path: Path, mosquitto_alone: pytest.MonkeyPatch) -> None:
    with brokers(tmp_path) as found:
        broker = found.running["mosquitto"]
        assert answer_of(broker.port, MQTTProtocolVersion.MQTTv311) == "Success"
        assert answer_of(broker.port, MQTTProtocolVersion.MQTTv5) == "Success"
        assert broker.connection_types == {"mqtt", "mqtt-5"}
    assert not module.is_listening(broker.port)


@pytest.mark.broker("embedded")
def test_without_a_program_the_embedded_broker_serves_mqtt_3_1_1(
    tmp_path: Path, mosquitto_alone: pytest.MonkeyPatch
) -> None:
    missing = replace(MOSQUITTO, find=lambda: None)
    mosquitto_alone.setattr(module, "has_compose", lambda: False)
    mosquitto_alone.setattr(module, "PROGRAMS", (missing,))
    mosquitto_alone.setattr(module, "MOSQUITTO", missing)
    with brokers(tmp_path) as found:
        broker = found.running["mosquitto"]
        assert answer_of(broker.port, MQTTProtocolVersion.MQTTv311) == "Success"
        assert broker.connection_types == {"mqtt"}
        assert found.missing == {"Mosquitto": "sudo apt-get install mosquitto"}
    assert not module.is_listening(broker.port)


@pytest.mark.broker("mosquitto")
def test_a_port_that_is_taken_is_left_to_its_owner(tmp_path: Path, mosquitto_alone: pytest.MonkeyPatch) -> None:
    with brokers(tmp_path / "one") as one:
        port = one.running["mosquitto"].port
        taken = replace(MOSQUITTO, usual_port=port)
        mosquitto_alone.setattr(module, "PROGRAMS", (taken,))
        mosquitto_alone.setattr(module, "MOSQUITTO", taken)
        with brokers(tmp_path / "two", at_usual_ports=True) as two:
            assert two.running["mosquitto"].port != port


@pytest.mark.parametrize("missing", [{RABBITMQ}, {KAFKA}, {RABBITMQ, KAFKA}], ids=["RabbitMQ", "Kafka", "both"])
def test_a_missing_broker_is_named_with_its_install_command(
    missing: set[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are started; here each is a program that listens and nothing more."""
    listens = "import socket, sys, time; at = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(60)"
    programs = tuple(
        replace(
            each,
            find=(lambda: None) if each in missing else (lambda: sys.executable),
            command=lambda place, _folder, port: Command([place, "-c", listens, str(port)]),
        )
        for each in PROGRAMS
    )
    monkeypatch.setattr(module, "has_compose", lambda: False)
    monkeypatch.setattr(module, "PROGRAMS", programs)
    monkeypatch.setattr(module, "MOSQUITTO", programs[-1])
    progress: list[str] = []
    with brokers(tmp_path, progress=progress.append) as found:
        assert set(found.running) == {each.service for each in PROGRAMS if each not in missing}
        assert found.missing == {each.name: each.install_command for each in PROGRAMS if each in missing}
    assert len(progress) == len(found.running)


def test_a_broker_that_does_not_start_is_named_with_its_last_output_and_the_others_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = replace(
        RABBITMQ,
        find=lambda: "sh",
        command=lambda place, _folder, _port: Command([place, "-c", "echo no room for me; exit 3"]),
    )
    waiting = replace(KAFKA, find=lambda: "sleep", command=lambda place, _folder, _port: Command([place, "60"]))
    monkeypatch.setattr(module, "has_compose", lambda: False)
    monkeypatch.setattr(module, "PROGRAMS", (failing, waiting, MOSQUITTO))
    before = psutil.Process().children()
    with (
        pytest.raises(BrokerFailed, match=r"RabbitMQ ended with exit code 3\. [\s\S]*no room for me"),
        brokers(tmp_path),
    ):
        pass
    assert psutil.Process().children() == before


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake engine that records its calls in a file. Returns the file."""
    program, calls = tmp_path / "bin" / "docker", tmp_path / "calls"
    program.parent.mkdir()
    program.write_text(FAKE_DOCKER, encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(calls))
    monkeypatch.setenv("FAILING", "nothing at all")
    return calls


def test_where_an_engine_answers_the_brokers_are_those_of_compose(tmp_path: Path, docker: Path) -> None:
    with brokers(tmp_path) as found:
        assert set(found.running) == {"mosquitto", "rabbitmq", "kafka"}
        assert found.missing == {}
        ports = [str(found.running[name].port) for name in ("mosquitto", "rabbitmq", "kafka")]
    *_, up, down = docker.read_text(encoding="utf-8").splitlines()
    assert up.endswith(f"up --detach --wait rabbitmq kafka mosquitto {' '.join(ports)}")
    assert down.endswith(f"down --volumes {' '.join(ports)}")


def test_an_engine_failure_is_quoted_and_its_containers_are_stopped(
    tmp_path: Path, docker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILING", " up ")
    with pytest.raises(BrokerFailed, match="no space left"), brokers(tmp_path):
        pass
    assert " down " in docker.read_text(encoding="utf-8").splitlines()[-1]


def test_without_an_engine_the_command_alone_is_not_enough(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.has_compose()
    monkeypatch.setenv("FAILING", "version")
    assert not module.has_compose()


def test_the_example_connections_lead_to_the_brokers_that_were_found(tmp_path: Path) -> None:
    folder = write_connections(found_at(4711, "mosquitto", "rabbitmq", "kafka"), tmp_path / "all")
    assert {file.name for file in folder.iterdir()} == ALL
    loaded = load([folder])
    assert loaded.problems == []
    assert {connection.broker_uri.port for connection in loaded.connections.values()} == {4711}
    assert loaded.connections["analytics"].own_options["bootstrapServers"] == "127.0.0.1:4711"


def test_listeners_need_no_broker_and_are_rendered_if_configured(tmp_path: Path) -> None:
    folder = write_connections(found_at(4711, "rabbitmq"), tmp_path / "listeners", with_listeners=True)
    assert {file.name for file in folder.iterdir()} == {"back-end.yaml", "tcp-listener.yaml", "websocket-listener.yaml"}


@pytest.mark.parametrize(
    ("service", "files"),
    [
        ("mosquitto", ALL - {"analytics.json", "back-end.yaml"}),
        ("rabbitmq", {"back-end.yaml"}),
        ("kafka", {"analytics.json"}),
    ],
)
def test_connections_without_a_running_broker_are_left_out(service: str, files: set[str], tmp_path: Path) -> None:
    folder = write_connections(found_at(4711, service), tmp_path / "some")
    assert {file.name for file in folder.iterdir()} == files


@pytest.mark.broker("rabbitmq")
@pytest.mark.broker("kafka")
def test_queues_and_topics_are_made_once_and_stay(tmp_path: Path, rabbitmq: RabbitMQ, kafka: Kafka) -> None:
    folder = write_connections(found_at(kafka.port, "rabbitmq", "kafka"), tmp_path)
    file = folder / "back-end.yaml"
    document = yaml.safe_load(file.read_text(encoding="utf-8")) | {"uri": rabbitmq.uri()}
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    made = prepare(folder)
    assert sorted(made) == [
        "queue back-end.alarms",
        "queue back-end.ask",
        "topic analytics.answers",
        "topic analytics.ask",
    ]
    assert prepare(folder) == made
    assert {"analytics.ask", "analytics.answers"} <= set(kafka.admin.list_topics(timeout=30).topics)


def test_a_queue_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    folder = write_connections(found_at(1, "rabbitmq"), tmp_path)
    with pytest.raises(PreparationFailed, match="the queues of back-end could not be created"):
        prepare(folder)


def test_a_connection_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("connectionType: kafak\n", encoding="utf-8")
    with pytest.raises(PreparationFailed, match=r"bad\.yaml: .*connectionType.*kafka"):
        prepare(tmp_path)


def test_a_program_that_does_not_end_is_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    stubborn = start([sys.executable, "-c", STUBBORN], log)
    wait_until_sync(lambda: log.read_bytes())
    assert stop([stubborn], timeout=0.2) == [-signal.SIGKILL]


def test_the_first_signal_ends_and_the_next_ones_leave_the_tidying_up_alone() -> None:
    tidied = []
    before = signal.getsignal(signal.SIGINT)

    def interrupted_twice() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            tidied.append(True)

    with pytest.raises(Interrupted) as interrupted, interruptible():
        interrupted_twice()
    assert (interrupted.value.code, tidied) == (143, [True])
    assert signal.getsignal(signal.SIGINT) is before


def test_make_knows_the_programs_by_their_module() -> None:
    """The modules in the Makefile can be imported; otherwise users would find a typing error first."""
    made = subprocess.run(
        [sys.executable, "-c", "import examples.demo, examples.serve"], capture_output=True, text=True, check=False
    )
    assert (made.returncode, made.stderr) == (0, "")


def replayed(revisions: range) -> ReplayResult:
    return ReplayResult("AMQP: all", "acme.plant:boiler", "revision >= 1", tuple(revisions))


def test_the_lake_must_contain_each_replayed_event_exactly_once(tmp_path: Path) -> None:
    # The policy of the same ID does not count.
    rows = [("thing", 1), ("policy", 1), ("thing", 3), ("thing", 2)]
    types, revisions = zip(*rows, strict=True)
    columns = {"entity_type": types, "entity": ["acme.plant:boiler"] * 4, "revision": revisions}
    write_deltalake(str(tmp_path / "lake" / "events"), pyarrow.table(columns))
    events = lake.open_events(tmp_path)
    assert lake.find_revisions(events, replayed(range(1, 4))) == [1, 2, 3]
    assert lake.count_events(events, ["acme.plant:boiler", "acme.plant:other"]) == 3
    with pytest.raises(UnexpectedResult, match=r"found revisions \[1, 2, 3\] in the lake, expected \[1, 2\]"):
        lake.find_revisions(events, replayed(range(1, 3)))


def test_frames_are_reported_descriptions() -> None:
    frames = [
        *(
            ClientHello(0, (1,)),
            Seq(1),
            SubscribeFrame("tck/range?n=3", 1, 2),
            RequestFrame(1, 4),
            RequestFrame(2, 5),
            ServerHello(0),
        ),
        *(OnSubscribe(1, 0), OnNext(1, b"1"), OnNext(1, b"2"), OnNextPacked(2, [b"1", b"2", b"3"]), OnComplete(1)),
        *(CancelFrame(1), Goodbye("ok")),
    ]
    described = [
        "hello",
        "subscribe 2 of tck/range?n=3",
        "request 9",
        "hello",
        "subscribed",
        "2 events",
        "3 packed numbers",
        "complete",
    ]
    assert list(descriptions(frames)) == [*described, "cancel", "goodbye ok"]


class StubService(RunningService):
    """A service with constant responses."""

    def get(self, path: str) -> str:
        return "connectivity_lake_lag_events 7.0\n" if path == "/metrics" else '{"lake": "stopped: found no Java"}'


def test_a_lake_whose_pipeline_has_stopped_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(NoResponse, match=r"lacks 7 events .* is stopped: found no Java"):
        lake.wait_until_filled(StubService(tmp_path, tmp_path), print)


class RecordingService:
    """A service that returns the given status and metrics of a connection."""

    def __init__(self, live_status: str, inbound: dict[str, Any], outbound: dict[str, Any]) -> None:
        self._responses = {
            "/api/2/connections/back-end/status": {"liveStatus": live_status, "connectedSince": "2030-01-15T07:30:00Z"},
            "/api/2/connections/back-end/metrics": {"connectionMetrics": {"inbound": inbound, "outbound": outbound}},
        }

    def get(self, path: str) -> str:
        return json.dumps(self._responses[path])


def counted(**levels: int) -> dict[str, Any]:
    return {level: {"PT1M": 0, "PT1H": count, "PT24H": 99} for level, count in levels.items()}


def test_a_connection_report_contains_its_message_totals() -> None:
    inbound = {"consumed": counted(success=7, failure=0), "mapped": counted(success=6, failure=1)}
    outbound = {"published": counted(success=5), "dispatched": counted(failure=2)}
    looked = connection_report(RecordingService("open", inbound, outbound), "back-end")
    assert looked == ConnectionReport("back-end", "open", "2030-01-15T07:30:00Z", consumed=7, published=5, failures=3)


@pytest.mark.parametrize(
    ("live_status", "taken", "sent"), [("failed", 1, 1), ("open", 0, 1), ("open", 1, 0)], ids=["failed", "deaf", "mute"]
)
def test_a_connection_that_is_not_open_and_in_use_is_not_as_guaranteed(live_status: str, taken: int, sent: int) -> None:
    recording = RecordingService(
        live_status, {"consumed": counted(success=taken)}, {"published": counted(success=sent)} if sent else {}
    )
    with pytest.raises(UnexpectedResult, match="expected a connection that is open and in use"):
        connection_report(recording, "back-end")


def test_preparing_names_a_folder_that_is_missing_and_one_with_nothing_to_create(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert preparing.main([str(tmp_path / "nowhere")]) == 1
    assert "nowhere: expected a folder with connection files" in capsys.readouterr().err
    write_connections(found_at(4711, "mosquitto"), tmp_path / "mqtt")
    assert preparing.main([str(tmp_path / "mqtt")]) == 0
    assert capsys.readouterr().out == "nothing to create: no connection to AMQP or Kafka\n"


@pytest.mark.parametrize("broker", list(replay.CLIENTS))
def test_a_replay_from_an_unreachable_broker_names_broker_and_port(
    broker: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_client, "TIMEOUT", 0.5)
    port = free_port()
    assert replay.main([broker, "boiler-07", "--port", str(port)]) == 1
    assert f"{broker} at port {port}: " in capsys.readouterr().err
