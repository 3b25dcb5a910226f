"""Events as elements: objects in JSON, or one number of each in a fixed size."""

from __future__ import annotations

import json
import struct
from typing import Any

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from mappings.reactive_streams_io.elements import EventWriter, packer
from mappings.reactive_streams_io.publisher_names import Projection
from tests.support.table import each_row

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
POLICY = EntityId(EntityType.POLICY, "acme.site", "lamps")
WHEN = "2030-01-15T07:30:00.250000Z"


def test_an_event_is_an_object_without_white_space() -> None:
    write = EventWriter(LAMP)
    value = b'{"a":1.50}'
    assert write(Event(LAMP, 3, WHEN, "modified", '/attributes/"x"', value, b"{}")) == (
        b'{"topic":"acme.site/lamp-7/things/twin/events/modified","path":"/attributes/\\"x\\"","value":{"a":1.50},'
        b'"revision":3,"timestamp":"2030-01-15T07:30:00.250000Z"}'
    )
    gone = json.loads(write(Event(LAMP, 4, WHEN, "deleted", "/", None, b"{}")))
    assert sorted(gone) == ["path", "revision", "timestamp", "topic"]


def test_extra_fields_follow_the_value() -> None:
    event = Event(LAMP, 3, "2030-01-15T07:31:42.250000Z", "deleted", "/attributes/n", None, b"{}")
    found = json.loads(EventWriter(LAMP)(event, b'{"attributes":{"m":1}}'))
    assert list(found) == ["topic", "path", "extra", "revision", "timestamp"]
    assert found["extra"] == {"attributes": {"m": 1}}


def test_a_policys_event_has_a_topic_without_a_channel() -> None:
    event = Event(POLICY, 1, WHEN, "created", "/", b"{}", b"{}")
    assert json.loads(EventWriter(POLICY)(event))["topic"] == "acme.site/lamps/policies/events/created"


@each_row(
    ("pack", "number", "expected"),
    [
        ("i32", -2, struct.pack(">i", -2)),
        ("i32", 2**31 - 1, b"\x7f\xff\xff\xff"),
        ("i32", 2**31, None),
        ("i32", 1.0, None),
        ("i64", -(2**63), b"\x80" + bytes(7)),
        ("i64", 2**63, None),
        ("f32", 1e39, None),
        ("f32", 0.5, b"\x3f\x00\x00\x00"),
        ("f64", 21.5, bytes.fromhex("40 35 80 00 00 00 00 00")),
        ("f64", 2, struct.pack(">d", 2.0)),
        ("f64", 10**400, None),
        ("f64", True, None),
        ("f64", "1", None),
        ("f64", None, None),
    ],
)
def test_a_valid_number_is_packed_and_an_invalid_number_is_omitted(
    pack: str, number: Any, expected: bytes | None
) -> None:
    assert packer(Projection("/x", pack))(number) == expected
