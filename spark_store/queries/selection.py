"""A selection of events of all entities, as conditions on columns.

Bounds, names and types are exact conditions on columns. A filter looks into the JSON of an event, and only `rql.evaluate`
defines it: readers of columns get conditions that it implies (`implied_conditions`), which may select too much and never too
little, and the rows are filtered again (`matches`). A filter selects things only. Text is ordered as UTF-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from mappings.ids import EntityType
from mappings.model.signals import Event
from spark_store import rql
from spark_store.history.event_view import partial_thing
from spark_store.records import entity_of
from spark_store.rql.ast import And, Compare, Field, FieldKind, In, LiteralKind, Operator, Predicate

Condition: TypeAlias = tuple[str, str, Any]
"""Column, sign and value; with the sign `in`, a list of values."""


@dataclass(frozen=True, slots=True)
class EventSelection:
    """Events of all entities, or of the named ones. None: no restriction.

    Revisions `first` to `last`, both inclusive. `since` is inclusive and `until` exclusive, so that adjacent selections have
    no event in common. `predicate` has its `time:` literals resolved.
    """

    entity: str | None = None
    entity_type: str | None = None
    namespace: str | None = None
    first: int | None = None
    last: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    predicate: Predicate | None = None


def conditions(selection: EventSelection) -> list[Condition]:
    """Return the conditions on columns.

    They select every selected event, and perhaps others that only the filter excludes.
    """
    rules: list[Condition] = [
        (column, sign, value)
        for column, sign, value in (
            ("entity", "=", selection.entity),
            ("entity_type", "=", selection.entity_type),
            ("namespace", "=", selection.namespace),
            ("revision", ">=", selection.first),
            ("revision", "<=", selection.last),
            ("ts", ">=", selection.since),
            ("ts", "<", selection.until),
        )
        if value is not None
    ]
    if selection.predicate is not None:
        rules += [("entity_type", "=", EntityType.THING.value), *implied_conditions(selection.predicate)]
    return rules


def implied_conditions(predicate: Predicate) -> list[Condition]:
    """Return conditions on IDs and namespaces that follow from the filter."""
    match predicate:
        case And(parts):
            return [rule for part in parts for rule in implied_conditions(part)]
        case Compare(Operator.EQ, field, literal):
            column, literals = _text_column(field), (literal,)
        case In(field, literals):
            column = _text_column(field)
        case _:
            return []
    if column is None or not literals or any(it.kind is not LiteralKind.TEXT for it in literals):
        return []
    return [(column, "in", [str(it.value) for it in literals])]


def _text_column(field: Field) -> str | None:
    if field == Field(FieldKind.DOCUMENT, ("thingId",)):
        return "entity"
    return "namespace" if field.kind is FieldKind.NAMESPACE else None


def matches(predicate: Predicate, row: Sequence[Any]) -> bool:
    """Whether the filter accepts an event of a thing: ID, revision, time, action, path, value."""
    id, revision, timestamp, action, path, value = row
    event = Event(entity_of(EntityType.THING.value, id), revision, timestamp, action, path, value, b"{}")
    return rql.evaluate(predicate, partial_thing(event))
