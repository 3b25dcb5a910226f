"""Publishes signals to one address of a connection.

It maps a signal, resolves the address, and passes the messages to the outbox. `ReplyTargetPublisher` and `TargetPublisher`
decide which signals are sent and who learns of the outcome. If a payload mapper runs a script, the posting keeps its place
in the outbox until the script has returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import structlog

from connectivity.errors import ConnectivityError, PublishFailed, RetriesExhausted
from connectivity.mapping.mapper import ConfiguredMapper
from connectivity.monitoring.counters import TargetCounters
from connectivity.monitoring.logs import log_context
from connectivity.targets.destination import Destination, DestinationTemplate
from connectivity.targets.outbox import Outbox, PendingPublish
from connectivity.transports.base import Done, OutboundMessage
from mappings.errors import MappingError
from mappings.model.envelope import Envelope
from mappings.model.signals import Next, Outbound

if TYPE_CHECKING:
    from connectivity.monitoring.tracing import SendSpan, Tracer

log = structlog.get_logger(__name__)

_RETRYABLE: Final = frozenset({408, 424, 429})
_INTERNAL_ERROR: Final = 500

MappedSignal: TypeAlias = tuple[Destination, Sequence[tuple[ConfiguredMapper, Sequence[Envelope]]]]
"""The destination of a signal, and the envelopes that each mapper has made of it."""


class SignalPublisher:
    """Sends signals to the address of a target, or of a source's reply-target."""

    kind: ClassVar[str]
    """The meaning of the index in log events: `source` or `target`."""
    counters: TargetCounters

    def __init__(
        self, connection_id: str, index: int, qos: int | None, address: str, outbox: Outbox, tracer: Tracer | None
    ) -> None:
        """`address` is the template as the document has it. `tracer` starts spans; None: no traces."""
        self.connection_id = connection_id
        self.index = index
        self.qos = 1 if qos is None else qos
        self.address = address
        self.outbox = outbox
        self.tracer = tracer
        self._warned: set[str] = set()

    def _use(self, mappers: Sequence[ConfiguredMapper], template: DestinationTemplate | None) -> None:
        self._mappers = mappers
        self._template = template
        self._runs_scripts = any(mapper.must_finish for mapper in mappers)
        self._needs_topic = any(mapper.needs_topic for mapper in mappers)
        self._needs_features = any(mapper.needs_features for mapper in mappers)
        is_constant = template is not None and template.constant is not None
        self._needs_context = not is_constant or any(mapper.writes_context for mapper in mappers)

    @property
    def address_headers(self) -> frozenset[str]:
        """The headers that the address depends on, in lower case."""
        return self._template.headers if self._template is not None else frozenset()

    def _map(self, signal: Outbound, template: DestinationTemplate) -> MappedSignal | None:
        """Return the mapped signal; None if its address has no value. Raises MappingError."""
        if self._needs_context:
            context = template.context(signal, has_topic=self._needs_topic, has_features=self._needs_features)
            destination = template.resolve(context)
        else:
            context, destination = None, template.constant
        if destination is None:
            return None
        return destination, [(mapper, mapper.encode(signal, context)) for mapper in self._mappers]

    async def _messages_of_scripts(self, mapped: MappedSignal, order: str | None) -> list[OutboundMessage]:
        destination, parts = mapped
        messages: list[OutboundMessage] = []
        for mapper, envelopes in parts:
            finished = await mapper.finish(envelopes) if mapper.must_finish else envelopes
            messages += destination.outgoing(finished, self.qos, order)
        return messages

    def _send(self, signal: Outbound, mapped: MappedSignal, posting: PendingPublish, sender: Hashable) -> None:
        """Queue the messages of a mapped signal.

        Unfinished scripts only delay later messages of the same sender.
        """
        key, entity = getattr(signal, "key", None), signal.entity
        posting.flow, posting.is_element = key, isinstance(signal, Next)
        destination, parts = mapped
        # By the entity, or the subscription if there is none, signals keep their order.
        subject = key if entity is None else entity
        span = self.tracer.sending(signal, self.address) if self.tracer is not None else None
        if span is not None:
            posting.ended = partial(_end_span, span, posting, posting.ended)
        # A broker keeps the order of messages with the same key.
        order = key if key is not None or entity is None else entity.id
        if self._runs_scripts:
            running = asyncio.ensure_future(self._run_scripts(signal, mapped, order, posting, span))
            self.outbox.hold(running, posting, subject, sender, destination.address)
            return
        envelopes = parts[0][1] if len(parts) == 1 else [envelope for _, found in parts for envelope in found]
        messages: Sequence[OutboundMessage] = destination.outgoing(envelopes, self.qos, order)
        if span is not None:
            messages = span.carry(messages)
        posting.count = len(messages)
        # The posting is known before: a link may confirm within the call.
        self.outbox.queue_for(subject, destination.address).post(messages, posting, sender)

    async def _run_scripts(
        self, signal: Outbound, mapped: MappedSignal, order: str | None, posting: PendingPublish, span: SendSpan | None
    ) -> Sequence[OutboundMessage]:
        """Return the messages that scripts make; none after an error."""
        try:
            made: Sequence[OutboundMessage] = await self._messages_of_scripts(mapped, order)
            if span is not None:
                made = span.carry(made)
        except Exception as error:
            posting.error = self._mapping_failed(signal, error)
            return ()
        if not made:
            self.counters.unwritten.note(signal)
        return made

    def _mapping_failed(self, signal: Outbound, error: Exception) -> ConnectivityError | None:
        """Count and log the error; return what the sender of the signal learns, None if nothing.

        An internal error must cost this signal only, like an error of a script.
        """
        if isinstance(error, MappingError):
            self.counters.not_mapped.note(signal, words=str(error))
            self._warn("signal not mapped", signal, error=str(error))
        else:
            self.counters.not_mapped.note(signal)
            log.exception("mapping a signal failed", **self._log_fields(signal))
        return None

    def _warn_once(self, event: str, signal: Outbound, **more: str) -> None:
        """Log at warning once, then at debug: a wrong template affects every signal."""
        write = log.debug if event in self._warned else log.warning
        self._warned.add(event)
        write(event, **self._log_fields(signal), address=self.address, **more)

    def _warn(self, event: str, signal: Outbound, **more: str) -> None:
        log.warning(event, **self._log_fields(signal), **more)

    def _log_fields(self, signal: Outbound) -> dict[str, Any]:
        return {"connection": self.connection_id, self.kind: self.index, **log_context(signal.headers)}


def _end_span(span: SendSpan, posting: PendingPublish, ended: Done | None, error: ConnectivityError | None) -> None:
    if posting.count:
        span.end(error)
    if ended is not None:
        ended(error)


def is_final(error: ConnectivityError) -> bool:
    """Whether the same message would fail in the same way again."""
    if not isinstance(error, PublishFailed):
        return False
    status = error.fault.status
    return (
        isinstance(error, RetriesExhausted)
        or status == _INTERNAL_ERROR
        or (400 <= status < 500 and status not in _RETRYABLE)
    )
