"""Events of things and policies as elements: a JSON object of each, or one number of it (reactive-streams-io, elements).

The object has `topic`, `path`, `value` (where there is one), `extra` (what was asked for besides), `revision` and
`timestamp`. Values travel as the JSON text that
they are stored as. A projection is the number at a pointer, in so many octets; what it cannot say is no element.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import msgspec

from mappings.ids import EntityId
from mappings.reactive_streams_io.names import Projection
from mappings.signals import Event
from mappings.topic import entity_topic

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
