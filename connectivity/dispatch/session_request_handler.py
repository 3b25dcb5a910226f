"""Handles messages of protocols with sessions: the protocol's session handler processes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from connectivity.dispatch.command_executor import CommandExecutor, Sender
from connectivity.dispatch.effects import Batch, Effect, SessionEffect, internal_error, log_fields
from connectivity.dispatch.responder import Responder
from connectivity.sessions.base import SessionCommand, SessionHandler, SessionReply
from connectivity.sources.delivery import InboundDelivery
from connectivity.sources.reader import ReceivedSignal
from connectivity.transports.base import Done
from mappings.model.signals import ErrorResponse, SessionMessage

log = structlog.get_logger(__name__)


class SessionRequestHandler:
    """Handles messages of sessions."""

    signals = (SessionMessage,)
    has_side_effects = False

    def __init__(
        self, session_handlers: Mapping[str, SessionHandler], executor: CommandExecutor, responder: Responder
    ) -> None:
        """`session_handlers`: by protocol."""
        self._session_handlers = session_handlers
        self._executor = executor
        self._responder = responder

    def handle(
        self, signal: SessionMessage, received_signal: ReceivedSignal, arrival: InboundDelivery, batch: Batch
    ) -> Sequence[Effect]:
        handler = self._session_handlers[received_signal.route.mapper.protocol]
        replies = [
            self._execute(each, arrival, batch) if isinstance(each, SessionCommand) else each
            for each in handler.take(signal, received_signal, arrival, batch)
        ]
        return [SessionEffect(arrival, reply, signal.headers) for reply in replies]

    def _execute(self, session_command: SessionCommand, arrival: InboundDelivery, batch: Batch) -> SessionReply:
        """Execute a command of a session's request. Raises StoreUnavailable."""
        command = session_command.command
        response = self._executor.execute(
            command, Sender(arrival, session_command.subjects, session_command.named), batch
        )

        def reply(error: BaseException | None, ended: Done) -> None:
            answer = response if error is None else internal_error(response)
            if error is not None:
                log.error("change not stored", exc_info=error, **log_fields(arrival, command.headers))
            if isinstance(answer, ErrorResponse):
                self._responder.log_refusal(arrival, answer)
            session_command.on_result(answer, ended)

        return reply
