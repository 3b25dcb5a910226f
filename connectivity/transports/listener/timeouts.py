"""When a peer's socket has to end, or is to be asked whether it is still there: decided from times alone.

`judge` is pure; the link asks it about every peer once a second, so that no peer needs a timer of its own. A peer that is
not being read, because it or the service has too much to do, is not blamed for pings that it may have answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

OPENING = 10.0
"""Seconds for the opening request."""

CLOSING = 5.0
"""Seconds for the other side's part of a closing."""


@dataclass(frozen=True, slots=True)
class TimeoutOptions:
    """Seconds, as in the options; `idle` 0 is for ever."""

    ping: float = 20.0
    pong: float = 20.0
    output: float = 30.0
    idle: float = 0.0


class TimeoutDecision(Enum):
    """What is to be done about a peer."""

    FINE = "nothing"
    PING = "ask whether it is there"
    IDLE = "close: it has been idle"
    SLOW = "cut off: it takes nothing of what waits for it"
    SILENT = "cut off: it does not answer"
    STUCK = "cut off: it does not end what it has begun"


@dataclass(slots=True)
class SocketTimes:
    """What has happened to a peer and when, in seconds of one clock. None: it has not, or does not count any more."""

    made: float
    heard: float
    """Bytes have come."""
    spoke: float
    """A message has come."""
    is_open: bool = False
    is_reading: bool = True
    pinged: float | None = None
    """A ping was sent after which nothing was heard."""
    closing: float | None = None
    """The socket is being closed."""
    stuck: float | None = None
    """Since when nothing has been taken of what waits."""


def judge(times: SocketTimes, bounds: TimeoutOptions, now: float) -> TimeoutDecision:
    """What is to be done now."""
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
    return TimeoutDecision.PING if now - times.heard > bounds.ping else TimeoutDecision.FINE
