"""Sends signals to the targets of connections (Ditto connections, targets).

A signal that cannot be mapped is a failure like one that the broker rejects: its sender receives the error. If scripts make
no message of a signal, it ends as if the broker had confirmed. `close` ends all that others have posted.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from connectivity.connections.model import Connection
from connectivity.connections.templates import with_connection_id
from connectivity.errors import ConnectivityError, Detail, PublishFailed
from connectivity.mapping.mapper import mappers_of
from connectivity.mapping.script_host import ScriptHost
from connectivity.monitoring.meter import Meter
from connectivity.targets.destination import DestinationTemplate
from connectivity.targets.outbox import Outbox, PendingPublish
from connectivity.targets.publisher import MappedSignal, SignalPublisher
from connectivity.targets.signal_context import S, SignalContext, SuppressionReason
from connectivity.targets.topic_filter import TopicFilter
from connectivity.transports import load_connection_type
from connectivity.transports.base import Done
from mappings.errors import MappingError
from mappings.ids import EntityId
from mappings.model.signals import MAX_TIMEOUT, Acknowledgement, Live, Outbound

if TYPE_CHECKING:
    from connectivity.monitoring.tracing import Tracer

_ADDRESS_ERRORS: Final = (Detail.MISSING_ADDRESS.value, Detail.NOT_AUTHORIZED.value)

MAX_WAITING: Final = 1000
"""How many posted signals may wait for one target. Further ones fail."""


class _NotMapped(PublishFailed):
    """A signal could not be mapped; this is counted and logged already."""


class TargetPublisher(SignalPublisher):
    """Sends signals to one target of a connection, if its topics and their filters select them."""

    kind = "target"

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
        """`host` runs the scripts of its mappers; `tracer` starts spans; None: no traces."""
        target = connection.targets[index]
        self.counters = meter.target(target.address)
        super().__init__(connection.id, index, target.qos, target.address, outbox, tracer)
        label = target.issued_acknowledgement_label
        self.label = with_connection_id(label, connection.id) if label is not None else None
        """The label of the acknowledgement that is issued when the broker has confirmed; None for none."""
        connection_type = load_connection_type(connection.connection_type)
        self.confirmed_status = connection_type.confirmed_status
        self.interest = TopicFilter(target.topics, target.authorization_context)
        self.trouble: str | None = None
        """The broker's latest error about the address, since the last message that it confirmed there."""
        self._destination = DestinationTemplate(
            target.address, target.header_mapping, connection.id, now, key_mark=connection_type.key_mark
        )
        self.is_fixed = self._destination.is_fixed and not self._destination.has_override
        """Whether all signals go to the same address."""
        self._use(mappers_of(connection, target.payload_mapping, host), self._destination)
        self._open: dict[PendingPublish, Done] = {}

    def issued_acknowledgement(
        self, label: str, entity: EntityId, error: ConnectivityError | None, correlation_id: str | None, channel: str
    ) -> Acknowledgement:
        """Return the acknowledgement that the target issues for a signal after its publication."""
        status = self.confirmed_status
        if error is not None:
            status = error.fault.status if isinstance(error, PublishFailed) else 503
        headers = {"ditto-connection-id": self.connection_id}
        if correlation_id is not None:
            headers["correlation-id"] = correlation_id
        ack = Acknowledgement(entity, label, status, None, headers, channel)
        words = f"'{label}' was acknowledged with status {status}"
        (self.counters.acknowledged if error is None else self.counters.not_acknowledged).note(ack, words=words)
        return ack

    def filter(self, signal_context: SignalContext[S]) -> S | SuppressionReason:
        """Return the signal as the target receives it, or the reason why it does not. `post` sends it then."""
        judged = self.interest.filter(signal_context)
        if judged is SuppressionReason.FILTER:
            self.counters.dispatched.note(signal_context.signal)
        elif isinstance(judged, SuppressionReason) and judged.is_failure:
            self.counters.dispatched.note(signal_context.signal)
            self.counters.not_filtered.note(signal_context.signal, words=judged.value)
        return judged

    def _map_and_count(self, signal: Outbound) -> MappedSignal | None:
        """Return the mapped signal; None if there is nothing to publish. Raises PublishFailed."""
        try:
            mapped = self._map(signal, self._destination)
        except Exception as error:
            self.counters.passed.note(signal)
            raise self._mapping_failed(signal, error) from error
        if mapped is None:
            self.counters.passed.note(signal)
            self.counters.unresolved.note(signal)
            self._warn_once("signal has no address", signal)
            return None
        number = sum(len(envelopes) for _, envelopes in mapped[1])
        if number == 1:
            self.counters.written.note(signal)
            return mapped
        self.counters.passed.note(signal)
        if not number:
            self.counters.unwritten.note(signal)
            return None
        self.counters.mapped.note(signal, number)
        return mapped

    def _mapping_failed(self, signal: Outbound, error: Exception) -> _NotMapped:
        super()._mapping_failed(signal, error)
        if isinstance(error, MappingError):
            # The same signal would fail the same way again.
            return _NotMapped(str(error), status=400)
        return _NotMapped("the signal could not be encoded", status=500)

    def post(self, signal: Outbound, ended: Done, dropped: Callable[[], None] | None = None) -> PendingPublish | None:
        """Send a signal. None if there is nothing to publish: then `ended` is never called, otherwise once.

        If scripts make no message of it, `dropped` is called in place of `ended`, if it is given.
        A live signal that no link has taken within the longest time that a requester may wait is not sent.
        """
        try:
            mapped = self._map_and_count(signal)
        except PublishFailed as error:
            ended(error)
            return PendingPublish(0, None)
        if mapped is None:
            return None
        if len(self._open) >= MAX_WAITING:
            lost = f"{MAX_WAITING} signals already wait for the broker"
            self._warn("signal dropped", signal, error=lost)
            self.counters.not_published.note(signal, words=lost)
            ended(PublishFailed("too many signals wait for the broker"))
            return PendingPublish(0, None)
        posting = PendingPublish(1, None, monotonic() + MAX_TIMEOUT if isinstance(signal, Live) else None)
        # A link may confirm within the call.
        self._open[posting] = ended
        posting.ended = partial(self._ended, signal, posting, dropped)
        self._send(signal, mapped, posting, self)
        return posting

    def _ended(
        self,
        signal: Outbound,
        posting: PendingPublish,
        dropped: Callable[[], None] | None,
        error: ConnectivityError | None,
    ) -> None:
        ended = self._open.pop(posting, None)
        if ended is None:
            return
        if error is not None:
            if not isinstance(error, _NotMapped):
                self._count_failure(signal, str(error))
        elif posting.count and not posting.withdrawn:
            self.trouble = None
            self.counters.published.note(signal, posting.count)
        if dropped is not None and error is None and not posting.count:
            dropped()
        else:
            ended(error)

    def _count_failure(self, signal: Outbound, error: str) -> None:
        self.counters.not_published.note(signal, words=error)
        if error.startswith(_ADDRESS_ERRORS):
            self.trouble = error
        self._warn("message not published", signal, error=error)

    def close(self) -> None:
        """Withdraw what no link has taken, and end every posting with an error."""
        closed = PublishFailed("the connection is closed")
        for posting, ended in list(self._open.items()):
            del self._open[posting]
            posting.withdrawn = True
            ended(closed)
