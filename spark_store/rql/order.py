"""The total order of search results, also used by the index.

Values are ordered by type first, then by value (Ditto search, sorting):

    an empty array < missing and null < numbers < texts < objects < arrays < false < true

Whole numbers within 64 bits are exact, all others doubles; texts are ordered by code point. Objects are equal to each other,
and so are arrays: the next field decides, and the ID at last. An array is represented by its smallest element in ascending
and by its largest in descending order, and so are all values of a path through an array. Unreadable values are treated as
missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cmp_to_key
from typing import Any, TypeAlias

from mappings.json_values import WrittenFloat
from mappings.model.json_pointer import MISSING
from spark_store.rql.query import SortField, SortKey, SortValue
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
"""The place of a missing, null, or unreadable value."""

OrderKey: TypeAlias = Callable[[SortKey], Any]


def value_of(scalar: Any) -> SortValue:
    """Return the place of one JSON value; an array is not opened."""
    kind = type(scalar)
    if kind is str:
        return SortValue(TypeRank.TEXT, scalar)
    if kind is bool:
        return SortValue(TypeRank.BOOLEAN, scalar)
    if kind is int or kind is float:
        return SortValue(TypeRank.NUMBER, exact(scalar))
    if kind is WrittenFloat:
        return SortValue(TypeRank.NUMBER, float(scalar))
    if scalar is None or scalar is MISSING:
        return NOTHING
    if kind is list:
        return SortValue(TypeRank.ARRAY if scalar else TypeRank.EMPTY_ARRAY, None)
    return SortValue(TypeRank.OBJECT, None)


def sort_key(document: Document, order: Sequence[SortField], may: May | None = None) -> SortKey:
    """Return the place of a thing for a reader that may read what `may` allows, or everything."""
    return tuple([_sort_value(document, sorting, may) for sorting in order])


def _sort_value(document: Document, sorting: SortField, may: May | None) -> SortValue:
    if not is_readable(sorting.field, document, may):
        return NOTHING
    found = find(document, sorting.field)
    if len(found) == 1 and type(found[0]) is not list:
        return value_of(found[0])
    values = [value_of(each) for value in found for each in _elements(value)]
    if not values:
        return NOTHING
    return max(values) if sorting.is_descending else min(values)


def _elements(value: Any) -> Sequence[Any]:
    """Return the elements of a nonempty array; otherwise the value itself, nothing for a missing one."""
    if value is MISSING:
        return ()
    return value if isinstance(value, list) and value else (value,)


def compare(left: SortKey, right: SortKey, order: Sequence[SortField]) -> int:
    """Below 0 if `left` comes first, above 0 if it comes later, and 0 for the same place."""
    for one, other, sorting in zip(left, right, order, strict=True):
        if one != other:
            return 1 if (one < other) is sorting.is_descending else -1
    return 0


def key_of(order: Sequence[SortField]) -> OrderKey:
    """Return the key for `sorted` that brings places into this order."""
    return cmp_to_key(lambda left, right: compare(left, right, order))
