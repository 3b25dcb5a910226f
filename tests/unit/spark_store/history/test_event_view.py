"""The view of a filter on an event, and on a whole thing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.errors import StoreError
from spark_store.history.event_view import partial_thing, whole_thing
from spark_store.records import Snapshot
from tests.support.table import each_row

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
TIME = "2030-01-15T07:30:00.250000Z"
IDS = {"thingId": "acme.site:lamp-7", "_revision": 4, "_modified": TIME}


def event(action: str, path: str, value: bytes | None = None) -> Event:
    return Event(LAMP, 4, TIME, action, path, value, b"{}")


@each_row(
    ("action", "path", "value", "expected"),
    [
        (
            "created",
            "/",
            b'{"thingId":"acme.site:lamp-7","policyId":"acme.site:pol-7","attributes":{"counter":0}}',
            {"policyId": "acme.site:pol-7", "attributes": {"counter": 0}},
        ),
        ("modified", "/", b'{"attributes":{"x":null}}', {"attributes": {"x": None}}),
        ("created", "/attributes", b'{"a":1}', {"attributes": {"a": 1}}),
        ("modified", "/attributes/counter", b"3", {"attributes": {"counter": 3}}),
        ("modified", "/attributes/x", b"null", {"attributes": {"x": None}}),
        ("modified", "/features/lamp/properties/on", b"true", {"features": {"lamp": {"properties": {"on": True}}}}),
        ("modified", "/attributes/tags/0", b'"a"', {"attributes": {"tags": {"0": "a"}}}),
        ("modified", "/attributes/a~0b", b"1", {"attributes": {"a~b": 1}}),
        ("modified", "/policyId", b'"acme.site:pol-8"', {"policyId": "acme.site:pol-8"}),
        ("modified", "/definition", b"null", {"definition": None}),
        ("modified", "/attributes/n", b"9223372036854775807", {"attributes": {"n": 2**63 - 1}}),
        ("merged", "/attributes", b'{"a":1,"b":null}', {"attributes": {"a": 1}}),
        ("merged", "/attributes", b'{"a":{"b":null,"c":[null]}}', {"attributes": {"a": {"c": [None]}}}),
        ("merged", "/attributes", b'{"{{ ~2029-.*~ }}":null,"b":2}', {"attributes": {"b": 2}}),
        ("merged", "/attributes/x", b"null", {}),
        ("merged", "/attributes/x", b"7", {"attributes": {"x": 7}}),
        ("merged", "/", b'{"definition":null,"attributes":{"a":1}}', {"attributes": {"a": 1}}),
        ("deleted", "/attributes/counter", None, {}),
        ("deleted", "/features/lamp", None, {}),
        ("deleted", "/", None, {}),
    ],
)
def test_an_event_view_has_the_ids_and_the_changed_values(
    action: str, path: str, value: bytes | None, expected: dict[str, Any]
) -> None:
    assert partial_thing(event(action, path, value)) == {**IDS, **expected}


def test_the_fields_of_the_event_win_over_those_of_its_value() -> None:
    partial = partial_thing(event("created", "/", b'{"thingId":"acme.site:other","_revision":99,"_modified":"never"}'))
    assert partial == IDS


def test_a_value_that_is_no_json_is_an_error_of_the_store_that_names_the_event() -> None:
    with pytest.raises(StoreError, match=r"acme\.site:lamp-7 at revision 4") as caught:
        partial_thing(event("modified", "/attributes/x", b"{"))
    assert isinstance(caught.value.__cause__, msgspec.DecodeError)


def test_a_whole_thing_has_the_fields_beside_it_and_leaves_the_state_alone() -> None:
    state = {"thingId": "acme.site:lamp-7", "attributes": {"counter": 3}}
    snapshot = Snapshot(LAMP, 4, "2030-01-15T07:00:00.000000Z", TIME, state, "acme.site:pol-7")
    assert whole_thing(snapshot) == {**IDS, **state, "_created": "2030-01-15T07:00:00.000000Z"}
    assert "_revision" not in state
