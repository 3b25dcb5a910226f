"""A broker for the examples, from whatever this machine has: Docker Compose, the Mosquitto program, or an embedded one.

The first that is there is started and ended with the block:

    with mqtt_broker(Path(".run/demo")) as broker:
        connections = connections_at(broker, Path(".run/demo/connections"))

The embedded broker (of the amqtt package) speaks MQTT 3.1.1 only; `speaks_mqtt_5` says so, and the connections that need
more are then left out.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
USUAL_PORT = 1883
READY_WITHIN = 60.0
HOST = "127.0.0.1"

# Brokers are packaged as system services, so their folder is often not on a user's PATH.
SEARCHED = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin"])

EMBEDDED_CONFIGURATION = """\
listeners:
  default:
    type: tcp
    bind: {host}:{port}
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin:
    allow_anonymous: true
"""


class NoBroker(RuntimeError):
    """The broker ended by itself, or nobody can connect to it; the message holds its last words."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that accepts connections. `how` says in words where it came from."""

    host: str
    port: int
    how: str
    speaks_mqtt_5: bool


@contextmanager
def mqtt_broker(folder: Path, wanted_port: int = 0) -> Iterator[Broker]:
    """A running broker, at the wanted port where that is free. Its files lie in `folder`. Raises NoBroker."""
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port(wanted_port)
    if _compose_answers():
        with _composed(port):
            yield Broker(HOST, port, "Mosquitto in Docker", speaks_mqtt_5=True)
    elif program := shutil.which("mosquitto", path=SEARCHED):
        configuration = folder / "mosquitto.conf"
        lines = (HERE / "mosquitto.conf").read_text(encoding="utf-8")
        there = lines.replace(f"listener {USUAL_PORT}\n", f"listener {port} {HOST}\n")
        # As root it would become another user, who may not be allowed to read what it needs.
        configuration.write_text(f"user {getpass.getuser()}\n{there}", encoding="utf-8")
        with _running([program, "-c", str(configuration)], folder / "mosquitto.log", port):
            yield Broker(HOST, port, f"Mosquitto ({program})", speaks_mqtt_5=True)
    else:
        configuration = folder / "amqtt.yaml"
        configuration.write_text(EMBEDDED_CONFIGURATION.format(host=HOST, port=port), encoding="utf-8")
        command = [str(Path(sys.executable).with_name("amqtt")), "-c", str(configuration)]
        with _running(command, folder / "amqtt.log", port):
            yield Broker(HOST, port, "the embedded broker (MQTT 3.1.1 only)", speaks_mqtt_5=False)


def connections_at(broker: Broker, folder: Path) -> Path:
    """A folder with the example connections, pointed at `broker`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in sorted((HERE / "connections").iterdir()):
        text = file.read_text(encoding="utf-8")
        if broker.speaks_mqtt_5 or "mqtt-5" not in text:
            there = text.replace(f"tcp://{HOST}:{USUAL_PORT}", f"tcp://{broker.host}:{broker.port}")
            (folder / file.name).write_text(there, encoding="utf-8")
    return folder


def _free_port(wanted: int) -> int:
    """The wanted port, or another one where somebody already listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError:
            probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _compose_answers() -> bool:
    """Whether there is Docker Compose and an engine behind it."""
    if (docker := shutil.which("docker")) is None:
        return False
    asked = (["compose", "version"], ["version"])
    return all(subprocess.run([docker, *words], capture_output=True, check=False).returncode == 0 for words in asked)


@contextmanager
def _composed(port: int) -> Iterator[None]:
    environment = {**os.environ, "MQTT_PORT": str(port)}
    compose = ["docker", "compose", "--project-name", f"connectivity-examples-{port}"]
    try:
        _call([*compose, "up", "--detach", "--wait", "mosquitto"], environment)
        yield
    finally:
        _call([*compose, "down"], environment)


def _call(command: list[str], environment: Mapping[str, str]) -> None:
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise NoBroker(f"{' '.join(command)}:\n{ended.stderr}")


@contextmanager
def _running(command: list[str], log: Path, port: int) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        _await_listener(process, log, port)
        yield
    finally:
        process.terminate()
        process.wait()


def _await_listener(process: subprocess.Popen[bytes], log: Path, port: int) -> None:
    end = time.monotonic() + READY_WITHIN
    while process.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise NoBroker(f"{log}:\n{log.read_text(encoding='utf-8', errors='replace')}")
