"""A connection manager with a real journal, and fake brokers that tests control."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from connectivity.connections.lifecycle import Status
from connectivity.connections.model import Connection
from connectivity.connections.secret_references import ReferenceRules
from connectivity.connections.vault import Vault
from connectivity.errors import OperationRefused
from connectivity.management.definition import Definition, Judge, SampleMessage
from connectivity.management.manager import ConnectionManager
from connectivity.management.registry import ConnectionRegistry
from connectivity.management.subscription_table import SubscriptionTable
from connectivity.management.watcher import FolderWatcher
from connectivity.monitoring.prometheus import PrometheusRegistry
from connectivity.store.connection_repository import ConnectionRepository
from connectivity.store.options import StoreOptions
from connectivity.store.store import Store
from connectivity.subscriptions.limits import SubscriptionLimits
from connectivity.subscriptions.manager import SubscriptionManager
from mappings.errors import INTERNAL_ERROR, Fault
from spark_store.journal.journal import Journal
from tests.support.failing_sqlite import Fragile

NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)


def agree(_revision: int | None) -> None:
    """Permit each revision to be replaced."""


def only(wanted: int | None) -> Judge:
    """Return a judge that permits only this revision to be replaced."""

    def judge(found: int | None) -> None:
        if found != wanted:
            raise OperationRefused(Fault(412, "connectivity:precondition.failed", f"found {found}"))

    return judge


async def _not_tested(_connection: Connection, _sample: SampleMessage | None) -> Mapping[str, Any]:
    return {}


class FakeSupervisor:
    """A supervisor that records the actions on its connection, and has the status that the harness sets."""

    def __init__(self, connection: Connection, harness: ManagementHarness) -> None:
        self.connection = connection
        self.attempted = asyncio.Event()
        self.status, self.status_details = Status.UNKNOWN, "connecting"
        self.clients: list[Any] = []
        self._bench = harness

    def status_report(self, wanted: str) -> dict[str, Any]:
        return {"connectionStatus": wanted, "liveStatus": self.status.value}

    def enable_logs(self) -> None:
        self._bench.logs.append(f"enable {self.connection.id}")

    def open(self) -> None:
        self._bench.reported.append(f"open {self.connection.id}")
        self.answer()

    def answer(self) -> None:
        if self._bench.broker is not None:
            self.status, self.status_details = self._bench.broker
            self.attempted.set()

    async def hand_over(self, successor: Connection | None, others: Sequence[Connection]) -> None:
        """There are no sessions."""

    async def close(self, drain: float = 0.0) -> None:
        self._bench.reported.append(f"close {self.connection.id}")
        await self._bench.may_close.wait()


class ManagementHarness:
    """A manager with a real journal, and fake brokers that tests control."""

    def __init__(self, folder: Path, keys: tuple[bytes, ...]) -> None:
        self.folder = folder / "connections"
        self.folder.mkdir(exist_ok=True)
        self.reported: list[str] = []
        self.monitor = PrometheusRegistry()
        self.logs: list[str] = []
        """The actions on connection logs."""
        self.broker: tuple[Status, str] | None = (Status.OPEN, "connected")
        self.may_close = asyncio.Event()
        self.may_close.set()
        self.time = NOW
        self.may_be_open: Callable[[str], bool] = lambda _id: True
        """Whether the targets of a connection keep their positions."""
        self.journal = Journal.open(folder / "journal.db", factory=Fragile)
        self.store = Store(self.journal, StoreOptions(probe_min=0.001, probe_max=0.002))
        self.definitions = definitions = ConnectionRepository(self.store)
        vault = Vault(keys)
        self.streams = SubscriptionManager(lambda _signal, _subjects: INTERNAL_ERROR, SubscriptionLimits(), lambda: 0.0)
        self.registry = ConnectionRegistry(
            FolderWatcher(self.folder, pause=lambda _seconds: None),
            lambda connection: FakeSupervisor(connection, self),  # type: ignore[arg-type, return-value]
            lambda _id: None,
            self._known,
            now=self.now,
            keep_notes=definitions.note_files,
        )
        self.manager = ConnectionManager(
            self.registry,
            definitions,
            vault,
            self.monitor,
            SubscriptionTable(self.streams),
            _not_tested,
            references=ReferenceRules(folders=[folder / "secrets"], variables=["DEPOT_*"]),
            now=self.now,
            patience=0.05,
        )

    def _known(self, may_be_open: Callable[[str], bool]) -> None:
        self.may_be_open = may_be_open

    def now(self) -> datetime:
        return self.time

    async def started(self) -> ManagementHarness:
        await self.manager.load()
        await self.registry.refresh()
        return self

    def write(self, name: str, content: object) -> None:
        file = self.folder / name
        file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        self.time += timedelta(seconds=1)
        stamp = int(self.time.timestamp() * 1e9)
        os.utime(file, ns=(stamp, stamp))

    def done(self) -> list[str]:
        reported, self.reported = self.reported, []
        return reported

    async def settled(self) -> list[str]:
        """Wait until no work is left, and return the completed actions."""
        await self.registry.refresh()
        return self.done()


def document(topic: str = "in", **more: Any) -> dict[str, Any]:
    return {
        "connectionType": "mqtt",
        "connectionStatus": "open",
        "uri": "tcp://127.0.0.1:1883",
        "sources": [{"addresses": [topic], "qos": 1, "authorizationContext": ["acme:x"]}],
        **more,
    }


async def refused(asked: Any) -> Fault:
    with pytest.raises(OperationRefused) as caught:
        await asked
    return caught.value.fault


def error_of(fault: Fault) -> tuple[int, str]:
    """Return status and error code of a fault."""
    return fault.status, fault.error


async def put(harness: ManagementHarness, connection_id: str, **more: Any) -> Definition:
    found, _ = await harness.manager.put(connection_id, document(**more), "ada", agree)
    return found
