"""Evaluates history filters and `condition`s on one document (RQL, predicate column).

The document is parsed JSON: a whole thing, or the partial thing of one event. `search_evaluator` has the rules of searches.

- A path goes through objects, and through every object in an array; its value is the array of all results. Numeric segments
  are keys.
- A comparison with an array is true if it is for any element, at any depth; `ne` is the opposite of `eq`, so it is true for
  a missing field. Objects compare with nothing.
- Numbers compare exactly. A text that is a number compares with numbers as one; other mixtures compare as text. Text is
  ordered by its UTF-16 code units. Null equals an explicit null, in `eq` and in `in`, and nothing else.
- Fields beside the document can be compared, but do not exist.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

from mappings.json_values import NUMBER_TYPES, WrittenFloat, encode_value
from mappings.model.json_pointer import MISSING
from spark_store.errors import FilterTooExpensive
from spark_store.rql.ast import (
    And,
    Compare,
    Empty,
    Exists,
    Field,
    FieldKind,
    In,
    Literal,
    LiteralKind,
    Not,
    Operator,
    Or,
    Predicate,
)
from spark_store.rql.binding import fixed_width
from spark_store.rql.values import SCALARS, objects
from spark_store.rql.wildcards import fold_ascii, matches

Document: TypeAlias = Mapping[str, Any]

MOST_BYTES = 200_000
"""How many bytes of arrays and texts a filter may compare in one document: some 0.2 s."""

_QUICK = 32
"""How many times as fast an array is compared whose elements have the literal's type."""

_QUICK_PATTERN = 8
"""How many times as fast at least a text is compared with a pattern that has no question marks."""

_FEW = 32
"""Up to how many pairs `in` compares values and literals one by one: faster than a look-up."""

_PLAIN: Mapping[Operator, Callable[[Any, Any], bool]] = {
    Operator.EQ: operator.eq,
    Operator.GT: operator.gt,
    Operator.GE: operator.ge,
    Operator.LT: operator.lt,
    Operator.LE: operator.le,
}
_ALIKE: Mapping[LiteralKind, frozenset[type]] = {
    LiteralKind.WHOLE: NUMBER_TYPES,
    LiteralKind.DOUBLE: NUMBER_TYPES,
    LiteralKind.BOOLEAN: frozenset({bool}),
    LiteralKind.TEXT: frozenset({str}),
}
"""The types of values that Python compares with such a literal as RQL does (if it is ASCII)."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")


def weight(predicate: Predicate) -> int:
    """Return how many comparisons one document takes at most."""
    match predicate:
        case And(parts) | Or(parts):
            return sum(map(weight, parts))
        case Not(part):
            return weight(part)
        case In(_, literals):
            return 1 + len(literals) // _FEW
        case _:
            return 1


def require_quick(predicates: Iterable[Predicate], document: Document) -> None:
    """Raise FilterTooExpensive if the predicates compare too much of arrays and texts in a document."""
    known: dict[int, _ArraySize] = {}
    found = sum(_bytes_of(predicate, document, known) for predicate in predicates)
    if found > MOST_BYTES:
        raise FilterTooExpensive(found, MOST_BYTES)


class _ArraySize(NamedTuple):
    """The bytes of an array as JSON, and the types of its elements."""

    bytes: int
    types: frozenset[type]


def _bytes_of(predicate: Predicate, document: Document, known: dict[int, _ArraySize]) -> int:
    """Return how many bytes all comparisons compare. `known` are the arrays seen so far."""
    match predicate:
        case And(parts) | Or(parts):
            return sum(_bytes_of(part, document, known) for part in parts)
        case Not(part):
            return _bytes_of(part, document, known)
    value: Any = document
    is_reached = True
    for key in predicate.field.path:
        if not isinstance(value, Mapping):
            is_reached = False
            break
        value = value.get(key)
    if is_reached and isinstance(predicate, (Exists, Empty)):
        return 0
    if isinstance(value, list):
        if (size := known.get(id(value))) is None:
            size = known[id(value)] = _ArraySize(len(encode_value(value)), frozenset(map(type, value)))
        is_quick = (
            isinstance(predicate, Compare)
            and (predicate.operator in _PLAIN or predicate.operator is Operator.NE)
            and comparable_types(predicate.literal).issuperset(size.types)
        )
        return size.bytes // _QUICK if is_quick else size.bytes
    if (
        isinstance(value, str)
        and isinstance(predicate, Compare)
        and predicate.operator in (Operator.LIKE, Operator.ILIKE)
    ):
        is_folded = predicate.operator is Operator.ILIKE and not value.isascii()
        is_quick = "?" not in str(predicate.literal.value) and not is_folded
        return len(value) // _QUICK_PATTERN if is_quick else len(value)
    return 0


def evaluate(predicate: Predicate, document: Document) -> bool:
    """Whether the document matches. `time:` literals must have been resolved: others match nothing."""
    match predicate:
        case Compare():
            return _compare(predicate, document)
        case And(parts):
            return all(evaluate(part, document) for part in parts)
        case Or(parts):
            return any(evaluate(part, document) for part in parts)
        case Not(part):
            return not evaluate(part, document)
        case In():
            return _in(predicate, document)
        case Exists(field):
            return _exists(field, document)
        case Empty(field):
            return _empty(field, document)


def _compare(predicate: Compare, document: Document) -> bool:
    literal = predicate.literal
    values = _scalars(_read(predicate.field, document))
    if predicate.operator is Operator.NE:
        return not _any_holds(Operator.EQ, values, literal)
    return _any_holds(predicate.operator, values, literal)


def _any_holds(operator: Operator, values: Sequence[Any], literal: Literal) -> bool:
    """Whether the comparison is true for one of the values. Python compares those without coercion."""
    if len(values) > _FEW and operator in _PLAIN:
        wanted = literal.value
        types = comparable_types(literal)
        others = [] if types.issuperset(map(type, values)) else [value for value in values if type(value) not in types]
        plain = [value for value in values if type(value) in types] if others else values
        if any(map(_PLAIN[operator], plain, repeat(wanted))):
            return True
        values = others
    holds = _COMPARISONS[operator]
    return any(holds(value, literal) for value in values)


def comparable_types(literal: Literal) -> frozenset[type]:
    """Return the types of values that Python compares with this literal as RQL does; none for some."""
    is_plain = not isinstance(literal.value, str) or literal.value.isascii()
    return _ALIKE.get(literal.kind, frozenset()) if is_plain else frozenset()


def _in(predicate: In, document: Document) -> bool:
    literals = predicate.literals
    values = _scalars(_read(predicate.field, document))
    if len(values) > 1 and len(values) * len(literals) > _FEW:
        known = _LookUp(literals)
        return any(map(known.equals_any, values))
    return any(_equals(value, literal) for value in values for literal in literals)


def _exists(field: Field, document: Document) -> bool:
    return _is_shown(field) and _read(field, document) is not MISSING


def _empty(field: Field, document: Document) -> bool:
    if not _is_shown(field):
        return True
    value = _read(field, document)
    return value is MISSING or value is None or (isinstance(value, (str, list, Mapping)) and not value)


# -- fields


def _is_shown(field: Field) -> bool:
    """Whether a field with a value exists."""
    return field.kind is FieldKind.DOCUMENT or field.kind is FieldKind.OPERAND


def _read(field: Field, document: Document) -> Any:
    """The field's value, or MISSING."""
    value = _walk(document, field.path)
    if _is_shown(field) or not isinstance(value, str):
        return value
    if field.kind is FieldKind.NAMESPACE:
        return value.partition(":")[0]
    return fixed_width(value) if field.kind is FieldKind.INSTANT else value


def _walk(document: Any, path: tuple[str, ...]) -> Any:
    value = document
    for depth, key in enumerate(path):
        if isinstance(value, list):
            return _walk_all(value, path[depth:])
        # A plain dict is asked for first, here and below: it is nearly always one, and `Mapping` takes long to know.
        if (type(value) is not dict and not isinstance(value, Mapping)) or key not in value:
            return MISSING
        value = value[key]
    return value


def _walk_all(array: list[Any], path: tuple[str, ...]) -> Any:
    """Return all values at the path below objects in the array, or MISSING if there are none."""
    values = array
    for key in path:
        values = [value[key] for value in objects(_elements(values)) if key in value]
    return values or MISSING


def _elements(value: Any) -> Iterator[Any]:
    """Yield the value itself, or the elements of an array at any depth, in any order."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(value)
        else:
            yield value


def _scalars(value: Any) -> Sequence[Any]:
    """Yield the comparable values: no objects, and nothing for a missing field."""
    kind = type(value)
    if kind is str or kind is float or kind is int or kind is bool or kind is WrittenFloat:
        return (value,)
    if isinstance(value, list):
        if SCALARS.issuperset(map(type, value)):
            return value
        return [element for element in _elements(value) if not isinstance(element, Mapping)]
    return () if value is MISSING or isinstance(value, Mapping) else (value,)


# -- comparison of a value with a literal


def _equals(value: Any, literal: Literal) -> bool:
    if literal.kind is LiteralKind.NULL:
        return value is None
    return _holds(operator.eq, value, literal)


class _LookUp:
    """Literals prepared for comparing a value with all of them in one step.

    It contains the texts, numbers and truth values that equal a literal by `_equals`. No JSON number and no literal is
    infinite, so a text that is no number equals none.
    """

    __slots__ = ("booleans", "for_numbers", "numbers", "texts", "with_null")

    def __init__(self, literals: Sequence[Literal]) -> None:
        values = [literal.value for literal in literals if literal.kind not in (LiteralKind.NULL, LiteralKind.TIME)]
        texts = [value for value in values if isinstance(value, str)]
        self.with_null = any(literal.kind is LiteralKind.NULL for literal in literals)
        self.texts = {_key(_text(value)) for value in values if isinstance(value, (bool, str))}
        self.booleans = {value for value in (True, False) if _text(value) in self.texts}
        self.numbers = {value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)}
        self.for_numbers = self.numbers | {number for number in map(_number, texts) if number is not None}

    def equals_any(self, value: Any) -> bool:
        if value is None:
            return self.with_null
        if isinstance(value, bool):
            return value in self.booleans
        if isinstance(value, str):
            return _key(value) in self.texts or (bool(self.numbers) and _number(value) in self.numbers)
        return value in self.for_numbers


def _key(text: str) -> str | bytes:
    """Equal for texts that are equal by their UTF-16 code units."""
    return text if text.isascii() else text.encode("utf-16-be", "surrogatepass")


def _holds(test: Callable[[Any, Any], bool], value: Any, literal: Literal) -> bool:
    """Whether the test is true for the two after coercion. Null and unresolved times compare with nothing."""
    if value is None or literal.kind is LiteralKind.NULL or literal.kind is LiteralKind.TIME:
        return False
    return test(*_coerce(value, literal.value))


def _coerce(value: Any, wanted: Any) -> tuple[Any, Any]:
    """Two scalars in a form in which Python compares them as this language does."""
    if type(value) is type(wanted) and not isinstance(value, str):
        return value, wanted
    if isinstance(value, bool) or isinstance(wanted, bool):
        return _orderable(_text(value), _text(wanted))
    if isinstance(value, str):
        if isinstance(wanted, str):
            return _orderable(value, wanted)
        number = _number(value)
        return _orderable(value, _text(wanted)) if number is None else (number, wanted)
    if isinstance(wanted, str):
        number = _number(wanted)
        return _orderable(_text(value), wanted) if number is None else (value, number)
    return value, wanted


def _orderable(left: str, right: str) -> tuple[Any, Any]:
    """Return two texts whose order is that of UTF-16 code units, unlike code points beyond U+D7FF."""
    if left.isascii() or right.isascii():
        return left, right
    return left.encode("utf-16-be", "surrogatepass"), right.encode("utf-16-be", "surrogatepass")


def _number(text: str) -> int | float | None:
    """Return the number that a text is, exact if whole; None for other texts."""
    if _WHOLE_NUMBER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else None


def _text(value: bool | float | str) -> str:
    """A scalar as JSON writes it, texts without their quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def _like(value: Any, literal: Literal) -> bool:
    return value is not None and matches(_text(value), str(literal.value))


def _ilike(value: Any, literal: Literal) -> bool:
    return value is not None and matches(fold_ascii(_text(value)), fold_ascii(str(literal.value)))


_COMPARISONS: Mapping[Operator, Callable[[Any, Literal], bool]] = {
    Operator.EQ: _equals,
    Operator.GT: lambda value, literal: _holds(operator.gt, value, literal),
    Operator.GE: lambda value, literal: _holds(operator.ge, value, literal),
    Operator.LT: lambda value, literal: _holds(operator.lt, value, literal),
    Operator.LE: lambda value, literal: _holds(operator.le, value, literal),
    Operator.LIKE: _like,
    Operator.ILIKE: _ilike,
}
"""The test of each operator for one value; `ne` is the opposite of `eq` over all values."""


Test: TypeAlias = Callable[[Document], bool]


def compile_predicate(predicate: Predicate) -> Test:
    """The predicate as a function. `time:` literals must have been resolved."""
    match predicate:
        case Compare():
            return _comparison(predicate)
        case And(parts):
            return _all(list(map(compile_predicate, parts)))
        case Or(parts):
            return _any(list(map(compile_predicate, parts)))
        case Not(part):
            return _not(compile_predicate(part))
        case _:
            return partial(evaluate, predicate)


def _all(tests: Sequence[Test]) -> Test:
    def holds(document: Document) -> bool:
        # A loop is faster here than `all` over a generator.
        for test in tests:  # noqa: SIM110
            if not test(document):
                return False
        return True

    return holds


def _any(tests: Sequence[Test]) -> Test:
    def holds(document: Document) -> bool:
        for test in tests:  # noqa: SIM110
            if test(document):
                return True
        return False

    return holds


def _not(test: Test) -> Test:
    return lambda document: not test(document)


def _comparison(predicate: Compare) -> Test:
    test, types = _PLAIN.get(predicate.operator), comparable_types(predicate.literal)
    if test is None or not types or not _is_shown(predicate.field):
        return partial(evaluate, predicate)
    path, wanted = predicate.field.path, predicate.literal.value

    def holds(document: Document) -> bool:
        value: Any = document
        for key in path:
            if type(value) is not dict:
                return evaluate(predicate, document)
            if key not in value:
                return False
            value = value[key]
        return test(value, wanted) if type(value) in types else evaluate(predicate, document)

    return holds
