from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any

from mappings.texts import shorten

ROOT = "$"
"""The path of a whole document."""

_PLAIN_NAME = re.compile(r"[^\W\d][\w-]*")
MAX_SHOWN_CHARACTERS = 120


_CHOICE = "one of: "

_EXPECTED: Mapping[str, str] = {
    "byte_size": "a size such as 512KiB or 1MiB",
    "byte_size_unit": "a size such as 512KiB or 1MiB",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "invalid_key": "a name that is a string",
    "mapping_type": "an object",
    "model_attributes_type": "an object",
    "model_type": "an object",
    "path_type": "a path",
    "string_too_short": "a string that is not empty",
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
        elif isinstance(step, str) and len(step) <= MAX_SHOWN_CHARACTERS and _PLAIN_NAME.fullmatch(step):
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
    short = shorten(text, MAX_SHOWN_CHARACTERS)
    shown = json.dumps(short, ensure_ascii=False) if isinstance(value, str) else short
    return shown.encode("utf-8", "backslashreplace").decode()


def did_you_mean(found: object, known: Collection[str]) -> str | None:
    """Return a hint at the nearest known name, or None."""
    nearest = get_close_matches(found, known, 1) if isinstance(found, str) else []
    return f"did you mean {nearest[0]}?" if nearest else None


def expected_of(kind: str, context: Mapping[str, Any], message: str) -> str:
    """Return what was expected for a kind of validation error; by default the library's message."""
    if kind in _EXPECTED_WITH:
        return _EXPECTED_WITH[kind](context)
    return _EXPECTED.get(kind, message)


def nearest_choice(found: object, expected: str) -> str | None:
    """Return a hint if one of several words was expected."""
    return did_you_mean(found, expected.removeprefix(_CHOICE).split(", ")) if expected.startswith(_CHOICE) else None
