"""Events of things and policies as elements: a JSON object each, or one number (rsio, elements).

The object has `topic`, `path`, `value` (if there is one), `extra` (extra fields), `revision` and `timestamp`. Values are the
stored JSON text. A projection is the number at a pointer in a fixed number of bytes; events without such a number are left
out.
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
    """Encodes the events of one entity. Parts common to an action are encoded once."""

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
    """Return the encoder of a projection's number; it returns None for other values."""
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
            raw = pack(number)
        except (OverflowError, struct.error):
            return None
        return raw if math.isfinite(number) else None

    return packed


_SMALL = 64
_LASTS = [bytes([last]) for last in range(256)]

FAILURE = Fault(500, "rsio:tck.failed", "This test publisher always fails.")


def elements(name: SyntheticName) -> Iterator[bytes]:
    """Yield the elements of a test publisher whose elements differ in size, counted from 1.

    `never` has none, and does not end. Those of `fixed` come packed (`numbers`).
    """
    match name.kind:
        case "range" | "fail":
            return (str(number).encode() for number in range(1, name.count + 1))
        case "big":
            # Large: created only when it is requested.
            return (b"x" * name.size for _ in range(1))
        case _:
            return iter(())


def number(name: SyntheticName) -> int:
    """Return how many elements a test publisher has."""
    return 1 if name.kind == "big" else name.count


def numbers(first: int, count: int, size: int) -> PackedElements:
    """Return packed whole numbers of this size. One that exceeds the size starts again from 0."""
    behind = first + count
    if size > _SMALL:
        return PackedElements(b"".join(number.to_bytes(size, "big") for number in range(first, behind)), size)
    # Those that differ in their last byte only are created together: benchmarks read them by the million.
    modulus = 1 << 8 * (size - 1)
    heads = ((number % modulus).to_bytes(size - 1, "big") for number in range(first >> 8, (behind + 255) >> 8))
    raw = b"".join(head + head.join(_LASTS) for head in heads)
    start = (first & 255) * size
    return PackedElements(raw[start : start + count * size], size)


def element_size(name: SyntheticName) -> int:
    """The size of all its elements, or 0."""
    return name.size if name.kind == "fixed" else 0


def ending(name: SyntheticName) -> Fault | None:
    """Return the error after the elements of a test publisher: None for complete. `never` does not end."""
    return FAILURE if name.kind == "fail" else None
