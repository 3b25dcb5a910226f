"""Values of placeholders, and their results for unknown values."""

from __future__ import annotations

import pytest

from mappings.ids import EntityId, EntityType
from mappings.model.topic_path import parse_topic
from mappings.placeholders.values import PLACEHOLDERS, PlaceholderContext, utc_now
from tests.support.table import each_row

EMPTY = PlaceholderContext()


def values(prefix: str, name: str, context: PlaceholderContext) -> tuple[str, ...]:
    reader = PLACEHOLDERS[prefix].reader(name)
    assert reader is not None
    return reader(context)


NAMES = [
    (row.prefix, {"<name>": "x", "<pointer>": "attributes/x"}.get(name, name))
    for row in PLACEHOLDERS.values()
    for name in row.names
]


@each_row(("prefix", "name"), NAMES)
def test_a_placeholder_finds_nothing_where_nothing_is_known(prefix: str, name: str) -> None:
    assert bool(values(prefix, name, EMPTY)) == (prefix == "time")


@each_row("prefix", [row.prefix for row in PLACEHOLDERS.values() if "<name>" not in row.names])
def test_a_placeholder_has_no_other_names(prefix: str) -> None:
    assert PLACEHOLDERS[prefix].reader("" if prefix == "thing-json" else "nope") is None


def test_a_header_needs_a_name() -> None:
    assert PLACEHOLDERS["header"].reader("") is None


@pytest.mark.parametrize("name", ["id", "namespace", "name"])
def test_the_parts_of_an_id_are_no_members_of_a_thing(name: str) -> None:
    assert PLACEHOLDERS["thing-json"].reader(name) is None


@pytest.mark.parametrize(("prefix", "found"), [("entity", True), ("thing", False), ("policy", True)])
def test_a_policy_is_an_entity_and_no_thing(prefix: str, found: bool) -> None:
    context = PlaceholderContext(entity=EntityId(EntityType.POLICY, "acme.site", "pol-7"))
    assert values(prefix, "name", context) == (("pol-7",) if found else ())


def test_an_empty_namespace_is_a_value() -> None:
    assert values("thing", "namespace", PlaceholderContext(entity=EntityId(EntityType.THING, "", "x"))) == ("",)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("full", "acme.site/lamp-7/things/live/messages/ring/loud"),
        ("channel", "live"),
        ("criterion", "messages"),
        ("subject", "ring/loud"),
        ("action-subject", "ring/loud"),
        ("action", None),
    ],
)
def test_a_message_has_a_subject_in_place_of_an_action(name: str, value: str | None) -> None:
    context = PlaceholderContext(topic=parse_topic("acme.site/lamp-7/things/live/messages/ring/loud"))
    assert values("topic", name, context) == ((value,) if value else ())


def test_a_policy_topic_has_no_channel() -> None:
    context = PlaceholderContext(topic=parse_topic("acme.site/pol-7/policies/events/modified"))
    assert values("topic", "channel", context) == ()
    assert values("topic", "group", context) == ("policies",)


def test_an_empty_namespace_is_a_value_of_the_topic_as_of_the_thing() -> None:
    topic = parse_topic("/lamp-7/things/twin/events/modified")
    context = PlaceholderContext(topic=topic, entity=EntityId(EntityType.THING, topic.namespace, topic.name))
    assert values("topic", "namespace", context) == values("thing", "namespace", context) == ("",)


def test_every_feature_and_every_subject_is_a_value() -> None:
    context = PlaceholderContext(feature_ids=("a", "b"), subjects=("x:1", "y:2"))
    assert values("feature", "id", context) == ("a", "b")
    assert values("request", "subjectId", context) == ("x:1", "y:2")


def test_the_whole_thing_can_be_read() -> None:
    assert values("thing-json", "/", PlaceholderContext(thing_json={"a": 1})) == ('{"a":1}',)


def test_the_clock_runs_in_utc() -> None:
    offset = utc_now().utcoffset()
    assert offset is not None
    assert not offset
