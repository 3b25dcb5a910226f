"""Varints, written and read: unsigned LEB128 of at most 63 bits, in its shortest form (reactive-streams-io, serialization).

Everything that has a length begins with one. Reading knows two ways to fail: `Short` where the octets end too early, which
says how many are needed at least, and `ProtocolError` where no further octets can help.
"""

from __future__ import annotations

from mappings.reactive_streams_io.limits import UNBOUNDED
from mappings.reactive_streams_io.mistakes import Mistake, broken

LONGEST_VARINT = 9
_SMALL = [bytes([value]) if value < 128 else bytes([value & 127 | 128, value >> 7]) for value in range(2048)]
"""Those that are written again and again: ids, and the lengths of elements."""


class Short(Exception):
    """The octets end inside a frame. `needed` is where they have to reach at least, counted as they were."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


def varint(value: int) -> bytes:
    """A number as a varint. Raises ValueError below 0 and above 2^63−1."""
    if 0 <= value < 2048:
        return _SMALL[value]
    if not 0 <= value <= UNBOUNDED:
        raise ValueError(f"found {value}, expected 0 to {UNBOUNDED}")
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


def read_varint(octets: bytes, at: int) -> tuple[int, int]:
    """The number at a position, and the position behind it. Raises Short, ProtocolError."""
    value = shift = 0
    for index in range(at, at + LONGEST_VARINT):
        if index >= len(octets):
            raise Short(index + 1)
        octet = octets[index]
        if octet < 128:
            if not octet and shift:
                raise broken(Mistake.VARINT_NOT_MINIMAL)
            return value | octet << shift, index + 1
        value |= (octet & 127) << shift
        shift += 7
    raise broken(Mistake.VARINT_TOO_LONG)
