"""Evaluates a filter before all of its fields are known.

Extra fields are fetched only if they are needed. As long as fields are open, comparisons with them may be true or false:
three-valued logic (RQL, filters with extra fields). If a filter is certainly false, nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from spark_store.rql.ast import And, Compare, Field, In, LiteralKind, Not, Or, Predicate
from spark_store.rql.evaluator import evaluate


def partial_evaluate(
    predicate: Predicate, document: Mapping[str, Any], is_open: Callable[[Field], bool]
) -> bool | None:
    """Return the result of `evaluate` for all values of the open fields; None if it depends on them."""
    match predicate:
        case And(parts):
            return _join(False, (partial_evaluate(part, document, is_open) for part in parts))
        case Or(parts):
            return _join(True, (partial_evaluate(part, document, is_open) for part in parts))
        case Not(part):
            found = partial_evaluate(part, document, is_open)
            return None if found is None else not found
        case _:
            return None if is_open(predicate.field) else evaluate(predicate, document)


def _join(decisive: bool, parts: Iterator[bool | None]) -> bool | None:
    """Join results: one decisive part decides; otherwise an open part leaves the whole open."""
    found: bool | None = not decisive
    for part in parts:
        if part is decisive:
            return decisive
        if part is None:
            found = None
    return found


def fields(predicate: Predicate) -> Iterator[Field]:
    """Yield the fields of a predicate, with repetitions."""
    match predicate:
        case And(parts) | Or(parts):
            for part in parts:
                yield from fields(part)
        case Not(part):
            yield from fields(part)
        case _:
            yield predicate.field


def names_times(predicate: Predicate) -> bool:
    """Whether it has `time:` literals."""
    match predicate:
        case And(parts) | Or(parts):
            return any(map(names_times, parts))
        case Not(part):
            return names_times(part)
        case Compare(_, _, literal):
            return literal.kind is LiteralKind.TIME
        case In(_, literals):
            return any(literal.kind is LiteralKind.TIME for literal in literals)
        case _:
            return False
