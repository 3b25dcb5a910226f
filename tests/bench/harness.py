"""Common parts of the benchmarks: things with a history, the service at a broker, and processes."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.journal.journal import Journal
from spark_store.records import Change
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.connection_documents import policy_for
from tests.support.replayed import fold
from tests.support.service_process import ServiceCommand

T = TypeVar("T")

MESSAGE_BYTES = 400
SUBJECT = "acme:bench"
STAMP = "2030-01-15T07:30:00.000000Z"


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a benchmark: full for a figure, or minimal for the tests, which only execute each line."""

    is_short: bool

    def of(self, full: T, short: T) -> T:
        return short if self.is_short else full


FULL, SHORT = Scale(False), Scale(True)


def thing(number: int) -> EntityId:
    return EntityId(EntityType.THING, "acme.bench", f"device-{number}")


def policy(number: int) -> EntityId:
    return EntityId(EntityType.POLICY, "acme.bench", f"device-{number}")


def events_of(entity: EntityId, count: int, note: str = "x" * 40) -> list[Event]:
    first = {"thingId": str(entity), "policyId": str(entity), "attributes": {"n": 0}}
    written = [b'{"n":%d,"note":"%s"}' % (n, note.encode()) for n in range(count - 1)]
    path = "/features/sensor/properties/reading"
    return [
        Event(entity, 1, STAMP, "created", "/", json.dumps(first).encode(), b"{}"),
        Event(entity, 2, STAMP, "modified", "/features/sensor", b'{"properties":{}}', b"{}"),
        *(Event(entity, n + 3, STAMP, "modified", path, value, b"{}") for n, value in enumerate(written[: count - 2])),
    ]


def fill(path: Path, things: int, events: int, first: int = 0) -> None:
    """Create a journal with `things` things of `events` events each, and their policies.

    The things are numbered from `first`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal.open(path)
    for number in range(first, first + things):
        rules = {"policyId": str(policy(number)), "imports": {}, **policy_for(SUBJECT)}
        written = Event(policy(number), 1, STAMP, "created", "/", json.dumps(rules).encode(), b"{}")
        changes = [Change((written,), (fold([written]),))]
        happened = events_of(thing(number), events)
        # One change with the whole history, because the journal keeps only the last state.
        changes.append(Change(tuple(happened), (fold(happened),)))
        journal.append(changes)
    journal.close()


@contextmanager
def serving(
    folder: Path, *connections: Mapping[str, Any], program: type[ServiceCommand] = ServiceCommand, **settings: Any
) -> Iterator[ServiceCommand]:
    """Start a service with default settings and these connections."""
    with program.start(folder, connections, log={"format": "json", "level": "warning"}, **settings) as service:
        yield service


@contextmanager
def frozen_as_before() -> Iterator[None]:
    """Undo `gc.freeze` at the end, unless objects were frozen before: a test run leaves what it collected out."""
    were_frozen = gc.get_freeze_count() > 0
    try:
        yield
    finally:
        if not were_frozen:
            gc.unfreeze()


def processor_seconds(service: ServiceCommand) -> float:
    assert service.process is not None
    times = psutil.Process(service.process.pid).cpu_times()
    return times.user + times.system


def processor_seconds_of_all(process: psutil.Process) -> float:
    """Return the processor seconds of a process and of all its children, including ended ones."""
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = one.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total


def peak_memory(pid: int) -> int:
    """Return the peak memory of a process, in bytes; 0 if it has ended."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return 1024 * int(next((line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")), 0))


class Spent(NamedTuple):
    """The costs of a process: seconds, seconds of processor time, and peak memory in bytes."""

    seconds: float
    processor: float
    memory: int


def spent_by(command: Sequence[str]) -> Spent:
    """Run a command to its end without its output, and return its costs."""
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Spent(time.perf_counter() - begun, usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss)


def run(module: str, *arguments: object, within: float = 300) -> dict[str, Any]:
    """Run a module as a process, for at most `within` seconds, and return its JSON line."""
    command = [sys.executable, "-m", f"tests.bench.{module}", *map(str, arguments)]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=within, check=True).stdout
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


@contextmanager
def sink(broker: Mosquitto, topic: str, count: int, ending: bytes = b"") -> Any:
    """Start a subscriber that counts messages, and yield a function that waits for its figures.

    It ends after `count` messages, or after a message that ends with `ending`.
    """
    command = [sys.executable, "-m", "tests.bench.sink", broker.host, str(broker.port), topic, str(count), ending.hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield lambda: json.loads(process.communicate(timeout=300)[0])
