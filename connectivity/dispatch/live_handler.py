"""Handles live signals, and responses and acknowledgements: forwards them between connections."""

from __future__ import annotations

from collections.abc import Sequence

from connectivity.dispatch.effects import Batch, Effect, ForwardEffect, RespondEffect
from connectivity.dispatch.request_reply import RequestReply
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


class LiveHandler:
    """Handles live signals. Raises StoreUnavailable, since permissions are checked."""

    signals = (Message, LiveCommand, LiveEvent)
    has_side_effects = False

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
    has_side_effects = True

    def __init__(self, request_reply: RequestReply) -> None:
        self._request_reply = request_reply

    def handle(
        self,
        signal: LiveAnswer | Acknowledgement,
        received_signal: ReceivedSignal,
        arrival: InboundDelivery,
        batch: Batch,  # noqa: ARG002 - nothing is stored
    ) -> Sequence[Effect]:
        if isinstance(signal, Acknowledgement):
            refused = self._request_reply.acknowledge(signal, arrival)
        else:
            refused = self._request_reply.answer(signal, arrival)
        return [RespondEffect(arrival, refused, received_signal.route)] if refused is not None else ()
