"""Which partition a message goes to: the same one for each key, any one without a key (Streamr protocol, partitioning).

Clients count on the very numbers, so the hashes are those of the protocol: MurmurHash3 (x86, 32 bits, seed 0) with its bytes
in reverse, read as a signed number whose sign is dropped; or the first four bytes of MD5, read in the same way, as services
did later on.
"""

from __future__ import annotations

import hashlib
import random
from enum import Enum

_MASK = 0xFFFFFFFF


class KeyHash(str, Enum):
    """How a key becomes a number."""

    MURMUR3_SWAPPED = "murmur3-swapped"
    MD5 = "md5"


def partition_of(
    key: str | None, partitions: int, hash: KeyHash = KeyHash.MURMUR3_SWAPPED, *, chance: random.Random | None = None
) -> int:
    """The partition of a message with this key, out of so many; one at random for no key and for an empty one."""
    if partitions == 1:
        return 0
    if not key:
        return (chance or random).randrange(partitions)
    return abs(number_of(key, hash)) % partitions


def number_of(key: str, hash: KeyHash) -> int:
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
        result ^= _scrambled(int.from_bytes(data[at : at + 4], "little"))
        result = (_rotated(result, 13) * 5 + 0xE6546B64) & _MASK
    if rest := data[whole:]:
        result ^= _scrambled(int.from_bytes(rest, "little"))
    result ^= len(data)
    result = ((result ^ (result >> 16)) * 0x85EBCA6B) & _MASK
    result = ((result ^ (result >> 13)) * 0xC2B2AE35) & _MASK
    return result ^ (result >> 16)


def _scrambled(block: int) -> int:
    return (_rotated((block * 0xCC9E2D51) & _MASK, 15) * 0x1B873593) & _MASK


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK
