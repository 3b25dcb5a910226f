"""The result of an expression: resolved, unresolved or deleted.

*Resolved* has one value or several, in order; the first one is used where one is needed. *Unresolved* is a missing value,
which `fn:default` may replace. *Deleted* is the result of `fn:delete`, which nothing replaces. Operators write expressions,
but clients send values: so their number and size are bounded here, before a function multiplies them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import product
from typing import NamedTuple

from mappings.errors import Fault, Unresolved
from mappings.texts import json_text

MAX_VALUES = 10_000
"""The most values that one expression may have, unless it repeats those of the message."""

MAX_CHARACTERS = 1_048_576
"""The most characters of all values of one expression, unless it repeats those of the message."""


class ResolutionState(Enum):
    RESOLVED = "resolved"
    UNRESOLVED = "unresolved"
    DELETED = "deleted"


class Resolution(NamedTuple):
    """The result of a template or an expression; `values` is empty unless it is RESOLVED."""

    state: ResolutionState
    values: tuple[str, ...] = ()

    @property
    def first(self) -> str | None:
        """The first value; None if there is none."""
        return self.values[0] if self.values else None

    @property
    def is_resolved(self) -> bool:
        return self.state is ResolutionState.RESOLVED


UNRESOLVED = Resolution(ResolutionState.UNRESOLVED)
DELETED = Resolution(ResolutionState.DELETED)


def resolution_of(values: Iterable[str]) -> Resolution:
    """Return a resolution with these values, unresolved without any.

    Raises Unresolved as soon as they exceed the bounds.
    """
    found: list[str] = []
    characters = 0
    for value in values:
        found.append(value)
        characters += len(value)
        if characters > MAX_CHARACTERS or len(found) > MAX_VALUES:
            require_within_limits(len(found), characters)
    return Resolution(ResolutionState.RESOLVED, tuple(found)) if found else UNRESOLVED


def require_within_limits(values: int, characters: int) -> None:
    """Raises Unresolved where an expression would have more values or characters than the bounds allow."""
    if values > MAX_VALUES or characters > MAX_CHARACTERS:
        raise unresolved(
            f"found {values} values with {characters} characters, "
            f"expected at most {MAX_VALUES} values and {MAX_CHARACTERS} characters"
        )


def unresolved(reason: str) -> Unresolved:
    """The error for an expression that has no usable value here, although it is written well."""
    return Unresolved(
        Fault(
            400,
            "placeholder:unresolved",
            f"The placeholder could not be resolved: {reason}.",
            "Check whether the message has every value that the expression reads.",
        )
    )


def combine(parts: Sequence[Sequence[str]]) -> list[str]:
    """Every way to join one value of each part, the first part varying slowest.

    Raises Unresolved beyond the bounds, before anything is built.
    """
    count = math.prod([len(part) for part in parts])
    require_within_limits(count, sum([count // len(part) * sum(map(len, part)) for part in parts]) if count else 0)
    return ["".join(chosen) for chosen in product(*parts)]


def texts(value: object) -> tuple[str, ...]:
    """Return a JSON value as values of a placeholder: none for null, several for an array, else one."""
    if isinstance(value, str):
        return (value,)
    if value is None:
        return ()
    if isinstance(value, (list, tuple)):
        return tuple(json_text(element) for element in value if element is not None)
    return (json_text(value),)
