"""Random things, filters, sort orders and permissions, for comparisons of search implementations.

All are drawn from the same few keys and values, so that filters often match fields, values of each type meet literals
of each type, and edge cases occur: 64-bit limits, fractions beside whole numbers, empty values, arrays in arrays, keys
that look like paths, wildcards or SQL. The three keys of an example (two from `random_names`) are also values,
literals, parts of patterns and IDs.

`things()` are things as the service stores them, with the fields outside of the document. `filters()` are predicates as
returned by `spark_store.rql.search_evaluator.read`; `texts()` are filters as clients write them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

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
from spark_store.rql.binding import fit
from spark_store.rql.options import order_by
from spark_store.rql.query import SortField
from tests.support.random_names import ANY_NAME

_PLAIN_KEYS = st.sampled_from(["a", "b", "k", "0", "1", "*", "a b", " a", "a.b", "a~b", "k'\"]", "$ä", "['a']", "?"])
_KEYS_OF_AN_EXAMPLE = st.shared(st.tuples(_PLAIN_KEYS, ANY_NAME, ANY_NAME), key="keys of an example")


@st.composite
def _keys(draw: st.DrawFn) -> str:
    return draw(st.sampled_from(draw(_KEYS_OF_AN_EXAMPLE)))


KEYS = _keys()
POLICY_IDS = st.sampled_from(["acme.site:lamp-1", "acme.site:lamp-2", "acme.lab:lamp-1", ":free", "acme.site:Ä 'x'"])
IDS = POLICY_IDS | KEYS.map("acme.site:{}".format)
_SHORT = ["", "a", "A", "ab", "aB", "b", "1", "1.0", "true", "null", "*", "?", "%", "_", "a'b", 'a"b', "a\\b", "--"]
_LETTERS = ["ä", "Ä", "Σ", "ς", "İ", "i", "💡", "\uff21", "a\nb", "\n"]
_LONG = ["x" * 199, "x" * 200, "x" * 201, "x" * 200 + "y", "2030-01-15T07:30:00Z"]
EVERY_TEXT = [*_SHORT, *_LETTERS, *_LONG]
TEXTS = st.sampled_from(EVERY_TEXT) | KEYS
INSTANTS = st.sampled_from(
    [
        "2030-01-15T07:30:00Z",
        "2030-01-15T07:30:00.25Z",
        "2030-01-15T07:30:00.250000001Z",
        "2030-01-15T08:30:00.25+01:00",
    ]
)
EVERY_WHOLE = [0, 1, -1, 2, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]
EVERY_DOUBLE = [0.0, -0.0, 0.5, 1.0, -1.0, 1e300, -1e300, 5e-324, 2.0**53, 2.0**63, -(2.0**63), 0.1]
EVERY_BEYOND = [2**63, 2**64, 2**64 + 1, -(2**63) - 1]
WHOLE, DOUBLES = st.sampled_from(EVERY_WHOLE), st.sampled_from(EVERY_DOUBLE)
NUMBERS = WHOLE | DOUBLES | st.sampled_from(EVERY_BEYOND)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
OBJECTS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=3) | st.dictionaries(KEYS, VALUES, max_size=3)
DEFINITIONS = st.sampled_from(["acme:lamp:1", "acme:lamp:1.0", "acme:fan:2"])


def _members(
    required: Mapping[str, st.SearchStrategy[Any]], **optional: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects with all of the optional members or with some, so that filters often match."""
    return st.fixed_dictionaries({**required, **optional}) | st.fixed_dictionaries({**required}, optional={**optional})


FEATURES = st.dictionaries(
    KEYS,
    _members({}, definition=st.lists(DEFINITIONS, max_size=2), properties=OBJECTS, desiredProperties=OBJECTS)
    | st.sampled_from([{}, None]),
    max_size=3,
)


def things(ids: st.SearchStrategy[str] = IDS) -> st.SearchStrategy[dict[str, Any]]:
    """Return whole things, with the fields outside of the document."""
    return _members(
        {
            "thingId": ids,
            "policyId": POLICY_IDS,
            "_revision": st.integers(1, 3),
            "_created": INSTANTS,
            "_modified": INSTANTS,
        },
        definition=DEFINITIONS | st.none(),
        attributes=OBJECTS,
        features=FEATURES,
        _metadata=st.fixed_dictionaries({}, optional={"attributes": OBJECTS, "features": OBJECTS}),
    )


PATHS = st.lists(KEYS, min_size=1, max_size=1) | st.lists(KEYS, min_size=1, max_size=3)
_FEATURE_PARTS = st.sampled_from(["properties", "desiredProperties"])


def _document(*path: str) -> Field:
    """Return a field whose keys are new strings, like those of a parser, not the document's objects."""
    return Field(FieldKind.DOCUMENT, tuple(key.encode().decode() for key in path))


VALUE_FIELDS: st.SearchStrategy[Field] = st.one_of(
    PATHS.map(lambda path: _document("attributes", *path)),
    st.builds(lambda id, part, path: _document("features", id, part, *path), KEYS, _FEATURE_PARTS, PATHS),
    KEYS.map(lambda id: _document("features", id, "definition")),
    st.builds(lambda part, path: _document("features", "*", part, *path), _FEATURE_PARTS, PATHS),
    st.sampled_from(
        [
            _document("thingId"),
            _document("policyId"),
            _document("definition"),
            _document("features", "*", "definition"),
            Field(FieldKind.NAMESPACE, ("thingId",)),
            Field(FieldKind.HIDDEN, ("_revision",)),
            Field(FieldKind.INSTANT, ("_created",)),
            Field(FieldKind.INSTANT, ("_modified",)),
        ]
    ),
    PATHS.map(lambda path: _document("_metadata", "attributes", *path)),
)
"""Properties that can be compared."""

FIELDS: st.SearchStrategy[Field] = st.one_of(
    VALUE_FIELDS,
    KEYS.map(lambda id: _document("features", id)),
    st.builds(lambda id, part: _document("features", id, part), KEYS, _FEATURE_PARTS),
    st.sampled_from([_document("features", "*"), _document("features", "*", "properties")]),
)
"""Properties for `exists` and `empty`."""

SORTABLE_FIELDS = VALUE_FIELDS.filter(
    lambda field: (
        field.kind is not FieldKind.NAMESPACE
        and field.path[0] != "_metadata"
        and not field.is_in_any_feature
        and field.path[2:] != ("definition",)
    )
)

_LITERAL_TEXTS = st.one_of(TEXTS, INSTANTS, IDS, DEFINITIONS)
LITERALS: st.SearchStrategy[Literal] = st.one_of(
    WHOLE.map(lambda value: Literal(LiteralKind.WHOLE, value)),
    DOUBLES.map(lambda value: Literal(LiteralKind.DOUBLE, value)),
    _LITERAL_TEXTS.map(lambda value: Literal(LiteralKind.TEXT, value)),
    st.booleans().map(lambda value: Literal(LiteralKind.BOOLEAN, value)),
    st.sampled_from([Literal(LiteralKind.NULL, None), Literal(LiteralKind.TIME, "soon")]),
)
PATTERNS = st.one_of(
    _LITERAL_TEXTS,
    st.lists(st.sampled_from(["*", "?", "a", "B", "b", "\n", "ä", "Σ", "%", "_", "acme"]) | KEYS, max_size=4).map(
        "".join
    ),
).map(lambda value: Literal(LiteralKind.TEXT, value))
COMPARISONS = st.sampled_from([Operator.EQ, Operator.NE, Operator.GT, Operator.GE, Operator.LT, Operator.LE])
LIKES = st.sampled_from([Operator.LIKE, Operator.ILIKE])


def _compared(operator: Operator, field: Field, literal: Literal) -> Compare:
    return Compare(operator, field, fit(field, literal))


LEAVES: st.SearchStrategy[Predicate] = st.one_of(
    st.builds(_compared, COMPARISONS, VALUE_FIELDS, LITERALS),
    st.builds(_compared, LIKES, VALUE_FIELDS, PATTERNS),
    st.builds(
        lambda field, literals: In(field, tuple(fit(field, literal) for literal in literals)),
        VALUE_FIELDS,
        st.lists(LITERALS, min_size=1, max_size=4),
    ),
    st.builds(Exists, FIELDS),
    st.builds(Empty, FIELDS),
)


def filters(max_leaves: int = 4) -> st.SearchStrategy[Predicate]:
    """Return predicates of at most `max_leaves` comparisons."""
    return st.recursive(
        LEAVES,
        lambda inner: st.one_of(
            st.builds(Not, inner),
            st.builds(And, st.lists(inner, min_size=1, max_size=3).map(tuple)),
            st.builds(Or, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        ),
        max_leaves=max_leaves,
    )


def orders(max_size: int = 2) -> st.SearchStrategy[tuple[SortField, ...]]:
    """Return orders of at most `max_size` properties, which end with the ID."""
    return st.lists(st.builds(SortField, SORTABLE_FIELDS, st.booleans()), max_size=max_size).map(
        lambda wanted: order_by(tuple(wanted))
    )


def rights() -> st.SearchStrategy[Callable[[Sequence[str]], bool]]:
    """Return functions that decide whether a path is readable: its nearest grant or revoke applies."""
    places = st.sampled_from(
        [("attributes",), ("features",), ("definition",), ("policyId",), ("_revision",), ("_modified",), ("_metadata",)]
    )
    deeper = st.one_of(
        st.builds(lambda key: ("attributes", key), KEYS),
        st.builds(lambda id: ("features", id), KEYS),
        st.builds(lambda id, part, key: ("features", id, part, key), KEYS, _FEATURE_PARTS, KEYS),
    )
    return st.builds(_may, st.booleans(), st.dictionaries(places | deeper, st.booleans(), max_size=6))


def _may(granted_at_the_root: bool, decided: Mapping[tuple[str, ...], bool]) -> Callable[[Sequence[str]], bool]:
    def may(path: Sequence[str]) -> bool:
        place = tuple(path)
        while place:
            if place in decided:
                return decided[place]
            place = place[:-1]
        return granted_at_the_root

    return may


# -- the text of a filter


def written(predicate: Predicate) -> str:
    """Return the text of a filter without instants and times."""
    match predicate:
        case And(parts):
            return f"and({','.join(map(written, parts))})"
        case Or(parts):
            return f"or({','.join(map(written, parts))})"
        case Not(part):
            return f"not({written(part)})"
        case Compare(operator, field, literal):
            return f"{operator.value}({_property(field)},{_literal(literal)})"
        case In(field, literals):
            return f"in({_property(field)},{','.join(map(_literal, literals))})"
        case Exists(field):
            return f"exists({_property(field)})"
        case Empty(field):
            return f"empty({_property(field)})"


def _property(field: Field) -> str:
    if field.kind is FieldKind.NAMESPACE:
        return "namespace"
    return (
        escaped("/".join(key.replace("~", "~0") for key in field.path)).replace(",", "\\u002c").replace(")", "\\u0029")
    )


def _literal(literal: Literal) -> str:
    match literal.kind:
        case LiteralKind.TEXT:
            return f'"{escaped(str(literal.value))}"'
        case LiteralKind.TIME:
            return f"time:{literal.value}"
        case LiteralKind.DOUBLE:
            return f"{literal.value:.400f}" if abs(float(literal.value or 0)) < 1 else f"{literal.value:f}"
        case LiteralKind.NULL | LiteralKind.BOOLEAN:
            return str(literal.value).lower().replace("none", "null")
        case LiteralKind.WHOLE:
            return str(literal.value)


def escaped(text: str) -> str:
    """Return a text with the escapes of a property or a string literal."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
