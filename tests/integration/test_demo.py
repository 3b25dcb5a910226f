"""The demo as a user runs it, how it ends when something is wrong, and the conversation that the README shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples import demo
from examples.brokers import Broker, NoBroker, mqtt_broker
from examples.party import Party

ROOT = Path(__file__).parent.parent.parent
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"


@pytest.mark.broker("mosquitto")
def test_the_demo_ends_with_0_and_tells_what_happened() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "160", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    reports = demo.DEVICES * demo.ROUNDS
    assert re.search(rf"reports stored, each answered when it was on disk +│ {reports} ", ended.stdout)
    assert re.search(rf"events replayed, three first and the rest on request +│ {demo.ROUNDS + 1} ", ended.stdout)
    filtered = re.search(r"of them above 30 degrees, by a filter +│ (\d+) ", ended.stdout)
    assert filtered is not None
    assert 0 < int(filtered[1]) < demo.ROUNDS
    assert re.search(r"a replay without permission +│ failed with 404, as it should", ended.stdout)
    # The create and the reports of the first device, and an answer to each; nothing of the others.
    speakers = re.findall(r"^ *(boiler-\w+-\d+) (->|<-)", ended.stdout, re.MULTILINE)
    assert {name.rpartition("-")[2] for name, _ in speakers} == {"00"}
    assert [arrow for _, arrow in speakers].count("<-") == demo.ROUNDS + 1
    assert [arrow for _, arrow in speakers].count("->") == demo.ROUNDS + 1


BURNER = "/features/burner/properties/celsius"
CHANGING = {"subscriptionId": "an id", "revision": 0, "entity-revision": 0, "timestamp": "a time"}


def comparable(message: Any) -> Any:
    """A message without what differs from one run to the next."""
    if not isinstance(message, dict):
        return message
    return {name: CHANGING.get(name, comparable(value)) for name, value in message.items()}


@pytest.mark.broker("mosquitto")
def test_the_readme_shows_what_is_said_on_the_wire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message, with its fields in their order."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = [json.loads(text) for text in re.findall(r"^```json\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)]
    said: list[dict[str, Any]] = []
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(demo, "RUN", tmp_path)
    name = "boiler-07"
    with mqtt_broker(tmp_path) as broker, demo.service(broker):
        speaks, listens = f"devices/{name}/up", f"devices/{name}/down"
        place = {"speaks": speaks, "listens": listens}
        with Party(name, broker.host, broker.port, **place, show=lambda *_: None) as boiler:
            topic = f"acme.plant/{name}/things/twin/commands"
            boiler.say(f"{topic}/create", value={"features": {"burner": {"properties": {"celsius": 70}}}})
            assert boiler.hear()["status"] == 201
            for _ in range(3):
                boiler.say(f"{topic}/modify", BURNER, 71.5)
                assert boiler.hear()["status"] == 204
            boiler.publish(shown[0])
            said += [shown[0], boiler.hear()]
            shown[2]["value"]["subscriptionId"] = said[1]["value"]["subscriptionId"]
            boiler.publish(shown[2])
            said += [shown[2], boiler.hear()]
            assert boiler.hear()["topic"].endswith("/next")
            assert boiler.hears_nothing(0.2)
    assert [json.dumps(comparable(message)) for message in said] == [json.dumps(comparable(it)) for it in shown]


def test_without_a_broker_the_demo_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_folder: Path) -> None:
        raise NoBroker("mosquitto.log: [/] address in use")

    monkeypatch.setattr(demo, "RUN", tmp_path / "run")
    monkeypatch.setattr(demo, "mqtt_broker", refuse)
    assert demo.main() == 1
    assert capsys.readouterr().out == "No broker could be started. mosquitto.log: [/] address in use\n"


def test_a_service_that_does_not_end_is_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()
        assert demo.end(running, within=0.2) == -9


@pytest.fixture
def ending_badly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """A service that is ready at once and does not drain when it is asked to end."""
    monkeypatch.setattr(demo, "RUN", tmp_path)
    monkeypatch.setattr(demo, "SERVE", (sys.executable, "-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(demo, "wait_ready", lambda *_: None)
    return Broker("127.0.0.1", 1, "a test", speaks_mqtt_5=True)


def test_a_service_that_ends_badly_is_a_failure(ending_badly: Broker) -> None:
    with pytest.raises(demo.NotAsPromised, match="exit code -15, expected 0"), demo.service(ending_badly):
        pass


def test_what_went_wrong_before_the_end_counts_more(ending_badly: Broker) -> None:
    with pytest.raises(demo.NoAnswer, match="silence"), demo.service(ending_badly):
        raise demo.NoAnswer("silence")
