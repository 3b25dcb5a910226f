"""The values of commands on search subscriptions (Ditto protocol, search).

A search has no entity, and its path has no meaning. All members of a subscribe are optional; request and cancel need the
subscription's ID. A wrong type is an error of the message; errors in filters and options are reported at the first request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from mappings.ditto import errors
from mappings.ditto.document import (
    DittoMessage,
    Value,
    as_object,
    compact,
    long,
    parse_members,
    parse_value,
    require_value,
    subscription_id,
    text,
    texts,
)
from mappings.errors import DecodeError, UnknownPath
from mappings.ids import EntityId
from mappings.model.field_selector import InvalidSelector, parse_fields
from mappings.model.signals import Cancel, Headers, HistoryQuery, Request, SearchQuery, Subscribe, SubscriptionKind
from mappings.timestamps import parse_instant


def subscribe_to_search(message: DittoMessage, headers: Headers) -> Subscribe:
    """The subscribe of this message. Raises DecodeError."""
    value = parse_value(message.value)
    members = {} if value is None else as_object(value)
    query = SearchQuery(
        filter=text(members, "filter"),
        options=text(members, "options") or None,
        namespaces=texts(members, "namespaces"),
        fields=_selector(message.fields),
        aggregation=_raw(message, "aggregation") if members.get("aggregation") is not None else None,
    )
    return Subscribe(SubscriptionKind.SEARCH, query, headers)


def request_search(message: DittoMessage, headers: Headers) -> Request:
    """The request of this message. Raises DecodeError."""
    members = require_value(parse_value(message.value))
    return Request(SubscriptionKind.SEARCH, subscription_id(members), long(members, "demand") or 0, headers)


def cancel_search(message: DittoMessage, headers: Headers) -> Cancel:
    """The cancel of this message. Raises DecodeError."""
    return Cancel(SubscriptionKind.SEARCH, subscription_id(require_value(parse_value(message.value))), headers)


_Read: TypeAlias = Callable[[DittoMessage, Headers], Subscribe | Request | Cancel]

SEARCH_COMMANDS: dict[str, _Read] = {
    "subscribe": subscribe_to_search,
    "request": request_search,
    "cancel": cancel_search,
}
"""The actions that clients may send."""


def _selector(fields: str | None) -> str | None:
    """Return the selector in the envelope; an empty one selects everything. Raises DecodeError."""
    if not fields:
        return None
    try:
        parse_fields(fields)
    except InvalidSelector as error:
        raise DecodeError(errors.invalid_selector(str(error))) from error
    return fields


def _raw(message: DittoMessage, name: str) -> bytes:
    """Return a member of the value as it was written, without white space."""
    return compact(parse_members(message.value)[name])


def subscribe_to_history(entity: EntityId, path: str, value: Any, headers: Headers) -> Subscribe:
    """The subscribe with this parsed value.

    Raises DecodeError for values of wrong types, UnknownPath for parts.
    """
    if path not in ("", "/"):
        raise UnknownPath(errors.unknown_path(path))
    if not value and value in (None, {}):
        return Subscribe(SubscriptionKind.HISTORY, HistoryQuery(entity), headers)
    members = as_object(value)
    query = HistoryQuery(
        entity,
        from_revision=long(members, "fromHistoricalRevision") or 0,
        to_revision=long(members, "toHistoricalRevision"),
        after=_instant(members, "fromHistoricalTimestamp"),
        before=_instant(members, "toHistoricalTimestamp"),
        filter=text(members, "filter"),
    )
    return Subscribe(SubscriptionKind.HISTORY, query, headers)


def request_history(entity: EntityId, path: str, value: Any, headers: Headers) -> Request:  # noqa: ARG001
    """The request with this parsed value. Raises DecodeError."""
    members = require_value(value)
    return Request(SubscriptionKind.HISTORY, subscription_id(members), long(members, "demand") or 0, headers, entity)


def cancel_history(entity: EntityId, path: str, value: Any, headers: Headers) -> Cancel:  # noqa: ARG001
    """The cancel with this parsed value. Raises DecodeError."""
    return Cancel(SubscriptionKind.HISTORY, subscription_id(require_value(value)), headers, entity)


HISTORY_COMMANDS: dict[str, Callable[[EntityId, str, Any, Headers], Subscribe | Request | Cancel]] = {
    "subscribeForPersistedEvents": subscribe_to_history,
    "request": request_history,
    "cancel": cancel_history,
}
"""The actions that clients may send."""


def _instant(members: Value, name: str) -> int | None:
    written = text(members, name)
    if written is None:
        return None
    instant = parse_instant(written)
    if instant is None:
        raise DecodeError(errors.wrong_type(name, written, "Instant"))
    return instant
