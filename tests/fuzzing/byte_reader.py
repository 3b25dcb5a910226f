"""Reads structures from bytes, for a fuzzer of bytes: numbers, words of a vocabulary, JSON values.

At its end, a reader reads zeros, so each input gives a structure, and a longer one changes only its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")

MOST_MEMBERS = 4
NUMBERS: Sequence[int | float] = (
    *(0, 1, -1, 7, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)),
    *(0.5, -0.0, 1e300, 5e-324, 1.0, 2.0**63),
)


class ByteReader:
    """An input and a position in it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def is_at_end(self) -> bool:
        return self._position >= len(self._data)

    def byte(self) -> int:
        if self.is_at_end:
            return 0
        self._position += 1
        return self._data[self._position - 1]

    def below(self, limit: int) -> int:
        """Return a number from 0 to below a limit, which is at most 65,536."""
        return (self.byte() if limit <= 256 else self.byte() << 8 | self.byte()) % limit

    def flag(self) -> bool:
        return bool(self.byte() & 1)

    def choice(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def some(self, options: Sequence[T], most: int = MOST_MEMBERS) -> list[T]:
        return [self.choice(options) for _ in range(self.below(most + 1))]

    def take(self, most: int = 255) -> bytes:
        """Return the next bytes, as many as the byte before them says."""
        size = min(self.byte(), most)
        start, self._position = self._position, min(len(self._data), self._position + size)
        return self._data[start : self._position]

    def rest(self) -> bytes:
        start, self._position = self._position, len(self._data)
        return self._data[start:]

    def text(self, words: Sequence[str]) -> str:
        """Return one of the words, or a text from the input."""
        number = self.byte()
        if number < 200 and words:
            return words[number % len(words)]
        return self.take(40).decode("utf-8", "replace")

    def json(self, words: Sequence[str], depth: int = 4) -> Any:
        """Return a JSON value whose keys and texts are mostly words; at depth 0, it is not nested."""
        kind = self.below(12)
        if not depth:
            kind = kind % 7
        match kind:
            case 0:
                return None
            case 1:
                return self.flag()
            case 2:
                return self.choice(NUMBERS)
            case 3:
                return self.byte()
            case 4 | 5 | 6:
                return self.text(words)
            case 7 | 8:
                return [self.json(words, depth - 1) for _ in range(self.below(MOST_MEMBERS))]
            case _:
                return {self.text(words): self.json(words, depth - 1) for _ in range(self.below(MOST_MEMBERS + 1))}
