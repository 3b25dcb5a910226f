"""Aggregation of search results: counts and measures, grouped by values.

An extension of Ditto's search.

{"groupBy": {"room": "attributes/room"}, "measures": {"hottest": {"max": "features/thermometer/properties/celsius"}}}

returns a row for each room: `{"room": "hall", "count": 12, "hottest": 31.5}`. Without `groupBy` there is one row, even if
nothing matches. A thing is in the group of each value that `eq` would find at the path (RQL, search), so an array puts it in
several; it is in the group of null if the path is missing, null, an object, or unreadable. A measure uses every number at
its path; without any, `sum` is 0 and the others are null. Sums and means are exact and rounded once, at the end, so the
result does not depend on the order of things. Rows are in the total order of their groups' values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from itertools import product
from typing import Any, Final, NamedTuple

from mappings.timestamps import shorten_timestamp
from spark_store.errors import AggregationInvalid, TooManyGroups, UnknownProperty
from spark_store.rql.ast import Field, FieldKind, Operator
from spark_store.rql.binding import bind
from spark_store.rql.order import NOTHING, TypeRank, value_of
from spark_store.rql.query import SortValue, Thing
from spark_store.rql.search_evaluator import May, is_readable, is_readable_in
from spark_store.rql.values import comparable, features_of, find, walk

MOST_GROUPS: Final = 10_000
MOST_BYTES: Final = 16 * 1024 * 1024
"""The most characters of the groups' keys together."""
MOST_LEVELS: Final = 4
MOST_MEASURES: Final = 16
COUNT: Final = "count"

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_COMPARED: Final = frozenset({TypeRank.NULL, TypeRank.NUMBER, TypeRank.TEXT, TypeRank.BOOLEAN})
_INFINITE: Final = (math.inf, -math.inf)
_WHOLE: Final = 1 << 63
_SCALE: Final = 1074
"""Every double is a multiple of 2 to the power of minus this."""


class AggregateFunction(str, Enum):
    """The function of a measure."""

    MIN = "min"
    MAX = "max"
    AVG = "avg"
    SUM = "sum"


class Measure(NamedTuple):
    """A column that is made of numbers."""

    name: str
    function: AggregateFunction
    field: Field


@dataclass(frozen=True, slots=True)
class Aggregation:
    """An aggregation: a row for each combination of the fields' values, with the measures in this order."""

    groups: Sequence[tuple[str, Field]] = ()
    measures: Sequence[Measure] = ()


# -- the specification


def read_aggregation(given: Any) -> Aggregation:
    """The aggregation that a JSON value specifies. Raises AggregationInvalid, UnknownProperty."""
    if not isinstance(given, Mapping):
        raise AggregationInvalid(f"found {_kind(given)}, expected an object")
    if unknown := [name for name in given if name not in ("groupBy", "measures")]:
        raise AggregationInvalid(f"found {_short(unknown[0])}, expected 'groupBy' or 'measures'")
    groups = [(name, _field(path, name)) for name, path in _members(given, "groupBy", MOST_LEVELS)]
    measures = [_measure(name, wanted) for name, wanted in _members(given, "measures", MOST_MEASURES)]
    names = [COUNT, *(name for name, _ in groups), *(measure.name for measure in measures)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise AggregationInvalid(
            f"found the name {_short(twice[0])} twice, expected it once (every result has the name '{COUNT}')"
        )
    return Aggregation(tuple(groups), tuple(measures))


def _members(given: Mapping[str, Any], member: str, most: int) -> Sequence[tuple[str, Any]]:
    wanted = given.get(member, {})
    if not isinstance(wanted, Mapping):
        raise AggregationInvalid(f"{member}: found {_kind(wanted)}, expected an object whose members are names")
    if len(wanted) > most:
        raise AggregationInvalid(f"{member}: found {len(wanted)} names, expected at most {most}")
    for name in wanted:
        if not _NAME.fullmatch(name):
            expected = "a letter, then letters, digits, '_' and '-', 64 at most"
            raise AggregationInvalid(f"{member}: found the name {_short(name)}, expected {expected}")
    return list(wanted.items())


def _measure(name: str, wanted: Any) -> Measure:
    known = ", ".join(function.value for function in AggregateFunction)
    if not isinstance(wanted, Mapping) or len(wanted) != 1:
        found = f"{len(wanted)} members" if isinstance(wanted, Mapping) else _kind(wanted)
        raise AggregationInvalid(f'{name}: found {found}, expected one function and its path, such as {{"max": "…"}}')
    ((function, path),) = wanted.items()
    if function not in {it.value for it in AggregateFunction}:
        raise AggregationInvalid(f"{name}: found the function {_short(function)}, expected one of: {known}")
    return Measure(name, AggregateFunction(function), _field(path, name))


def _field(path: Any, name: str) -> Field:
    if not isinstance(path, str):
        raise AggregationInvalid(f"{name}: found {_kind(path)}, expected a path such as attributes/room")
    field = bind(path, Operator.EQ)
    if field.path == ("_metadata",):
        raise UnknownProperty(path)
    return field


def _short(text: str) -> str:
    return f"'{text[:40]}'"


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case Mapping():
            return "an object"
        case _:
            return "an array"


# -- the folding


class GroupAccumulator:
    """Accumulates counts and measures. Things come in any order."""

    def __init__(self, aggregation: Aggregation, most_groups: int = MOST_GROUPS, most_bytes: int = MOST_BYTES) -> None:
        self._aggregation = aggregation
        self._most_groups, self._most_bytes = most_groups, most_bytes
        self._bytes = 0
        self._groups: dict[tuple[SortValue, ...], _Group] = {}
        if not aggregation.groups:
            self._groups[()] = _Group(len(aggregation.measures))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._groups)

    def add(self, thing: Thing, may: May | None = None) -> None:
        """Add a thing. Raises TooManyGroups; then the accumulator is unusable."""
        keys = [sorted(set(_values(field, thing, may))) or [NOTHING] for _, field in self._aggregation.groups]
        numbers = [_Numbers(_numbers(measure.field, thing, may)) for measure in self._aggregation.measures]
        for key in product(*keys):
            self._group(key).add(numbers)

    def _group(self, key: tuple[SortValue, ...]) -> _Group:
        found = self._groups.get(key)
        if found is None:
            self._bytes += sum(len(each.value) for each in key if each.rank is TypeRank.TEXT)
            if len(self._groups) >= self._most_groups:
                raise TooManyGroups(f"more than {self._most_groups} groups")
            if self._bytes > self._most_bytes:
                raise TooManyGroups(f"groups whose values take more than {self._most_bytes} characters")
            found = self._groups[key] = _Group(len(self._aggregation.measures))
        return found

    def rows(self) -> list[dict[str, Any]]:
        """A row for each group, in the order of their values."""
        return [self._row(key, self._groups[key]) for key in sorted(self._groups)]

    def _row(self, key: tuple[SortValue, ...], group: _Group) -> dict[str, Any]:
        row: dict[str, Any] = {
            name: _group_value(field, each) for (name, field), each in zip(self._aggregation.groups, key, strict=True)
        }
        row[COUNT] = group.count
        for measure, numbers in zip(self._aggregation.measures, group.numbers, strict=True):
            row[measure.name] = numbers.result(measure.function)
        return row


class _Group:
    """The things of one combination of values."""

    __slots__ = ("count", "numbers")

    def __init__(self, measures: int) -> None:
        self.count = 0
        self.numbers = [_Numbers() for _ in range(measures)]

    def add(self, found: Sequence[_Numbers]) -> None:
        self.count += 1
        for numbers, some in zip(self.numbers, found, strict=True):
            numbers.add(some)


class _Numbers:
    """How many numbers there are, the smallest, the largest, and their exact sum."""

    __slots__ = ("_doubles", "_whole", "count", "least", "most")

    def __init__(self, found: Sequence[int | float] = ()) -> None:
        # 0.0 and -0.0 are the same.
        numbers = [number + 0 for number in found]
        self.count = len(numbers)
        self.least = min(numbers, key=_wholes_first, default=None)
        self.most = max(numbers, key=_wholes_last, default=None)
        self._whole = sum(number for number in numbers if isinstance(number, int))
        self._doubles = sum(_scaled(number) for number in numbers if isinstance(number, float))
        """The sum of all doubles, as a multiple of the smallest one there is."""

    def add(self, other: _Numbers) -> None:
        if other.least is None or other.most is None:
            return
        self.count += other.count
        self.least = other.least if self.least is None else min(self.least, other.least, key=_wholes_first)
        self.most = other.most if self.most is None else max(self.most, other.most, key=_wholes_last)
        self._whole += other._whole
        self._doubles += other._doubles

    def result(self, function: AggregateFunction) -> int | float | None:
        match function:
            case AggregateFunction.MIN:
                return self.least
            case AggregateFunction.MAX:
                return self.most
            case AggregateFunction.SUM:
                return _nearest(self._sum())
            case AggregateFunction.AVG:
                return _nearest(self._sum() / self.count) if self.count else None

    def _sum(self) -> Fraction:
        return self._whole + Fraction(self._doubles, 1 << _SCALE)


def _wholes_first(number: float) -> tuple[float, bool]:
    return number, isinstance(number, float)


def _wholes_last(number: float) -> tuple[float, bool]:
    return number, isinstance(number, int)


def _scaled(double: float) -> int:
    above, below = double.as_integer_ratio()
    return above << (_SCALE + 1 - below.bit_length())


def _nearest(exact: Fraction) -> int | float | None:
    """Return a whole number of 64 bits unchanged, any other as the nearest double; None beyond doubles."""
    if exact.denominator == 1 and -_WHOLE <= exact < _WHOLE:
        return exact.numerator
    try:
        return float(exact)
    except OverflowError:
        return None


def _group_value(field: Field, value: SortValue) -> Any:
    """Return a group's value as JSON: 1 for both 1 and 1.0, and times as in things."""
    found = value.value
    if field.kind is FieldKind.INSTANT and value.rank is TypeRank.TEXT:
        return shorten_timestamp(found)
    return int(found) if value.rank is TypeRank.NUMBER and found == found // 1 and -_WHOLE <= found < _WHOLE else found


# -- the values of a field


def _numbers(field: Field, thing: Thing, may: May | None) -> list[int | float]:
    return [found.value for found in _values(field, thing, may) if found.rank is TypeRank.NUMBER]


def _values(field: Field, thing: Thing, may: May | None) -> Iterator[SortValue]:
    """Return the values that a comparison would use."""
    for found in map(value_of, _comparable(field, thing, may)):
        # No JSON has a number that is not finite.
        if found.rank in _COMPARED and found.value not in _INFINITE:
            yield found


def _comparable(field: Field, thing: Thing, may: May | None) -> Iterator[Any]:
    if not field.is_in_any_feature:
        yield from comparable(find(thing, field)) if is_readable(field, thing, may) else ()
        return
    path = field.path[2:]
    for name, feature in features_of(thing).items():
        if is_readable_in(name, feature, path, may):
            yield from comparable(walk(feature, path))
