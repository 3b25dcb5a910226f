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
    "api:body.invalid": ErrorCode(400, "the body is not JSON of the expected structure"),
    "api:body.timeout": ErrorCode(408, "the body did not arrive in time (`api.read_timeout`)"),
    "api:body.toolarge": ErrorCode(413, "the body is larger than `api.max_body`"),
    "api:contenttype.unsupported": ErrorCode(415, "the operation does not support the body's media type"),
    "api:entity.notfound": ErrorCode(404, "the thing, policy or stream partition does not exist and never existed"),
    "api:forbidden": ErrorCode(403, "the role of the token lacks permission"),
    "api:host.foreign": ErrorCode(
        403, "`Host` is no loopback name, `api.host`, name in `api.hosts` or, with a token, IP address"
    ),
    "api:method.notallowed": ErrorCode(
        405, "the path does not support the method; `allow` lists the supported methods"
    ),
    "api:origin.foreign": ErrorCode(403, "a change requested by a page of another origin"),
    "api:parameter.invalid": ErrorCode(400, "a query parameter is unknown or invalid"),
    "api:path.notfound": ErrorCode(404, "there is no such path"),
    "api:request.invalid": ErrorCode(400, "the request is not valid HTTP/1.1, or has two lengths"),
    "api:requests.toomany": ErrorCode(429, "too many requests with a wrong token from one address are pending"),
    "api:stream.forbidden": ErrorCode(
        403, "a token with `grants` lists a stream with a policy that no connection lists it with"
    ),
    "api:subject.forbidden": ErrorCode(403, "the `grants` of the token lack a subject of the connection"),
    "api:subjects.missing": ErrorCode(403, "a search or a check of permissions with a token without `subjects`"),
    "api:store.unavailable": ErrorCode(503, "the store is unavailable"),
    "connectivity:subscription.conflict": ErrorCode(409, "several subscription IDs begin with this prefix"),
    "connectivity:subscription.notfound": ErrorCode(404, "no open subscription ID begins with this prefix"),
    "api:token.misplaced": ErrorCode(400, "a token in the query; send it in the header `authorization`"),
    "api:unauthorized": ErrorCode(401, "the token is missing or invalid"),
    "connectivity:command.invalid": ErrorCode(400, "an unknown command"),
    "connectivity:connection.configuration.invalid": ErrorCode(
        400, "the connection document has problems, which are listed"
    ),
    "connectivity:connection.conflict": ErrorCode(409, "the id is taken, or a file owns the connection"),
    "connectivity:connection.failed": ErrorCode(
        504, "the connection could not be opened; it is stored, except in a dry run"
    ),
    "connectivity:connection.history.notfound": ErrorCode(404, "there is no stored revision for this number or time"),
    "connectivity:connection.id.invalid": ErrorCode(400, "an invalid connection ID"),
    "connectivity:connection.notfound": ErrorCode(404, "there is no such connection"),
    "connectivity:connection.unavailable": ErrorCode(
        503, "in a dry run: the broker requires a client certificate, and the document has none"
    ),
    "connectivity:id.notsettable": ErrorCode(400, "the ID in the body differs from the ID in the path"),
    "connectivity:precondition.failed": ErrorCode(
        412, "the current revision does not satisfy `if-match` or `if-none-match`"
    ),
    "connectivity:precondition.notmodified": ErrorCode(304, "`if-none-match` names the current revision"),
    "header.invalid": ErrorCode(400, "an invalid header"),
    "internalerror": ErrorCode(500, "internal error; see the service's log"),
    "json.field.missing": ErrorCode(400, "a member of the body is missing"),
    "json.fieldselector.invalid": ErrorCode(400, "`fields` is invalid"),
    "policies:id.invalid": ErrorCode(400, "an invalid policy ID"),
    "rql.expression.invalid": ErrorCode(400, "`filter` is not valid RQL, or compares an unknown property"),
    "thing-search:search.limit": ErrorCode(
        429, "too many searches of these subjects wait, or a quota `searches` is used up"
    ),
    "thing-search:budget.exceeded": ErrorCode(503, "the search exceeded its time limit"),
    "thing-search:search.option.invalid": ErrorCode(400, "`option` is invalid, or has the cursor of another search"),
    "things:id.invalid": ErrorCode(400, "an invalid thing ID"),
    "json.invalid": ErrorCode(
        400, "the body is not valid JSON, repeats a name, is nested too deep, or has a member of the wrong type"
    ),
}
"""Every code that the API itself answers with, and those of `Management` that belong to an operation.

A connection that has problems is refused with the code of its first problem, which may be a more precise one.
"""


def fault(error: str, message: str, description: str | None = None, **extra: str) -> Fault:
    """A fault of the table."""
    return Fault(CODES[error].status, error, message, description, extra)


def refusal(
    error: str, message: str, description: str | None = None, problems: Sequence[Problem] = ()
) -> OperationRefused:
    """Return the exception that refuses a request."""
    return OperationRefused(fault(error, message, description), problems)


def error_body(
    found: Fault, problems: Sequence[Problem] = (), report: Mapping[str, Any] | None = None
) -> dict[str, Any]:
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
