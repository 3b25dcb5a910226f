"""Signals on their way to a target: what is published to say them, and where.

A `TargetPublisher` is one target of a connection with everything about it compiled: its topics with their filters
(`connectivity.targets.topic_filter`, which judges what it is sent), its codec, its templates (Ditto connections, targets).

Where scripts have the last word about the messages, the posting holds its place until they are known; if they make none, it
ends as if the broker had confirmed, unless whoever posted it makes a difference. A signal that cannot be written, here or by
them, is a failure like one that the broker refuses: whoever waits is told.

A live signal rests nowhere: what no link has taken in its time is not sent any more, also where nobody waits for it.

What others have posted here must not wait for a connection that is closed: `close` ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog

from connectivity.connections.model import Connection
from connectivity.connections.templates import with_connection_id
from connectivity.errors import ConnectivityError, Detail, PublishFailed
from connectivity.mapping.mapper import ConfiguredMapper, mappers_of
from connectivity.mapping.script_host import ScriptHost
from connectivity.monitoring.log_context import log_context
from connectivity.monitoring.meter import Meter
from connectivity.targets.destination import Destination, DestinationTemplate
from connectivity.targets.outbox import Outbox, PendingPublish
from connectivity.targets.reply_target import subject_of
from connectivity.targets.signal_context import S, SignalContext, SuppressionReason
from connectivity.targets.topic_filter import TopicFilter
from connectivity.transports import load_connection_type
from connectivity.transports.base import Done, OutboundMessage
from mappings.errors import MappingError
from mappings.ids import EntityId
from mappings.model.envelope import Envelope
from mappings.model.signals import LONGEST_TIMEOUT, Acknowledgement, Live, Outbound

if TYPE_CHECKING:
    from connectivity.monitoring.tracing import SendSpan, Tracer


log = structlog.get_logger(__name__)


_Written: TypeAlias = tuple[Destination, Sequence[tuple[ConfiguredMapper, Sequence[Envelope]]]]
"""Where a signal goes, and the envelopes as each mapper has written them."""

_AGAINST_ADDRESSES: Final = (Detail.MISSING_ADDRESS.value, Detail.NOT_AUTHORIZED.value)

MOST_WAITING: Final = 1000
"""The most signals of others that wait for one target. What comes then is lost, and whoever waits for it is told."""


class _NotWritten(PublishFailed):
    """A signal that there are no words for, or no address; counted and logged."""


class TargetPublisher:
    """One target of a connection, ready for use."""

    def __init__(
        self,
        connection: Connection,
        index: int,
        outbox: Outbox,
        meter: Meter,
        now: Callable[[], datetime],
        host: ScriptHost | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`host` runs the scripts of its mappers; `tracer` makes spans of what leaves."""
        target = connection.targets[index]
        self.connection_id = connection.id
        self.index = index
        self.qos = 1 if target.qos is None else target.qos
        self.outbox = outbox
        self._tracer = tracer
        self.facts = meter.target(target.address)
        label = target.issued_acknowledgement_label
        self.label = with_connection_id(label, connection.id) if label is not None else None
        """The label of the acknowledgement that is given when the broker has confirmed; None for none."""
        self.confirmed_status = load_connection_type(connection.connection_type).confirmed_status
        self.interest = TopicFilter(target.topics, target.authorization_context)
        self._mappers = mappers_of(connection, target.payload_mapping, host)
        self._must_finish = any(mapper.must_finish for mapper in self._mappers)
        self._has_topic = any(mapper.needs_topic for mapper in self._mappers)
        self._has_features = any(mapper.needs_features for mapper in self._mappers)
        self.address = target.address
        self.trouble: str | None = None
        """What the broker says against the address, since it has taken something there last."""
        self._has_told = False
        self._publication = DestinationTemplate(target.address, target.header_mapping, connection.id, now)
        self._open: dict[int, tuple[PendingPublish, Done]] = {}
        self._number = 0

    def issued(
        self, label: str, entity: EntityId, error: ConnectivityError | None, correlation_id: str | None, channel: str
    ) -> Acknowledgement:
        """What the target says of a signal when its broker has confirmed, or has not, under the label that it issues."""
        status = self.confirmed_status
        if error is not None:
            status = error.fault.status if isinstance(error, PublishFailed) else 503
        headers = {"ditto-connection-id": self.connection_id}
        if correlation_id is not None:
            headers["correlation-id"] = correlation_id
        ack = Acknowledgement(entity, label, status, None, headers, channel)
        words = f"'{label}' was given as {status}"
        (self.facts.acknowledged if error is None else self.facts.not_acknowledged).note(ack, words=words)
        return ack

    def __repr__(self) -> str:
        return f"<TargetRoute {self.connection_id}[{self.index}], {len(self._open)} signals on their way>"

    def judge(self, happening: SignalContext[S]) -> S | SuppressionReason:
        """The signal as the target is sent it, or why it is not. What is sent is `post`ed then."""
        judged = self.interest.judge_shared(happening)
        if judged is SuppressionReason.FILTER:
            self.facts.dispatched.note(happening.signal)
        elif judged is SuppressionReason.ENRICHMENT:
            self.facts.dispatched.note(happening.signal)
            self.facts.not_filtered.note(happening.signal, words=judged.value)
        return judged

    def messages(self, signal: Outbound) -> Sequence[OutboundMessage]:
        """What has to be published to say `signal`; nothing where no address resolves or all mappers drop it.

        Raises PublishFailed where it cannot be written.
        """
        written = self._write(signal)
        return self._outgoing(written) if written is not None else ()

    def _outgoing(self, written: _Written) -> list[OutboundMessage]:
        resolved, parts = written
        return resolved.outgoing([envelope for _, envelopes in parts for envelope in envelopes], self.qos)

    def _write(self, signal: Outbound) -> _Written | None:
        """None where nothing is to be published. Raises PublishFailed where it should be and cannot."""
        try:
            context = self._publication.context(signal, has_topic=self._has_topic, has_features=self._has_features)
            resolved = self._publication.resolve(context)
            if resolved is None:
                self.facts.passed.note(signal)
                self.facts.unresolved.note(signal)
                self._tell_unresolved(signal)
                return None
            parts = [(mapper, mapper.encode(signal, context)) for mapper in self._mappers]
        except Exception as error:
            self.facts.passed.note(signal)
            raise self._not_written(signal, error) from error
        made = sum(len(envelopes) for _, envelopes in parts)
        if made == 1:
            self.facts.written.note(signal)
            return resolved, parts
        self.facts.passed.note(signal)
        if not made:
            self.facts.unwritten.note(signal)
            return None
        self.facts.mapped.note(signal, made)
        return resolved, parts

    def _tell_unresolved(self, signal: Outbound) -> None:
        """Loud the first time: with a slip in the address the target gets nothing at all."""
        tell = log.debug if self._has_told else log.warning
        self._has_told = True
        tell("a signal has no address", address=self.address, **self._about(signal))

    async def _finish(
        self,
        signal: Outbound,
        written: _Written,
        messages: list[OutboundMessage],
        posting: PendingPublish,
        sending: SendSpan | None,
    ) -> Sequence[OutboundMessage]:
        """Put the messages that scripts make of what was written into the list, and return it."""
        resolved, parts = written
        made: list[OutboundMessage] = []
        try:
            for mapper, envelopes in parts:
                finished = await mapper.finish(envelopes) if mapper.must_finish else envelopes
                made += resolved.outgoing(finished, self.qos)
            messages += made if sending is None else sending.carry(made)
        except Exception as error:
            messages.clear()
            posting.error = self._not_written(signal, error)
        else:
            if not messages:
                self.facts.unwritten.note(signal)
        return messages

    def _not_written(self, signal: Outbound, error: Exception) -> _NotWritten:
        """A mistake of our own costs this one signal at this one target, as that of a script does."""
        self.facts.not_mapped.note(signal, words=str(error) if isinstance(error, MappingError) else None)
        if isinstance(error, MappingError):
            self._warn("a signal cannot be sent", signal, str(error))
            # The same signal would fail the same way again.
            return _NotWritten(str(error), status=400)
        log.exception("a signal could not be written", **self._about(signal))
        return _NotWritten("the signal could not be written", status=500)

    def post(self, signal: Outbound, ended: Done, dropped: Callable[[], None] | None = None) -> PendingPublish | None:
        """Send a signal. None where there is nothing to publish: then `ended` is never called, otherwise once.

        Where scripts have the last word and make nothing of it, `dropped` is called in the place of `ended`, if it is given.
        A live signal that no link has taken within the longest time that anybody may wait for it is not sent any more.
        """
        try:
            written = self._write(signal)
        except PublishFailed as error:
            ended(error)
            return PendingPublish(0, None)
        if written is None:
            return None
        messages = self._outgoing(written) if not self._must_finish else []
        if len(self._open) >= MOST_WAITING:
            lost = f"{MOST_WAITING} signals wait for the broker already"
            self._warn("a signal is lost", signal, lost)
            self.facts.not_published.note(signal, words=lost)
            ended(PublishFailed("too many signals wait for the broker"))
            return PendingPublish(0, None)
        self._number += 1
        number = self._number
        sending = self._tracer.sending(signal, self.address) if self._tracer is not None else None
        if sending is not None:
            messages = list(sending.carry(messages))

        def over(error: ConnectivityError | None) -> None:
            posting, told = self._open.pop(number, (None, None))
            if told is None:
                return
            if sending is not None and messages:
                sending.end(error)
            if isinstance(error, _NotWritten):
                # That is told already.
                pass
            elif error is not None:
                words = str(error)
                self.facts.not_published.note(signal, words=words)
                if words.startswith(_AGAINST_ADDRESSES):
                    self.trouble = words
                self._warn("a signal was not taken", signal, words)
            elif messages and (posting is None or not posting.withdrawn):
                self.trouble = None
                self.facts.published.note(signal, len(messages))
            if dropped is not None and error is None and not messages:
                dropped()
            else:
                told(error)

        # A link may confirm within the call; what is open has to be known before.
        deadline = monotonic() + LONGEST_TIMEOUT if isinstance(signal, Live) else None
        posting = PendingPublish(len(messages) or 1, over, deadline)
        self._open[number] = posting, ended
        if self._must_finish:
            making = asyncio.ensure_future(self._finish(signal, written, messages, posting, sending))
            self.outbox.hold(making, posting, subject_of(signal), self, written[0].address)
        else:
            self.outbox.put(messages, posting, subject_of(signal), self)
        return posting

    def close(self) -> None:
        """The connection is closed: what has not left stays, and whoever waits for it is told."""
        closed = PublishFailed("the connection is closed")
        for number, (posting, ended) in list(self._open.items()):
            del self._open[number]
            posting.withdrawn = True
            ended(closed)

    def _warn(self, what: str, signal: Outbound, why: str) -> None:
        log.warning(what, error=why, **self._about(signal))

    def _about(self, signal: Outbound) -> dict[str, Any]:
        return {"connection": self.connection_id, "target": self.index, **log_context(signal.headers)}
