"""Yields the matching things of a query in order, after a place, for one page.

An `OrderedScan` reads a `ReadView` for one query. It yields things with their places, and sometimes only a place, up to
which nothing more was found, to continue there. The index selects things (`spark_store.search.index_sql`) and has the order
of values; it may select too many, so each is checked on its state (`spark_store.search.matcher`). Things whose place the
index does not know (large ones, partly readable ones) are sorted by themselves and merged. A required value at a declared
path has an index in the order of IDs.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

from mappings.model.metadata import METADATA
from spark_store.rql.order import TypeRank, compare, key_of
from spark_store.rql.query import ReadRights, SortField, SortKey, SortValue, ThingQuery
from spark_store.search.candidates import (
    ALL,
    PLAIN,
    CachedCandidates,
    CandidateSet,
    Group,
    IdScan,
    ValueCandidates,
    of_policies,
)
from spark_store.search.index_sql import AllThings, Candidates, Intersection, RowSelect, path_of
from spark_store.search.matcher import Match, Matcher
from spark_store.search.planner import SORTABLE, AccessPath, QueryPlan, shown_order, way_to_ids
from spark_store.search.read_view import CHUNK, CandidateRow, ReadView
from spark_store.search.state_sql import Condition, possible

CHUNK_MARK: Final = 128
"""After how many things a place without thing is yielded."""

SCANNED: Final = 4000
"""How many things the database examines at once: some ten milliseconds."""

LOST: Final = 3000
"""After how many misses all candidates are read, however many there are."""

APART: Final = 4000
"""How many things are sorted beside those that the index has in order."""

_SPARE: Final = 8
_SMALL: Final = 400
"""Groups of equal values up to this size are loaded at once."""

_DENSE: Final = 12
"""If one thing in so many is a candidate, all are read rather than each candidate by itself."""

_FIRST: Final = -1
_LAST: Final = 99
"""Ranks before and after all others."""
_AT: Final = "SELECT thing FROM search_values WHERE path = ? AND rank"
_KEYS: Final = "SELECT key FROM entities WHERE type = 'thing'"


class _Part(NamedTuple):
    """The candidates whose first values are `fixed`, to be ordered by the other fields.

    `keys`: the candidates; None for all things of `tree`. `after`: the place to continue after. Things that are `apart` are
    sorted by themselves.
    """

    keys: frozenset[int] | None
    tree: Candidates
    after: SortKey | None
    fixed: tuple[Group, ...] = ()
    apart: frozenset[int] = frozenset()

    @property
    def level(self) -> int:
        """The index of the field that orders next."""
        return len(self.fixed)

    @property
    def group(self) -> tuple[tuple[Group, ...], frozenset[int]]:
        """The key under which later pages find the candidates, if there are fixed values."""
        return self.fixed, self.apart


class OrderedScan:
    """One query, for one page of about `limit` things."""

    def __init__(
        self, read_view: ReadView, question: ThingQuery, rights: ReadRights, limit: int, known: CachedCandidates
    ) -> None:
        self.read_view = read_view
        self.limit = limit
        self.cached = known
        self.predicate = question.predicate
        self.order = question.order
        self._by_ids = IdScan(read_view, question.namespaces)
        self.key_of = key_of(self.order)
        self.sorts_by_id = len(self.order) == 1
        self.candidates = CandidateSet(read_view, question, rights.subjects, limit, self.sorts_by_id, known)
        self.matcher = Matcher(read_view, question, rights, self.order, known)

    def matches(self, after: SortKey | None) -> Iterator[Match]:
        """Yield the matches after a place, in order."""
        keys = self.candidates.few() if self.candidates.is_indexed else None
        if self.order[0].field.path == ("thingId",):
            yield from self._along_ids(_Part(keys, self.candidates.tree, after))
            return
        if keys is not None and len(keys) <= SORTABLE:
            yield from self._in_order(keys, after)
            return
        apart = self._apart()
        if apart is None or not self._is_walkable(self.order[0]):
            yield from self._in_order(
                self.candidates.all(self.candidates.tree) if self.candidates.is_indexed else None, after
            )
            return
        part = _Part(None if keys is None else keys - apart, self.candidates.tree, after, apart=apart)
        walked = self._level(part)
        if apart:
            beside = self._in_order(apart if keys is None else apart & keys, after)
            walked = heapq.merge(walked, beside, key=lambda found: self.key_of(found.place))
        yield from walked

    def plan(self) -> QueryPlan:
        keys = self.candidates.few() if self.candidates.is_indexed else None
        apart = self._apart() if self.candidates.is_indexed else None
        known = None if keys is None else len(keys)
        declared = ""
        if self.order[0].field.path == ("thingId",):
            way = way_to_ids(known, self.candidates.things, self.limit)
            if way is AccessPath.IDS and (value := self._value(_Part(keys, self.candidates.tree, None))) is not None:
                way, declared = AccessPath.VALUE, value.name
        elif known is not None and known <= SORTABLE:
            way = AccessPath.CANDIDATES
        elif apart is None or not self._is_walkable(self.order[0]):
            way = AccessPath.THINGS
        else:
            way = AccessPath.VALUES
            name = path_of(self.order[0].field.path)
            declared = name if len(self.order) == 2 and self.read_view.declared_path(name) is not None else ""
        return QueryPlan(
            way,
            self.candidates.tree,
            known,
            self.candidates.things,
            self.candidates.is_indexed,
            shown_order(self.order),
            len(apart) if apart else 0,
            declared,
        )

    def _is_walkable(self, sorting: SortField) -> bool:
        """Whether the index has the things in the order of this field."""
        path = sorting.field.path
        if not self.candidates.is_indexed or path[0] in ("_revision", "_modified"):
            return False
        first = 4 if path[0] == "features" else 2
        return not any(key.isdecimal() for key in path[first:])

    def _apart(self) -> frozenset[int] | None:
        """Return the things whose place the index does not know; None for too many, or if unknown."""
        if (
            not self.candidates.is_indexed
            or self.candidates.policies is None
            or (namespaces := self.read_view.namespaces()) is None
        ):
            return None
        fields = [sorting.field.path for sorting in self.order]
        partial = [
            policy
            for policy in self.candidates.policies
            if any(
                access is not None
                and not access.is_whole
                # The permissions for metadata depend on the thing.
                and any(path[0] == METADATA or not access.may(path) for path in fields)
                for access in (self.matcher.access(policy, f"{name}:") for name in namespaces)
            )
        ]
        found = self.candidates.read(of_policies(partial), APART) if partial else frozenset()
        if found is None or len(found) + len(self.candidates.large) > APART:
            return None
        return found | self.candidates.large

    def _in_order(
        self,
        keys: Collection[int] | None,
        after: SortKey | None,
        fixed: tuple[Group, ...] = (),
        last: Collection[Group] = (),
    ) -> Iterator[Match]:
        """Yield the matches among these keys, all evaluated and sorted; None for all things.

        Their first values are `fixed`, and, if `last` is given, the next one is one of those.
        """
        found, level = [], len(fixed)
        for row in self._by_ids.things(None, False) if keys is None else self.read_view.load(keys):
            judged = self.matcher.match_row(row)
            if (
                judged is not None
                and self._is_within(judged.place, fixed)
                and (not last or Group.of(judged.place[level]) in last)
                and (after is None or compare(after, judged.place, self.order) < 0)
            ):
                found.append(judged)
        if len(found) > 1:
            for index in reversed(range(len(self.order))):
                found.sort(key=lambda each: each.place[index], reverse=self.order[index].is_descending)
        yield from found

    def _is_within(self, place: SortKey, fixed: tuple[Group, ...]) -> bool:
        return all(Group.of(value) == group for value, group in zip(place, fixed, strict=False))

    def _along_ids(self, part: _Part) -> Iterator[Match]:
        """Yield the matches in the order of IDs."""
        fixed = part.fixed
        is_descending = self.order[part.level].is_descending
        start = None if part.after is None else str(part.after[part.level].value)
        for row in self._rows_by_id(part, start, is_descending):
            if isinstance(row, str):
                if not fixed:
                    yield Match((SortValue(TypeRank.TEXT, row),), None)
                continue
            judged = self.matcher.match_row(row)
            if judged is not None and self._is_within(judged.place, fixed):
                yield judged
            elif not fixed and self.read_view.clock.is_late():
                yield Match((SortValue(TypeRank.TEXT, row[1]),), None)

    def _rows_by_id(self, part: _Part, start: str | None, is_descending: bool) -> Iterator[CandidateRow | str]:
        """Yield rows that may match in the order of IDs, and IDs up to which none did."""
        keys, tree, _, fixed, apart = part
        if fixed and self.cached.ids is not None and self.cached.ids[0] == part.group:
            yield from self._known_ids(self.cached.ids[1], start, is_descending)
            return
        if keys is not None:
            yield from self._candidates_by_id(keys, part, start, is_descending)
            return
        value = self._value(part)
        things: Iterator[CandidateRow | str] = (
            self._by_ids.steps(start, is_descending)
            if value is None
            else self._of_value(value, None, start, is_descending, fixed)
        )
        for looked_at, row in enumerate(things, 1):
            id = row if isinstance(row, str) else row[1]
            if isinstance(row, str) or (row[-1] is not None and row[0] not in apart):
                yield row
            if looked_at % CHUNK_MARK == 0:
                yield id
            if looked_at == LOST + self.limit * 2 and self.candidates.is_indexed:
                found, condition = self.candidates.all(tree), self._condition()
                if condition is not None and (found is None or len(found) * _DENSE > self.candidates.things):
                    yield from self._possible_by_id(condition, id, is_descending, apart)
                    return
                if found is not None:
                    if not fixed:
                        self.cached.keys = found
                    yield from self._candidates_by_id(found - apart, part, id, is_descending)
                    return

    def _condition(self) -> Condition | None:
        """Return a condition on states, if there is one and nothing is hidden from the requester."""
        if self.predicate is None or not self.matcher.sees_everything(self.candidates.policies):
            return None
        return possible(self.predicate)

    def _possible_by_id(
        self, condition: Condition, start: str, is_descending: bool, apart: frozenset[int]
    ) -> Iterator[CandidateRow | str]:
        """Yield rows that meet a condition after an ID, as `_rows_by_id` does, filtered in the database."""
        sign, back, direction = ("<", ">", "DESC") if is_descending else (">", "<", "ASC")
        ahead = f"SELECT id FROM entities WHERE type = 'thing' AND id {sign} ? ORDER BY id {direction} LIMIT 1 OFFSET ?"
        last: str | None = start
        while last is not None:
            start, last = last, self.read_view.first(ahead, (last, SCANNED))
            upto = "" if last is None else f" AND id {back}= ?"
            more, values = f"{upto} AND {condition.sql}", (*(() if last is None else (last,)), *condition.parameters)
            for row in self._by_ids.things(start, is_descending, more, values):
                if row[0] not in apart:
                    yield row
            if last is not None:
                yield last

    def _candidates_by_id(
        self, keys: frozenset[int], part: _Part, start: str | None, is_descending: bool
    ) -> Iterator[CandidateRow | str]:
        if way_to_ids(len(keys), self.candidates.things, self.limit) is AccessPath.CANDIDATES:
            wanted = part.group if part.fixed else keys
            if self.cached.ids is None or self.cached.ids[0] != wanted:
                self.cached.ids = (wanted, sorted(self.read_view.ids(keys)))
            yield from self._known_ids(self.cached.ids[1], start, is_descending)
            return
        if (value := self._value(part)) is not None:
            yield from self._of_value(value, keys, start, is_descending, part.fixed)
            return
        is_dense = len(keys) * _DENSE > self.candidates.things
        by_ids = self._by_ids
        rows: Iterator[Any] = by_ids.steps(start, is_descending) if is_dense else by_ids.keys(start, is_descending)
        for looked_at, row in enumerate(rows, 1):
            if row[0] in keys:
                if not is_dense:
                    yield from self.read_view.load((row[0],))
                elif row[-1] is not None:
                    yield row
            if looked_at % CHUNK_MARK == 0:
                yield row[1]

    def _known_ids(
        self, ids: list[tuple[str, int]], start: str | None, is_descending: bool
    ) -> Iterator[CandidateRow | str]:
        """Yield the things with these IDs, which are in order, after `start`."""
        if is_descending:
            rest = ids[: len(ids) if start is None else bisect_left(ids, (start,))][::-1]
        else:
            rest = ids[0 if start is None else bisect_left(ids, (f"{start}\0",)) :]
        size = min(CHUNK, self.limit + 1)
        for first in range(0, len(rest), size):
            some = rest[first : first + size]
            yield from self._load(some)
            yield some[-1][0]

    def _load(self, ids: Sequence[tuple[str, int]]) -> Iterator[CandidateRow | str]:
        """Yield the rows of things, and the IDs of invisible ones."""
        rows = {row[0]: row for row in self.read_view.load([key for _, key in ids])}
        yield from (rows.get(key, id) for id, key in ids)

    def _value(self, part: _Part) -> ValueCandidates | None:
        """Return the value whose IDs are walked along, in place of all things."""
        if not part.fixed and len(self.candidates.large) > APART:
            # Those would have to be merged into the order.
            return None
        return self.candidates.of_value(part.tree)

    def _of_value(
        self,
        value: ValueCandidates,
        keys: frozenset[int] | None,
        start: str | None,
        is_descending: bool,
        fixed: tuple[Group, ...],
    ) -> Iterator[CandidateRow | str]:
        """Yield the things of a value among the keys, and IDs up to which there are no others."""
        size = min(CHUNK, self.limit + 1)
        # If other values come first, large things are examined by themselves.
        beside = () if fixed else self.candidates.large
        some: list[tuple[str, int]] = []
        for looked_at, each in enumerate(self._by_ids.of_value(value, beside, start, is_descending), 1):
            if keys is None or each[1] in keys:
                some.append(each)
            if len(some) == size or looked_at % SCANNED == 0:
                yield from self._load(some)
                yield each[0]
                some = []
        yield from self._load(some)

    def _level(self, part: _Part) -> Iterator[Match]:
        """Yield the matches of a part in order."""
        keys, sorting = part.keys, self.order[part.level]
        if keys is not None and len(keys) <= _SMALL:
            yield from self._in_order(keys, part.after, part.fixed)
        elif sorting.field.path == ("thingId",):
            yield from self._along_ids(part)
        elif keys is not None and (len(keys) <= SORTABLE or not self._is_walkable(sorting)):
            yield from self._in_order(keys, part.after, part.fixed)
        elif not self._is_walkable(sorting):
            found = self.candidates.all(part.tree)
            yield from self._in_order(None if found is None else found - part.apart, part.after, part.fixed)
        else:
            yield from self._along_values(part)

    def _along_values(self, part: _Part) -> Iterator[Match]:
        """Yield the matches of a part, one value of the field that orders next after the other."""
        sorting = self.order[part.level]
        start = None if part.after is None else part.after[part.level]
        path = self.read_view.path(path_of(sorting.field.path))
        ranks = [int(rank) for rank in TypeRank]
        for rank in reversed(ranks) if sorting.is_descending else ranks:
            if start is not None and (rank > start.rank if sorting.is_descending else rank < start.rank):
                continue
            if start is not None and rank != start.rank:
                part = part._replace(after=None)
            if rank == TypeRank.NULL:
                yield from self._without_value(path, part)
            else:
                yield from self._of_rank(path, rank, part)

    def _of_rank(self, path: int | None, rank: int, part: _Part) -> Iterator[Match]:
        """Yield the matches with values of one type. Values of few things are looked at together."""
        keys, apart, is_descending = part.keys, part.apart, self.order[part.level].is_descending
        start = None if part.after is None else Group.of(part.after[part.level])
        is_behind = False
        if start is not None:
            # An earlier page has ended after all things of one value.
            is_behind = part.after == self._end_of(start)
            kept = part._replace(fixed=(*part.fixed, start)).group
            if self.cached.ids is not None and self.cached.ids[0] == kept:
                # Or among many of them, and has kept their order.
                is_behind = True
                yield from self._large_group(path, start, part)
        things: dict[int, None] = {}
        groups: list[Group] = []
        # Earlier results may come first, and one more than a page is needed.
        wanted = min(CHUNK, self.limit + _SPARE)
        for group, members in self._groups(path, rank, start, is_behind, is_descending, keys):
            if members is not None:
                groups.append(group)
                things.update((key, None) for key in members if key not in apart)
                if len(things) < wanted:
                    continue
            if groups:
                yield from self._of_groups(things, groups, part)
                things, groups, wanted = {}, [], CHUNK
            if members is None:
                yield from self._large_group(path, group, part if group == start else part._replace(after=None))
                if part.level == 0 and not group.is_cut:
                    yield Match(self._end_of(group), None)
        if groups:
            yield from self._of_groups(things, groups, part)

    def _of_groups(self, things: Collection[int], groups: Sequence[Group], part: _Part) -> Iterator[Match]:
        """Yield the matches among the things of some consecutive values."""
        if things:
            yield from self._in_order(things, part.after, part.fixed, frozenset(groups))
        if part.level == 0 and not groups[-1].is_cut:
            yield Match(self._end_of(groups[-1]), None)

    def _large_group(self, path: int | None, group: Group, part: _Part) -> Iterator[Match]:
        """Yield the matches with one value that many things have."""
        field, keys = self.order[part.level].field, part.keys
        part = part._replace(fixed=(*part.fixed, group))
        if self.cached.ids is not None and self.cached.ids[0] == part.group:
            yield from self._along_ids(part._replace(keys=None))
            return
        condition, parameters = ("", ()) if group.value is None else (" AND value = ?", (group.value,))
        equal = None if group.value is None or group.is_cut else (group.rank, group.value)
        rows = RowSelect(
            f"SELECT thing FROM search_values WHERE path = ? AND rank = ?{condition}",
            (path, group.rank, *parameters),
            "",
            path_of(field.path),
            equal,
        )
        part = part._replace(tree=rows if isinstance(part.tree, AllThings) else Intersection((part.tree, rows)))
        is_next = part.level + 1 == len(self.order)
        are_many = keys is None or way_to_ids(len(keys), self.candidates.things, self.limit) is AccessPath.IDS
        if is_next and are_many and self.candidates.of_value(rows) is not None:
            yield from self._along_ids(part)
            return
        found = self.candidates.read(rows, ALL if group.is_cut else self.candidates.bound())
        if found is not None:
            part = part._replace(keys=found - part.apart if keys is None else keys & found)
        if group.is_cut:
            yield from self._in_order(part.keys, part.after, part.fixed)
        else:
            yield from self._level(part)

    def _without_value(self, path: int | None, part: _Part) -> Iterator[Match]:
        """Yield the matches without a value to be ordered by, or with null."""
        keys, apart = part.keys, part.apart
        if path is not None and self.read_view.has_for_all(path):
            nulls = frozenset(self.read_view.column(f"{_AT} = {int(TypeRank.NULL)}", (path,)))
            keys = (nulls if keys is None else keys & nulls) - apart
        elif keys is None or len(keys) > SORTABLE:
            others = frozenset(self.read_view.column(f"{_AT} <> {int(TypeRank.NULL)}", (path,)))
            nulls = frozenset(self.read_view.column(f"{_AT} = {int(TypeRank.NULL)}", (path,)))
            all = (frozenset(self.read_view.column(_KEYS)) - apart) if keys is None else keys
            keys = (all - others).union(all.intersection(nulls))
        yield from self._level(part._replace(keys=keys, fixed=(*part.fixed, Group(int(TypeRank.NULL), None))))

    def _groups(
        self,
        path: int | None,
        rank: int,
        start: Group | None,
        is_behind: bool,
        is_descending: bool,
        keys: frozenset[int] | None,
    ) -> Iterator[tuple[Group, list[int] | None]]:
        """Yield values in order, each with its things among the keys; None if it has very many.

        They begin with `start`, or after it.
        """
        is_plain = rank in PLAIN
        if is_plain and is_behind:
            return
        sign, direction = ("<", "DESC") if is_descending else (">", "ASC")
        if not is_behind:
            sign += "="
        select = "SELECT value, thing FROM search_values WHERE path = ? AND rank = ?"
        bound: tuple[Any, ...] = () if start is None or is_plain else (start.value,)
        while True:
            condition = f" AND value {sign} ?" if bound else ""
            cursor = self.read_view.connection.execute(
                f"{select}{condition} ORDER BY value {direction}", (path, rank, *bound)
            )
            value: Any = None
            members, size = list[int](), 0
            for each, thing in cursor:
                if not size or (each != value and not is_plain):
                    if size:
                        yield Group(rank, value), members
                    value, members, size = None if is_plain else each, [], 0
                size += 1
                if size > _SMALL:
                    break
                if keys is None or thing in keys:
                    members.append(thing)
            else:
                if size:
                    yield Group(rank, value), members
                return
            cursor.close()
            yield Group(rank, value), None
            if is_plain:
                return
            # Continue after this value without reading the rest of its rows.
            bound, sign = (value,), sign[0]

    def _end_of(self, group: Group) -> SortKey:
        """Return a place after all things with this value."""
        rest = [SortValue(_FIRST if each.is_descending else _LAST, None) for each in self.order[1:-1]]
        id = SortValue(TypeRank.TEXT, "" if self.order[-1].is_descending else "\U0010ffff")
        return (SortValue(group.rank, group.value), *rest, id)
