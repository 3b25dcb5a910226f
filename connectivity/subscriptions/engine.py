"""The subscription engine: demand, and which elements and terminal signals it allows.

One `Subscription` serves every wire protocol and kind of feed. It does no I/O and has no clock: its driver reads the feed
between `begin_page` and `end_page`, and offers what `capacity` allows. Each call returns what to do, in order.

    state     request(n)             offer        finish, fail                 cancel      idle, revoke
    WAITING   FLOWING                –            kept for the first request   CLOSED      CLOSED, Ended
    FLOWING   demand grows           Emitted      CLOSED, Ended                CLOSED      CLOSED, Ended
    CLOSED    Ended(CANCELLED)       –            –                            –           –

It begins FLOWING with demand from the subscribe, or if terminal signals need no request (reactive-streams 1, 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from mappings.errors import Fault
from mappings.model.signals import EndReason

UNBOUNDED = 2**63 - 1
"""The greatest demand, which is treated as unbounded (reactive-streams rule 3.17)."""


class SubscriptionState(Enum):
    WAITING = "no request yet"
    FLOWING = "live"
    CLOSED = "over"


@dataclass(frozen=True, slots=True)
class ElementsEmitted:
    """Elements to send, in order."""

    elements: Sequence[Any]


@dataclass(frozen=True, slots=True)
class ElementsWithdrawn:
    """Elements that no link has taken yet are not to be sent any more."""


@dataclass(frozen=True, slots=True)
class SubscriptionEnded:
    """The terminal signal to send: `reason` of None means complete."""

    reason: Fault | EndReason | None


EngineOutput: TypeAlias = ElementsEmitted | ElementsWithdrawn | SubscriptionEnded


class Subscription:
    """Demand and terminal signal of one subscriber.

    At most the requested elements are sent (1.1), and at most one terminal signal, the last (1.7), except for late requests.
    `complete` follows the confirm of the last element: a refused one leaves a gap, and the subscription fails. Every other
    end withdraws what is unconfirmed. `sent` is the number of elements sent, `unconfirmed` that of emissions which the
    broker has not confirmed, `active_at` the time of the last request, element or confirm, in seconds.
    """

    __slots__ = (
        "_held_end",
        "_terminal_needs_request",
        "active_at",
        "demand",
        "is_reading",
        "sent",
        "state",
        "unconfirmed",
    )

    def __init__(self, *, terminal_needs_request: bool, demand: int = 0, now: float = 0) -> None:
        """Begin with the demand that the subscribe brings, at the time `now` in seconds.

        `terminal_needs_request`: the wire protocol allows a terminal signal only after the first request.
        """
        self.active_at = now
        self.is_reading = False
        """Whether a page of the feed is read and sent."""
        self._terminal_needs_request = terminal_needs_request
        self._held_end: SubscriptionEnded | None = None
        self.demand = min(demand, UNBOUNDED)
        self.sent = self.unconfirmed = 0
        self.state = SubscriptionState.FLOWING if demand or not terminal_needs_request else SubscriptionState.WAITING

    def __repr__(self) -> str:
        return f"<Subscription {self.state.value}, demand {self.demand}>"

    @property
    def capacity(self) -> int:
        """How many elements may be offered now."""
        return self.demand if self.state is SubscriptionState.FLOWING and self._held_end is None else 0

    @property
    def is_closed(self) -> bool:
        return self.state is SubscriptionState.CLOSED

    def request(self, demand: int, now: float = 0) -> list[EngineOutput]:
        """Add demand; a demand of 0 or less ends the subscription (3.9)."""
        if self.state is SubscriptionState.CLOSED:
            return [SubscriptionEnded(EndReason.CANCELLED)]
        self.active_at = now
        if demand <= 0:
            return self._close(SubscriptionEnded(EndReason.INVALID_DEMAND))
        self.state = SubscriptionState.FLOWING
        self.demand = min(self.demand + demand, UNBOUNDED)
        return self._close_if_due() if self._held_end is not None else []

    def begin_page(self) -> bool:
        """Return whether a page of the feed is to be read now: there is demand, and none is being read."""
        if (
            self.is_reading
            or not self.demand
            or self.state is not SubscriptionState.FLOWING
            or self._held_end is not None
        ):
            return False
        self.is_reading = True
        return True

    def end_page(self, now: float) -> None:
        """Note that no page is read any more, since there is no demand, or nothing yet."""
        self.is_reading = False
        self.active_at = now

    def offer(self, elements: Sequence[Any]) -> list[EngineOutput]:
        """Return the elements to send, supplied by the feed.

        Raises ValueError for more than `capacity`, an internal error.
        """
        if self.state is SubscriptionState.CLOSED or not elements:
            return []
        if len(elements) > self.demand or self._held_end is not None or self.state is not SubscriptionState.FLOWING:
            raise ValueError(f"found {len(elements)} elements, expected at most {self.capacity}")
        if self.demand < UNBOUNDED:
            self.demand -= len(elements)
        self.sent += len(elements)
        self.unconfirmed += 1
        return [ElementsEmitted(elements)]

    def confirm(self, now: float = 0) -> list[EngineOutput]:
        """Note that the broker has confirmed an emission."""
        self.unconfirmed -= 1
        self.active_at = now
        return self._close_if_due() if self._held_end is not None else []

    def refuse(self, fault: Fault, now: float = 0) -> list[EngineOutput]:
        """Note that the broker has refused an emission, and end, because that leaves a gap."""
        self.unconfirmed -= 1
        self.active_at = now
        return [] if self.state is SubscriptionState.CLOSED else self._close(SubscriptionEnded(fault))

    def finish(self) -> list[EngineOutput]:
        """End after the last element of the feed, once all are confirmed."""
        return self._end(SubscriptionEnded(None))

    def fail(self, fault: Fault) -> list[EngineOutput]:
        """End because the feed cannot supply its elements, even if it has come to its end."""
        return self._end(SubscriptionEnded(fault))

    def cancel(self) -> list[EngineOutput]:
        """Close at the subscriber's wish. Nothing is sent, however often it is called (3.5, 3.7)."""
        self.state = SubscriptionState.CLOSED
        return [ElementsWithdrawn()] if self.unconfirmed else []

    def idle_seconds(self, now: float) -> float:
        """Return the seconds since the last activity; waiting for the broker is none of them."""
        return 0 if self.unconfirmed else now - self.active_at

    def check_idle(self, now: float, timeout: float, *, feed_has_timeout: bool = False) -> list[EngineOutput]:
        """End after `timeout` idle seconds, even before the first request.

        A feed that yields nothing is idle, too, unless its pages have a timeout of their own.
        """
        if self.state is SubscriptionState.CLOSED:
            return []
        if self.unconfirmed or (self.is_reading and feed_has_timeout):
            self.active_at = now
        return self._close(SubscriptionEnded(EndReason.IDLE)) if now - self.active_at >= timeout else []

    def revoke(self, reason: Fault | EndReason) -> list[EngineOutput]:
        """End by an operator or at shutdown, even before the first request."""
        return [] if self.state is SubscriptionState.CLOSED else self._close(SubscriptionEnded(reason))

    def _end(self, ended: SubscriptionEnded) -> list[EngineOutput]:
        if self._held_end is None or self._held_end.reason is None:
            self._held_end = ended
        return self._close_if_due()

    def _close_if_due(self) -> list[EngineOutput]:
        """Send the held end, unless it waits for the first request, or `complete` for confirms."""
        ended = self._held_end
        if ended is None or self.state is SubscriptionState.CLOSED:
            return []
        if self.state is SubscriptionState.WAITING and self._terminal_needs_request:
            return []
        return [] if ended.reason is None and self.unconfirmed else self._close(ended)

    def _close(self, ended: SubscriptionEnded) -> list[EngineOutput]:
        self.state = SubscriptionState.CLOSED
        return [ElementsWithdrawn(), ended] if self.unconfirmed else [ended]
