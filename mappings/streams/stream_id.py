"""Stream IDs: configured streams, and the events of things and policies.

    tank-9               a configured stream
    things/acme:lamp-7   the events of a thing; policies/acme:lamps those of a policy

An invalid ID that begins like a twin's is no stream, even if it is configured. A stream's entries are stored under the
name of their partition, `tank-9/0`, which `partition_name` and `parse_partition_name` convert. An ID may contain slashes;
the number after the last one is the partition.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from mappings.ids import EntityId, EntityType, parse_entity_id, partition_entity

THINGS = "things/"
POLICIES = "policies/"

LONGEST_STREAM_ID = 255
"""In bytes of UTF-8."""

LAST_PARTITION = 255
"""Partitions are one byte."""


@dataclass(frozen=True, slots=True)
class ConfiguredStream:
    """A stream that exists because an operator lists it."""

    id: str


@dataclass(frozen=True, slots=True)
class ThingStream:
    """The events of a thing, in one partition."""

    entity: EntityId


@dataclass(frozen=True, slots=True)
class PolicyStream:
    """The events of a policy, in one partition."""

    entity: EntityId


Stream: TypeAlias = ConfiguredStream | ThingStream | PolicyStream


def parse_stream_id(stream: str) -> Stream | None:
    """Return the stream or twin of this ID; None if it begins like a twin's and is invalid."""
    if stream.startswith(THINGS):
        thing = parse_entity_id(EntityType.THING, stream.removeprefix(THINGS))
        return ThingStream(thing) if thing is not None else None
    if stream.startswith(POLICIES):
        policy = parse_entity_id(EntityType.POLICY, stream.removeprefix(POLICIES))
        return PolicyStream(policy) if policy is not None else None
    return ConfiguredStream(stream)


def stream_id_of(entity: EntityId) -> str:
    """Return the ID of the stream of a thing's or policy's events."""
    return f"{THINGS if entity.type is EntityType.THING else POLICIES}{entity}"


def resource_of(stream: str) -> str:
    """Return the resource on which a policy grants READ and WRITE of an operator's stream."""
    return f"stream:/{stream}"


def partition_name(stream: str, partition: int) -> str:
    """Return the name under which the messages of one partition are stored."""
    return f"{stream}/{partition}"


def partition_id(stream: str, partition: int) -> EntityId:
    """Return one partition of an operator's stream as an entity."""
    return partition_entity(partition_name(stream, partition))


def parse_partition_name(name: str) -> tuple[str, int] | None:
    """Return stream and partition of such a name; None for an invalid one."""
    stream, _, digits = name.rpartition("/")
    if not stream or not (digits.isascii() and digits.isdecimal()) or (len(digits) > 1 and digits[0] == "0"):
        return None
    partition = int(digits) if len(digits) <= 3 else LAST_PARTITION + 1
    return (stream, partition) if partition <= LAST_PARTITION else None


_MASK = 0xFFFFFFFF


class KeyHash(str, Enum):
    """The hash function of keys."""

    MURMUR3_SWAPPED = "murmur3-swapped"
    MD5 = "md5"


def choose_partition(key: str | None, partitions: int, hash: KeyHash = KeyHash.MURMUR3_SWAPPED) -> int:
    """Return the partition of a message with this key, out of so many.

    A random one without key or for an empty one.
    """
    if partitions == 1:
        return 0
    if not key:
        return random.randrange(partitions)
    return abs(hash_key(key, hash)) % partitions


def hash_key(key: str, hash: KeyHash) -> int:
    """The signed number of 32 bits that a key hashes to. Raises UnicodeEncodeError for half a character."""
    data = key.encode()
    if hash is KeyHash.MD5:
        digest = hashlib.md5(data, usedforsecurity=False).digest()[:4]
    else:
        digest = murmur3(data).to_bytes(4, "big")
    return int.from_bytes(digest, "little", signed=True)


def murmur3(data: bytes) -> int:
    """MurmurHash3, x86, 32 bits, seed 0."""
    result = 0
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        result ^= _scramble(int.from_bytes(data[at : at + 4], "little"))
        result = (_rotate(result, 13) * 5 + 0xE6546B64) & _MASK
    if rest := data[whole:]:
        result ^= _scramble(int.from_bytes(rest, "little"))
    result ^= len(data)
    result = ((result ^ (result >> 16)) * 0x85EBCA6B) & _MASK
    result = ((result ^ (result >> 13)) * 0xC2B2AE35) & _MASK
    return result ^ (result >> 16)


def _scramble(block: int) -> int:
    return (_rotate((block * 0xCC9E2D51) & _MASK, 15) * 0x1B873593) & _MASK


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK
