"""The commands of streaming subscriptions: what their values have to hold (Ditto protocol, streaming subscriptions).

Everything in the value of a subscribe is optional; request and cancel need the subscription's id. A demand that is missing
counts as 0: that is a mistake of the subscription, which the engine answers, and none of the message. Members that are null
count as absent, unknown ones are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from mappings.ditto import faults
from mappings.ditto.instants import parse_instant
from mappings.errors import DecodeError, UnknownPath
from mappings.ids import EntityId
from mappings.signals import Cancel, Headers, HistoryQuery, Kind, Request, Subscribe

_LONG = 1 << 63
Value: TypeAlias = Mapping[str, Any]


def subscribe(entity: EntityId, path: str, value: Any, headers: Headers) -> Subscribe:
    """The subscribe with this parsed value. Raises DecodeError for values of wrong types, UnknownPath for parts."""
    if path not in ("", "/"):
        raise UnknownPath(faults.unknown_path(path))
    members = {} if value is None else _object(value)
    query = HistoryQuery(
        entity,
        from_revision=_long(members, "fromHistoricalRevision") or 0,
        to_revision=_long(members, "toHistoricalRevision"),
        after=_instant(members, "fromHistoricalTimestamp"),
        before=_instant(members, "toHistoricalTimestamp"),
        filter=_text(members, "filter"),
    )
    return Subscribe(Kind.HISTORY, query, headers)


def request(entity: EntityId, path: str, value: Any, headers: Headers) -> Request:  # noqa: ARG001
    """The request with this parsed value. Raises DecodeError."""
    members = _needed(value)
    return Request(Kind.HISTORY, _subscription_id(members), _long(members, "demand") or 0, headers, entity)


def cancel(entity: EntityId, path: str, value: Any, headers: Headers) -> Cancel:  # noqa: ARG001
    """The cancel with this parsed value. Raises DecodeError."""
    return Cancel(Kind.HISTORY, _subscription_id(_needed(value)), headers, entity)


COMMANDS: dict[str, Callable[[EntityId, str, Any, Headers], Subscribe | Request | Cancel]] = {
    "subscribeForPersistedEvents": subscribe,
    "request": request,
    "cancel": cancel,
}
"""The actions that clients may send."""


def _needed(value: Any) -> Value:
    if value is None:
        raise DecodeError(faults.field_missing("value"))
    return _object(value)


def _object(value: Any) -> Value:
    if not isinstance(value, dict):
        raise DecodeError(faults.not_convertible(value, "an object"))
    return value


def _subscription_id(members: Value) -> str:
    key = _text(members, "subscriptionId")
    if key is None:
        raise DecodeError(faults.field_missing("subscriptionId"))
    return key


def _text(members: Value, name: str) -> str | None:
    value = members.get(name)
    if value is None or isinstance(value, str):
        return value
    raise DecodeError(faults.wrong_type(name, value, "String"))


def _long(members: Value, name: str) -> int | None:
    """A whole number in any spelling: `2`, `2.0`, `1e2`."""
    value = members.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DecodeError(faults.wrong_type(name, value, "Long"))
    if isinstance(value, float) and not value.is_integer():
        raise DecodeError(faults.not_convertible(value, "a long"))
    number = int(value)
    if not -_LONG <= number < _LONG:
        raise DecodeError(faults.not_convertible(value, "a long"))
    return number


def _instant(members: Value, name: str) -> int | None:
    text = _text(members, name)
    if text is None:
        return None
    instant = parse_instant(text)
    if instant is None:
        raise DecodeError(faults.wrong_type(name, text, "Instant"))
    return instant
