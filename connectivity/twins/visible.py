"""What of an event somebody may see (Ditto protocol, who may see an event).

Whoever may read everything at the place of an event sees it whole. Whoever may read some of it sees that much: a value that
is an object loses what is hidden, any other one is seen only by those who may read the place itself. What is emptied by this
is not told at all, and where nobody may read anything at a place or below it, not even a deletion there is.

Several subjects are asked together, as in a retrieve: nobody learns by an event what he could not ask for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from connectivity.twins.enforcer import DROP, READ, Enforcer


class Sight(Enum):
    """How much may be seen at a place."""

    WHOLE = "all of it"
    PART = "what is readable of it"
    NOTHING = "nothing"


def sight(enforcer: Enforcer, subjects: Sequence[str], path: str) -> Sight:
    """How much the subjects see at a path of a thing."""
    place = f"thing:{path}"
    if enforcer.unrestricted(subjects, READ, place):
        return Sight.WHOLE
    return Sight.PART if enforcer.partial(subjects, READ, place) else Sight.NOTHING


def readable(enforcer: Enforcer, subjects: Sequence[str], path: str, value: Any) -> Any:
    """What of a value at a path they see who may see a part there; DROP where nothing is left of it.

    An object or array that was empty before is seen as it is.
    """
    place = f"thing:{path}"
    is_object = isinstance(value, Mapping)
    if not is_object and not enforcer.has(subjects, READ, place):
        return DROP
    if is_object and not value:
        return value
    seen = enforcer.view(value, place, subjects)
    is_emptied = seen in ({}, []) and seen != value
    return DROP if is_emptied else seen
