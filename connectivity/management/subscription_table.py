"""The open subscriptions as operators see them: list, count, end one.

The ID of a subscription gives access to it, so only its first characters are shown; they suffice to name one here. The table
is read from `connectivity.subscriptions.manager` on request.
"""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import structlog

from connectivity.errors import OperationRefused
from connectivity.subscriptions.manager import ActiveSubscription, SubscriptionManager
from mappings.errors import Fault
from mappings.model.signals import SubscriptionKind

log = structlog.get_logger(__name__)

SHOWN = 8
"""How many characters of an ID are shown; the hash of one in a session has as many."""

CANCELLED: Mapping[SubscriptionKind, Fault] = {
    SubscriptionKind.HISTORY: Fault(
        410,
        "streaming.subscription.cancelled",
        "The subscription was cancelled by an operator.",
        "To continue, subscribe again from the revision after the last received event.",
    ),
    SubscriptionKind.SEARCH: Fault(
        410,
        "thing-search:subscription.cancelled",
        "The subscription was cancelled by an operator.",
        "To continue, subscribe again for the things after the last received one.",
    ),
    SubscriptionKind.LIVE: Fault(
        410,
        "streaming.subscription.cancelled",
        "The subscription was cancelled by an operator.",
        "To receive further events, subscribe again.",
    ),
}


class SubscriptionTable:
    """The open subscriptions of the service."""

    def __init__(self, streams: SubscriptionManager) -> None:
        self._streams = streams

    def subscription_count(self) -> int:
        """Return the number of open subscriptions."""
        return sum(1 for _ in self._streams)

    def subscriptions(self, limit: int) -> Sequence[Mapping[str, Any]]:
        """Return open subscriptions, `limit` at most.

        `id` (see `_shown_id`), `connection`, `entity` (None if there is none), `demand`, `sent` (elements since it was
        opened), `idle` (whole seconds).
        """
        return [self._row(live) for live in islice(self._streams, limit)]

    def one(self, prefix: str) -> ActiveSubscription:
        """Return the subscription whose shown characters begin like this, or whose whole ID is this.

        Raises OperationRefused: `connectivity:subscription.notfound` (404), `connectivity:subscription.conflict` (409, there
        are several).
        """
        # More characters would confirm a guess of those that are not shown.
        found = list(islice((it for it in self._streams if _is_meant(it, prefix)), 2))
        if not found:
            raise OperationRefused(_unknown(prefix))
        if len(found) > 1:
            raise OperationRefused(_ambiguous(prefix))
        return found[0]

    def cancel(self, live: ActiveSubscription, by: str) -> None:
        """End it, if it has not ended; its client is sent `failed` with `CANCELLED` of its kind."""
        log.info(
            "subscription cancelled",
            connection=live.connection_id,
            subscription=_shown_id(live),
            entity=_entity(live),
            by=by,
        )
        self._streams.revoke(live, CANCELLED[live.kind])

    def _row(self, live: ActiveSubscription) -> Mapping[str, Any]:
        return {
            "id": _shown_id(live),
            "connection": live.connection_id,
            "entity": _entity(live),
            "demand": live.demand,
            "sent": live.sent,
            "idle": self._streams.idle(live),
        }


def _is_meant(live: ActiveSubscription, prefix: str) -> bool:
    is_whole = live.key == prefix and not live.peer.has_session
    return is_whole or (bool(prefix) and _shown_id(live).startswith(prefix))


def _shown_id(live: ActiveSubscription) -> str:
    """Return the ID by which operators name a subscription: the first characters of its own, or a hash.

    In a session, its own ID is a number or the name of a stream, which other sessions use too.
    """
    if not live.peer.has_session:
        return live.key[:SHOWN]
    hashed = hash((live.peer.scope, live.kind, live.key)) & 0xFF_FFFF_FFFF
    return b32encode(hashed.to_bytes(5)).decode()


def _entity(live: ActiveSubscription) -> str | None:
    return str(live.entity) if live.entity is not None else None


def _unknown(prefix: str) -> Fault:
    return Fault(
        404,
        "connectivity:subscription.notfound",
        f"Found no open subscription whose id begins with '{prefix[:SHOWN]}'.",
        "List the open subscriptions. The subscription may have ended already.",
    )


def _ambiguous(prefix: str) -> Fault:
    return Fault(
        409,
        "connectivity:subscription.conflict",
        f"Found several open subscriptions whose ids begin with '{prefix[:SHOWN]}', expected one.",
        "Use more characters of the id.",
    )
