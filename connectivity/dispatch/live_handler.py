"""Handles live signals, and responses and acknowledgements: forwards them between connections."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from connectivity.dispatch.effects import Batch, Effect, ForwardEffect, RespondEffect, internal_error_of, log_fields
from connectivity.dispatch.request_reply import RequestReply
from connectivity.dispatch.responder import Responder
from connectivity.sources.delivery import InboundDelivery
from connectivity.sources.reader import ReceivedSignal
from mappings.model.signals import (
    Acknowledgement,
    ErrorResponse,
    Live,
    LiveAnswer,
    LiveCommand,
    LiveEvent,
    LiveResponse,
    Message,
    MessageResponse,
)

log = structlog.get_logger(__name__)


class LiveHandler:
    """Handles live signals. Raises StoreUnavailable, since permissions are checked."""

    signals = (Message, LiveCommand, LiveEvent)

    def __init__(self, request_reply: RequestReply) -> None:
        self._request_reply = request_reply

    def handle(
        self,
        signal: Live,
        received_signal: ReceivedSignal,
        arrival: InboundDelivery,
        batch: Batch,  # noqa: ARG002 - nothing is stored
    ) -> Sequence[Effect]:
        live_delivery = self._request_reply.prepare(signal, received_signal.route, arrival)
        if isinstance(live_delivery, ErrorResponse):
            return [RespondEffect(arrival, live_delivery, received_signal.route)]
        return [ForwardEffect(arrival, live_delivery.send, signal.headers, live_delivery.pending)]


class ReplyHandler:
    """Handles responses and acknowledgements to signals that wait for them."""

    signals = (MessageResponse, LiveResponse, Acknowledgement)

    def __init__(self, request_reply: RequestReply, responder: Responder) -> None:
        self._request_reply = request_reply
        self._responder = responder

    def handle(
        self,
        signal: LiveAnswer | Acknowledgement,
        received_signal: ReceivedSignal,
        arrival: InboundDelivery,
        batch: Batch,  # noqa: ARG002 - nothing is stored
    ) -> Sequence[Effect]:
        if arrival.is_single:
            refused = self._pass_on(signal, arrival)
            return [RespondEffect(arrival, refused, received_signal.route)] if refused is not None else ()
        # In its place among the effects of the other signals.
        return [ForwardEffect(arrival, lambda: self._pass_on_later(signal, received_signal, arrival), signal.headers)]

    def _pass_on(self, signal: LiveAnswer | Acknowledgement, arrival: InboundDelivery) -> ErrorResponse | None:
        """Pass a response or acknowledgement to its request; return an error response if it is refused."""
        if isinstance(signal, Acknowledgement):
            return self._request_reply.acknowledge(signal, arrival)
        return self._request_reply.answer(signal, arrival)

    def _pass_on_later(
        self, signal: LiveAnswer | Acknowledgement, received_signal: ReceivedSignal, arrival: InboundDelivery
    ) -> None:
        try:
            refused = self._pass_on(signal, arrival)
        except Exception:
            log.exception("signal not processed", **log_fields(arrival, signal.headers))
            refused = internal_error_of(signal)
        if refused is None:
            arrival.respond()(None)
        else:
            self._responder.carry_out(RespondEffect(arrival, refused, received_signal.route))
