"""Compares connection files with what is known, and decides what to do. Pure.

`compare_folder` returns the connections that files own now, and notes on them; `steps` returns what turns one running
connection into the desired one. An unreadable file changes nothing: its last content goes on, with the problems. A
changed document is a new revision and ends an operator's override. An ID that the API owns stays the API's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from connectivity.config.problems import show
from connectivity.connections.model import Connection, ConnectionStatus
from connectivity.connections.vault import Document
from connectivity.errors import Problem
from connectivity.management.definition import Owner
from connectivity.management.files import FileProblem, LoadedFolder
from spark_store.records import FileNote

OPEN = ConnectionStatus.OPEN.value
CLOSED = ConnectionStatus.CLOSED.value


@dataclass(frozen=True, slots=True)
class DesiredConnection:
    """The desired state of a connection.

    `document` is as its owner wrote it, and may contain secrets; `digest` identifies it. `connection` is None for a stored
    one that is invalid; `problems` say why.
    """

    id: str
    owner: Owner
    document: Document = field(repr=False)
    connection: Connection | None
    revision: int
    modified: datetime
    file: Path | None = None
    override: str | None = None
    problems: tuple[str, ...] = ()
    digest: str = ""

    @property
    def status(self) -> str:
        """The desired status: `open`, or another one that does not open."""
        return self.override or str(self.document.get("connectionStatus", CLOSED))

    @property
    def should_open(self) -> bool:
        """Whether its owner wants it open, also if its document is invalid."""
        return self.status == OPEN

    @property
    def running(self) -> Connection | None:
        """The connection that should run; None for nothing."""
        connection = self.connection
        if connection is None or not self.should_open:
            return None
        if connection.connection_status == OPEN:
            return connection
        return connection.model_copy(update={"connection_status": ConnectionStatus.OPEN})


class FolderReading(NamedTuple):
    """The content of all files: connections by ID, changed notes, and all problems."""

    desired: dict[str, DesiredConnection]
    notes: list[FileNote]
    problems: Sequence[FileProblem]


def compare_folder(
    loaded: LoadedFolder,
    before: Mapping[str, DesiredConnection],
    notes: Mapping[str, FileNote],
    taken: Container[str],
    digests: Mapping[str, str],
    now: datetime,
) -> FolderReading:
    """Compare a reading of the folder with the connections that files owned `before`.

    `notes` are the earlier ones, `taken` the IDs that the API owns, `digests` identify documents.
    """
    wanted: dict[str, DesiredConnection] = {}
    changed: list[FileNote] = []
    problems = list(loaded.problems)
    for connection_id, connection in loaded.connections.items():
        file = loaded.files[connection_id]
        if connection_id in taken:
            problems.append(FileProblem(file, owned_by_api(connection_id)))
            continue
        note, digest = notes.get(connection_id), digests[connection_id]
        if note is None or note.digest != digest:
            note = FileNote(connection_id, 1 if note is None else note.revision + 1, digest, now.isoformat(), None)
            changed.append(note)
        elif (former := before.get(connection_id)) is not None and former.connection is connection:
            wanted[connection_id] = former if not former.problems else replace(former, problems=())
            continue
        wanted[connection_id] = _owned_by_file(connection, loaded.documents[connection_id], note, file)
    broken = loaded.broken_files
    for connection_id in before.keys() - wanted.keys():
        former = before[connection_id]
        if connection_id in taken:
            continue
        if former.file in broken:
            reported = tuple(str(problem) for problem in problems if problem.file == former.file)
            wanted[connection_id] = replace(former, problems=reported)
        elif (note := notes.get(connection_id)) is not None and note.digest:
            changed.append(note._replace(digest="", override=None))
    return FolderReading(wanted, changed, problems)


def _owned_by_file(connection: Connection, document: Document, note: FileNote, file: Path) -> DesiredConnection:
    return DesiredConnection(
        note.id,
        Owner.FILE,
        document,
        connection,
        note.revision,
        datetime.fromisoformat(note.modified),
        file,
        note.override,
        digest=note.digest,
    )


def owned_by_api(connection_id: str) -> Problem:
    """A file names a connection that the API owns."""
    return Problem(
        "id",
        f"{show(connection_id)}, the ID of a connection that was created through the API",
        "another ID",
        "or delete that connection through the API, and the file will own the ID",
    )


def digest_of(document: Document) -> str:
    """Return a value that differs whenever documents do."""
    text = json.dumps(document, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class ReconcileStep(Enum):
    """One step for a running connection."""

    CLOSE = "close"
    OPEN = "open"
    ADOPT = "adopt"
    """Only descriptive fields differ: no new link is needed."""


def steps(wanted: Connection | None, running: Connection | None) -> tuple[ReconcileStep, ...]:
    """Return the steps from `running` to `wanted`; None is a connection that does not run."""
    if wanted is None:
        return () if running is None else (ReconcileStep.CLOSE,)
    if running is None:
        return (ReconcileStep.OPEN,)
    if wanted == running:
        return ()
    return (
        (ReconcileStep.ADOPT,) if _essence(wanted) == _essence(running) else (ReconcileStep.CLOSE, ReconcileStep.OPEN)
    )


def _essence(connection: Connection) -> Connection:
    """Return the connection without descriptive fields."""
    return connection.model_copy(update={"name": None, "tags": ()})
