"""A running connection with a broker in the same process, for tests of the supervisor."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from itertools import count
from typing import Any, ClassVar

import pytest

from connectivity.connections.lifecycle import Status
from connectivity.management import client as module
from connectivity.management.client import Backoff
from connectivity.management.status_report import metrics_of
from connectivity.management.supervisor import Supervisor
from connectivity.monitoring.meter import Meter
from connectivity.transports.base import ConnectionType, ConsumeOptions
from connectivity.validation import limitations
from tests.support.in_process.service import NOW, ConnectionHarness, connection, creation, pause, turn, until
from tests.support.memory_transport import MemoryBroker
from tests.support.wait import PATIENCE

AT_ONCE = Backoff(0.001, 0.002)
_names = count()


class Running:
    """A connection to its own broker, which is not open yet."""

    made: ClassVar[list[Running]] = []
    """The connections to close at the end of the test."""

    def __init__(self, *sources: dict[str, Any], pauses: Backoff = AT_ONCE, **more: Any) -> None:
        name = f"broker-{next(_names)}"
        self.broker = MemoryBroker.named(name)
        self.harness = ConnectionHarness(*sources, mappingDefinitions=more.get("mappingDefinitions", {}))
        self.connection = connection(*sources, uri=f"memory://{name}:1", **more)
        self._pauses = pauses
        self.supervisor = self._supervisor()
        Running.made.append(self)

    def _supervisor(self) -> Supervisor:
        return Supervisor(
            self.connection,
            self.harness.assembly,
            self.harness.store,
            self.harness.monitor,
            pauses=self._pauses,
            consume=ConsumeOptions(1 << 20),
            now=lambda: NOW,
        )

    @property
    def meter(self) -> Meter:
        return self.harness.monitor.find_meter(self.connection.id)

    @classmethod
    async def opened(cls, *sources: dict[str, Any], **more: Any) -> Running:
        """Return an open connection with a lamp."""
        running = cls(*sources, **more)
        running.supervisor.open()
        await running.open_again()
        running.send(creation())
        await until(lambda: running.answers())
        await pause()
        running.broker.taken.clear()
        return running

    async def reopen(self) -> None:
        """Close the connection and open it again."""
        await self.supervisor.close()
        self.supervisor = self._supervisor()
        self.supervisor.open()
        await until(lambda: self.broker.links)

    async def open_again(self) -> None:
        await until(lambda: self.supervisor.status is Status.OPEN)

    async def end(self) -> None:
        await asyncio.wait_for(self.supervisor.close(), PATIENCE)
        await self.harness.close()

    async def linked_again(self) -> None:
        """Cut the link and wait for the next one."""
        self.broker.cut("the cable was cut")
        await until(lambda: self.broker.links)
        await self.open_again()

    def send(self, *payloads: bytes, to: str = "in", **headers: str) -> None:
        for payload in payloads:
            self.broker.send(to, payload, {name.replace("_", "-"): value for name, value in headers.items()})

    def answers(self, address: str = "out") -> list[dict[str, Any]]:
        return [json.loads(envelope.payload) for envelope in self.broker.sent_to(address)]

    def correlations(self, address: str = "out") -> list[str]:
        return [answer["headers"]["correlation-id"] for answer in self.answers(address)]

    async def answered(self, number: int, address: str = "out") -> list[str]:
        """Wait for `number` responses and return their correlation IDs."""
        await until(lambda: len(self.answers(address)) >= number)
        await pause()
        return self.correlations(address)

    def unsettled(self, source: int = 0) -> int:
        """Return the number of deliveries that are not settled."""
        queue = self.broker._queues[self.connection.id, source]
        return len(queue.waiting) + sum(map(len, queue.unsettled.values()))

    def log_entries(self) -> list[dict[str, Any]]:
        """Return the entries of the connection log, oldest first."""
        found: list[dict[str, Any]] = self.meter.log.read()["connectionLogs"]
        return found

    def metrics(self) -> Mapping[str, Any]:
        return metrics_of(self.meter, self.connection)

    def up(self) -> float | None:
        found: float | None = self.harness.monitor.registry.get_sample_value(
            "connectivity_connection_up", {"connection": "site"}
        )
        return found


def numbered(*numbers: int) -> list[bytes]:
    return [turn(number, correlation_id=str(number)) for number in numbers]


def with_broker(monkeypatch: pytest.MonkeyPatch, made: ConnectionType) -> None:
    for place in (module, limitations):
        monkeypatch.setattr(place, "load_connection_type", lambda _name: made)
