"""The bounds of one end of a connection, for itself and its peer (rsio, limits).

They are not announced; `errors` says what happens beyond them.
"""

from __future__ import annotations

import msgspec

UNBOUNDED = 2**63 - 1
"""The greatest number of the protocol. A demand that reaches it is not counted any more."""

MAX_ID = 2**32 - 1

MAX_HELLO_EXTENSIONS = 64
"""Extensions that a hello may list."""

MIN_TOKEN_LENGTH = 16

OBJECT = 64
"""The size of a waiting frame or element besides its bytes: about that of an object."""


class EndpointLimits(msgspec.Struct, frozen=True):
    """Sizes in bytes, times in seconds, everything else a count."""

    frame: int = 1 << 20
    frames: int = 32 << 10
    """The frames of a message: as many of the smallest as fit into a batch."""
    publisher: int = 8192
    text: int = 65_535
    """The longest accepted reason or error."""
    text_sent: int = 4096
    """The longest sent reason or error: longer ones are cut."""
    element_size: int = 65_535
    part: int = 65_535
    element: int = 16 << 20
    """A split element, joined; and the largest that is published."""
    incomplete_elements: int = 64 << 20
    """All incomplete split elements of a connection together."""
    open_elements: int = 16
    subscriptions: int = 1024
    """Subscriptions of a peer."""
    generations: int = 64
    """Subscriptions with one ID without `onSubscribe`."""
    token: int = 64
    ping: int = 64
    split_above: int = 64 << 10
    batch: int = 64 << 10
    """Bytes for the transport at a time, and the size of a packed frame."""
    backlog: int = 1 << 20
    """Replies that wait for a slow peer, each counted with an object; beyond that it is disconnected."""
    copies: int = 4 << 20
    """Frames kept for a peer that may come back."""
    window: int = 1024
    """The copies as a number of frames, which a grant announces."""
    hello_timeout: float = 10.0
    goodbye_timeout: float = 5.0
    silence_before_ping: float = 30.0
    silence_before_loss: float = 90.0
    idle: float = 600.0
    """Without keepalive: how long a message session may be silent, and a frame on a socket incomplete."""
    lifetime: float = 60.0
    """How long a session can be resumed after the loss of its transport."""
    resumable: int = 1024
    """Lost sessions that are kept at a time."""
    resumable_bytes: int = 64 << 20
    """The bytes of all lost sessions together."""
