"""Binds the properties and literals of a filter to things.

A property is a path such as `attributes/site/hall` or a field beside the document (`_revision`, `_modified`). The table of
properties (RQL, properties) says which exist, and which can be compared and not only used in `exists` and `empty`; others
are `UnknownProperty`. A wildcard for a feature's ID is an ordinary key here: only searches interpret it. Operands, such as
the topic of a signal, are supplied by the caller in the document under their names. Literals compared with instants get a
fixed-width form in which text order is time order, and `time:` literals become texts for a given now.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeAlias

from mappings.errors import DecodeError
from mappings.model.json_pointer import Segments, parse_pointer
from mappings.placeholders.time import parse_time
from spark_store.errors import UnknownProperty
from spark_store.rql.ast import (
    OPERATORS,
    And,
    Compare,
    Field,
    FieldKind,
    GrammarRule,
    In,
    Literal,
    LiteralKind,
    Not,
    Operator,
    Or,
    Predicate,
)

_WHOLE = {
    "thingId": Field(FieldKind.DOCUMENT, ("thingId",)),
    "policyId": Field(FieldKind.DOCUMENT, ("policyId",)),
    "definition": Field(FieldKind.DOCUMENT, ("definition",)),
    "namespace": Field(FieldKind.NAMESPACE, ("thingId",)),
    "_namespace": Field(FieldKind.NAMESPACE, ("thingId",)),
    "_revision": Field(FieldKind.HIDDEN, ("_revision",)),
    "_created": Field(FieldKind.INSTANT, ("_created",)),
    "_modified": Field(FieldKind.INSTANT, ("_modified",)),
    "_metadata": Field(FieldKind.HIDDEN, ("_metadata",)),
}
"""The properties of one segment."""

_PROPERTIES = ("properties", "desiredProperties")

_INSTANT = re.compile(
    r"(?P<second>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.(?P<fraction>[0-9]{1,9}))?(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})"
)

Operands: TypeAlias = Callable[[str], bool]
"""Whether a property is an operand: known beside a document, and no part of it."""


def bind(name: str, operator: Operator, operands: Operands | None = None) -> Field:
    """The field that a property names for this operator. Raises UnknownProperty."""
    try:
        path = parse_pointer(name)
    except DecodeError as error:
        raise UnknownProperty(name) from error
    if len(path) == 1 and path[0] in _WHOLE:
        return _WHOLE[path[0]]
    presence = OPERATORS[operator] in (GrammarRule.EXISTS, GrammarRule.EMPTY)
    if _is_comparable(path) or (presence and _is_part_of_feature(path)):
        return Field(FieldKind.DOCUMENT, path)
    if operands is not None and operands(name):
        return Field(FieldKind.OPERAND, (name,))
    raise UnknownProperty(name)


def _is_comparable(path: Segments) -> bool:
    """Whether there may be a value at this path."""
    match path:
        case ("attributes" | "_metadata", _, *_):
            return True
        case ("features", _, "definition"):
            return True
        case ("features", _, part, _, *_):
            return part in _PROPERTIES
        case _:
            return False


def _is_part_of_feature(path: Segments) -> bool:
    """Whether this is a feature, or a part of one, that is always an object."""
    match path:
        case ("features", _):
            return True
        case ("features", _, part):
            return part in _PROPERTIES
        case _:
            return False


def fit(field: Field, literal: Literal) -> Literal:
    """Return the literal for comparison with this field: instants get their fixed-width form."""
    if field.kind is FieldKind.INSTANT and literal.kind is LiteralKind.TEXT:
        return Literal(LiteralKind.TEXT, fixed_width(str(literal.value)))
    return literal


def fixed_width(text: str) -> str:
    """Return an ISO 8601 instant in UTC with nine decimal places; other text unchanged."""
    found = _INSTANT.fullmatch(text)
    if found is None:
        return text
    second, zone = found["second"], found["zone"]
    if zone != "Z":
        try:
            second = f"{datetime.fromisoformat(second + zone).astimezone(UTC):%Y-%m-%dT%H:%M:%S}".rjust(19, "0")
        except (ValueError, OverflowError):
            return text
    return f"{second}.{found['fraction'] or '':0<9}Z"


def resolve_times(predicate: Predicate, now: datetime) -> Predicate:
    """Return the predicate with `time:` literals as texts; `now` is timezone-aware.

    Invalid times, or those beyond the calendar, stay: they equal nothing.
    """
    return _with_literals(predicate, lambda literal: _resolve_time(literal, now))


def _resolve_time(literal: Literal, now: datetime) -> Literal:
    write = parse_time(str(literal.value)) if literal.kind is LiteralKind.TIME else None
    if write is None:
        return literal
    try:
        return Literal(LiteralKind.TEXT, write(now))
    except (OverflowError, ValueError):
        return literal


def _with_literals(predicate: Predicate, change: Callable[[Literal], Literal]) -> Predicate:
    match predicate:
        case And(parts):
            return And(tuple(_with_literals(part, change) for part in parts))
        case Or(parts):
            return Or(tuple(_with_literals(part, change) for part in parts))
        case Not(part):
            return Not(_with_literals(part, change))
        case Compare(operator, field, literal):
            return Compare(operator, field, fit(field, change(literal)))
        case In(field, literals):
            return In(field, tuple(fit(field, change(literal)) for literal in literals))
        case _:
            return predicate
