"""What operators are told when something is refused: the codes of Ditto's connections, and a few of this service's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from connectivity.errors import Problem
from connectivity.rules import show
from mappings.errors import Fault

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
