"""What an operator may ask about connections: the words that the HTTP API and whoever carries it out have in common.

A connection has one owner: a file of the folder of connection files, or the API. Each change of a definition makes a new
revision, from 1. A definition as it is shown holds no secret: what was given as one stands there as `*****`, and a document
that comes back with that word in its place keeps the secret that is stored.

`Management` is carried out by `connectivity.management.registry`, which knows what runs. Everything refuses with
OperationRefused and nothing else; what it says is meant for the one who asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from connectivity.config.problems import show
from connectivity.errors import Problem
from mappings.errors import Fault

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
class RevisionSelector:
    """Which earlier revision is meant: this one, or the one that was in force at this time."""

    revision: int | None = None
    time: datetime | None = None


@dataclass(frozen=True, slots=True)
class SampleMessage:
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

    async def definition(self, connection_id: str, at: RevisionSelector | None = None) -> Definition:
        """A connection as it is now or was at `at`."""

    async def revisions(self, connection_id: str) -> Sequence[Mapping[str, Any]]:
        """The revisions of a connection, the newest first: `revision`, `modified`, `by`, `action`."""

    async def create(self, document: Document, by: str) -> Definition:
        """A new connection of the API; an `id` is made where the document has none.

        Says nothing about the broker.
        """

    async def put(self, connection_id: str, document: Document, by: str, judge: Judge) -> tuple[Definition, bool]:
        """Make the connection what the document says; whether it is new. Returns when the change runs."""

    async def delete(self, connection_id: str, by: str, judge: Judge) -> None:
        """Delete and close a connection of the API."""

    async def open(self, connection_id: str, by: str) -> None:
        """Want it open, durably, and wait for its clients."""

    async def close(self, connection_id: str, by: str) -> None:
        """Want it closed, durably, and close it."""

    async def test(self, document: Document, sample: SampleMessage | None = None) -> Mapping[str, Any]:
        """Connect on trial: what was found at each source and target, and what became of the sample.

        Stores nothing.
        """

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


_STATUS = {"acknowledgement:label.not.unique": 409}
"""The codes of problems that are no 400."""


def not_found(connection_id: str) -> Fault:
    """There is no such connection."""
    return Fault(
        404,
        "connectivity:connection.notfound",
        f"The Connection with ID '{connection_id}' could not be found.",
        "Check if the ID of the requested Connection was correct.",
    )


def no_history(connection_id: str) -> Fault:
    """There is no such revision of a connection."""
    return Fault(
        404,
        "connectivity:connection.history.notfound",
        f"The Connection with ID '{connection_id}' has no such revision.",
        "List its revisions: the last hundred are kept. Of a connection that a file owns only the newest one is known; its "
        "past is in the file's.",
    )


def exists(connection_id: str) -> Fault:
    """The id is taken."""
    return Fault(
        409,
        "connectivity:connection.conflict",
        f"The Connection with ID '{connection_id}' already exists.",
        "Choose another ID, or modify that connection.",
    )


def owned_by_file(connection_id: str, file: Path | None) -> Fault:
    """A file says what the connection is."""
    return Fault(
        409,
        "connectivity:connection.conflict",
        f"The Connection with ID '{connection_id}' is owned by the file {file}.",
        "Change that file: the service picks it up. Opening and closing is possible here.",
    )


def other_id(connection_id: str, found: object) -> Fault:
    """The document has another id than the address."""
    return Fault(
        400,
        "connectivity:id.notsettable",
        f"found {show(found)} as the document's id, expected {show(connection_id)}, as it is addressed.",
        "Leave the id out of the document.",
    )


def other_type(connection_id: str, former: str, found: str) -> Fault:
    """The connection speaks another protocol than before."""
    return Fault(
        400,
        "connectivity:connection.configuration.invalid",
        f"ConnectionType <{former}> of existing connection <{connection_id}> cannot be changed!",
        f"Found {found}. Delete the connection and create it anew, or create one with another ID.",
    )


def invalid(problems: Sequence[Problem]) -> Fault:
    """A document with problems: the first one says the code."""
    first = problems[0]
    more = f" There are {len(problems) - 1} more problems." if len(problems) > 1 else ""
    return Fault(_STATUS.get(first.code, 400), first.code, f"{first}.{more}")


def unusable(connection_id: str, problems: Sequence[str]) -> Fault:
    """A stored connection that cannot be used as it is."""
    return Fault(
        400,
        "connectivity:connection.configuration.invalid",
        f"The Connection with ID '{connection_id}' cannot be used: {'; '.join(problems)}.",
    )


def failed(connection_id: str, details: str) -> Fault:
    """It is stored, and could not be opened; the service goes on trying."""
    return Fault(
        504,
        "connectivity:connection.failed",
        f"The Connection with ID '{connection_id}' failed to connect.",
        details,
    )


def unavailable(reason: str) -> Fault:
    """The store cannot write or read now."""
    return Fault(503, "api:store.unavailable", f"The store is unavailable: {reason}.", "Nothing was changed.")
