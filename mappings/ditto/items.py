"""The elements of a history, many at a time: each event becomes one `next` message (Ditto protocol, next and its item).

This is where most of what the service says is written, so everything that the events of one batch share is written once:
the topics, the reply's headers, the subscription's id, the headers of the subscribe that every item repeats. What is left
for each event is one join of bytes; its value and its stored headers are JSON already and are taken as they are. All
envelopes of a batch share one mapping of transport headers.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from mappings.ditto.wire import JSON, MERGE_PATCH, cannot_say, json_bytes, transport_headers
from mappings.envelope import Envelope
from mappings.headers import echoed
from mappings.ids import EntityId
from mappings.metadata import without_changes
from mappings.signals import Next
from mappings.topic import entity_topic, topic_of

CONTENT_TYPES: dict[str, str | None] = {
    "created": JSON,
    "modified": JSON,
    "merged": MERGE_PATCH,
    "deleted": None,
}
"""Action of an event → the content type of its value; None where it has no value."""

_OWN_OF_ITEM = frozenset({"content-type", "entity-revision", "historical-headers"})
"""Headers that an item has of its own, whatever the subscribe said."""

_encode = msgspec.json.Encoder().encode


class _Frame(NamedTuple):
    """What is written around the parts of an event, by its action."""

    to_stored_headers: bytes
    to_path: bytes
    has_value: bool


def next_envelopes(signal: Next) -> list[Envelope]:
    """One envelope for each event, in order. Raises EncodeError without an entity, and for an unknown action."""
    if signal.entity is None:
        raise cannot_say("elements of a history without the id of their entity")
    around = _Around(signal)
    frames: dict[str, _Frame] = {}
    headers = transport_headers(signal.headers)
    encode, join = _encode, b"".join
    envelopes = []
    for _, revision, timestamp, action, path, value, stored in signal.elements:
        if (frame := frames.get(action)) is None:
            frame = frames[action] = around.frame(signal.entity, action)
        head, middle, has_value = frame
        number = encode(revision)
        start = (head, without_changes(stored), b',"entity-revision":', number, middle, encode(path))
        end = (b',"revision":', number, b',"timestamp":"', timestamp.encode(), b'"}}}')
        if has_value and value is not None:
            payload = join((*start, b',"value":', value, *end))
        else:
            payload = join((*start, *end))
        envelopes.append(Envelope(payload, headers))
    return envelopes


class _Around:
    """What all messages of one batch have in common."""

    def __init__(self, signal: Next) -> None:
        reply = {**echoed(signal.headers), "content-type": JSON}
        self._opened = b'{"topic":%b,"headers":%b,"path":"/","value":{"subscriptionId":%b,"item":{"topic":' % (
            json_bytes(str(topic_of(signal))),
            json_bytes(reply),
            json_bytes(signal.key),
        )
        repeated = {name: value for name, value in echoed(signal.subscribed).items() if name not in _OWN_OF_ITEM}
        self._headers = b',"headers":' + json_bytes(repeated)[:-1] + (b"," if repeated else b"")

    def frame(self, entity: EntityId, action: str) -> _Frame:
        """The frame for events with this action. Raises EncodeError for an action that no event has."""
        if action not in CONTENT_TYPES:
            raise cannot_say(f"an event with the action '{action}'")
        topic = json_bytes(str(entity_topic(entity, entity.type.group, "events", action)))
        content_type = CONTENT_TYPES[action]
        declared = b',"content-type":%b' % json_bytes(content_type) if content_type is not None else b""
        return _Frame(
            self._opened + topic + self._headers + b'"historical-headers":',
            declared + b'},"path":',
            content_type is not None,
        )
