"""The subscription engine: demand, and which elements and terminal signals it allows.

One `Subscription` serves every wire protocol and kind of feed. It does no I/O and has no clock: its driver reads the feed,
and sends what `capacity` allows. A call returns the terminal signal if it is due.

    state     request(n)             emit         finish, fail                 cancel      idle, revoke
    WAITING   FLOWING                –            kept for the first request   CLOSED      CLOSED, Ended
    FLOWING   demand grows           it shrinks   CLOSED, Ended                CLOSED      CLOSED, Ended
    CLOSED    Ended(CANCELLED)       –            –                            –           –

It begins FLOWING with demand from the subscribe, or if terminal signals need no request (reactive-streams 1, 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mappings.errors import Fault
from mappings.model.signals import EndReason

UNBOUNDED = 2**63 - 1
"""The greatest demand, which is treated as unbounded (reactive-streams rule 3.17)."""


class SubscriptionState(Enum):
    WAITING = "no request yet"
    FLOWING = "live"
    CLOSED = "over"


@dataclass(frozen=True, slots=True)
class SubscriptionEnded:
    """The terminal signal to send: `reason` of None means complete."""

    reason: Fault | EndReason | None


class Subscription:
    """Demand and terminal signal of one subscriber.

    At most the requested elements are sent (1.1), and at most one terminal signal, the last (1.7), except for late requests.
    `complete` follows the confirm of the last element: a refused one leaves a gap, and the subscription fails. At every end
    the driver withdraws elements that no link has taken. `sent` is the number of elements sent, `unconfirmed` that of
    emissions which the broker has not confirmed, `active_at` the time of the last request, element or confirm, in seconds.
    """

    __slots__ = (
        "_held_end",
        "_terminal_needs_request",
        "active_at",
        "demand",
        "sent",
        "state",
        "unconfirmed",
    )

    def __init__(self, *, terminal_needs_request: bool, demand: int = 0, now: float = 0) -> None:
        """Begin with the demand that the subscribe brings, at the time `now` in seconds.

        `terminal_needs_request`: the wire protocol allows a terminal signal only after the first request.
        """
        self.active_at = now
        self._terminal_needs_request = terminal_needs_request
        self._held_end: SubscriptionEnded | None = None
        self.demand = min(demand, UNBOUNDED)
        self.sent = self.unconfirmed = 0
        self.state = SubscriptionState.FLOWING if demand or not terminal_needs_request else SubscriptionState.WAITING

    def __repr__(self) -> str:
        return f"<Subscription {self.state.value}, demand {self.demand}>"

    @property
    def capacity(self) -> int:
        """How many elements may be sent now."""
        return self.demand if self.state is SubscriptionState.FLOWING and self._held_end is None else 0

    @property
    def is_closed(self) -> bool:
        return self.state is SubscriptionState.CLOSED

    def request(self, demand: int, now: float = 0) -> SubscriptionEnded | None:
        """Add demand; a demand of 0 or less ends the subscription (3.9)."""
        if self.state is SubscriptionState.CLOSED:
            return SubscriptionEnded(EndReason.CANCELLED)
        self.active_at = now
        if demand <= 0:
            return self._close(EndReason.INVALID_DEMAND)
        self.state = SubscriptionState.FLOWING
        self.demand = min(self.demand + demand, UNBOUNDED)
        return self._close_if_due() if self._held_end is not None else None

    def emit(self, count: int) -> None:
        """Note that so many elements are sent together.

        Raises ValueError for more than `capacity`, an internal error.
        """
        if count > (most := self.capacity):
            raise ValueError(f"found {count} elements, expected at most {most}")
        if self.demand < UNBOUNDED:
            self.demand -= count
        self.sent += count
        self.unconfirmed += 1

    def confirm(self, now: float = 0) -> SubscriptionEnded | None:
        """Note that the broker has confirmed an emission."""
        self.unconfirmed -= 1
        self.active_at = now
        return self._close_if_due() if self._held_end is not None else None

    def refuse(self, fault: Fault, now: float = 0) -> SubscriptionEnded | None:
        """Note that the broker has refused an emission, and end, because that leaves a gap."""
        self.unconfirmed -= 1
        self.active_at = now
        return self.revoke(fault)

    def finish(self) -> SubscriptionEnded | None:
        """End after the last element of the feed, once all are confirmed."""
        return self._end(SubscriptionEnded(None))

    def fail(self, fault: Fault) -> SubscriptionEnded | None:
        """End because the feed cannot supply its elements, even if it has come to its end."""
        return self._end(SubscriptionEnded(fault))

    def cancel(self) -> None:
        """Close at the subscriber's wish. Nothing is sent, however often it is called (3.5, 3.7)."""
        self.state = SubscriptionState.CLOSED

    def idle_seconds(self, now: float) -> float:
        """Return the seconds since the last activity; waiting for the broker is none of them."""
        return 0 if self.unconfirmed else now - self.active_at

    def check_idle(self, now: float, timeout: float, *, is_working: bool = False) -> SubscriptionEnded | None:
        """End after `timeout` idle seconds, even before the first request.

        A feed that yields nothing is idle, too, unless `is_working`: it has a timeout of its own.
        """
        if self.state is SubscriptionState.CLOSED:
            return None
        if self.unconfirmed or is_working:
            self.active_at = now
        return self._close(EndReason.IDLE) if now - self.active_at >= timeout else None

    def revoke(self, reason: Fault | EndReason) -> SubscriptionEnded | None:
        """End by an operator or at shutdown, even before the first request."""
        return None if self.state is SubscriptionState.CLOSED else self._close(reason)

    def _end(self, ended: SubscriptionEnded) -> SubscriptionEnded | None:
        if self._held_end is None or self._held_end.reason is None:
            self._held_end = ended
        return self._close_if_due()

    def _close_if_due(self) -> SubscriptionEnded | None:
        """Send the held end, unless it waits for the first request, or `complete` for confirms."""
        ended = self._held_end
        if ended is None or self.state is SubscriptionState.CLOSED:
            return None
        if self.state is SubscriptionState.WAITING and self._terminal_needs_request:
            return None
        return None if ended.reason is None and self.unconfirmed else self._close(ended.reason)

    def _close(self, reason: Fault | EndReason | None) -> SubscriptionEnded:
        self.state = SubscriptionState.CLOSED
        return SubscriptionEnded(reason)
