"""The elements of a history, each as a message of its own."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.ditto.messages import next_envelopes
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event, Next, SubscriptionKind
from tests.support.dice import examples

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | TEXT, lambda inner: st.lists(inner, max_size=2))
ENTITIES = st.builds(EntityId, st.sampled_from(EntityType), TEXT, TEXT)


@settings(max_examples=examples(120), deadline=None)
@given(
    entity=ENTITIES,
    key=TEXT,
    custom=st.dictionaries(TEXT.map("x-{}".format), TEXT, max_size=2),
    action=st.sampled_from(["created", "modified", "merged", "deleted"]),
    path=TEXT,
    value=JSON,
    stored=st.dictionaries(TEXT, JSON, max_size=2),
)
def test_an_item_represents_its_event_for_any_text(
    entity: EntityId, key: str, custom: dict[str, str], action: str, path: str, value: Any, stored: dict[str, Any]
) -> None:
    raw = None if action == "deleted" else json.dumps(value).encode()
    event = Event(entity, 7, "2030-01-15T07:30:00.250000Z", action, path, raw, json.dumps(stored).encode())
    signal = Next(SubscriptionKind.HISTORY, key, entity, {"correlation-id": "r", **custom}, [event, event], custom)
    first, second = next_envelopes(signal)
    assert first == second
    message = json.loads(first.payload)
    item = message["value"]["item"]
    assert message["headers"] == {"correlation-id": "r", **custom, "content-type": "application/json"}
    assert message["value"]["subscriptionId"] == key
    assert item["topic"].startswith(f"{entity.namespace}/{entity.name}/{entity.type.group}/")
    assert item["topic"].endswith(f"/events/{action}")
    assert (item["path"], item["revision"], item["timestamp"]) == (path, 7, event.timestamp)
    assert item["headers"]["historical-headers"] == stored
    assert item["headers"]["entity-revision"] == 7
    assert {name: item["headers"][name] for name in custom} == custom
    assert ("value" in item) == ("content-type" in item["headers"]) == (action != "deleted")
    assert item.get("value") == (None if action == "deleted" else value)


def test_a_batch_keeps_its_order() -> None:
    lamp = EntityId(EntityType.THING, "acme.site", "lamp-7")
    actions = ["created", "modified", "deleted", "merged", "modified"]
    events = [
        Event(lamp, revision, "2030-01-15T07:30:00.250000Z", action, "/", b"{}", b"{}")
        for revision, action in enumerate(actions, 1)
    ]
    messages = [
        json.loads(found.payload) for found in next_envelopes(Next(SubscriptionKind.HISTORY, "k", lamp, {}, events, {}))
    ]
    items = [message["value"]["item"] for message in messages]
    assert [item["revision"] for item in items] == [1, 2, 3, 4, 5]
    assert [item["topic"].rpartition("/")[2] for item in items] == actions


def test_headers_of_the_subscribe_do_not_override_headers_of_items() -> None:
    lamp = EntityId(EntityType.THING, "acme.site", "lamp-7")
    event = Event(lamp, 1, "2030-01-15T07:30:00.250000Z", "deleted", "/", None, b"{}")
    claimed = {"content-type": "text/plain", "entity-revision": 99, "historical-headers": {"a": 1}}
    (envelope,) = next_envelopes(Next(SubscriptionKind.HISTORY, "k", lamp, {}, [event], claimed))
    headers = json.loads(envelope.payload)["value"]["item"]["headers"]
    assert headers == {"historical-headers": {}, "entity-revision": 1}


def test_a_deletion_is_written_without_the_value_that_it_may_have() -> None:
    lamp = EntityId(EntityType.THING, "acme.site", "lamp-7")
    event = Event(lamp, 1, "2030-01-15T07:30:00.250000Z", "deleted", "/", b"{}", b"{}")
    (envelope,) = next_envelopes(Next(SubscriptionKind.HISTORY, "k", lamp, {}, [event], {}))
    assert "value" not in json.loads(envelope.payload)["value"]["item"]
