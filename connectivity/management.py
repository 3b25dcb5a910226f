"""What an operator may ask about connections: the words that the HTTP API and whoever carries it out have in common.

A connection has one owner: a file of the folder of connection files, or the API. Each change of a definition makes a new
revision, from 1. A definition as it is shown holds no secret: what was given as one stands there as `*****`, and a document
that comes back with that word in its place keeps the secret that is stored.

`Management` is carried out by `connectivity.registry`, which knows what runs. Everything refuses with OperationRefused and
nothing else; what it says is meant for the one who asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

Document: TypeAlias = Mapping[str, Any]
"""A connection as JSON has it."""


class Owner(str, Enum):
    """Who may change a connection's definition."""

    FILE = "file"
    API = "api"


@dataclass(frozen=True, slots=True)
class Definition:
    """One revision of a connection's definition, as it may be shown.

    `override`: the status that an operator asked for (`open` or `closed`) of a connection whose file says something else;
    it is dropped when the file changes. `problems`: what is wrong with a newer file, while this definition goes on running.
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


@dataclass(frozen=True, slots=True)
class Moment:
    """Which earlier revision is meant: this one, or the one that was in force at this time."""

    revision: int | None = None
    time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """A message to be mapped on trial, as it might come in at the source with this index."""

    payload: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    source: int = 0
    address: str | None = None
    """Where it arrives; the first address of the source if it is not said."""


MOST_LISTED: Final = 1_000
"""So many subscriptions are listed where nobody says how many: there may be a hundred thousand."""

Judge: TypeAlias = Callable[[int | None], None]
"""Is told the revision that a change would replace, None where there is none, and raises OperationRefused if the one who
asks wanted another. Called when nothing can come in between any more."""


class Management(Protocol):
    """The connections, as an operator sees and changes them. `by` is who asks, for the audit log.

    A change is durable when its method returns. Each raises OperationRefused: `connectivity:connection.notfound` (404),
    `connectivity:connection.conflict` (409, an id that exists, or one that a file owns), those of a document with problems
    (400), `connectivity:connection.failed` (504, stored, and could not be opened), `api:store.unavailable` (503).
    """

    def ids(self) -> Sequence[str]:
        """The ids of all connections, sorted."""

    async def definitions(self) -> Sequence[Definition]:
        """All connections, sorted by id."""

    async def definition(self, connection_id: str, at: Moment | None = None) -> Definition:
        """A connection as it is now or was at `at`."""

    async def revisions(self, connection_id: str) -> Sequence[Mapping[str, Any]]:
        """The revisions of a connection, the newest first: `revision`, `modified`, `by`, `action`."""

    async def create(self, document: Document, by: str) -> Definition:
        """A new connection of the API; an `id` is made where the document has none. Says nothing about the broker."""

    async def put(self, connection_id: str, document: Document, by: str, judge: Judge) -> tuple[Definition, bool]:
        """Make the connection what the document says; whether it is new. Returns when the change runs."""

    async def delete(self, connection_id: str, by: str, judge: Judge) -> None:
        """Delete and close a connection of the API."""

    async def open(self, connection_id: str, by: str) -> None:
        """Want it open, durably, and wait for its clients."""

    async def close(self, connection_id: str, by: str) -> None:
        """Want it closed, durably, and close it."""

    async def test(self, document: Document, sample: Sample | None = None) -> Mapping[str, Any]:
        """Connect on trial: what was found at each source and target, and what became of the sample. Stores nothing."""

    def status(self, connection_id: str) -> Mapping[str, Any]:
        """What the connection does, as `GET …/status` shows it."""

    def metrics(self, connection_id: str) -> Mapping[str, Any]:
        """What the connection has counted, as `GET …/metrics` shows it."""

    def logs(self, connection_id: str) -> Mapping[str, Any]:
        """What has happened to the connection, as `GET …/logs` shows it."""

    async def reset_metrics(self, connection_id: str, by: str) -> None:
        """Count from zero."""

    async def enable_logs(self, connection_id: str, by: str) -> None:
        """Keep log entries for the usual time, from now."""

    async def reset_logs(self, connection_id: str, by: str) -> None:
        """Forget the log entries."""

    def subscription_count(self) -> int:
        """How many subscriptions are open."""

    def subscriptions(self, limit: int = MOST_LISTED) -> Sequence[Mapping[str, Any]]:
        """So many of those that are open at most: `id` (its first characters), `connection`, `entity`, `demand`, `sent`,
        `idle` (seconds)."""

    async def cancel_subscription(self, prefix: str, by: str) -> None:
        """End the one subscription whose id begins so; its client is sent `failed`. 404 for none, 409 for several."""

    async def audit(self, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        """Who changed what, the newest first: `at`, `by`, `action`, `connection`, `revision`."""
