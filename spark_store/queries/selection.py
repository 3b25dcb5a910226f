"""Which events of all entities are meant: as a condition for Spark, and as a question about one event.

Bounds, names and types are a condition on columns, exactly. A filter is not: it looks into the JSON of an event, and what it
means is said by `rql.evaluate` alone. So Spark gets what the filter implies about columns (`implied`), which may let
through too much and never too little, and whoever takes the rows asks the filter about each of them (`matches`).

A filter is about things, so with one no other entity is meant. Text is ordered as its UTF-8 is, everywhere here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from mappings.ids import EntityType, namespace_of
from mappings.model.signals import Event
from mappings.texts import utc_text
from spark_store import rql
from spark_store.history.event_view import partial_thing
from spark_store.records import entity_of
from spark_store.rql.ast import And, Compare, Field, FieldKind, In, Literal, LiteralKind, Operator, Predicate
from spark_store.sql import literal

_INSTANT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{9}Z", re.ASCII)
_ANYTHING = "1 = 1"
"""Behind a `WHERE (`, the word `true` would be taken for the name of a column."""

_LARGEST = 2**63 - 1
_COMPARISONS = {
    Operator.EQ: "=",
    Operator.GT: ">",
    Operator.GE: ">=",
    Operator.LT: "<",
    Operator.LE: "<=",
}


@dataclass(frozen=True, slots=True)
class Selection:
    """Events of every entity, or of those that are named here. None: any.

    Revisions `first` to `last`, both inclusive. `since` is inclusive and `until` exclusive, so that selections whose times
    meet have no event in common. `predicate` has its `time:` literals resolved.
    """

    entity: str | None = None
    entity_type: str | None = None
    namespace: str | None = None
    first: int | None = None
    last: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    predicate: Predicate | None = None


def condition(selection: Selection) -> str:
    """What Spark is asked for: every selected event, and those that only the filter would leave out."""
    rules = [
        f"{column} {sign} {literal(value)}"
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
        rules += [f"entity_type = {literal(EntityType.THING.value)}", *implied(selection.predicate)]
    return " AND ".join(f"({rule})" for rule in rules) or _ANYTHING


def implied(predicate: Predicate) -> list[str]:
    """What columns of an event must be like for the filter to match it, as conditions of SQL, of which all hold."""
    match predicate:
        case And(parts):
            return [rule for part in parts for rule in implied(part)]
        case Compare(operator, field, wanted):
            return _compared(operator, field, wanted)
        case In(field, literals):
            column = _text_column(field)
            if column is not None and literals and all(it.kind is LiteralKind.TEXT for it in literals):
                return [f"{column} IN ({', '.join(literal(str(it.value)) for it in literals)})"]
            return []
        case _:
            return []


def _compared(operator: Operator, field: Field, wanted: Literal) -> list[str]:
    column, value = _text_column(field), wanted.value
    if column is not None and operator is Operator.EQ and wanted.kind is LiteralKind.TEXT:
        return [f"{column} = {literal(str(value))}"]
    if field == Field(FieldKind.HIDDEN, ("_revision",)) and wanted.kind is LiteralKind.WHOLE and isinstance(value, int):
        sign = _COMPARISONS.get(operator)
        return [f"revision {sign} {value}"] if sign is not None else []
    if field == Field(FieldKind.INSTANT, ("_modified",)) and wanted.kind is LiteralKind.TEXT:
        return _around(operator, str(value))
    return []


def _text_column(field: Field) -> str | None:
    if field == Field(FieldKind.DOCUMENT, ("thingId",)):
        return "entity"
    return "namespace" if field.kind is FieldKind.NAMESPACE else None


def _around(operator: Operator, instant: str) -> list[str]:
    """An instant with nine digits of the second, and a column that has six: the microsecond in which it lies counts."""
    if _INSTANT.fullmatch(instant) is None:
        return []
    try:
        begin = datetime.fromisoformat(f"{instant[:-4]}+00:00")
        end = begin + timedelta(microseconds=1)
    except (ValueError, OverflowError):
        return []
    at_least = [f"ts >= {literal(begin)}"] if operator in (Operator.GT, Operator.GE, Operator.EQ) else []
    at_most = [f"ts <= {literal(end)}"] if operator in (Operator.LT, Operator.LE, Operator.EQ) else []
    return [*at_least, *at_most]


def selects(selection: Selection, entity_type: str, entity: str, revision: int, timestamp: str) -> bool:
    """The same condition about one event of the journal, whose time is UTC text; the filter is not asked."""
    if selection.predicate is not None and entity_type != EntityType.THING.value:
        return False
    if selection.entity_type not in (None, entity_type) or selection.entity not in (None, entity):
        return False
    if selection.namespace not in (None, namespace_of(entity)):
        return False
    if not (selection.first or 1) <= revision <= (selection.last or _LARGEST):
        return False
    return (selection.since is None or timestamp >= utc_text(selection.since)) and (
        selection.until is None or timestamp < utc_text(selection.until)
    )


def matches(predicate: Predicate, row: Sequence[object]) -> bool:
    """Whether the filter takes an event of a thing: entity, revision, instant, action, path, value (text or None)."""
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
