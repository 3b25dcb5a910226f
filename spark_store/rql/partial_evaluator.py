"""What can be said of a filter before everything is known that it asks about.

A target's filter may speak about fields that are fetched only where that is worth it. As long as they are open, each
comparison with one of them may come out either way, and so may what is made of it: that is three-valued logic (RQL, filters
with extra fields). Where a filter is certainly false, nothing has to be fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from spark_store.rql.ast import And, Compare, Field, In, LiteralKind, Not, Or, Predicate
from spark_store.rql.evaluator import evaluate


def partial_evaluate(
    predicate: Predicate, document: Mapping[str, Any], is_open: Callable[[Field], bool]
) -> bool | None:
    """What `evaluate` will say whatever the open fields turn out to be; None where that depends on them."""
    match predicate:
        case And(parts):
            return _joined(False, (partial_evaluate(part, document, is_open) for part in parts))
        case Or(parts):
            return _joined(True, (partial_evaluate(part, document, is_open) for part in parts))
        case Not(part):
            found = partial_evaluate(part, document, is_open)
            return None if found is None else not found
        case _:
            return None if is_open(predicate.field) else evaluate(predicate, document)


def _joined(decisive: bool, parts: Iterator[bool | None]) -> bool | None:
    """One decisive part decides; otherwise one that is open leaves the whole open."""
    found: bool | None = not decisive
    for part in parts:
        if part is decisive:
            return decisive
        if part is None:
            found = None
    return found


def fields(predicate: Predicate) -> Iterator[Field]:
    """The fields that a predicate asks about, each as often as it does."""
    match predicate:
        case And(parts) | Or(parts):
            for part in parts:
                yield from fields(part)
        case Not(part):
            yield from fields(part)
        case _:
            yield predicate.field


def names_times(predicate: Predicate) -> bool:
    """Whether it has literals that mean a time only once they are resolved."""
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
