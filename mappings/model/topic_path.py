"""Topic paths of the Ditto protocol: the entity and the kind of a message.

    acme.site/lamp-7/things/twin/commands/modify
    acme.site/pol-7/policies/streaming/request          policies have no channel
    _/_/things/twin/search/subscribe                    `_` stands for "none"

`parse_topic` accepts all topics of the Ditto protocol; the codec decides which are supported. Segments after the action
of a streaming or search topic are ignored; subjects and labels contain all the rest. `topic_of` returns the topic of a
signal.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import NamedTuple

from mappings.errors import Fault, UnknownTopic
from mappings.ids import EntityId, EntityType, group_of, parse_entity_id
from mappings.model.signals import (
    Acknowledgement,
    Acknowledgements,
    Cancel,
    Command,
    Complete,
    ConnectionAnnouncement,
    Created,
    ErrorResponse,
    Failed,
    Inbound,
    LiveCommand,
    LiveEvent,
    LiveResponse,
    Message,
    MessageResponse,
    Next,
    Outbound,
    PolicyAnnouncement,
    Request,
    Response,
    SessionMessage,
    Subscribe,
    SubscriptionKind,
    TwinEvent,
)
from mappings.text_cache import cached_if_short
from mappings.texts import shorten

NONE = "_"
"""The namespace or name of a topic without an entity."""

CACHED_TOPICS = 4096

UNKNOWN = "unknown"
"""The namespace and name in an error response without known entity."""

MISMATCH = "Check if the topic path is correct."
"""The error description for known parts in an unknown combination."""


_GROUPS = frozenset({"things", "policies", "connections"})
_CHANNELS = frozenset({"twin", "live", "none"})
_SUBJECT_CRITERIA = frozenset({"messages", "acks", "announcements"})
_ACTIONS: dict[str, tuple[str, str, frozenset[str]]] = {
    "commands": (
        "action",
        "Action",
        frozenset({"create", "retrieve", "modify", "merge", "delete", "migrate", "checkPermissions"}),
    ),
    "events": ("action", "Action", frozenset({"created", "modified", "merged", "deleted", "migrated"})),
    "streaming": (
        "search action",
        "Streaming action",
        frozenset({"subscribeForPersistedEvents", "request", "cancel", "created", "next", "complete", "failed"}),
    ),
    "search": (
        "search action",
        "Search action",
        frozenset({"subscribe", "request", "cancel", "created", "next", "complete", "failed"}),
    ),
}
"""Criterion → error codes for a missing and for an unknown action; the actions."""

_CRITERIA = frozenset({*_ACTIONS, *_SUBJECT_CRITERIA, "errors"})
_COMBINATIONS = frozenset(
    {
        *(
            ("things", "twin", criterion)
            for criterion in ("commands", "events", "errors", "acks", "search", "streaming")
        ),
        *(("things", "live", criterion) for criterion in ("commands", "events", "errors", "acks", "messages")),
        *(
            ("policies", None, criterion)
            for criterion in ("commands", "events", "errors", "acks", "announcements", "streaming")
        ),
        *(("connections", None, criterion) for criterion in ("commands", "events", "errors", "announcements")),
        ("things", "none", "streaming"),
    }
)
"""Group, channel and criterion that belong together."""


class _Parts(NamedTuple):
    namespace: str
    name: str
    group: str
    channel: str | None
    criterion: str
    action: str | None = None
    subject: str | None = None


class TopicPath(_Parts):
    """The parts of a topic path; None for missing parts. `str(topic)` is the whole path."""

    @property
    def entity_type(self) -> EntityType:
        return _entity_type(self.group)

    @cached_property
    def full(self) -> str:
        return "/".join([part for part in self if part is not None])

    def __str__(self) -> str:
        return self.full


def _entity_type(group: str) -> EntityType:
    return EntityType.POLICY if group == "policies" else EntityType.THING


def unknown_topic(
    text: str, description: str = MISMATCH, *, entity: EntityId | None = None, group: str = "things"
) -> UnknownTopic:
    """The error for a topic path that nothing can be done with."""
    message = f"The topic path '{shorten(text)}' is not supported."
    return UnknownTopic(
        Fault(400, "protocoladapter:unknown.topicpath", message, description), entity=entity, group=group
    )


@cached_if_short(CACHED_TOPICS)
def parse_topic(text: str) -> TopicPath:
    """Parse a topic path.

    An empty namespace is valid (`/lamp-7/things/…`); from any other empty segment on, the rest is one part. Results are
    cached. Raises UnknownTopic with a description of the missing or unknown part; if only the combination is wrong, the
    error has the entity.
    """
    segments = _Segments(text)
    namespace = segments.take("namespace")
    name = segments.take("entity name")
    group = segments.take("group")
    if group not in _GROUPS:
        raise unknown_topic(text, f"Group name <{shorten(group)}> is unknown.")
    channel: str | None = None
    if group == "things":
        channel = segments.take("channel")
        if channel not in _CHANNELS:
            raise unknown_topic(text, f"Channel name <{shorten(channel)}> is unknown.")
    criterion = segments.take("criterion")
    if criterion not in _CRITERIA:
        raise unknown_topic(text, f"Criterion name <{shorten(criterion)}> is unknown.")
    action = subject = None
    if criterion in _ACTIONS:
        missing, unknown, known = _ACTIONS[criterion]
        action = segments.take(missing)
        if action not in known:
            raise unknown_topic(text, f"{unknown} name <{shorten(action)}> is unknown.")
    elif criterion in _SUBJECT_CRITERIA:
        subject = segments.rest() or None
    if (group, channel, criterion) not in _COMBINATIONS:
        type = _entity_type(group)
        entity = parse_entity_id(type, f"{namespace}:{name}") if group != "connections" else None
        raise unknown_topic(text, entity=entity, group=type.group)
    return TopicPath(namespace, name, group, channel, criterion, action, subject)


class _Segments:
    """The segments of a topic path, taken one after the other."""

    def __init__(self, text: str) -> None:
        self._text = text
        double = text.find("//")
        body = text if double < 0 else text[:double]
        self._left = [segment for segment in body.split("/") if segment]
        if double >= 0:
            self._left.append(text[double + 1 :])
        if text.startswith("/"):
            self._left.insert(0, "")
        self._left.reverse()

    def take(self, part: str) -> str:
        if not self._left:
            raise unknown_topic(self._text, f"The topic path has no {part} part.")
        return self._left.pop()

    def rest(self) -> str:
        return "/".join(reversed(self._left))


_SUBSCRIPTION_ACTIONS = {
    Request: "request",
    Cancel: "cancel",
    Created: "created",
    Next: "next",
    Complete: "complete",
    Failed: "failed",
}


@lru_cache(CACHED_TOPICS)
def entity_topic(
    entity: EntityId | None, group: str, criterion: str, action: str | None = None, channel: str = "twin"
) -> TopicPath:
    """A topic of an entity; `unknown/unknown` where the entity is not known. Policies have no channel."""
    namespace, name = (entity.namespace, entity.name) if entity is not None else (UNKNOWN, UNKNOWN)
    return TopicPath(namespace, name, group, channel if group == "things" else None, criterion, action)


def _live_topic(entity: EntityId, criterion: str, action: str | None = None, subject: str | None = None) -> TopicPath:
    return TopicPath(entity.namespace, entity.name, entity.type.group, "live", criterion, action, subject)


def _acks_topic(entity: EntityId, channel: str, label: str | None = None) -> TopicPath:
    own = channel if entity.type is EntityType.THING else None
    return TopicPath(entity.namespace, entity.name, entity.type.group, own, "acks", subject=label)


def topic_of(signal: Inbound | Outbound) -> TopicPath:
    """The topic path that a signal has on the wire; searches have no entity."""
    match signal:
        case ErrorResponse(entity=None):
            return entity_topic(None, "things", "errors")
        case ErrorResponse(entity=entity, group=group, channel=channel):
            return entity_topic(entity, group, "errors", channel=channel)
        case Command(entity=entity, action=action) | Response(entity=entity, action=action):
            return entity_topic(entity, entity.type.group, "commands", action)
        case TwinEvent(entity=entity, action=action):
            return entity_topic(entity, entity.type.group, "events", action)
        case LiveCommand(entity=entity, action=action) | LiveResponse(entity=entity, action=action):
            return _live_topic(entity, "commands", action)
        case LiveEvent(entity=entity, action=action):
            return _live_topic(entity, "events", action)
        case Message(entity=entity, subject=subject) | MessageResponse(entity=entity, subject=subject):
            return _live_topic(entity, "messages", subject=subject)
        case ConnectionAnnouncement(connection_id=connection_id, name=name):
            return TopicPath(NONE, connection_id, "connections", None, "announcements", subject=name)
        case PolicyAnnouncement(entity=entity, name=name):
            return TopicPath(entity.namespace, entity.name, entity.type.group, None, "announcements", subject=name)
        case Acknowledgement(entity=entity, label=label, channel=channel):
            return _acks_topic(entity, channel, label)
        case Acknowledgements(entity=entity, channel=channel):
            return _acks_topic(entity, channel)
        case Subscribe(kind=SubscriptionKind.SEARCH):
            return subscription_topic(SubscriptionKind.SEARCH, None, "subscribe")
        case Subscribe(kind=kind, query=query):
            return subscription_topic(kind, query.entity, "subscribeForPersistedEvents")
        case SessionMessage(entity=about):
            return entity_topic(about, group_of(about), "commands")
        case _:
            return subscription_topic(signal.kind, signal.entity, _SUBSCRIPTION_ACTIONS[type(signal)])


@lru_cache(CACHED_TOPICS)
def subscription_topic(kind: SubscriptionKind, entity: EntityId | None, action: str) -> TopicPath:
    """The topic of a subscription's command or event."""
    if kind is SubscriptionKind.SEARCH or entity is None:
        return TopicPath(
            NONE, NONE, "things", "twin", "search" if kind is SubscriptionKind.SEARCH else "streaming", action
        )
    return entity_topic(entity, entity.type.group, "streaming", action)
