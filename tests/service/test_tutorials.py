"""The tutorials work from an empty folder: each command and message is that of the page."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.brokers import free_port
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.lake.pipeline_tables import write_all_tables
from tests.support.markdown import blocks
from tests.support.paths import ROOT
from tests.support.public_client import node_path
from tests.support.tutorial import FOLDER, Tutorial, matches
from tests.support.wait import PATIENCE


def api() -> dict[str, str]:
    """Return environment variables for a service whose API has its own port."""
    return {"CONNECTIVITY_API__PORT": str(free_port())}


@pytest.fixture(scope="module")
def mosquitto() -> Iterator[Mosquitto]:
    """No other service with the same connections answers there."""
    with Mosquitto.start() as broker:
        yield broker


@pytest.mark.broker("mosquitto")
def test_a_device_on_mqtt(mosquitto: Mosquitto, tmp_path: Path) -> None:
    ports = {"1883": str(mosquitto.port)}
    with Tutorial("device-mqtt", tmp_path, ports, api()) as tutorial:
        tutorial.follow()
        (tutorial.folder / "revision.txt").write_text("43")
        # With this limit, it cannot write to the files that it opens.
        limited = ["sh", "-c", f"ulimit -f 0 && exec {sys.executable} catch_up.py 1"]
        stopped = subprocess.run(limited, cwd=tutorial.folder, capture_output=True, text=True)
        assert "File too large" in stopped.stderr
        assert (tutorial.folder / "revision.txt").read_text() == "43"


@pytest.mark.broker("rabbitmq")
def test_a_back_end_on_rabbitmq(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    login = {"amqp://guest:guest@localhost:5672": rabbitmq.uri()}
    with Tutorial("back-end-rabbitmq", tmp_path, login, api()) as tutorial:
        tutorial.follow()


@pytest.mark.broker("kafka")
def test_a_back_end_on_kafka(kafka: Kafka, tmp_path: Path) -> None:
    with Tutorial("back-end-kafka", tmp_path, {"localhost:9092": kafka.bootstrap}, api()) as tutorial:
        tutorial.follow()
        subprocess.run([sys.executable, "topics.py"], cwd=tutorial.folder, check=True)


@pytest.mark.broker("mosquitto")
def test_an_operators_first_hour(mosquitto: Mosquitto, tmp_path: Path) -> None:
    port = str(free_port())
    who = {f"GIT_{role}_{part}": "plant@acme.example" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    replaced = {"1883": str(mosquitto.port), "1884": str(free_port()), "8080": port}
    with Tutorial("operator", tmp_path, replaced, {"CONNECTIVITY_API__PORT": port, **who}) as tutorial:
        tutorial.follow()


def test_an_analyst_with_duckdb_and_pandas(tmp_path: Path) -> None:
    """The lake is written as by Spark, whose start would take longer than all else."""
    variables = {**api(), "CONNECTIVITY_SPARK__MODE": "external"}
    with Tutorial("analyst", tmp_path, {"8765": str(free_port())}, variables) as tutorial:
        tutorial.follow({"connectivity pipeline status": lambda: write_all_tables(tutorial.folder / "data")})


def websocket_of_node() -> dict[str, str]:
    """Return a replacement for a Node option of the page that an older Node lacks."""
    found = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = (int(part) for part in found.removeprefix("v").split(".")[:2])
    shim = ROOT / "tests" / "support" / "public_client" / "websocket.cjs"
    return {} if (major, minor) >= (20, 10) else {"--experimental-websocket": f"--require {shim}"}


@pytest.mark.node
def test_a_browser_over_websocket(tmp_path: Path) -> None:
    """Node runs the page's programs; a browser would get the same ones."""
    ports = {"8765": str(free_port()), "8000": str(free_port()), **websocket_of_node()}
    with Tutorial("browser", tmp_path, ports, {**api(), "NODE_PATH": node_path("0.12.2")}) as tutorial:
        tutorial.follow()
        with urlopen(f"http://127.0.0.1:{ports['8000']}/levels.mjs", timeout=PATIENCE) as response:
            assert response.headers.get_content_type() == "text/javascript"
            assert response.read() == (tutorial.folder / "levels.mjs").read_bytes()


@pytest.mark.node
def test_the_page_of_the_browser_tries_again_while_there_is_no_service(tmp_path: Path) -> None:
    """Node reports a refused connection as an error, some of its versions without closing the socket."""
    for block in blocks(FOLDER / "browser.md"):
        if block.title in ("rsio.mjs", "levels.mjs"):
            (tmp_path / block.title).write_text(block.text.replace("8765", str(free_port())), "utf-8")
    (option,) = websocket_of_node().values() or ["--experimental-websocket"]
    command = ["node", *option.split(), "levels.mjs"]
    environment = {**os.environ, "NODE_PATH": node_path("0.12.2")}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        shown = [program.stdout.readline() for _ in range(2)]
        program.kill()
    assert shown == ["socket closed, code 1006; again in a second\n"] * 2


@pytest.mark.parametrize(
    ("printed", "is_expected"),
    [
        ("id 4711\nopen\n", True),
        ("id 4711\nmore\nand more\nopen\n", True),
        ("id 4711\nopen\nmore\n", False),
        ("id \n", False),
        ("open\n", False),
    ],
)
def test_an_ellipsis_in_the_output_on_a_page_is_any_text_or_any_lines(printed: str, is_expected: bool) -> None:
    assert matches("id …\n…\nopen\n", printed) is is_expected
