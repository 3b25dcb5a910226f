"""The page about reactive-streams-io does what it says: its octets are said and heard, its programs run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.brokers import free_port
from tests.brokers.mosquitto import Mosquitto
from tests.client import MqttClient
from tests.integration.documents import client, connection, source
from tests.service import ServiceProcess

pytestmark = pytest.mark.broker("mosquitto")

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SAID = re.compile(r"[0-9a-f]{2}(?= |$)|'.*'(?= |$)")


def example(name: str) -> dict[str, Any]:
    text = (ROOT / "examples" / "connections" / f"{name}.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def blocks(language: str) -> list[str]:
    page = (ROOT / "docs" / "reactive-streams-io.md").read_text(encoding="utf-8")
    return [text for found, text in _FENCE.findall(page) if found == language]


def octets(written: str) -> bytes:
    """What a line of the page says: octets in hexadecimal digits and texts in quotes, before its explanation."""
    said, _, _ = written.partition(";")
    parts = _SAID.findall(said.strip())
    assert " ".join(parts) == said.strip(), f"not only octets and texts: {said}"
    return b"".join(part[1:-1].encode() if part.startswith("'") else bytes.fromhex(part) for part in parts)


@pytest.fixture(scope="module")
def door() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def service(mosquitto: Mosquitto, door: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """With the connections of the page and its pump."""
    (by_mqtt,) = map(yaml.safe_load, blocks("yaml"))
    documents = [
        by_mqtt | {"uri": f"tcp://{mosquitto.host}:{mosquitto.port}"},
        example("rsio-door") | {"uri": door},
        connection(mosquitto, source("setup", "demo:clients")),
    ]
    commands = [found for found in map(json.loads, blocks("json")) if "topic" in found]
    with ServiceProcess.start(tmp_path_factory.mktemp("page"), documents) as running:
        with client(mosquitto, "setup") as setup:
            answers = [setup.ask_for(each["topic"], each["path"], each["value"])["status"] for each in commands]
        assert answers == [201, 204, 204, 204]
        yield running


def test_the_door_of_the_page_is_where_the_example_listens() -> None:
    assert example("rsio-door")["uri"] == "tcp://127.0.0.1:8766"


def test_the_connection_of_the_page_is_that_of_the_examples() -> None:
    assert yaml.safe_load(blocks("yaml")[0]) == {
        key: value for key, value in example("readers").items() if key != "tags"
    }


@pytest.mark.usefixtures("service")
def test_what_the_page_says_is_said_and_heard_to_the_octet(mosquitto: Mosquitto) -> None:
    lines = [line for text in blocks("text") for line in text.splitlines()]
    assert {line[:2] for line in lines} == {"> ", "< "}
    with MqttClient(mosquitto.host, mosquitto.port, ask="rsio/desk/up", answers="rsio/desk/down") as desk:
        desk.read = bytes
        heard = b""
        for line in lines:
            expected = octets(line[2:])
            if line.startswith(">"):
                assert heard == b"", f"more than the page says, before: {line}"
                desk.send(expected)
                continue
            while len(heard) < len(expected):
                heard += desk.received.get(timeout=PATIENCE)
            assert heard.startswith(expected), f"{heard.hex(' ')}, the page says {expected.hex(' ')}"
            heard = heard[len(expected) :]
        assert heard == b""


@pytest.mark.usefixtures("service")
def test_what_the_page_runs_prints_what_it_says(mosquitto: Mosquitto, door: str) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    commands = [part.splitlines() for text in blocks("console") for part in text.split("$ ")[1:]]
    assert len(commands) >= 3
    assert any("--at tcp://" in command for command, *_ in commands)
    for command, *expected in commands:
        by_mqtt = "" if "--at" in command else f" --at mqtt://{mosquitto.host}:{mosquitto.port}"
        ran = subprocess.run(
            ["sh", "-c", command.replace("tcp://127.0.0.1:8766", door) + by_mqtt],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (ran.returncode, ran.stderr, ran.stdout.splitlines()) == (0, "", expected), command
