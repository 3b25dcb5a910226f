"""Translates a filter to selections of the search index (RQL, search column).

`candidates(predicate)` is a tree of sets of things: each leaf is one selection. Every matching thing is in the set; the
reference evaluator decides about each. So what the index cannot decide costs time and no result: `not`, fields that may be
absent, texts longer than their rows, segments that may be indices of arrays. Values of a filter are parameters of
statements, never text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from spark_store.rql.ast import (
    And,
    Compare,
    Exists,
    Field,
    FieldKind,
    In,
    Literal,
    LiteralKind,
    Operator,
    Or,
    Predicate,
)
from spark_store.rql.order import TypeRank

TEXT: Final = 200
"""How many characters of a text are in its row."""

_RANKS: Final = {
    LiteralKind.NULL: int(TypeRank.NULL),
    LiteralKind.WHOLE: int(TypeRank.NUMBER),
    LiteralKind.DOUBLE: int(TypeRank.NUMBER),
    LiteralKind.TEXT: int(TypeRank.TEXT),
    LiteralKind.BOOLEAN: int(TypeRank.BOOLEAN),
}
_SIGNS: Final = {Operator.GT: ">", Operator.GE: ">=", Operator.LT: "<", Operator.LE: "<="}
_RELAXED: Final = {">": ">=", "<": "<="}
_EXACT_BELOW: Final = 2**63
"""Whole numbers from here on are in the index as the nearest double."""

_ONE_PATH: Final = "path = (SELECT id FROM search_paths WHERE path = ?)"
_ANY_FEATURE: Final = "path IN (SELECT id FROM search_paths WHERE wildcard = ?)"
_VALUES: Final = "SELECT thing FROM search_values WHERE"
_IDS: Final = "SELECT key FROM entities WHERE type = 'thing' AND"
_LAST: Final = "\U0010ffff"

Parameters: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class RowSelect:
    """The things of some rows, as a statement of one column, in which a thing may come more than once."""

    sql: str
    parameters: Parameters
    description: str
    """The same for people."""
    path: str = ""
    """The one path that the rows are of; empty where there may be several."""
    equal: tuple[int, Any] | None = None
    """The rank and value that all of them have; None if they may differ."""


@dataclass(frozen=True, slots=True)
class AllThings:
    """All things: the index cannot restrict them."""


@dataclass(frozen=True, slots=True)
class Intersection:
    """The intersection of its parts."""

    parts: tuple[Candidates, ...]


@dataclass(frozen=True, slots=True)
class PathIntersection:
    """The intersection of parts about one path; `rows` is the same if no thing has several values there."""

    parts: tuple[RowSelect, ...]
    rows: RowSelect


@dataclass(frozen=True, slots=True)
class Union:
    """The union of its parts; without parts, nothing."""

    parts: tuple[Candidates, ...]


Candidates: TypeAlias = RowSelect | AllThings | Intersection | PathIntersection | Union

NOTHING: Final = Union(())


def candidates(predicate: Predicate | None) -> Candidates:
    """Return the tree of candidates. `time:` literals must have been resolved: others equal nothing."""
    match predicate:
        case And(parts):
            return _both(list(map(candidates, parts)))
        case Or(parts):
            return _either(list(map(candidates, parts)))
        case Compare() | In() | Exists():
            return _rows(predicate)
        case _:
            # Empty may mean absent, and a `not` may match anything, unreadable fields included.
            return AllThings()


def _both(parts: Sequence[Candidates]) -> Candidates:
    kept = _join([part for part in parts if not isinstance(part, AllThings)])
    if NOTHING in kept:
        return NOTHING
    return kept[0] if len(kept) == 1 else Intersection(tuple(kept)) if kept else AllThings()


def _join(parts: Sequence[Candidates]) -> list[Candidates]:
    """Join parts about the same path: `ge` and `le` are one range of rows, and not two long ones."""
    by_path: defaultdict[str, list[RowSelect]] = defaultdict(list)
    others: list[Candidates] = []
    for part in parts:
        if isinstance(part, RowSelect) and part.path:
            by_path[part.path].append(part)
        else:
            others.append(part)
    return [*(rows[0] if len(rows) == 1 else _together(rows) for rows in by_path.values()), *others]


def _together(rows: Sequence[RowSelect]) -> PathIntersection:
    start = f"{_VALUES} {_ONE_PATH}"
    sql = start + "".join(each.sql.removeprefix(start) for each in rows)
    parameters = rows[0].path, *(value for each in rows for value in each.parameters[1:])
    return PathIntersection(
        tuple(rows), RowSelect(sql, parameters, " and ".join(each.description for each in rows), rows[0].path)
    )


def _either(parts: Sequence[Candidates]) -> Candidates:
    if any(isinstance(part, AllThings) for part in parts):
        return AllThings()
    kept = tuple(part for part in parts if part != NOTHING)
    return kept[0] if len(kept) == 1 else Union(kept)


def _rows(predicate: Compare | In | Exists) -> Candidates:
    field = predicate.field
    if field.path == ("thingId",):
        return _by_id(predicate)
    if field.kind is FieldKind.OPERAND or field.path in (("_revision",), ("_modified",)):
        return AllThings()
    if (outer := _before_number(field.path)) is not None:
        # In an array, the number may be that of an element, whose rows do not contain it.
        return _row_select(Field(field.kind, outer), "", (), f"exists({'/'.join(outer)})")
    name = "/".join(field.path)
    match predicate:
        case Exists():
            return _row_select(field, "", (), f"exists({name})")
        case In(_, literals):
            return _in(field, literals, name)
        case Compare(operator, _, literal):
            return _comparison(field, operator, literal, name)


def _comparison(field: Field, operator: Operator, literal: Literal, name: str) -> Candidates:
    says = f"{operator.value}({name},{_show(literal)})"
    if operator is Operator.NE:
        return _row_select(field, "", (), f"exists({name})")
    if operator is Operator.EQ:
        return _in(field, (literal,), name)
    if operator in _SIGNS:
        return _order_condition(field, operator, literal, says)
    condition, parameters = _alike(operator, str(literal.value))
    return _row_select(field, f" AND rank = {_RANKS[LiteralKind.TEXT]}{condition}", parameters, says)


def _in(field: Field, literals: Sequence[Literal], name: str) -> Candidates:
    by_rank: defaultdict[int, set[Any]] = defaultdict(set)
    for literal in literals:
        if literal.kind is not LiteralKind.TIME:
            by_rank[_RANKS[literal.kind]].add(_stored_value(literal))
    shown = ",".join(map(_show, literals[:3])) + (",…" if len(literals) > 3 else "")
    says = f"{'eq' if len(literals) == 1 else 'in'}({name},{shown})"
    parts = []
    for rank, wanted in by_rank.items():
        values = tuple(wanted)
        test = "= ?" if len(values) == 1 else f"IN ({','.join('?' * len(values))})"
        equal = (rank, values[0]) if len(values) == 1 else None
        parts.append(_row_select(field, f" AND rank = {rank} AND value {test}", values, says, equal))
    return _either(parts)


def _order_condition(field: Field, operator: Operator, literal: Literal, says: str) -> Candidates:
    if literal.kind in (LiteralKind.NULL, LiteralKind.TIME):
        return NOTHING
    sign, value = _SIGNS[operator], _stored_value(literal)
    if _is_near(literal):
        sign = _RELAXED.get(sign, sign)
    return _row_select(field, f" AND rank = {_RANKS[literal.kind]} AND value {sign} ?", (value,), says)


def _is_near(literal: Literal) -> bool:
    """Whether a row that equals the literal may stand for another value."""
    value = literal.value
    if isinstance(value, str):
        return len(value) >= TEXT
    return isinstance(value, float) and abs(value) >= _EXACT_BELOW


def _stored_value(literal: Literal) -> Any:
    """Return a literal's value as it is in a row."""
    match literal.kind:
        case LiteralKind.NULL:
            return 0
        case LiteralKind.BOOLEAN:
            return int(bool(literal.value))
        case LiteralKind.TEXT:
            return str(literal.value)[:TEXT]
        case _:
            return literal.value


def _row_select(
    field: Field, condition: str, parameters: Parameters, says: str, equal: tuple[int, Any] | None = None
) -> RowSelect:
    path = path_of(field.path)
    if field.is_in_any_feature:
        return RowSelect(f"{_VALUES} {_ANY_FEATURE}{condition}", (path, *parameters), says)
    return RowSelect(f"{_VALUES} {_ONE_PATH}{condition}", (path, *parameters), says, path, equal)


def path_of(path: Sequence[str]) -> str:
    """A place as the index names it."""
    return "/".join(map(escape_key, path))


def escape_key(key: str) -> str:
    """Return a key as it is in the name of a path."""
    return key.replace("~", "~0").replace("/", "~1") if "~" in key or "/" in key else key


def _before_number(path: Sequence[str]) -> tuple[str, ...] | None:
    """Return the path before the first segment that may be an index of an array."""
    first = 4 if path[0] == "features" else 2
    for position in range(first, len(path)):
        if path[position].isdecimal():
            return tuple(path[:position])
    return None


# -- ids


def _by_id(predicate: Compare | In | Exists) -> Candidates:
    """A predicate about the id of the thing, or about its namespace."""
    is_namespace = predicate.field.kind is FieldKind.NAMESPACE
    match predicate:
        case Compare(Operator.EQ, _, literal):
            return _in_ids((literal,), is_namespace)
        case In(_, literals):
            return _in_ids(literals, is_namespace)
        case Compare(operator, _, literal) if not is_namespace and operator in _SIGNS:
            if literal.kind is not LiteralKind.TEXT:
                return NOTHING
            sign = _SIGNS[operator]
            return RowSelect(f"{_IDS} id {sign} ?", (literal.value,), f"{operator.value}(thingId,{_show(literal)})")
        case Compare(Operator.LIKE, _, literal):
            start = str(literal.value).partition("*")[0].partition("?")[0]
            if not start:
                return AllThings()
            condition, parameters = _beginning(start, "id")
            return RowSelect(f"{_IDS[:-4]}{condition}", parameters, f"like(thingId,{_show(literal)})")
        case _:
            return AllThings()


def _in_ids(literals: Sequence[Literal], is_namespace: bool) -> Candidates:
    wanted = sorted({str(literal.value) for literal in literals if literal.kind is LiteralKind.TEXT})
    if not is_namespace:
        if not wanted:
            return NOTHING
        return RowSelect(f"{_IDS} id IN ({','.join('?' * len(wanted))})", tuple(wanted), f"{len(wanted)} ids")
    return _either([namespace(name) for name in wanted])


def namespace(name: str) -> RowSelect:
    """The things of a namespace."""
    return RowSelect(f"{_IDS} id >= ? AND id < ?", (f"{name}:", f"{name};"), f"eq(namespace,{_quote(name)})")


# -- patterns


def _alike(operator: Operator, pattern: str) -> tuple[str, Parameters]:
    """Return a condition for every row whose text may match the pattern."""
    start = pattern.partition("*")[0].partition("?")[0]
    condition, parameters = _beginning(start[:TEXT]) if operator is Operator.LIKE and start else ("", ())
    if operator is Operator.LIKE and pattern.rstrip("*") == start:
        if "*" not in pattern and len(pattern) < TEXT:
            return " AND value = ?", (pattern,)
        return condition, parameters
    # SQLite's own matching stops at a zero character, and a row may not have the whole text.
    whole = f"(value GLOB ? OR length(value) >= {TEXT} OR instr(value, char(0)) > 0)"
    return f"{condition} AND {whole}", (*parameters, _glob(operator, pattern))


def _beginning(start: str, column: str = "value") -> tuple[str, Parameters]:
    """A condition that holds for all texts that begin so."""
    end = start.rstrip(_LAST)
    if not end:
        return f" AND {column} >= ?", (start,)
    after = ord(end[-1]) + 1
    return f" AND {column} >= ? AND {column} < ?", (start, end[:-1] + chr(0xE000 if after == 0xD800 else after))


def _glob(operator: Operator, pattern: str) -> str:
    """Return a GLOB pattern of SQLite that matches at least as much."""
    return "".join(map(_glob_pattern if operator is Operator.ILIKE else _glob_character, pattern))


def _glob_character(character: str) -> str:
    return "[[]" if character == "[" else "?" if character == "\0" else character


def _glob_pattern(character: str) -> str:
    """Return a pattern for a character, and those with this lower case; beyond ASCII, for any."""
    if character in "*?":
        return character
    if not character.isascii() or character == "\0":
        return "?"
    if not character.isalpha():
        return _glob_character(character)
    # The Kelvin sign and the capital I with a dot become letters of ASCII.
    beyond = {"k": "\u212a", "i": "\u0130"}.get(character.lower(), "")
    return f"[{character.lower()}{character.upper()}{beyond}]"


def _show(literal: Literal) -> str:
    match literal.kind:
        case LiteralKind.TEXT:
            return _quote(str(literal.value))
        case LiteralKind.NULL:
            return "null"
        case LiteralKind.BOOLEAN:
            return "true" if literal.value else "false"
        case _:
            return str(literal.value)


def _quote(text: str) -> str:
    return '"' + (text if len(text) <= 40 else f"{text[:40]}…") + '"'
