"""Normalized: events of things as plain JSON, shaped like the thing itself.

For consumers that do not know the Ditto protocol: for each event, the changed part of the thing at its place, with revision
and time, and the message's other members under `_context`. Other signals are ignored. It converts the Ditto protocol's
message of the event, so extra fields are included. Ditto connections, payload mapping.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mappings.ditto.messages import JSON, json_bytes
from mappings.json_values import decode_value
from mappings.mappers.base import Answers, Codec, PayloadMapper, blocklist
from mappings.mappers.ditto import CODEC as DITTO
from mappings.model.envelope import Envelope
from mappings.model.field_selector import FieldSelection, merge_objects, select
from mappings.model.json_pointer import Segments, format_pointer, parse_pointer, put
from mappings.model.signals import Inbound, Outbound
from mappings.model.topic_path import TopicPath, topic_of
from mappings.options import Option, flag, selection

_HEADERS = {"content-type": JSON}
_CONTEXT = ("topic", "path", "value", "fields", "headers")


class NormalizedCodec(PayloadMapper):
    """Events of things as plain JSON, shaped like the thing.

    A message has the changed values at their place in the thing, with `thingId`, `_modified` and `_revision`. The rest of
    the event is under `_context`. Live events have neither revision nor time: `_revision` and `_modified` are null, and
    absent if the event is a merge. The message of a deleted thing has `_deleted` in place of values. The mapper merges
    extra fields into the message, also into that of a deletion, and leaves out members that a merge deletes. The mapper
    writes no other signals (responses, messages, subscriptions), and reads no deliveries.
    """

    options = (
        Option(
            "fields",
            selection,
            "The members to write, as a field selector. All other members are left out, including `_deletedFields`.",
            "thingId,attributes(site),_revision,_deletedFields",
        ),
        Option(
            "includeDeletedFields",
            flag,
            "Whether events that delete a part are written too: `_deletedFields` has path and time of each deletion.",
            True,
            False,
        ),
        blocklist(),
    )
    answers = Answers.NONE
    reads_empty = True

    def use(self, options: Mapping[str, Any]) -> None:
        self._fields: FieldSelection | None = options.get("fields")
        self._shows_deleted = bool(options.get("includeDeletedFields"))

    def decode(self, envelope: Envelope, session: Any) -> Sequence[Inbound]:  # noqa: ARG002
        return ()

    def encode(self, signal: Outbound, session: Any) -> Sequence[Envelope]:  # noqa: ARG002
        topic = topic_of(signal)
        if topic.group != "things" or topic.criterion != "events":
            return ()
        written = [self._normalize(topic, decode_value(envelope.payload)) for envelope in DITTO.encode(signal, None)]
        return [Envelope(json_bytes(document), _HEADERS) for document in written if document]

    def _normalize(self, topic: TopicPath, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the document of an event's message; empty if there is none."""
        place = parse_pointer(message["path"])
        if topic.action == "deleted" and place and not self._shows_deleted:
            return {}
        is_merge = topic.action == "merged"
        time = message.get("timestamp")
        extra = message.get("extra")
        own = {"thingId": f"{topic.namespace}:{topic.name}"}
        document = merge_objects(own, extra if isinstance(extra, Mapping) else {})
        if topic.action == "deleted":
            document |= {"_deletedFields": {format_pointer(place): time}} if place else {"_deleted": time}
        else:
            document = merge_objects(document, _at(place, message))
            if is_merge and self._shows_deleted:
                gone = {format_pointer(path): time for path in _deleted_paths(place, message.get("value"))}
                document |= {"_deletedFields": gone} if gone else {}
        document |= {"_modified": time, "_revision": message.get("revision")}
        document["_context"] = {name: message[name] for name in _CONTEXT if name in message}
        if self._fields is not None:
            document = select(document, self._fields)
        return _without_nulls(document) if is_merge else document


def _at(place: Segments, message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The value of an event at its place in the thing."""
    thing = put({}, place, message.get("value"))
    return thing if isinstance(thing, Mapping) else {}


def _deleted_paths(place: Segments, value: Any) -> Iterator[Segments]:
    """The places that a merge takes away."""
    if value is None:
        yield place
    elif isinstance(value, Mapping):
        for name, member in value.items():
            yield from _deleted_paths((*place, name), member)


def _without_nulls(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a merge without nulls and empty objects; the context stays unchanged."""
    return {
        name: _full(value) if name != "_context" else value for name, value in document.items() if not _is_gap(value)
    }


def _full(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: _full(member) for name, member in value.items() if not _is_gap(member)}


def _is_gap(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and all(_is_gap(member) for member in value.values()))


CODEC: Codec = NormalizedCodec()
