"""Rules about connection documents that the shared checks and the brokers' files have in common.

A rule takes a part of a document and its path, and returns the problems it finds; nothing here raises. Paths read
`sources[0].replyTarget.address`; a name that would be mistaken for a path is quoted: `headerMapping["mqtt.topic"]`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from connectivity.errors import Problem
from connectivity.model import Connection
from mappings.errors import PlaceholderError
from mappings.placeholders import Scope, parse

ROOT = "$"
"""The path of a whole document."""

CONFIGURATION_INVALID = "connectivity:connection.configuration.invalid"
URI_INVALID = "connectivity:connection.uri.invalid"

DIVERT_TO = "divert-response-to-connection"
DIVERTED_TYPES = "divert-expected-response-types"
"""The headers that say where a command's answer goes instead, and which kinds of answer do."""

_PLAIN_NAME = re.compile(r"[^\W\d][\w-]*")
_NEAREST = re.compile(r"Did you mean (.+)\?$")
_CONNECTION_ID = re.compile(r"\{\{\s*connection:id\s*\}\}|\$\{\s*connection:id\s*\}")
_SHOWN_LENGTH = 120


_CHOICE = "one of: "

_EXPECTED: Mapping[str, str] = {
    "byte_size": "a size such as 512KiB or 1MiB",
    "byte_size_unit": "a size such as 512KiB or 1MiB",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "an object",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "mapping_type": "an object",
    "model_attributes_type": "an object",
    "model_type": "an object",
    "string_too_short": "a string that is not empty",
    "string_pattern_mismatch": "1 to 100 letters, digits and the characters - _ :",
    "string_type": "a string",
    "string_unicode": "a string of Unicode characters",
    "tuple_type": "a list",
}


def _names(quoted: str) -> str:
    """`'a', 'b' or 'c'` → `a, b, c`."""
    return quoted.replace("'", "").replace(" or ", ", ")


_EXPECTED_WITH: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "enum": lambda context: _CHOICE + _names(context["expected"]),
    "greater_than_equal": lambda context: f"at least {context['ge']}",
    "less_than_equal": lambda context: f"at most {context['le']}",
    "literal_error": lambda context: _CHOICE + _names(context["expected"]),
    "too_short": lambda context: f"a list with at least {context['min_length']}",
    "union_tag_invalid": lambda context: _CHOICE + _names(context["expected_tags"]),
    "value_error": lambda context: str(context["error"]),
}


def json_path(*steps: object) -> str:
    """`("sources", 0, "qos")` → `sources[0].qos`."""
    path = ""
    for step in steps:
        if isinstance(step, int) and not isinstance(step, bool):
            path += f"[{step}]"
        elif isinstance(step, str) and len(step) <= _SHOWN_LENGTH and _PLAIN_NAME.fullmatch(step):
            path += f".{step}" if path else step
        else:
            path += f"[{show(step)}]"
    return path or ROOT


def show(value: object) -> str:
    """A value as a problem's `found` names it: short, printable, on one line."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}" if value else "an empty list"
    if value is not None and not isinstance(value, str | bool | int | float):
        return f"a {type(value).__name__}"
    text = value if isinstance(value, str) else json.dumps(value)
    short = text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}…"
    shown = json.dumps(short, ensure_ascii=False) if isinstance(value, str) else short
    return shown.encode("utf-8", "backslashreplace").decode()


def did_you_mean(found: object, known: Collection[str]) -> str | None:
    """A hint at the nearest known name, or None."""
    nearest = get_close_matches(found, known, 1) if isinstance(found, str) else []
    return f"did you mean {nearest[0]}?" if nearest else None


def has_expression(text: str) -> bool:
    """Whether an expression stands in the text, readable or not."""
    try:
        return any(not isinstance(part, str) for part in parse(text, Scope.SOURCE).parts)
    except PlaceholderError:
        return True


def with_dummies(text: str, dummy: str = "x") -> str:
    """The template with each expression replaced by a dummy, so that a check sees what its author wrote around them.

    A text whose expressions cannot be read is one dummy: that is a problem of its own.
    """
    try:
        return "".join(part if isinstance(part, str) else dummy for part in parse(text, Scope.SOURCE).parts)
    except PlaceholderError:
        return dummy


def with_connection_id(text: str, connection_id: str) -> str:
    """The text with `{{ connection:id }}` replaced: all that labels and group ids may hold of placeholders."""
    return _CONNECTION_ID.sub(lambda _: connection_id, text)


def expected_of(kind: str, context: Mapping[str, Any], message: str) -> str:
    """What was expected, by the kind of a validation error; the library's own message where we have no words."""
    if kind in _EXPECTED_WITH:
        return _EXPECTED_WITH[kind](context)
    return _EXPECTED.get(kind, message)


def nearest_choice(found: object, expected: str) -> str | None:
    """A hint where the expected is one of several words."""
    return did_you_mean(found, expected.removeprefix(_CHOICE).split(", ")) if expected.startswith(_CHOICE) else None


def check_template(path: str, text: str, scope: Scope, *, shown: str | None = None) -> Iterator[Problem]:
    """The expressions of a template are known and well-formed, and have a value in this scope.

    `shown` is what its author wrote, where that is not the text itself.
    """
    try:
        parse(text, scope)
    except PlaceholderError as error:
        fault = error.fault
        reason = fault.message.removesuffix(".")
        nearest = _NEAREST.search(fault.description or "")
        hint = f"did you mean {nearest[1]}?" if nearest else None
        written = text if shown is None else shown
        found = f"{show(written)}: {reason}" if len(written) < _SHOWN_LENGTH else reason
        yield Problem(path, found, f"what is known in {scope.place}", hint, fault.error)


def check_without_placeholders(path: str, text: str) -> Iterator[Problem]:
    if has_expression(text):
        yield Problem(path, show(text), "an address without placeholders")


def check_enforcement_inputs(connection: Connection, scope: Scope) -> Iterator[Problem]:
    """What identifies a sender must be something that deliveries of this type carry.

    Only for what is known at all; the shared checks report the rest.
    """
    for index, source in enumerate(connection.sources):
        if source.enforcement is None:
            continue
        path, text = json_path("sources", index, "enforcement", "input"), source.enforcement.input
        if not list(check_template(path, text, Scope.ENFORCEMENT_INPUT)):
            yield from check_template(path, text, scope)


def check_source_addresses_without_placeholders(connection: Connection) -> Iterator[Problem]:
    for index, source in enumerate(connection.sources):
        for position, address in enumerate(source.addresses):
            yield from check_without_placeholders(json_path("sources", index, "addresses", position), address)
