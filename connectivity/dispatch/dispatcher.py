"""Dispatches the signals of deliveries: to the store, to other connections, to subscriptions.

The commands of a batch are decided in order, each on the results of those before it, and stored together. Responses are sent
once their changes are durable. Deliveries that the store cannot take are handed back for a retry; a change that cannot be
stored for another reason gets an error response. A delivery that requests acknowledgements waits for them
(`connectivity.dispatch.request_reply`).

A redelivered command gets its stored response, a redelivered request or cancel is ignored. A redelivery whose responses are
pending is acknowledged with them; one whose responses the broker refused is acknowledged at once, because they would be
refused again (`connectivity.sources.delivery`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import structlog

from connectivity.dispatch.commands import CommandHandler, Sender
from connectivity.dispatch.effects import (
    CommandResponse,
    Effects,
    ForwardEffect,
    RespondEffect,
    SessionEffect,
    group_by_arrival,
    internal_error,
)
from connectivity.dispatch.pending import PendingRequest
from connectivity.dispatch.request_reply import RequestReply
from connectivity.dispatch.response_router import ResponseRouter
from connectivity.errors import TwinError
from connectivity.monitoring.logs import log_context
from connectivity.sessions import SessionHandlers
from connectivity.sessions.base import SessionCommand, SessionReply
from connectivity.sources.acknowledgements import (
    NOTHING,
    ZERO_TIMEOUT,
    RequestedAcks,
    channel_of,
    has_no_ack_headers,
    outcome_of_error,
    requested_acks,
)
from connectivity.sources.delivery import InboundDelivery, RedeliveryTracker
from connectivity.sources.reader import ReceivedSignal
from connectivity.store.past_state import state_at
from connectivity.store.store import Store
from connectivity.subscriptions.manager import Subscriber, SubscriptionManager
from connectivity.targets.directory import ConnectionDirectory, OpenConnection
from connectivity.targets.event_publisher import EventPublisher
from connectivity.targets.signal_context import ClockedState
from connectivity.transports.base import Done, Outcome, ReaderStatus
from connectivity.twins.decider import LIVE_CONDITION, Decider, asks_for_past
from mappings.errors import INTERNAL_ERROR, Fault
from mappings.model.headers import response_required
from mappings.model.signals import (
    Acknowledgement,
    Cancel,
    Command,
    ErrorResponse,
    Headers,
    LiveAnswer,
    LiveCommand,
    LiveEvent,
    LiveResponse,
    Message,
    MessageResponse,
    PolicyAnnouncement,
    Request,
    Response,
    SessionMessage,
    Subscribe,
)
from spark_store.errors import HistoryUnavailable, RevisionConflict, StoreUnavailable
from spark_store.records import Change, PastQuery

log = structlog.get_logger(__name__)

_MAX_ATTEMPTS = 5
"""How often a command is decided again because a change before it could not be stored."""

Postponed = Callable[[Sequence[InboundDelivery]], None]
"""Takes back deliveries that could not be processed now, for a retry; no response was sent for them."""


class Dispatcher:
    """Decides which part of the service each signal goes to."""

    def __init__(
        self,
        store: Store,
        streams: SubscriptionManager,
        decider: Decider,
        clock: Callable[[], float] = time.monotonic,
        handlers: SessionHandlers | None = None,
    ) -> None:
        """`clock` returns monotonic seconds, for the timeouts of acknowledgements.

        `handlers` are the session handlers, by protocol.
        """
        self._store = store
        self._streams = streams
        self._decider = decider
        self.handlers = handlers or SessionHandlers({})
        self._submitted: set[asyncio.Future[None]] = set()
        """Pending transactions. After one has failed, later deliveries wait until its own are handed back."""
        self._past_retrieves: set[asyncio.Task[None]] = set()
        self._redeliveries = RedeliveryTracker()
        self._directory = ConnectionDirectory()
        self._replies = ResponseRouter(self._directory)
        self.event_publisher = EventPublisher(store, ClockedState(decider.world, decider.now))
        """The targets that are sent the stored events."""
        self._request_reply = RequestReply(
            self._directory, self.event_publisher, self._replies, decider.world, self._redeliveries, clock
        )
        self._subscriber = lru_cache(maxsize=1024)(Subscriber)
        self._commands = CommandHandler(store, decider, lambda: self.event_publisher.has_targets)

    def handle(self, arrivals: Sequence[InboundDelivery], postponed: Postponed) -> None:
        """Process a batch, in order. Returns at once; responses are sent when their changes are durable."""
        if len(arrivals) > 1 and any(arrival.tries for arrival in arrivals):
            # One of them cannot be stored. Process each alone, to find which.
            for arrival in arrivals:
                self.handle([arrival], postponed)
            return
        effects: Effects = []
        changes: list[Change] = []
        remaining = arrivals
        if self._store.is_available and not any(map(_has_failed, self._submitted)):
            try:
                remaining = self._process_all(arrivals, effects, changes)
            except BaseException:
                # The commands decided so far are stored, since others may depend on them; redeliveries get their responses.
                self._drop_pending(effects)
                self._commands.take_announcements()
                self._store.submit(changes)
                raise
        if remaining:
            # At once, so that no later delivery is processed before these.
            postponed(remaining)
        if effects or changes:
            # A barrier even without changes keeps responses in order.
            must_submit = changes or not self._store.is_available
            stored = self._store.submit(changes) if must_submit else self._store.barrier()
            self._submitted.add(stored)
            announced = self._commands.take_announcements()
            stored.add_done_callback(lambda future: self._on_stored(future, effects, postponed, announced))

    def join(self, member: OpenConnection) -> None:
        """Add a connection that was opened, so that its targets get signals of others."""
        self._directory.join(member)

    def reader(self, connection_id: str, address: str, reader_status: ReaderStatus) -> None:
        """Note that a client at a reply address has come or gone."""
        self.handlers.reader(connection_id, address, reader_status)
        if reader_status is ReaderStatus.GONE:
            self._streams.leave(connection_id, address)

    def close_connection(self, connection_id: str) -> None:
        """Remove a connection, and everything that waits for it."""
        self.event_publisher.leave(connection_id)
        self._directory.leave(connection_id)
        self._request_reply.pending.close_connection(connection_id)
        self.handlers.close_connection(connection_id)
        self._streams.close_connection(connection_id)
        self._subscriber.cache_clear()
        self._redeliveries.close_connection(connection_id)

    def announce(self, announcement: PolicyAnnouncement) -> None:
        """Send an announcement to its targets. Errors are logged only."""
        try:
            self._request_reply.announcements.announce(announcement)
        except Exception:
            log.exception("announcement not sent", policy=str(announcement.entity))

    def waiting_deliveries(self, connection_id: str) -> int:
        """Return how many deliveries of a connection wait for acknowledgements."""
        return self._request_reply.pending.waiting_deliveries(connection_id)

    def sweep(self) -> None:
        """Run the periodic work of session handlers; to be called about once a second."""
        self.handlers.sweep()

    def _process_all(
        self, arrivals: Sequence[InboundDelivery], effects: Effects, changes: list[Change]
    ) -> Sequence[InboundDelivery]:
        """Process deliveries until the store cannot be read; return the remaining ones."""
        for position, arrival in enumerate(arrivals):
            try:
                self._process(arrival, effects, changes)
            except StoreUnavailable as error:
                log.error("the store cannot be read", connection=arrival.route.connection_id, reason=str(error))
                arrival.is_again = True
                return arrivals[position:]
        return ()

    def _process(self, arrival: InboundDelivery, effects: Effects, changes: list[Change]) -> None:
        """Process one delivery. Raises StoreUnavailable if it has to be retried."""
        if self._redeliveries.is_answered(arrival):
            return
        arrival.outcome = Outcome.SETTLED
        received = arrival.received
        steps: Effects = []
        is_alone = len(received.signals) == 1 and received.error is None
        if received.error is not None:
            steps.append(RespondEffect(arrival, received.error, received.route or arrival.route))
        elif not received.signals:
            arrival.route.meter.inbound("unread")
        for received_signal in received.signals:
            try:
                steps += self._effects_of(received_signal, arrival, changes, is_alone=is_alone)
            except StoreUnavailable:
                self._drop_pending(steps)
                raise
            except Exception:
                steps.append(self._fail(received_signal, arrival))
        arrival.open = len(steps) or 1
        if not steps:
            # Subscriptions send on their own; acknowledge when the link has taken what was sent before.
            arrival.route.outbox.behind(self._redeliveries.finish_one(arrival), arrival.route.place)
        elif is_alone and isinstance(steps[0], ForwardEffect):
            # It depends on no change, so it does not wait for the store.
            self._apply(steps[0])
        else:
            effects += steps

    def _effects_of(
        self, received_signal: ReceivedSignal, arrival: InboundDelivery, changes: list[Change], *, is_alone: bool
    ) -> Effects:
        """Process one signal by its type. Raises StoreUnavailable."""
        signal = received_signal.signal
        if isinstance(signal, Command):
            return [self._process_command(signal, received_signal, arrival, changes)]
        if isinstance(signal, Subscribe | Request | Cancel):
            self._process_subscription_signal(signal, received_signal, arrival)
            return []
        if isinstance(signal, SessionMessage):
            return self._process_session_request(signal, received_signal, arrival, changes)
        step = self._forward(signal, received_signal, arrival, is_alone=is_alone)
        return [step] if step is not None else []

    def _fail(self, received_signal: ReceivedSignal, arrival: InboundDelivery) -> RespondEffect:
        """Log an internal error, and return the effect that responds to its signal with status 500."""
        signal = received_signal.signal
        log.exception("signal not processed", **_log_fields(arrival, signal.headers))
        entity = signal.query.entity if isinstance(signal, Subscribe) else signal.entity
        group = entity.type.group if entity is not None else "things"
        is_twin = isinstance(signal, Command | Subscribe | Request | Cancel | SessionMessage)
        channel = getattr(signal, "channel", "twin" if is_twin else "live")
        response = ErrorResponse(entity, group, INTERNAL_ERROR, signal.headers, channel)
        return RespondEffect(arrival, response, received_signal.route)

    def _on_stored(
        self,
        stored: asyncio.Future[None],
        effects: Effects,
        postponed: Postponed,
        announced: Sequence[PolicyAnnouncement],
    ) -> None:
        self._submitted.discard(stored)
        retries: list[InboundDelivery] = []
        error = StoreUnavailable("cancelled") if stored.cancelled() else stored.exception()
        if error is None:
            for step in effects:
                self._apply(step)
            for announcement in announced:
                self.announce(announcement)
        elif isinstance(error, StoreUnavailable):
            self._drop_pending(effects)
            retries = list(dict.fromkeys(step.arrival for step in effects))
            for arrival in retries:
                arrival.is_again = True
        else:
            retries = self._handle_store_error(error, effects)
        if retries:
            postponed(retries)

    def _handle_store_error(self, error: BaseException, effects: Effects) -> list[InboundDelivery]:
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
                self._redeliveries.note(arrival, Outcome.REDELIVER, is_done=False)
            for step in steps:
                if isinstance(step, SessionEffect):
                    self._apply(step, error)
                    continue
                if isinstance(step, ForwardEffect) or step.response is arrival.received.error:
                    self._apply(step)
                    continue
                self._drop_pending([step])
                log.error("change not stored", exc_info=error, **_log_fields(arrival, step.response.headers))
                self._apply(RespondEffect(arrival, internal_error(step.response), step.route))
        return retries

    def _drop_pending(self, effects: Effects) -> None:
        """Drop the pending requests of effects that were not carried out."""
        for step in effects:
            if step.pending is not None:
                self._request_reply.pending.drop(step.pending)

    def _apply(self, step: RespondEffect | ForwardEffect | SessionEffect, error: BaseException | None = None) -> None:
        """Carry out an effect whose changes are durable. Errors are logged only.

        `error`: why a session's request is not stored.
        """
        try:
            if isinstance(step, RespondEffect):
                self._respond(step)
            elif isinstance(step, SessionEffect):
                step.reply(error, self._redeliveries.finish_one(step.arrival))
            else:
                step.forward()
        except Exception:
            self._redeliveries.fail(step.arrival)
            headers = step.response.headers if isinstance(step, RespondEffect) else step.headers
            log.exception("response not sent", **_log_fields(step.arrival, headers))

    def _respond(self, answer: RespondEffect) -> None:
        """Send a durable response, or add it to the acknowledgements that the request waits for."""
        arrival, response, route, pending = answer
        if pending is not None and isinstance(response, Response):
            self._request_reply.command_persisted(pending, response)
            return
        unasked = is_unread = response is arrival.received.error
        if isinstance(response, ErrorResponse):
            self._log_refusal(arrival, response, is_unread)
            if (handler := self.handlers.of(route.mapper.protocol)) is not None:
                handler.refuse(response, route, arrival, self._redeliveries.finish_one(arrival))
                return
            unasked = is_unread or response.fault is ZERO_TIMEOUT
        self._replies.post(route, response, self._redeliveries.finish_one(arrival), unasked=unasked)

    def _log_refusal(self, arrival: InboundDelivery, answer: ErrorResponse, is_unread: bool) -> None:
        if answer.fault is INTERNAL_ERROR:
            # The error is already in the log.
            arrival.route.meter.inbound("failed")
            return
        arrival.route.meter.inbound("malformed" if is_unread else "refused")
        log.info(
            "delivery refused" if is_unread else "command refused",
            **_log_fields(arrival, answer.headers),
            entity=str(answer.entity) if answer.entity is not None else None,
            status=answer.fault.status,
            error=answer.fault.error,
        )

    def _process_command(
        self, command: Command, received_signal: ReceivedSignal, arrival: InboundDelivery, changes: list[Change]
    ) -> RespondEffect | ForwardEffect:
        if LIVE_CONDITION in command.headers and command.action == "retrieve" and response_required(command.headers):
            return self._query_device(command, received_signal, arrival)
        execute = self._check_past_retrieve if asks_for_past(command) else self._execute
        return execute(command, received_signal, arrival, changes)

    def _query_device(
        self, command: Command, received_signal: ReceivedSignal, arrival: InboundDelivery
    ) -> RespondEffect | ForwardEffect:
        """Query the device if the command's live condition holds, else the twin. Raises StoreUnavailable."""
        try:
            decision = self._decider.decide(command, arrival.received.subjects)
            if not decision.is_for_device:
                return RespondEffect(arrival, decision.response, received_signal.route)
            headers = {**command.headers, "channel": "live"}
            query = LiveCommand(command.entity, command.action, command.path, None, headers, fields=command.fields)
            live_delivery = self._request_reply.prepare(query, received_signal.route, arrival)
        except TwinError as refused:
            refusal = ErrorResponse(command.entity, refused.group, refused.fault, command.headers)
            return RespondEffect(arrival, refusal, received_signal.route)
        if isinstance(live_delivery, ErrorResponse):
            return RespondEffect(arrival, live_delivery, received_signal.route)
        if live_delivery.pending is not None and command.headers.get("live-channel-timeout-strategy") == "use-twin":
            live_delivery.pending.fallback = decision.response
        return ForwardEffect(arrival, live_delivery.send, headers, live_delivery.pending)

    def _execute(
        self, command: Command, received_signal: ReceivedSignal, arrival: InboundDelivery, changes: list[Change]
    ) -> RespondEffect:
        """Decide a command, and wait for acknowledgements if it requests others. Raises StoreUnavailable."""
        requested: RequestedAcks | Fault | None = None
        # Most commands have no headers about acknowledgements; for speed those are not parsed at all.
        if not has_no_ack_headers(command.headers):
            requested = self._requested_acks(command, arrival)
        response: CommandResponse
        if isinstance(requested, Fault):
            response = ErrorResponse(command.entity, command.entity.type.group, requested, command.headers)
        else:
            name, may_be_repeated = self._redeliveries.name(command, received_signal, arrival)
            labels = requested.labels if requested is not None else ()
            response = self._commands.carry_out(
                command, Sender(arrival, arrival.received.subjects, name, may_be_repeated, labels), changes
            )
        pending: PendingRequest | None = None
        if isinstance(response, ErrorResponse):
            has_labels = (
                bool(requested.labels) if isinstance(requested, RequestedAcks) else channel_of(command) is not None
            )
            self._set_outcome(response, command, has_labels, arrival)
        elif isinstance(requested, RequestedAcks) and not requested.is_plain("twin"):
            pending = self._request_reply.hold(command, requested, received_signal.route, arrival)
        return RespondEffect(arrival, response, received_signal.route, pending)

    def _requested_acks(self, command: Command, arrival: InboundDelivery) -> RequestedAcks | Fault:
        """Return the acknowledgements that a command requests, or the fault if they are not possible."""
        channel = channel_of(command)
        requested = requested_acks(command.headers, channel) if channel is not None else NOTHING
        if isinstance(requested, Fault) or requested.is_plain("twin"):
            return requested
        return self._request_reply.duplicate(command, arrival) or requested

    def _set_outcome(
        self, response: ErrorResponse, command: Command, is_asking: bool, arrival: InboundDelivery
    ) -> None:
        """Set the delivery's outcome for a refused command, if it requested acknowledgements or we failed."""
        if is_asking or (response.fault is INTERNAL_ERROR and command.action != "retrieve"):
            self._redeliveries.note(arrival, outcome_of_error(response.fault), is_done=False)

    def _check_past_retrieve(
        self, command: Command, received_signal: ReceivedSignal, arrival: InboundDelivery, changes: list[Change]
    ) -> RespondEffect | ForwardEffect:
        """Check a retrieve of the past, which is then answered asynchronously. Raises StoreUnavailable."""
        try:
            query = self._decider.needed_past(command, arrival.received.subjects)
        except TwinError as refused:
            return RespondEffect(
                arrival,
                ErrorResponse(command.entity, refused.group, refused.fault, command.headers),
                received_signal.route,
            )
        if query is None:
            return self._execute(command, received_signal, arrival, changes)
        return ForwardEffect(
            arrival, lambda: self._start_past_retrieve(command, query, received_signal, arrival), command.headers
        )

    def _start_past_retrieve(
        self, command: Command, query: PastQuery, received_signal: ReceivedSignal, arrival: InboundDelivery
    ) -> None:
        retrieving = asyncio.get_running_loop().create_task(
            self._retrieve_past(command, query, received_signal, arrival)
        )
        self._past_retrieves.add(retrieving)
        retrieving.add_done_callback(self._past_retrieves.discard)

    async def _retrieve_past(
        self, command: Command, query: PastQuery, received_signal: ReceivedSignal, arrival: InboundDelivery
    ) -> None:
        group = command.entity.type.group
        response: CommandResponse
        try:
            past = await state_at(self._store, query)
            response = self._decider.show_past(command, arrival.received.subjects, past).response
        except TwinError as refused:
            response = ErrorResponse(command.entity, refused.group, refused.fault, command.headers)
        except HistoryUnavailable as error:
            log.error(
                "history unavailable",
                reason=str(error),
                entity=str(command.entity),
                **_log_fields(arrival, command.headers),
            )
            response = ErrorResponse(command.entity, group, error.fault, command.headers)
        except Exception:
            log.exception("past state not retrieved", **_log_fields(arrival, command.headers))
            response = ErrorResponse(command.entity, group, INTERNAL_ERROR, command.headers)
        self._apply(RespondEffect(arrival, response, received_signal.route))

    def _forward(
        self,
        signal: Message | LiveCommand | LiveEvent | LiveAnswer | Acknowledgement,
        received_signal: ReceivedSignal,
        arrival: InboundDelivery,
        *,
        is_alone: bool,
    ) -> RespondEffect | ForwardEffect | None:
        """Return the effect that forwards a signal, or an error response. Raises StoreUnavailable.

        An acknowledgement or live response that `is_alone` in its delivery is passed on at once, perhaps without effect.
        """
        if isinstance(signal, Acknowledgement | MessageResponse | LiveResponse):
            if is_alone:
                response = self._pass_to_request(signal, arrival)
                return RespondEffect(arrival, response, received_signal.route) if response is not None else None
            return ForwardEffect(
                arrival, lambda: self._pass_to_request_later(signal, received_signal, arrival), signal.headers
            )
        live_delivery = self._request_reply.prepare(signal, received_signal.route, arrival)
        if isinstance(live_delivery, ErrorResponse):
            return RespondEffect(arrival, live_delivery, received_signal.route)
        return ForwardEffect(arrival, live_delivery.send, signal.headers, live_delivery.pending)

    def _pass_to_request(self, signal: LiveAnswer | Acknowledgement, arrival: InboundDelivery) -> ErrorResponse | None:
        """Pass a response or acknowledgement to its request; return an error response if it is refused."""
        if isinstance(signal, Acknowledgement):
            return self._request_reply.acknowledge(signal, arrival)
        return self._request_reply.answer(signal, arrival)

    def _pass_to_request_later(
        self, signal: LiveAnswer | Acknowledgement, received_signal: ReceivedSignal, arrival: InboundDelivery
    ) -> None:
        try:
            response = self._pass_to_request(signal, arrival)
        except Exception:
            self._respond(self._fail(received_signal, arrival))
            return
        if response is not None:
            self._respond(RespondEffect(arrival, response, received_signal.route))
        else:
            self._redeliveries.finish_one(arrival)(None)

    def _process_session_request(
        self, request: SessionMessage, received_signal: ReceivedSignal, arrival: InboundDelivery, changes: list[Change]
    ) -> Effects:
        """Have the protocol's session handler process a request. Raises StoreUnavailable."""
        handler = self.handlers.of(received_signal.route.mapper.protocol)
        assert handler is not None, "a protocol with sessions has a session handler"
        replies = [
            self._execute_session_command(each, arrival, changes) if isinstance(each, SessionCommand) else each
            for each in handler.take(request, received_signal, arrival, changes)
        ]
        return [SessionEffect(arrival, say, request.headers) for say in replies]

    def _execute_session_command(
        self, session_command: SessionCommand, arrival: InboundDelivery, changes: list[Change]
    ) -> SessionReply:
        """Execute a command of a session's request. Raises StoreUnavailable."""
        command, named = session_command.command, session_command.named
        response = self._commands.carry_out(
            command, Sender(arrival, session_command.subjects, named.name, named.may_be_repeated), changes
        )

        def say(error: BaseException | None, ended: Done) -> None:
            answer = response if error is None else internal_error(response)
            if error is not None:
                log.error("change not stored", exc_info=error, **_log_fields(arrival, command.headers))
            if isinstance(answer, ErrorResponse):
                self._log_refusal(arrival, answer, is_unread=False)
            session_command.on_result(answer, ended)

        return say

    def _process_subscription_signal(
        self, signal: Subscribe | Request | Cancel, received_signal: ReceivedSignal, arrival: InboundDelivery
    ) -> None:
        # One cached object for each subscriber, because subscriptions keep it.
        reader = arrival.delivery.reader
        subscriber = self._subscriber(
            received_signal.route, arrival.received.subjects, received_signal.route.connection_id, reader=reader
        )
        if isinstance(signal, Subscribe):
            self._streams.subscribe(signal, subscriber)
        elif self._redeliveries.is_known_request(signal, received_signal, arrival):
            arrival.route.meter.inbound("answered_again")
        elif isinstance(signal, Request):
            self._streams.request(signal, subscriber)
        else:
            self._streams.cancel(signal, subscriber)


def _has_failed(stored: asyncio.Future[None]) -> bool:
    return stored.done() and (stored.cancelled() or stored.exception() is not None)


def _log_fields(arrival: InboundDelivery, headers: Headers) -> dict[str, Any]:
    """Return the log fields of a delivery and its conversation."""
    return {
        "connection": arrival.route.connection_id,
        "source": arrival.route.index,
        "address": arrival.delivery.address,
        **log_context(headers),
    }
