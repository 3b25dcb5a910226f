"""What an expression comes to: some values, nothing, or deliberately nothing.

The three states of the expression language of Ditto's connections. *Resolved* holds one value or several, in order; who
needs one takes the first. *Unresolved* means that something was asked for and is not there: `fn:default` may still fill
the gap. *Deleted* is what `fn:delete` leaves behind, and nothing fills it.

An expression is written by an operator, its values come from whoever sends messages. So the values are bounded here, in
number and in size: a function that multiplies them asks before it builds them.
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
"""The most values that one expression may have."""

MAX_CHARACTERS = 1_048_576
"""The most characters that the values of one expression may have together."""


class ResolutionState(Enum):
    RESOLVED = "resolved"
    UNRESOLVED = "unresolved"
    DELETED = "deleted"


class Resolution(NamedTuple):
    """The outcome of resolving a template or an expression; `values` is empty unless the state is RESOLVED."""

    state: ResolutionState
    values: tuple[str, ...] = ()

    @property
    def first(self) -> str | None:
        """The value for those who need exactly one, or None."""
        return self.values[0] if self.values else None

    @property
    def is_resolved(self) -> bool:
        return self.state is ResolutionState.RESOLVED


UNRESOLVED = Resolution(ResolutionState.UNRESOLVED)
DELETED = Resolution(ResolutionState.DELETED)


def of_values(values: Iterable[str]) -> Resolution:
    """Resolved with these values, or unresolved where there are none.

    Raises Unresolved as soon as they pass the bounds.
    """
    found: list[str] = []
    characters = 0
    for value in values:
        found.append(value)
        characters += len(value)
        if characters > MAX_CHARACTERS or len(found) > MAX_VALUES:
            require_room(len(found), characters)
    return Resolution(ResolutionState.RESOLVED, tuple(found)) if found else UNRESOLVED


def require_room(values: int, characters: int) -> None:
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
            "Check that the message carries what the expression reads.",
        )
    )


def combine(parts: Sequence[Sequence[str]]) -> list[str]:
    """Every way to join one value of each part, the first part varying slowest.

    Raises Unresolved beyond the bounds, before anything is built.
    """
    count = math.prod([len(part) for part in parts])
    require_room(count, sum([count // len(part) * sum(map(len, part)) for part in parts]) if count else 0)
    return ["".join(chosen) for chosen in product(*parts)]


def texts(value: object) -> tuple[str, ...]:
    """A JSON value as the values of a placeholder: none for null, several for an array, otherwise one."""
    if isinstance(value, str):
        return (value,)
    if value is None:
        return ()
    if isinstance(value, (list, tuple)):
        return tuple(json_text(element) for element in value if element is not None)
    return (json_text(value),)
