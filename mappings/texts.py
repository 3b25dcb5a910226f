"""Two small things done to texts in many places: cutting a long one, and lower case for what may be no text.

An answer quotes what it answers. So that it never grows with it, a quote is cut.
"""

from __future__ import annotations

LONGEST_QUOTE = 200
"""Characters of a message that its answer repeats at most."""


def shortened(text: str, limit: int = LONGEST_QUOTE) -> str:
    """The text, or its first `limit` characters and `…`."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def lowered(value: object) -> object:
    """A text in lower case; anything else as it is, for a validator that runs before the type is checked."""
    return value.lower() if isinstance(value, str) else value
