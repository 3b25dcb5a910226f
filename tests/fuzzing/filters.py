"""The parsers of queries: RQL filters, search options, aggregations and cursors."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec

from connectivity.subscriptions.search_requests import CursorCipher
from mappings.model.json_pointer import format_pointer
from spark_store.errors import QueryError
from spark_store.rql import (
    Predicate,
    compile_predicate,
    evaluate,
    fields,
    names_times,
    parse,
    partial_evaluate,
    resolve_times,
    weight,
)
from spark_store.rql.ast import And, Compare, Empty, Exists, Field, FieldKind, In, Literal, LiteralKind, Not, Or
from spark_store.rql.options import MAX_SIZE, MAX_SORTED, bind_sorting, read_options
from spark_store.rql.order import sort_key
from spark_store.rql.projection import needles, reader
from spark_store.rql.search_evaluator import holds, read
from spark_store.search.aggregation import GroupAccumulator, read_aggregation
from tests.fuzzing.target import check_fault, target
from tests.support.paths import VECTORS

NOW = datetime(2030, 1, 15, 7, 30, 42, 250_000, UTC)
_HIDDEN = {"_revision": 3, "_created": "2030-01-15T07:30:00Z", "_modified": "2030-01-15T07:30:00.25Z"}
_VECTORS: list[dict[str, Any]] = msgspec.json.decode((VECTORS / "rql.json").read_bytes())
THINGS: list[dict[str, Any]] = [
    {"thingId": "acme.site:lamp-1", "policyId": "acme:p", **_HIDDEN},
    {
        "thingId": "acme.site:lamp-2",
        "policyId": "acme:p",
        "definition": "acme:lamp:1",
        "attributes": {
            "n": 5,
            "d": 0.5,
            "s": "5",
            "b": True,
            "x": None,
            "e": "",
            "t": "2030-01-15T07:30:00Z",
            "l": [1, "a", [2.0, None], {"n": [5]}],
            "o": {"n": "q\nr", "p": {}},
            "a b": "ä💡",
            "m": list(range(40)),
        },
        "features": {
            "f": {"properties": {"n": 7, "s": "aB"}, "definition": ["a:b:1"]},
            "g": None,
            "h": {"properties": {}},
        },
        "_metadata": {"attributes": {"n": {"unit": "V"}}},
        **_HIDDEN,
    },
    *({"thingId": "a:b", **row["thing"], **_HIDDEN} for row in _VECTORS[::7] if isinstance(row.get("thing"), dict)),
]
_TEXTS = [msgspec.json.encode(thing) for thing in THINGS]
THINGS = [msgspec.json.decode(text) for text in _TEXTS]
"""Decoded from their stored form, so that projections are equal."""


def read_filter(data: bytes) -> None:
    """A text is a predicate or refused; all evaluators agree about it, and its text is parsed the same."""
    text = data.decode("utf-8", "replace")
    _search(text)
    try:
        parsed = parse(text)
    except QueryError as error:
        check_fault(error.fault)
        return
    assert parse(written(parsed)) == parsed
    predicate = resolve_times(parsed, NOW)
    assert names_times(parsed) or predicate == parsed
    assert 1 <= weight(predicate) <= 500
    test = compile_predicate(predicate)
    used = set(fields(predicate))
    for thing in THINGS:
        expected = evaluate(predicate, thing)
        assert test(thing) is expected
        assert partial_evaluate(predicate, thing, lambda _: False) is expected
        assert partial_evaluate(predicate, thing, lambda field: field in used) is None
        assert partial_evaluate(predicate, thing, lambda field: field.path[0] == "attributes") in (None, expected)


def _search(text: str) -> None:
    try:
        predicate = read(text, NOW)
    except QueryError:
        return
    wanted, project = needles(predicate), reader(fields(predicate))
    for thing, stored in zip(THINGS, _TEXTS, strict=True):
        expected = holds(predicate, thing)
        assert holds(predicate, project(stored)) is expected
        assert not expected or all(needle in stored for needle in wanted)


def written(predicate: Predicate) -> str:
    """Return the text of a predicate."""
    match predicate:
        case And(parts) | Or(parts):
            name = "and" if isinstance(predicate, And) else "or"
            return f"{name}({','.join(map(written, parts))})"
        case Not(part):
            return f"not({written(part)})"
        case Exists(field) | Empty(field):
            return f"{type(predicate).__name__.lower()}({_property(field)})"
        case Compare(operator, field, literal):
            return f"{operator.value}({_property(field)},{_literal(literal)})"
        case In(field, literals):
            return f"in({_property(field)},{','.join(map(_literal, literals))})"


def _property(field: Field) -> str:
    name = "namespace" if field.kind is FieldKind.NAMESPACE else format_pointer(field.path)
    return "".join(f"\\u{ord(each):04x}" if each in ',)"\\' else each for each in name)


def _literal(literal: Literal) -> str:
    match literal.kind, literal.value:
        case LiteralKind.TEXT, value:
            return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
        case LiteralKind.DOUBLE, value:
            digits = f"{Decimal(repr(value)):f}"
            return digits if "." in digits else f"{digits}.0"
        case LiteralKind.TIME, value:
            return f"time:{value}"
        case LiteralKind.WHOLE, value:
            return str(value)
        case _:
            return msgspec.json.encode(literal.value).decode()


_cursors = CursorCipher()


def read_search(data: bytes) -> None:
    """Options, cursors and aggregations are read or refused, and the accepted ones can be applied."""
    text = data.decode("utf-8", "replace")
    try:
        options = read_options(text)
    except QueryError:
        pass
    else:
        assert 1 <= options.size <= MAX_SIZE
        assert len(options.order) <= MAX_SORTED + 1
        assert sorted(THINGS, key=lambda thing: sort_key(thing, options.order))
    with contextlib.suppress(QueryError):
        bind_sorting(text)
    with contextlib.suppress(QueryError):
        raise AssertionError(f"{_cursors.open(text, b'')} was never sealed")
    try:
        given = msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return
    try:
        aggregation = read_aggregation(given)
    except QueryError:
        return
    groups = GroupAccumulator(aggregation)
    for thing in THINGS:
        groups.add(thing)


_FILTER_WORDS = (
    *("and(", "or(", "not(", "eq(", "ne(", "gt(", "ge(", "lt(", "le(", "like(", "ilike(", "in(", "exists(", "empty("),
    *("attributes/n", "attributes/l/n", "attributes/o", "features/f/properties/n", "features/*/properties/", "thingId"),
    *(
        "policyId",
        "definition",
        "namespace",
        "_revision",
        "_created",
        "_modified",
        "_metadata/attributes/n/unit",
        "desiredP",
    ),
    *(
        "time:now",
        "-1d[h]",
        "null",
        "true",
        "false",
        "9223372036854775807",
        "0.5",
        '"a*"',
        "'5'",
        '"2030-01-15T07:30:00Z"',
    ),
    *("\\ud83d\\udca1", "\\u0000", "),", ",1,", '"?*a*?"', "2030-01-15T08:30:00.25+01:00"),
)
_AGGREGATION = '{"groupBy":{"n":"attributes/l","m":"attributes/n"},"measures":{"h":{"max":"features/*/properties/n"}}}'

TARGETS = {
    "rql": target(read_filter, [row["filter"] for row in _VECTORS], _FILTER_WORDS),
    "searches": target(
        read_search,
        [
            "size(2)",
            "sort(-attributes/n,+thingId),size(200)",
            "limit(0,25)",
            "cursor(ab)",
            _AGGREGATION,
            "attributes/n",
        ],
        (
            *("size(", "sort(", "+", "-", "limit(", "cursor(", '"groupBy":{"', '"measures":{"', '"min":"', '"sum":"'),
            *('"avg":"', *_FILTER_WORDS[14:30]),
        ),
    ),
}
