"""Matches texts with patterns: `*` is any run of characters, `?` is one.

A pattern covers the whole text. Wildcards do not match a line feed, so texts and patterns of several lines are matched line
by line; in searches (`covers`), stars at either end match any text. Between stars, each fixed part is matched at its first
place, without backtracking: the time grows with the length of the text, whatever the pattern.
"""

from __future__ import annotations

from functools import lru_cache

_LONGEST_KNOWN = 64
"""Tables of longer parts are not cached: they may take a kilobyte for each character."""

_LONGEST_KNOWN_PATTERN = 1024
"""Longer patterns are not cached."""

_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def matches(text: str, pattern: str) -> bool:
    """Whether the pattern covers the whole text; upper and lower case differ."""
    if "\n" not in text and "\n" not in pattern:
        return _line_matches(text, pattern)
    lines, patterns = text.split("\n"), pattern.split("\n")
    return len(lines) == len(patterns) and all(map(_line_matches, lines, patterns))


def fold_ascii(text: str) -> str:
    """The text with the letters A to Z in lower case, and no others."""
    return text.lower() if text.isascii() else text.translate(_ASCII_LOWER)


def covers(text: str, pattern: str) -> bool:
    """As `matches`, but stars at the beginning and at the end of the pattern take line feeds too."""
    if "\n" not in text:
        return "\n" not in pattern and _line_matches(text, pattern)
    begins, ends = pattern.startswith("*"), pattern.endswith("*")
    core = pattern.strip("*")
    if "\n" in core:
        return _lines_match(text, core, begins, ends)
    if begins and ends:
        return any(_line_matches(line, f"*{core}*") for line in text.split("\n"))
    if begins:
        return _line_matches(text[text.rindex("\n") + 1 :], f"*{core}")
    return ends and _line_matches(text[: text.index("\n")], f"{core}*")


def fold(text: str) -> str:
    """Return the text in lower case, each code point by itself, so that their number stays the same."""
    if text.isascii():
        return text.lower()
    # Two exceptions of Python: one becomes two code points, one depends on its place in the word.
    return text.replace("\u0130", "i").replace("\u03a3", "\u03c3").lower()


def _lines_match(text: str, core: str, begins: bool, ends: bool) -> bool:
    """Whether a pattern of several lines matches somewhere in the text: at its beginning, end, or neither.

    One pass keeps all beginnings in the bits of a number: bit n says that the last characters match the first n of the
    pattern, stars left out. A star before the next one keeps its bit until the line ends.
    """
    parts = core.split("*")
    fixed = "".join(parts)
    anything, places = _places(fixed)
    # No wildcard takes a line feed.
    places.setdefault("\n", 0)
    places["\n"] &= ~anything
    staying, position = 0, 0
    for part in parts[:-1]:
        position += len(part)
        staying |= 1 << position
    complete = 1 << len(fixed)
    start = 1 if begins else 0
    begun = 1
    for character in text:
        stayed = begun & staying if character != "\n" else 0
        begun = (begun & places.get(character, anything)) << 1 | stayed | start
        if ends and begun & complete:
            return True
    return bool(begun & complete)


def _line_matches(text: str, pattern: str) -> bool:
    first, inner, last = _known_parts(pattern) if len(pattern) <= _LONGEST_KNOWN_PATTERN else _parts(pattern)
    if last is None:
        return len(text) == len(first) and _fits(text, first, 0)
    position, end = len(first), len(text) - len(last)
    if position > end or not _fits(text, first, 0) or not _fits(text, last, end):
        return False
    for part in inner:
        position = _end_of_first(text, part, position, end)
        if position < 0:
            return False
    return True


def _parts(pattern: str) -> tuple[str, tuple[str, ...], str | None]:
    """Return the parts before, between and after the stars; None for a pattern without stars."""
    first, *inner = pattern.split("*")
    last = inner.pop() if inner else None
    return first, tuple(filter(None, inner)), last


_known_parts = lru_cache(maxsize=64)(_parts)


def _fits(text: str, part: str, position: int) -> bool:
    """Whether the part, without stars, matches the text at this position."""
    if "?" not in part:
        return text.startswith(part, position)
    covered = text[position : position + len(part)]
    return all(wanted in ("?", found) for wanted, found in zip(part, covered, strict=True))


def _end_of_first(text: str, part: str, start: int, end: int) -> int:
    """Return the end of the first place in `text[start:end]` that the part matches; -1 for none."""
    if "?" not in part:
        found = text.find(part, start, end)
        return found if found < 0 else found + len(part)
    return _end_of_first_with_gaps(text, part, start, end)


def _end_of_first_with_gaps(text: str, part: str, start: int, end: int) -> int:
    """Return the same for a part with question marks.

    One pass keeps all beginnings in the bits of a number: bit n of `begun` says that the last n+1 characters match the first
    n+1 of the part.
    """
    if end - start < len(part):
        return -1
    anything, places = _known_places(part) if len(part) <= _LONGEST_KNOWN else _places(part)
    complete = 1 << len(part) - 1
    begun = 0
    for position in range(start, end):
        begun = (begun << 1 | 1) & places.get(text[position], anything)
        if begun & complete:
            return position + 1
    return -1


def _places(part: str) -> tuple[int, dict[str, int]]:
    """The places of a part that take any character, as bits, and those that take a given one."""
    anything = int("".join("1" if wanted == "?" else "0" for wanted in reversed(part)), 2)
    places: dict[str, int] = {}
    for place, wanted in enumerate(part):
        if wanted != "?":
            places[wanted] = places.get(wanted, anything) | 1 << place
    return anything, places


_known_places = lru_cache(maxsize=64)(_places)
