"""The demo with real brokers: its output, its end, and its clean-up. Also the output in the README."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from examples import brokers as brokers_module
from examples import demo, terminal
from examples import lake as lake_module
from examples import service as service_module
from examples.broker_client import NoResponse
from examples.brokers import AvailableBrokers, Broker
from examples.mqtt_client import MqttClient
from examples.prepare import write_connections
from examples.programs import KAFKA, MOSQUITTO, PROGRAMS, RABBITMQ, Command, Program
from examples.scenario import UnexpectedResult
from examples.service import ServiceFailed, service
from examples.terminal import REPORTS
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.paths import ROOT
from tests.support.wait import wait_until_sync

WIDE = {"COLUMNS": "160", "PYTHONIOENCODING": "utf-8"}
DEADLINE = 420
"""In seconds: Spark starts beside three brokers on a machine that may be busy."""
IN_SOAK = pytest.mark.soak(shard="demo")


def cells(output: str) -> dict[str, str]:
    """The rows of the summary."""
    return {name.strip(): value.strip() for name, value in re.findall(r"^│ ([^│]+) │ ([^│]+) │$", output, re.MULTILINE)}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the demo in this process."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(demo, "RUN", tmp_path / "run")
    monkeypatch.setattr(terminal.console, "_width", 160)
    return tmp_path / "run"


@IN_SOAK
@pytest.mark.spark
@pytest.mark.broker("mosquitto")
@pytest.mark.broker("rabbitmq")
@pytest.mark.broker("kafka")
def test_the_demo_ends_with_0_and_reports_its_results() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT,
        env={**os.environ, **WIDE},
        capture_output=True,
        encoding="utf-8",
        timeout=DEADLINE,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    report = cells(ended.stdout)
    assert report.pop("duration in seconds").isdigit()
    filtered = int(report.pop("MQTT 5: only above 30 degrees").removesuffix(" events"))
    assert 0 < filtered < demo.ROUNDS
    # The lake has the events of every broker, and the rest of the devices' history.
    replayed = [demo.EVENTS, 40, filtered, demo.EVENTS, 3]
    all_of_it = f"{demo.EVENTS} events, then {demo.EVENTS} numbers"
    assert re.fullmatch(rf"{all_of_it}: \d+ bytes in \d+ messages", report.pop(demo.BINARY_REPLAY))
    assert report.pop("DuckDB: the same events in the lake") == f"{sum(replayed)} events"
    assert report.pop("DuckDB: all events of 10 devices") == f"{demo.DEVICES * demo.EVENTS} events"
    counted = re.findall(r"^ *(\d+) events, with the same revisions as over (.+)$", ended.stdout, re.MULTILINE)
    transports = ("AMQP", "Kafka", "MQTT 5", "MQTT 5", "MQTT")
    assert counted == [(str(count), transport) for count, transport in zip(replayed, transports, strict=True)]
    # The boilers have cooled down, the stove has not.
    assert report.pop("Kafka: the same search, 10 s ago and now") == "7 devices, 1 now"
    delay = re.fullmatch(r"received after (\d+) ms", report.pop("AMQP: the alarm of a device"))
    assert delay is not None
    assert report == {
        "MQTT: a command for the twin of another device": "refused, as expected",
        "MQTT: reports of 10 devices": f"{demo.DEVICES * demo.ROUNDS} reports",
        "AMQP: all events, 5 of them first": f"{demo.EVENTS} events",
        "AMQP: a replay without permission": "404, as expected",
        "Kafka: two pages, then cancel": "40 events",
        "Kafka: a search for devices above 30 degrees": "7 devices",
        "MQTT: the device's last three changes": "3 events",
    }
    looked = re.findall(
        r"^│ (devices|back-end|analytics) +│ open +│ \S+Z +│ +(\d+) │ +(\d+) │ +\d+ │$", ended.stdout, re.MULTILINE
    )
    assert [name for name, *_ in looked] == ["devices", "back-end", "analytics"]
    assert all(int(count) > 0 for _, *counts in looked for count in counts)
    messages = re.findall(r"^ *(\S.*?) +(MQTT 5|MQTT|AMQP|Kafka) (->|<-) (\w+)", ended.stdout, re.MULTILINE)
    # Of ten devices one is shown, and of its reports the first.
    assert {name.rpartition("-")[2] for name, *_ in messages if name.startswith("boiler")} == {"00"}
    # Reports do not wait for each other's answers, so only the words have an order.
    reporting = [word for name, *_, word in messages if name.startswith("boiler")]
    assert reporting[: 2 + 2 * REPORTS] == ["create"] * 2 + ["modify"] * 2 * REPORTS
    # All clients send the same requests, and each stops in its own way.
    for transport, ends in (("AMQP", ["complete", "failed"]), ("Kafka", ["cancel"]), ("MQTT 5", ["complete"])):
        words = [word for name, over, _, word in messages if over == transport and name != "planner"]
        assert words[:3] == ["subscribeForPersistedEvents", "created", "request"]
        assert [word for word in words if word in ("complete", "failed", "cancel")] == ends
    three_pages, one_page = (["subscribe", "created", "request", *["next"] * pages, "complete"] for pages in (3, 1))
    searched = [word for name, _, _, word in messages if name == "planner"]
    assert searched == three_pages + one_page + three_pages
    assert all(len(line) <= 130 for line in ended.stdout.splitlines() if " -> " in line or " <- " in line)


@pytest.mark.slow(reason="the demo runs for as long as its devices report")
@pytest.mark.broker("kafka")
@pytest.mark.broker("embedded")
@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param({RABBITMQ}, id="RabbitMQ", marks=IN_SOAK),
        pytest.param({RABBITMQ, KAFKA, MOSQUITTO}, id="all of them"),
    ],
)
def test_the_demo_continues_without_brokers_or_lake_and_names_the_install_commands(
    wanted: set[Program], run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # If brokers run in Docker, a machine may have none of the programs.
    missing = wanted | {each for each in PROGRAMS if each.find() is None}
    there = tuple(replace(each, find=lambda: None) if each in missing else each for each in PROGRAMS)
    monkeypatch.setattr(brokers_module, "has_compose", lambda: False)
    monkeypatch.setattr(brokers_module, "PROGRAMS", there)
    monkeypatch.setattr(brokers_module, "MOSQUITTO", there[-1])
    monkeypatch.setattr(lake_module, "JARS", run)
    code = demo.main()
    shown, _ = capsys.readouterr()
    assert code == 0, shown
    for each in missing:
        assert f"{each.name} is missing; the demo continues without it. To install it: {each.install_command}" in shown
    assert (
        "the lake was missing, so the demo was shorter. To install it: sudo apt-get install default-jre-headless"
        in shown
    )
    left_out = {{RABBITMQ: "AMQP", KAFKA: "Kafka", MOSQUITTO: "MQTT 5"}[each] for each in missing}
    transports = {name.partition(":")[0] for name in cells(shown)} - {"duration in seconds"}
    assert transports == {"MQTT", "MQTT 5", "AMQP", "Kafka"} - left_out
    looked = re.findall(r"^│ (devices|back-end|analytics) +│ open", shown, re.MULTILINE)
    of_missing = {{RABBITMQ: "back-end", KAFKA: "analytics"}.get(each) for each in missing}
    assert looked == [name for name in ("devices", "back-end", "analytics") if name not in of_missing]


def test_a_broker_that_does_not_start_ends_the_demo_with_1_and_its_last_output(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = replace(
        RABBITMQ,
        find=lambda: "sh",
        command=lambda place, _folder, _port: Command([place, "-c", "echo [/] address in use; exit 3"]),
    )
    monkeypatch.setattr(brokers_module, "has_compose", lambda: False)
    monkeypatch.setattr(brokers_module, "PROGRAMS", (failing, MOSQUITTO))
    assert demo.main() == 1
    shown, _ = capsys.readouterr()
    assert "The demo needs its brokers: RabbitMQ ended with exit code 3." in shown
    assert "[/] address in use" in shown
    assert "make clean" in shown


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


WHOLE = ("-m", "examples.demo")
WITH_MOSQUITTO_ALONE = (
    "-c",
    """
import sys
from pathlib import Path
from examples import brokers, demo, lake

brokers.has_compose = lambda: False
brokers.PROGRAMS = (brokers.MOSQUITTO,)
lake.JARS = Path("nowhere")
sys.exit(demo.main())
""",
)


@contextmanager
def started(*program: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, *program],
        cwd=ROOT,
        env={**os.environ, **WIDE},
        stdout=subprocess.PIPE,
        encoding="utf-8",
    ) as running:
        yield running
        running.kill()


@pytest.mark.slow(reason="the demo begins, and ends what it has started")
@pytest.mark.broker("mosquitto")
@pytest.mark.parametrize(
    ("program", "when", "number", "code"),
    [
        pytest.param(WHOLE, "the brokers start", signal.SIGTERM, 143, id="while brokers start", marks=IN_SOAK),
        pytest.param(WHOLE, "create 201", signal.SIGINT, 130, id="in the conversation", marks=IN_SOAK),
        pytest.param(WITH_MOSQUITTO_ALONE, "create 201", signal.SIGINT, 130, id="with Mosquitto alone"),
    ],
)
def test_an_interrupted_demo_leaves_nothing_running(
    program: tuple[str, ...], when: str, number: signal.Signals, code: int
) -> None:
    with started(*program) as running:
        assert running.stdout is not None
        shown = []
        for line in running.stdout:
            shown.append(line)
            if when in line:
                break
        assert when in shown[-1], "".join(shown)
        wait_until_sync(lambda: psutil.Process(running.pid).children(), 60)
        children = psutil.Process(running.pid).children(recursive=True)
        running.send_signal(number)
        rest = running.stdout.read()
        assert running.wait(DEADLINE) == code, rest
        assert "All started programs have ended." in rest
        wait_until_sync(lambda: all(is_gone(child) for child in children), 60)


BURNER = "/features/burner/properties/celsius"
CHANGING = {"subscriptionId": "an id", "revision": 0, "entity-revision": 0, "timestamp": "a time"}


def comparable(message: Any) -> Any:
    """A message without what differs from one run to the next."""
    if not isinstance(message, dict):
        return message
    return {name: CHANGING.get(name, comparable(value)) for name, value in message.items()}


@pytest.mark.broker("mosquitto")
def test_the_readme_shows_the_actual_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mosquitto: Mosquitto
) -> None:
    """Each message, with its fields in their order."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = [json.loads(text) for text in re.findall(r"^```json\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)]
    messages: list[dict[str, Any]] = []
    monkeypatch.chdir(ROOT)
    broker = Broker("a test", mosquitto.port, MOSQUITTO.connection_types, MOSQUITTO.usual_port, mosquitto.host)
    connections = write_connections(AvailableBrokers({"mosquitto": broker}, {}), tmp_path / "connections")
    name = "boiler-07"
    with (
        service(tmp_path, connections),
        MqttClient(name, broker, publish_to=f"devices/{name}/up", receive_from=f"devices/{name}/down") as boiler,
    ):
        topic = f"acme.plant/{name}/things/twin/commands"
        boiler.send(f"{topic}/create", value={"features": {"burner": {"properties": {"celsius": 70}}}})
        assert boiler.receive()["status"] == 201
        for _ in range(3):
            boiler.send(f"{topic}/modify", BURNER, 71.5)
            assert boiler.receive()["status"] == 204
        boiler.publish(shown[0])
        messages += [shown[0], boiler.receive()]
        shown[2]["value"]["subscriptionId"] = messages[1]["value"]["subscriptionId"]
        boiler.publish(shown[2])
        messages += [shown[2], boiler.receive()]
        assert boiler.receive()["topic"].endswith("/next")
        assert boiler.receives_nothing(0.2)
    assert [json.dumps(comparable(message)) for message in messages] == [json.dumps(comparable(it)) for it in shown]


@pytest.fixture
def ending_badly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A service that is ready at once and does not drain when it is asked to end."""
    monkeypatch.setattr(service_module, "COMMAND", (sys.executable, "-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(service_module, "wait_ready", lambda *_: None)
    return tmp_path


def test_a_service_that_ends_badly_is_a_failure(ending_badly: Path) -> None:
    with pytest.raises(ServiceFailed, match="exit code -15, expected 0"), service(ending_badly, ending_badly):
        pass


def test_an_error_in_the_run_has_priority_over_an_error_at_the_stop(ending_badly: Path) -> None:
    with pytest.raises(NoResponse, match="silence"), service(ending_badly, ending_badly):
        raise NoResponse("silence")


def test_a_service_that_does_not_get_ready_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "COMMAND", (sys.executable, "-c", "raise SystemExit('no journal')"))
    with pytest.raises(NoResponse, match=r"ended with exit code 1: [\s\S]*no journal"), service(tmp_path, tmp_path):
        pass


def test_a_failed_conversation_ends_the_demo_with_1_and_a_hint(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_demo() -> None:
        raise UnexpectedResult("found revisions [2], expected [1]")

    monkeypatch.setattr(demo, "run_demo", run_demo)
    assert demo.main() == 1
    shown, _ = capsys.readouterr()
    assert "The demo failed: found revisions [2], expected [1]" in shown
    assert f"The logs are in {run}" in shown
