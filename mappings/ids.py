"""Identifiers: entities, subscriptions, correlation IDs, labels.

An entity is a thing, a policy, or one partition of a stream. The ID of a thing or a policy is `namespace:name`, split at the
first colon; `parse_entity_id` checks both parts. The ID of a stream's partition is the stream's name and the number, such as
`tank-9/0`.
"""

from __future__ import annotations

import random
import re
import secrets
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Final, NamedTuple, TypeVar

from mappings.text_cache import cached_if_short

MAX_ID_LENGTH = 256
"""The longest id, key or label, in UTF-16 code units."""

_ENTITY_ID = re.compile(r"(?P<namespace>|[a-zA-Z]\w*(?:[.\-][a-zA-Z]\w*)*):(?P<name>[^\x00-\x1F\x7F-\xFF/]+)", re.ASCII)

_PARTITION = re.compile(r".+/(?:0|[1-9][0-9]{0,2})", re.DOTALL)

_VARIANTS = "89ab"
"""The hexadecimal digits that mark the variant of a random UUID."""

_LABEL = re.compile(r"[a-zA-Z0-9\-_:]{3,100}")

LIVE_RESPONSE = "live-response"
"""The label under which the answer to a live signal is acknowledged."""

BUILT_IN_LABELS = frozenset({"twin-persisted", "search-persisted", LIVE_RESPONSE})
"""The labels that the service itself issues; receivers of signals issue all others."""


Result = TypeVar("Result")


class EntityType(str, Enum):
    """The type of an entity; the value is its name in journal and lake."""

    THING = "thing"
    POLICY = "policy"
    STREAM = "stream"

    def __init__(self, name: str) -> None:
        self.group = "policies" if name == "policy" else f"{name}s"
        """The name of this type in topic paths, which streams do not have, and in errors."""


class EntityId(NamedTuple):
    """The identity of one entity. `str(entity)` is its ID as clients write it.

    The name of a stream's partition is its whole ID; its namespace, of which nothing is left out there, selects the
    retention.
    """

    type: EntityType
    namespace: str
    name: str

    @property
    def id(self) -> str:
        return self.name if self.type is EntityType.STREAM else f"{self.namespace}:{self.name}"

    def __str__(self) -> str:
        return self.id


def cached_by_type(
    size: int, function: Callable[[EntityType, str], Result]
) -> Mapping[EntityType, Callable[[str], Result]]:
    """Return a function of texts for each type of entity, with about `size` cached results."""
    return {type: cached_if_short(size)(partial(function, type)) for type in EntityType}


def utf16_length(text: str) -> int:
    """The length that limits are stated in: UTF-16 code units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def parse_entity_id(type: EntityType, text: str) -> EntityId | None:
    """Return the entity with this ID; None if the text is no ID: the caller knows the error."""
    return _PARSERS[type](text)


def _parse(type: EntityType, text: str) -> EntityId | None:
    if type is EntityType.STREAM:
        return partition_entity(text) if _PARTITION.fullmatch(text) else None
    match = _ENTITY_ID.fullmatch(text)
    if match is None or utf16_length(text) > MAX_ID_LENGTH:
        return None
    return EntityId(type, match["namespace"], match["name"])


_PARSERS: Final = cached_by_type(8192, _parse)


def group_of(entity: EntityId | None) -> str:
    """Return the name of an entity's type in topic paths and errors; `things` without an entity."""
    return "things" if entity is None else entity.type.group


def namespace_of(id: str) -> str:
    """Return the text before the first colon of an entity's ID; empty if there is none."""
    return id.partition(":")[0] if ":" in id else ""


def partition_entity(name: str) -> EntityId:
    """The partition of a stream that is called so."""
    return EntityId(EntityType.STREAM, namespace_of(name), name)


def is_namespace(text: str) -> bool:
    """Whether this is a valid namespace."""
    return ":" not in text and parse_entity_id(EntityType.THING, f"{text}:x") is not None


def is_label(text: str) -> bool:
    """Whether this is a valid acknowledgement label: 3 to 100 letters, digits and - _ :"""
    return _LABEL.fullmatch(text) is not None


def new_subscription_id() -> str:
    """Return an ID that cannot be guessed: 128 random bits, safe in a URL and as an argument of a command."""
    while (made := secrets.token_urlsafe(16)).startswith("-"):
        pass
    return made


def new_correlation_id() -> str:
    """A random UUID.

    It is no secret, so it costs no call of the system: brokers bring thousands in a second without one.
    """
    text = f"{random.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{_VARIANTS[int(text[16], 16) & 3]}{text[17:20]}-{text[20:]}"
