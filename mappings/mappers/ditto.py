"""The Ditto protocol: JSON messages about things and policies, and streams of events.

Decoding checks in the order of errors: JSON with the members of a message (`mappings/ditto/document.py`), topic and entity,
types of headers, path, action at that path. Values are checked for subscriptions only; the value of a command stays bytes,
which the service checks later, as it does with a merge's content type. Supported are commands on things and policies of the
twin channel, streaming subscriptions, searches, the live channel of things (`mappings/ditto/live.py`) and acknowledgements
about things. Received errors are ignored, so that two services do not answer each other forever; all other topics are
unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mappings.ditto import errors
from mappings.ditto.document import DittoMessage, add_topic, compact, read_message, read_topic, reject_nul
from mappings.ditto.live import read_acknowledgements, read_live, status_of
from mappings.ditto.messages import MESSAGE, written_message_schema
from mappings.ditto.paths import RESOURCES
from mappings.ditto.subscriptions import HISTORY_COMMANDS, SEARCH_COMMANDS
from mappings.ditto.writer import WRITERS
from mappings.errors import DecodeError
from mappings.ids import EntityId
from mappings.mappers.base import HONO_NOTIFICATIONS, Codec, PayloadMapper, blocklist
from mappings.model.envelope import Envelope
from mappings.model.headers import normalize, readable
from mappings.model.signals import Command, Headers, Inbound, Outbound
from mappings.model.topic_path import TopicPath, unknown_topic


class DittoCodec(PayloadMapper):
    """Messages of the Ditto protocol: JSON objects with `topic`, `headers`, `path` and `value`.

    This is the default mapper. Other payloads get an error response. Outgoing messages have the content type
    `application/vnd.eclipse.ditto+json` and the header `correlation-id`.
    """

    options = (blocklist(*HONO_NOTIFICATIONS),)
    owns_content_type = False
    content_type = MESSAGE

    def message_schema(self) -> Mapping[str, Any]:
        return written_message_schema()

    def decode(self, envelope: Envelope, session: Any) -> Sequence[Inbound]:  # noqa: ARG002
        """Return the signal of a message. Raises DecodeError with the parts that address the response."""
        payload = envelope.utf8()
        try:
            message = read_message(payload)
        except DecodeError as error:
            error.headers = readable(error.headers)
            raise
        try:
            topic, entity = read_topic(message.topic)
            if topic.criterion == "errors":
                return ()
            if payload.find(b"\\u0000") >= 0:
                reject_nul(message)
            headers = normalize(message.headers) if message.headers else {}
            return _signals(message, topic, entity, headers)
        except DecodeError as error:
            add_topic(error, message.topic)
            error.headers = readable(message.headers) if message.headers else {}
            raise

    def encode(self, signal: Outbound, session: Any) -> Sequence[Envelope]:  # noqa: ARG002
        """The messages that say `signal`: one, or one for each element. Raises EncodeError."""
        return WRITERS[type(signal)](signal)


_UNSUPPORTED = frozenset({"migrate", "migrated"})
"""Actions of the Ditto protocol that the service does not have, at any path."""


def _signals(message: DittoMessage, topic: TopicPath, entity: EntityId | None, headers: Headers) -> Sequence[Inbound]:
    if entity is not None and topic.action not in _UNSUPPORTED:
        if topic.criterion == "commands" and topic.channel != "live":
            return (_command(message, topic, entity, headers),)
        if topic.criterion == "streaming" and topic.action in HISTORY_COMMANDS:
            return (HISTORY_COMMANDS[topic.action](message, headers, entity),)
        if topic.criterion == "acks":
            return read_acknowledgements(message, topic, entity, headers)
        if topic.channel == "live":
            return read_live(message, topic, entity, headers)
    elif topic.criterion == "search" and topic.action in SEARCH_COMMANDS:
        return (SEARCH_COMMANDS[topic.action](message, headers),)
    raise unknown_topic(message.topic)


def _command(message: DittoMessage, topic: TopicPath, entity: EntityId, headers: Headers) -> Command:
    place = RESOURCES[entity.type](message.path)
    action = topic.action
    if action is None or action not in place.actions:
        raise unknown_topic(message.topic)
    if message.status is not None and (status := status_of(message.status)) is not None:
        raise DecodeError(errors.looks_like_response(status))
    value = compact(message.value) if message.value else None
    return Command(entity, action, place.path, value, headers, message.fields)


CODEC: Codec = DittoCodec()
