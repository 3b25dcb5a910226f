"""Names from every plane of Unicode, for tests that all evaluators treat a name equally.

`NAMES` have properties that cause errors: several normal forms of one letter, letters whose case folds into ASCII,
characters beyond the basic plane and those that UTF-16 orders differently, marks that only change the direction, digits
that are not ASCII, and characters with a meaning in pointers, JSON, patterns, filters or SQL. A name has no slash,
since no path can reach it.
"""

from __future__ import annotations

import random
import re
from typing import Final

from hypothesis import strategies as st

SCRIPTS: Final = ("ключ", "名前", "κλειδί", "कुंजी", "열쇠", "مفتاح", "שם", "ä")
NORMAL_FORMS: Final = (
    "\u00e9",
    "e\u0301",
    "\u0439",
    "\u0438\u0306",
    "\u212b",
    "A\u030a",
    "\uac00",
    "\u1100\u1161",
    "\u0301",
)
ASTRAL: Final = ("💡", "\U0001f469\u200d\U0001f527", "\U0001d4b3", "\U00020000", "\U000e0100", "\U0010ffff")
BORDERS: Final = ("\ud7ff", "\ue000", "\uff21", "\uffff", "\ufeff", "\u2028", "\x7f", "\n", "\0")
DIRECTIONS: Final = ("\u202eab", "\u2066a\u2069", "a\u200f")
CASES: Final = ("İ", "\u0131", "ß", "\u1e9e", "\u212a", "K", "k", "Σ", "ς")
BLANKS: Final = ("\u3000a\u2003", "\u2007")
DIGITS: Final = ("\u0663", "\u00b2", "\uff11")
ESCAPED: Final = (
    "~",
    "~0",
    "~1",
    "a~0b",
    '"',
    "'",
    "\\",
    "\\u0061",
    "*",
    "**",
    "?",
    "[a]",
    "%",
    "_",
    ",",
    "(",
    ")",
    "a)b",
    " ",
)
NAMES: Final = (*SCRIPTS, *NORMAL_FORMS, *ASTRAL, *BORDERS, *DIRECTIONS, *CASES, *BLANKS, *DIGITS, *ESCAPED)

ANY_NAME: Final = st.sampled_from(NAMES) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1, max_size=3
)

_REFUSED: Final = re.compile(r"[\x00-\x1F\x7F-\xFF/]")
"""Characters that no key of a thing may have."""

_PUNCTUATION: Final = re.compile(r"""[,()"\\]|^ | $|^\*$""")
"""Characters that filters escape or field selectors exclude or ignore, and the wildcard."""


def _is_key(name: str) -> bool:
    return not _REFUSED.search(name) and not _PUNCTUATION.search(name)


KEYS: Final = tuple(filter(_is_key, NAMES))
"""Names that a thing may have, and that are the same in filters, field selectors and paths."""


def some_keys(dice: random.Random, number: int) -> list[str]:
    """Return `number` different keys."""
    found: list[str] = []
    while len(found) < number:
        name = dice.choice(KEYS) if dice.random() < 0.7 else _any_characters(dice)
        if name not in found and _is_key(name):
            found.append(name)
    return found


def in_path(name: str) -> str:
    """Return a name as a segment of a path."""
    return name.replace("~", "~0")


def _any_characters(dice: random.Random) -> str:
    planes = ((0x20, 0x7E), (0x100, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF))
    return "".join(chr(dice.randint(*dice.choice(planes))) for _ in range(dice.randint(1, 3)))
