"""Things in the order of an answer, one after the other, from a place on: the looking behind a page of a search.

A `Moment` is one state of the file that is being read, and a `Walk` goes through it for one question. What it gives are
things that match, with the places where they stand, and now and then only a place: as far as that, nothing more was found,
so whoever stops there can go on there.

The index says where to look (`spark_store.rql.to_sql`) and how values lie in order. It says too much sometimes and never too
little, so every thing is judged on its state: whether whoever asks may see it, whether it matches, where it stands. Where a
field orders the answer, the things of one value after the other are taken from the index; those that it knows too little of
(large ones, and those of which he may read a part only) are brought into order by themselves, and merged in.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from spark_store.asking import Access, Hidden, Hit, Place, Question, Rights, Sorting, Value, with_hidden
from spark_store.moment import COLUMNS, Moment, Row, Stopped
from spark_store.planning import (
    SORTABLE,
    Plan,
    Way,
    bound_of,
    effective_order,
    shown_order,
    way_to_ids,
)
from spark_store.records import namespace_of
from spark_store.rql.order import Rank, key_of, place_of
from spark_store.rql.search import holds
from spark_store.rql.to_sql import NOTHING, TEXT, Both, Candidates, Either, Every, Rows, candidates, namespace, path_of

CHUNK_MARK: Final = 128
"""After looking at so many things it is told how far nothing was found."""

LOST: Final = 3000
"""After looking at so many things in vain, all candidates are read, however many there are."""

APART: Final = 4000
"""Up to so many things are brought into order beside those that the index has in order."""

_FEW_OF_POLICIES: Final = 1000
_SMALL: Final = 400
"""Groups of equal values up to this size are loaded at once."""

_SIGN: Final = b'"_metadata":'
_INFINITE: Final = 2**62
_FIRST: Final = -1
_LAST: Final = 99
"""Ranks before and behind all others."""
_PLAIN: Final = (Rank.EMPTY_ARRAY, Rank.NULL, Rank.OBJECT, Rank.ARRAY)
"""Ranks whose values are not told apart in the order."""

_KEYS: Final = "SELECT key FROM entities WHERE type = 'thing'"


class Found(NamedTuple):
    """A thing and where it stands; without a thing, how far nothing more was found."""

    place: Place
    hit: Hit | None
    size: int = 0
    """Of its state, in bytes."""


class Known:
    """What was found out on earlier pages about a question: a set of candidates, or that there are too many."""

    __slots__ = ("keys", "was_read")

    def __init__(self) -> None:
        self.keys: frozenset[int] | None = None
        self.was_read = False


class _Group(NamedTuple):
    """What the index says about the value that orders things: the rank, and the value where it matters."""

    rank: int
    value: Any

    @classmethod
    def of(cls, value: Value) -> _Group:
        if value.rank in _PLAIN:
            return cls(int(value.rank), None)
        text = value.value
        return cls(int(value.rank), text[:TEXT] if isinstance(text, str) else text)

    @property
    def is_cut(self) -> bool:
        """Whether its things may differ in what the index does not have."""
        return isinstance(self.value, str) and len(self.value) >= TEXT


class Walk:
    """One question, for one page of about `limit` things."""

    def __init__(self, moment: Moment, question: Question, rights: Rights, limit: int, known: Known) -> None:
        self.moment = moment
        self.rights = rights
        self.limit = limit
        self.known = known
        self.predicate = question.predicate
        self.namespaces = question.namespaces
        self.order = effective_order(question)
        self.key_of = key_of(self.order)
        self.things = moment.things()
        self.is_indexed = moment.is_indexed()
        self.large = frozenset(moment.large()) if self.is_indexed else frozenset[int]()
        self.policies = moment.policies(rights.subjects) if self.is_indexed else None
        self._sorts_by_id = len(self.order) == 1
        self.tree = self._tree()
        self._access: dict[tuple[str | None, str], Access | None] = {}
        self._sets: dict[Candidates, frozenset[int] | None] = {}

    # the candidates

    def _tree(self) -> Candidates:
        """What the index says about the question, whoever asks."""
        if not self.is_indexed:
            return Every()
        if self.policies is not None and not self.policies:
            return NOTHING
        parts = [candidates(self.predicate)]
        if self.namespaces and "" not in self.namespaces and not self._sorts_by_id:
            # Ids are not in the index of values, but they have one of their own; who goes along them needs no list.
            parts.append(Either(tuple(map(namespace, sorted(self.namespaces)))))
        kept = tuple(part for part in parts if not isinstance(part, Every))
        return NOTHING if NOTHING in kept else kept[0] if len(kept) == 1 else Both(kept) if kept else Every()

    def _read(self, tree: Candidates, bound: int) -> frozenset[int] | None:
        """The keys that a tree means, large things beside it; None for more than the bound, or for all."""
        if tree not in self._sets or (self._sets[tree] is None and bound >= _INFINITE):
            self._sets[tree] = self._evaluate(tree, bound)
        return self._sets[tree]

    def _evaluate(self, tree: Candidates, bound: int) -> frozenset[int] | None:
        match tree:
            case Every():
                return None
            case Rows(sql, parameters, _):
                rows = self.moment.column(sql, parameters, bound + 1)
                return frozenset(rows) if len(rows) <= bound else None
            case Either(parts):
                found = [self._read(part, bound) for part in parts]
                return None if None in found else frozenset[int]().union(*(each for each in found if each is not None))
            case Both(parts):
                complete = [each for part in parts if (each := self._read(part, bound)) is not None]
                complete.sort(key=len)
                return complete[0].intersection(*complete[1:]) if complete else None

    def _candidates(self) -> frozenset[int] | None:
        """All candidates, where they are few enough to know them; on later pages those of the first one."""
        if not self.known.was_read:
            self.known.was_read = True
            found = self._read(self.tree, self._bound())
            if self.policies is not None and (found is None or len(found) > SORTABLE):
                visible = self._read(_of_policies(self.policies), _FEW_OF_POLICIES)
                if visible is not None:
                    found = visible if found is None else found & visible
            self.known.keys = None if found is None else found | self.large
        return self.known.keys

    def _bound(self) -> int:
        return bound_of(self.things, self.limit)

    def _all_candidates(self, tree: Candidates) -> frozenset[int] | None:
        """However many there are; None where the index says nothing."""
        if self.policies is not None:
            tree = _of_policies(self.policies) if isinstance(tree, Every) else Both((tree, _of_policies(self.policies)))
        found = self._read(tree, _INFINITE)
        return None if found is None else found | self.large

    # judging

    def access(self, policy: str | None, thing_id: str) -> Access | None:
        place = (policy, namespace_of(thing_id))
        if place not in self._access:
            self._access[place] = None if policy is None else self.rights.access(policy, place[1])
        return self._access[place]

    def judge(self, row: Row) -> Found | None:
        """The thing of a row, if it is an answer."""
        _, thing_id, revision, created, modified, policy, state = row
        if self.namespaces and namespace_of(thing_id) not in self.namespaces:
            return None
        access = self.access(policy, thing_id)
        if access is None:
            return None
        hidden = Hidden(revision, created, modified)
        if access.is_whole and self.predicate is None and self._sorts_by_id and _SIGN not in state:
            return Found((Value(Rank.TEXT, thing_id),), Hit(thing_id, text=state, hidden=hidden), len(state))
        thing = with_hidden(msgspec.json.decode(state), hidden)
        may = None if access.is_whole else access.may
        if self.predicate is not None and not holds(self.predicate, thing, may):
            return None
        seen = thing if access.is_whole else access.view(thing)
        if seen is None:
            return None
        text = state if access.is_whole and _SIGN not in state else None
        return Found(place_of(thing, self.order, may), Hit(thing_id, seen, text=text), len(state))

    # the order

    def behind(self, after: Place | None) -> Iterator[Found]:
        """What matches behind a place, in order."""
        keys = self._candidates() if self.is_indexed else None
        if self.order[0].field.path == ("thingId",):
            yield from self._along_ids(keys, self.tree, after, 0, ())
            return
        if keys is not None and len(keys) <= SORTABLE:
            yield from self._in_order(keys, after, ())
            return
        apart = self._apart()
        if apart is None or not self._is_walkable(self.order[0]):
            yield from self._in_order(self._all_candidates(self.tree) if self.is_indexed else None, after, ())
            return
        walked = self._level(0, None if keys is None else keys - apart, self.tree, after, (), apart)
        if apart:
            looked_at = apart if keys is None else apart & keys
            walked = heapq.merge(
                walked, self._in_order(looked_at, after, ()), key=lambda found: self.key_of(found.place)
            )
        yield from walked

    def plan(self) -> Plan:
        keys = self._candidates() if self.is_indexed else None
        apart = self._apart() if self.is_indexed else None
        known = None if keys is None else len(keys)
        if self.order[0].field.path == ("thingId",):
            way = way_to_ids(known, self.things, self.limit)
        elif known is not None and known <= SORTABLE:
            way = Way.CANDIDATES
        elif apart is None or not self._is_walkable(self.order[0]):
            way = Way.THINGS
        else:
            way = Way.VALUES
        return Plan(
            way, self.tree, known, self.things, self.is_indexed, shown_order(self.order), len(apart) if apart else 0
        )

    def _is_walkable(self, sorting: Sorting) -> bool:
        """Whether the things lie in the index in the order of this field."""
        path = sorting.field.path
        if not self.is_indexed or path[0] in ("_revision", "_modified"):
            return False
        first = 4 if path[0] == "features" else 2
        return not any(key.isdecimal() for key in path[first:])

    def _apart(self) -> frozenset[int] | None:
        """The things whose place the index does not know, for whoever asks; None for too many, or if that is not known."""
        if not self.is_indexed or self.policies is None or (namespaces := self.moment.namespaces()) is None:
            return None
        fields = [sorting.field.path for sorting in self.order]
        partial = [
            policy
            for policy in self.policies
            if any(
                access is not None and not access.is_whole and not all(map(access.may, fields))
                for access in (self.access(policy, f"{name}:") for name in namespaces)
            )
        ]
        found = self._read(_of_policies(partial), APART) if partial else frozenset()
        if found is None or len(found) + len(self.large) > APART:
            return None
        return found | self.large

    def _in_order(
        self, keys: Collection[int] | None, after: Place | None, fixed: tuple[_Group, ...]
    ) -> Iterator[Found]:
        """Everything among these keys that matches, all of it looked at and brought into order; None for all things."""
        found = []
        for row in self._every_row() if keys is None else self.moment.load(keys):
            judged = self.judge(row)
            if judged is not None and self._is_within(judged.place, fixed):
                found.append((self.key_of(judged.place), judged))
            if self.moment.clock.tick():
                raise Stopped
        if after is not None:
            start = self.key_of(after)
            found = [each for each in found if start < each[0]]
        found.sort(key=lambda each: each[0])
        for _, judged in found:
            yield judged

    def _is_within(self, place: Place, fixed: tuple[_Group, ...]) -> bool:
        return all(_Group.of(value) == group for value, group in zip(place, fixed, strict=False))

    # along the ids

    def _along_ids(
        self,
        keys: frozenset[int] | None,
        tree: Candidates,
        after: Place | None,
        level: int,
        fixed: tuple[_Group, ...],
        apart: frozenset[int] = frozenset(),
    ) -> Iterator[Found]:
        """What matches in the order of ids; with `fixed` values of the fields that order it before them."""
        is_descending = self.order[level].is_descending
        start = None if after is None else str(after[level].value)
        for row in self._rows_by_id(keys, tree, start, is_descending, fixed, apart):
            if isinstance(row, str):
                if not fixed:
                    yield Found((Value(Rank.TEXT, row),), None)
                continue
            judged = self.judge(row)
            if judged is not None and self._is_within(judged.place, fixed):
                yield judged

    def _rows_by_id(
        self,
        keys: frozenset[int] | None,
        tree: Candidates,
        start: str | None,
        is_descending: bool,
        fixed: tuple[_Group, ...],
        apart: frozenset[int],
    ) -> Iterator[Row | str]:
        """Rows that may match in the order of ids, and ids as far as which none did."""
        if keys is not None:
            yield from self._candidates_by_id(keys, start, is_descending)
            return
        for looked_at, row in enumerate(self._things_by_id(start, is_descending, COLUMNS), 1):
            if row[0] not in apart:
                yield row
            if looked_at % CHUNK_MARK == 0:
                yield row[1]
            if looked_at == LOST + self.limit * 2 and self.is_indexed:
                found = self._all_candidates(tree)
                if found is not None:
                    if not fixed:
                        self.known.keys = found
                    yield from self._candidates_by_id(found - apart, row[1], is_descending)
                    return

    def _candidates_by_id(self, keys: frozenset[int], start: str | None, is_descending: bool) -> Iterator[Row | str]:
        if way_to_ids(len(keys), self.things, self.limit) is Way.CANDIDATES:
            ids = sorted(self.moment.ids(keys), reverse=is_descending)
            for id, key in ids:
                if start is None or (id < start if is_descending else id > start):
                    yield from self.moment.load((key,))
                    yield id
            return
        for looked_at, (key, id) in enumerate(self._things_by_id(start, is_descending, "key, id"), 1):
            if key in keys:
                yield from self.moment.load((key,))
            if looked_at % 1024 == 0:
                yield id

    def _things_by_id(self, start: str | None, is_descending: bool, columns: str) -> Iterator[Any]:
        sign, direction = ("<", "DESC") if is_descending else (">", "ASC")
        condition = "" if start is None else f" AND id {sign} ?"
        living = " AND state IS NOT NULL" if columns == COLUMNS else ""
        for first, last in self._ranges(is_descending):
            bounds = "" if first is None else " AND id >= ? AND id < ?"
            yield from self.moment.connection.execute(
                f"SELECT {columns} FROM entities WHERE type = 'thing'{bounds}{condition}{living} ORDER BY id {direction}",
                (*(() if first is None else (first, last)), *(() if start is None else (start,))),
            )

    def _ranges(self, is_descending: bool) -> Sequence[tuple[str | None, str | None]]:
        """Between which ids things lie. An id without a colon has no namespace, and may lie anywhere."""
        if not self.namespaces or "" in self.namespaces:
            return ((None, None),)
        firsts = sorted((f"{name}:" for name in self.namespaces), reverse=is_descending)
        return [(first, f"{first[:-1]};") for first in firsts]

    def _every_row(self) -> Iterator[Row]:
        return self._things_by_id(None, False, COLUMNS)

    # along the values

    def _level(
        self,
        level: int,
        keys: frozenset[int] | None,
        tree: Candidates,
        after: Place | None,
        fixed: tuple[_Group, ...],
        apart: frozenset[int],
    ) -> Iterator[Found]:
        """What matches among candidates whose first values are `fixed`, in the order of what comes behind them."""
        if keys is not None and len(keys) <= _SMALL:
            yield from self._in_order(keys, after, fixed)
        elif self.order[level].field.path == ("thingId",):
            yield from self._along_ids(keys, tree, after, level, fixed, apart)
        elif keys is not None and (len(keys) <= SORTABLE or not self._is_walkable(self.order[level])):
            yield from self._in_order(keys, after, fixed)
        elif not self._is_walkable(self.order[level]):
            found = self._all_candidates(tree)
            yield from self._in_order(None if found is None else found - apart, after, fixed)
        else:
            yield from self._along_values(level, keys, tree, after, fixed, apart)

    def _along_values(
        self,
        level: int,
        keys: frozenset[int] | None,
        tree: Candidates,
        after: Place | None,
        fixed: tuple[_Group, ...],
        apart: frozenset[int],
    ) -> Iterator[Found]:
        """As `_level`, one value of the field that orders next after the other."""
        sorting = self.order[level]
        start = None if after is None else after[level]
        path = self._path(sorting)
        for first, last in _sections(sorting.is_descending):
            if start is not None and (first > start.rank if sorting.is_descending else last < start.rank):
                continue
            here = start if start is not None and first <= start.rank <= last else None
            if first == last == Rank.NULL:
                yield from self._missing(level, path, keys, tree, after if here is not None else None, fixed, apart)
                continue
            for group, things in self._groups(path, first, last, here, sorting.is_descending, keys):
                behind = after if start is not None and group == _Group.of(start) else None
                within = (*fixed, group)
                if things is not None:
                    if things:
                        yield from self._in_order([key for key in things if key not in apart], behind, within)
                else:
                    yield from self._large_group(level, path, group, keys, tree, behind, within, apart)
                if level == 0 and not group.is_cut:
                    yield Found(self._end_of(group), None)

    def _large_group(
        self,
        level: int,
        path: int | None,
        group: _Group,
        keys: frozenset[int] | None,
        tree: Candidates,
        after: Place | None,
        fixed: tuple[_Group, ...],
        apart: frozenset[int],
    ) -> Iterator[Found]:
        """The things of one value that many have."""
        condition, parameters = ("", ()) if group.value is None else (" AND value = ?", (group.value,))
        rows = Rows(
            f"SELECT thing FROM search_values WHERE path = ? AND rank = ?{condition}",
            (path, group.rank, *parameters),
            "",
        )
        found = self._read(rows, _INFINITE if group.is_cut else self._bound())
        if found is not None:
            keys = found - apart if keys is None else keys & found
        if group.is_cut:
            yield from self._in_order(keys, after, fixed)
        else:
            inner = rows if isinstance(tree, Every) else Both((tree, rows))
            yield from self._level(level + 1, keys, inner, after, fixed, apart)

    def _missing(
        self,
        level: int,
        path: int | None,
        keys: frozenset[int] | None,
        tree: Candidates,
        after: Place | None,
        fixed: tuple[_Group, ...],
        apart: frozenset[int],
    ) -> Iterator[Found]:
        """The things that have no value to be ordered by, or null."""
        if keys is None or len(keys) > SORTABLE:
            values = "SELECT thing FROM search_values WHERE path = ? AND rank"
            others = frozenset(self.moment.column(f"{values} <> {int(Rank.NULL)}", (path,)))
            nulls = self.moment.column(f"{values} = {int(Rank.NULL)}", (path,))
            all = (frozenset(self.moment.column(_KEYS)) - apart) if keys is None else keys
            keys = (all - others).union(all.intersection(nulls))
        within = (*fixed, _Group(int(Rank.NULL), None))
        yield from self._level(level + 1, keys, tree, after, within, apart)

    def _groups(
        self,
        path: int | None,
        first: int,
        last: int,
        start: Value | None,
        is_descending: bool,
        keys: frozenset[int] | None,
    ) -> Iterator[tuple[_Group, list[int] | None]]:
        """Values in order, each with those of its things that are among the keys; None where it has very many things."""
        sign, direction = ("<", "DESC") if is_descending else (">", "ASC")
        select = f"SELECT rank, value, thing FROM search_values WHERE path = ? AND rank BETWEEN {first} AND {last}"
        bound: tuple[str, tuple[Any, ...]] = ("", ()) if start is None else _behind(_Group.of(start), f"{sign}=")
        while True:
            cursor = self.moment.connection.execute(
                f"{select}{bound[0]} ORDER BY rank {direction}, value {direction}", (path, *bound[1])
            )
            group, members, size = None, list[int](), 0
            for rank, value, thing in cursor:
                this = (rank, None if rank in _PLAIN else value)
                if this != group:
                    if group is not None:
                        yield _Group(*group), members
                    group, members, size = this, [], 0
                size += 1
                if size > _SMALL:
                    cursor.close()
                    yield _Group(*this), None
                    bound = _behind(_Group(*this), sign)
                    break
                if keys is None or thing in keys:
                    members.append(thing)
            else:
                if group is not None:
                    yield _Group(*group), members
                return

    def _path(self, sorting: Sorting) -> int | None:
        found = self.moment.column("SELECT id FROM search_paths WHERE path = ?", (path_of(sorting.field),), 1)
        return found[0] if found else None

    def _end_of(self, group: _Group) -> Place:
        """Behind everything that has this value."""
        rest = [Value(_FIRST if each.is_descending else _LAST, None) for each in self.order[1:-1]]
        id = Value(Rank.TEXT, "" if self.order[-1].is_descending else "\U0010ffff")
        return (Value(group.rank, group.value), *rest, id)


def _sections(is_descending: bool) -> Sequence[tuple[int, int]]:
    """First and last rank of what is read in one go; what is missing stands with the nulls."""
    found = ((Rank.EMPTY_ARRAY, Rank.EMPTY_ARRAY), (Rank.NULL, Rank.NULL), (Rank.NUMBER, Rank.BOOLEAN))
    return tuple((int(first), int(last)) for first, last in (reversed(found) if is_descending else found))


def _behind(group: _Group, sign: str) -> tuple[str, tuple[Any, ...]]:
    """The rows from a value on, or behind it."""
    if group.value is None:
        return f" AND rank {sign} ?", (group.rank,)
    value = int(group.value) if isinstance(group.value, bool) else group.value
    return f" AND (rank, value) {sign} (?, ?)", (group.rank, value)


def _of_policies(policies: Sequence[str]) -> Rows:
    """The things of these policies; ids of policies are texts like others, and cut like them."""
    marks = ",".join("?" * len(policies))
    return Rows(
        f"SELECT thing FROM search_values WHERE path = (SELECT id FROM search_paths WHERE path = 'policyId') "
        f"AND rank = {int(Rank.TEXT)} AND value IN ({marks})",
        tuple(policy[:TEXT] for policy in policies),
        f"in(policyId,{len(policies)} policies)",
    )
