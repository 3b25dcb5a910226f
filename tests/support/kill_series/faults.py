"""Random faults in the service, for tests: reads of the store that fail, and handlers that raise.

A `FaultyService` loads this module in its process before it starts. Faults occur while the file `faults` is in the folder
of the service. Each fault adds a line to the file `injected` there, which the checker reads as a log; each start adds a
line to `lives`, and draws other faults.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from connectivity.store.snapshot_cache import SnapshotCache
from connectivity.subscriptions.manager import SubscriptionManager
from connectivity.twins.decider import Decider, asks_for_past
from mappings.model.signals import Command
from spark_store.journal import journal
from tests.support.dice import dice
from tests.support.service_process import ServiceProcess

FAILED_READS, FORGOTTEN, FAILED_HANDLERS = 0.01, 0.2, 0.02
"""The shares of failing reads, of cached states that are read again, and of failing handler calls."""

STATUSES = (500, 503)
"""The statuses of responses to commands with a fault."""


class Faults:
    """Decides at random when to inject a fault."""

    def __init__(self, folder: Path) -> None:
        self._armed, self._injected = folder / "faults", folder / "injected"
        lives = folder / "lives"
        _append(lives, ".")
        self._dice = dice("faults", lives.stat().st_size)
        self.is_serving = False
        """Whether a handler was called: a fault while the journal is opened would end the service."""

    def strike(self, share: float) -> bool:
        return self.is_serving and self._dice.random() < share and self._armed.exists()

    def check(self, share: float, error: Exception, number: bytes | None = None) -> None:
        """Raise `error` for this share of the calls. `number` is the JSON value that the command writes."""
        if self.strike(share):
            _append(self._injected, json.dumps({"faulted": json.loads(number or b"null")}) + "\n")
            raise error


def _append(file: Path, text: str) -> None:
    with file.open("a", encoding="utf-8") as appended:
        appended.write(text)


def install(arguments: Sequence[str]) -> None:
    """Patch faults into the service that starts in this process with these arguments."""
    faults = Faults(Path(arguments[-1]).parent)
    _fail_reads(faults)
    _forget_states(faults)
    for name in ("decide", "needed_past", "show_past"):
        _raise_in(Decider, name, faults, _is_of_load)
    _raise_in(SubscriptionManager, "subscribe", faults)
    _raise_in(SubscriptionManager, "request", faults)


def _is_of_load(command: Command) -> bool:
    """Return whether a load sends such commands; the checker does not."""
    return command.action == "modify" or asks_for_past(command)


def _raise_in(owner: type, name: str, faults: Faults, fails: Callable[[Any], bool] = lambda _: True) -> None:
    original = getattr(owner, name)

    def failing(self: Any, *arguments: Any) -> Any:
        faults.is_serving = True
        if fails(arguments[0]):
            faults.check(FAILED_HANDLERS, RuntimeError("injected"), getattr(arguments[0], "value", None))
        return original(self, *arguments)

    setattr(owner, name, failing)


def _forget_states(faults: Faults) -> None:
    original = SnapshotCache.get

    def get(self: SnapshotCache, *arguments: Any) -> Any:
        return None if faults.strike(FORGOTTEN) else original(self, *arguments)

    SnapshotCache.get = get  # type: ignore[assignment, method-assign]


def _fail_reads(faults: Faults) -> None:
    class Reader(sqlite3.Connection):
        """A connection whose reads fail if it is the journal's connection for reads."""

        is_reader = False

        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            self.is_reader = self.is_reader or "query_only" in sql
            if self.is_reader and sql.lstrip().startswith("SELECT"):
                faults.check(FAILED_READS, sqlite3.OperationalError("disk I/O error"))
            return super().execute(sql, *parameters)

    original = journal._connect
    journal._connect = lambda path, factory: original(path, Reader if factory is sqlite3.Connection else factory)


class FaultyService(ServiceProcess):
    """A service with injected faults between `arm` and `disarm`."""

    wrapper = __name__

    def arm(self) -> None:
        (self.folder / "faults").touch()

    def disarm(self) -> None:
        (self.folder / "faults").unlink(missing_ok=True)

    @property
    def injected(self) -> Path:
        """The log of the injected faults, a line for each."""
        return self.folder / "injected"
