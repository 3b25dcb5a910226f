"""The page about Streamr is correct: connections open, messages and programs work."""

from __future__ import annotations

import asyncio
import json
import queue
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
import yaml
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support import markdown
from tests.support.brokers import free_port
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.paho_end import end_client
from tests.support.connection_documents import client, connection, source
from tests.support.paths import ROOT
from tests.support.public_client import run_node
from tests.support.service_process import ServiceProcess
from tests.support.wait import PATIENCE, wait_until_sync

pytestmark = [pytest.mark.broker("mosquitto"), pytest.mark.node]


_LINE = re.compile(r"(\w+) (->|<-) (.+)")


def blocks(language: str) -> list[str]:
    page = ROOT / "docs" / "reference" / "streamr.md"
    return [block.text for block in markdown.blocks(page) if block.language == language]


class PageClient:
    """A client on MQTT 5 with its own response topic."""

    def __init__(self, broker: Mosquitto, name: str) -> None:
        self.received: queue.Queue[Any] = queue.Queue()
        self._properties = Properties(PacketTypes.PUBLISH)
        self._properties.ResponseTopic = f"streamr/answers/{name}"
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        ready: list[object] = []
        self._client.on_subscribe = lambda *_: ready.append(True)
        self._client.on_message = lambda _client, _data, message: self.received.put(json.loads(message.payload))
        self._client.connect(broker.host, broker.port)
        self._client.loop_start()
        self._client.subscribe(f"streamr/answers/{name}", 1)
        wait_until_sync(lambda: ready)

    def send(self, request: str) -> None:
        self._client.publish("streamr/requests", request, 1, properties=self._properties).wait_for_publish(PATIENCE)

    def close(self) -> None:
        end_client(self._client)


@pytest.fixture(scope="module")
def listener_uri() -> str:
    return f"ws://127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def service(
    mosquitto: Mosquitto, listener_uri: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    """A service with the connections of the page, its policy and its thing."""
    by_mqtt, by_listener = map(yaml.safe_load, blocks("yaml"))
    documents = [
        by_mqtt | {"uri": f"tcp://{mosquitto.host}:{mosquitto.port}"},
        by_listener | {"uri": listener_uri},
        connection(mosquitto, source("setup", "demo:clients")),
    ]
    commands = [found for found in map(json.loads, blocks("json")) if "topic" in found]
    with ServiceProcess.start(tmp_path_factory.mktemp("page"), documents) as running:
        setup = client(mosquitto, "setup")
        try:
            answers = [setup.ask_for(each["topic"], each["path"], each["value"]) for each in commands]
        finally:
            setup.close()
        assert [answer["status"] for answer in answers] == [201, 201], answers
        yield running


def test_the_first_connection_is_that_of_the_examples() -> None:
    example = yaml.safe_load((ROOT / "examples" / "connections" / "streams.yaml").read_text(encoding="utf-8"))
    example.pop("tags")
    assert yaml.safe_load(blocks("yaml")[0]) == example


async def test_the_messages_and_programs_of_the_page_work_as_documented(
    service: ServiceProcess, mosquitto: Mosquitto, listener_uri: str
) -> None:
    """In one test, because each part continues with the stored data of the earlier ones."""
    converse(mosquitto)
    run_programs(mosquitto)
    assert (await run_script(listener_uri)).splitlines() == ["9", "10"]


def timeless(frame: Any) -> Any:
    """A frame without the times at which twins were changed."""
    _, kind, _, message = frame
    if kind in (0, 1) and message[1].startswith("things/"):
        content = json.loads(message[8])
        assert content.pop("timestamp")
        return [*frame[:3], [*message[:3], *message[4:8], content]]
    return frame


def converse(mosquitto: Mosquitto) -> None:
    lines = [_LINE.fullmatch(line) for text in blocks("text") for line in text.splitlines()]
    assert len(lines) > 10
    page_clients: dict[str, PageClient] = {}
    try:
        for line in lines:
            assert line is not None, "neither sent nor received"
            name, arrow, frame_text = line.groups()
            if name not in page_clients:
                page_clients[name] = PageClient(mosquitto, name)
            if arrow == "->":
                page_clients[name].send(frame_text)
            else:
                assert timeless(page_clients[name].received.get(timeout=PATIENCE)) == timeless(json.loads(frame_text))
        for name, page_client in page_clients.items():
            page_client.send('{"type": "unsubscribe", "stream": "nothing"}')
            frame = page_client.received.get(timeout=PATIENCE)
            assert frame[3]["stream"] == "nothing", f"{name} received more than the page shows: {frame}"
    finally:
        for page_client in page_clients.values():
            page_client.close()


def run_programs(mosquitto: Mosquitto) -> None:
    (text,) = blocks("console")
    place = ["--host", mosquitto.host, "--port", str(mosquitto.port)]
    for command, *expected in (part.splitlines() for part in text.split("$ ")[1:]):
        program, *words = shlex.split(command)
        assert program == "python"
        ran = subprocess.run(
            [sys.executable, *words, *place], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert (ran.returncode, ran.stderr, ran.stdout.splitlines()) == (0, "", expected), command


async def run_script(listener_uri: str) -> str:
    """Return the output of the page's script, which runs until it is stopped."""
    (script,) = blocks("javascript")
    assert script.count("ws://127.0.0.1:8767") == 2
    process = await run_node(Path("-"), version="0.12.2")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(script.replace("ws://127.0.0.1:8767", listener_uri).encode())
    process.stdin.close()
    printed = b""
    try:
        async with asyncio.timeout(PATIENCE):
            while printed.count(b"\n") < 2:
                chunk = await process.stdout.read(1000)
                assert chunk, (await process.communicate())[1].decode()
                printed += chunk
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
    return printed.decode()


def test_every_code_is_on_the_page() -> None:
    page = (ROOT / "docs" / "reference" / "streamr.md").read_text(encoding="utf-8")
    # Errors of a frame are reported to its reader, not to clients.
    ours = {"streamr:message.invalid", "streamr:frame.invalid"}
    files = [file for folder in ("mappings", "connectivity") for file in (ROOT / folder).rglob("*.py")]
    codes = {code for file in files for code in re.findall(r'"(streamr:[a-z.]+)"', file.read_text(encoding="utf-8"))}
    assert set(re.findall(r"^\| `(streamr:[a-z.]+)`", page, re.MULTILINE)) == codes - ours
