"""The parameters and results of the operations on connections (`connectivity.management.manager`).

A connection has one owner: a connection file, or the API. Each change creates a new revision, from 1. Shown definitions
contain `*****` for each secret; a document that comes back with that keeps the stored secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from connectivity.connections.model import Connection
from connectivity.connections.vault import Document


class Owner(str, Enum):
    """The owner that may change a connection's definition."""

    FILE = "file"
    API = "api"


@dataclass(frozen=True, slots=True)
class Definition:
    """One revision of a connection's definition, as it may be shown.

    `override`: the status (`open` or `closed`) that an operator has set against the connection's file, until the file
    changes. `problems`: those of a newer file, while this definition goes on running.
    """

    id: str
    document: Document
    revision: int
    owner: Owner
    modified: datetime
    file: Path | None = None
    override: str | None = None
    problems: Sequence[str] = ()

    @property
    def tag(self) -> str:
        """The entity tag, as `etag` and `if-match` have it."""
        return f'"rev:{self.revision}"'


PastRevision: TypeAlias = int | datetime
"""Selects an earlier revision: by its number, or as the newest one at a time."""


def is_past_revision(at: PastRevision, revision: int, modified: datetime) -> bool:
    """Whether this revision is the selected one; ask from the newest revision on."""
    return revision == at if isinstance(at, int) else modified <= at


@dataclass(frozen=True, slots=True)
class SampleMessage:
    """A message for a dry run, received at the source with this index."""

    payload: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    source: int = 0
    address: str | None = None
    """The address where it is received; by default the first address of the source."""


Judge: TypeAlias = Callable[[int | None], None]
"""Receives the revision that a change would replace, None if there is none.

Raises OperationRefused if the client expected another. Called when nothing can change in between.
"""


Permit: TypeAlias = Callable[[Connection | None, Iterable[Connection]], None]
"""Receives a connection that a client sends, replaces or controls, and all valid connections.

The first is None for a stored one that is invalid. Raises OperationRefused if the client may not do that.
"""


def permit_all(_connection: Connection | None, _known: Iterable[Connection]) -> None:
    """Permit every connection."""
