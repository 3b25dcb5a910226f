"""Which addresses a session may be answered at (Streamr protocol, sessions).

The address comes with the request, so whoever sends requests chooses where this service publishes. An operator says which
addresses are meant, by a pattern or by the fixed beginning of the reply-target; all others are refused, and so is whatever
is no address at all.
"""

from __future__ import annotations

import re

from mappings.addresses import unsafe_in_address

LONGEST_ADDRESS = 1024
MOST_PARTS = 32
_REST = "**"


class PatternRefused(Exception):
    """A pattern that says nothing clear."""


class AddressPattern:
    """`streamr/*/res`: `*` stands for one or more characters other than a slash, `**` as the last part for all the rest.

    Matching takes time in proportion to the address, whatever the pattern. Raises PatternRefused.
    """

    __slots__ = ("_parts", "_takes_rest", "text")

    def __init__(self, text: str) -> None:
        parts = text.split("/")
        self.text = text
        self._takes_rest = parts[-1] == _REST
        if self._takes_rest:
            parts.pop()
        if any(_REST in part for part in parts):
            raise PatternRefused("'**' has to be the last part, behind a slash or alone")
        if len(parts) > MOST_PARTS:
            raise PatternRefused(f"it has {len(parts)} parts, allowed are {MOST_PARTS}")
        self._parts = [_part(part) for part in parts]

    def __repr__(self) -> str:
        return f"AddressPattern({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AddressPattern) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def allows(self, address: str) -> bool:
        """Whether a session may be answered at this address."""
        if not is_address(_told(address, self.text)):
            return False
        parts = address.split("/", len(self._parts)) if self._takes_rest else address.split("/")
        if len(parts) != len(self._parts) + self._takes_rest:
            return False
        return all(pattern.fullmatch(part) is not None for pattern, part in zip(self._parts, parts, strict=False))


def begins_alike(address: str, prefix: str) -> bool:
    """Whether a session may be answered at this address, where the reply-target's own text begins so."""
    return address.startswith(prefix) and is_address(_told(address, prefix))


def is_address(text: str) -> bool:
    """Whether one can publish to this at all."""
    return len(text) <= LONGEST_ADDRESS and unsafe_in_address(text) is None


def _told(address: str, written: str) -> str:
    """An address without a slash in front that an operator has written: it is no client's doing."""
    return address.removeprefix("/") if written.startswith("/") else address


def _part(part: str) -> re.Pattern[str]:
    """One part of a pattern. What stands between stars is found where it comes first, without a second try: with one kind
    of star, that finds every match there is."""
    first, *rest = part.split("*")
    if not rest:
        return re.compile(re.escape(first))
    *middle, last = rest
    found = "".join(f"(?>.+?{re.escape(text)})" for text in middle)
    return re.compile(f"{re.escape(first)}{found}.+{re.escape(last)}", re.DOTALL)
