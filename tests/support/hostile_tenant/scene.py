"""The service, a broker and a good tenant, first alone, then with a hostile tenant."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.journal.journal import Journal
from spark_store.records import Change
from tests.support.brokers import free_port
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.connection_documents import connection, policy_for, source
from tests.support.hostile_tenant import attacks, good_tenant
from tests.support.hostile_tenant.judgment import Answered, Bounds, Measured, Span, within
from tests.support.replayed import fold
from tests.support.service_process import ServiceProcess

RATE = 200
STAMP = "2030-01-15T07:30:00.000000Z"
SAMPLED_EVERY = 0.05
ASKED_EVERY = 0.25
"""Seconds between two requests to the API, each over a new connection."""

SETTLED_AFTER = 0.3
"""Seconds that are not measured: the first commands, and the start of the attack."""

FOREVER = "function mapToDittoProtocolMsg() { for (;;); }"


@dataclass(frozen=True)
class Scene:
    """An attacked resource, and the settings that matter for it."""

    resource: str
    bounds: Bounds
    settings: Mapping[str, Any] = field(default_factory=dict)
    things: int = 0
    """The number of things that the hostile tenant has before the attack."""
    descriptors: int | None = None
    """The maximum number of file descriptors of the service; None for the limit of the system."""
    is_shared: bool = False
    """Whether the good tenant is another user of the hostile tenant's listener, instead of a broker."""


class Program:
    """A program in its own process, which prints a word for each of its steps and a JSON line at its end."""

    def __init__(self, module: str, *arguments: object, ready: str) -> None:
        command = [sys.executable, "-m", f"tests.support.hostile_tenant.{module}", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._wait_for(ready)

    def begin(self, word: str) -> None:
        """Let the program begin, and wait until it prints `word`."""
        assert self.process.stdin is not None
        self.process.stdin.write("begin\n")
        self.process.stdin.flush()
        self._wait_for(word)

    def _wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == f"{word}\n", f"expected {word}, found {line}"

    def figures(self) -> Any:
        """End the program and return its JSON line."""
        return json.loads(self.process.communicate(timeout=60)[0])


def hostile_connections(websocket: int, tcp: int, *, with_scripts: bool) -> list[dict[str, Any]]:
    subject = attacks.SUBJECT
    own: dict[str, Any] = {
        "connectionType": "websocket",
        "connectionStatus": "open",
        "uri": f"ws://127.0.0.1:{websocket}",
        "id": "hostile",
        "sources": [
            {"addresses": ["/hostile"], "qos": 1, "authorizationContext": [subject], "declaredAcks": ["hostile:never"]}
        ],
    }
    if with_scripts:
        scripted = {
            "addresses": ["/scripts"],
            "qos": 1,
            "authorizationContext": [subject],
            "payloadMapping": ["forever"],
        }
        own["sources"].append(scripted)
        own["mappingDefinitions"] = {"forever": {"mappingEngine": "JavaScript", "options": {"incomingScript": FOREVER}}}
    streams = {
        "connectionType": "tcp",
        "connectionStatus": "open",
        "uri": f"tcp://127.0.0.1:{tcp}",
        "id": "hostile-tcp",
        "sources": [
            {
                "addresses": ["rsio"],
                "qos": 1,
                "authorizationContext": [subject],
                "payloadMapping": ["ReactiveStreamsIO"],
            }
        ],
    }
    return [own, streams]


def fill(path: Path, things: int) -> None:
    """Write a journal with `things` things of the hostile tenant."""
    path.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal.open(path)
    policy = EntityId(EntityType.POLICY, attacks.NAMESPACE, "many")
    rules = {"policyId": str(policy), "imports": {}, **policy_for(attacks.SUBJECT)}
    journal.append([_created(policy, rules)])
    for first in range(0, things, 1_000):
        journal.append(
            [
                _created(
                    EntityId(EntityType.THING, attacks.NAMESPACE, f"thing-{number}"),
                    {
                        "thingId": f"{attacks.NAMESPACE}:thing-{number}",
                        "policyId": str(policy),
                        "attributes": {"n": number, "room": f"room-{number % 50}", "note": f"{number:06}" + "ab" * 40},
                    },
                )
                for number in range(first, min(first + 1_000, things))
            ]
        )
    journal.close()


def _created(entity: EntityId, value: dict[str, Any]) -> Change:
    event = Event(entity, 1, STAMP, "created", "/", json.dumps(value).encode(), b"{}")
    return Change((event,), (fold([event]),))


def prefer(pid: int) -> None:
    """Let the main thread of a process go before other programs, if this user may: they delay it as an attack does."""
    with suppress(psutil.AccessDenied):
        psutil.Process(pid).nice(-10)


@contextmanager
def programs() -> Iterator[list[subprocess.Popen[str]]]:
    """Yield a list of processes, and kill them at the end."""
    started: list[subprocess.Popen[str]] = []
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def play(scene: Scene, broker: Mosquitto, folder: Path, seconds: float) -> tuple[Measured, dict[str, int]]:
    """Measure the good tenant for `seconds` alone, and for as long during the attack.

    Returns the measurements of the good tenant, and the counts of the attack.
    """
    websocket, tcp = free_port(), free_port()
    documents = [
        connection(broker, source("good", good_tenant.SUBJECT)),
        *hostile_connections(websocket, tcp, with_scripts=scene.resource == "scripts"),
    ]
    with ExitStack() as stack:
        if scene.things:
            fill(folder / "data" / "journal.db", scene.things)
        service = stack.enter_context(ServiceProcess.start(folder, documents, **scene.settings))
        started = stack.enter_context(programs())
        attack = Program("attacks", scene.resource, websocket, tcp, ready="prepared")
        started.append(attack.process)
        way = ("websocket", "127.0.0.1", websocket, attacks.SUBJECT)
        if not scene.is_shared:
            way = ("mqtt", broker.host, broker.port, good_tenant.SUBJECT)
        good = Program("good_tenant", *way, RATE, service.pid, ready="ready")
        started.append(good.process)
        for pid in (service.pid, good.process.pid):
            prefer(pid)
        if scene.descriptors is not None:
            resource.prlimit(service.pid, resource.RLIMIT_NOFILE, (scene.descriptors, scene.descriptors))
        watch = _Watch(service)
        watch.measure(SETTLED_AFTER)
        alone = watch.measure(seconds)
        before = watch.memory
        attack.begin("attacking")
        watch.measure(SETTLED_AFTER)
        beside = watch.measure(seconds)
        done = attack.figures()
        good.process.terminate()
        found = good.figures()
    answers = [Answered(*each) for each in found["answers"]]
    measured = Measured(
        within(answers, alone),
        within(answers, beside),
        found["refused"],
        found["unanswered"],
        watch.unreachable,
        watch.memory - before,
        sum(file.stat().st_size for file in (folder / "data").iterdir()),
    )
    return measured, done


class _Watch:
    """Samples the memory and the API of the service."""

    def __init__(self, service: ServiceProcess) -> None:
        self._service = service
        self._process = psutil.Process(service.pid)
        self.memory = 0
        """The highest memory use so far, in bytes."""
        self.unreachable = 0
        """The number of requests to the API without a response."""
        self._asked = 0.0

    def measure(self, seconds: float) -> Span:
        begin = time.monotonic()
        while (left := begin + seconds - time.monotonic()) > 0:
            self.memory = max(self.memory, self._process.memory_info().rss)
            if time.monotonic() > self._asked + ASKED_EVERY:
                self._asked = time.monotonic()
                self.unreachable += self._service.get("/health/live")[0] != 200
            time.sleep(min(max(left, 0.0), SAMPLED_EVERY))
        return Span(begin, begin + seconds)
