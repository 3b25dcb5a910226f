"""Commands of the Ditto protocol in a client's elements, and their responses.

See reactive-streams-io, both directions. The source defines sender, enforcement and header mapping, as for its deliveries. A
failed command is counted and logged, and the stream goes on. Responses are sent if the operator configures an address, to
commands with `response-required: true`. An element may be processed twice, since its delivery may be retried or redelivered;
its name identifies it, so that a stored command gets its stored response.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import NamedTuple

import msgspec
import structlog

from connectivity.errors import ConnectivityError
from connectivity.monitoring.logs import log_context
from connectivity.sessions.base import SessionCommand, SessionReply
from connectivity.sessions.reactive_streams_io.ingest import Element, Ingest
from connectivity.sessions.reply_channel import ReplyChannel
from connectivity.sources.deduplication import name_of_part
from connectivity.sources.delivery import InboundDelivery
from connectivity.sources.reader import DecodedDelivery, ReceivedSignal, SenderCheck
from connectivity.targets.destination import Destination, context_of
from connectivity.targets.reply_target import ReplyTargetPublisher, failure_of, too_large
from connectivity.transports.base import Done
from connectivity.twins.decider import asks_for_past
from mappings.errors import Fault, MappingError
from mappings.mappers import load_codec
from mappings.model.signals import Command, ErrorResponse, Response
from mappings.placeholders.address import has_address_prefix, resolve_address
from mappings.reactive_streams_io.options import RsioOptions

log = structlog.get_logger(__name__)

_UNANSWERABLE = frozenset({"requested-acks", "live-channel-condition"})
"""Headers of a command that concern responses, which such a client could not receive."""

RESPONSE_REQUIRED = "response-required"


class CommandResponses:
    """The destination of responses to the commands of clients, if the operator configures one."""

    def __init__(self, options: RsioOptions, now: Callable[[], datetime]) -> None:
        self._address = options.ingest_reply
        self._pattern = options.reply_addresses
        self._now = now
        self._codec = load_codec("Ditto")

    def post(
        self,
        answer: Response | ErrorResponse,
        route: ReplyTargetPublisher,
        arrival: InboundDelivery,
        own: str,
        ended: Done,
    ) -> None:
        """Send a response if it is expected. `own` is the address of the session, where only frames may go."""
        address = self._reply_address(answer, route, arrival, own) if _is_reported(answer) else None
        if isinstance(answer, ErrorResponse):
            route.counters.dispatched_error.note(answer, words=failure_of(answer))
        if address is None:
            if isinstance(answer, ErrorResponse):
                route.counters.not_expected.note(answer)
            ended(None)
            return
        self._send(answer, ReplyChannel(route, Destination(address, {})), ended)

    def _send(self, answer: Response | ErrorResponse, channel: ReplyChannel, ended: Done) -> None:
        try:
            envelopes = self._codec.encode(answer, None)
        except MappingError as error:
            log.warning("response not encoded", error=error.fault.message, **log_context(answer.headers))
            ended(None)
            return

        def sent(error: ConnectivityError | None) -> None:
            if (instead := too_large(answer, error)) is not None:
                self._send(instead, channel, ended)
            else:
                ended(error)

        channel.post(envelopes, sent)

    def _reply_address(
        self, answer: Response | ErrorResponse, route: ReplyTargetPublisher, arrival: InboundDelivery, own: str
    ) -> str | None:
        if self._address is None:
            return None
        context = msgspec.structs.replace(
            context_of(answer, self._now, route.connection_id),
            source_address=arrival.delivery.address,
            subjects=arrival.received.subjects,
        )
        try:
            address = resolve_address(self._address, context, route.key_mark)
            reason = "the reply address has no value" if address is None else self._unmeant(address, own, route)
        except MappingError as error:
            address, reason = None, error.fault.message
        if reason is None:
            return address
        log.warning(
            "signal has no address",
            connection=route.connection_id,
            source=route.index,
            reply_to=address,
            reason=reason,
            **log_context(answer.headers),
        )
        return None

    def _unmeant(self, address: str, own: str, route: ReplyTargetPublisher) -> str | None:
        """Why answers may not go to an address, which came with a command."""
        assert self._address is not None, "callers check that a reply address is configured"
        if address == own:
            return "the session's frames go to this address"
        if self._address.is_constant:
            return None
        first = self._address.parts[0]
        beginning = first if isinstance(first, str) else ""
        if self._pattern is not None and not beginning:
            is_meant = self._pattern.allows(address, route.key_mark)
        else:
            is_meant = has_address_prefix(address, beginning, route.key_mark) and (
                bool(beginning) or route.allows(address)
            )
        return None if is_meant else "the reply address is not allowed"


class CommandSender(NamedTuple):
    """The sender of the elements of a message.

    `address` is the session's reply address; `wake` is called when the session has something to send.
    """

    elements: Sequence[Element]
    ingest: Ingest
    answers: CommandResponses
    address: str
    wake: Callable[[], None]


def carry_out(
    sender: CommandSender, received_signal: ReceivedSignal, arrival: InboundDelivery
) -> list[SessionReply | SessionCommand]:
    """Return the commands and errors of the elements of a message, in order."""
    return [_work(element, sender, received_signal, arrival) for element in sender.elements]


def _work(
    element: Element, sender: CommandSender, received_signal: ReceivedSignal, arrival: InboundDelivery
) -> SessionReply | SessionCommand:
    if (work := element.work) is not None:
        if not isinstance(work, SessionCommand):
            return work
        # It may be stored already, durable or not.
        return replace(work, named=msgspec.structs.replace(work.named, may_be_repeated=True))
    sender_check = received_signal.sender_check
    assert sender_check is not None, "a session handler receives signals through a sender check"
    element.work = _read(element, sender, received_signal.route, arrival, sender_check)
    # Counted even if a later element fails.
    element.raw = b""
    return element.work


def _read(
    element: Element, sender: CommandSender, route: ReplyTargetPublisher, arrival: InboundDelivery, check: SenderCheck
) -> SessionReply | SessionCommand:
    on_result = partial(_note_result, element, sender, route, arrival)
    found = _command(check.read(element.raw), arrival)
    if isinstance(found, ErrorResponse):
        return lambda _error, ended: on_result(found, ended)
    if not _UNANSWERABLE.isdisjoint(found.headers):
        found = msgspec.structs.replace(
            found, headers={name: it for name, it in found.headers.items() if name not in _UNANSWERABLE}
        )
    return SessionCommand(found, arrival.received.subjects, name_of_part(found, arrival, element.position), on_result)


def _command(received: DecodedDelivery, arrival: InboundDelivery) -> Command | ErrorResponse:
    """Return the command of an element, or its error."""
    facts, route = arrival.counters, arrival.route
    error = received.error
    if error is None:
        found = [received_signal.signal for received_signal in received.signals]
        if len(found) == 1 and isinstance(found[0], Command) and not asks_for_past(found[0]):
            facts.mapped.note(found[0])
            return found[0]
        headers = found[0].headers if found else {}
        entity = found[0].entity if found else None
        words = "Expected a command on the twin channel that does not read history."
        error = ErrorResponse(entity, "things", Fault(400, "rsio:element.invalid", words), headers)
    fact, outcome = (facts.not_mapped, "malformed") if received.is_enforced else (facts.not_enforced, "refused")
    fact.note(error, words=f"{error.fault.error}: {error.fault.message}")
    route.meter.inbound(outcome)
    log.info(
        "element refused",
        connection=route.connection_id,
        source=route.index,
        error=error.fault.error,
        message=error.fault.message,
        **log_context(error.headers),
    )
    return error


def _note_result(
    element: Element,
    sender: CommandSender,
    route: ReplyTargetPublisher,
    arrival: InboundDelivery,
    answer: Response | ErrorResponse,
    ended: Done,
) -> None:
    """Note the durable result of an element."""
    if not sender.ingest.acknowledge(element):
        ended(None)
        return

    def done(error: ConnectivityError | None) -> None:
        if sender.ingest.done(element):
            sender.wake()
        ended(error)

    sender.answers.post(answer, route, arrival, sender.address, done)


def _is_reported(answer: Response | ErrorResponse) -> bool:
    return answer.headers.get(RESPONSE_REQUIRED) is True
