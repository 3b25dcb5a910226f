"""The pages about reactive-streams-io are correct: their messages are exchanged, their programs run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import pytest
import yaml

from tests.support import markdown
from tests.support.brokers import free_port
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import client, connection, example, source
from tests.support.paths import ROOT
from tests.support.service_process import ServiceProcess
from tests.support.wait import PATIENCE, wait_until_sync

pytestmark = pytest.mark.broker("mosquitto")

PUMP = ROOT / "examples" / "pump.jsonl"

_PARTS = re.compile(r"[0-9a-f]{2}(?= |$)|'.*'(?= |$)|[A-Z]+")
TOKEN = 16


PAGES = [ROOT / "docs" / kind / "reactive-streams-io.md" for kind in ("reference", "tutorials")]


def blocks(language: str) -> list[str]:
    return [block.text for page in PAGES for block in markdown.blocks(page) if block.language == language]


@dataclass
class PageClient:
    """A client at two topics, and its received bytes that were not expected yet."""

    client: MqttClient
    received: bytes = b""


def parts(written: str) -> list[str]:
    """Return the parts of a line before its explanation: hexadecimal bytes, quoted texts, token names."""
    written_parts, _, _ = written.partition(";")
    found = _PARTS.findall(written_parts.strip())
    assert " ".join(found) == written_parts.strip(), f"not only bytes, texts and tokens: {written_parts}"
    return found


def is_token(part: str) -> bool:
    return part.isalpha() and part.isupper()


def raw(written: list[str], tokens: dict[str, bytes]) -> bytes:
    return b"".join(
        part[1:-1].encode() if part.startswith("'") else tokens[part] if is_token(part) else bytes.fromhex(part)
        for part in written
    )


def expect(operator: PageClient, written: list[str], tokens: dict[str, bytes]) -> None:
    """Check the next received bytes. An unknown token takes the value at its position."""
    for place, part in enumerate(written):
        if is_token(part) and part not in tokens:
            before = raw(written[:place], tokens)
            wait_for(operator, len(before) + TOKEN)
            tokens[part] = operator.received[len(before) :][:TOKEN]
    expected = raw(written, tokens)
    wait_for(operator, len(expected))
    assert operator.received.startswith(expected), f"{operator.received.hex(' ')}, the page says {expected.hex(' ')}"
    operator.received = operator.received[len(expected) :]


def at_topics(mosquitto: Mosquitto, name: str) -> MqttClient:
    return MqttClient(mosquitto.host, mosquitto.port, ask=f"rsio/{name}/up", answers=f"rsio/{name}/down")


def wait_for(operator: PageClient, length: int) -> None:
    while len(operator.received) < length:
        operator.received += operator.client.received.get(timeout=PATIENCE)


@pytest.fixture(scope="module")
def listener_uri() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def service(
    mosquitto: Mosquitto, listener_uri: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    """A service with the connections of the page and its pump."""
    (by_mqtt,) = map(yaml.safe_load, blocks("yaml"))
    documents = [
        by_mqtt | {"uri": f"tcp://{mosquitto.host}:{mosquitto.port}"},
        example("tcp-listener") | {"uri": listener_uri},
        connection(mosquitto, source("setup", "demo:clients")),
    ]
    with ServiceProcess.start(tmp_path_factory.mktemp("page"), documents) as running:
        yield running


def test_the_listener_of_the_page_is_where_the_example_listens() -> None:
    assert example("tcp-listener")["uri"] == "tcp://127.0.0.1:8766"


def test_the_connection_of_the_page_is_that_of_the_examples() -> None:
    assert yaml.safe_load(blocks("yaml")[0]) == {
        key: value for key, value in example("readers").items() if key != "tags"
    }


@pytest.mark.usefixtures("service")
def test_the_messages_and_programs_of_the_page_work_as_documented(mosquitto: Mosquitto, listener_uri: str) -> None:
    """In one test, because each part continues with the stored data of the earlier ones."""
    run_programs(mosquitto, listener_uri)
    run_script(mosquitto)
    converse(mosquitto)


def run_programs(mosquitto: Mosquitto, listener_uri: str) -> None:
    commands = [part.splitlines() for text in blocks("console") for part in text.split("$ ")[1:]]
    assert {"--publish" in command for command, *_ in commands} == {True, False}
    assert any("--at tcp://" in command for command, *_ in commands)
    revision = 0
    for command, *expected in commands:
        by_mqtt = "" if "--at" in command else f" --at mqtt://{mosquitto.host}:{mosquitto.port}"
        ran = subprocess.run(
            ["sh", "-c", typed(command).replace("tcp://127.0.0.1:8766", listener_uri) + by_mqtt],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (ran.returncode, ran.stderr, ran.stdout.splitlines()) == (0, "", expected), command
        if "--publish" in command:
            revision += len(PUMP.read_text(encoding="utf-8").splitlines()) if PUMP.name in command else 1
            # A user who types is never so quick as to read before the write.
            wait_until_sync(partial(has_pump, mosquitto, revision))


def typed(command: str) -> str:
    """Return the command as typed in a clone set up by `make`, with the interpreter of this one."""
    assert ".venv/bin/python -m " in command
    return command.replace(".venv/bin/python", sys.executable)


def run_script(mosquitto: Mosquitto) -> None:
    (script,) = blocks("python")
    assert "mqtt://127.0.0.1:1883" in script
    there = script.replace("mqtt://127.0.0.1:1883", f"mqtt://{mosquitto.host}:{mosquitto.port}")
    ran = subprocess.run(
        [sys.executable, "-"], cwd=ROOT, input=there, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    revisions = [f'{{"revision":{number}}}' for number in range(1, 5)]
    assert (ran.returncode, ran.stderr, ran.stdout.splitlines()) == (0, "", revisions)


def has_pump(mosquitto: Mosquitto, revision: int) -> bool:
    """Return whether the pump exists with this revision."""
    with client(mosquitto, "setup") as setup:
        answer = setup.ask_for("acme.plant/pump-8/things/twin/commands/retrieve", fields="_revision")
    return bool(answer["value"].get("_revision") == revision)


def converse(mosquitto: Mosquitto) -> None:
    lines = [line for text in blocks("text") for line in text.splitlines()]
    tokens: dict[str, bytes] = {}
    with ExitStack() as stack:
        handlers = {
            arrows: PageClient(stack.enter_context(at_topics(mosquitto, name)))
            for arrows, name in {1: "desk", 2: "again"}.items()
        }
        for operator in handlers.values():
            operator.client.read = bytes
        for line in lines:
            arrows, _, written = line.partition(" ")
            operator = handlers[len(arrows)]
            if set(arrows) == {">"}:
                assert operator.received == b"", f"more than the page says, before: {line}"
                operator.client.send(raw(parts(written), tokens))
            else:
                assert set(arrows) == {"<"}
                expect(operator, parts(written), tokens)
        # After all goodbyes each client may start again, and receives nothing before the answer.
        hello, _, answer = (raw(parts(line.partition(" ")[2]), {}) for line in lines[:3])
        for operator in handlers.values():
            assert operator.received == b""
            operator.client.assert_next_answers(hello, lambda message: message == answer)
