"""The commands of search subscriptions: what their values have to hold (Ditto protocol, search).

A search is about no entity, and its path says nothing. Everything in the value of a subscribe is optional; request and
cancel need the subscription's id. What is of the wrong type is a mistake of the message. What a filter or an option means is
for whoever answers the search: a mistake in there is told at the first request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from mappings.ditto import faults
from mappings.ditto.document import Message, compact, parse_members, parse_value
from mappings.ditto.members import as_object, long, needed, subscription_id, text, texts
from mappings.errors import DecodeError
from mappings.selection import SelectorRefused, parse_fields
from mappings.signals import Cancel, Headers, Kind, Request, SearchQuery, Subscribe


def subscribe(message: Message, headers: Headers) -> Subscribe:
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
    return Subscribe(Kind.SEARCH, query, headers)


def request(message: Message, headers: Headers) -> Request:
    """The request of this message. Raises DecodeError."""
    members = needed(parse_value(message.value))
    return Request(Kind.SEARCH, subscription_id(members), long(members, "demand") or 0, headers)


def cancel(message: Message, headers: Headers) -> Cancel:
    """The cancel of this message. Raises DecodeError."""
    return Cancel(Kind.SEARCH, subscription_id(needed(parse_value(message.value))), headers)


_Read: TypeAlias = Callable[[Message, Headers], Subscribe | Request | Cancel]

COMMANDS: dict[str, _Read] = {"subscribe": subscribe, "request": request, "cancel": cancel}
"""The actions that clients may send."""


def _selector(fields: str | None) -> str | None:
    """What the envelope selects; an empty selector selects everything. Raises DecodeError."""
    if not fields:
        return None
    try:
        parse_fields(fields)
    except SelectorRefused as error:
        raise DecodeError(faults.invalid_selector(str(error))) from error
    return fields


def _raw(message: Message, name: str) -> bytes:
    """A member of the value as it was written, without white space."""
    return compact(parse_members(message.value)[name])
