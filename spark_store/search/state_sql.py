"""Translates a filter to a condition on states in SQL, where the index cannot restrict: mostly `not`.

Every matching thing meets `possible(predicate)`, if nothing of it is hidden from the requester. It uses plain values only,
at the end of objects and of types common to JSON and SQL; everything else is possible. The reference evaluator decides about
the results.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

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
from spark_store.rql.projection import PLAIN, longest_plain

_INSIDE: Final = ("attributes", "features")
"""The members of a thing whose texts are looked for in its state."""

_INSTANT: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{9}Z")
_SIGNS: Final = {Operator.GT: ">", Operator.GE: ">=", Operator.LT: "<", Operator.LE: "<=", Operator.EQ: "="}
_WIDER: Final = {">": ">=", "<": "<="}
_TYPE: Final = "json_type(state, ?)"


class Condition(NamedTuple):
    """An expression that is 0 or 1, over a row of `entities`."""

    sql: str
    parameters: tuple[Any, ...]


def possible(predicate: Predicate) -> Condition | None:
    """Return a condition that every match meets; None if there is none."""
    match predicate:
        case And(parts):
            return _join(" AND ", [found for part in parts if (found := possible(part)) is not None])
        case Or(parts):
            either = [possible(part) for part in parts]
            return None if None in either else _join(" OR ", [found for found in either if found is not None])
        case Not(part):
            return _opposite(certain(part))
        case Compare(operator, field, literal) if operator in _SIGNS:
            return _beside(field, _SIGNS[operator], literal)
        case Compare(Operator.LIKE, field, literal) if field.kind is FieldKind.DOCUMENT and field.path[0] in _INSIDE:
            return _holding(str(literal.value))
        case Empty(field) if (path := _path(field)) is not None:
            scalar = f"{_TYPE} IN ('integer', 'real', 'true', 'false')"
            text = f"({_TYPE} = 'text' AND json_extract(state, ?) <> '')"
            return Condition(f"NOT coalesce({scalar} OR {text}, 0)", (path, path, path))
        case _:
            return None


def certain(predicate: Predicate) -> Condition | None:
    """Return a condition that only matches meet; None if there is none."""
    match predicate:
        case And(parts):
            every = [certain(part) for part in parts]
            return None if None in every else _join(" AND ", [found for found in every if found is not None])
        case Or(parts):
            return _join(" OR ", [found for part in parts if (found := certain(part)) is not None])
        case Not(part):
            return _opposite(possible(part))
        case Exists(field) if (path := _path(field)) is not None:
            return Condition(f"{_TYPE} IS NOT NULL", (path,))
        case Compare(Operator.EQ, field, literal) if (path := _path(field)) is not None:
            return _equal(path, literal)
        case In(field, literals) if (path := _path(field)) is not None:
            return _join(" OR ", [found for it in literals if (found := _equal(path, it)) is not None])
        case _:
            return None


def _join(word: str, parts: Sequence[Condition]) -> Condition | None:
    if not parts:
        return None
    sql = word.join(part.sql for part in parts)
    return Condition(f"({sql})", tuple(value for part in parts for value in part.parameters))


def _opposite(condition: Condition | None) -> Condition | None:
    return None if condition is None else Condition(f"(NOT {condition.sql})", condition.parameters)


def _path(field: Field) -> str | None:
    """Return the path of a field for SQL's JSON functions; None if they might read it differently."""
    if field.kind is not FieldKind.DOCUMENT or not all(map(PLAIN.fullmatch, field.path)):
        return None
    return "$" + "".join(f'."{key}"' for key in field.path)


def _equal(path: str, literal: Literal) -> Condition | None:
    match literal.kind:
        case LiteralKind.TEXT:
            test = "coalesce(json_type(state, ?) = 'text' AND json_extract(state, ?) = ?, 0)"
            return Condition(test, (path, path, literal.value))
        case LiteralKind.WHOLE:
            test = "coalesce(json_type(state, ?) = 'integer' AND json_extract(state, ?) = ?, 0)"
            return Condition(test, (path, path, literal.value))
        case LiteralKind.BOOLEAN | LiteralKind.NULL:
            name = {True: "true", False: "false", None: "null"}[literal.value]  # type: ignore[index]
            return Condition(f"coalesce({_TYPE} = ?, 0)", (path, name))
        case _:
            # Doubles are read from text here and there, and the last digit may come out otherwise.
            return None


def _holding(pattern: str) -> Condition | None:
    """Return a condition: the parts between wildcards are in every matching state, wherever the text is."""
    longest = longest_plain(pattern)
    return Condition("instr(state, ?) > 0", (longest,)) if longest else None


def _beside(field: Field, sign: str, literal: Literal) -> Condition | None:
    """A comparison with a field beside the document, which is a column.

    Instants are compared by their seconds.
    """
    number = literal.kind in (LiteralKind.WHOLE, LiteralKind.DOUBLE)
    if field.path == ("_revision",) and number:
        return Condition(f"revision {sign} ?", (literal.value,))
    if field.path == ("_modified",) and _INSTANT.fullmatch(str(literal.value)):
        test = f"(substr(modified, 1, 19) {_WIDER.get(sign, sign)} ? OR substr(modified, -1) <> 'Z')"
        return Condition(test, (str(literal.value)[:19],))
    return None
