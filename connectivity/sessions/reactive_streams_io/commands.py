"""What a client's elements say: commands of the Ditto protocol, carried out like any that a source brings, and their answers
(reactive-streams-io, both directions).

Who speaks, whom he may speak for and which headers are mapped is the source's business, as for its deliveries. A command
that fails costs its client nothing else: it is counted and written down, and the stream goes on. Answers leave only where
the operator has said to which address, for commands that say `response-required: true`.

An element may be carried out twice, since its delivery is taken up again or the broker brings it again before its end is
known. So each has a name, and what was stored under that name is answered and not stored once more.
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
from connectivity.monitoring.log_context import log_context
from connectivity.sessions.base import SessionCommand, SessionReply
from connectivity.sessions.reactive_streams_io.ingest import Element, Ingest
from connectivity.sessions.reply_channel import ReplyChannel
from connectivity.sources.delivery import InboundDelivery, name_of_part
from connectivity.sources.reader import DecodedDelivery, ReceivedSignal, SenderCheck
from connectivity.targets.destination import Destination, context_of
from connectivity.targets.reply_target import ReplyTargetPublisher, failure_of, too_large
from connectivity.transports.base import Done
from connectivity.twins.decider import asks_for_past
from mappings.errors import Fault, MappingError
from mappings.mappers import load_codec
from mappings.model.signals import Command, ErrorResponse, Response
from mappings.placeholders.address import AddressPattern, begins_alike, resolve_address
from mappings.placeholders.template import Template
from mappings.reactive_streams_io.options import RsioOptions

log = structlog.get_logger(__name__)


_UNANSWERABLE = frozenset({"requested-acks", "live-channel-condition"})
"""What a command asks for that nobody could tell its client."""

RESPONSE_REQUIRED = "response-required"


class CommandResponses:
    """Where commands of one session are answered. `address` of None: nowhere."""

    def __init__(self, address: Template | None, pattern: AddressPattern | None, now: Callable[[], datetime]) -> None:
        self._address = address
        self._pattern = pattern
        self._now = now
        self._codec = load_codec("Ditto")

    @classmethod
    def of(cls, options: RsioOptions, now: Callable[[], datetime]) -> CommandResponses:
        return cls(options.ingest_reply, options.reply_addresses, now)

    def post(
        self,
        answer: Response | ErrorResponse,
        route: ReplyTargetPublisher,
        arrival: InboundDelivery,
        own: str,
        ended: Done,
    ) -> None:
        """Send an answer where it is wanted.

        `own` is the address of the session, where frames go and nothing else.
        """
        address = self._resolved(answer, route, arrival, own) if _is_wanted(answer) else None
        if isinstance(answer, ErrorResponse):
            route.facts.dispatched_error.note(answer, words=failure_of(answer))
        if address is None:
            if isinstance(answer, ErrorResponse):
                route.facts.not_expected.note(answer)
            ended(None)
            return
        self._send(answer, ReplyChannel(route, Destination(address, {})), ended)

    def _send(self, answer: Response | ErrorResponse, line: ReplyChannel, ended: Done) -> None:
        try:
            envelopes = self._codec.encode(answer, None)
        except MappingError as error:
            log.warning("an answer cannot be written", error=error.fault.message, **log_context(answer.headers))
            ended(None)
            return

        def told(error: ConnectivityError | None) -> None:
            if (instead := too_large(answer, error)) is not None:
                self._send(instead, line, ended)
            else:
                ended(error)

        line.post(envelopes, told)

    def _resolved(
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
            address = resolve_address(self._address, context)
            reason = "its address has no value" if address is None else self._unmeant(address, own)
        except MappingError as error:
            address, reason = None, error.fault.message
        if reason is None:
            return address
        log.warning(
            "signal has no address",
            connection=route.connection_id,
            source=route.index,
            answer_to=address,
            reason=reason,
            **log_context(answer.headers),
        )
        return None

    def _unmeant(self, address: str, own: str) -> str | None:
        """Why answers may not go to an address, which came with a command."""
        assert self._address is not None, "it was resolved"
        if address == own:
            return "frames go to that address"
        if self._address.is_constant:
            return None
        first = self._address.parts[0]
        beginning = first if isinstance(first, str) else ""
        if self._pattern is not None and not beginning:
            is_meant = self._pattern.allows(address)
        else:
            is_meant = begins_alike(address, beginning)
        return None if is_meant else "that address is not meant"


class CommandSender(NamedTuple):
    """Who has sent elements.

    `address` is where his session is answered; `wake` is called when it has something to say.
    """

    ingest: Ingest
    answers: CommandResponses
    address: str
    wake: Callable[[], None]


class CommandResult(NamedTuple):
    """What a desk has made of a message."""

    elements: Sequence[Element]
    party: CommandSender


def carry_out(
    made: CommandResult, heard: ReceivedSignal, arrival: InboundDelivery
) -> list[SessionReply | SessionCommand]:
    """What is to be done for the elements of a message, in order."""
    return [_work(element, made.party, heard, arrival) for element in made.elements]


def _work(
    element: Element, party: CommandSender, heard: ReceivedSignal, arrival: InboundDelivery
) -> SessionReply | SessionCommand:
    if element.work is not None:
        work = element.work
        # It may be stored already, durable or not.
        return replace(work, named=work.named._replace(is_asked=True)) if isinstance(work, SessionCommand) else work
    border = heard.border
    assert border is not None, "what a desk takes has come over a border"
    element.work = _read(element, party, heard.route, arrival, border)
    # What it says counts from now on.
    element.octets = b""
    return element.work


def _read(
    element: Element, party: CommandSender, route: ReplyTargetPublisher, arrival: InboundDelivery, border: SenderCheck
) -> SessionReply | SessionCommand:
    told = partial(_told, element, party, route, arrival)
    found = _command(border.read(element.octets), arrival)
    if isinstance(found, ErrorResponse):
        return partial(_refused, found, told)
    if not _UNANSWERABLE.isdisjoint(found.headers):
        found = replace(found, headers={name: it for name, it in found.headers.items() if name not in _UNANSWERABLE})
    return SessionCommand(found, arrival.received.subjects, name_of_part(found, arrival, element.position), told)


def _command(received: DecodedDelivery, arrival: InboundDelivery) -> Command | ErrorResponse:
    """The command of an element, or what is wrong with it."""
    facts, route = arrival.facts, arrival.route
    error = received.error
    if error is None:
        found = [heard.signal for heard in received.signals]
        if len(found) == 1 and isinstance(found[0], Command) and not asks_for_past(found[0]):
            facts.mapped.note(found[0])
            return found[0]
        headers = found[0].headers if found else {}
        entity = found[0].entity if found else None
        words = "Expected is a command on the twin channel, about the present."
        error = ErrorResponse(entity, "things", Fault(400, "rsio:element.invalid", words), headers)
    fact = facts.not_mapped if received.is_enforced else facts.not_enforced
    fact.note(error, words=f"{error.fault.error}: {error.fault.message}")
    route.meter.inbound("malformed")
    log.info(
        "an element was refused",
        connection=route.connection_id,
        source=route.index,
        error=error.fault.error,
        message=error.fault.message,
        **log_context(error.headers),
    )
    return error


def _refused(
    answer: ErrorResponse,
    told: Callable[[Response | ErrorResponse, Done], None],
    _error: BaseException | None,
    ended: Done,
) -> None:
    """It is the turn of what could not be read."""
    told(answer, ended)


def _told(
    element: Element,
    party: CommandSender,
    route: ReplyTargetPublisher,
    arrival: InboundDelivery,
    answer: Response | ErrorResponse,
    ended: Done,
) -> None:
    """What came of an element, which is durable."""
    if not party.ingest.told(element):
        ended(None)
        return

    def done(error: ConnectivityError | None) -> None:
        if party.ingest.done(element):
            party.wake()
        ended(error)

    party.answers.post(answer, route, arrival, party.address, done)


def _is_wanted(answer: Response | ErrorResponse) -> bool:
    return answer.headers.get(RESPONSE_REQUIRED) is True
