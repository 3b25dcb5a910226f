"""The values of placeholders: one row of `PLACEHOLDERS` for each prefix.

`PlaceholderContext` has everything that may be read: the transport message before mapping, the signal after it. Unknown
values are empty, and a placeholder without value is unresolved, never an error. Unknown names are found when a template is
parsed. Ditto connections, placeholders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec

from mappings.errors import DecodeError
from mappings.ids import EntityId, EntityType
from mappings.model.json_pointer import MISSING, get, parse_pointer
from mappings.model.topic_path import TopicPath
from mappings.placeholders.resolution import texts
from mappings.placeholders.time import NAMES as TIME_NAMES
from mappings.placeholders.time import parse_time


def utc_now() -> datetime:
    return datetime.now(UTC)


class PlaceholderContext(msgspec.Struct, frozen=True):
    """Everything that placeholders may read at one place.

    `headers` are those of the transport message on the way in and those of the signal on the way out, as JSON values.
    `resource_path` begins with a slash; `thing_json` is a parsed JSON object; `subjects` are authorization subjects;
    `source_address` is the concrete address that a message arrived on; `now` is the clock.
    """

    headers: Mapping[str, object] = {}
    entity: EntityId | None = None
    topic: TopicPath | None = None
    resource_path: str | None = None
    resource_type: str | None = None
    feature_ids: tuple[str, ...] = ()
    thing_json: Mapping[str, Any] | None = None
    connection_id: str | None = None
    subjects: tuple[str, ...] = ()
    source_address: str | None = None
    now: Callable[[], datetime] = utc_now


Reader: TypeAlias = Callable[[PlaceholderContext], tuple[str, ...]]
"""The values of one placeholder, in order; empty if there are none."""


class Placeholder(NamedTuple):
    """One prefix: its names (as documented), and how to read one.

    `reader` returns None for an unknown name.
    """

    prefix: str
    names: tuple[str, ...]
    meaning: str
    reader: Callable[[str], Reader | None]


def _header(name: str) -> Reader | None:
    if not name:
        return None
    lowered = name.lower()

    def read(context: PlaceholderContext) -> tuple[str, ...]:
        headers = context.headers
        value = headers.get(name)
        if value is None:
            value = headers.get(lowered)
            if value is None:
                value = next((headers[key] for key in headers if key.lower() == lowered), None)
        return (value,) if isinstance(value, str) else texts(value)

    return read


_ENTITY_PARTS = ("id", "namespace", "name")


def _entity(*types: EntityType) -> Callable[[str], Reader | None]:
    """A reader for parts of the entity's id, where the entity is of one of these types."""

    def reader(name: str) -> Reader | None:
        if name not in _ENTITY_PARTS:
            return None
        part: Callable[[EntityId], str] = attrgetter(name)

        def read(context: PlaceholderContext) -> tuple[str, ...]:
            entity = context.entity
            return (part(entity),) if entity is not None and entity.type in types else ()

        return read

    return reader


def _thing_json(pointer: str) -> Reader | None:
    if not pointer or pointer in _ENTITY_PARTS:
        return None
    try:
        segments = parse_pointer(pointer)
    except DecodeError:
        return None

    def read(context: PlaceholderContext) -> tuple[str, ...]:
        value = get(context.thing_json, segments)
        return () if value is MISSING else texts(value)

    return read


def _feature(name: str) -> Reader | None:
    return _FEATURE_ID if name == "id" else None


_FEATURE_ID: Reader = attrgetter("feature_ids")


_TOPIC_PARTS: dict[str, Callable[[TopicPath], str | None]] = {
    "full": str,
    "namespace": attrgetter("namespace"),
    "entityName": attrgetter("name"),
    "group": attrgetter("group"),
    "channel": attrgetter("channel"),
    "criterion": attrgetter("criterion"),
    "action": attrgetter("action"),
    "subject": attrgetter("subject"),
    "action-subject": lambda topic: topic.subject or topic.action,
}


def _topic(name: str) -> Reader | None:
    part = _TOPIC_PARTS.get(name)
    if part is None:
        return None

    def read(context: PlaceholderContext) -> tuple[str, ...]:
        value = part(context.topic) if context.topic is not None else None
        return (value,) if value is not None else ()

    return read


def _one_of(**attributes: str) -> Callable[[str], Reader | None]:
    """A reader for plain attributes of the context, by their names in expressions."""

    def reader(name: str) -> Reader | None:
        if name not in attributes:
            return None
        attribute: Callable[[PlaceholderContext], str | None] = attrgetter(attributes[name])

        def read(context: PlaceholderContext) -> tuple[str, ...]:
            value = attribute(context)
            return (value,) if value is not None else ()

        return read

    return reader


def _time(name: str) -> Reader | None:
    write = parse_time(name)
    if write is None:
        return None

    def read(context: PlaceholderContext) -> tuple[str, ...]:
        try:
            return (write(context.now()),)
        except (OverflowError, ValueError):
            return ()  # beyond the years of the calendar there is no such time

    return read


def _request(name: str) -> Reader | None:
    return _SUBJECTS if name == "subjectId" else None


_SUBJECTS: Reader = attrgetter("subjects")

PLACEHOLDERS: dict[str, Placeholder] = {
    row.prefix: row
    for row in (
        Placeholder(
            "header",
            ("<name>",),
            "A header, in upper or lower case: of the transport message (inbound) or of the signal (outbound). The array of "
            "`requested-acks` gives several values; the service converts arrays in custom headers to text.",
            _header,
        ),
        Placeholder(
            "entity", _ENTITY_PARTS, "The thing or policy of the signal.", _entity(EntityType.THING, EntityType.POLICY)
        ),
        Placeholder(
            "thing",
            _ENTITY_PARTS,
            "The thing of the signal; no value if the signal belongs to a policy.",
            _entity(EntityType.THING),
        ),
        Placeholder(
            "policy",
            _ENTITY_PARTS,
            "The policy of the signal; no value if the signal belongs to a thing.",
            _entity(EntityType.POLICY),
        ),
        Placeholder(
            "thing-json",
            ("<pointer>",),
            "A value of the thing, from the event and its extra fields, such as `attributes/serial`. An array gives "
            "several values.",
            _thing_json,
        ),
        Placeholder("feature", ("id",), "The ID of every feature that the signal concerns.", _feature),
        Placeholder(
            "topic",
            tuple(_TOPIC_PARTS),
            "A part of the topic path. `action-subject` is the subject, or the action if there is no subject.",
            _topic,
        ),
        Placeholder(
            "resource",
            ("type", "path"),
            "The part of the entity that the signal concerns, such as `/attributes/speed`; no value in header mappings of "
            "sources.",
            _one_of(type="resource_type", path="resource_path"),
        ),
        Placeholder(
            "time",
            TIME_NAMES,
            "The current time, in ISO-8601 or in milliseconds since 1970; `now-2h` is two hours ago, `now-2h[h]` the "
            "beginning of that hour. Units: `ms s m h d w mo y`.",
            _time,
        ),
        Placeholder(
            "request",
            ("subjectId",),
            "Every authorization subject of the message; in targets and reply-targets only the first subject of the sender.",
            _request,
        ),
        Placeholder("connection", ("id",), "The ID of the connection.", _one_of(id="connection_id")),
        Placeholder(
            "source",
            ("address",),
            "The concrete address that a message arrived on. In reply-targets it has a value only with the mappers Streamr "
            "and ReactiveStreamsIO; with others, map it to a header of the source and use this header.",
            _one_of(address="source_address"),
        ),
    )
}
"""Every placeholder by its prefix, in the order of the documentation."""
