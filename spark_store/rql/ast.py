"""The syntax tree of RQL: frozen nodes, compared with `==`.

The evaluators define the meaning, for example of missing fields. Literals have a kind, so that the trees of
`eq(attributes/x,1)`, of `…,1.0)` and of `…,true)` differ, unlike Python's numbers. `OPERATORS` is the table of operators for
parser, binding and evaluators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class GrammarRule(Enum):
    """The rules of the grammar that begin with an operator."""

    LOGICAL = "logical"
    COMPARE = "compare"
    MULTI = "multi"
    EXISTS = "exists"
    EMPTY = "empty"


class Operator(Enum):
    """The operators by the names that a filter writes, in lower case only."""

    AND = "and"
    OR = "or"
    NOT = "not"
    EQ = "eq"
    NE = "ne"
    GT = "gt"
    GE = "ge"
    LT = "lt"
    LE = "le"
    LIKE = "like"
    ILIKE = "ilike"
    IN = "in"
    EXISTS = "exists"
    EMPTY = "empty"


OPERATORS: Mapping[Operator, GrammarRule] = {
    Operator.AND: GrammarRule.LOGICAL,
    Operator.OR: GrammarRule.LOGICAL,
    Operator.NOT: GrammarRule.LOGICAL,
    Operator.EQ: GrammarRule.COMPARE,
    Operator.NE: GrammarRule.COMPARE,
    Operator.GT: GrammarRule.COMPARE,
    Operator.GE: GrammarRule.COMPARE,
    Operator.LT: GrammarRule.COMPARE,
    Operator.LE: GrammarRule.COMPARE,
    Operator.LIKE: GrammarRule.COMPARE,
    Operator.ILIKE: GrammarRule.COMPARE,
    Operator.IN: GrammarRule.MULTI,
    Operator.EXISTS: GrammarRule.EXISTS,
    Operator.EMPTY: GrammarRule.EMPTY,
}


class FieldKind(Enum):
    """The origin of a field's value."""

    DOCUMENT = "document"
    """A place in the document that clients see."""
    HIDDEN = "hidden"
    """A field beside the document: `_revision`, `_metadata`."""
    INSTANT = "instant"
    """A hidden field that is a point in time: `_created`, `_modified`."""
    NAMESPACE = "namespace"
    """The namespace of the thing's id."""
    OPERAND = "operand"
    """A property of the signal, such as `topic:action`: the document has it under this one key."""


@dataclass(frozen=True, slots=True)
class Field:
    """A bound property: its kind, and the keys to its value, outermost first."""

    kind: FieldKind
    path: tuple[str, ...]

    @property
    def is_in_any_feature(self) -> bool:
        """Whether a search matches it in any feature; for history filters `*` is an ordinary ID."""
        return self.path[:2] == ("features", "*")


class LiteralKind(Enum):
    """The kind of a literal as it was written."""

    WHOLE = "whole number"
    DOUBLE = "double"
    TEXT = "text"
    BOOLEAN = "boolean"
    NULL = "null"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Literal:
    """A value in a filter.

    Of kind TIME, `value` is the text after `time:`, which only `resolve_times` turns into one.
    """

    kind: LiteralKind
    value: int | float | str | bool | None


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: Predicate


@dataclass(frozen=True, slots=True)
class Compare:
    """One field compared with one literal: `eq` to `le`, `like` and `ilike` (with a text)."""

    operator: Operator
    field: Field
    literal: Literal


@dataclass(frozen=True, slots=True)
class In:
    field: Field
    literals: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Exists:
    field: Field


@dataclass(frozen=True, slots=True)
class Empty:
    field: Field


Predicate: TypeAlias = And | Or | Not | Compare | In | Exists | Empty
