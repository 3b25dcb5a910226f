"""Starts the brokers of the examples: from Docker Compose, from installed programs, or embedded.

The brokers start in parallel, and stop at the end of the `with` block:

    with brokers(Path(".run/demo")) as available:
        available.running["kafka"].port
        available.missing       # the install command of each missing broker

If Mosquitto is missing, the embedded broker of the package amqtt replaces it, which supports only MQTT 3.1.1. The examples
run without other missing brokers.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from examples.processes import log_end, start, stop
from examples.programs import EMBEDDED, FOLDER, HOST, MOSQUITTO, PROGRAMS, Program, free_port

ROOT = FOLDER.parent
START_TIMEOUT = 90.0
DOCKER_TIMEOUT = 10.0

Progress = Callable[[str], None]
"""Takes a line of text about the progress."""


class BrokerFailed(RuntimeError):
    """A broker exited, or does not accept connections. The message has its name and the end of its log."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that accepts connections. `origin` describes where it comes from, for a person."""

    origin: str
    port: int
    connection_types: frozenset[str]
    usual_port: int
    host: str = HOST


@dataclass(frozen=True, slots=True)
class AvailableBrokers:
    """The running brokers, by their service in compose.yaml.

    `missing` has the install command of each missing broker, by its name.
    """

    running: Mapping[str, Broker]
    missing: Mapping[str, str]

    def of_type(self, connection_type: str) -> Broker | None:
        """The running broker for connections of this type."""
        return next((each for each in self.running.values() if connection_type in each.connection_types), None)


def print_nothing(_text: str) -> None:
    """Ignore the progress."""


@contextmanager
def brokers(
    folder: Path, *, at_usual_ports: bool = False, progress: Progress = print_nothing
) -> Iterator[AvailableBrokers]:
    """The running brokers, at free ports, with their logs in `folder`.

    `at_usual_ports`: at the usual ports, if they are free. Raises BrokerFailed if an available broker does not start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = _composed if has_compose() else _installed
    ports = {each: free_port(each.usual_port if at_usual_ports else 0) for each in PROGRAMS}
    with source(folder, ports, progress) as available:
        yield available


def has_compose() -> bool:
    """Whether Docker Compose is installed and a Docker engine responds."""
    if (docker := shutil.which("docker")) is None:
        return False
    commands = (["compose", "version"], ["version"])
    try:
        return all(
            subprocess.run([docker, *command], capture_output=True, timeout=DOCKER_TIMEOUT, check=False).returncode == 0
            for command in commands
        )
    except subprocess.TimeoutExpired:
        return False


@contextmanager
def _composed(_folder: Path, ports: Mapping[Program, int], progress: Progress) -> Iterator[AvailableBrokers]:
    # Compose reads the whole file, which requires a token for the service, although the service does not start.
    token = {"API_TOKEN": secrets.token_hex()}
    environment = {**token, **os.environ, **{each.port_variable: str(port) for each, port in ports.items()}}
    compose = ["docker", "compose", "--project-name", f"connectivity-examples-{ports[MOSQUITTO]}"]
    try:
        progress("starting the brokers in Docker; the first start downloads them")
        _call([*compose, "up", "--detach", "--wait", *(each.service for each in ports)], environment)
        running = {each.service: _broker(each, port, f"{each.name} in Docker") for each, port in ports.items()}
        yield AvailableBrokers(running, {})
    finally:
        _call([*compose, "down", "--volumes"], environment)


def _call(command: list[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BrokerFailed(f"{' '.join(command)}:\n{done.stderr}")


@contextmanager
def _installed(folder: Path, ports: Mapping[Program, int], progress: Progress) -> Iterator[AvailableBrokers]:
    """The installed programs, each with its files in a temporary folder."""
    paths = {each: path for each in ports if (path := each.find()) is not None}
    missing = {each.name: each.install_command for each in ports if each not in paths}
    ports = dict(ports)
    if MOSQUITTO not in paths and (path := EMBEDDED.find()) is not None:
        paths[EMBEDDED], ports[EMBEDDED] = path, ports[MOSQUITTO]
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="connectivity-", ignore_cleanup_errors=True) as data:
        try:
            for program, path in paths.items():
                files = Path(data, program.service)
                files.mkdir()
                command = program.command(path, files, ports[program])
                processes.append(start(command.words, folder / f"{program.service}.log", command.environment))
            _await_listeners(folder, dict(zip(paths, processes, strict=True)), ports, progress)
            running = {each.service: _broker(each, ports[each], f"{each.name} ({paths[each]})") for each in paths}
            yield AvailableBrokers(running, missing)
        finally:
            stop(processes)


def _broker(program: Program, port: int, origin: str) -> Broker:
    return Broker(origin, port, program.connection_types, program.usual_port)


def _await_listeners(
    folder: Path, starting: Mapping[Program, subprocess.Popen[bytes]], ports: Mapping[Program, int], progress: Progress
) -> None:
    """Wait until all programs listen. Raises BrokerFailed for one that exits, or that takes too long."""
    begin = time.monotonic()
    waiting = dict(starting)
    while waiting:
        for program, process in list(waiting.items()):
            log = folder / f"{program.service}.log"
            if process.poll() is not None:
                raise BrokerFailed(
                    f"{program.name} ended with exit code {process.returncode}. {log} ends with:\n{log_end(log)}"
                )
            if is_listening(ports[program]):
                progress(f"{program.name} is ready at {HOST}:{ports[program]} after {time.monotonic() - begin:.1f} s")
                del waiting[program]
            elif time.monotonic() - begin > START_TIMEOUT:
                raise BrokerFailed(
                    f"{program.name} is not ready after {START_TIMEOUT:.0f} s. {log} ends with:\n{log_end(log)}"
                )
        time.sleep(0.05)


def is_listening(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
