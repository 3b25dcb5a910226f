"""Normalized: events of things, shaped like the thing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappings.ids import EntityId, EntityType
from mappings.mappers import load_codec
from mappings.mappers.base import PayloadMapper
from mappings.model.signals import LiveEvent, TwinEvent
from mappings.options import InvalidMapperOptions
from tests.contract.codec import FEW
from tests.contract.payload_mapper import MapperBehaviors, mapper, write
from tools.docs.mappers import example

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=8,
)


class TestNormalized(MapperBehaviors):
    name = "Normalized"


def document(action: str, path: str, value: Any, **options: Any) -> dict[str, Any]:
    event = TwinEvent(LAMP, 7, "2030-01-15T07:30:00Z", action, path, json.dumps(value).encode(), {})
    (envelope,) = write(mapper("Normalized", options), event)
    return dict(json.loads(envelope.payload))


@FEW
@given(value=JSON)
def test_a_changed_value_is_at_its_path_unchanged(value: Any) -> None:
    assert document("modified", "/attributes/a", value)["attributes"]["a"] == value


@FEW
@given(value=JSON)
def test_of_a_merge_neither_nulls_nor_empty_objects_are_left(value: Any) -> None:
    written = document("merged", "/attributes/a", value, includeDeletedFields=True)
    del written["_context"]
    pending = [written]
    while pending:
        for member in pending.pop().values():
            assert member not in (None, {})
            if isinstance(member, dict):
                pending.append(member)


@pytest.mark.parametrize("action", ["modified", "merged"])
def test_numbers_keep_their_text(action: str) -> None:
    event = TwinEvent(
        LAMP, 7, "2030-01-15T07:30:00Z", action, "/attributes", b'{"a":1.50}', {}, b'{"attributes":{"b":2e3}}'
    )
    (envelope,) = write(mapper("Normalized"), event)
    assert b'"attributes":{"b":2e3,"a":1.50}' in envelope.payload


def test_extra_fields_are_merged_in_and_changed_fields_take_precedence() -> None:
    extra = b'{"attributes":{"on":false,"site":"hall"},"features":{"bulb":{}}}'
    event = TwinEvent(LAMP, 7, "2030-01-15T07:30:00Z", "modified", "/attributes/on", b"true", {}, extra)
    (envelope,) = write(mapper("Normalized", {}), event)
    written = json.loads(envelope.payload)
    assert written["attributes"] == {"on": True, "site": "hall"}
    assert written["features"] == {"bulb": {}}


@pytest.mark.parametrize(
    ("path", "name"), [("/", "_deleted"), ("/attributes/on", "_deletedFields")], ids=["the thing", "a part"]
)
def test_extra_fields_are_merged_into_the_message_of_a_deletion(path: str, name: str) -> None:
    event = TwinEvent(LAMP, 7, "2030-01-15T07:30:00Z", "deleted", path, None, {}, b'{"attributes":{"site":"hall"}}')
    (envelope,) = write(mapper("Normalized", {"includeDeletedFields": True}), event)
    written = json.loads(envelope.payload)
    assert written["attributes"] == {"site": "hall"}
    assert name in written


def test_the_documented_mapper_definition_writes_deleted_fields() -> None:
    codec = load_codec("Normalized")
    assert isinstance(codec, PayloadMapper)
    event = TwinEvent(LAMP, 7, "2030-01-15T07:30:00Z", "deleted", "/attributes/on", None, {})
    (envelope,) = write(mapper("Normalized", example("Normalized", codec)["options"]), event)
    assert json.loads(envelope.payload) == {
        "thingId": "acme.site:lamp-7",
        "_deletedFields": {"/attributes/on": "2030-01-15T07:30:00Z"},
        "_revision": 7,
    }


def test_a_live_event_has_no_revision() -> None:
    event = LiveEvent(LAMP, "modified", "/attributes/on", b"true", {})
    (envelope,) = write(mapper("Normalized", {}), event)
    written = json.loads(envelope.payload)
    assert (written["attributes"], written["_revision"], written["_modified"]) == ({"on": True}, None, None)
    (envelope,) = write(mapper("Normalized", {}), LiveEvent(LAMP, "merged", "/attributes/on", b"true", {}))
    assert json.loads(envelope.payload).keys() == {"thingId", "attributes", "_context"}


def test_a_selector_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(InvalidMapperOptions) as caught:
        mapper("Normalized", {"fields": "a(b"})
    assert [problem.steps for problem in caught.value.problems] == [("fields",)]
