"""Things and policies as streams: events as messages and back, published messages as commands."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectivity.sessions.streamr.twin_commands import command_of
from mappings.errors import EncodeError
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Command, Event
from mappings.streamr.errors import RequestRejected
from mappings.streamr.requests import Publish
from mappings.streams.entry import StreamEntry, encode_content, entry_of
from tests.support.dice import examples
from tests.support.streamr_frames import FrameRefused, decode_content, twin_event_of
from tests.support.table import each_row

LAMP = EntityId(EntityType.THING, "acme", "lamp-7")
LAMPS = EntityId(EntityType.POLICY, "acme", "lamps")
EVENT = Event(
    LAMP, 7, "2023-11-14T22:13:20.123456Z", "modified", "/attributes/on", b"true", b'{"correlation-id":"c-1"}'
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | TEXT, lambda inner: st.lists(inner, max_size=2))


def content(message: StreamEntry) -> Any:
    return json.loads(decode_content(message.content))


def test_an_event_of_a_thing_is_a_message_of_its_stream() -> None:
    message = entry_of(EVENT, previous=6, ttl=60)
    items = (message.stream, message.partition, message.timestamp, message.ttl, message.offset, message.previous)
    assert items == ("things/acme:lamp-7", 0, 1_700_000_000_123, 60, 7, 6)
    assert content(message) == {
        "topic": "acme/lamp-7/things/twin/events/modified",
        "headers": {"content-type": "application/json", "historical-headers": {"correlation-id": "c-1"}},
        "path": "/attributes/on",
        "value": True,
        "revision": 7,
        "timestamp": "2023-11-14T22:13:20.123456Z",
    }


def test_an_event_of_a_policy_has_no_channel_and_a_deletion_no_value() -> None:
    deleted = Event(LAMPS, 1, "2023-11-14T22:13:20.123456Z", "deleted", "/", None, b"{}")
    message = entry_of(deleted, previous=None)
    assert (message.stream, message.offset, message.previous) == ("policies/acme:lamps", 1, None)
    assert content(message) == {
        "topic": "acme/lamps/policies/events/deleted",
        "headers": {"historical-headers": {}},
        "path": "/",
        "revision": 1,
        "timestamp": "2023-11-14T22:13:20.123456Z",
    }


@settings(max_examples=examples(120), deadline=None)
@given(
    entity=st.sampled_from([LAMP, LAMPS]),
    action=st.sampled_from(["created", "modified", "merged", "deleted"]),
    path=TEXT,
    value=JSON,
    stored=st.dictionaries(TEXT, JSON, max_size=2),
)
def test_an_event_comes_back_as_it_was(
    entity: EntityId, action: str, path: str, value: Any, stored: dict[str, Any]
) -> None:
    raw = None if action == "deleted" else json.dumps(value).encode()
    event = Event(entity, 7, EVENT.timestamp, action, path, raw, json.dumps(stored).encode())
    assert twin_event_of(entry_of(event, previous=None)) == event


def test_an_unknown_event_action_raises_an_encode_error() -> None:
    with pytest.raises(EncodeError, match="'migrated'"):
        entry_of(EVENT._replace(action="migrated"), previous=None)


def _item(**changes: Any) -> str:
    return json.dumps({**content(entry_of(EVENT, previous=None)), **changes})


@each_row(
    ("stream", "text"),
    [
        ("tank", _item()),
        ("things/acme:other", _item()),
        ("policies/acme:lamp-7", _item()),
        ("things/acme:lamp-7", "{nope"),
        ("things/acme:lamp-7", "[]"),
        ("things/acme:lamp-7", "{}"),
        ("things/acme:lamp-7", _item(topic="acme/lamp-7/things/twin/commands/modify")),
        ("things/acme:lamp-7", _item(topic="acme/lamp-7/things/live/events/modified")),
        ("things/acme:lamp-7", _item(topic="x")),
        ("things/acme:lamp-7", _item(revision="7")),
        ("things/acme:lamp-7", _item(path=None)),
        ("things/acme:lamp-7", _item(headers=5)),
    ],
)
def test_a_content_that_is_no_event_of_the_twin_is_refused(stream: str, text: str) -> None:
    with pytest.raises(FrameRefused, match="Not an event of"):
        twin_event_of(StreamEntry(stream, 0, 1, 0, 7, 6, encode_content(text)))


# --- commands -----------------------------------------------------------------------------------------------------------


def _message(**changes: Any) -> str:
    topic = "acme/lamp-7/things/twin/commands/modify"
    return json.dumps({"topic": topic, "headers": {}, "path": "/attributes/on", "value": True, **changes})


def test_a_command_on_the_twin_is_carried_out() -> None:
    found = command_of(Publish("things/acme:lamp-7", _message()), LAMP)
    assert found == Command(LAMP, "modify", "/attributes/on", b"true", {})


@each_row(
    "text",
    [
        "{}",
        "[1,2]",
        "null",
        _message(topic="acme/other/things/twin/commands/modify"),
        _message(topic="acme/lamp-7/policies/commands/modify", path="/entries"),
        _message(topic="acme/lamp-7/things/live/commands/modify"),
        _message(topic="acme/lamp-7/things/twin/events/modified"),
        _message(topic="acme/lamp-7/things/twin/errors"),
        _message(topic="acme/lamp-7/things/twin/streaming/subscribeForPersistedEvents", path="/", value={}),
        _message(path="/nowhere"),
        _message(headers=5),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(RequestRejected) as refused:
        command_of(Publish("things/acme:lamp-7", text), LAMP)
    fault = refused.value.fault
    assert fault.message == "Publish request failed: content is not a Ditto command for things/acme:lamp-7"
    assert (fault.status, refused.value.about.stream) == (400, "things/acme:lamp-7")
    assert fault.description
