"""The values at a property's path in searches, and their comparable parts.

Unlike in history filters (RQL, properties), a path goes through objects, and from an array into each object that it contains
directly; a numeric segment is also an index. So a path may have many values, and objects in an array may lack the next key:
those are absent, which only `empty` considers. Nested arrays are not opened. A comparison uses a value, or the elements of
an array, one level deep. Whole numbers within 64 bits are exact; all other numbers are doubles, as in stored states.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from mappings.json_values import NUMBER_TYPES
from mappings.model.json_pointer import MISSING
from spark_store.rql.ast import Field, FieldKind
from spark_store.rql.binding import fixed_width

Document: TypeAlias = Mapping[str, Any]

_PLACE = re.compile(r"0|[1-9][0-9]{0,8}")

SCALARS = frozenset({bool, str, type(None), *NUMBER_TYPES})
"""The types of scalars."""


def find(document: Document, field: Field) -> Sequence[Any]:
    """Yield all values at a field, and MISSING if it is absent. None: an array has no objects."""
    values = walk(document, field.path)
    if field.kind is FieldKind.NAMESPACE:
        return [value.partition(":")[0] if isinstance(value, str) else value for value in values]
    if field.kind is FieldKind.INSTANT:
        return [fixed_width(value) if isinstance(value, str) else value for value in values]
    return values


def walk(document: Any, path: Sequence[str]) -> Sequence[Any]:
    """The values at the end of a path, as `find` has them."""
    value = document
    for depth, key in enumerate(path):
        if isinstance(value, list):
            return _walk_on(value, path[depth:])
        # A plain dict is asked for first: it is nearly always one, and `Mapping` takes long to know.
        if (type(value) is not dict and not isinstance(value, Mapping)) or key not in value:
            return (MISSING,)
        value = value[key]
    return (value,)


def _walk_on(array: list[Any], path: Sequence[str]) -> Sequence[Any]:
    values: list[Any] = [array]
    is_absent = False
    for key in path:
        place = int(key) if _PLACE.fullmatch(key) else None
        found = [inner for value in values for inner in _step(value, key, place)]
        # Nothing follows an absent value, and they are all the same.
        values = [value for value in found if value is not MISSING]
        is_absent |= len(values) < len(found)
        if not values:
            break
        if place is not None:
            # An array in an array may be reached by its place and through it, so each value is kept once.
            values = list({id(value): value for value in values}.values())
    return [*values, MISSING] if is_absent else values


def _step(value: Any, key: str, place: int | None) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return (value.get(key, MISSING),)
    if not isinstance(value, list):
        return (MISSING,)
    inner = [element.get(key, MISSING) for element in objects(value)]
    if place is None or place >= len(value):
        return inner
    # The place is there, so objects that have no such key lack nothing.
    return [value[place], *(found for found in inner if found is not MISSING)]


def objects(elements: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    """The objects among them.

    Long arrays hold mostly scalars, and to know those by `Mapping` takes ten times as long.
    """
    return (element for element in elements if type(element) not in SCALARS and isinstance(element, Mapping))


def matching_paths(document: Any, path: Sequence[str]) -> Collection[Sequence[str]]:
    """Yield the places of a path, as policies write them, without indices of elements."""
    own = tuple(path)
    if not any(key.isdecimal() for key in own):
        return (own,)
    found = {own}
    reached: dict[tuple[tuple[str, ...], int], Any] = {((), id(document)): document}
    for depth, key in enumerate(own):
        inner = [(at, each) for (at, _), value in reached.items() for at, each in _inward(at, value, key)]
        reached = {(at, id(value)): value for at, value in inner if isinstance(value, Mapping | list)}
        # Nothing follows other values, so the rest of the path is the same.
        ended = {at for at, value in inner if not isinstance(value, Mapping | list)}
        found.update((*at, *own[depth + 1 :]) for at in ended)
        if not reached:
            break
    return found.union(at for at, _ in reached)


def _inward(at: tuple[str, ...], value: Any, key: str) -> list[tuple[tuple[str, ...], Any]]:
    if not isinstance(value, list):
        return [((*at, key), value.get(key, MISSING) if isinstance(value, Mapping) else MISSING)]
    inner = [((*at, key), element.get(key, MISSING)) for element in objects(value)]
    if _PLACE.fullmatch(key) and int(key) < len(value):
        inner.append((at, value[int(key)]))
    return inner


def features_of(document: Document) -> Mapping[str, Any]:
    """The features by their ids."""
    features = document.get("features")
    return features if isinstance(features, Mapping) else {}


def comparable(values: Sequence[Any]) -> Sequence[Any]:
    """Yield the comparable values: elements of arrays, and every other existing value."""
    if len(values) == 1:
        value = values[0]
        if isinstance(value, list):
            return value
        return () if value is MISSING else values
    seen: list[Any] = []
    for value in values:
        if isinstance(value, list):
            seen.extend(value)
        elif value is not MISSING:
            seen.append(value)
    return seen


def exact(number: float) -> int | float:
    """Return a number for comparison: exact if whole within 64 bits, else a double."""
    if isinstance(number, float) or -(2**63) <= number < 2**63:
        return number
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
