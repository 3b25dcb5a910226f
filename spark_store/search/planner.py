"""How a page of a search is come by: what is known beforehand decides, and what was decided can be shown.

There are four ways to the first things of an answer (Ditto search, on an index of values):

- along the ids: every thing in the order of ids, until a page is full. Right for filters that most things match.
- along the ids of one value: the same, only of things that have a value which the filter demands, at a declared path.
- along the values of the field that the answer is sorted by, as they lie in the index.
- by the candidates: all things that the index names for the filter are looked at and brought into order. Right for few.

The candidates are read from the index up to a bound first, so that knowing them never costs much more than going on without
them. Whichever way it is, each thing is held against the filter before it is found: a way costs time and decides nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final

from spark_store.rql.query import SortField, ThingQuery
from spark_store.search.index_sql import AllThings, Candidates, Intersection, PathIntersection, RowSelect, Union

JUDGING: Final = 40
"""Looking at a thing takes about as long as reading so many rows of the index."""

SORTABLE: Final = 1500
"""So many candidates are all looked at, to bring them into order: some ten milliseconds."""

LOOKED_UP: Final = 8
"""Looking up the id of a thing takes about as long as reading so many rows."""


class AccessPath(Enum):
    """How things are come by in order."""

    IDS = "along the ids"
    VALUE = "along the ids of one value"
    VALUES = "along the values that it is sorted by"
    CANDIDATES = "all candidates, brought into order"
    THINGS = "all things, brought into order"


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """How a question would be answered now."""

    way: AccessPath
    candidates: Candidates
    known: int | None
    """How many candidates there are, where that is known."""
    things: int
    """About how many things there are."""
    is_indexed: bool
    order: str
    apart: int = 0
    """How many things are brought into order by themselves, since the index does not say where they stand."""
    declared: str = ""
    """The path whose own index is used, to go along the ids of one value of it after the other; empty without one."""

    def __str__(self) -> str:
        lines = [f"{self.way.value}; {self.things} things, order {self.order}"]
        if not self.is_indexed:
            lines.append("the index is being built: the states are searched")
        lines += [f"{'  ' * depth}{text}" for depth, text in _lines(self.candidates, 0)]
        lines.append("candidates: " + ("too many to be worth a list" if self.known is None else str(self.known)))
        if self.declared:
            lines.append(f"by the index of {self.declared} itself")
        if self.apart:
            lines.append(f"looked at by themselves: {self.apart}")
        return "\n".join(lines)


def bound_of(things: int, page: int) -> int:
    """Up to how many candidates are read before going along the order instead is as fast.

    With n of them, a page is full after looking at page * things / n things.
    """
    return max(SORTABLE, math.isqrt(JUDGING * page * max(things, 1)))


def way_to_ids(known: int | None, things: int, page: int) -> AccessPath:
    """Whether to look the ids of known candidates up, or to go along all ids and keep those of candidates."""
    if known is None or known * known * LOOKED_UP > page * things * 2:
        return AccessPath.IDS
    return AccessPath.CANDIDATES


def shown_order(order: tuple[SortField, ...]) -> str:
    return ",".join(f"{'-' if each.is_descending else '+'}{'/'.join(each.field.path)}" for each in order)


def effective_order(question: ThingQuery) -> tuple[SortField, ...]:
    """The order up to the id, behind which nothing can matter."""
    order = []
    for sorting in question.order:
        order.append(sorting)
        if sorting.field.path == ("thingId",):
            break
    return tuple(order)


def _lines(candidates: Candidates, depth: int) -> list[tuple[int, str]]:
    match candidates:
        case AllThings():
            return [(depth, "every thing")]
        case RowSelect():
            return [(depth, f"rows of {candidates.says}")]
        case PathIntersection(_, rows):
            return [(depth, f"rows of {rows.says}")]
        case Intersection(parts):
            return [(depth, "in all of"), *(line for part in parts for line in _lines(part, depth + 1))]
        case Union(parts):
            word = "in any of" if parts else "nothing"
            return [(depth, word), *(line for part in parts for line in _lines(part, depth + 1))]
