"""The commands of streaming subscriptions: what their values have to hold (Ditto protocol, streaming subscriptions).

Everything in the value of a subscribe is optional; request and cancel need the subscription's id. A demand that is missing
counts as 0: that is a mistake of the subscription, which the engine answers, and none of the message. Members that are null
count as absent, unknown ones are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mappings.ditto import faults
from mappings.ditto.instants import parse_instant
from mappings.ditto.members import Value, as_object, long, needed, subscription_id, text
from mappings.errors import DecodeError, UnknownPath
from mappings.ids import EntityId
from mappings.signals import Cancel, Headers, HistoryQuery, Kind, Request, Subscribe


def subscribe(entity: EntityId, path: str, value: Any, headers: Headers) -> Subscribe:
    """The subscribe with this parsed value. Raises DecodeError for values of wrong types, UnknownPath for parts."""
    if path not in ("", "/"):
        raise UnknownPath(faults.unknown_path(path))
    members = {} if value is None else as_object(value)
    query = HistoryQuery(
        entity,
        from_revision=long(members, "fromHistoricalRevision") or 0,
        to_revision=long(members, "toHistoricalRevision"),
        after=_instant(members, "fromHistoricalTimestamp"),
        before=_instant(members, "toHistoricalTimestamp"),
        filter=text(members, "filter"),
    )
    return Subscribe(Kind.HISTORY, query, headers)


def request(entity: EntityId, path: str, value: Any, headers: Headers) -> Request:  # noqa: ARG001
    """The request with this parsed value. Raises DecodeError."""
    members = needed(value)
    return Request(Kind.HISTORY, subscription_id(members), long(members, "demand") or 0, headers, entity)


def cancel(entity: EntityId, path: str, value: Any, headers: Headers) -> Cancel:  # noqa: ARG001
    """The cancel with this parsed value. Raises DecodeError."""
    return Cancel(Kind.HISTORY, subscription_id(needed(value)), headers, entity)


COMMANDS: dict[str, Callable[[EntityId, str, Any, Headers], Subscribe | Request | Cancel]] = {
    "subscribeForPersistedEvents": subscribe,
    "request": request,
    "cancel": cancel,
}
"""The actions that clients may send."""


def _instant(members: Value, name: str) -> int | None:
    written = text(members, name)
    if written is None:
        return None
    instant = parse_instant(written)
    if instant is None:
        raise DecodeError(faults.wrong_type(name, written, "Instant"))
    return instant
