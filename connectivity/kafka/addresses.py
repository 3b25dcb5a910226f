"""Kafka addresses: what a topic may be called, and where a record goes."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from connectivity.errors import PublishFailed

TOPIC = re.compile(r"(?!\.\.?$)[a-zA-Z0-9._-]{1,249}")
TOPIC_EXPECTED = "a topic of 1 to 249 letters, digits and . _ -, which is not . or .."
ANY_PARTITION = -1
HIGHEST_PARTITION = 2**31 - 1
CACHED_ADDRESSES = 4096


class Address(NamedTuple):
    """Where a record goes: at most one of key and partition is there."""

    topic: str
    key: str | None = None
    partition: str | None = None


class Place(NamedTuple):
    """An address as the client library takes it; `partition` -1 leaves the choice to the key, or to chance."""

    topic: str
    key: bytes | None
    partition: int


def split_address(address: str) -> Address:
    """`topic`, `topic/key`, `topic#partition` → their parts, of which each may be empty."""
    topic, slash, key = address.partition("/")
    if slash:
        return Address(topic, key=key)
    topic, mark, partition = address.partition("#")
    return Address(topic, partition=partition if mark else None)


@lru_cache(maxsize=CACHED_ADDRESSES)
def place_of(address: str) -> Place:
    """Where to publish to for an address whose placeholders are resolved. A key that came out empty is none.

    Raises PublishFailed for a name that no topic has and for a partition that is no whole number.
    """
    topic, key, partition = split_address(address)
    if not TOPIC.fullmatch(topic):
        raise PublishFailed(f"the topic {topic[:300]!r}, expected {TOPIC_EXPECTED}", status=400)
    if partition is None:
        return Place(topic, key.encode(errors="replace") if key else None, ANY_PARTITION)
    if not re.fullmatch(r"[0-9]{1,10}", partition) or int(partition) > HIGHEST_PARTITION:
        raise PublishFailed(f"the partition {partition[:50]!r}, expected a whole number", status=400)
    return Place(topic, None, int(partition))
