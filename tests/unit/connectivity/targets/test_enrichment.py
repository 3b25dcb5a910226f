"""Extra fields: selectors with placeholders, and their effect on the fields of a filter."""

from __future__ import annotations

from typing import Any

import pytest

from connectivity.targets.enrichment import ExtraFields, covers
from mappings.model.field_selector import InvalidSelector, select
from mappings.placeholders.template import PlaceholderContext, PlaceholderError
from spark_store import rql
from tests.support.table import each_row

THING: dict[str, Any] = {
    "thingId": "acme.site:lamp-7",
    "attributes": {"site": {"hall": "N", "row": 4}, "serial": "L-7"},
    "features": {"a": {"properties": {"t": 1, "u": 2}}, "b": {"properties": {"u": 3}}, "c": {"definition": ["x:y:1"]}},
}


def extra(text: str, *features: str) -> dict[str, Any]:
    context = PlaceholderContext(feature_ids=features, headers={"wanted": "serial"})
    return dict(select(THING, ExtraFields(text).selection(lambda: context)))


@each_row(
    ("text", "features", "found"),
    [
        ("attributes(site/hall,serial)", (), {"attributes": {"site": {"hall": "N"}, "serial": "L-7"}}),
        ("/attributes/serial", (), {"attributes": {"serial": "L-7"}}),
        ("attributes/none,thingId", (), {"thingId": "acme.site:lamp-7"}),
        (
            "features/*/properties/u",
            (),
            {"features": {"a": {"properties": {"u": 2}}, "b": {"properties": {"u": 3}}}},
        ),
        ("features/{{ feature:id }}/properties/t", ("a",), {"features": {"a": {"properties": {"t": 1}}}}),
        ("features/{{feature:id}}/definition", ("a", "c"), {"features": {"c": {"definition": ["x:y:1"]}}}),
        ("features/{{ feature:id }}/properties/t", (), {}),
        ("features({{ feature:id }}/properties(t,u)),thingId", (), {"thingId": "acme.site:lamp-7"}),
        ("attributes/{{ header:wanted }}", (), {"attributes": {"serial": "L-7"}}),
        ("attributes/{{ header:none | fn:default('serial') }}", (), {"attributes": {"serial": "L-7"}}),
        (
            "attributes({{ header:none | fn:default('a,(b') }},serial)",
            (),
            {"attributes": {"serial": "L-7"}},
        ),
        ("_metadata/attributes,_context", (), {}),
    ],
)
def test_a_selector_returns_the_selected_fields(text: str, features: tuple[str, ...], found: dict[str, Any]) -> None:
    assert extra(text, *features) == found


@pytest.mark.parametrize("text", ["", "attributes(", "attributes/a,", "attributes)", ","])
def test_a_text_that_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(InvalidSelector):
        ExtraFields(text)


def test_a_placeholder_that_does_not_exist_is_refused() -> None:
    with pytest.raises(PlaceholderError):
        ExtraFields("features/{{ feature:name }}")


@each_row(
    ("text", "filter", "is_covered"),
    [
        ("attributes/site", "exists(attributes/site)", True),
        ("attributes/site", "exists(attributes/site/hall)", True),
        ("attributes/site/hall", "exists(attributes/site)", True),
        ("attributes/site/hall", "exists(attributes/site/row)", False),
        ("attributes/site", "exists(attributes/sites)", False),
        ("attributes", "exists(attributes/site/hall)", True),
        ("features/*/properties/t", "exists(features/a/properties/t)", True),
        ("features/*/properties/t", "exists(features/a/properties/u)", False),
        ("features/*/properties/t,features/a/properties/u", "exists(features/a/properties/t)", True),
        ("features/a/properties/u,features/*/definition", "exists(features/a/properties/t)", False),
        ("_metadata/features/*/properties/t", "exists(_metadata/features/a/properties/t/unit)", True),
        ("_metadata/features/*/properties/t", "exists(_metadata/features/a/properties/u/unit)", False),
        ("_metadata/attributes/*", "exists(_metadata/attributes/a/unit)", False),
        ("features/{{ feature:id }}/properties", "exists(features/a/properties/u)", True),
        ("features/{{ feature:id }}/properties", "exists(features/b/properties/u)", False),
        ("attributes", "eq(topic:action,'created')", False),
        ("_revision", "gt(_revision,1)", True),
        ("attributes", "gt(_revision,1)", False),
    ],
)
def test_which_fields_of_a_filter_are_open_until_the_extra_fields_are_known(
    text: str, filter: str, is_covered: bool
) -> None:
    selection = ExtraFields(text).selection(lambda: PlaceholderContext(feature_ids=("a",)))
    (field,) = rql.fields(rql.parse(filter, lambda name: name.startswith("topic:")))
    assert covers(selection, field) is is_covered
