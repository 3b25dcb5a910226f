"""Counts the calls for a message, from the read to the flush, and the modules that contain them.

`python -m tests.bench.message_path` prints a line for each message; with `calls`, also all calls.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop

from connectivity.config.settings import Settings, SparkMode, SparkSettings
from connectivity.service import Service
from tests.bench.harness import SUBJECT, fill, thing
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import client, connection, source
from tests.support.paths import ROOT

SAMPLES = 9
_OURS = tuple(str(ROOT / package) + "/" for package in ("connectivity", "mappings", "spark_store"))
_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Calls:
    """The calls of the project's functions on the event loop's thread while it processes a message."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._found: list[str] = []

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        # Lambdas and comprehensions are parts of their caller; a coroutine is called again when it resumes.
        is_counted = code.co_name[0] != "<" and not code.co_flags & _RESUMED
        if event == "call" and is_counted and (name := code.co_filename).startswith(_OURS):
            self._found.append(f"{name[len(str(ROOT)) + 1 : -3]}:{code.co_qualname}")

    def during(self, exchange: Callable[[], None]) -> list[str]:
        """Return the calls while `exchange` runs in another thread and waits for the reply."""
        self._found = []
        self._on_loop(lambda: sys.setprofile(self._note))
        exchange()
        # The broker's confirm arrives within this time.
        time.sleep(0.02)
        self._on_loop(lambda: sys.setprofile(None))
        return self._found

    def _on_loop(self, action: Callable[[], None]) -> None:
        done = threading.Event()

        def act() -> None:
            action()
            done.set()

        self._loop.call_soon_threadsafe(act)
        done.wait()


@contextmanager
def service_in_thread(folder: Path, document: dict[str, Any]) -> Iterator[Calls]:
    """Run a service on an event loop in a thread, without periodic jobs."""
    connections = folder / "connections"
    connections.mkdir(parents=True, exist_ok=True)
    (connections / "site.json").write_text(json.dumps(document))
    settings = Settings(connections_dir=connections, data_dir=folder / "data", spark=SparkSettings(mode=SparkMode.OFF))
    loop = uvloop.new_event_loop()
    ready = threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        service = Service(settings)
        await service.management.load()
        await service.registry.refresh()
        await asyncio.gather(*(supervisor.attempted.wait() for supervisor in service.registry))
        ready.set()
        await stop.wait()
        await service.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        ready.wait()
        yield Calls(loop)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def position(calls: list[str], name: str, start: int = 0) -> int:
    """Return the position of the first call of a function from `start` on."""
    return next(number for number, call in enumerate(calls) if number >= start and call.endswith(f":{name}"))


def parts(calls: list[str]) -> tuple[list[str], list[str]]:
    """Return the calls from the read to the flush of the output, and those of the confirm."""
    flushed = position(calls, "AsyncMqttClient._flush", position(calls, "Mqtt311.publication"))
    confirmed = position(calls, "AsyncMqttClient._readable", flushed)
    return calls[: flushed + 1], calls[confirmed:]


def least(samples: list[list[str]]) -> list[str]:
    """Return the sample with the fewest calls: the others include timers."""
    return min(samples, key=len)


def measure(folder: Path) -> dict[str, list[str]]:
    """Return the calls of each message."""
    fill(folder / "data" / "journal.db", 1, 200)
    entity = thing(0)
    topic = f"{entity.namespace}/{entity.name}/things/twin"
    found: dict[str, list[str]] = {}
    with Mosquitto.start(persistence=False) as broker:
        document = connection(broker, source("bench", SUBJECT))
        with service_in_thread(folder, document) as calls, client(broker, "bench") as mqtt_client:

            def ask(*command: Any, **more: Any) -> Callable[[], None]:
                def exchange() -> None:
                    mqtt_client.command(*command, **more)
                    mqtt_client.next()

                return exchange

            def several(exchange: Callable[[], Callable[[], None]]) -> tuple[list[str], list[str]]:
                samples = [parts(calls.during(exchange())) for _ in range(SAMPLES)]
                return least([path for path, _ in samples]), least([confirm for _, confirm in samples])

            found["subscribe"], _ = several(lambda: ask(f"{topic}/streaming/subscribeForPersistedEvents"))
            found["request with one next"], found["its confirm"] = several(lambda: _request(mqtt_client, topic))
            found["modify"], _ = several(lambda: ask(f"{topic}/commands/modify", "/attributes/n", 1))
    return found


def _request(mqtt_client: MqttClient, topic: str) -> Callable[[], None]:
    mqtt_client.command(f"{topic}/streaming/subscribeForPersistedEvents")
    created = mqtt_client.next()

    def exchange() -> None:
        mqtt_client.command(f"{topic}/streaming/request", value={**created["value"], "demand": 1})
        mqtt_client.next()

    return exchange


def main(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, calls in measure(Path(folder)).items():
            modules = {call.partition(":")[0] for call in calls}
            print(f"{name}: {len(calls)} calls in {len(modules)} modules")
            if "calls" in arguments:
                print("\n".join(f"    {number:3} {call}" for call, number in Counter(calls).items()))


if __name__ == "__main__":
    main(sys.argv[1:])
