"""What the two small grammars share, that of filters and that of a search's options: a text that is read from left to right.

    property  = 1*( any character but , ) " \\  / escape )
    escape    = "\\" ( the quote / "\\" / "/" / "b" / "f" / "n" / "r" / "t" / "u" 4HEXDIG )

Every method takes what it is about from the text, or fails at the position where the text stops being what it should be.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import NoReturn

from spark_store.errors import QueryError

_BLANKS = re.compile(r"[ \t\n\r\f]*")
_PROPERTY_RUN = re.compile(r'[^,)"\\]*')
_HEX = re.compile(r"[0-9A-Fa-f]{4}")
_ESCAPES = {"\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Reader(ABC):
    """A text and how far it has been read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    @abstractmethod
    def refuse(self, position: int, expected: str) -> QueryError:
        """The error that says where the text is wrong, and what was expected there."""

    def property(self) -> str:
        name = self.characters(_PROPERTY_RUN, '"')
        if not name:
            self.fail("a property such as attributes/counter")
        return name

    def escape(self, quote: str) -> str:
        """The character that an escape stands for; its backslash has been read."""
        start = self.position - 1
        letter = self.text[self.position : self.position + 1]
        self.position += 1
        if letter == "u":
            return self.code_point(start)
        if letter and letter == quote:
            return letter
        if letter not in _ESCAPES:
            self.fail(f"one of the escapes \\{quote} \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX", start)
        return _ESCAPES[letter]

    def code_point(self, start: int) -> str:
        """The character of `\\uXXXX`, or of two of them that make a surrogate pair."""
        unit = self.hexadecimal(start)
        if not 0xD800 <= unit < 0xE000:
            return chr(unit)
        low = self.hexadecimal(start) if unit < 0xDC00 and self.take("\\u") else 0
        if not 0xDC00 <= low < 0xE000:
            self.fail("both halves of a surrogate pair", start)
        return chr(0x10000 + (unit - 0xD800) * 0x400 + low - 0xDC00)

    def hexadecimal(self, start: int) -> int:
        digits = self.run(_HEX)
        if not digits:
            self.fail("four hexadecimal digits after \\u", start)
        return int(digits, 16)

    def characters(self, plain: re.Pattern[str], quote: str) -> str:
        """Plain characters and escapes, up to what is neither."""
        parts = [self.run(plain)]
        while self.take("\\"):
            parts.append(self.escape(quote))
            parts.append(self.run(plain))
        return "".join(parts)

    def blanks(self) -> None:
        self.run(_BLANKS)

    def run(self, pattern: re.Pattern[str]) -> str:
        """What `pattern` matches here, which may be nothing."""
        found = pattern.match(self.text, self.position)
        if found is None:
            return ""
        self.position = found.end()
        return found[0]

    def take(self, character: str) -> bool:
        if not self.text.startswith(character, self.position):
            return False
        self.position += len(character)
        return True

    def expect(self, character: str) -> None:
        if not self.take(character):
            self.fail(f"'{character}'")

    def fail(self, expected: str, position: int | None = None) -> NoReturn:
        raise self.refuse(self.position if position is None else position, expected)
