"""Handles subscribe, request and cancel: passes them to the subscription manager."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from connectivity.dispatch.effects import Batch, Effect
from connectivity.sources.deduplication import name_of_signal
from connectivity.sources.delivery import InboundDelivery
from connectivity.sources.reader import ReceivedSignal
from connectivity.subscriptions.manager import Subscriber, SubscriptionManager
from connectivity.targets.open_connection import ConnectionComponent
from mappings.model.signals import Cancel, Request, Subscribe


class SubscriptionHandler(ConnectionComponent):
    """Handles the signals of subscriptions."""

    signals = (Subscribe, Request, Cancel)
    has_side_effects = True

    def __init__(self, subscriptions: SubscriptionManager) -> None:
        self._subscriptions = subscriptions
        # One object for each subscriber, because subscriptions keep it.
        self._subscriber = lru_cache(maxsize=1024)(Subscriber)

    def closed(self, connection_id: str) -> None:  # noqa: ARG002 - others are made again
        self._subscriber.cache_clear()

    def handle(
        self,
        signal: Subscribe | Request | Cancel,
        received_signal: ReceivedSignal,
        arrival: InboundDelivery,
        batch: Batch,  # noqa: ARG002 - nothing is stored
    ) -> Sequence[Effect]:
        route = received_signal.route
        subscriber = self._subscriber(
            route, arrival.received.subjects, route.connection_id, reader=arrival.delivery.reader
        )
        if isinstance(signal, Subscribe):
            # Beside other signals, it acts after their commit, when the connection may be closed.
            if not arrival.ledger.is_closed:
                self._subscriptions.subscribe(signal, subscriber)
            return ()
        key = name_of_signal(signal, received_signal, arrival)
        # A retry of a delivery that the broker has not marked has not carried it out: it acts after the commit.
        is_marked = key.may_be_repeated and key.own is None
        if key.name is not None and arrival.ledger.is_executed(key.name, may_be_repeated=is_marked):
            arrival.route.meter.inbound("answered_again")
        elif isinstance(signal, Request):
            self._subscriptions.request(signal, subscriber)
        else:
            self._subscriptions.cancel(signal, subscriber)
        return ()
