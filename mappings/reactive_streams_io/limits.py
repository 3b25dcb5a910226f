"""The bounds that one end of a connection keeps, and those it holds its peer to (reactive-streams-io, limits).

They are not announced: a peer meets one when it goes beyond it. `mistakes` says what happens then.
"""

from __future__ import annotations

import msgspec

UNBOUNDED = 2**63 - 1
"""The greatest number of the protocol. A demand that reaches it is not counted any more."""

LARGEST_ID = 2**32 - 1

IDS_OF_A_HELLO = 64
"""Extensions that a hello may list."""

SHORTEST_TOKEN = 16

OBJECT = 64
"""What a frame or an element that waits counts besides its octets: about what an object takes."""


class EndpointLimits(msgspec.Struct, frozen=True):
    """Sizes in octets, times in seconds, everything else a count."""

    frame: int = 1 << 20
    publisher: int = 8192
    text: int = 65_535
    """A reason or an error as it is accepted."""
    text_sent: int = 4096
    """A reason or an error as it is written: longer ones are cut."""
    element_size: int = 65_535
    part: int = 65_535
    element: int = 16 << 20
    """A split element, joined; and the largest that is published."""
    joining: int = 64 << 20
    """All split elements of a connection that are not whole yet, together."""
    open_elements: int = 16
    subscriptions: int = 1024
    """Those that a peer may hold at a time."""
    generations: int = 64
    """Subscriptions with one id whose `onSubscribe` has not come yet."""
    token: int = 64
    ping: int = 64
    split_above: int = 64 << 10
    batch: int = 64 << 10
    """What is handed to the transport at a time, and the size of a packed frame."""
    backlog: int = 1 << 20
    """Answers that wait for a peer who does not read, each counted with what an object takes; whoever lets more pile up is
    dropped."""
    copies: int = 4 << 20
    """Frames kept for a peer that may come back."""
    window: int = 1024
    """The same as a number of frames; what a grant says."""
    hello_wait: float = 10.0
    goodbye_wait: float = 5.0
    silence_before_ping: float = 30.0
    silence_before_loss: float = 90.0
    idle: float = 600.0
    """Without keepalive: how long a message session may be silent, and a frame on a socket incomplete."""
    lifetime: float = 60.0
    """How long a session can be resumed after its transport was lost."""
    resumable: int = 1024
    """Lost sessions that are kept at a time."""
    resumable_octets: int = 64 << 20
    """What they keep together."""
