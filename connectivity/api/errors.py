"""Error responses of the HTTP API: the table of codes, and the responses.

Every error is `{"status", "error", "message"}`, with `description` and `problems` if there is more to say. A problem has
`path`, `found`, `expected`, `hint`. A failed connection test includes its `report`. Codes that begin with `connectivity:`
are those of Eclipse Ditto's connectivity (connection model, error codes); `api:` codes concern the request itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from connectivity.errors import OperationRefused, Problem
from mappings.errors import Fault


class ErrorCode(NamedTuple):
    """An error code: the status that it comes with, and when."""

    status: int
    when: str


CODES: Final[Mapping[str, ErrorCode]] = {
    "api:body.invalid": ErrorCode(400, "the body is no JSON of the form that is needed"),
    "api:body.timeout": ErrorCode(408, "the body did not arrive in time (`api.read_timeout`)"),
    "api:body.toolarge": ErrorCode(413, "the body is larger than `api.max_body`"),
    "api:contenttype.unsupported": ErrorCode(415, "the body has another media type than the operation takes"),
    "api:entity.notfound": ErrorCode(404, "there is no such thing, policy or partition of a stream and never was"),
    "api:forbidden": ErrorCode(403, "the role of the token is not enough"),
    "api:host.foreign": ErrorCode(403, "no token is set, and `Host` is no name of the loopback interface"),
    "api:method.notallowed": ErrorCode(405, "the path has no such method; `allow` names those it has"),
    "api:origin.foreign": ErrorCode(403, "a change that a page of another origin asks for"),
    "api:parameter.invalid": ErrorCode(400, "a parameter of the query that is unknown or does not fit"),
    "api:path.notfound": ErrorCode(404, "there is no such path"),
    "api:request.invalid": ErrorCode(400, "what came is no HTTP/1.1, or has two lengths"),
    "api:requests.toomany": ErrorCode(429, "too many wrong tokens from one address wait for their answer"),
    "api:subjects.missing": ErrorCode(403, "a search, and the token has no `subjects` in whose name it could be asked"),
    "api:store.unavailable": ErrorCode(503, "the store cannot be used now"),
    "connectivity:subscription.conflict": ErrorCode(409, "several subscriptions begin so"),
    "connectivity:subscription.notfound": ErrorCode(404, "no open subscription begins so"),
    "api:token.misplaced": ErrorCode(400, "a token in the query; it belongs into the header `authorization`"),
    "api:unauthorized": ErrorCode(401, "no token, or a wrong one"),
    "connectivity:command.invalid": ErrorCode(400, "a command that is none of the five"),
    "connectivity:connection.configuration.invalid": ErrorCode(400, "the connection has problems, which are named"),
    "connectivity:connection.conflict": ErrorCode(409, "the id is taken, or a file owns the connection"),
    "connectivity:connection.failed": ErrorCode(
        504, "the connection could not be opened; unless on trial, it is stored"
    ),
    "connectivity:connection.history.notfound": ErrorCode(404, "nothing is known of this revision or time"),
    "connectivity:connection.id.invalid": ErrorCode(400, "an id that no connection can have"),
    "connectivity:connection.notfound": ErrorCode(404, "there is no such connection"),
    "connectivity:connection.unavailable": ErrorCode(
        503, "on trial: the broker wants a client certificate, and there is none"
    ),
    "connectivity:id.notsettable": ErrorCode(400, "the body names another id than the path"),
    "connectivity:precondition.failed": ErrorCode(
        412, "`if-match` or `if-none-match` does not agree with the present revision"
    ),
    "connectivity:precondition.notmodified": ErrorCode(304, "`if-none-match` names the present revision"),
    "header.invalid": ErrorCode(400, "a header that cannot be understood"),
    "internalerror": ErrorCode(500, "a mistake of our own; the log tells it"),
    "json.fieldselector.invalid": ErrorCode(400, "`fields` cannot be read"),
    "rql.expression.invalid": ErrorCode(400, "`filter` is no RQL, or compares a property that things do not have"),
    "thing-search:budget.exceeded": ErrorCode(503, "nothing more was found in the time that looking may take"),
    "thing-search:search.option.invalid": ErrorCode(400, "`option` cannot be read, or has a cursor of another search"),
    "json.invalid": ErrorCode(400, "the body is no JSON, names a member twice, or is nested too deep"),
}
"""Every code that the API itself answers with, and those of `Management` that belong to an operation.

A connection that has problems is refused with the code of its first problem, which may be a more precise one.
"""


def fault(error: str, message: str, description: str | None = None, **extra: str) -> Fault:
    """A fault of the table."""
    return Fault(CODES[error].status, error, message, description, extra)


def refused(
    error: str, message: str, description: str | None = None, problems: Sequence[Problem] = ()
) -> OperationRefused:
    """Return the exception that refuses a request."""
    return OperationRefused(fault(error, message, description), problems)


def shown(found: Fault, problems: Sequence[Problem] = (), report: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The body of an error answer."""
    body: dict[str, Any] = {"status": found.status, "error": found.error, "message": found.message}
    if found.description is not None:
        body["description"] = found.description
    if problems:
        body["problems"] = [
            {"path": it.path, "found": it.found, "expected": it.expected, "hint": it.hint} for it in problems
        ]
    if report is not None:
        body["report"] = report
    return {**found.extra, **body}
