"""Which entity a topic is about."""

from __future__ import annotations

import pytest

from mappings.ditto.document import add_topic, read_topic
from mappings.errors import DecodeError, Fault, UnknownTopic
from mappings.ids import EntityId, EntityType
from tests.support.table import each_row


@each_row(
    ("text", "entity"),
    [
        ("a.b/lamp/things/twin/commands/modify", EntityId(EntityType.THING, "a.b", "lamp")),
        ("a.b/rules/policies/errors", EntityId(EntityType.POLICY, "a.b", "rules")),
        ("/lamp/things/twin/errors", EntityId(EntityType.THING, "", "lamp")),
        ("a.b/_/things/twin/commands/retrieve", EntityId(EntityType.THING, "a.b", "_")),
        ("_/_/things/twin/commands/retrieve", EntityId(EntityType.THING, "_", "_")),
        ("_/_/policies/commands/checkPermissions", EntityId(EntityType.POLICY, "_", "_")),
        ("_/_/things/twin/search/request", None),
        ("!/?/things/twin/search/request", None),
        ("_/_/things/twin/errors", None),
    ],
)
def test_a_topic_names_its_entity(text: str, entity: EntityId | None) -> None:
    assert read_topic(text).entity == entity
    assert str(read_topic(text).topic) == text


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("_/_/things/twin/commands/modify", "things:id.invalid"),
        ("_/_/policies/commands/retrieve", "policies:id.invalid"),
        ("_/lamp/things/twin/commands/retrieve", "things:id.invalid"),
        ("a.7/lamp/things/twin/commands/modify", "things:id.invalid"),
        (f"a/{'b' * 255}/things/twin/commands/modify", "things:id.invalid"),
        (f"a/{'b' * 999}/policies/commands/modify", "policies:id.invalid"),
    ],
)
def test_a_topic_with_an_invalid_id_is_refused(text: str, error: str) -> None:
    with pytest.raises(DecodeError) as caught:
        read_topic(text)
    assert caught.value.fault.error == error
    assert caught.value.fault.extra["href"].startswith("https://")
    assert len(caught.value.fault.message) < 300


def test_connections_are_no_entities() -> None:
    with pytest.raises(UnknownTopic):
        read_topic("_/c/connections/commands/retrieve")


def test_an_answer_learns_as_much_as_can_be_understood() -> None:
    lamp = EntityId(EntityType.THING, "a", "lamp")
    for topic, expected in (
        ("a/lamp/things/twin/commands/modify", (lamp, "things", "twin")),
        ("a/lamp/things/live/messages/ring", (lamp, "things", "live")),
        ("a/lamp/things/live/streaming/request", (lamp, "things", "twin")),
        ("a.7/rules/policies/commands/modify", (None, "policies", "twin")),
        ("hello", (None, "things", "twin")),
    ):
        error = DecodeError(Fault(400, "json.invalid", ""))
        add_topic(error, topic)
        assert (error.entity, error.group, error.channel) == expected
