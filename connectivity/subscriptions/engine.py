"""The subscription engine: demand, and what may be sent because of it.

One `Subscription` is one subscriber's side of a reactive stream, for every wire protocol and every kind of feed. It does no
input or output, knows no clock and keeps no elements: whoever drives it (`connectivity.subscriptions.manager`) draws from
the feed only what `wanted` allows and offers that. Each call returns what has to be sent, oldest first.

    state     request(n)             offer        finish, fail                 cancel   expire, revoke
    WAITING   FLOWING                –            kept for the first request   CLOSED   CLOSED, Ended
    FLOWING   demand grows           Emitted      CLOSED, Ended                CLOSED   CLOSED, Ended
    CLOSED    Ended(CANCELLED)       –            –                            –        –

A request for nothing or less ends a live subscription with INVALID_DEMAND (reactive-streams rule 3.9), whatever else was
about to be said. Where a protocol lets a terminal signal come before the first request, or brings demand with the
subscribe, the subscription is FLOWING from the start.

Always true: never more elements than were requested (1.1); at most one terminal signal, and it is last (1.7, apart from
the answers to requests that come too late); demand adds up (3.8) and counts as unbounded at its cap (3.17).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from mappings.errors import Fault
from mappings.model.signals import EndReason

UNBOUNDED = 2**63 - 1
"""The greatest demand; from here on it is not counted any more (reactive-streams rule 3.17)."""


class SubscriptionState(Enum):
    WAITING = "no request yet"
    FLOWING = "live"
    CLOSED = "over"


@dataclass(frozen=True, slots=True)
class ElementsEmitted:
    """Elements to send, in order."""

    elements: Sequence[Any]


@dataclass(frozen=True, slots=True)
class SubscriptionEnded:
    """The terminal signal to send: `reason` of None means complete."""

    reason: Fault | EndReason | None


Output: TypeAlias = ElementsEmitted | SubscriptionEnded


class Subscription:
    """Demand and terminal signal of one subscriber. `sent` counts the elements that were sent because of the demand."""

    __slots__ = ("_held", "_patient", "demand", "sent", "state")

    def __init__(self, *, terminal_needs_request: bool, demand: int = 0) -> None:
        """`demand` is what came with the subscribe itself; `terminal_needs_request` the wire protocol's rule."""
        self._patient = terminal_needs_request
        self._held: SubscriptionEnded | None = None
        self.demand = min(demand, UNBOUNDED)
        self.sent = 0
        self.state = SubscriptionState.FLOWING if demand or not terminal_needs_request else SubscriptionState.WAITING

    def __repr__(self) -> str:
        return f"<Subscription {self.state.value}, demand {self.demand}>"

    @property
    def wanted(self) -> int:
        """How many elements may be offered now."""
        return self.demand if self.state is SubscriptionState.FLOWING else 0

    @property
    def is_closed(self) -> bool:
        return self.state is SubscriptionState.CLOSED

    def request(self, demand: int) -> list[Output]:
        """The subscriber asks for `demand` more elements."""
        if self.state is SubscriptionState.CLOSED:
            return [SubscriptionEnded(EndReason.CANCELLED)]
        if demand <= 0:
            return self._close(SubscriptionEnded(EndReason.INVALID_DEMAND))
        self.state = SubscriptionState.FLOWING
        self.demand = min(self.demand + demand, UNBOUNDED)
        return self._close(self._held) if self._held else []

    def offer(self, elements: Sequence[Any]) -> list[Output]:
        """The feed has supplied elements. Offering more than `wanted` is a mistake in our own code: ValueError."""
        if self.state is SubscriptionState.CLOSED or not elements:
            return []
        if len(elements) > self.wanted:
            raise ValueError(f"{len(elements)} elements offered, {self.wanted} wanted")
        if self.demand < UNBOUNDED:
            self.demand -= len(elements)
        self.sent += len(elements)
        return [ElementsEmitted(elements)]

    def finish(self) -> list[Output]:
        """The feed has no more elements."""
        return self._end(SubscriptionEnded(None))

    def fail(self, fault: Fault) -> list[Output]:
        """The feed cannot supply its elements."""
        return self._end(SubscriptionEnded(fault))

    def cancel(self) -> list[Output]:
        """The subscriber wants no more. Nothing is answered, however often it is said (3.5, 3.7)."""
        self.state = SubscriptionState.CLOSED
        return []

    def expire(self) -> list[Output]:
        """Nothing has happened for too long. No request has to precede this end."""
        return [] if self.state is SubscriptionState.CLOSED else self._close(SubscriptionEnded(EndReason.IDLE))

    def revoke(self, reason: Fault | EndReason) -> list[Output]:
        """An operator ends it, or the service stops. Nor has a request to precede this end."""
        return [] if self.state is SubscriptionState.CLOSED else self._close(SubscriptionEnded(reason))

    def _end(self, ended: SubscriptionEnded) -> list[Output]:
        if self.state is SubscriptionState.CLOSED or self._held:
            return []
        if self.state is SubscriptionState.WAITING and self._patient:
            self._held = ended
            return []
        return self._close(ended)

    def _close(self, ended: SubscriptionEnded) -> list[Output]:
        self.state = SubscriptionState.CLOSED
        return [ended]
