"""What of a session outlives a restart, as bytes (Streamr protocol, lifetime of a session).

Clients do not see that the service was restarted. What a session follows goes on, so all of it is kept:
`PersistedSubscription`; how far it has come is known to whoever sends. A resend does not go on, and its client has to hear
of it: `PersistedResend` is kept as long as the resend has no end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from mappings.streamr.errors import Sub


class PersistedSubscription(msgspec.Struct, frozen=True, array_like=True, tag="following"):
    """A partition that a session follows, with the rights of `subjects`, for these clients.

    `owners`: whose session it is. `headers`: what broadcasts carry besides their own.
    """

    stream: str
    partition: int
    owners: frozenset[str]
    subjects: tuple[str, ...]
    clients: frozenset[str | None]
    headers: Mapping[str, str]


class PersistedResend(msgspec.Struct, frozen=True, array_like=True, tag="asked"):
    """A resend that has not ended; `headers` are those of its frames, which answer the request `correlation_id`."""

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
    """What was packed. Raises ValueError for bytes that say nothing of the kind."""
    found: Kept = _decode(packed)
    return found


def resumed_from(last: int | None, missed: int, most: int) -> int | None:
    """After which offset a live subscription goes on after a restart; None for "now".

    `missed` messages came after the `last` one it was sent, and `most` it catches up on. What it does not get, its client
    sees by the next predecessor.
    """
    return last if last is not None and missed <= most else None
