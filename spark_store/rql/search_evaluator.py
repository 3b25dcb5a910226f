"""Evaluates predicates of searches on one thing, as the reference for index and lake.

Differences to history filters (RQL, comparison, search column; see `evaluator`):

- Values compare within their own type. Texts are ordered by code point. Null equals an explicit null only, without order.
- `ne` is true for an existing field that does not equal. `like` and `ilike` match texts only; stars at either end match any
  text, others text of one line.
- `empty` is also true if an array on the path has an object without the field, and for arrays with an empty element.
- Fields beside the document exist. For `features/*/…` one of the features must satisfy the predicate by itself.
  `exists(features/*)` and `empty(features/*)` tell things with features, even a `{}`, from those without.

A predicate on an unreadable field is false. `thingId`, its namespace and `features/*` itself need only a visible thing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import repeat
from typing import Any, TypeAlias

from mappings.json_values import NUMBER_TYPES
from mappings.model.json_pointer import MISSING
from mappings.model.metadata import METADATA, owner_of
from spark_store.errors import RqlSyntaxError, UnknownProperty
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
from spark_store.rql.binding import resolve_times
from spark_store.rql.parser import parse
from spark_store.rql.partial_evaluator import fields
from spark_store.rql.values import Document, comparable, exact, features_of, find, matching_paths, walk
from spark_store.rql.wildcards import covers, fold

May: TypeAlias = Callable[[Sequence[str]], bool]
"""Whether a requester may read the place at the end of a path, itself."""

_WHOLE_METADATA = Field(FieldKind.HIDDEN, ("_metadata",))

_TYPES: Mapping[LiteralKind, frozenset[type]] = {
    LiteralKind.WHOLE: NUMBER_TYPES,
    LiteralKind.DOUBLE: NUMBER_TYPES,
    LiteralKind.TEXT: frozenset({str}),
    LiteralKind.BOOLEAN: frozenset({bool}),
    LiteralKind.NULL: frozenset({type(None)}),
    LiteralKind.TIME: frozenset(),
}
"""The types of values that a literal can be equal to."""

_TESTS: Mapping[Operator, Callable[[Any, Any], bool]] = {
    Operator.EQ: operator.eq,
    Operator.NE: operator.eq,
    Operator.GT: operator.gt,
    Operator.GE: operator.ge,
    Operator.LT: operator.lt,
    Operator.LE: operator.le,
    Operator.LIKE: covers,
    Operator.ILIKE: lambda text, pattern: covers(fold(text), pattern),
}
"""The test of each operator for one value of the literal's type; `ne` tests that none is equal."""

_ORDERING = frozenset({Operator.GT, Operator.GE, Operator.LT, Operator.LE})

_FEW = 32
"""Up to how many pairs `in` compares values and literals one by one: faster than a look-up."""


def read(text: str, now: datetime) -> Predicate:
    """The predicate that a search's filter means, with `time:` literals resolved for an aware `now`.

    Raises RqlSyntaxError and UnknownProperty.
    """
    predicate = resolve_times(parse(text), now)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RqlSyntaxError(text, error.start, "a whole character instead of an unpaired surrogate") from error
    if _WHOLE_METADATA in fields(predicate):
        raise UnknownProperty("_metadata")
    return predicate


def holds(
    predicate: Predicate, document: Document, may: May | None = None, tick: Callable[[], None] | None = None
) -> bool:
    """Whether a thing matches for a reader that may read what `may` allows, or everything.

    The document is the whole visible thing, with the fields beside it. `time:` literals must have been resolved: others
    equal nothing. `tick` is called before each comparison, and may end the evaluation with an error.
    """
    match predicate:
        case And(parts):
            # A loop is faster here than `all` over a generator.
            for part in parts:  # noqa: SIM110
                if not holds(part, document, may, tick):
                    return False
            return True
        case Or(parts):
            for part in parts:  # noqa: SIM110
                if holds(part, document, may, tick):
                    return True
            return False
        case Not(part):
            return not holds(part, document, may, tick)
    if tick is not None:
        tick()
    if predicate.field.is_in_any_feature:
        return _holds_in_any_feature(predicate, document, may)
    found = _test(predicate, find(document, predicate.field))
    return found and is_readable(predicate.field, document, may)


def is_readable(field: Field, document: Document, may: May | None) -> bool:
    """Whether a reader of a thing may query a field outside of features.

    A path with the number of an element needs what the path without it needs: policies know no numbers. Metadata needs what
    the part that owns it needs.
    """
    if may is not None and field.path[0] == METADATA:
        return may((METADATA, *owner_of(field.path[1:], document), field.path[-1]))
    return may is None or field.path == ("thingId",) or all(map(may, matching_paths(document, field.path)))


def is_readable_in(name: str, feature: Any, path: Sequence[str], may: May | None) -> bool:
    """Whether they may query the place at the end of a path in one of its features."""
    return may is None or all(may(("features", name, *place)) for place in matching_paths(feature, path))


def _holds_in_any_feature(predicate: Compare | In | Exists | Empty, document: Document, may: May | None) -> bool:
    features = features_of(document)
    path = predicate.field.path[2:]
    if not path:
        # A feature exists, whatever is in it.
        return bool(features) is isinstance(predicate, Exists)
    if not _is_of_all_values(predicate):
        # Tested for all values at once, which is faster: mostly none matches.
        if not _test(predicate, [value for feature in features.values() for value in walk(feature, path)]):
            return False
        if may is None:
            return True
    return any(
        _test(predicate, walk(feature, path)) and is_readable_in(name, feature, path, may)
        for name, feature in features.items()
    )


def _is_of_all_values(predicate: Compare | In | Exists | Empty) -> bool:
    """Whether it concerns all values of a field together, or their absence."""
    return isinstance(predicate, Empty) or (isinstance(predicate, Compare) and predicate.operator is Operator.NE)


def _test(predicate: Compare | In | Exists | Empty, values: Sequence[Any]) -> bool:
    match predicate:
        case Compare(Operator.NE, _, literal):
            return _is_there(values) and not _compare(Operator.EQ, comparable(values), literal)
        case Compare(operator, _, literal):
            return _compare(operator, comparable(values), literal)
        case In(_, literals):
            return _in(comparable(values), literals)
        case Exists():
            return _is_there(values)
        case Empty():
            return _is_empty(values)


def _is_there(values: Sequence[Any]) -> bool:
    return any(value is not MISSING for value in values)


def _is_empty(values: Sequence[Any]) -> bool:
    return not values or any(map(_is_empty_form, values)) or any(map(_is_empty_form, comparable(values)))


def _is_empty_form(value: Any) -> bool:
    return value is MISSING or value is None or (isinstance(value, (str, list, Mapping)) and not value)


# -- comparison of values with literals


def _compare(operator: Operator, values: Sequence[Any], literal: Literal) -> bool:
    if literal.kind is LiteralKind.NULL and operator in _ORDERING:
        return False
    test, types, wanted = _TESTS[operator], _TYPES[literal.kind], literal.value
    if operator is Operator.ILIKE:
        wanted = fold(str(wanted))
    if len(values) == 1:
        value = values[0]
        return type(value) in types and test(exact(value) if type(value) is int else value, wanted)
    return any(map(test, _of(types, values), repeat(wanted)))


def _of(types: frozenset[type], values: Sequence[Any]) -> Iterator[Any]:
    """The values of these types, numbers as they are compared."""
    if int in types:
        return (exact(value) for value in values if type(value) in types)
    return (value for value in values if type(value) in types)


def _in(values: Sequence[Any], literals: Sequence[Literal]) -> bool:
    if len(values) * len(literals) <= _FEW or len(values) == 1:
        return any(_compare(Operator.EQ, values, literal) for literal in literals)
    for types in {_TYPES[literal.kind] for literal in literals}:
        wanted = {literal.value for literal in literals if _TYPES[literal.kind] is types}
        if not wanted.isdisjoint(_of(types, values)):
            return True
    return False
