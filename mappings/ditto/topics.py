"""From a topic path to the entity that a message is about.

The namespace and name of a topic make an id, which has to conform to the grammar of ids. A search is about no entity, and
one topic is about several: `_` as a name (and a namespace) retrieves things by their ids. Errors may be about anything.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from mappings.ditto import faults
from mappings.errors import DecodeError
from mappings.ids import LONGEST_KNOWN, EntityId, EntityType, parse_entity_id
from mappings.topic import NONE, TopicPath, parse_topic, unknown_topic


class Addressed(NamedTuple):
    """A topic path and the entity that it names; None where it is about none."""

    topic: TopicPath
    entity: EntityId | None


def read_topic(text: str) -> Addressed:
    """The topic and its entity. Raises UnknownTopic, or DecodeError with `things:id.invalid` or `policies:id.invalid`."""
    return _known(text) if len(text) <= LONGEST_KNOWN else _read(text)


def _read(text: str) -> Addressed:
    topic = parse_topic(text)
    if topic.group == "connections":
        raise unknown_topic(text)
    if topic.criterion == "search":
        return Addressed(topic, None)
    if topic.namespace == NONE and topic.name == NONE and topic.action == "retrieve" and topic.group == "things":
        return Addressed(topic, EntityId(EntityType.THING, NONE, NONE))
    id = f"{topic.namespace}:{topic.name}"
    entity = parse_entity_id(topic.entity_type, id)
    if entity is None and topic.criterion != "errors":
        raise DecodeError(faults.invalid_id(topic.group, id), group=topic.group)
    return Addressed(topic, entity)


_known = lru_cache(maxsize=8192)(_read)


def entity_of(text: str) -> tuple[EntityId | None, str]:
    """The entity and the group of a topic as far as they can be understood, for an answer about something else."""
    try:
        topic, entity = read_topic(text)
    except DecodeError as error:
        return error.entity, error.group
    return entity, topic.group
