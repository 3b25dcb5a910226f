"""Filters of searches as Spark sees them: columns over the lake's states, for a question that is put to all of it at once.

`decided` says of each row what `search.holds` says for somebody who may read everything: true or false, or null where a
column cannot say it and `holds` has to be asked. That is so where an array lies on the way to a field, for patterns with
wildcards in their midst, for `ilike` on letters beyond ASCII, and for states that are no JSON. `candidates` is for somebody
whose rights are not known here: true wherever a thing may match, whatever he may read, so `holds` has to be asked for each.

What a client wrote goes into literals of a column, never into the text of a statement. Keys of a document are looked up as
values too, but for those of letters, digits and few other signs, which a path names.

No search goes this way at present. One of the past judges all things in the workers that fold them
(`spark_store.recalling`): to leave out in Java those that did not change and cannot match took no less of the processor
(docs/performance.md). All of this is held to the reference nevertheless, for whoever asks the lake what needs no folding.

The columns are those of Spark Connect, which is how the lake is asked. Importing this file loads it, which takes a moment.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from pyspark.sql import Column
from pyspark.sql.connect import functions as sql

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
from spark_store.rql.foresee import fields
from spark_store.rql.wildcards import fold

_DAY, _HOUR, _MINUTE, _SECOND = 86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000
"""In microseconds."""

MAX_SEGMENTS = 16
"""How long a path may be that columns look for; longer ones are left to `holds`."""

MAX_ODD_KEYS = 3
"""How many of its keys may be such that no path of Spark's can name them."""

MAX_COMPARISONS = 64
"""How many comparisons a filter may have that columns make; Spark takes its time to understand so many."""

MAX_LEVELS = 12
"""How many joins by `and` and `or`, of two each, may contain each other: messages of Spark Connect have at most 100 levels,
and a comparison takes some of them."""

_VARIANT, _ARRAY, _OBJECT = "variant", "array<variant>", "map<string,variant>"
_PLAIN_KEY = re.compile(r"[\w:@-]+", re.ASCII)
_WILDCARDS = re.compile(r"[*?]")

_ORDERING: Mapping[Operator, Callable[[Any, Any], Column]] = {
    Operator.GT: operator.gt,
    Operator.GE: operator.ge,
    Operator.LT: operator.lt,
    Operator.LE: operator.le,
}


@dataclass(frozen=True, slots=True)
class Columns:
    """Where a row has what belongs to a thing.

    `document` is a variant (`try_parse_json` of a state) or null, `created` and `modified` are texts in fixed width.
    """

    thing_id: Column
    document: Column
    revision: Column
    created: Column
    modified: Column


def decided(predicate: Predicate, columns: Columns) -> Column:
    """Whether a thing matches for somebody who may read everything; null where `holds` has to be asked."""
    made = _Filter(columns)
    return made.decided(predicate) if _is_short(predicate) else made.unknown


def candidates(predicate: Predicate, columns: Columns) -> Column:
    """Whether a thing may match for somebody, whatever he may read of it. Never null."""
    made = _Filter(columns)
    return made.candidates(predicate) if _is_short(predicate) else made.true


def of_states(decide: Callable[[Columns], Column]) -> Column:
    """What `decide` makes of the rows of a table of states (`entity`, `state`, `revision`, `created`, `modified`).

    Each state is parsed once, however often the column asks for the document.
    """

    def of(document: Column) -> Column:
        return decide(
            Columns(
                sql.col("entity"),
                document,
                sql.col("revision"),
                instant(sql.col("created")),
                instant(sql.col("modified")),
            )
        )

    return sql.element_at(sql.transform(sql.array(sql.try_parse_json("state")), of), 1)


def instant(timestamp: Column) -> Column:
    """A timestamp as the fixed-width text that `bind` compares with, whatever the session's time zone."""
    micros = sql.unix_micros(timestamp)
    rest = sql.pmod(micros, sql.lit(_DAY))
    day = sql.date_from_unix_date(((micros - rest) / _DAY).cast("int")).cast("string")
    clock = [
        sql.floor(sql.pmod(rest, sql.lit(above)) / unit)
        for above, unit in ((_DAY, _HOUR), (_HOUR, _MINUTE), (_MINUTE, _SECOND))
    ]
    text = sql.format_string("%sT%02d:%02d:%02d.%06d000Z", day, *clock, sql.pmod(rest, sql.lit(_SECOND)))
    return sql.when(timestamp.isNotNull(), text)


class _Filter:
    """Predicates as columns over the same rows."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.true, self.false = sql.lit(True), sql.lit(False)
        self.unknown = sql.lit(None).cast("boolean")

    def decided(self, predicate: Predicate, is_negated: bool = False, level: int = 0) -> Column:
        """The predicate, or its opposite. A `not` is moved down to the comparisons, so that it takes no level."""
        match predicate:
            case And(parts) | Or(parts):
                inner = _level_within(level, parts)
                if inner > MAX_LEVELS:
                    return self.unknown
                found = [self.decided(part, is_negated, inner) for part in parts]
                return _all(found) if isinstance(predicate, And) is not is_negated else _any(found)
            case Not(part):
                return self.decided(part, not is_negated, level)
            case _:
                return ~self.leaf(predicate) if is_negated else self.leaf(predicate)

    def candidates(self, predicate: Predicate, is_negated: bool = False, level: int = 0) -> Column:
        match predicate:
            case And(parts) | Or(parts):
                inner = _level_within(level, parts)
                if inner > MAX_LEVELS:
                    return self.true
                found = [self.candidates(part, is_negated, inner) for part in parts]
                return _all(found) if isinstance(predicate, And) is not is_negated else _any(found)
            case Not(part):
                return self.candidates(part, not is_negated, level)
            case _:
                # A field that may not be read makes its predicate false, so its opposite may hold for any thing.
                return self.true if is_negated else sql.coalesce(self.leaf(predicate), self.true)

    def leaf(self, predicate: Compare | In | Exists | Empty) -> Column:
        field = predicate.field
        if field.is_in_any_feature:
            return self.in_any_feature(predicate)
        known = self.known(field)
        if known is not None:
            return self.test(predicate, known.cast(_VARIANT))
        return self.at(self.columns.document, field.path, predicate)

    def known(self, field: Field) -> Column | None:
        """The column that has the field; None for one of the document."""
        columns = self.columns
        if field.kind is FieldKind.NAMESPACE:
            return sql.substring_index(columns.thing_id, ":", 1)
        match field.path:
            case ("thingId",):
                return columns.thing_id
            case ("_revision",):
                return columns.revision
            case ("_created",):
                return columns.created
            case ("_modified",):
                return columns.modified
            case _:
                return None

    def in_any_feature(self, predicate: Compare | In | Exists | Empty) -> Column:
        features = sql.try_variant_get(self.columns.document, "$.features", _OBJECT)
        path = predicate.field.path[2:]
        some = sql.exists(sql.map_values(features), lambda feature: self.at(feature, path, predicate))
        without = self.true if isinstance(predicate, Empty) and not path else self.false
        decided = sql.when(features.isNull() | (sql.size(features) == 0), without).otherwise(some)
        return sql.when(self.columns.document.isNull(), self.unknown).otherwise(decided)

    def at(self, document: Column, path: Sequence[str], predicate: Compare | In | Exists | Empty) -> Column:
        """The predicate on what lies in a variant at the end of a path; unknown where an array is on the way."""
        odd = sum(_PLAIN_KEY.fullmatch(key) is None for key in path)
        if len(path) > MAX_SEGMENTS or odd > MAX_ODD_KEYS:
            return self.unknown
        value = self.get(document, path)
        ways = [sql.try_variant_get(self.get(document, path[:end]), "$", _ARRAY) for end in range(len(path))]
        is_astray = value.isNull() & (document.isNull() | _any([w.isNotNull() for w in ways]))
        return sql.when(is_astray, self.unknown).otherwise(self.test(predicate, value))

    def get(self, document: Column, path: Sequence[str]) -> Column:
        """The variant at the end of a path; null where there is none, or an array on the way."""
        plain: list[str] = []
        for key in path:
            if _PLAIN_KEY.fullmatch(key):
                plain.append(f"['{key}']")
                continue
            members = sql.try_variant_get(document, "$" + "".join(plain), _OBJECT)
            document, plain = sql.try_element_at(members, sql.lit(key)), []
        if not plain:
            return document
        return sql.try_variant_get(document, "$" + "".join(plain), _VARIANT)

    # -- a predicate on one value

    def test(self, predicate: Compare | In | Exists | Empty, value: Column) -> Column:
        """The predicate on a variant, which is null where there is none."""
        match predicate:
            case Exists():
                return value.isNotNull()
            case Empty():
                return value.isNull() | self.any(value, self.is_empty_form) | self.is_empty_form(value)
            case Compare(Operator.NE, _, literal):
                return value.isNotNull() & ~self.any(value, lambda one: self.equals(one, [literal]))
            case Compare(Operator.EQ, _, literal):
                return self.any(value, lambda one: self.equals(one, [literal]))
            case In(_, literals):
                return self.any(value, lambda one: self.equals(one, literals))
            case Compare(Operator.LIKE | Operator.ILIKE as operator, _, literal):
                return self.any(value, lambda one: self.is_like(one, str(literal.value), operator))
            case Compare(operator, _, literal):
                return self.any(value, lambda one: self.is_ordered(one, operator, literal))

    def any(self, value: Column, holds: Callable[[Column], Column]) -> Column:
        """Whether it holds for the value, or for an element of the array that it is. `holds` is false for an array."""
        elements = sql.try_variant_get(value, "$", _ARRAY)
        return sql.when(elements.isNull(), holds(value)).otherwise(sql.exists(elements, holds))

    def typed(self, value: Column, type: str, kind: str, holds: Callable[[Column], Column]) -> Column:
        """Whether it holds for a value of this type (as Spark names a variant's), got as `kind`; false for any other."""
        got = sql.try_variant_get(value, "$", kind)
        return sql.when(sql.schema_of_variant(value) == type, holds(got)).otherwise(self.false)

    def is_empty_form(self, value: Column) -> Column:
        type = sql.schema_of_variant(value)
        elements = sql.try_variant_get(value, "$", _ARRAY)
        is_empty = type.isin("VOID", "OBJECT<>") | self.typed(value, "STRING", "string", lambda text: text == "")
        return sql.coalesce(sql.when(elements.isNotNull(), sql.size(elements) == 0).otherwise(is_empty), self.false)

    def equals(self, value: Column, literals: Sequence[Literal]) -> Column:
        """Whether the value, which is no array, is equal to one of the literals."""
        kinds = {literal.kind for literal in literals}
        tests: list[Column] = []
        if LiteralKind.NULL in kinds:
            tests.append(sql.coalesce(sql.schema_of_variant(value) == "VOID", self.false))
        for kind, type, name in ((LiteralKind.TEXT, "STRING", "string"), (LiteralKind.BOOLEAN, "BOOLEAN", "boolean")):
            wanted = [sql.lit(literal.value) for literal in literals if literal.kind is kind]
            if wanted:
                tests.append(self.typed(value, type, name, partial(_is_one_of, wanted)))
        if kinds & {LiteralKind.WHOLE, LiteralKind.DOUBLE}:
            tests.append(self.equals_number(value, [each.value for each in literals if _is_number(each)]))
        return _any(tests)

    def equals_number(self, value: Column, numbers: Sequence[Any]) -> Column:
        whole = sorted({int(number) for number in numbers if number == math.floor(number) and _is_long(number)})
        # Zero is compared by itself: a list of doubles may know two of them.
        doubles = sorted({float(number) for number in numbers if number and _is_exactly_double(number)})

        def is_equal(double: Column) -> Column:
            is_known = double.isin([sql.lit(number) for number in doubles]) if doubles else self.false
            return is_known | (double == 0.0) if 0 in numbers else is_known

        return self.number(
            value,
            lambda long: long.isin([sql.lit(number).cast("long") for number in whole]) if whole else self.false,
            is_equal,
        )

    def is_ordered(self, value: Column, operator: Operator, literal: Literal) -> Column:
        compare, wanted = _ORDERING[operator], sql.lit(literal.value)
        match literal.kind:
            case LiteralKind.TEXT:
                return self.typed(value, "STRING", "string", lambda text: compare(text, wanted))
            case LiteralKind.BOOLEAN:
                return self.typed(value, "BOOLEAN", "boolean", lambda truth: compare(truth, wanted))
            case LiteralKind.WHOLE | LiteralKind.DOUBLE:
                number: Any = literal.value
                return self.number(
                    value,
                    lambda long: self.against_long(long, operator, number),
                    lambda double: self.against_double(double, operator, number),
                )
            case _:
                return self.false

    def number(
        self, value: Column, of_long: Callable[[Column], Column], of_double: Callable[[Column], Column]
    ) -> Column:
        """What is said of a whole number within 64 bits, or of any other number as a double; false for no number."""
        type = sql.schema_of_variant(value)
        long = sql.try_variant_get(value, "$", "long")
        double = sql.try_variant_get(value, "$", "double")
        is_double = (type == "DOUBLE") | (type == "FLOAT") | type.startswith("DECIMAL")
        return sql.when(type == "BIGINT", of_long(long)).when(is_double, of_double(double)).otherwise(self.false)

    def against_long(self, long: Column, operator: Operator, wanted: float) -> Column:
        """A whole number against any number, exactly: against the next whole number, where it is a fraction."""
        if not _is_long(wanted):
            return sql.lit((operator in (Operator.LT, Operator.LE)) is (wanted > 0))
        down = operator in (Operator.GT, Operator.LE)
        bound = sql.lit(math.floor(wanted) if down else math.ceil(wanted)).cast("long")
        return _ORDERING[operator](long, bound)

    def against_double(self, double: Column, operator: Operator, wanted: float) -> Column:
        """A double against any number, exactly: no double is between a whole number and the doubles beside it."""
        nearest = float(wanted)
        if nearest != wanted:
            is_greater = operator in (Operator.GT, Operator.GE)
            inner = nearest > wanted if is_greater else nearest < wanted
            bound = nearest if inner else math.nextafter(nearest, math.inf if is_greater else -math.inf)
            return double >= sql.lit(bound) if is_greater else double <= sql.lit(bound)
        return _ORDERING[operator](double, sql.lit(nearest))

    def is_like(self, value: Column, pattern: str, operator: Operator) -> Column:
        if operator is Operator.LIKE:
            return self.typed(value, "STRING", "string", lambda text: self.covers(text, pattern))

        def holds(text: Column) -> Column:
            is_ascii = sql.octet_length(text) == sql.char_length(text)
            covered = self.covers(sql.lower(text), fold(pattern))
            return sql.when(is_ascii, covered).otherwise(self.unknown)

        return self.typed(value, "STRING", "string", holds)

    def covers(self, text: Column, pattern: str) -> Column:
        """Exactly, where stars are at the ends of the pattern only; otherwise false, or unknown."""
        begins, ends, core = pattern.startswith("*"), pattern.endswith("*"), pattern.strip("*")
        lit = sql.lit
        if not _WILDCARDS.search(core):
            if begins and ends:
                return sql.contains(text, lit(core))
            if begins:
                return sql.endswith(text, lit(core))
            return sql.startswith(text, lit(core)) if ends else text == lit(core)
        first, *_, last = parts = _WILDCARDS.split(core)
        needed = [sql.contains(text, lit(part)) for part in dict.fromkeys(parts) if part]
        if not begins:
            needed.append(sql.startswith(text, lit(first)))
        if not ends:
            needed.append(sql.endswith(text, lit(last)))
        return sql.when(_all(needed), self.unknown).otherwise(self.false)


def _is_short(predicate: Predicate) -> bool:
    return len(list(islice(fields(predicate), MAX_COMPARISONS + 1))) <= MAX_COMPARISONS


def _level_within(level: int, parts: Sequence[Predicate]) -> int:
    """The level of the parts of a join: as many of them as there are, by twos."""
    return level + (len(parts) - 1).bit_length()


def _all(parts: Sequence[Column]) -> Column:
    return _joined(operator.and_, parts) if parts else sql.lit(True)


def _any(parts: Sequence[Column]) -> Column:
    return _joined(operator.or_, parts) if parts else sql.lit(False)


def _joined(join: Callable[[Column, Column], Column], parts: Sequence[Column]) -> Column:
    """The parts joined by twos, so that sixty-four of them are six levels deep."""
    found = list(parts)
    while len(found) > 1:
        pairs = [join(one, other) for one, other in zip(found[::2], found[1::2], strict=False)]
        found = pairs + found[len(pairs) * 2 :]
    return found[0]


def _is_one_of(wanted: Sequence[Column], value: Column) -> Column:
    return value.isin(list(wanted))


def _is_number(literal: Literal) -> bool:
    return literal.kind in (LiteralKind.WHOLE, LiteralKind.DOUBLE)


def _is_long(number: float) -> bool:
    return -(2**63) <= number < 2**63


def _is_exactly_double(number: float) -> bool:
    return float(number) == number
