from __future__ import annotations

import json


def json_text(value: object) -> str:
    """Return a JSON value as text: a string as it is, everything else in JSON notation."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


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
