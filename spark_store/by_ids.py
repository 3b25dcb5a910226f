"""Things of some namespaces in the order of their ids, from an id on: all of them, or those with one value at a path.

All of them come as they lie in the file. Those of one value come so where the path was declared (`spark_store.index`), with
the large things in their places, which may have any value. Which of both is walked along, and what of it is an answer, is
`spark_store.walking`'s business.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from spark_store.picture import COLUMNS, Picture


class OfValue(NamedTuple):
    """A value at a declared path: the path's name and its number, and the rank and the value as they are in a row."""

    name: str
    path: int
    rank: int
    value: Any


class ByIds:
    """Everything of some namespaces, or of all of them if there are none."""

    def __init__(self, picture: Picture, namespaces: Collection[str]) -> None:
        self._picture = picture
        self._namespaces = namespaces

    def things(
        self, start: str | None, is_descending: bool, columns: str, more: str = "", values: tuple[Any, ...] = ()
    ) -> Iterator[Any]:
        """Columns of things behind the id `start`, if there is `more` that they have to meet."""
        living = " AND state IS NOT NULL" if columns == COLUMNS else ""
        select = f"SELECT {columns} FROM entities WHERE type = 'thing'"
        return self._rows(select, f"{living}{more}", (), start, is_descending, values)

    def of_value(
        self, wanted: OfValue, beside: Collection[int], start: str | None, is_descending: bool
    ) -> Iterator[tuple[str, int]]:
        """Ids and keys of the things with a value, and of those `beside`, behind the id `start`."""
        select = "SELECT id, thing FROM search_declared WHERE path = ? AND rank = ? AND value = ?"
        rows = self._rows(select, "", (wanted.path, wanted.rank, wanted.value), start, is_descending)
        if not beside:
            return rows
        others = sorted(self._picture.ids(beside), reverse=is_descending)
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
        condition = "" if start is None else f" AND id {sign} ?"
        for first, last in self._ranges(is_descending):
            bounds = "" if first is None else " AND id >= ? AND id < ?"
            yield from self._picture.connection.execute(
                f"{select}{bounds}{condition}{more} ORDER BY id {direction}",
                (
                    *before,
                    *(() if first is None else (first, last)),
                    *(() if start is None else (start,)),
                    *values,
                ),
            )

    def _ranges(self, is_descending: bool) -> Sequence[tuple[str | None, str | None]]:
        """Between which ids things lie. An id without a colon has no namespace, and may lie anywhere."""
        if not self._namespaces or "" in self._namespaces:
            return ((None, None),)
        firsts = sorted((f"{name}:" for name in self._namespaces), reverse=is_descending)
        return [(first, f"{first[:-1]};") for first in firsts]
