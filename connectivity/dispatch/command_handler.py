"""Handles commands on things and policies.

It decides them now, reads the past for them, or passes them to the device. A command that requests acknowledgements waits
for them (`connectivity.dispatch.request_reply`). A retrieve of the past is checked at once and answered when the past is
read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from connectivity.dispatch.command_executor import CommandExecutor, Sender, refusal_of
from connectivity.dispatch.effects import (
    Batch,
    CommandResponse,
    Effect,
    ForwardEffect,
    RespondEffect,
    internal_error_of,
    log_fields,
)
from connectivity.dispatch.request_reply import RequestReply
from connectivity.dispatch.responder import Responder
from connectivity.errors import TwinError
from connectivity.sources.acknowledgements import (
    ACK_HEADERS,
    NOTHING,
    RequestedAcks,
    channel_of,
    has_no_ack_headers,
    outcome_of_error,
    requested_acks,
)
from connectivity.sources.deduplication import name_of_signal
from connectivity.sources.delivery import InboundDelivery
from connectivity.sources.reader import ReceivedSignal
from connectivity.store.past_state import state_at
from connectivity.store.store import Store
from connectivity.transports.base import Outcome
from connectivity.twins.access import has_any_permission
from connectivity.twins.decider import LIVE_CONDITION, NO_NAME, Decider, asks_for_past
from connectivity.twins.incarnations import enforcer_of
from connectivity.twins.retrieval import PAST_HEADERS
from mappings.errors import INTERNAL_ERROR, Fault
from mappings.ids import EntityType
from mappings.model.headers import response_required
from mappings.model.signals import Command, ErrorResponse, LiveCommand
from spark_store.errors import HistoryUnavailable
from spark_store.records import PastQuery

log = structlog.get_logger(__name__)

_SPECIAL = frozenset((LIVE_CONDITION, *PAST_HEADERS, *ACK_HEADERS))
"""Headers that few commands have: for speed the others are not asked about them one by one."""


class CommandHandler:
    """Handles commands."""

    signals = (Command,)
    has_side_effects = False

    def __init__(
        self,
        store: Store,
        decider: Decider,
        executor: CommandExecutor,
        request_reply: RequestReply,
        responder: Responder,
    ) -> None:
        self._store = store
        self._decider = decider
        self._executor = executor
        self._request_reply = request_reply
        self._responder = responder
        self._past_retrieves: set[asyncio.Task[None]] = set()

    def handle(
        self, signal: Command, received_signal: ReceivedSignal, arrival: InboundDelivery, batch: Batch
    ) -> Sequence[Effect]:
        if _SPECIAL.isdisjoint(signal.headers):
            return [self._execute(signal, received_signal, arrival, batch, None)]
        if LIVE_CONDITION in signal.headers and signal.action == "retrieve" and response_required(signal.headers):
            return [self._query_device(signal, received_signal, arrival)]
        if asks_for_past(signal):
            return [self._check_past_retrieve(signal, received_signal, arrival, batch)]
        return [self._execute(signal, received_signal, arrival, batch, self._requested_acks(signal, arrival))]

    def _execute(
        self,
        command: Command,
        received_signal: ReceivedSignal,
        arrival: InboundDelivery,
        batch: Batch,
        requested: RequestedAcks | ErrorResponse | None,
    ) -> RespondEffect:
        """Decide a command, and wait for acknowledgements if it requests others.

        `requested` of None: it has no headers about them.
        """
        response: CommandResponse
        if command.entity.name == NO_NAME and command.entity.type is EntityType.THING:
            return self._retrieve_several(command, received_signal, arrival)
        if isinstance(requested, ErrorResponse):
            response = requested
        else:
            key = name_of_signal(command, received_signal, arrival)
            labels = requested.labels if requested is not None else ()
            response = self._executor.execute(command, Sender(arrival, arrival.received.subjects, key, labels), batch)
        pending = None
        if isinstance(response, ErrorResponse):
            has_labels = (
                bool(requested.labels) if isinstance(requested, RequestedAcks) else channel_of(command) is not None
            )
            if response.fault is INTERNAL_ERROR and command.action != "retrieve":
                # It would fail again, and its sender has got the response.
                arrival.note(Outcome.DROPPED, is_done=False)
            elif has_labels:
                arrival.note(outcome_of_error(response.fault), is_done=False)
        elif isinstance(requested, RequestedAcks) and not requested.is_plain("twin"):
            pending = self._request_reply.hold(command, requested, received_signal, arrival)
        return RespondEffect(arrival, response, received_signal.route, pending)

    def _retrieve_several(
        self, command: Command, received_signal: ReceivedSignal, arrival: InboundDelivery
    ) -> RespondEffect:
        """Decide a retrieve of several things; the responder encodes them. Raises StoreUnavailable."""
        try:
            several = self._decider.retrieve_several(command, arrival.received.subjects)
        except TwinError as refused:
            return RespondEffect(arrival, refusal_of(command, refused), received_signal.route)
        return RespondEffect(arrival, several.response, received_signal.route, several=several)

    def _requested_acks(self, command: Command, arrival: InboundDelivery) -> RequestedAcks | ErrorResponse | None:
        """Return the acknowledgements that a command requests, or the error if they are not possible."""
        if has_no_ack_headers(command.headers):
            return None
        channel = channel_of(command)
        requested = requested_acks(command.headers, channel) if channel is not None else NOTHING
        if isinstance(requested, Fault):
            return ErrorResponse(command.entity, command.entity.type.group, requested, command.headers)
        if requested.is_plain("twin"):
            return requested
        return self._duplicate(command, arrival) or requested

    def _duplicate(self, command: Command, arrival: InboundDelivery) -> ErrorResponse | None:
        """Return the error if a signal with the same correlation ID waits.

        A sender without any permission on the entity gets the error of a missing one.
        """
        fault = self._request_reply.duplicate(command, arrival)
        if fault is None:
            return None
        subjects = arrival.received.subjects
        if not has_any_permission(command.entity, enforcer_of(command.entity, self._decider.world), subjects):
            try:
                self._decider.decide(command, subjects)
            except TwinError as refused:
                return refusal_of(command, refused)
        return ErrorResponse(command.entity, command.entity.type.group, fault, command.headers)

    def _query_device(self, command: Command, received_signal: ReceivedSignal, arrival: InboundDelivery) -> Effect:
        """Query the device if the command's live condition holds, else the twin. Raises StoreUnavailable."""
        route = received_signal.route
        try:
            decision = self._decider.decide(command, arrival.received.subjects)
            if not decision.is_for_device:
                return RespondEffect(arrival, decision.response, route)
            headers = {**command.headers, "channel": "live"}
            query = LiveCommand(command.entity, command.action, command.path, None, headers, fields=command.fields)
            live_delivery = self._request_reply.prepare(query, route, arrival)
        except TwinError as refused:
            return RespondEffect(arrival, refusal_of(command, refused), route)
        if isinstance(live_delivery, ErrorResponse):
            return RespondEffect(arrival, live_delivery, route)
        if live_delivery.pending is not None and command.headers.get("live-channel-timeout-strategy") == "use-twin":
            live_delivery.pending.fallback = decision.response
        return ForwardEffect(arrival, live_delivery.send, headers, live_delivery.pending)

    def _check_past_retrieve(
        self, command: Command, received_signal: ReceivedSignal, arrival: InboundDelivery, batch: Batch
    ) -> Effect:
        """Check a retrieve of the past, which is then answered asynchronously. Raises StoreUnavailable."""
        try:
            query = self._decider.needed_past(command, arrival.received.subjects)
        except TwinError as refused:
            return RespondEffect(arrival, refusal_of(command, refused), received_signal.route)
        if query is None:
            return self._execute(command, received_signal, arrival, batch, self._requested_acks(command, arrival))
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
        response: CommandResponse
        try:
            past = await state_at(self._store, query)
            response = self._decider.show_past(command, arrival.received.subjects, past).response
        except TwinError as refused:
            response = refusal_of(command, refused)
        except HistoryUnavailable as error:
            log.error(
                "history unavailable",
                reason=str(error),
                entity=str(command.entity),
                **log_fields(arrival, command.headers),
            )
            response = ErrorResponse(command.entity, command.entity.type.group, error.fault, command.headers)
        except Exception:
            log.exception("past state not retrieved", **log_fields(arrival, command.headers))
            response = internal_error_of(command)
        self._responder.carry_out(RespondEffect(arrival, response, received_signal.route))
