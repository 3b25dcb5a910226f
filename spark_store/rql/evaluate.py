"""The reference evaluator: a predicate over one document, as a history filter and a `condition` mean it.

The document is parsed JSON: a whole thing, or the partial thing that one event carries. Search has rules of its own, and
an evaluator of its own beside this one.

What these rules are (RQL, comparison, predicate column):

- A path leads through objects; where it meets an array it goes through every object in it, and its value is the array of
  all that it finds. Numeric segments are keys.
- A comparison with an array holds if it holds for any element, at any depth; `ne` is the exact opposite of `eq`, so it
  holds for a field that is not there. Objects compare with nothing.
- Numbers compare as numbers, exactly. A text that is a number compares with numbers as one; other mixtures compare as
  text. Text is ordered by its UTF-16 code units.
- Null equals an explicit null, in `eq` and in `in`, and takes part in nothing else.
- Fields beside the document can be compared, but do not exist.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from mappings.pointer import MISSING
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
from spark_store.rql.bind import fixed_width
from spark_store.rql.wildcards import fold_ascii, matches

Document: TypeAlias = Mapping[str, Any]

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")


def evaluate(predicate: Predicate, document: Document) -> bool:
    """Whether the document matches. `time:` literals must have been resolved: one that is left matches nothing."""
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
        return not any(_equals(value, literal) for value in values)
    holds = _COMPARISONS[predicate.operator]
    return any(holds(value, literal) for value in values)


def _in(predicate: In, document: Document) -> bool:
    literals = predicate.literals
    return any(_equals(value, literal) for value in _scalars(_read(predicate.field, document)) for literal in literals)


def _exists(field: Field, document: Document) -> bool:
    return field.kind is FieldKind.DOCUMENT and _read(field, document) is not MISSING


def _empty(field: Field, document: Document) -> bool:
    if field.kind is not FieldKind.DOCUMENT:
        return True
    value = _read(field, document)
    return value is MISSING or value is None or (isinstance(value, (str, list, Mapping)) and not value)


# -- fields


def _read(field: Field, document: Document) -> Any:
    """The field's value, or MISSING."""
    value = _walk(document, field.path)
    if field.kind is FieldKind.DOCUMENT or not isinstance(value, str):
        return value
    if field.kind is FieldKind.NAMESPACE:
        return value.partition(":")[0]
    return fixed_width(value) if field.kind is FieldKind.INSTANT else value


def _walk(document: Any, path: tuple[str, ...]) -> Any:
    value = document
    for depth, key in enumerate(path):
        if isinstance(value, list):
            return _walk_all(value, path[depth:])
        if not isinstance(value, Mapping) or key not in value:
            return MISSING
        value = value[key]
    return value


def _walk_all(array: list[Any], path: tuple[str, ...]) -> Any:
    """The array of all values at the path below any object in the array, or MISSING where there is none."""
    values = array
    for key in path:
        values = [value[key] for value in _elements(values) if isinstance(value, Mapping) and key in value]
    return values or MISSING


def _elements(value: Any) -> Iterator[Any]:
    """The value itself, or what an array contains at any depth; the order is of no matter to anybody."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(value)
        else:
            yield value


def _scalars(value: Any) -> Sequence[Any]:
    """What a comparison looks at: no objects, and nothing for a field that is missing."""
    if isinstance(value, list):
        return [element for element in _elements(value) if not isinstance(element, Mapping)]
    return () if value is MISSING or isinstance(value, Mapping) else (value,)


# -- comparison of a value with a literal


def _equals(value: Any, literal: Literal) -> bool:
    if literal.kind is LiteralKind.NULL:
        return value is None
    return _holds(operator.eq, value, literal)


def _holds(test: Callable[[Any, Any], bool], value: Any, literal: Literal) -> bool:
    """Whether the test holds for the two after coercion. Null, and a time that was not resolved, compare with nothing."""
    if value is None or literal.kind is LiteralKind.NULL or literal.kind is LiteralKind.TIME:
        return False
    return test(*_coerced(value, literal.value))


def _coerced(value: Any, wanted: Any) -> tuple[Any, Any]:
    """Two scalars in a form in which Python compares them as this language does."""
    if type(value) is type(wanted) and not isinstance(value, str):
        return value, wanted
    if isinstance(value, bool) or isinstance(wanted, bool):
        return _ordered(_text(value), _text(wanted))
    if isinstance(value, str):
        if isinstance(wanted, str):
            return _ordered(value, wanted)
        number = _number(value)
        return _ordered(value, _text(wanted)) if number is None else (number, wanted)
    if isinstance(wanted, str):
        number = _number(wanted)
        return _ordered(_text(value), wanted) if number is None else (value, number)
    return value, wanted


def _ordered(left: str, right: str) -> tuple[Any, Any]:
    """Two texts whose order is that of their UTF-16 code units; code points differ from them beyond U+D7FF only."""
    if left.isascii() or right.isascii():
        return left, right
    return left.encode("utf-16-be", "surrogatepass"), right.encode("utf-16-be", "surrogatepass")


def _number(text: str) -> int | float | None:
    """The number that a text is, whole ones exactly; None for other texts."""
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
"""What each operator asks of one value; `ne` is the opposite of `eq` over all values, so it has no line."""
