"""Sends responses and the elements of subscriptions to the reply-targets of sources.

A response is sent by the publisher of the source that its command came in by. Responses pass only if the requester
requires one and the reply-target expects that type; elements of subscriptions always pass (Ditto connections,
reply-targets).
"""

from __future__ import annotations

import asyncio
import copy
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from connectivity.connections.lifecycle import back_off
from connectivity.connections.model import DEFAULT_CONTENT_TYPE, Connection, Source
from connectivity.connections.templates import with_connection_id
from connectivity.errors import ConnectivityError, PublishFailed
from connectivity.mapping.mapper import ConfiguredMapper, mappers_of
from connectivity.mapping.script_host import ScriptHost
from connectivity.monitoring.counters import ReplyCounters
from connectivity.monitoring.meter import Meter
from connectivity.targets.destination import Destination, DestinationTemplate
from connectivity.targets.outbox import Outbox, PendingPublish
from connectivity.targets.publisher import MappedSignal, SignalPublisher, is_final
from connectivity.transports import load_connection_type
from connectivity.transports.base import Done, OutboundMessage
from mappings.errors import AddressNotAllowed, Fault
from mappings.ids import group_of
from mappings.model.headers import response_required
from mappings.model.signals import (
    Acknowledgements,
    Answer,
    Complete,
    Created,
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
from mappings.placeholders.address import AddressPattern
from mappings.placeholders.header_mapping import HeaderMapping
from mappings.placeholders.template import PlaceholderContext, Scope

if TYPE_CHECKING:
    from connectivity.monitoring.tracing import Tracer

TOO_LARGE = 413

MAX_TRIES, FIRST_PAUSE = 7, 0.5
"""How often `created`, `complete` and `failed` are sent: for half a minute at most."""

NO_REPLY_TARGET, NOT_EXPECTED, ADDRESS_UNRESOLVED = "no_reply_target", "not_expected", "address_unresolved"
NOT_ENCODED = "unwritten"
"""Reasons why a signal is not sent, as metrics name them."""

_HEADER_HINT = "headers are those of the signal: map the address's headers in the source's headerMapping"
_VALUE_HINT = (
    "the signal has no value for a placeholder of the address; the error of an unreadable message has no entity"
)

_FAILURES = 400
"""The least status of a failed response."""


class ReplyTargetPublisher(SignalPublisher):
    """Sends the responses of one source of a connection, as one of its payload mappers writes them."""

    kind = "source"

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
        """`mapper`: by default the source's first. `tracer` starts spans; None: no traces."""
        source = connection.sources[index]
        self.counters: ReplyCounters = meter.replies
        """The counters of responses and elements of all sources of the connection."""
        super().__init__(connection.id, index, source.qos, source.reply_target.address, outbox, tracer)
        self.source_key = (connection.id, index)
        """The key of the source, whichever of its mappers is meant."""
        self.source: Source = source
        self.meter = meter
        self._unsent = {
            NO_REPLY_TARGET: self.counters.no_reply_target,
            NOT_EXPECTED: self.counters.not_expected,
            ADDRESS_UNRESOLVED: self.counters.unresolved,
        }
        connection_type = load_connection_type(connection.connection_type)
        self.is_listener, self.is_stream = connection_type.is_listener, connection_type.is_stream
        self.key_mark = connection_type.key_mark
        self.arriving = meter.source(source.addresses, connection_type.matches)
        """The counters of deliveries, by address."""
        self.now = now
        self.header_mapping = HeaderMapping(source.header_mapping, Scope.SOURCE)
        self._expected = frozenset(kind.value for kind in source.reply_target.expected_response_types)
        self.declared = frozenset(with_connection_id(label, connection.id) for label in source.declared_acks)
        """The labels of acknowledgements that this source may send."""
        pattern = source.reply_target.address_pattern
        self._address_pattern = AddressPattern(pattern) if pattern is not None else None
        self._use_mapper(mapper or mappers_of(connection, source.payload_mapping)[0])

    def _use_mapper(self, mapper: ConfiguredMapper) -> None:
        self.mapper = mapper
        self.terminal_needs_request = mapper.codec.terminal_needs_request
        self._use([mapper], self._template_for(mapper))

    def _template_for(self, mapper: ConfiguredMapper) -> DestinationTemplate | None:
        """The default content type does not replace that of a wire protocol."""
        target = self.source.reply_target
        if not target.enabled:
            return None
        mapping = dict(target.header_mapping)
        if mapper.codec.owns_content_type and mapping.get("content-type") == DEFAULT_CONTENT_TYPE:
            del mapping["content-type"]
        return DestinationTemplate(
            target.address, mapping, self.connection_id, self.now, Scope.SOURCE, self._address_pattern, self.key_mark
        )

    def through(self, mapper: ConfiguredMapper) -> ReplyTargetPublisher:
        """Return a publisher of the same source with another mapper."""
        publisher = copy.copy(self)
        publisher._use_mapper(mapper)
        return publisher

    @property
    def beginning(self) -> str:
        """The constant text with which every address of the reply-target begins; empty if there is none."""
        return self._template.beginning if self._template is not None else ""

    @property
    def is_fixed(self) -> bool:
        """Whether the reply-target is one address for all messages."""
        return self._template is not None and self._template.is_fixed

    def allows(self, address: str) -> bool:
        """Whether the reply-target's pattern allows messages to this address."""
        return self._address_pattern is None or self._address_pattern.allows(address, self.key_mark)

    def is_peer(self, address: str) -> bool:
        """Whether an address is one peer of a listener, and not all peers at a path."""
        return self.is_listener and not address.startswith("/")

    def reply_destination(self, headers: Headers, source_address: str, subjects: tuple[str, ...]) -> Destination | None:
        """Return the destination of replies to a request with these headers, received at `source_address`.

        None if there is no reply-target, or its address has no value. Raises MappingError for values that an address
        cannot contain.
        """
        if self._template is None:
            return None
        context = PlaceholderContext(
            headers=headers,
            connection_id=self.connection_id,
            subjects=subjects,
            source_address=source_address,
            now=self.now,
        )
        return self._template.resolve(context)

    def post(self, signal: Outbound, ended: Done | None = None, *, unasked: bool = False) -> PendingPublish:
        """Send a signal to the reply-target. `ended` receives the outcome, which is counted and logged here.

        `unasked`: a response to a message that could not be decoded, whose headers cannot say whether one is required.
        """
        mapped = self._map_and_count(signal, unasked)
        if mapped is None or not mapped[1][0][1]:
            return self.outbox.post((), ended)
        return self._publish(signal, mapped, ended, 1)

    def _publish(self, signal: Outbound, mapped: MappedSignal, ended: Done | None, tries: int) -> PendingPublish:
        posting = PendingPublish(1, None)
        posting.ended = partial(self._ended, signal, mapped, ended, tries, posting)
        self._send(signal, mapped, posting, self.source_key)
        return posting

    def _ended(
        self,
        signal: Outbound,
        mapped: MappedSignal,
        ended: Done | None,
        tries: int,
        posting: PendingPublish,
        error: ConnectivityError | None,
    ) -> None:
        """Count the outcome, or retry. An error response follows a response that is too large."""
        if posting.count and error is not None:
            if isinstance(signal, Created | Complete | Failed) and tries < MAX_TRIES and not is_final(error):
                # Its subscriber would wait forever.
                pause = back_off(tries, None, shortest=FIRST_PAUSE, longest=math.inf, jitter=random.random())
                asyncio.get_running_loop().call_later(pause, self._publish, signal, mapped, ended, tries + 1)
                return
            self.counters.not_published.note(signal, words=str(error))
            self._warn("message not published", signal, error=str(error))
            if isinstance(signal, Answer) and (instead := too_large(signal, error)) is not None:
                self.post(instead, ended)
                return
        elif posting.count:
            self.counters.published.note(signal, posting.count)
            if isinstance(signal, Next):
                self.meter.events += len(signal.elements)
        if ended is not None:
            ended(error)

    async def preview_messages(self, signal: Outbound, *, unasked: bool = False) -> Sequence[OutboundMessage] | str:
        """Return what `post` would send, or the reason why it would send nothing.

        Nothing is counted or logged. Raises MappingError if the signal cannot be mapped.
        """
        mapped = self._map_if_expected(signal, unasked)
        return mapped if isinstance(mapped, str) else await self._messages_of_scripts(mapped, None) or NOT_ENCODED

    def _map_and_count(self, signal: Outbound, unasked: bool) -> MappedSignal | None:
        """Return the mapped signal; None if it is not sent, for a reason that is counted."""
        try:
            mapped = self._map_if_expected(signal, unasked)
            is_lost = mapped == ADDRESS_UNRESOLVED and isinstance(signal, Answer) and self._is_mappable(signal)
        except AddressNotAllowed as error:
            self._count_dispatched(signal)
            self.counters.not_allowed.note(signal, words=error.fault.message)
            self._warn_once("address not allowed", signal, error=str(error))
            return None
        except Exception as error:
            self._count_dispatched(signal)
            self._mapping_failed(signal, error)
            return None
        if isinstance(mapped, str):
            self._count_dispatched(signal)
            if is_lost:
                self.counters.mapped.note(signal)
            self._unsent[mapped].note(signal)
            if mapped == ADDRESS_UNRESOLVED:
                hint = _HEADER_HINT if "header:" in self.address else _VALUE_HINT
                self._warn_once("signal has no address", signal, hint=hint)
            return None
        number = len(mapped[1][0][1])
        if number == 1 and failure_of(signal) is None:
            self.counters.responses.note(signal)
            return mapped
        self._count_dispatched(signal)
        if number:
            self.counters.mapped.note(signal, number)
        else:
            self.counters.unwritten.note(signal)
        return mapped

    def _map_if_expected(self, signal: Outbound, unasked: bool) -> MappedSignal | str:
        """Return the mapped signal, or the reason why it is not sent."""
        if self._template is None:
            return NO_REPLY_TARGET
        if isinstance(signal, Answer) and not (
            response_type(signal) in self._expected and (unasked or response_required(signal.headers))
        ):
            return NOT_EXPECTED
        mapped = self._map(signal, self._template)
        return ADDRESS_UNRESOLVED if mapped is None else mapped

    def _is_mappable(self, signal: Outbound) -> bool:
        """Whether only the address is missing."""
        if self._template is None:
            return False
        context = self._template.context(signal, has_topic=self._needs_topic, has_features=self._needs_features)
        return bool(self.mapper.encode(signal, context))

    def _count_dispatched(self, signal: Outbound) -> None:
        if (error := failure_of(signal)) is not None:
            self.counters.dispatched_error.note(signal, words=error)
        else:
            self.counters.dispatched.note(signal)


def response_type(signal: Answer) -> str:
    """Return the entry of `expectedResponseTypes` that covers this response."""
    if isinstance(signal, Response):
        return "response"
    if isinstance(signal, ErrorResponse):
        return "error"
    if isinstance(signal, Acknowledgements) and not all(is_success(ack.status) for ack in signal.acks):
        return "nack"
    return "response"


def failure_of(signal: Outbound) -> str | None:
    """Return the error of a failed response as text; None for all others."""
    if type(signal) is Response and signal.status < _FAILURES:
        # The most frequent case first.
        return None
    if isinstance(signal, ErrorResponse):
        return f"{signal.fault.error}: {signal.fault.message}"
    if isinstance(signal, Failed):
        reason = signal.reason
        return (
            f"{reason.error}: {reason.message}"
            if isinstance(reason, Fault)
            else f"The subscription failed: {reason.value}."
        )
    status = getattr(signal, "status", 0)
    return f"The response has the status {status}." if status >= _FAILURES else None


def too_large(answer: Answer, error: ConnectivityError | None) -> ErrorResponse | None:
    """Return an error response in place of a response that is too large for the broker.

    None for other errors. Without it the requester would wait forever.
    """
    if isinstance(answer, ErrorResponse) or not isinstance(error, PublishFailed) or error.fault.status != TOO_LARGE:
        return None
    message = f"The response is larger than the broker accepts: {error.fault.message}"
    fault = replace(error.fault, message=message, description="Request less, for example with 'fields'.")
    channel = "live" if isinstance(answer, LiveResponse | MessageResponse) else getattr(answer, "channel", "twin")
    return ErrorResponse(answer.entity, group_of(answer.entity), fault, answer.headers, channel)


def reply_publishers(
    connection: Connection,
    index: int,
    outbox: Outbox,
    meter: Meter,
    now: Callable[[], datetime],
    host: ScriptHost | None = None,
    tracer: Tracer | None = None,
) -> list[ReplyTargetPublisher]:
    """Return one publisher for each entry of a source's `payloadMapping`, in order.

    `host` runs their scripts.
    """
    first, *others = mappers_of(connection, connection.sources[index].payload_mapping, host)
    publisher = ReplyTargetPublisher(connection, index, outbox, meter, now, first, tracer)
    return [publisher, *(publisher.through(mapper) for mapper in others)]
