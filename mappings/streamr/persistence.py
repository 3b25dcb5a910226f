"""The parts of a session that outlive a restart, as bytes (Streamr protocol, lifetime of a session).

Clients do not notice a restart. Subscriptions continue, so all of a `PersistedSubscription` is stored; the sender stores its
position. A resend fails, and its client must learn of it: `PersistedResend` is stored until the resend ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from mappings.streamr.errors import Sub


class PersistedSubscription(msgspec.Struct, frozen=True, array_like=True, tag="following"):
    """A session's subscription to a partition, with the permissions of `subjects`, for these clients.

    `owners`: the owners of the session. `headers`: additional headers of broadcasts.
    """

    stream: str
    partition: int
    owners: frozenset[str]
    subjects: tuple[str, ...]
    clients: frozenset[str | None]
    headers: Mapping[str, str]


class PersistedResend(msgspec.Struct, frozen=True, array_like=True, tag="asked"):
    """An unfinished resend; `headers` are those of its frames, which reply to `correlation_id`."""

    stream: str
    partition: int
    sub: Sub
    owners: frozenset[str]
    headers: Mapping[str, str]
    correlation_id: str | None


Kept: TypeAlias = PersistedSubscription | PersistedResend

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PersistedSubscription | PersistedResend).decode


def pack(kept: Kept) -> bytes:
    """As bytes."""
    return _encode(kept)


def unpack(packed: bytes) -> Kept:
    """Unpack stored bytes. Raises ValueError for invalid ones."""
    found: Kept = _decode(packed)
    return found


def resumed_from(last: int | None, missed: int, most: int) -> int | None:
    """Return the offset after which a live subscription continues after a restart; None for "now".

    `missed` messages came after the `last` sent one, and `most` are sent. The client detects a gap by the next predecessor.
    """
    return last if last is not None and missed <= most else None
