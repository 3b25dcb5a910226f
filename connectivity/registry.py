"""The connections that run, kept as their files want them.

At start every usable connection of the folder gets a supervisor. Later, when a file has changed, only the connections that
differ are touched: new ones are opened, changed ones closed and opened anew, those whose document is gone closed. A file
that has become unusable stops nothing: what it held before goes on running as it was, and the log says what is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from connectivity.files import FileProblem, LoadedFolder, load_folder
from connectivity.model import Connection
from connectivity.supervisor import Supervisor

log = structlog.get_logger(__name__)


class Registry:
    """The supervisors of one folder of connection files."""

    def __init__(self, folder: Path, make: Callable[[Connection], Supervisor], ended: Callable[[str], None]) -> None:
        """`make` builds a supervisor; `ended` is told the id of a connection that is closed for good."""
        self._folder = folder
        self._make = make
        self._ended = ended
        self._supervisors: dict[str, Supervisor] = {}
        self._files: dict[str, Path] = {}
        self._seen: object = ""

    def __iter__(self) -> Iterator[Supervisor]:
        return iter(self._supervisors.values())

    def __getitem__(self, connection_id: str) -> Supervisor:
        return self._supervisors[connection_id]

    async def refresh(self) -> None:
        """Look at the folder, and make the running connections what it says now."""
        seen = _signature(self._folder)
        if seen == self._seen:
            return
        self._seen = seen
        if seen is None:
            log.error("the folder of connections cannot be read; what runs goes on", folder=str(self._folder))
            return
        loaded = load_folder(self._folder)
        for problem in loaded.problems:
            _tell(problem)
        for connection_id in [known for known in self._supervisors if self._is_gone(known, loaded)]:
            await self._close(connection_id)
        for connection_id, connection in loaded.connections.items():
            running = self._supervisors.get(connection_id)
            if running is None or running.connection != connection:
                if running is not None:
                    await self._close(connection_id)
                self._supervisors[connection_id] = supervisor = self._make(connection)
                if connection.connection_status == "open":
                    supervisor.open()
            self._files[connection_id] = loaded.files[connection_id]

    def _is_gone(self, connection_id: str, loaded: LoadedFolder) -> bool:
        """Whether the owner took the document away, and did not just break it."""
        return connection_id not in loaded.connections and self._files[connection_id] not in loaded.broken_files

    async def _close(self, connection_id: str) -> None:
        supervisor = self._supervisors.pop(connection_id)
        log.info("connection closed, its document changed", connection=connection_id)
        await supervisor.close()
        self._ended(connection_id)


def _signature(folder: Path) -> object:
    """What changes whenever a file of the folder does; None for a folder that is not there."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry.name, entry.stat().st_mtime_ns, entry.stat().st_size) for entry in entries)
    except OSError:
        return None


def _tell(found: FileProblem) -> None:
    log.error(
        "connection file has a problem", file=str(found.file), path=found.problem.path, problem=str(found.problem)
    )
