"""Encodes the elements of subscriptions in bulk (Ditto protocol, next and its item).

Most output of the service is encoded here, so everything common to the events of a batch is encoded once: topics, headers of
the reply, the subscription's ID, headers of the subscribe that every item repeats. For each event, one join of bytes is
left; its value and stored headers are JSON already. All envelopes of a batch share their transport headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from mappings.errors import EncodeError, Fault
from mappings.ids import EntityId
from mappings.json_values import encode_value
from mappings.model.envelope import Envelope
from mappings.model.headers import subscription_headers
from mappings.model.metadata import METADATA_KEY, without_changes
from mappings.model.signals import Headers, Next, SubscriptionKind
from mappings.model.topic_path import entity_topic, topic_of

MESSAGE = "application/vnd.eclipse.ditto+json"
"""The content type of a whole message."""

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"


def json_bytes(value: Any) -> bytes:
    """Return the value as JSON. Raises EncodeError if JSON cannot express it."""
    try:
        return encode_value(value)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise not_expressible(f"a value cannot be written as JSON: {error}") from error


def not_expressible(why: str) -> EncodeError:
    return EncodeError(Fault(500, "internalerror", f"The Ditto protocol cannot express this message: {why}."))


def transport_headers(headers: Headers) -> Mapping[str, str]:
    """The headers beside a message, for a signal with these headers."""
    correlation_id = headers.get("correlation-id")
    if correlation_id is None:
        return {"content-type": MESSAGE}
    return {"content-type": MESSAGE, "correlation-id": str(correlation_id)}


class WrittenMessage(msgspec.Struct, omit_defaults=True):
    """The members of a message in the usual order; those without a value are left out."""

    topic: Annotated[str, Meta(description="Namespace and name of the entity, group, channel, criterion and action.")]
    headers: Annotated[Headers, Meta(description="Headers of the signal, such as `correlation-id`.")]
    path: Annotated[str, Meta(description="JSON pointer of the part that the message is about; `/`: the whole entity.")]
    value: Annotated[object, Meta(description="The value of a command or an event, or the result of a response.")] = (
        None
    )
    extra: Annotated[msgspec.Raw | None, Meta(description="Selected fields of the thing that an event is about.")] = (
        None
    )
    status: Annotated[int | None, Meta(description="The status of a response, as of HTTP.")] = None
    revision: Annotated[int | None, Meta(description="The revision of the entity.")] = None
    timestamp: Annotated[str | None, Meta(description="The time of a change, in ISO 8601.")] = None
    fields: Annotated[str | None, Meta(description="Selector of the fields to retrieve.")] = None


def written_message_schema() -> dict[str, Any]:
    """Return the JSON Schema of a message; requests may leave out the headers."""
    schema: dict[str, Any] = msgspec.json.schema(WrittenMessage, schema_hook=lambda _kind: {})["$defs"][
        "WrittenMessage"
    ]
    return schema | {"title": "A message of the Ditto protocol", "required": ["topic", "path"]}


CONTENT_TYPES: dict[str, str | None] = {"created": JSON, "modified": JSON, "merged": MERGE_PATCH, "deleted": None}
"""Action of an event → the content type of its value; None if it has no value."""

_DECLARED = {
    action: b',"content-type":%b' % encode_value(content_type) if content_type is not None else b""
    for action, content_type in CONTENT_TYPES.items()
}
"""The content type of an event, as JSON."""

_ITEM_HEADERS = frozenset({"content-type", "entity-revision", "historical-headers"})
"""Headers that an item has of its own, whatever the subscribe had."""


class _Frame(NamedTuple):
    """The JSON around the parts of an event, by its action."""

    to_stored_headers: bytes
    to_path: bytes
    has_value: bool


def next_envelopes(signal: Next) -> list[Envelope]:
    """Return one envelope for each event or page, in order.

    Raises EncodeError for a history without an entity, and for an unknown action.
    """
    if signal.kind is SubscriptionKind.SEARCH:
        return _page_envelopes(signal)
    if signal.entity is None:
        raise not_expressible("elements of a history without the id of their entity")
    frames: dict[str, _Frame] = {}
    headers = transport_headers(signal.headers)
    encode, join = encode_value, b"".join
    envelopes = []
    for _, revision, timestamp, action, path, value, stored in signal.elements:
        if (frame := frames.get(action)) is None:
            frame = frames[action] = _frame(signal, signal.entity, action)
        head, middle, has_value = frame
        number = encode(revision)
        # The function repeats this check, but most events have no metadata, and a call costs more.
        shown = without_changes(stored) if METADATA_KEY in stored else stored
        start = (head, shown, b',"entity-revision":', number, middle, encode(path))
        end = (b',"revision":', number, b',"timestamp":"', timestamp.encode(), b'"}}}')
        if has_value and value is not None:
            payload = join((*start, b',"value":', value, *end))
        else:
            payload = join((*start, *end))
        envelopes.append(Envelope(payload, headers))
    return envelopes


def _frame(signal: Next, entity: EntityId, action: str) -> _Frame:
    """Return the frame for events with this action. Raises EncodeError for an action that no event has."""
    if action not in CONTENT_TYPES:
        raise not_expressible(f"an event with the action '{action}'")
    topic = encode_value(entity_topic(entity, entity.type.group, "events", action).full)
    repeated = {
        name: value for name, value in subscription_headers(signal.subscribed).items() if name not in _ITEM_HEADERS
    }
    headers = b',"headers":' + json_bytes(repeated)[:-1] + (b"," if repeated else b"")
    return _Frame(
        _opened(signal, b"item") + b'{"topic":' + topic + headers + b'"historical-headers":',
        _DECLARED[action] + b'},"path":',
        CONTENT_TYPES[action] is not None,
    )


def _page_envelopes(signal: Next) -> list[Envelope]:
    start = _opened(signal, b"items")
    headers = transport_headers(signal.headers)
    return [Envelope(b"%b%b}}" % (start, page), headers) for page in signal.elements]


def _opened(signal: Next, member: bytes) -> bytes:
    """Return the beginning of a message of a subscription, up to the member with its elements."""
    headers = {**subscription_headers(signal.headers), "content-type": JSON}
    whole = json_bytes(WrittenMessage(topic_of(signal).full, headers, "/", {"subscriptionId": signal.key}))
    return b'%b,"%b":' % (whole[:-2], member)
