"""The total order of an answer: where a value stands, and which of two things comes first.

Values stand by their type first, then by themselves (Ditto search, sorting):

    an empty array < missing and null < numbers < texts < objects < arrays < false < true

Whole numbers within 64 bits are exact, all others doubles; texts stand by code point. Objects are not compared with each
other, and neither are arrays: such things stand by whatever comes next in the order, and by their ids at last. An array is
represented by its smallest element where the order ascends and by its largest where it descends, and so are all values of a
path that leads through an array. So descending is the exact reverse, but for arrays. What somebody may not read is missing
for him.

These ranks are also those of the index, so that one order holds everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cmp_to_key
from typing import Any, TypeAlias

from mappings.model.json_pointer import MISSING
from spark_store.rql.query import Place, SortField, SortValue
from spark_store.rql.search_evaluator import May, is_readable
from spark_store.rql.values import Document, exact, find


class TypeRank(IntEnum):
    """The types of values, in their order."""

    EMPTY_ARRAY = 0
    NULL = 1
    NUMBER = 2
    TEXT = 3
    OBJECT = 4
    ARRAY = 5
    BOOLEAN = 6


NOTHING = SortValue(TypeRank.NULL, None)
"""Where a value stands that is missing, null, or not to be read."""

Key: TypeAlias = Callable[[Place], Any]


def value_of(scalar: Any) -> SortValue:
    """Where one JSON value stands by itself; an array is not opened."""
    kind = type(scalar)
    if kind is str:
        return SortValue(TypeRank.TEXT, scalar)
    if kind is bool:
        return SortValue(TypeRank.BOOLEAN, scalar)
    if kind is int or kind is float:
        return SortValue(TypeRank.NUMBER, exact(scalar))
    if scalar is None or scalar is MISSING:
        return NOTHING
    if kind is list:
        return SortValue(TypeRank.ARRAY if scalar else TypeRank.EMPTY_ARRAY, None)
    return SortValue(TypeRank.OBJECT, None)


def place_of(document: Document, order: Sequence[SortField], may: May | None = None) -> Place:
    """Where a thing stands for somebody who may read what `may` says, or everything."""
    return tuple([_standing(document, sorting, may) for sorting in order])


def _standing(document: Document, sorting: SortField, may: May | None) -> SortValue:
    if not is_readable(sorting.field, document, may):
        return NOTHING
    found = find(document, sorting.field)
    if len(found) == 1 and type(found[0]) is not list:
        return value_of(found[0])
    values = [value_of(each) for value in found for each in _opened(value)]
    if not values:
        return NOTHING
    return max(values) if sorting.is_descending else min(values)


def _opened(value: Any) -> Sequence[Any]:
    """The elements of an array, unless it has none; the value itself otherwise, and nothing for one that is missing."""
    if value is MISSING:
        return ()
    return value if isinstance(value, list) and value else (value,)


def compare(left: Place, right: Place, order: Sequence[SortField]) -> int:
    """Below 0 if `left` comes first, above 0 if it comes later, and 0 for the same place."""
    for one, other, sorting in zip(left, right, order, strict=True):
        if one != other:
            return 1 if (one < other) is sorting.is_descending else -1
    return 0


def key_of(order: Sequence[SortField]) -> Key:
    """What `sorted` takes to bring places into this order."""
    return cmp_to_key(lambda left, right: compare(left, right, order))
