"""Conditional requests on connections: `if-match`, `if-none-match`, and requests of the past.

The tag of a connection is `"rev:n"`, n its revision (Ditto connections, HTTP resources). A change is checked when nothing
can come in between, so of two operators who change the same revision one gets 412.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from starlette.datastructures import Headers

from connectivity.api.errors import fault, refusal
from connectivity.errors import OperationRefused
from connectivity.management.definition import Definition, Judge, PastRevision
from connectivity.twins.preconditions import Tags, parse_tags
from mappings.timestamps import parse_instant

AT_REVISION = "at-historical-revision"
AT_TIME = "at-historical-timestamp"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PreconditionFailed(OperationRefused):
    """A precondition failed. `tag` is the present one."""

    def __init__(self, error: str, message: str, tag: str) -> None:
        super().__init__(fault(error, message, f"The current revision is {tag}."))
        self.tag = tag


def precondition_of(headers: Headers) -> Judge:
    """Return the check of a change. Raises OperationRefused for invalid headers."""
    if_match, if_none_match = _tags(headers, "if-match"), _tags(headers, "if-none-match")

    def judge(revision: int | None) -> None:
        if revision is None:
            if if_match is not None:
                raise refusal(
                    "connectivity:precondition.failed", "The connection does not exist, so 'if-match' cannot match."
                )
            return
        tag = f'"rev:{revision}"'
        if if_match is not None and not if_match.match_strongly(tag):
            raise _failed("'if-match' does not contain the current entity tag", tag)
        if if_none_match is not None and if_none_match.match_weakly(tag):
            raise _failed("'if-none-match' contains the current entity tag", tag)

    return judge


def check_retrieve(headers: Headers, definition: Definition) -> None:
    """Raises OperationRefused if the client has this revision already, or wants another."""
    if_match, if_none_match = _tags(headers, "if-match"), _tags(headers, "if-none-match")
    if if_match is not None and not if_match.match_strongly(definition.tag):
        raise _failed("'if-match' does not contain the current entity tag", definition.tag)
    if if_none_match is not None and if_none_match.match_weakly(definition.tag):
        raise PreconditionFailed(
            "connectivity:precondition.notmodified", "The connection has not changed.", definition.tag
        )


def parse_past_revision(revision: int | None, time: str | None) -> PastRevision | None:
    """Return the requested past revision or time; None is the present.

    Raises OperationRefused for conflicting headers.
    """
    if time is None:
        return revision
    if revision is not None:
        raise refusal("header.invalid", f"The request has both '{AT_REVISION}' and '{AT_TIME}', expected only one.")
    nanoseconds = parse_instant(time)
    if nanoseconds is None:
        raise refusal(
            "header.invalid",
            f"'{AT_TIME}' is not a timestamp.",
            "Write it like 2026-02-03T09:12:45Z.",
        )
    try:
        return _EPOCH + timedelta(microseconds=nanoseconds // 1_000)
    except OverflowError:
        raise refusal("header.invalid", f"'{AT_TIME}' is outside the supported range.") from None


def _tags(headers: Headers, name: str) -> Tags | None:
    texts = headers.getlist(name)
    if not texts:
        return None
    tags = parse_tags(", ".join(texts))
    if tags is None:
        raise refusal("header.invalid", f"The header '{name}' contains no entity tag.", 'Write "rev:3", or *.')
    return tags


def _failed(why: str, present: str) -> PreconditionFailed:
    return PreconditionFailed("connectivity:precondition.failed", f"The precondition is not met: {why}.", present)
