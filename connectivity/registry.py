"""The connections that run, kept as their files want them.

At start every usable connection of the folder gets a supervisor. Later, when a file has changed, only the connections that
differ are touched: new ones are opened, changed ones closed and opened anew, those whose document is gone closed. A file
that has become unusable stops nothing: what it held before goes on running as it was, and the log says what is wrong. The
files that secrets are in count like the documents that refer to them, so that a new password is used at once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import structlog

from connectivity.documents import SUFFIXES
from connectivity.files import FileProblem, LoadedFolder, load_folder, stamp
from connectivity.model import Connection
from connectivity.supervisor import Supervisor

log = structlog.get_logger(__name__)

DRAIN_SECONDS = 2.0
"""How long the answers of a connection whose document changed may take to leave."""


class Registry:
    """The supervisors of one folder of connection files."""

    def __init__(
        self,
        folder: Path,
        make: Callable[[Connection], Supervisor],
        ended: Callable[[str], None],
        on_known: Callable[[Collection[str]], object] = lambda ids: None,  # noqa: ARG005 - what callers name it
    ) -> None:
        """`make` builds a supervisor; `ended` is told the id of a connection that is closed for good.

        `on_known` is told which connections are to be open, whenever every document of the folder could be read.
        """
        self._on_known = on_known
        self._folder = folder
        self._make = make
        self._ended = ended
        self._supervisors: dict[str, Supervisor] = {}
        self._files: dict[str, Path] = {}
        self._secrets: frozenset[Path] = frozenset()
        """The files that secrets are in."""
        self._seen: object = ""

    def __iter__(self) -> Iterator[Supervisor]:
        return iter(self._supervisors.values())

    def __getitem__(self, connection_id: str) -> Supervisor:
        return self._supervisors[connection_id]

    @property
    def has_looked(self) -> bool:
        """Whether the folder has been looked at: until then there are connections that nobody knows of."""
        return self._seen != ""

    async def refresh(self) -> None:
        """Look at the folder, and make the running connections what it says now. Touches none that did not change."""
        files = _signature(self._folder)
        seen = files, {file: stamp(file) for file in self._secrets}
        if seen == self._seen:
            return
        if files is None:
            self._seen = seen
            log.error(
                "the folder of connections cannot be read; what runs goes on",
                folder=str(self._folder),
                hint="make it, or set connections_dir",
            )
            return
        # Scripts are loaded on trial, each in a process of its own; what runs meanwhile goes on.
        loaded = await asyncio.to_thread(load_folder, self._folder)
        self._secrets = frozenset(loaded.secrets)
        for problem in loaded.problems:
            _tell(problem)
        await asyncio.gather(
            *(
                self._close(known, "changed" if known in loaded.connections else "is gone")
                for known in list(self._supervisors)
                if self._must_end(known, loaded)
            )
        )
        for connection_id, connection in loaded.connections.items():
            self._files[connection_id] = loaded.files[connection_id]
            if (running := self._supervisors.get(connection_id)) is not None:
                running.connection = connection
            else:
                self._supervisors[connection_id] = supervisor = self._make(connection)
                if connection.connection_status == "open":
                    supervisor.open()
        self._seen = files, loaded.secrets
        if not loaded.problems:
            open_ones = [id for id, connection in loaded.connections.items() if connection.connection_status == "open"]
            self._on_known(open_ones)

    def _must_end(self, connection_id: str, loaded: LoadedFolder) -> bool:
        """Whether the document differs, or its owner took it away and did not just break it."""
        wanted = loaded.connections.get(connection_id)
        if wanted is None:
            return self._files[connection_id] not in loaded.broken_files
        return _essence(wanted) != _essence(self._supervisors[connection_id].connection)

    async def _close(self, connection_id: str, what: str) -> None:
        """`what` has become of its document."""
        log.info(f"connection closed, its document {what}", connection=connection_id)
        await self._supervisors[connection_id].close(DRAIN_SECONDS)
        # Only now: whoever stops the service meanwhile must still find it.
        del self._supervisors[connection_id]
        self._ended(connection_id)


def _essence(connection: Connection) -> Connection:
    """The connection without what is for people only: changing that is no reason to make a link anew."""
    return connection.model_copy(update={"name": None, "tags": ()})


def _signature(folder: Path) -> object:
    """What changes whenever a connection file of the folder does; None for a folder that cannot be read."""
    try:
        names = sorted(file for file in os.listdir(folder) if Path(file).suffix.lower() in SUFFIXES)
    except OSError:
        return None
    return [(name, stamp(folder / name)) for name in names]


def _tell(found: FileProblem) -> None:
    log.error(
        "connection file has a problem", file=str(found.file), path=found.problem.path, problem=str(found.problem)
    )
