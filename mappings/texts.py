from __future__ import annotations

import json
import re

CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys: controls, line separators, changes of the writing direction."""


def escape_control_characters(text: str, *, keep: str = "") -> str:
    """The text with its control characters, but for those of `keep`, as escapes."""
    return CONTROL_CHARACTERS.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def json_text(value: object) -> str:
    """Return a JSON value as text: a string as it is, everything else in JSON notation."""
    if isinstance(value, str):
        return value
    return _encode(value)


MAX_QUOTE_LENGTH = 200
"""Characters of a message that its answer repeats at most."""


def shorten(text: str, limit: int = MAX_QUOTE_LENGTH) -> str:
    """The text, or its first `limit` characters and `…`."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def lower_text(value: object) -> object:
    """Return a text in lower case; anything else unchanged.

    For validators that run before types are checked.
    """
    return value.lower() if isinstance(value, str) else value
