"""Events of things and policies as elements: a JSON object of each, or one number of it (reactive-streams-io, elements).

The object has `topic`, `path`, `value` (where there is one), `extra` (what was asked for besides), `revision` and
`timestamp`. Values travel as the JSON text that
they are stored as. A projection is the number at a pointer, in so many octets; what it cannot say is no element.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from mappings.errors import Fault
from mappings.ids import EntityId
from mappings.model.signals import Event
from mappings.model.topic_path import entity_topic
from mappings.reactive_streams_io.publisher import PackedElements
from mappings.reactive_streams_io.publisher_names import Projection, SyntheticName

_encode = msgspec.json.Encoder().encode
_FORMATS = {"i32": ">i", "i64": ">q", "f32": ">f", "f64": ">d"}
_WHOLE = {"i32": 31, "i64": 63}
"""Packs of whole numbers, and how many bits these have besides their sign."""


class EventWriter:
    """Writes the events of one entity. What all with one action share is written once."""

    def __init__(self, entity: EntityId) -> None:
        self._entity = entity
        self._heads: dict[str, bytes] = {}

    def __call__(self, event: Event, extra: bytes | None = None) -> bytes:
        """The object of an event. `extra` is an object as JSON text: fields of its thing."""
        head = self._heads.get(event.action)
        if head is None:
            topic = str(entity_topic(self._entity, self._entity.type.group, "events", event.action))
            head = self._heads[event.action] = b'{"topic":%b,"path":' % _encode(topic)
        value = b"" if event.value is None else b',"value":' + event.value
        timestamp = event.timestamp.encode()
        besides = b"" if extra is None else b',"extra":' + extra
        return b'%b%b%b%b,"revision":%d,"timestamp":"%b"}' % (
            head,
            _encode(event.path),
            value,
            besides,
            event.revision,
            timestamp,
        )


def packer(projection: Projection) -> Callable[[Any], bytes | None]:
    """What writes the number of a projection; None for what is no number, or none of that kind."""
    pack = struct.Struct(_FORMATS[projection.pack]).pack
    bits = _WHOLE.get(projection.pack)

    def packed(number: Any) -> bytes | None:
        if isinstance(number, bool) or not isinstance(number, int | float):
            return None
        if bits is not None:
            if not isinstance(number, int) or not -(1 << bits) <= number < 1 << bits:
                return None
            return pack(number)
        try:
            octets = pack(number)
        except (OverflowError, struct.error):
            return None
        return octets if math.isfinite(number) else None

    return packed


_SMALL = 64
_LASTS = [bytes([last]) for last in range(256)]

FAILURE = Fault(500, "rsio:tck.failed", "This publisher fails, as it was asked to.")


def elements(trial: SyntheticName) -> Iterator[bytes]:
    """The elements of a test publisher whose elements differ in size, counted from 1.

    That of `never` are none, which is not its end. Those of `fixed` come in runs (`numbers`).
    """
    match trial.kind:
        case "range" | "fail":
            return (str(number).encode() for number in range(1, trial.count + 1))
        case "big":
            # It is large: nobody has it before it is asked for.
            return (b"x" * trial.size for _ in range(1))
        case _:
            return iter(())


def number(trial: SyntheticName) -> int:
    """How many elements a test publisher has."""
    return 1 if trial.kind == "big" else trial.count


def numbers(first: int, count: int, size: int) -> PackedElements:
    """So many whole numbers, each in so many octets. One that its size cannot hold begins anew."""
    behind = first + count
    if size > _SMALL:
        return PackedElements(b"".join(number.to_bytes(size, "big") for number in range(first, behind)), size)
    # All that differ in their last octet alone are made together: benchmarks read these by the million.
    modulus = 1 << 8 * (size - 1)
    heads = ((number % modulus).to_bytes(size - 1, "big") for number in range(first >> 8, (behind + 255) >> 8))
    octets = b"".join(head + head.join(_LASTS) for head in heads)
    start = (first & 255) * size
    return PackedElements(octets[start : start + count * size], size)


def element_size(trial: SyntheticName) -> int:
    """The size of all its elements, or 0."""
    return trial.size if trial.kind == "fixed" else 0


def ending(trial: SyntheticName) -> Fault | None:
    """How it ends behind its elements: None for complete. `never` does not."""
    return FAILURE if trial.kind == "fail" else None
