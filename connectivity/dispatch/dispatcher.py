"""Routes the signals of deliveries to their handlers.

Their effects are carried out once the changes are durable. The signals of a batch are processed in order, each on the
results of those before it, and their changes are stored together. Deliveries that the store cannot take are handed back for
a retry; a change that cannot be stored for another reason gets an error response. Each type of signal has one handler
(`connectivity.dispatch.effects.SignalHandler`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import structlog

from connectivity.dispatch.announcements import PolicyAnnouncements
from connectivity.dispatch.effects import (
    Batch,
    Effect,
    ForwardEffect,
    RespondEffect,
    SessionEffect,
    SignalHandler,
    group_by_arrival,
    internal_error_of,
    log_fields,
)
from connectivity.dispatch.responder import Responder
from connectivity.sources.delivery import InboundDelivery
from connectivity.sources.reader import ReceivedSignal
from connectivity.store.store import Store
from connectivity.transports.base import Outcome
from spark_store.errors import RevisionConflict, StoreUnavailable
from spark_store.rql.pace import SearchPace

log = structlog.get_logger(__name__)

_MAX_ATTEMPTS = 5
"""How often a command is decided again because a change before it could not be stored."""

Postponed = Callable[[Sequence[InboundDelivery]], None]
"""Takes back deliveries that could not be processed now, for a retry; no response was sent for them."""


class Dispatcher:
    """Routes signals, and stores batches."""

    def __init__(
        self,
        store: Store,
        handlers: Iterable[SignalHandler],
        responder: Responder,
        announcements: PolicyAnnouncements,
        search_pace: SearchPace,
    ) -> None:
        self._store = store
        self._handlers = {kind: handler for handler in handlers for kind in handler.signals}
        self._responder = responder
        self._announcements = announcements
        self._search_pace = search_pace
        self._submitted: set[asyncio.Future[None]] = set()
        """Pending transactions. After one has failed, later deliveries wait until its own are handed back."""

    def handle(self, arrivals: Sequence[InboundDelivery], postponed: Postponed) -> None:
        """Process a batch, in order. Returns at once; responses are sent when their changes are durable."""
        if len(arrivals) > 1 and any(arrival.tries for arrival in arrivals):
            self._handle_singly(arrivals, postponed)
            return
        batch = Batch()
        remaining = arrivals
        if self._store.commits.is_available and not any(map(_has_failed, self._submitted)):
            try:
                remaining = self._process_all(arrivals, batch)
            except BaseException:
                # The commands decided so far are stored, since others may depend on them; redeliveries get their responses.
                self._drop_pending(batch.effects)
                self._store.commits.submit_staged(batch.changes)
                raise
        if remaining:
            # At once, so that no later delivery is processed before these.
            postponed(remaining)
        if batch.effects or batch.changes:
            self._search_pace.busy_at = self._search_pace.now()
            # A barrier even without changes keeps responses in order.
            must_submit = batch.changes or not self._store.commits.is_available
            stored = self._store.commits.submit_staged(batch.changes) if must_submit else self._store.commits.barrier()
            self._submitted.add(stored)
            stored.add_done_callback(lambda future: self._on_stored(future, batch, postponed))

    def _handle_singly(self, arrivals: Sequence[InboundDelivery], postponed: Postponed) -> None:
        """Process each delivery alone until one is handed back, to find the one that cannot be stored."""
        handed_back: list[InboundDelivery] = []

        def hand_back(deliveries: Sequence[InboundDelivery]) -> None:
            handed_back.extend(deliveries)
            postponed(deliveries)

        for position, arrival in enumerate(arrivals, 1):
            self.handle([arrival], hand_back)
            if handed_back:
                # The others wait behind it.
                postponed(arrivals[position:])
                return

    def _process_all(self, arrivals: Sequence[InboundDelivery], batch: Batch) -> Sequence[InboundDelivery]:
        """Process deliveries until the store cannot be read; return the remaining ones."""
        for position, arrival in enumerate(arrivals):
            try:
                self._process(arrival, batch)
            except StoreUnavailable as error:
                log.error("the store cannot be read", connection=arrival.route.connection_id, reason=str(error))
                _note_attempt([arrival], batch)
                return arrivals[position:]
        return ()

    def _process(self, arrival: InboundDelivery, batch: Batch) -> None:
        """Process one delivery. Raises StoreUnavailable if it has to be retried."""
        arrival.outcome = Outcome.SETTLED
        received = arrival.received
        steps: list[Effect] = []
        if received.error is not None:
            steps.append(RespondEffect(arrival, received.error, received.route or arrival.route))
        elif not received.signals:
            arrival.route.meter.inbound("unread")
        for each in received.signals:
            signal = each.signal
            handler = self._handlers[type(signal)]
            if handler.has_side_effects and not arrival.is_single:
                # In its place among the effects of the other signals, and not again if these are retried.
                steps.append(ForwardEffect(arrival, partial(self._act, handler, each, arrival), signal.headers))
                continue
            try:
                steps += handler.handle(signal, each, arrival, batch)
            except StoreUnavailable:
                self._drop_pending(steps)
                raise
            except Exception:
                steps.append(_internal_error(each, arrival))
        arrival.open = len(steps) or 1
        if not steps:
            # Subscriptions send on their own; acknowledge when the link has taken what was sent before.
            arrival.route.outbox.behind(arrival.respond(), arrival.route.source_key)
        elif isinstance(steps[0], ForwardEffect) and arrival.is_single:
            # It depends on no change, so it does not wait for the store.
            self._responder.carry_out(steps[0])
        else:
            batch.effects += steps

    def _act(self, handler: SignalHandler, received_signal: ReceivedSignal, arrival: InboundDelivery) -> None:
        """Have a handler with side effects process one of several signals."""
        try:
            steps = handler.handle(received_signal.signal, received_signal, arrival, Batch())
        except Exception:
            steps = [_internal_error(received_signal, arrival)]
        for step in steps:
            self._responder.carry_out(step)
        if not steps:
            arrival.route.outbox.behind(arrival.respond(), arrival.route.source_key)

    def _on_stored(self, stored: asyncio.Future[None], batch: Batch, postponed: Postponed) -> None:
        self._submitted.discard(stored)
        effects = batch.effects
        retries: Sequence[InboundDelivery] = ()
        error = StoreUnavailable("cancelled") if stored.cancelled() else stored.exception()
        if error is not None:
            for undo in batch.undo:
                undo()
        if error is None:
            for step in effects:
                self._responder.carry_out(step)
            for announcement in batch.announcements:
                self._announcements.announce(announcement)
        elif isinstance(error, StoreUnavailable):
            self._drop_pending(effects)
            retries = list(dict.fromkeys(step.arrival for step in effects))
            _note_attempt(retries, batch)
        else:
            retries = self._handle_store_error(error, effects)
        if retries:
            postponed(retries)

    def _handle_store_error(self, error: BaseException, effects: Sequence[Effect]) -> Sequence[InboundDelivery]:
        """Send an error response for a change that cannot be stored; return the deliveries to retry."""
        deliveries = group_by_arrival(effects)
        retries: list[InboundDelivery] = []
        for arrival, steps in deliveries:
            arrival.tries += 1
            if (len(deliveries) > 1 or isinstance(error, RevisionConflict)) and arrival.tries < _MAX_ATTEMPTS:
                self._drop_pending(steps)
                retries.append(arrival)
                continue
            if not any(isinstance(step, SessionEffect) for step in steps):
                arrival.note(Outcome.DROPPED, is_done=False)
            for step in steps:
                self._responder.carry_out(step, error)
        return retries

    def _drop_pending(self, effects: Sequence[Effect]) -> None:
        """Drop the pending requests of effects that are not carried out."""
        for step in effects:
            self._responder.drop(step)


def _note_attempt(arrivals: Iterable[InboundDelivery], batch: Batch) -> None:
    """Note that deliveries may have been processed, and what was stored then."""
    tried = frozenset(change.answer.answer for change in batch.changes if change.answer is not None)
    for arrival in arrivals:
        arrival.is_again = True
        arrival.tried |= tried


def _internal_error(received_signal: ReceivedSignal, arrival: InboundDelivery) -> RespondEffect:
    """Log the current exception, and return the response to the signal that could not be processed."""
    signal = received_signal.signal
    log.exception("signal not processed", **log_fields(arrival, signal.headers))
    return RespondEffect(arrival, internal_error_of(signal), received_signal.route)


def _has_failed(stored: asyncio.Future[None]) -> bool:
    return stored.done() and (stored.cancelled() or stored.exception() is not None)
