"""A selection of events of all entities, as conditions on columns.

Bounds, names and types are exact conditions on columns. A filter looks into the JSON of an event, and only `rql.evaluate`
defines it: readers of columns get conditions that it implies (`implied_conditions`), which may select too much and never too
little, and the rows are filtered again (`matches`). A filter selects things only. Text is ordered as UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from mappings.ids import EntityType
from mappings.model.signals import Event
from mappings.timestamps import utc_text
from spark_store import rql
from spark_store.history.event_view import partial_thing
from spark_store.records import entity_of
from spark_store.rql.ast import And, Compare, Field, FieldKind, In, Literal, LiteralKind, Operator, Predicate

_INSTANT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{9}Z", re.ASCII)
Condition: TypeAlias = tuple[str, str, Any]
"""Column, sign and value; with the sign `in`, a list of values."""

_COMPARISONS = {Operator.EQ: "=", Operator.GT: ">", Operator.GE: ">=", Operator.LT: "<", Operator.LE: "<="}


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
    """Return conditions on columns that follow from the filter."""
    match predicate:
        case And(parts):
            return [rule for part in parts for rule in implied_conditions(part)]
        case Compare(operator, field, wanted):
            return _comparison(operator, field, wanted)
        case In(field, literals):
            column = _text_column(field)
            if column is not None and literals and all(it.kind is LiteralKind.TEXT for it in literals):
                return [(column, "in", [str(it.value) for it in literals])]
            return []
        case _:
            return []


def _comparison(operator: Operator, field: Field, wanted: Literal) -> list[Condition]:
    column, value = _text_column(field), wanted.value
    if column is not None and operator is Operator.EQ and wanted.kind is LiteralKind.TEXT:
        return [(column, "=", str(value))]
    if field == Field(FieldKind.HIDDEN, ("_revision",)) and wanted.kind is LiteralKind.WHOLE and isinstance(value, int):
        sign = _COMPARISONS.get(operator)
        return [("revision", sign, value)] if sign is not None else []
    if field == Field(FieldKind.INSTANT, ("_modified",)) and wanted.kind is LiteralKind.TEXT:
        return _around(operator, str(value))
    return []


def _text_column(field: Field) -> str | None:
    if field == Field(FieldKind.DOCUMENT, ("thingId",)):
        return "entity"
    return "namespace" if field.kind is FieldKind.NAMESPACE else None


def _around(operator: Operator, instant: str) -> list[Condition]:
    """Return an instant of nine decimal places for a column with six: its microsecond is included."""
    if _INSTANT.fullmatch(instant) is None:
        return []
    try:
        begin = datetime.fromisoformat(f"{instant[:-4]}+00:00")
        end = begin + timedelta(microseconds=1)
    except (ValueError, OverflowError):
        return []
    rules: list[Condition] = [("ts", ">=", begin)] if operator in (Operator.GT, Operator.GE, Operator.EQ) else []
    return rules + ([("ts", "<=", end)] if operator in (Operator.LT, Operator.LE, Operator.EQ) else [])


def matches(predicate: Predicate, row: Sequence[object]) -> bool:
    """Whether the filter accepts an event: entity, revision, instant, action, path, value (text or None)."""
    entity, revision, instant, action, path, value = row
    assert isinstance(entity, str)
    assert isinstance(revision, int)
    assert isinstance(instant, datetime)
    event = Event(
        entity_of(EntityType.THING.value, entity),
        revision,
        utc_text(instant),
        str(action),
        str(path),
        None if value is None else str(value).encode(),
        b"{}",
    )
    return rql.evaluate(predicate, partial_thing(event))
