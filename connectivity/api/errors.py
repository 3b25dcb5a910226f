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
    "api:body.invalid": ErrorCode(400, "the body is not JSON of the expected structure, or has an invalid ID or type"),
    "api:body.timeout": ErrorCode(408, "the body did not arrive in time (`api.read_timeout`)"),
    "api:body.toolarge": ErrorCode(413, "the body is larger than `api.max_body`"),
    "api:contenttype.unsupported": ErrorCode(415, "the operation does not support the body's media type"),
    "api:entity.notfound": ErrorCode(404, "the thing, policy or stream partition does not exist and never existed"),
    "api:forbidden": ErrorCode(403, "the role of the token lacks permission"),
    "api:host.foreign": ErrorCode(
        403,
        "the header `Host` is not a loopback name, `api.host`, a name in `api.hosts`, or (if the service requires tokens) "
        "an IP address",
    ),
    "api:method.notallowed": ErrorCode(
        405, "the path does not support the method; `allow` lists the supported methods"
    ),
    "api:origin.foreign": ErrorCode(403, "a web page of another origin requested a change"),
    "api:parameter.invalid": ErrorCode(400, "a query parameter is unknown or invalid"),
    "api:path.notfound": ErrorCode(404, "the path does not exist"),
    "api:request.invalid": ErrorCode(
        400, "the request is not valid HTTP/1.1, or has `content-length` and `transfer-encoding`"
    ),
    "api:requests.toomany": ErrorCode(
        429, "too many requests with a wrong token from one address are waiting for their response"
    ),
    "api:service.stopping": ErrorCode(
        503, "the service stopped before the response; it may have carried out the request"
    ),
    "api:stream.forbidden": ErrorCode(
        403,
        "the token has `grants`, and the document assigns a policy to a stream that no other connection assigns to it",
    ),
    "api:subject.forbidden": ErrorCode(403, "the `grants` of the token do not include every subject of the connection"),
    "api:subjects.missing": ErrorCode(403, "the token has no `subjects`, which searches and permission checks need"),
    "api:store.unavailable": ErrorCode(503, "the store is unavailable"),
    "connectivity:subscription.conflict": ErrorCode(409, "several subscription IDs begin with this prefix"),
    "connectivity:subscription.notfound": ErrorCode(404, "no open subscription has an ID that begins with this prefix"),
    "api:token.misplaced": ErrorCode(400, "the query has a token; send it in the header `authorization`"),
    "api:unauthorized": ErrorCode(401, "the token is missing or invalid"),
    "connectivity:command.invalid": ErrorCode(400, "the command is unknown"),
    "connectivity:connection.configuration.invalid": ErrorCode(
        400, "the connection document has problems; the response lists them"
    ),
    "connectivity:connection.conflict": ErrorCode(
        409, "a connection with this ID exists, or a file owns the connection"
    ),
    "connectivity:connection.failed": ErrorCode(
        504, "the service could not open the connection; it has stored the connection, except in a dry run"
    ),
    "connectivity:connection.history.notfound": ErrorCode(
        404, "the service has stored no revision with this number, or for this time"
    ),
    "connectivity:connection.id.invalid": ErrorCode(400, "the connection ID is invalid"),
    "connectivity:connection.notfound": ErrorCode(404, "the connection does not exist"),
    "connectivity:connection.unavailable": ErrorCode(
        503, "in a dry run: the broker requires a client certificate, and the document has none"
    ),
    "connectivity:id.notsettable": ErrorCode(400, "the ID in the body differs from the ID in the path"),
    "connectivity:precondition.failed": ErrorCode(
        412, "the current revision does not satisfy `if-match` or `if-none-match`"
    ),
    "connectivity:precondition.notmodified": ErrorCode(
        304, "`if-none-match` contains the entity tag of the current revision"
    ),
    "header.invalid": ErrorCode(400, "an invalid header"),
    "internalerror": ErrorCode(500, "internal error; see the service's log"),
    "json.field.missing": ErrorCode(400, "the body lacks a required member"),
    "json.fieldselector.invalid": ErrorCode(400, "`fields` is invalid"),
    "policies:id.invalid": ErrorCode(400, "an invalid policy ID"),
    "rql.expression.invalid": ErrorCode(400, "`filter` is not valid RQL, or compares an unknown property"),
    "thing-search:search.limit": ErrorCode(
        429, "too many searches of these subjects are waiting, or a quota `searches` is exceeded"
    ),
    "thing-search:budget.exceeded": ErrorCode(503, "the search exceeded its time limit"),
    "thing-search:search.option.invalid": ErrorCode(400, "`option` is invalid, or has the cursor of another search"),
    "things:id.invalid": ErrorCode(400, "an invalid thing ID"),
    "json.invalid": ErrorCode(
        400, "the body is not valid JSON, repeats a name, is nested too deep, or has a member of the wrong type"
    ),
}
"""Every code that the API itself answers with, and those of an operation on connections.

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
