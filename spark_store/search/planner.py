"""Plans a page of a search: chooses one of four access paths (Ditto search, on an index of values).

- along the IDs: every thing in the order of IDs, until the page is full; for filters that most things match.
- along the IDs of one value: the same for things with a required value at a declared path.
- along the values of the first ordering field, as they are in the index.
- by candidates: all candidates of the index are evaluated and sorted; for few.

Candidates are read up to a bound first, so that they never cost much more than the alternative. Each thing is checked
against the filter in any case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from spark_store.rql.query import SortField
from spark_store.search.index_sql import (
    NOTHING,
    AllThings,
    Candidates,
    Intersection,
    PathIntersection,
    RowSelect,
    Union,
)

JUDGING: Final = 40
"""How many rows of the index cost as much as evaluating a thing."""

SORTABLE: Final = 1500
"""How many candidates are all evaluated and sorted: some ten milliseconds."""

LOOKED_UP: Final = 8
"""How many rows cost as much as looking up the ID of a thing."""


class AccessPath(Enum):
    """How things are found in order."""

    IDS = "in the order of IDs"
    VALUE = "in the order of IDs, for one value"
    VALUES = "in the order of the sorted values"
    CANDIDATES = "all candidates, sorted"
    THINGS = "all things, sorted"


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """The plan of a query at this moment."""

    access_path: AccessPath
    candidates: Candidates
    known: int | None
    """The number of candidates, if it is known."""
    things: int
    """About how many things there are."""
    is_indexed: bool
    order: str
    apart: int = 0
    """How many things are sorted by themselves, since the index does not have their place."""
    declared: str = ""
    """The declared path whose index lists the things of a value in the order of their IDs. Empty: none."""

    def of_nothing(self) -> QueryPlan:
        """Return the plan of a search that finds nothing: no thing is a candidate."""
        return replace(self, access_path=AccessPath.CANDIDATES, candidates=NOTHING, known=0, apart=0, declared="")

    def __str__(self) -> str:
        lines = [f"{self.access_path.value}; {self.things} things, order {self.order}"]
        if self.known is None and not self.is_indexed:
            lines.append("the index is being built: all states are scanned")
        lines += [f"{'  ' * depth}{text}" for depth, text in _lines(self.candidates, 0)]
        lines.append("candidates: " + ("too many for a list" if self.known is None else str(self.known)))
        if self.declared:
            lines.append(f"by the index of {self.declared} itself")
        if self.apart:
            lines.append(f"evaluated without the index: {self.apart}")
        return "\n".join(lines)


def bound_of(things: int, page: int) -> int:
    """Up to how many candidates are read before going along the order instead is as fast.

    With n of them, a page is full after looking at page * things / n things.
    """
    return max(SORTABLE, math.isqrt(JUDGING * page * max(things, 1)))


def way_to_ids(known: int | None, things: int, page: int) -> AccessPath:
    """Return whether to look up the IDs of known candidates, or to walk along all IDs."""
    if known is None or known * known * LOOKED_UP > page * things * 2:
        return AccessPath.IDS
    return AccessPath.CANDIDATES


def shown_order(order: Sequence[SortField]) -> str:
    return ",".join(f"{'-' if each.is_descending else '+'}{'/'.join(each.field.path)}" for each in order)


def _lines(candidates: Candidates, depth: int) -> list[tuple[int, str]]:
    match candidates:
        case AllThings():
            return [(depth, "every thing")]
        case RowSelect():
            return [(depth, f"rows of {candidates.description}")]
        case PathIntersection(_, rows):
            return [(depth, f"rows of {rows.description}")]
        case Intersection(parts):
            return [(depth, "in all of"), *(line for part in parts for line in _lines(part, depth + 1))]
        case Union(parts):
            word = "in any of" if parts else "nothing"
            return [(depth, word), *(line for part in parts for line in _lines(part, depth + 1))]
