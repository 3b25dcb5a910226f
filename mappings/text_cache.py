"""Caches for functions of texts that clients choose."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

MAX_CACHED_LENGTH = 512
"""The longest cached texts, in characters: with longer ones, clients could fill the memory."""


def cached_if_short(size: int, longest: int = MAX_CACHED_LENGTH) -> Callable[[F], F]:
    """Cache `size` results of a function whose last argument is a text, unless it exceeds `longest`."""

    def decorate(function: F) -> F:
        cached = lru_cache(size)(function)

        @wraps(function)
        def call(*arguments: Any) -> Any:
            return cached(*arguments) if len(arguments[-1]) <= longest else function(*arguments)

        return call  # type: ignore[return-value]

    return decorate
