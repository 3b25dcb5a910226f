"""CloudEvents: messages of the Ditto protocol inside events."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest

from mappings.errors import DecodeError
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event, Next, SubscriptionKind
from tests.contract.payload_mapper import MapperBehaviors, mapper, read, write

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")


class TestCloudEvents(MapperBehaviors):
    name = "CloudEvents"
    headers: ClassVar = {
        "content-type": "application/vnd.eclipse.ditto+json",
        "ce-specversion": "1.0",
        "ce-type": "t",
        "ce-source": "s",
        "ce-id": "e-1",
    }


def test_an_error_knows_the_id_of_its_event_and_the_entity_of_its_message() -> None:
    data = {"topic": "acme.site/lamp-7/things/twin/commands/modify", "path": "/nowhere", "headers": {"site": "hall"}}
    event = {"specversion": "1.0", "type": "t", "source": "s", "id": "e-1", "data": data}
    with pytest.raises(DecodeError) as caught:
        read(mapper("CloudEvents"), json.dumps(event).encode(), {"content-type": "application/cloudevents+json"})
    assert (caught.value.entity, caught.value.headers) == (LAMP, {"correlation-id": "e-1", "site": "hall"})


def test_each_element_of_a_history_is_an_event() -> None:
    elements = [
        Event(LAMP, number, "2030-01-15T07:30:00Z", "modified", "/attributes/n", b"1", b"{}") for number in (1, 2)
    ]
    envelopes = write(
        mapper("CloudEvents"), Next(SubscriptionKind.HISTORY, "s-1", LAMP, {"correlation-id": "c-1"}, elements, {})
    )
    events = [json.loads(envelope.payload) for envelope in envelopes]
    assert [event["data"]["value"]["item"]["revision"] for event in events] == [1, 2]
    assert {event["id"] for event in events} == {"c-1"}
