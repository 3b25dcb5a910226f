"""Answers on their way out: which of them are wanted at which reply-target.

A `ReplyTargetPublisher` is one source seen through one of its payload mappers, with everything about it compiled: the
mapper, the templates, the reply-target. An answer leaves by the route that its command came in by.
`ReplyTargetPublisher.messages` decides and is pure; posting is the caller's. Responses pass only if the requester wants an
answer and the reply-target expects that kind; events of subscriptions always pass (Ditto connections, reply-targets). An
address that does not resolve drops the message, and so does one that a client's value would turn into something else than an
address. An answer that is larger than the broker takes is followed by an error response that says so. Where scripts have the
last word about the messages, the posting holds its place until they are known.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import structlog

from connectivity.connections.model import DEFAULT_CONTENT_TYPE, Connection, Source
from connectivity.connections.templates import with_connection_id
from connectivity.errors import ConnectivityError, PublishFailed
from connectivity.mapping.mapper import ConfiguredMapper, mappers_of
from connectivity.mapping.script_host import ScriptHost
from connectivity.monitoring.counters import EventCounter
from connectivity.monitoring.log_context import log_context
from connectivity.monitoring.meter import Meter
from connectivity.targets.destination import Destination, DestinationTemplate
from connectivity.targets.outbox import Outbox, PendingPublish
from connectivity.transports import load_connection_type
from connectivity.transports.base import Done, OutboundMessage
from mappings.errors import Fault, MappingError
from mappings.model.envelope import Envelope
from mappings.model.headers import response_required
from mappings.model.signals import (
    Acknowledgements,
    Answer,
    ErrorResponse,
    Failed,
    Headers,
    LiveResponse,
    MessageResponse,
    Next,
    Outbound,
    Response,
    is_success,
)
from mappings.placeholders.header_mapping import HeaderMapping
from mappings.placeholders.template import PlaceholderContext, Scope

if TYPE_CHECKING:
    from connectivity.monitoring.tracing import SendSpan, Tracer


log = structlog.get_logger(__name__)


TOO_LARGE = 413

NO_REPLY_TARGET, NOT_EXPECTED, ADDRESS_UNRESOLVED = "no_reply_target", "not_expected", "address_unresolved"
UNWRITTEN = "unwritten"
"""Why nothing is sent to say a signal, as metrics name it."""

_Written: TypeAlias = tuple[Destination, Sequence[Envelope]]

_FAILURES = 400
"""From this status on an answer tells of a failure."""


class ReplyTargetPublisher:
    """One source of a connection, seen through one of its payload mappers: the first one, or the one that is given."""

    def __init__(
        self,
        connection: Connection,
        index: int,
        outbox: Outbox,
        meter: Meter,
        now: Callable[[], datetime],
        mapper: ConfiguredMapper | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`tracer` makes spans of what comes in and leaves; None: there are none."""
        source = connection.sources[index]
        self.connection_id = connection.id
        self.index = index
        self.place = (connection.id, index)
        """What names the source, whichever of its mappers is meant."""
        self.source: Source = source
        self.qos = 1 if source.qos is None else source.qos
        self.outbox = outbox
        self.meter = meter
        self.facts = facts = meter.replies
        """What is told of answers and elements on their way out."""
        self._unsent = {
            NO_REPLY_TARGET: facts.no_reply_target,
            NOT_EXPECTED: facts.not_expected,
            ADDRESS_UNRESOLVED: facts.unresolved,
        }
        broker = load_connection_type(connection.connection_type)
        self.is_listener, self.is_stream = broker.is_listener, broker.is_stream
        self.arriving = meter.source(source.addresses, broker.matches)
        """What is told of deliveries."""
        self.now = now
        self.tracer = tracer
        self.header_mapping = HeaderMapping(source.header_mapping, Scope.SOURCE)
        self._has_told = False
        self._expected = frozenset(kind.value for kind in source.reply_target.expected_response_types)
        self.declared = frozenset(with_connection_id(label, connection.id) for label in source.declared_acks)
        """The labels of acknowledgements that may come by this source."""
        self._use(mapper or mappers_of(connection, source.payload_mapping)[0])

    def _use(self, mapper: ConfiguredMapper) -> None:
        self.mapper = mapper
        self.terminal_needs_request = mapper.codec.terminal_needs_request
        self._publication = self._published_through(mapper)

    def _published_through(self, mapper: ConfiguredMapper) -> DestinationTemplate | None:
        """The reply-target. A content type that its author has not asked for does not replace that of a protocol."""
        target = self.source.reply_target
        if not target.enabled:
            return None
        mapping = dict(target.header_mapping)
        if mapper.codec.owns_content_type and mapping.get("content-type") == DEFAULT_CONTENT_TYPE:
            del mapping["content-type"]
        return DestinationTemplate(target.address, mapping, self.connection_id, self.now, Scope.SOURCE)

    def through(self, mapper: ConfiguredMapper) -> ReplyTargetPublisher:
        """The same source through another mapper: the same reply-target, the same outbox."""
        route = copy.copy(self)
        route._use(mapper)
        return route

    @property
    def beginning(self) -> str:
        """What every address of the reply-target begins with; empty where that is for each message to say."""
        return self._publication.beginning if self._publication is not None else ""

    @property
    def is_fixed(self) -> bool:
        """Whether the reply-target is one address, whatever a message says."""
        return self._publication is not None and self._publication.is_fixed

    def place_of_reply(self, headers: Headers, source_address: str, subjects: tuple[str, ...]) -> Destination | None:
        """Where the reply-target leads with these headers of a request, which came in at that address.

        None where it leads nowhere. Raises MappingError for values that cannot be part of an address.
        """
        if self._publication is None:
            return None
        context = PlaceholderContext(
            headers=headers,
            connection_id=self.connection_id,
            subjects=subjects,
            source_address=source_address,
            now=self.now,
        )
        return self._publication.resolve(context)

    def __repr__(self) -> str:
        return f"<Route {self.connection_id}[{self.index}] through {self.mapper.name}>"

    def post(self, signal: Outbound, ended: Done | None = None, *, unasked: bool = False) -> PendingPublish:
        """Send a signal to the reply-target. `unasked`: an answer to something that could not even be read.

        `ended` is told how it went; counting and logging is done here.
        """
        if self.mapper.must_finish:
            return self._post_unfinished(signal, ended, unasked)
        messages = self.messages(signal, unasked=unasked)
        if not messages:
            return self.outbox.post((), ended)
        told: Done = partial(self._ended, signal, len(messages), ended)
        if self.tracer is not None:
            messages, told = self.tracer.sent(signal, self.source.reply_target.address, messages, told)
        return self.outbox.post(messages, told, subject_of(signal), self.place)

    def _post_unfinished(self, signal: Outbound, ended: Done | None, unasked: bool) -> PendingPublish:
        """Send what scripts will make of a signal, in the place that the signal has now."""
        written = self._write(signal, unasked)
        if written is None or not written[1]:
            return self.outbox.post((), ended)
        messages: list[OutboundMessage] = []
        sending = self.tracer.sending(signal, self.source.reply_target.address) if self.tracer is not None else None

        def told(error: ConnectivityError | None) -> None:
            if messages:
                if sending is not None:
                    sending.end(error)
                self._ended(signal, len(messages), ended, error)
            elif ended is not None:
                ended(error)

        posting = PendingPublish(1, told)
        making = asyncio.ensure_future(self._finish(signal, *written, messages, sending))
        self.outbox.hold(making, posting, subject_of(signal), self.place, written[0].address)
        return posting

    async def _finish(
        self,
        signal: Outbound,
        resolved: Destination,
        envelopes: Sequence[Envelope],
        messages: list[OutboundMessage],
        sending: SendSpan | None,
    ) -> Sequence[OutboundMessage]:
        """Put the messages that scripts make of what was written into the list, and return it."""
        try:
            made = resolved.outgoing(await self.mapper.finish(envelopes), self.qos)
            messages += made if sending is None else sending.carry(made)
        except Exception as error:
            self._not_written(signal, error)
        else:
            if not messages:
                self.facts.unwritten.note(signal)
        return messages

    def _ended(
        self,
        signal: Outbound,
        messages: int,
        ended: Done | None,
        error: ConnectivityError | None,
    ) -> None:
        """The broker has confirmed all messages of a signal, or has refused one."""
        if error is not None:
            self.facts.not_published.note(signal, words=str(error))
            self._warn("an answer was not taken", signal, error)
            if isinstance(signal, Answer) and (instead := too_large(signal, error)) is not None:
                self.post(instead, ended)
                return
        else:
            self.facts.published.note(signal, messages)
            if isinstance(signal, Next):
                self.meter.events += len(signal.elements)
        if ended is not None:
            ended(error)

    def messages(self, signal: Outbound, *, unasked: bool = False) -> Sequence[OutboundMessage]:
        """What has to be published to say `signal`; nothing where nobody wants it or no address resolves."""
        written = self._write(signal, unasked)
        return written[0].outgoing(written[1], self.qos) if written is not None else ()

    async def rehearse(self, signal: Outbound, *, unasked: bool = False) -> Sequence[OutboundMessage] | str:
        """What `post` would send, or why it would send nothing, as metrics name it. Sends, counts and logs nothing.

        Raises MappingError where the signal cannot be written.
        """
        written = self._written(signal, unasked)
        if isinstance(written, str):
            return written
        resolved, envelopes = written
        if self.mapper.must_finish and envelopes:
            envelopes = await self.mapper.finish(envelopes)
        return resolved.outgoing(envelopes, self.qos) or UNWRITTEN

    def _write(self, signal: Outbound, unasked: bool) -> _Written | None:
        """What is to be sent, or nothing for a reason that is counted."""
        try:
            written = self._written(signal, unasked)
            # Where an answer is missed, its address is to blame and nothing else: it would have been said.
            is_said = written == ADDRESS_UNRESOLVED and isinstance(signal, Answer) and self._is_said(signal)
        except Exception as error:
            self._note_dispatched(signal)
            self._not_written(signal, error)
            return None
        if isinstance(written, str):
            self._drop(signal, self._unsent[written], is_said=is_said)
            if written == ADDRESS_UNRESOLVED:
                self._tell_unresolved(signal)
            return None
        number = len(written[1])
        if number == 1 and failure_of(signal) is None:
            self.facts.said.note(signal)
        else:
            self._note_dispatched(signal)
            if number:
                self.facts.mapped.note(signal, number)
            else:
                self.facts.unwritten.note(signal)
        return written

    def _written(self, signal: Outbound, unasked: bool) -> _Written | str:
        """Where a signal goes, and the envelopes as the mapper has written them; or why it goes nowhere."""
        if self._publication is None:
            return NO_REPLY_TARGET
        if isinstance(signal, Answer) and not self._wants(signal, unasked):
            return NOT_EXPECTED
        context = self._context(self._publication, signal)
        resolved = self._publication.resolve(context)
        return ADDRESS_UNRESOLVED if resolved is None else (resolved, self.mapper.encode(signal, context))

    def _is_said(self, signal: Outbound) -> bool:
        """Whether the mapper has words for a signal."""
        return self._publication is not None and bool(
            self.mapper.encode(signal, self._context(self._publication, signal))
        )

    def _context(self, publication: DestinationTemplate, signal: Outbound) -> PlaceholderContext:
        mapper = self.mapper
        return publication.context(signal, has_topic=mapper.needs_topic, has_features=mapper.needs_features)

    def _drop(self, signal: Outbound, reason: EventCounter, *, is_said: bool = False) -> None:
        """Tell that a signal is not sent, which is no fault. `is_said`: there are words for it."""
        self._note_dispatched(signal)
        if is_said:
            self.facts.mapped.note(signal)
        reason.note(signal)

    def _note_dispatched(self, signal: Outbound) -> None:
        if (error := failure_of(signal)) is not None:
            self.facts.dispatched_error.note(signal, words=error)
        else:
            self.facts.dispatched.note(signal)

    def _tell_unresolved(self, signal: Outbound) -> None:
        """Loud the first time: a whole source may be without answers, because a header is not mapped."""
        tell = log.debug if self._has_told else log.warning
        self._has_told = True
        tell(
            "an answer has no address",
            connection=self.connection_id,
            source=self.index,
            **log_context(signal.headers),
            address=self.source.reply_target.address,
            hint="its headers are those of the signal: map what the address needs in the source's headerMapping",
        )

    def _not_written(self, signal: Outbound, error: Exception) -> None:
        """A mistake of our own costs this one answer, as that of a script does; whoever waits for others must not notice."""
        is_ours = not isinstance(error, MappingError)
        self.facts.not_mapped.note(signal, words=None if is_ours else str(error))
        if isinstance(error, MappingError):
            self._warn("an answer cannot be sent", signal, error)
            return
        log.exception(
            "an answer could not be written",
            connection=self.connection_id,
            source=self.index,
            **log_context(signal.headers),
        )

    def _wants(self, signal: Answer, unasked: bool) -> bool:
        return response_type(signal) in self._expected and (unasked or response_required(signal.headers))

    def _warn(self, what: str, signal: Outbound, error: Exception) -> None:
        log.warning(
            what, connection=self.connection_id, source=self.index, error=str(error), **log_context(signal.headers)
        )


def response_type(signal: Answer) -> str:
    """Which of the kinds of answer this is that reply-targets choose from."""
    if isinstance(signal, Response):
        return "response"
    if isinstance(signal, ErrorResponse):
        return "error"
    if isinstance(signal, Acknowledgements) and not all(is_success(ack.status) for ack in signal.acks):
        return "nack"
    return "response"


def failure_of(signal: Outbound) -> str | None:
    """What an answer says that tells of a failure; None for all others."""
    if type(signal) is Response and signal.status < _FAILURES:
        # What nearly all of them are.
        return None
    if isinstance(signal, ErrorResponse):
        return f"{signal.fault.error}: {signal.fault.message}"
    if isinstance(signal, Failed):
        reason = signal.reason
        return f"{reason.error}: {reason.message}" if isinstance(reason, Fault) else reason.value
    status = getattr(signal, "status", 0)
    return f"The answer's status is {status}." if status >= _FAILURES else None


def subject_of(signal: Outbound) -> Hashable:
    """What keeps its order on the way: the entity, or the subscription where there is none."""
    return signal.entity if signal.entity is not None else getattr(signal, "key", None)


def too_large(answer: Answer, error: ConnectivityError | None) -> ErrorResponse | None:
    """What is answered instead of an answer that is larger than the broker takes; None where its size is not to blame.

    Whoever asked must not wait for ever; and the error is small, so that none follows upon it.
    """
    if isinstance(answer, ErrorResponse) or not isinstance(error, PublishFailed) or error.fault.status != TOO_LARGE:
        return None
    message = f"The answer is larger than the broker takes: {error.fault.message}"
    fault = replace(error.fault, message=message, description="Ask for less, for example with 'fields'.")
    group = answer.entity.type.group if answer.entity is not None else "things"
    channel = "live" if isinstance(answer, LiveResponse | MessageResponse) else getattr(answer, "channel", "twin")
    return ErrorResponse(answer.entity, group, fault, answer.headers, channel)


def routes_of(
    connection: Connection,
    index: int,
    outbox: Outbox,
    meter: Meter,
    now: Callable[[], datetime],
    host: ScriptHost | None = None,
    tracer: Tracer | None = None,
) -> list[ReplyTargetPublisher]:
    """A source's routes: one for each entry of its `payloadMapping`, in order. `host` runs their scripts."""
    first, *others = mappers_of(connection, connection.sources[index].payload_mapping, host)
    route = ReplyTargetPublisher(connection, index, outbox, meter, now, first, tracer)
    return [route, *(route.through(mapper) for mapper in others)]
