"""The separators of `fn:split`: regular expressions without backtracking.

Clients send the text that they are applied to, so each repetition is possessive and each group atomic; the length of the
text is bounded so that matching takes at most `MAX_STEPS`. An expression such as `.*,` finds nothing, because `.*` has
consumed the comma.

Supported are characters, `.`, classes, `\\s \\d \\w` and their opposites, `\\t \\n \\r \\f`, `\\xhh`, `\\uhhhh`, `^`, `$`,
alternatives, groups, `?`, and after a single character or class the repetitions `*`, `+` and `{n,m}`. Everything else is
refused when the template is parsed.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TypeAlias

from mappings.placeholders.resolution import unresolved

MAX_STEPS = 1 << 25
"""The most steps that one split may take, less than a tenth of a second."""

MAX_PATTERN = 200

Splitter: TypeAlias = Callable[[Sequence[str]], Iterable[str]]
"""Texts → their parts, in order. Raises Unresolved where the texts are too long together."""

_SPECIAL = frozenset(r"\.[](){}*+?^$|")
_ESCAPE_SEQUENCE = r"\\(?:[sSdDwWtnrf]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^a-zA-Z0-9])"
_TOKEN = re.compile(
    rf"""(?P<atom>{_ESCAPE_SEQUENCE}|\[\^?\]?(?:[^\[\]\\]|{_ESCAPE_SEQUENCE})*\]|[^\\\[(){{?*+|^$])
    |(?P<open>\((?:\?:)?(?!\?))
    |(?P<close>\))
    |(?P<plain>[|^$])
    |(?P<optional>\?)
    |(?P<repeat>[*+]|\{{[0-9]{{1,3}}(?:,[0-9]{{0,3}})?\}})""",
    re.VERBOSE | re.DOTALL,
)
_ALLOWED_BEFORE = {"optional": ("atom", "close"), "repeat": ("atom",)}
"""The tokens that a quantifier may follow, if not all."""


def splitter(expression: str) -> Splitter:
    """Return a function that splits texts as Java does.

    No empty parts at the end, none in front for an empty match. Raises ValueError with the reason for an unsupported
    expression.
    """
    if expression and not _SPECIAL.intersection(expression):
        return lambda texts: chain.from_iterable(_split_plainly(expression, text) for text in texts)
    pattern, repetitions = _compile(expression)
    longest = math.isqrt(MAX_STEPS // repetitions) if repetitions else MAX_STEPS // MAX_PATTERN

    def split(texts: Sequence[str]) -> Iterable[str]:
        if (length := sum(map(len, texts))) > longest:
            raise unresolved(f"found {length} characters to split, expected at most {longest}")
        return chain.from_iterable(_split(pattern, text) for text in texts)

    return split


def _compile(expression: str) -> tuple[re.Pattern[str], int]:
    """The expression ready for use, and how many repetitions it has."""
    if len(expression) > MAX_PATTERN:
        raise ValueError(f"found {len(expression)} characters, expected at most {MAX_PATTERN}")
    safe, repetitions = _safe(expression)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(safe, re.ASCII), repetitions
    except (re.error, FutureWarning, OverflowError) as error:
        raise ValueError(f"found an invalid regular expression: {error}") from error


def _safe(expression: str) -> tuple[str, int]:
    """The expression with atomic groups and possessive repetitions, and how many repetitions it has."""
    safe: list[str] = []
    before = ""
    repetitions = position = 0
    while position < len(expression):
        token = _TOKEN.match(expression, position)
        kind = token.lastgroup if token is not None else None
        if token is None or kind is None or before not in _ALLOWED_BEFORE.get(kind, (before,)):
            raise ValueError(f"found {expression[position]!r} at position {position}, which is not supported")
        text = token[0]
        if kind == "open":
            text = "(?>"
        elif kind in _ALLOWED_BEFORE:
            text += "+"
            repetitions += kind == "repeat"
        safe.append(text)
        before, position = kind, token.end()
    return "".join(safe), repetitions


def _split_plainly(separator: str, text: str) -> list[str]:
    return _without_empty_end(text.split(separator)) if separator in text else [text]


def _split(pattern: re.Pattern[str], text: str) -> list[str]:
    parts: list[str] = []
    start = 0
    for match in pattern.finditer(text):
        if match.end():
            parts.append(text[start : match.start()])
            start = match.end()
    if not parts:
        return [text]
    return _without_empty_end([*parts, text[start:]])


def _without_empty_end(parts: list[str]) -> list[str]:
    while parts and not parts[-1]:
        parts.pop()
    return parts
