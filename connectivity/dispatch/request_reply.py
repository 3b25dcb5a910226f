"""Requests and replies between connections: live signals, responses and acknowledgements.

A requester gets one reply: the response, all acknowledgements together if it requested others, or an error at the timeout.
If it requested acknowledgements, its delivery waits too, and its outcome follows from them (Ditto connections, requested
acknowledgements, live responses). Deadlines are in `connectivity.dispatch.pending`, sending in
`connectivity.dispatch.live_channel`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import structlog
from msgspec.structs import replace

from connectivity.authorization.enforcer import Enforcer
from connectivity.dispatch.announcements import PolicyAnnouncements
from connectivity.dispatch.command_executor import foreign_labels
from connectivity.dispatch.live_channel import (
    fits,
    forwarded_response,
    issued_response,
    outgoing,
    publish,
    unexpected_response,
)
from connectivity.dispatch.pending import PendingRequest, PendingRequests
from connectivity.dispatch.response_router import ResponseRouter
from connectivity.dispatch.weak_acknowledgements import WeakAcknowledgements
from connectivity.monitoring.logs import log_context
from connectivity.sources.acknowledgements import (
    SEARCH_PERSISTED,
    TWIN_PERSISTED,
    RequestedAcks,
    acknowledgement_of,
    aggregate_status,
    command_timeout,
    outcome_of_error,
    outcome_of_live_response,
    refusal,
    requested_acks,
)
from connectivity.sources.delivery import InboundDelivery
from connectivity.sources.reader import ReceivedSignal
from connectivity.targets.directory import ConnectionDirectory
from connectivity.targets.event_publisher import EventPublisher
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.transports.base import Outcome, ignore_outcome
from connectivity.twins.access import may_acknowledge, may_receive, may_send, readable_response
from connectivity.twins.context import StateLookup
from connectivity.twins.incarnations import WithoutPast
from connectivity.twins.preconditions import CONDITION, condition_fault
from mappings.errors import Fault
from mappings.ids import LIVE_RESPONSE, EntityId, EntityType, parse_entity_id
from mappings.model.signals import (
    Acknowledgement,
    Acknowledgements,
    Answer,
    Command,
    ErrorResponse,
    Live,
    LiveAnswer,
    LiveCommand,
    LiveEvent,
    Message,
    Response,
)
from mappings.placeholders.values import utc_now
from spark_store.errors import StoreUnavailable
from spark_store.records import Snapshot

log = structlog.get_logger(__name__)

MAX_WITHOUT_DELIVERY = 1000
"""The most live signals of a connection that wait for a response without holding their delivery."""

_DUPLICATE = Fault(
    409,
    "acknowledgement:request.duplicate.correlation-id",
    "The service is already waiting for acknowledgements of another signal with this entity and correlation id.",
    "Use a unique correlation id for each signal.",
)
_TOO_MANY = Fault(
    429,
    "live.response.limit",
    f"This connection already has {MAX_WITHOUT_DELIVERY} live signals that wait for a response without acknowledgements, "
    "which is the limit.",
    "Leave 'requested-acks' at its default, or set a shorter 'timeout'.",
)
_NO_REPLY = RequestedAcks((), False, 0.0)


class LiveDelivery(NamedTuple):
    """A live signal ready to be sent, and the request that waits for its response.

    `send` finishes one response of the delivery, then or later. Without calling it, drop `pending`.
    """

    send: Callable[[], None]
    pending: PendingRequest | None


@dataclass(slots=True)
class _CurrentThing(WithoutPast):
    """The state of one thing when a live signal was checked, so that sending reads nothing from the store."""

    thing: Snapshot | None
    policy: Snapshot | None
    permissions_now: Enforcer | None
    permissions_on_policy: Enforcer | None

    @classmethod
    def of(cls, thing: EntityId, world: StateLookup) -> _CurrentThing:
        """Read the current state of a thing. Raises StoreUnavailable."""
        snapshot = world.snapshot(thing)
        name = snapshot.policy if snapshot is not None else None
        if name is None:
            return cls(snapshot, None, None, None)
        policy = parse_entity_id(EntityType.POLICY, name)
        policy_snapshot = world.snapshot(policy) if policy is not None else None
        return cls(snapshot, policy_snapshot, world.enforcer(name, thing.namespace), world.enforcer(name))

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        return self.policy if entity.type is EntityType.POLICY else self.thing

    def enforcer(self, policy_id: str, namespace: str | None = None) -> Enforcer | None:  # noqa: ARG002
        return self.permissions_on_policy if namespace is None else self.permissions_now

    def without_content(self) -> _CurrentThing:
        """Return the permissions on the thing, without its state and its policy."""
        thing = self.thing
        if thing is not None and thing.state is not None:
            thing = replace(thing, state={})
        return _CurrentThing(thing, None, self.permissions_now, None)

    def condition_fault(self, signal: Live, subjects: Sequence[str]) -> Fault | None:
        """Return the fault if the condition of a signal that may be sent prevents it."""
        thing, enforcer = self.thing, self.permissions_now
        is_creation = isinstance(signal, LiveCommand) and signal.action == "create"
        if thing is None or enforcer is None or is_creation:
            return None
        return condition_fault(signal, subjects, thing, enforcer, utc_now())


_S = TypeVar("_S", bound=Live)


def _without_content(signal: _S) -> _S:
    """Return a signal without its content.

    `null` stays in place of a value: whether there is one decides who may read the signal.
    """
    if isinstance(signal, LiveCommand):
        signal = replace(signal, fields=None)
    return signal if signal.value is None else replace(signal, value=b"null")


class RequestReply:
    """Matches responses and acknowledgements with the signals that wait for them."""

    def __init__(
        self,
        members: ConnectionDirectory,
        cursors: EventPublisher,
        replies: ResponseRouter,
        world: StateLookup,
        announcements: PolicyAnnouncements,
        clock: Callable[[], float],
    ) -> None:
        """`clock` returns monotonic seconds."""
        self._cursors = cursors
        self._world = world
        self._replies = replies
        self._members = members
        self.pending = PendingRequests(clock, self._finish)
        self.announcements = announcements

    def _can_have_read(self, signal: Command | Live, arrival: InboundDelivery) -> bool:
        """Whether the sender may read a signal, or a target of its connection to a broker.

        A listener has no such targets: its peers do not trust each other.
        """
        route = arrival.route
        receivers = () if route.is_listener else self._members.receivers(route.connection_id)
        return any(
            may_acknowledge(signal, subjects, self._world) for subjects in (arrival.received.subjects, *receivers)
        )

    def duplicate(self, signal: Command | Message | LiveCommand, arrival: InboundDelivery) -> Fault | None:
        """Return a fault if another signal already waits with this correlation ID.

        A redelivery replaces the request of its earlier delivery, but not one of its own.
        """
        earlier = self.pending.find(signal)
        if earlier is None:
            return None
        former = earlier.arrival
        is_same = former is not arrival and (former.route.source_key, former.key) == (
            arrival.route.source_key,
            arrival.key,
        )
        if arrival.delivery.redelivered and is_same:
            self.pending.drop(earlier)
            former.ledger.forget(former)
            arrival.settle_also(former.delivery, *former.redeliveries)
            return None
        return _DUPLICATE

    def hold(
        self, command: Command, requested: RequestedAcks, received_signal: ReceivedSignal, arrival: InboundDelivery
    ) -> PendingRequest:
        """Wait for the acknowledgements that a command requests; `command_persisted` adds the service's own."""
        pending = self.pending.begin(command, requested, "twin", arrival, received_signal.route, arrival.finish)
        pending.name = received_signal.name
        return pending

    def command_persisted(self, pending: PendingRequest, response: Response) -> None:
        """Note that the command is durable, and have others acknowledge its event."""
        if pending.is_over:
            return
        pending.ended = pending.arrival.respond()
        headers = pending.signal.headers
        acks = [acknowledgement_of(label, response, "twin", headers) for label in (TWIN_PERSISTED, SEARCH_PERSISTED)]
        earlier_acks = pending.arrival.ledger.take_acks(pending.arrival, pending.name)
        self.pending.mark_durable(pending, *acks, *earlier_acks)
        if not pending.is_over and (labels := foreign_labels(pending.collector.missing)):
            self._request_acks(pending, response, labels)

    def _request_acks(self, pending: PendingRequest, response: Response, labels: Sequence[str]) -> None:
        """Have others acknowledge the event of a command, stored now or at the first delivery."""
        revision = response.headers.get("entity-revision")
        try:
            event = self._cursors.find_event(response.entity, revision) if isinstance(revision, int) else None
            if event is not None:
                weak_acks = WeakAcknowledgements(
                    event,
                    labels,
                    pending.correlation_id,
                    lambda ack: self.pending.acknowledge(pending, ack),
                    lambda: pending.is_over,
                )
                weak_acks.collect(self._members, self._cursors, pending.arrival.route.connection_id)
        except StoreUnavailable as error:
            # Without acknowledgements the delivery is requeued.
            log.warning("acknowledgements not requested", entity=str(response.entity), error=str(error))

    def prepare(
        self, signal: Live, route: ReplyTargetPublisher, arrival: InboundDelivery
    ) -> ErrorResponse | LiveDelivery:
        """Check a live signal: return its error response, or what sends it. Raises StoreUnavailable.

        Permissions are checked against the current state. The response goes back by `route`.
        """
        requested = _NO_REPLY if isinstance(signal, LiveEvent) else requested_acks(signal.headers, "live")
        if isinstance(requested, Fault):
            return self._error_response(signal, requested, Outcome.DROPPED, arrival)
        current = _CurrentThing.of(signal.entity, self._world)
        subjects = arrival.received.subjects
        fault = may_send(signal, subjects, current)
        if fault is None and CONDITION in signal.headers:
            fault = current.condition_fault(signal, subjects)
        is_awaited = bool(requested.labels) or requested.is_answered
        if fault is None and is_awaited and not isinstance(signal, LiveEvent):
            fault = self.duplicate(signal, arrival)
            if (
                fault is None
                and not requested.labels
                and self.pending.unheld(route.connection_id) >= MAX_WITHOUT_DELIVERY
            ):
                fault = _TOO_MANY
        if fault is not None:
            return self._error_response(
                signal, fault, outcome_of_error(fault) if requested.labels else Outcome.SETTLED, arrival
            )
        pending = None
        if is_awaited and not isinstance(signal, LiveEvent):
            held = arrival.finish if requested.labels else None
            pending = self.pending.begin(_without_content(signal), requested, "live", arrival, route, held)
            pending.is_done = False
        return LiveDelivery(lambda: self._send(signal, requested, pending, arrival, current), pending)

    def _send(
        self,
        signal: Live,
        requested: RequestedAcks,
        pending: PendingRequest | None,
        arrival: InboundDelivery,
        current: _CurrentThing,
    ) -> None:
        if pending is not None and pending.is_over:
            # A redelivery has replaced it, or the connection is closed.
            return
        ended = arrival.respond()
        if pending is not None:
            if requested.labels:
                pending.ended = ended
            self.pending.mark_durable(pending)

        def acknowledge(ack: Acknowledgement) -> None:
            if pending is None or pending.is_over:
                return
            if ack.label == LIVE_RESPONSE and not isinstance(pending.signal, Command):
                pending.answer = issued_response(pending.signal, ack.status)
            self.pending.acknowledge(pending, ack)

        if pending is None or not pending.is_over:
            # Otherwise it has reached its timeout before it could be sent.
            origin, is_of_peer = arrival.route.connection_id, arrival.route.is_listener
            live = outgoing(signal, requested, is_of_peer=is_of_peer)
            sent = publish(live, self._members, current, origin, requested.labels, acknowledge)
            if pending is not None:
                pending.postings.extend(sent.postings)
                asked, permissions = pending.signal, current.without_content()
                assert not isinstance(asked, Command)
                pending.may_answer = lambda connection_id, subjects: (
                    sent.recipients.get(connection_id, 0) > 0 and may_receive(asked, subjects, permissions)
                )
        if not requested.labels:
            ended(None)

    def _error_response(self, signal: Live, fault: Fault, outcome: Outcome, arrival: InboundDelivery) -> ErrorResponse:
        arrival.note(outcome, is_done=False)
        return ErrorResponse(signal.entity, "things", fault, signal.headers, "live")

    def acknowledge(self, ack: Acknowledgement, arrival: InboundDelivery) -> ErrorResponse | None:
        """Pass an acknowledgement to its request; return an error if its source does not declare the label.

        That of a sender who cannot have read the signal is treated as one without a request, even if it has the correlation
        ID.
        Raises StoreUnavailable.
        """
        fault = refusal(ack, arrival.route.declared)
        if fault is not None:
            return ErrorResponse(ack.entity, ack.entity.type.group, fault, ack.headers, ack.channel)
        pending = self.pending.find(ack)
        if pending is None and self.announcements.acknowledge(ack):
            return None
        if (
            pending is None
            or pending.collector.channel != ack.channel
            or not self._can_have_read(pending.signal, arrival)
            or not self.pending.acknowledge(pending, ack)
        ):
            # It is late, was not requested, or its sender cannot have read the signal; no error response is expected.
            arrival.counters.unmatched.note(ack)
        return None

    def answer(self, answer: LiveAnswer, arrival: InboundDelivery) -> ErrorResponse | None:
        """Pass a live response to its request; return an error if there is none and a reply is required.

        A sender that was not sent the request, or cannot read it, is treated as one without a request, even if it has the
        correlation ID. The requester gets what it can read of the response. Raises StoreUnavailable.
        """
        pending = self.pending.find(answer)
        if (
            pending is not None
            and not isinstance(pending.signal, Command)
            and fits(answer, pending.signal)
            and pending.may_answer(arrival.route.connection_id, arrival.received.subjects)
        ):
            answer = readable_response(answer, pending.arrival.received.subjects, self._world)
            addressing = self._replies.address_headers(pending.route, pending.signal.headers)
            pending.answer = forwarded_response(answer, pending.signal, addressing)
            if not pending.collector.wants(LIVE_RESPONSE):
                # The request waits for other labels only.
                return None
            if self.pending.acknowledge(
                pending, acknowledgement_of(LIVE_RESPONSE, answer, "live", pending.signal.headers)
            ):
                return None
        arrival.counters.unmatched.note(answer)
        fault = unexpected_response(answer)
        log.warning(
            "live response not delivered",
            connection=arrival.route.connection_id,
            source=arrival.route.index,
            entity=str(answer.entity),
            error=fault.error,
            **log_context(answer.headers),
        )
        if answer.headers.get("response-required") is not True:
            return None
        return ErrorResponse(answer.entity, "things", fault, answer.headers, "live")

    def _finish(self, pending: PendingRequest) -> None:
        """Send the reply of a completed or expired request, and finish its delivery."""
        collector, signal = pending.collector, pending.signal
        answer: Answer
        outcome = collector.outcome
        if isinstance(signal, Command) or not pending.wish.is_plain("live"):
            status = aggregate_status(collector.acks)
            answer = Acknowledgements(signal.entity, collector.acks, status, signal.headers, channel=collector.channel)
        elif pending.answer is not None:
            answer = pending.answer
            outcome = outcome_of_live_response(answer.status)
        elif pending.fallback is not None:
            answer, outcome = pending.fallback, Outcome.SETTLED
        else:
            answer = ErrorResponse(
                signal.entity, "things", command_timeout(pending.wish.timeout), signal.headers, "live"
            )
        arrival = pending.arrival
        if pending.ended is not None:
            arrival.note(outcome, is_done=True)
            if isinstance(signal, Command):
                # Another signal may still fail; the end of the delivery forgets them otherwise.
                arrival.ledger.keep_acks(arrival, pending.name, collector.acks)
        try:
            self._replies.post(pending.route, answer, pending.ended or ignore_outcome, arrival)
        except Exception:
            if pending.ended is not None:
                arrival.fail()
            raise
