"""Carries out the effects of signals: sends responses, forwards signals, lets session handlers reply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

import structlog

from connectivity.dispatch.effects import (
    CommandResponse,
    Effect,
    ForwardEffect,
    RespondEffect,
    SessionEffect,
    internal_error,
    log_fields,
)
from connectivity.dispatch.request_reply import RequestReply
from connectivity.dispatch.response_router import ResponseRouter
from connectivity.sessions.base import SessionHandler
from connectivity.sources.acknowledgements import ZERO_TIMEOUT
from connectivity.sources.delivery import InboundDelivery
from connectivity.twins.retrieval import SeveralThings
from mappings.errors import INTERNAL_ERROR
from mappings.model.signals import ErrorResponse, Response

log = structlog.get_logger(__name__)

_SLICE_SECONDS: Final = 0.003
"""How long the things of one response are encoded before other work gets its turn."""


class Responder:
    """Carries out effects."""

    def __init__(
        self, replies: ResponseRouter, request_reply: RequestReply, session_handlers: Mapping[str, SessionHandler]
    ) -> None:
        """`session_handlers`: by protocol."""
        self._replies = replies
        self._request_reply = request_reply
        self._session_handlers = session_handlers

    def carry_out(self, step: Effect, error: BaseException | None = None) -> None:
        """Carry out an effect. Errors are logged only.

        `error`: why the changes of the delivery are not stored, which are durable otherwise.
        """
        try:
            if isinstance(step, SessionEffect):
                step.reply(error, step.arrival.respond())
            elif isinstance(step, ForwardEffect):
                step.forward()
            elif error is None or step.response is step.arrival.received.error:
                self._respond(step)
            else:
                self.drop(step)
                log.error("change not stored", exc_info=error, **log_fields(step.arrival, step.response.headers))
                self._respond(RespondEffect(step.arrival, internal_error(step.response), step.route))
        except Exception:
            step.arrival.fail()
            headers = step.response.headers if isinstance(step, RespondEffect) else step.headers
            log.exception("response not sent", **log_fields(step.arrival, headers))

    def drop(self, step: Effect) -> None:
        """Drop the pending request of an effect that is not carried out."""
        if step.pending is not None:
            self._request_reply.pending.drop(step.pending)

    def log_refusal(self, arrival: InboundDelivery, answer: ErrorResponse) -> None:
        """Count and log an error response."""
        is_unread = answer is arrival.received.error
        if answer.fault is INTERNAL_ERROR:
            # The error is already in the log.
            arrival.route.meter.inbound("failed")
            return
        arrival.route.meter.inbound("malformed" if is_unread and arrival.received.is_enforced else "refused")
        log.info(
            "delivery refused" if is_unread else "command refused",
            **log_fields(arrival, answer.headers),
            entity=str(answer.entity) if answer.entity is not None else None,
            status=answer.fault.status,
            error=answer.fault.error,
        )

    def _respond(self, step: RespondEffect) -> None:
        """Send a response, or add it to the acknowledgements that the request waits for."""
        arrival, response, route, pending, several = step
        if several is not None:
            self._encode_several(step, several)
            return
        if pending is not None and isinstance(response, Response):
            self._request_reply.command_persisted(pending, response)
            return
        is_unread = response is arrival.received.error
        is_unasked = is_unread
        if isinstance(response, ErrorResponse):
            self.log_refusal(arrival, response)
            if (handler := self._session_handlers.get(route.mapper.protocol)) is not None:
                handler.refuse(response, route, arrival, arrival.respond())
                return
            is_unasked = is_unread or response.fault is ZERO_TIMEOUT
        self._replies.post(route, response, arrival.respond(), arrival, unasked=is_unasked)

    def _encode_several(self, step: RespondEffect, several: SeveralThings) -> None:
        """Encode more things of a response for some time, and send it when it is complete."""
        began = time.perf_counter()
        response: CommandResponse
        try:
            while several.encode_more():
                if time.perf_counter() - began > _SLICE_SECONDS:
                    asyncio.get_running_loop().call_soon(self._encode_several, step, several)
                    return
            response = several.complete()
        except Exception:
            log.exception("things not retrieved", **log_fields(step.arrival, step.response.headers))
            response = internal_error(step.response)
        self.carry_out(RespondEffect(step.arrival, response, step.route))
