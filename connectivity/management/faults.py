"""The errors of the operations on connections, as clients receive them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from connectivity.config.problems import show
from connectivity.errors import Problem
from mappings.errors import Fault

_STATUS = {"acknowledgement:label.not.unique": 409}
"""The codes of problems that are no 400."""


def not_found(connection_id: str) -> Fault:
    """Return the error for an unknown connection."""
    return Fault(
        404,
        "connectivity:connection.notfound",
        f"The Connection with ID '{connection_id}' could not be found.",
        "Check if the ID of the requested Connection was correct.",
    )


def no_history(connection_id: str) -> Fault:
    """Return the error for an unknown revision of a connection."""
    return Fault(
        404,
        "connectivity:connection.history.notfound",
        f"The Connection with ID '{connection_id}' has no such revision.",
        "List the revisions to see which ones exist. The service keeps the last 100 revisions. If a file owns the "
        "connection, it keeps only the newest, and the history of the file may contain older versions.",
    )


def exists(connection_id: str) -> Fault:
    """Return the error for an ID that is in use."""
    return Fault(
        409,
        "connectivity:connection.conflict",
        f"The Connection with ID '{connection_id}' already exists.",
        "Choose another ID, or modify the existing connection.",
    )


def owned_by_file(connection_id: str, file: Path | None) -> Fault:
    """Return the error for a connection that a file owns."""
    return Fault(
        409,
        "connectivity:connection.conflict",
        f"The Connection with ID '{connection_id}' is owned by the file {file}.",
        "Change that file, and the service reloads it. The API can only open and close this connection.",
    )


def other_id(connection_id: str, found: object) -> Fault:
    """Return the error for a document with another ID than the address."""
    return Fault(
        400,
        "connectivity:id.notsettable",
        f"id: found {show(found)}, expected {show(connection_id)}, the ID in the request.",
        "Remove the id from the document.",
    )


def other_type(connection_id: str, former: str, found: str) -> Fault:
    """Return the error for a change of the connection type."""
    return Fault(
        400,
        "connectivity:connection.configuration.invalid",
        f"ConnectionType <{former}> of existing connection <{connection_id}> cannot be changed!",
        f"Found the new type {found}. Delete the connection and create it again, or use another ID.",
    )


def invalid(problems: Sequence[Problem]) -> Fault:
    """Return the error for a document with problems, with the code of the first one."""
    first = problems[0]
    rest = len(problems) - 1
    sentence = f"{str(first).removesuffix('.')}."
    more = f" There {'is' if rest == 1 else 'are'} {rest} more problem{'' if rest == 1 else 's'}." if rest else ""
    return Fault(
        _STATUS.get(first.code, 400),
        first.code,
        f"{sentence}{more}",
        "Correct each place in 'problems', and send the document again.",
    )


def unusable(connection_id: str, problems: Sequence[str]) -> Fault:
    """Return the error for a stored connection that is not valid."""
    return Fault(
        400,
        "connectivity:connection.configuration.invalid",
        f"The Connection with ID '{connection_id}' cannot be used: {'; '.join(problems)}.",
        "Correct the document, or the files and environment variables that it refers to.",
    )


def not_opened(connection_id: str, details: str) -> Fault:
    """Return the error for a stored connection that could not be opened; the service keeps trying."""
    return Fault(
        504, "connectivity:connection.failed", f"The Connection with ID '{connection_id}' failed to connect.", details
    )


def unavailable(reason: str, *, may_be_stored: bool = False) -> Fault:
    """Return the error for a store that cannot read or write, although it may have stored the change."""
    description = (
        "It is not known whether the change is stored. If it is, it takes effect as soon as the store is available again. "
        "Retrieve the connection then, before you repeat the request."
        if may_be_stored
        else "Nothing was changed."
    )
    return Fault(503, "api:store.unavailable", f"The store is unavailable: {reason}.", description)
