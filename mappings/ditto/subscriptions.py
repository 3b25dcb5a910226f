"""The commands on subscriptions to searches and histories (Ditto protocol, search and streaming).

A search has no entity, and its path has no meaning. All members of a subscribe are optional; request and cancel need the
subscription's ID. A wrong type is an error of the message; errors in filters and options are reported at the first request.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

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


def _subscribe_to_search(message: DittoMessage, headers: Headers) -> Subscribe:
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


def _subscribe_to_history(message: DittoMessage, headers: Headers, entity: EntityId) -> Subscribe:
    """Raises UnknownPath for a part of the entity."""
    if message.path not in ("", "/"):
        raise UnknownPath(errors.unknown_path(message.path))
    value = parse_value(message.value)
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


def _instant(members: Value, name: str) -> int | None:
    written = text(members, name)
    if written is None:
        return None
    instant = parse_instant(written)
    if instant is None:
        raise DecodeError(errors.wrong_type(name, written, "Instant"))
    return instant


def _request(
    kind: SubscriptionKind, message: DittoMessage, headers: Headers, entity: EntityId | None = None
) -> Request:
    members = require_value(parse_value(message.value))
    return Request(kind, subscription_id(members), long(members, "demand") or 0, headers, entity)


def _cancel(kind: SubscriptionKind, message: DittoMessage, headers: Headers, entity: EntityId | None = None) -> Cancel:
    return Cancel(kind, subscription_id(require_value(parse_value(message.value))), headers, entity)


_Command: TypeAlias = Subscribe | Request | Cancel

SEARCH_COMMANDS: dict[str, Callable[[DittoMessage, Headers], _Command]] = {
    "subscribe": _subscribe_to_search,
    "request": partial(_request, SubscriptionKind.SEARCH),
    "cancel": partial(_cancel, SubscriptionKind.SEARCH),
}
"""The actions that clients may send → the function that reads a message. It raises DecodeError."""

HISTORY_COMMANDS: dict[str, Callable[[DittoMessage, Headers, EntityId], _Command]] = {
    "subscribeForPersistedEvents": _subscribe_to_history,
    "request": partial(_request, SubscriptionKind.HISTORY),
    "cancel": partial(_cancel, SubscriptionKind.HISTORY),
}
"""The same for the history of an entity."""
