"""The members of a command's value: whether they are there, and of the type that they have to be.

Members that are null count as absent. (Ditto protocol, streaming subscriptions and search.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from mappings.ditto import faults
from mappings.errors import DecodeError

_LONG = 1 << 63
Value: TypeAlias = Mapping[str, Any]


def needed(value: Any) -> Value:
    """The value of a command that cannot do without. Raises DecodeError."""
    if value is None:
        raise DecodeError(faults.field_missing("value"))
    return as_object(value)


def as_object(value: Any) -> Value:
    """Raises DecodeError for anything but an object."""
    if not isinstance(value, dict):
        raise DecodeError(faults.not_convertible(value, "an object"))
    return value


def subscription_id(members: Value) -> str:
    """Raises DecodeError where there is none."""
    key = text(members, "subscriptionId")
    if key is None:
        raise DecodeError(faults.field_missing("subscriptionId"))
    return key


def text(members: Value, name: str) -> str | None:
    """Raises DecodeError for a member that is no text."""
    value = members.get(name)
    if value is None or isinstance(value, str):
        return value
    raise DecodeError(faults.wrong_type(name, value, "String"))


def texts(members: Value, name: str) -> tuple[str, ...]:
    """A list of texts, each of them once; nothing where there is none. Raises DecodeError."""
    value = members.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise DecodeError(faults.wrong_type(name, value, "JsonArray"))
    for each in value:
        if not isinstance(each, str):
            raise DecodeError(faults.not_convertible(each, "a string"))
    return tuple(dict.fromkeys(value))


def long(members: Value, name: str) -> int | None:
    """A whole number in any spelling: `2`, `2.0`, `1e2`. Raises DecodeError."""
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
