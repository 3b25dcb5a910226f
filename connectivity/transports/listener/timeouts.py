"""Decides from times alone when a peer's socket is pinged or closed.

`next_timeout` is pure; the link calls it for every peer once a second, so that no peer needs a timer. A peer that is not
being read, because it or the service is busy, is not blamed for an unanswered ping.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

OPENING = 10.0
"""Seconds that a client has for the opening request."""

CLOSING = 5.0
"""Seconds that the peer has to finish the closing handshake."""


@dataclass(frozen=True, slots=True)
class TimeoutOptions:
    """Timeouts in seconds, as in the options; `idle` 0 disables the idle timeout."""

    ping: float = 20.0
    pong: float = 20.0
    output: float = 30.0
    idle: float = 0.0


class TimeoutDecision(Enum):
    """The action for a peer."""

    FINE = "nothing to do"
    PING = "send a ping"
    IDLE = "close: idle for too long"
    SLOW = "abort: it does not read its output"
    SILENT = "abort: no response to a ping"
    STUCK = "abort: it does not finish a handshake"


@dataclass(slots=True)
class SocketTimes:
    """Times of a peer's last events in seconds of one clock; None: not happened, or no longer relevant."""

    made: float
    last_received: float
    """When bytes were last received."""
    spoke: float
    """When a message was last received."""
    is_open: bool = False
    is_reading: bool = True
    pinged: float | None = None
    """When a ping was sent after which nothing was received."""
    closing: float | None = None
    """When closing began."""
    stuck: float | None = None
    """Since when the peer has taken none of the waiting output."""


def next_timeout(times: SocketTimes, bounds: TimeoutOptions, now: float) -> TimeoutDecision:
    """Return the action for a peer at the time `now`."""
    if times.closing is not None:
        return TimeoutDecision.STUCK if now - times.closing > CLOSING else TimeoutDecision.FINE
    if not times.is_open:
        return TimeoutDecision.STUCK if now - times.made > OPENING else TimeoutDecision.FINE
    if times.stuck is not None and now - times.stuck > bounds.output:
        return TimeoutDecision.SLOW
    if not times.is_reading:
        return TimeoutDecision.FINE
    if bounds.idle and now - times.spoke > bounds.idle:
        return TimeoutDecision.IDLE
    if times.pinged is not None:
        return TimeoutDecision.SILENT if now - times.pinged > bounds.pong else TimeoutDecision.FINE
    return TimeoutDecision.PING if now - times.last_received > bounds.ping else TimeoutDecision.FINE
