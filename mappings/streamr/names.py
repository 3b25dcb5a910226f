"""Which stream an id names: one of the operator's own, or the history of a thing or a policy (Streamr protocol, names).

    tank-9               a stream of its own
    things/acme:lamp-7   the events of a thing; policies/acme:lamps those of a policy

An id that begins like a twin's and names none is nobody's stream, whatever is configured. A stream's messages rest under the
name of their partition, `tank-9/0`, which `partition_name` and `read_partition_name` translate; an id may hold slashes
itself, the last one is the partition's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from mappings.ids import EntityId, EntityType, parse_entity_id, partition_entity

THINGS = "things/"
POLICIES = "policies/"


@dataclass(frozen=True, slots=True)
class Own:
    """A stream that exists because an operator lists it."""

    id: str


@dataclass(frozen=True, slots=True)
class Thing:
    """The events of a thing, in one partition."""

    entity: EntityId


@dataclass(frozen=True, slots=True)
class Policy:
    """The events of a policy, in one partition."""

    entity: EntityId


Place: TypeAlias = Own | Thing | Policy


def place_of(stream: str) -> Place | None:
    """What this id names, or None where it looks like a twin's and is none."""
    if stream.startswith(THINGS):
        thing = parse_entity_id(EntityType.THING, stream.removeprefix(THINGS))
        return Thing(thing) if thing is not None else None
    if stream.startswith(POLICIES):
        policy = parse_entity_id(EntityType.POLICY, stream.removeprefix(POLICIES))
        return Policy(policy) if policy is not None else None
    return Own(stream)


def stream_of(entity: EntityId) -> str:
    """The id of the stream that the events of a thing or a policy are."""
    return f"{THINGS if entity.type is EntityType.THING else POLICIES}{entity}"


def resource_of(stream: str) -> str:
    """The resource on which a policy grants READ and WRITE of a stream of its own."""
    return f"stream:/{stream}"


def partition_name(stream: str, partition: int) -> str:
    """The name under which the messages of one partition rest."""
    return f"{stream}/{partition}"


def partition_of(stream: str, partition: int) -> EntityId:
    """One partition of a stream of its own, as the store knows it."""
    return partition_entity(partition_name(stream, partition))


def read_partition_name(name: str) -> tuple[str, int] | None:
    """Stream and partition of such a name, or None where it is none."""
    stream, _, digits = name.rpartition("/")
    if not stream or not (digits.isascii() and digits.isdecimal()) or (len(digits) > 1 and digits[0] == "0"):
        return None
    partition = int(digits) if len(digits) <= 3 else 256
    return (stream, partition) if partition <= 255 else None
