"""Sets of things that may match, as keys from the index, up to a bound.

A set contains every thing that matches, and things unknown to the index. It may be too large: parts of a filter that very
many things match are left out if another part is known.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from sys import getsizeof
from typing import Any, Final, NamedTuple

from spark_store.rql.order import TypeRank
from spark_store.rql.projection import Read
from spark_store.rql.query import SortValue, ThingQuery
from spark_store.search.index_sql import (
    NOTHING,
    TEXT,
    AllThings,
    Candidates,
    Intersection,
    PathIntersection,
    RowSelect,
    Union,
    candidates,
    namespace,
)
from spark_store.search.planner import SORTABLE, AccessPath, bound_of, way_to_ids
from spark_store.search.read_view import COLUMNS, HEAD, STATE, CandidateRow, ReadView


class ValueCandidates(NamedTuple):
    """A value at a declared path: the path's name and number, and the rank and value of its rows."""

    name: str
    path: int
    rank: int
    value: Any


class IdScan:
    """The visible things of some namespaces, or of all if there are none."""

    def __init__(self, read_view: ReadView, namespaces: Collection[str]) -> None:
        self._read_view = read_view
        self._namespaces = namespaces

    def things(
        self, start: str | None, is_descending: bool, more: str = "", values: tuple[Any, ...] = ()
    ) -> Iterator[CandidateRow]:
        """Yield the visible things after the ID `start` that also meet the condition `more`, with `values`."""
        condition, parameters = self._read_view.visible
        select = f"SELECT {COLUMNS} FROM entities WHERE type = 'thing'"
        more = f" AND state IS NOT NULL AND {condition}{more}"
        return self._rows(select, more, (), start, is_descending, (*parameters, *values))

    def steps(self, start: str | None, is_descending: bool) -> Iterator[Any]:
        """Yield all things after the ID `start`, invisible ones without their states."""
        condition, parameters = self._read_view.visible
        select = f"SELECT {HEAD}, CASE WHEN {condition} THEN {STATE} END FROM entities WHERE type = 'thing'"
        return self._rows(select, " AND state IS NOT NULL", parameters, start, is_descending)

    def keys(self, start: str | None, is_descending: bool) -> Iterator[tuple[int, str]]:
        """Yield keys and IDs of all things after the ID `start`, deleted ones included."""
        return self._rows("SELECT key, id FROM entities WHERE type = 'thing'", "", (), start, is_descending)

    def of_value(
        self, wanted: ValueCandidates, beside: Collection[int], start: str | None, is_descending: bool
    ) -> Iterator[tuple[str, int]]:
        """Yield IDs and keys of the things with a value, and of those `beside`, after the ID `start`."""
        select = "SELECT id, thing FROM search_declared WHERE path = ? AND rank = ? AND value = ?"
        rows = self._rows(select, "", (wanted.path, wanted.rank, wanted.value), start, is_descending)
        if not beside:
            return rows
        others = sorted(self._read_view.ids(beside), reverse=is_descending)
        rest = (each for each in others if start is None or (each[0] < start if is_descending else each[0] > start))
        return heapq.merge(rows, rest, reverse=is_descending)

    def _rows(
        self,
        select: str,
        more: str,
        before: tuple[Any, ...],
        start: str | None,
        is_descending: bool,
        values: tuple[Any, ...] = (),
    ) -> Iterator[Any]:
        sign, direction = ("<", "DESC") if is_descending else (">", "ASC")
        condition, starts = ("", ()) if start is None else (f" AND id {sign} ?", (start,))
        for bounds in self._ranges(is_descending):
            within = " AND id >= ? AND id < ?" if bounds else ""
            yield from self._read_view.connection.execute(
                f"{select}{within}{condition}{more} ORDER BY id {direction}", (*before, *bounds, *starts, *values)
            )

    def _ranges(self, is_descending: bool) -> Sequence[tuple[str, ...]]:
        """Return the bounds of the IDs, for each namespace; empty ones for all IDs.

        An ID without a colon has no namespace, and may be anywhere.
        """
        if not self._namespaces or "" in self._namespaces:
            return [()]
        firsts = sorted((f"{name}:" for name in self._namespaces), reverse=is_descending)
        return [(first, f"{first[:-1]};") for first in firsts]


ALL: Final = 2**62
"""A bound for as many as there are."""

FEW_OF_POLICIES: Final = 1000
"""Up to how many things of the requester's policies are read for a list."""

FEW_BESIDE_CANDIDATES: Final = 50
"""Up to how many are read if the list of candidates is short already."""

FEW_CANDIDATES: Final = 400
"""Up to how many candidates are checked for visibility one by one, in place of a walk along all IDs."""

PLAIN: Final = (TypeRank.EMPTY_ARRAY, TypeRank.NULL, TypeRank.OBJECT, TypeRank.ARRAY)
"""Ranks whose values are equal in the order."""


_KEY: Final = getsizeof(2**30 - 1)
_PAIR: Final = getsizeof((None, None)) + _KEY


class CachedCandidates:
    """The candidates of earlier pages of a query, or that there are too many."""

    __slots__ = ("ids", "keys", "read", "was_read")

    def __init__(self) -> None:
        self.keys: frozenset[int] | None = None
        self.was_read = False
        self.read: Read | None = None
        self.ids: tuple[object, list[tuple[str, int]]] | None = None
        """The candidates last sorted by ID, and their key."""

    @property
    def bytes(self) -> int:
        """About how much memory the candidates take."""
        keys, ids = self.keys or (), self.ids[1] if self.ids is not None else ()
        return getsizeof(keys) + _KEY * len(keys) + getsizeof(ids) + sum(getsizeof(id) + _PAIR for id, _ in ids)


class Group(NamedTuple):
    """The index entry of the ordering value: the rank, and the value if it matters."""

    rank: int
    value: Any

    @classmethod
    def of(cls, value: SortValue) -> Group:
        if value.rank in PLAIN:
            return cls(int(value.rank), None)
        text = value.value
        return cls(int(value.rank), text[:TEXT] if isinstance(text, str) else text)

    @property
    def is_cut(self) -> bool:
        """Whether its things may differ beyond the index."""
        return isinstance(self.value, str) and len(self.value) >= TEXT


class CandidateSet:
    """The candidates of one query, for one requester, in one read view."""

    def __init__(
        self,
        read_view: ReadView,
        question: ThingQuery,
        subjects: Collection[str],
        limit: int,
        sorts_by_id: bool,
        known: CachedCandidates,
    ) -> None:
        self.read_view = read_view
        self.limit = limit
        self.known = known
        self.things = read_view.things()
        self.is_indexed = read_view.is_indexed()
        self.large = frozenset(read_view.large()) if self.is_indexed else frozenset[int]()
        """Large things, which have no rows in the index."""
        self.policies = read_view.restrict(subjects) if self.is_indexed else None
        """The policies by which they may be visible; None for very many, or if unknown."""
        self._sets: dict[Candidates, frozenset[int] | None] = {}
        self._sorts_by_id = sorts_by_id
        self.tree = self._candidates(question, sorts_by_id)

    def _candidates(self, question: ThingQuery, sorts_by_id: bool) -> Candidates:
        """Return what the index says about the query, for any requester."""
        if not self.is_indexed:
            return AllThings()
        if self.policies is not None and not self.policies:
            return NOTHING
        parts = [candidates(question.predicate)]
        if question.namespaces and "" not in question.namespaces and not sorts_by_id:
            # IDs have an index of their own; walking along them needs no list.
            parts.append(Union(tuple(map(namespace, sorted(question.namespaces)))))
        kept = tuple(part for part in parts if not isinstance(part, AllThings))
        if not kept:
            return AllThings()
        if NOTHING in kept:
            return NOTHING
        return kept[0] if len(kept) == 1 else Intersection(kept)

    def read(self, tree: Candidates, bound: int) -> frozenset[int] | None:
        """Return the keys that a tree selects; None for more than the bound, or for all."""
        if tree not in self._sets or (self._sets[tree] is None and bound >= ALL):
            self._sets[tree] = self._evaluate(tree, bound)
        return self._sets[tree]

    def _evaluate(self, tree: Candidates, bound: int) -> frozenset[int] | None:
        match tree:
            case AllThings():
                return None
            case RowSelect():
                rows = self.read_view.column(tree.sql, tree.parameters, bound + 1)
                return frozenset(rows) if len(rows) <= bound else None
            case PathIntersection(parts, rows):
                path = self.read_view.path(rows.path)
                if path is None:
                    return frozenset()
                return self.read(Intersection(parts) if self.read_view.has_arrays(path) else rows, bound)
            case Union(parts):
                found = [self.read(part, bound) for part in parts]
                return None if None in found else frozenset[int]().union(*(each for each in found if each is not None))
            case Intersection(parts):
                complete = [each for part in parts if (each := self.read(part, bound)) is not None]
                complete.sort(key=len)
                return complete[0].intersection(*complete[1:]) if complete else None

    def few(self) -> frozenset[int] | None:
        """Return all candidates, if they are few; those of an earlier page, if it has collected them."""
        if not self.known.was_read:
            self.known.was_read = True
            # An index of their own has the things of one value in order, without a list.
            has_own = self._sorts_by_id and isinstance(self.tree, RowSelect) and self.of_value(self.tree) is not None
            found = self._visible(self.read(self.tree, SORTABLE if has_own else self.bound()))
            self.known.keys = None if found is None else found | self.large
        return self.known.keys

    def _visible(self, found: frozenset[int] | None) -> frozenset[int] | None:
        """Return candidates, without the invisible ones if that is cheap; loading leaves out the others."""
        if found is not None and not found:
            return found
        if self.policies is not None:
            is_short = found is not None and len(found) <= SORTABLE
            visible = self.read(of_policies(self.policies), FEW_BESIDE_CANDIDATES if is_short else FEW_OF_POLICIES)
            if visible is not None:
                return visible if found is None else found & visible
        if found is None or len(found) > FEW_CANDIDATES:
            return found
        is_walk = way_to_ids(len(found), self.things, self.limit) is AccessPath.IDS
        return frozenset(key for _, key in self.read_view.ids(found)) if is_walk else found

    def bound(self) -> int:
        return bound_of(self.things, self.limit)

    def of_value(self, tree: Candidates) -> ValueCandidates | None:
        """Return a value that all things of a tree except large ones have; None without one.

        The value is at a declared path.
        """
        match tree:
            case RowSelect(path=name, equal=(rank, value)):
                path = self.read_view.declared_path(name)
                return None if path is None else ValueCandidates(name, path, rank, value)
            case Intersection(parts) | PathIntersection(parts, _):
                return next(filter(None, map(self.of_value, parts)), None)
            case _:
                return None

    def all(self, tree: Candidates) -> frozenset[int] | None:
        """Return all candidates; None if the index cannot restrict them."""
        if self.policies is not None:
            visible = of_policies(self.policies)
            tree = visible if isinstance(tree, AllThings) else Intersection((tree, visible))
        found = self.read(tree, ALL)
        return None if found is None else found | self.large


def of_policies(policies: Sequence[str]) -> RowSelect:
    """Return the things of these policies. Their IDs are cut in the index, as all texts are."""
    marks = ",".join("?" * len(policies))
    return RowSelect(
        f"SELECT thing FROM search_values WHERE path = (SELECT id FROM search_paths WHERE path = 'policyId') "
        f"AND rank = {int(TypeRank.TEXT)} AND value IN ({marks})",
        tuple(policy[:TEXT] for policy in policies),
        f"in(policyId,{len(policies)} policies)",
    )
