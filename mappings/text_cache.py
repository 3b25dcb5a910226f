"""Caches for functions of texts that clients choose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

Result = TypeVar("Result")

MAX_CACHED_LENGTH = 512
"""The longest cached texts, in characters: with longer ones, clients could fill the memory."""

_ABSENT: Final = object()


def cached_if_short(
    size: int, longest: int = MAX_CACHED_LENGTH
) -> Callable[[Callable[[str], Result]], Callable[[str], Result]]:
    """Cache about `size` results of a function of one text, unless the text exceeds `longest`."""

    def decorate(function: Callable[[str], Result]) -> Callable[[str], Result]:
        # A method of `dict`, which finds a cached result without running Python code.
        return _Results(function, size, longest).__getitem__

    return decorate


class _Results(dict[str, Any]):
    """The results that were used lately. When half of the size is reached, they become the former ones."""

    __slots__ = ("_former", "_function", "_half", "_longest")

    def __init__(self, function: Callable[[str], Any], size: int, longest: int) -> None:
        super().__init__()
        self._function, self._half, self._longest = function, size // 2, longest
        self._former: dict[str, Any] = {}

    def __missing__(self, text: str) -> Any:
        if len(text) > self._longest:
            return self._function(text)
        result = self._former.get(text, _ABSENT)
        if result is _ABSENT:
            result = self._function(text)
        if len(self) >= self._half:
            self._former = self.copy()
            self.clear()
        self[text] = result
        return result
