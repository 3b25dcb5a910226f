"""The brokers for the examples, from whatever this machine has: Docker Compose, installed programs, or an embedded one.

They are started side by side, and ended with the block:

    with brokers(Path(".run/demo")) as found:
        found.running["Kafka"].port
        found.missing       # what could not be had, with the command that brings it

Without Mosquitto there is the embedded broker of the amqtt package, which speaks MQTT 3.1.1 only. What else is missing is
left out, and the examples do with the rest.
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

from examples.processes import end, last_words, start
from examples.programs import EMBEDDED, HERE, HOST, MOSQUITTO, WANTED, Program, free_port

ROOT = HERE.parent
READY_WITHIN = 90.0
ENGINE_ANSWERS_WITHIN = 10.0

Tell = Callable[[str], None]


class NoBroker(RuntimeError):
    """A broker ended by itself, or nobody can connect to it; the message says which, and holds its last words."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that accepts connections. `how` says in words where it came from, `carries` which connection types."""

    how: str
    port: int
    carries: frozenset[str]
    usual_port: int
    host: str = HOST


@dataclass(frozen=True, slots=True)
class Found:
    """The brokers that run, by the name of their service in compose.yaml; the others' names, with what brings them."""

    running: Mapping[str, Broker]
    missing: Mapping[str, str]

    def carrying(self, connection_type: str) -> Broker | None:
        """The broker that connections of this type lead to."""
        return next((each for each in self.running.values() if connection_type in each.carries), None)


def quiet(_text: str) -> None:
    """Say nothing."""


@contextmanager
def brokers(folder: Path, *, at_usual_ports: bool = False, tell: Tell = quiet) -> Iterator[Found]:
    """The running brokers, at free ports or, where those are free, at the usual ones. Their logs lie in `folder`.

    `tell` hears what is going on. Raises NoBroker for one that is there and does not start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    how = _composed if compose_answers() else _installed
    with how(folder, {each: free_port(each.usual_port if at_usual_ports else 0) for each in WANTED}, tell) as found:
        yield found


def compose_answers() -> bool:
    """Whether there is Docker Compose and an engine behind it."""
    if (docker := shutil.which("docker")) is None:
        return False
    asked = (["compose", "version"], ["version"])
    try:
        return all(
            subprocess.run([docker, *words], capture_output=True, timeout=ENGINE_ANSWERS_WITHIN, check=False).returncode
            == 0
            for words in asked
        )
    except subprocess.TimeoutExpired:
        return False


@contextmanager
def _composed(_folder: Path, ports: Mapping[Program, int], tell: Tell) -> Iterator[Found]:
    # The file is read as a whole: the service, which does not run, needs a token in it.
    token = {"API_TOKEN": secrets.token_hex()}
    environment = {**token, **os.environ, **{each.port_variable: str(port) for each, port in ports.items()}}
    compose = ["docker", "compose", "--project-name", f"connectivity-examples-{ports[MOSQUITTO]}"]
    try:
        tell("starting the brokers in Docker; the first time it fetches them")
        _call([*compose, "up", "--detach", "--wait", *(each.service for each in ports)], environment)
        yield Found({each.service: _broker(each, port, f"{each.name} in Docker") for each, port in ports.items()}, {})
    finally:
        _call([*compose, "down", "--volumes"], environment)


def _call(command: list[str], environment: Mapping[str, str]) -> None:
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise NoBroker(f"{' '.join(command)}:\n{ended.stderr}")


@contextmanager
def _installed(folder: Path, ports: Mapping[Program, int], tell: Tell) -> Iterator[Found]:
    """The programs of this machine, each with its files in a temporary folder."""
    places = {each: place for each in ports if (place := each.find()) is not None}
    missing = {each.name: each.brought_by for each in ports if each not in places}
    ports = dict(ports)
    if MOSQUITTO not in places and (place := EMBEDDED.find()) is not None:
        places[EMBEDDED], ports[EMBEDDED] = place, ports[MOSQUITTO]
    running: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="connectivity-", ignore_cleanup_errors=True) as data:
        try:
            for program, place in places.items():
                files = Path(data, program.service)
                files.mkdir()
                command = program.command(place, files, ports[program])
                running.append(start(command.words, folder / f"{program.service}.log", command.environment))
            _await_listeners(folder, dict(zip(places, running, strict=True)), ports, tell)
            at = {each.service: _broker(each, ports[each], f"{each.name} ({places[each]})") for each in places}
            yield Found(at, missing)
        finally:
            end(running)


def _broker(program: Program, port: int, how: str) -> Broker:
    return Broker(how, port, program.carries, program.usual_port)


def _await_listeners(
    folder: Path, starting: Mapping[Program, subprocess.Popen[bytes]], ports: Mapping[Program, int], tell: Tell
) -> None:
    """Until everybody listens. Raises NoBroker for the first one that ends by itself, and for those that take too long."""
    begun = time.monotonic()
    waiting = dict(starting)
    while waiting:
        for program, process in list(waiting.items()):
            words = f"{folder / program.service}.log ends with:\n{last_words(folder / f'{program.service}.log')}"
            if process.poll() is not None:
                raise NoBroker(f"{program.name} ended with exit code {process.returncode}. {words}")
            if is_listening(ports[program]):
                tell(f"{program.name} is ready at {HOST}:{ports[program]} after {time.monotonic() - begun:.1f} s")
                del waiting[program]
            elif time.monotonic() - begun > READY_WITHIN:
                raise NoBroker(f"{program.name} is not ready after {READY_WITHIN:.0f} s. {words}")
        time.sleep(0.05)


def is_listening(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
