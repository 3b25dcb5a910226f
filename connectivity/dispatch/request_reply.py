"""What goes between parties: live signals and their answers, acknowledgements, and who waits for them.

A requester is told once: by the answer that it waits for, by all acknowledgements together where it asked for more, or by
an error when its time is over. The delivery that brought its request is held until then, if it asked for acknowledgements;
what becomes of it follows from what came. The clock, the heap of those that wait, and the connections that are open belong
to others; here is what each kind of signal means (Ditto connections, requested acknowledgements, live responses).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple, TypeAlias

import structlog

from connectivity.authorization.enforcer import Enforcer
from connectivity.dispatch.announcements import PolicyAnnouncements
from connectivity.dispatch.commands import foreign_labels
from connectivity.dispatch.live_channel import LiveChannel, fits, forwarded, issued_answer, outgoing, unexpected
from connectivity.dispatch.pending import PendingRequest, PendingRequests
from connectivity.dispatch.response_router import ResponseRouter
from connectivity.dispatch.weak_acknowledgements import WeakAcknowledgements
from connectivity.monitoring.log_context import log_context
from connectivity.sources.acknowledgements import (
    BUILT_IN,
    SEARCH_PERSISTED,
    TWIN_PERSISTED,
    RequestedAcks,
    command_timed_out,
    outcome_of_error,
    outcome_of_live_response,
    own,
    refusal,
    wish,
)
from connectivity.sources.delivery import InboundDelivery, RedeliveryTracker, digest
from connectivity.targets.directory import ConnectionDirectory
from connectivity.targets.event_publisher import EventPublisher
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.transports.base import Outcome, unobserved
from connectivity.twins.access import may_send
from connectivity.twins.context import StateLookup
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
    is_success,
)
from mappings.placeholders.values import utc_now
from spark_store.errors import StoreUnavailable
from spark_store.records import Snapshot

log = structlog.get_logger(__name__)


MOST_UNHELD = 1000
"""The most live signals of a connection that wait for an answer while their deliveries are settled already."""

_DUPLICATE = Fault(
    409,
    "acknowledgement:request.duplicate.correlation-id",
    "Another signal to this entity with the same correlation id waits for acknowledgements.",
    "Send every signal with a correlation id of its own.",
)
_TOO_MANY = Fault(
    429,
    "live.response.limit",
    f"{MOST_UNHELD} live signals of this connection wait for an answer without an acknowledgement, the most there may be.",
    "Leave 'requested-acks' to its default, which holds the delivery back, or give a shorter 'timeout'.",
)
_REMEMBERED = 10_000
"""So many deliveries that come again are remembered with what was acknowledged already."""

_Place: TypeAlias = tuple[tuple[str, int], str]

_FORGET = RequestedAcks((), False, 0.0)


class LiveDelivery(NamedTuple):
    """A live signal that may be sent, and what waits for its answer from now on. `send` ends one answer of its arrival,
    then or later; whoever does not call it drops `pending`."""

    send: Callable[[], None]
    pending: PendingRequest | None


class _Judged(NamedTuple):
    """The present of one thing, as it was when a signal to it was judged: nothing has to be read to send the signal."""

    thing: Snapshot | None
    policy: Snapshot | None
    permissions: Enforcer | None

    @classmethod
    def of(cls, thing: EntityId, world: StateLookup) -> _Judged:
        """Raises StoreUnavailable."""
        found = world.snapshot(thing)
        name = found.policy if found is not None else None
        if name is None:
            return cls(found, None, None)
        policy = parse_entity_id(EntityType.POLICY, name)
        seen = world.snapshot(policy) if policy is not None else None
        return cls(found, seen, world.enforcer(name, thing.namespace))

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        return self.policy if entity.type is EntityType.POLICY else self.thing

    def enforcer(self, policy_id: str, namespace: str | None = None) -> Enforcer | None:  # noqa: ARG002
        return self.permissions

    def now(self) -> datetime:
        return utc_now()


class RequestReply:
    """The one place that knows who waits for whom."""

    def __init__(
        self,
        members: ConnectionDirectory,
        cursors: EventPublisher,
        replies: ResponseRouter,
        world: StateLookup,
        memory: RedeliveryTracker,
        clock: Callable[[], float],
    ) -> None:
        """`clock` gives monotonic seconds."""
        self._cursors = cursors
        self._given: OrderedDict[_Place, tuple[bytes, tuple[Acknowledgement, ...]]] = OrderedDict()
        """What others have acknowledged of commands whose deliveries come again for the rest: with the payload's digest."""
        self._world = world
        self._memory = memory
        self._replies = replies
        self._members = members
        self.collecting = PendingRequests(clock, self._finish)
        self.announcements = PolicyAnnouncements(members)

    # commands on twins

    def duplicate(self, signal: Command | Message | LiveCommand, arrival: InboundDelivery) -> Fault | None:
        """Why a signal cannot be waited for: another one has its place. A redelivery takes the place of its forerunner.

        That of another signal which it brings itself, it does not take.
        """
        earlier = self.collecting.find(signal)
        if earlier is None:
            return None
        is_forerunner = earlier.arrival is not arrival and earlier.arrival.route.place == arrival.route.place
        if arrival.delivery.redelivered and is_forerunner:
            self.collecting.drop(earlier)
            self._memory.forget(earlier.arrival)
            return None
        return _DUPLICATE

    def hold(
        self, command: Command, asked: RequestedAcks, route: ReplyTargetPublisher, arrival: InboundDelivery
    ) -> PendingRequest:
        """Wait for what a command asks for; `persisted` tells the service's own part."""
        return self.collecting.begin(command, asked, "twin", arrival, route, arrival.ended)

    def persisted(self, pending: PendingRequest, response: Response) -> None:
        """What the command did is durable."""
        if pending.is_over:
            return
        pending.ended = self._memory.until_ended(pending.arrival)
        headers = pending.signal.headers
        acks = [own(label, response, "twin", headers) for label in (TWIN_PERSISTED, SEARCH_PERSISTED)]
        given = self._given_before(pending.arrival)
        self.collecting.done(pending, *acks, *given)
        if not pending.is_over and (labels := foreign_labels(pending.collector.missing)):
            self._ask(pending, response, labels)

    def _ask(self, pending: PendingRequest, response: Response, labels: Sequence[str]) -> None:
        """Have others acknowledge the event that a command has led to, now or when it was delivered first."""
        revision = response.headers.get("entity-revision")
        try:
            found = self._cursors.followed(response.entity, revision) if isinstance(revision, int) else None
            if found is not None:
                promises = WeakAcknowledgements(
                    found,
                    labels,
                    pending.correlation_id,
                    lambda ack: self.collecting.acknowledge(pending, ack),
                    lambda: pending.is_over,
                )
                promises.collect(self._members, self._cursors, pending.arrival.route.connection_id)
        except StoreUnavailable as error:
            # Nobody acknowledges, so the delivery comes again.
            log.warning("nobody can be asked for acknowledgements", entity=str(response.entity), error=str(error))

    def _given_before(self, arrival: InboundDelivery) -> tuple[Acknowledgement, ...]:
        """What others have acknowledged when a delivery came before."""
        if arrival.place is None or not arrival.delivery.redelivered:
            return ()
        payload, given = self._given.pop(arrival.place, (b"", ()))
        return given if payload == digest(arrival.delivery) else ()

    def _remember_given(self, arrival: InboundDelivery, acks: Sequence[Acknowledgement]) -> None:
        """A delivery comes again, since some acknowledgements have failed: the others are not asked for any more."""
        given = tuple(ack for ack in acks if ack.label not in BUILT_IN and is_success(ack.status))
        if arrival.place is None or not given:
            return
        self._given[arrival.place] = digest(arrival.delivery), given
        if len(self._given) > _REMEMBERED:
            self._given.popitem(last=False)

    # live signals

    def prepare(
        self, signal: Live, route: ReplyTargetPublisher, arrival: InboundDelivery
    ) -> ErrorResponse | LiveDelivery:
        """Judge a live signal: the error that it is answered with, or what sends it. Raises StoreUnavailable.

        What is awaited comes back by `route`. Who is sent the signal is judged by what is the case now.
        """
        asked = _FORGET if isinstance(signal, LiveEvent) else wish(signal.headers, "live")
        if isinstance(asked, Fault):
            return self._refused(signal, asked, Outcome.DROPPED, arrival)
        judged = _Judged.of(signal.entity, self._world)
        fault = may_send(signal, arrival.received.subjects, judged)
        is_awaited = bool(asked.labels) or asked.is_answered
        if fault is None and is_awaited and not isinstance(signal, LiveEvent):
            fault = self.duplicate(signal, arrival)
            if fault is None and not asked.labels and self.collecting.unheld(route.connection_id) >= MOST_UNHELD:
                fault = _TOO_MANY
        if fault is not None:
            return self._refused(signal, fault, outcome_of_error(fault) if asked.labels else Outcome.SETTLED, arrival)
        pending = None
        if is_awaited and not isinstance(signal, LiveEvent):
            held = arrival.ended if asked.labels else None
            pending = self.collecting.begin(signal, asked, "live", arrival, route, held)
            pending.is_done = False
        return LiveDelivery(lambda: self._send(signal, asked, pending, arrival, judged), pending)

    def _send(
        self,
        signal: Live,
        asked: RequestedAcks,
        pending: PendingRequest | None,
        arrival: InboundDelivery,
        judged: _Judged,
    ) -> None:
        if pending is not None and pending.is_over:
            # Another delivery has its place, or the connection is closed.
            return
        ended = self._memory.until_ended(arrival)
        if pending is not None:
            if asked.labels:
                pending.ended = ended
            self.collecting.done(pending)

        def acknowledge(ack: Acknowledgement) -> None:
            if pending is None or pending.is_over:
                return
            if ack.label == LIVE_RESPONSE and not isinstance(pending.signal, Command):
                pending.answer = issued_answer(pending.signal, ack.status)
            self.collecting.acknowledge(pending, ack)

        if pending is None or not pending.is_over:
            # Otherwise its time was over before it could be sent.
            live = LiveChannel(self._members, judged)
            postings = live.publish(outgoing(signal, asked), arrival.route.connection_id, asked.labels, acknowledge)
            if pending is not None:
                pending.postings.extend(postings)
        if not asked.labels:
            ended(None)

    def _refused(self, signal: Live, fault: Fault, outcome: Outcome, arrival: InboundDelivery) -> ErrorResponse:
        self._memory.note(arrival, outcome, is_done=False)
        return ErrorResponse(signal.entity, "things", fault, signal.headers, "live")

    # what comes for those that wait

    def acknowledge(self, ack: Acknowledgement, arrival: InboundDelivery) -> ErrorResponse | None:
        """Hand an acknowledgement to whoever asked for it; the error where its sender may not give it."""
        fault = refusal(ack, arrival.route.declared)
        if fault is not None:
            return ErrorResponse(ack.entity, ack.entity.type.group, fault, ack.headers, ack.channel)
        pending = self.collecting.find(ack)
        if pending is None and self.announcements.acknowledge(ack):
            return None
        if pending is None or pending.collector.channel != ack.channel or not self.collecting.acknowledge(pending, ack):
            # Too late, or never asked for: nobody is there to complain.
            arrival.facts.unmatched.note(ack)
        return None

    def answer(self, answer: LiveAnswer, arrival: InboundDelivery) -> ErrorResponse | None:
        """Hand a live answer to whoever waits for it; an error only where its sender asks for a response itself."""
        pending = self.collecting.find(answer)
        if pending is not None and not isinstance(pending.signal, Command) and fits(answer, pending.signal):
            pending.answer = forwarded(answer, pending.signal)
            if not pending.collector.wants(LIVE_RESPONSE):
                # It waits for other labels only; nobody is told of the answer.
                return None
            if self.collecting.acknowledge(pending, own(LIVE_RESPONSE, answer, "live", pending.signal.headers)):
                return None
        arrival.facts.unmatched.note(answer)
        fault = unexpected(answer)
        log.warning(
            "a live answer cannot be delivered",
            connection=arrival.route.connection_id,
            source=arrival.route.index,
            entity=str(answer.entity),
            error=fault.error,
            **log_context(answer.headers),
        )
        if answer.headers.get("response-required") is not True:
            return None
        return ErrorResponse(answer.entity, "things", fault, answer.headers, "live")

    # the end

    def _finish(self, pending: PendingRequest) -> None:
        """Everything has come, or the time is over: tell the requester, and let go of its delivery."""
        collector, signal = pending.collector, pending.signal
        answer: Answer
        outcome = collector.outcome
        if isinstance(signal, Command) or not pending.wish.is_plain("live"):
            answer = Acknowledgements(
                signal.entity, collector.acks, collector.status, signal.headers, channel=collector.channel
            )
        elif pending.answer is not None:
            answer = pending.answer
            outcome = outcome_of_live_response(answer.status)
        elif pending.fallback is not None:
            answer, outcome = pending.fallback, Outcome.SETTLED
        else:
            answer = ErrorResponse(
                signal.entity, "things", command_timed_out(pending.wish.timeout), signal.headers, "live"
            )
        arrival = pending.arrival
        if pending.ended is not None:
            self._memory.note(arrival, outcome, is_done=True)
            if isinstance(signal, Command) and arrival.outcome is Outcome.REDELIVER:
                self._remember_given(arrival, collector.acks)
        try:
            self._replies.post(pending.route, answer, pending.ended or unobserved)
        except Exception:
            # Unsettled as it is, it comes again over the next link.
            self._memory.forget(arrival)
            raise
