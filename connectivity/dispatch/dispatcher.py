"""What is done with the signals of deliveries: commands to the store, live ones to others, subscriptions to the streams.

Deliveries come in batches, in order. The commands of a batch are decided one after the other, each seeing what the ones
before it decided, and stored together; an answer is posted when what it says is durable, and a delivery is settled when
the broker has its answers. What could not be stored, or not be decided because the store cannot be read, is handed back
unanswered, to be taken up again. A change that no store can take costs its own command an answer of 500, and nobody else.
What a delivery with several signals says to others leaves when its own changes are durable, so that it leaves once.

A command that asks for acknowledgements of others holds its delivery until they have come or its time is over
(`connectivity.dispatch.request_reply`, where live signals go too). Whether a delivery is settled or rejected follows from
what came of its signals (`connectivity.sources.acknowledgements`).

A redelivered command that is known is answered again and not carried out again: its answer was stored in the transaction of
its events. A redelivered request or cancel is remembered in memory, so that demand never doubles. One whose answers are
still on their way is settled by those and gets no others, and one whose answer the broker has refused is settled at once: to
send the same again would end the same way, for ever where the broker refuses by hanging up
(`connectivity.sources.delivery`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import structlog

from connectivity.dispatch.commands import CommandHandler, Sender
from connectivity.dispatch.effects import (
    ForwardEffect,
    RespondEffect,
    SessionEffect,
    Steps,
    Told,
    by_arrival,
    internal_error,
)
from connectivity.dispatch.pending import PendingRequest
from connectivity.dispatch.request_reply import RequestReply
from connectivity.dispatch.response_router import ResponseRouter
from connectivity.errors import TwinError
from connectivity.monitoring.log_context import log_context
from connectivity.sessions import SessionHandlers
from connectivity.sessions.base import SessionCommand, SessionReply
from connectivity.sources.acknowledgements import (
    NO_TIME,
    NOTHING,
    RequestedAcks,
    channel_of,
    outcome_of_error,
    says_nothing,
    wish,
)
from connectivity.sources.delivery import InboundDelivery, RedeliveryTracker
from connectivity.sources.reader import ReceivedSignal
from connectivity.store.past_state import state_at
from connectivity.store.store import Store
from connectivity.subscriptions.manager import Subscriber, SubscriptionManager
from connectivity.targets.directory import ConnectionDirectory, OpenConnection
from connectivity.targets.event_publisher import EventPublisher
from connectivity.targets.signal_context import ClockedState
from connectivity.transports.base import Done, Outcome, ReaderStatus
from connectivity.twins.decider import LIVE_CONDITION, Decider, asks_for_past
from mappings.errors import INTERNAL_ERROR, Fault
from mappings.model.headers import response_required
from mappings.model.signals import (
    Acknowledgement,
    Cancel,
    Command,
    ErrorResponse,
    Headers,
    LiveAnswer,
    LiveCommand,
    LiveEvent,
    LiveResponse,
    Message,
    MessageResponse,
    PolicyAnnouncement,
    Request,
    Response,
    SessionMessage,
    Subscribe,
)
from spark_store.errors import HistoryUnavailable, RevisionConflict, StoreUnavailable
from spark_store.records import Change, PastQuery

log = structlog.get_logger(__name__)


_MOST_TRIES = 5
"""How often a command is decided anew because another one before it, upon which it was decided, could not be stored."""

Postponed = Callable[[Sequence[InboundDelivery]], None]
"""Takes back arrivals that could not be carried out now. None of them has been answered."""


class Dispatcher:
    """The one place that knows which signal goes where."""

    def __init__(
        self,
        store: Store,
        streams: SubscriptionManager,
        decider: Decider,
        clock: Callable[[], float] = time.monotonic,
        desks: SessionHandlers | None = None,
    ) -> None:
        """`clock` gives monotonic seconds; it says when somebody has waited long enough for acknowledgements.

        `desks` serve the protocols with sessions of their own.
        """
        self._store = store
        self._streams = streams
        self._decider = decider
        self.desks = desks or SessionHandlers({})
        self._submitted: set[asyncio.Future[None]] = set()
        """What waits for the disk. Where one of these has failed, those behind it must not be faster than its return."""
        self._recalling: set[asyncio.Task[None]] = set()
        self._memory = RedeliveryTracker()
        self._members = ConnectionDirectory()
        self._replies = ResponseRouter(self._members)
        self.cursors = EventPublisher(store, ClockedState(decider.world, decider.now))
        """The targets that are sent what is stored here."""
        self._exchange = RequestReply(self._members, self.cursors, self._replies, decider.world, self._memory, clock)
        self._peer = lru_cache(maxsize=1024)(Subscriber)
        self._commands = CommandHandler(store, decider, lambda: self.cursors.is_wanted)

    def handle(self, arrivals: Sequence[InboundDelivery], postponed: Postponed) -> None:
        """Carry out a batch, in order. Returns at once; answers follow when they are durable."""
        if len(arrivals) > 1 and any(arrival.tries for arrival in arrivals):
            # One of these cannot be stored. Each by itself shows which, and the others are no worse for it.
            for arrival in arrivals:
                self.handle([arrival], postponed)
            return
        waiting: Steps = []
        changes: list[Change] = []
        left = arrivals
        if self._store.is_available and not any(map(_has_failed, self._submitted)):
            try:
                left = self._take_all(arrivals, waiting, changes)
            except BaseException:
                # Others may have been decided upon what was decided until now. Whoever brings it again is answered from it.
                self._drop(waiting)
                self._commands.announced()
                self._store.submit(changes)
                raise
        if waiting or left:
            # Also without changes: no answer overtakes another one, and what is handed back comes back in order.
            must_submit = changes or not self._store.is_available
            stored = self._store.submit(changes) if must_submit else self._store.barrier()
            self._submitted.add(stored)
            announced = self._commands.announced()
            stored.add_done_callback(lambda future: self._answer(future, waiting, left, postponed, announced))

    def join(self, member: OpenConnection) -> None:
        """A connection is open: it may be sent what others bring in."""
        self._members.join(member)

    def reader(self, connection_id: str, address: str, sign: ReaderStatus) -> None:
        """What is to be seen of those who read at an address."""
        self.desks.reader(connection_id, address, sign)
        if sign is ReaderStatus.GONE:
            self._streams.leave(connection_id, address)

    def close_connection(self, connection_id: str) -> None:
        """Nothing more comes from this connection, and nobody there waits for anything."""
        self.cursors.leave(connection_id)
        self._members.leave(connection_id)
        self._exchange.collecting.close_connection(connection_id)
        self.desks.close_connection(connection_id)
        self._streams.close_connection(connection_id)
        self._peer.cache_clear()
        self._memory.close_connection(connection_id)

    def announce(self, announcement: PolicyAnnouncement) -> None:
        """Tell those whom an announcement of a policy is for. A mistake of our own costs nobody else anything."""
        try:
            self._exchange.announcements.announce(announcement)
        except Exception:
            log.exception("an announcement could not be made", policy=str(announcement.entity))

    def held(self, connection_id: str) -> int:
        """How many deliveries of a connection wait for acknowledgements."""
        return self._exchange.collecting.held(connection_id)

    def sweep(self) -> None:
        """About once a second: desks do what is due."""
        self.desks.sweep()

    def expire(self) -> None:
        """End the waiting of those whose time is over. Happens by itself; for whoever moves the clock."""
        self._exchange.collecting.expire()

    def _take_all(
        self, arrivals: Sequence[InboundDelivery], waiting: Steps, changes: list[Change]
    ) -> Sequence[InboundDelivery]:
        """Carry out as many as can be; those that are left."""
        for position, arrival in enumerate(arrivals):
            try:
                self._take(arrival, waiting, changes)
            except StoreUnavailable as error:
                log.error("the store cannot be read", connection=arrival.route.connection_id, reason=str(error))
                arrival.is_again = True
                return arrivals[position:]
        return ()

    def _take(self, arrival: InboundDelivery, waiting: Steps, changes: list[Change]) -> None:
        """Carry out one delivery. Raises StoreUnavailable where it has to be taken up again."""
        if (arrival.delivery.redelivered or self._memory.has_failures) and self._memory.is_answered(arrival):
            return
        arrival.outcome = Outcome.SETTLED
        received = arrival.received
        steps: Steps = []
        is_alone = len(received.signals) == 1 and received.error is None
        if received.error is not None:
            steps.append(RespondEffect(arrival, received.error, received.route or arrival.route))
        elif not received.signals:
            arrival.route.meter.inbound("unread")
        try:
            for heard in received.signals:
                signal = heard.signal
                if isinstance(signal, Command):
                    steps.append(self._take_command(signal, heard, arrival, changes))
                elif isinstance(signal, Subscribe | Request | Cancel):
                    self._stream(signal, heard, arrival)
                elif isinstance(signal, SessionMessage):
                    steps += self._take_request(signal, heard, arrival, changes)
                elif (step := self._pass_on(signal, heard, arrival, is_alone=is_alone)) is not None:
                    steps.append(step)
        except StoreUnavailable:
            self._drop(steps)
            raise
        arrival.open = len(steps) or 1
        if not steps:
            # Streams answer for themselves, as fast as the link takes it.
            arrival.route.outbox.behind(self._memory.until_ended(arrival), arrival.route.place)
        elif is_alone and isinstance(steps[0], ForwardEffect):
            # Nothing can take it back: a live signal does not wait for the disk.
            self._do(steps[0])
        else:
            waiting += steps

    # answers to commands

    def _answer(
        self,
        stored: asyncio.Future[None],
        waiting: Steps,
        left: Sequence[InboundDelivery],
        postponed: Postponed,
        announced: Sequence[PolicyAnnouncement],
    ) -> None:
        self._submitted.discard(stored)
        error = StoreUnavailable("cancelled") if stored.cancelled() else stored.exception()
        if error is None:
            for step in waiting:
                self._do(step)
            for announcement in announced:
                self.announce(announcement)
        elif isinstance(error, StoreUnavailable):
            self._drop(waiting)
            taken = list(dict.fromkeys(step.arrival for step in waiting))
            for arrival in taken:
                arrival.is_again = True
            left = [*taken, *left]
        else:
            left = [*self._not_stored(error, waiting), *left]
        if left:
            postponed(left)

    def _not_stored(self, error: BaseException, waiting: Steps) -> list[InboundDelivery]:
        """Answer whoever is to blame; the others, to be taken up again."""
        found = by_arrival(waiting)
        innocent: list[InboundDelivery] = []
        for arrival, steps in found:
            arrival.tries += 1
            if (len(found) > 1 or isinstance(error, RevisionConflict)) and arrival.tries < _MOST_TRIES:
                self._drop(steps)
                innocent.append(arrival)
                continue
            if not any(isinstance(step, SessionEffect) for step in steps):
                self._memory.note(arrival, Outcome.REDELIVER, is_done=False)
            for step in steps:
                if isinstance(step, SessionEffect):
                    self._do(step, error)
                    continue
                if isinstance(step, ForwardEffect) or step.told is arrival.received.error:
                    self._do(step)
                    continue
                self._drop([step])
                log.error("a change could not be stored", exc_info=error, **_about(arrival, step.told.headers))
                self._do(RespondEffect(arrival, internal_error(step.told), step.route))
        return innocent

    def _drop(self, waiting: Steps) -> None:
        """These were not carried out: nobody collects for them."""
        for step in waiting:
            if step.pending is not None:
                self._exchange.collecting.drop(step.pending)

    def _do(self, step: RespondEffect | ForwardEffect | SessionEffect, error: BaseException | None = None) -> None:
        """Tell or say what may be told now. A mistake of our own costs nobody else anything.

        `error`: why a request is not stored.
        """
        try:
            if isinstance(step, RespondEffect):
                self._tell(step)
            elif isinstance(step, SessionEffect):
                step.say(error, self._memory.until_ended(step.arrival))
            else:
                step.say()
        except Exception:
            # Unsettled as it is, the delivery comes again over the next link.
            self._memory.forget(step.arrival)
            headers = step.told.headers if isinstance(step, RespondEffect) else step.headers
            log.exception("a delivery could not be answered", **_about(step.arrival, headers))

    def _tell(self, answer: RespondEffect) -> None:
        """What was carried out is durable: tell the requester, or what collects for it."""
        arrival, told, route, pending = answer
        if pending is not None and isinstance(told, Response):
            self._exchange.persisted(pending, told)
            return
        unasked = is_unread = told is arrival.received.error
        if isinstance(told, ErrorResponse):
            self._tell_refusal(arrival, told, is_unread)
            if (desk := self.desks.of(route.mapper.protocol)) is not None:
                desk.refuse(told, route, arrival, self._memory.until_ended(arrival))
                return
            unasked = is_unread or told.fault is NO_TIME
        self._replies.post(route, told, self._memory.until_ended(arrival), unasked=unasked)

    def _tell_refusal(self, arrival: InboundDelivery, answer: ErrorResponse, is_unread: bool) -> None:
        if answer.fault is INTERNAL_ERROR:
            # The log has its story already.
            arrival.route.meter.inbound("failed")
            return
        arrival.route.meter.inbound("malformed" if is_unread else "refused")
        log.info(
            "a delivery was refused" if is_unread else "a command was refused",
            **_about(arrival, answer.headers),
            entity=str(answer.entity) if answer.entity is not None else None,
            status=answer.fault.status,
            error=answer.fault.error,
        )

    # commands

    def _take_command(
        self, command: Command, heard: ReceivedSignal, arrival: InboundDelivery, changes: list[Change]
    ) -> RespondEffect | ForwardEffect:
        if LIVE_CONDITION in command.headers and command.action == "retrieve" and response_required(command.headers):
            return self._ask_device(command, heard, arrival)
        carry_out = self._look_back if asks_for_past(command) else self._carry_out
        return carry_out(command, heard, arrival, changes)

    def _ask_device(
        self, command: Command, heard: ReceivedSignal, arrival: InboundDelivery
    ) -> RespondEffect | ForwardEffect:
        """A query that goes to the device where the twin is as it says, else to the twin. Raises StoreUnavailable."""
        try:
            decision = self._decider.decide(command, arrival.received.subjects)
            if not decision.is_for_device:
                return RespondEffect(arrival, decision.response, heard.route)
            headers = {**command.headers, "channel": "live"}
            query = LiveCommand(command.entity, command.action, command.path, None, headers, fields=command.fields)
            sending = self._exchange.prepare(query, heard.route, arrival)
        except TwinError as refused:
            refusal = ErrorResponse(command.entity, refused.group, refused.fault, command.headers)
            return RespondEffect(arrival, refusal, heard.route)
        except StoreUnavailable:
            raise
        except Exception:
            return RespondEffect(arrival, self._not_passed_on(command, arrival), heard.route)
        if isinstance(sending, ErrorResponse):
            return RespondEffect(arrival, sending, heard.route)
        if sending.pending is not None and command.headers.get("live-channel-timeout-strategy") == "use-twin":
            sending.pending.fallback = decision.response
        return ForwardEffect(arrival, sending.send, headers, sending.pending)

    def _carry_out(
        self, command: Command, heard: ReceivedSignal, arrival: InboundDelivery, changes: list[Change]
    ) -> RespondEffect:
        """Decide a command, and hold its delivery if it asks for more than its answer. Raises StoreUnavailable."""
        asked: RequestedAcks | Fault | None = None
        # Most commands leave to the defaults what they ask for: their own answer is all. They are what has to be fast, so
        # that is not worked out for each of them.
        if not says_nothing(command.headers):
            asked = self._asked(command, arrival)
        told: Told
        if isinstance(asked, Fault):
            told = ErrorResponse(command.entity, command.entity.type.group, asked, command.headers)
        else:
            name, is_asked = self._memory.name(command, heard, arrival)
            labels = asked.labels if asked is not None else ()
            told = self._commands.carry_out(
                command, Sender(arrival, arrival.received.subjects, name, is_asked, labels), changes
            )
        pending: PendingRequest | None = None
        if isinstance(told, ErrorResponse):
            has_labels = bool(asked.labels) if isinstance(asked, RequestedAcks) else channel_of(command) is not None
            self._note_refusal(told, command, has_labels, arrival)
        elif isinstance(asked, RequestedAcks) and not asked.is_plain("twin"):
            pending = self._exchange.hold(command, asked, heard.route, arrival)
        return RespondEffect(arrival, told, heard.route, pending)

    def _asked(self, command: Command, arrival: InboundDelivery) -> RequestedAcks | Fault:
        """What a command says that it asks for, or why it cannot have it."""
        channel = channel_of(command)
        asked = wish(command.headers, channel) if channel is not None else NOTHING
        if isinstance(asked, Fault) or asked.is_plain("twin"):
            return asked
        return self._exchange.duplicate(command, arrival) or asked

    def _note_refusal(self, told: ErrorResponse, command: Command, is_asking: bool, arrival: InboundDelivery) -> None:
        """What a refusal means for the delivery: nothing, unless acknowledgements were asked for or we have failed."""
        if is_asking or (told.fault is INTERNAL_ERROR and command.action != "retrieve"):
            self._memory.note(arrival, outcome_of_error(told.fault), is_done=False)

    # the past

    def _look_back(
        self, command: Command, heard: ReceivedSignal, arrival: InboundDelivery, changes: list[Change]
    ) -> RespondEffect | ForwardEffect:
        """Judge a retrieve of the past: what it needs is found later, and answered then. Raises StoreUnavailable."""
        try:
            query = self._decider.past_wanted(command, arrival.received.subjects)
        except TwinError as refused:
            return RespondEffect(
                arrival, ErrorResponse(command.entity, refused.group, refused.fault, command.headers), heard.route
            )
        if query is None:
            return self._carry_out(command, heard, arrival, changes)
        return ForwardEffect(arrival, lambda: self._start_recall(command, query, heard, arrival), command.headers)

    def _start_recall(
        self, command: Command, query: PastQuery, heard: ReceivedSignal, arrival: InboundDelivery
    ) -> None:
        recalling = asyncio.get_running_loop().create_task(self._recall(command, query, heard, arrival))
        self._recalling.add(recalling)
        recalling.add_done_callback(self._recalling.discard)

    async def _recall(
        self, command: Command, query: PastQuery, heard: ReceivedSignal, arrival: InboundDelivery
    ) -> None:
        group = command.entity.type.group
        told: Told
        try:
            past = await state_at(self._store, query)
            told = self._decider.show_past(command, arrival.received.subjects, past).response
        except TwinError as refused:
            told = ErrorResponse(command.entity, refused.group, refused.fault, command.headers)
        except HistoryUnavailable as error:
            log.error(
                "a history is not there",
                reason=str(error),
                entity=str(command.entity),
                **_about(arrival, command.headers),
            )
            told = ErrorResponse(command.entity, group, error.fault, command.headers)
        except Exception:
            log.exception("a past state could not be found", **_about(arrival, command.headers))
            told = ErrorResponse(command.entity, group, INTERNAL_ERROR, command.headers)
        self._do(RespondEffect(arrival, told, heard.route))

    # what goes to others

    def _pass_on(
        self,
        signal: Message | LiveCommand | LiveEvent | LiveAnswer | Acknowledgement,
        heard: ReceivedSignal,
        arrival: InboundDelivery,
        *,
        is_alone: bool,
    ) -> RespondEffect | ForwardEffect | None:
        """Judge what goes to others: an error to answer with, or what is to be said. Raises StoreUnavailable.

        What says something to those that wait, and `is_alone` in its delivery, says it at once; then there may be nothing
        left to do.
        """
        if isinstance(signal, Acknowledgement | MessageResponse | LiveResponse):
            if is_alone:
                told = self._hand_over(signal, arrival)
                return RespondEffect(arrival, told, heard.route) if told is not None else None
            return ForwardEffect(arrival, lambda: self._hand_over_late(signal, heard, arrival), signal.headers)
        try:
            sending = self._exchange.prepare(signal, heard.route, arrival)
        except StoreUnavailable:
            raise
        except Exception:
            return RespondEffect(arrival, self._not_passed_on(signal, arrival), heard.route)
        if isinstance(sending, ErrorResponse):
            return RespondEffect(arrival, sending, heard.route)
        return ForwardEffect(arrival, sending.send, signal.headers, sending.pending)

    def _hand_over(self, signal: LiveAnswer | Acknowledgement, arrival: InboundDelivery) -> ErrorResponse | None:
        """Give those that wait what is for them; an error to answer with."""
        try:
            if isinstance(signal, Acknowledgement):
                return self._exchange.acknowledge(signal, arrival)
            return self._exchange.answer(signal, arrival)
        except Exception:
            return self._not_passed_on(signal, arrival)

    def _hand_over_late(
        self, signal: LiveAnswer | Acknowledgement, heard: ReceivedSignal, arrival: InboundDelivery
    ) -> None:
        if (told := self._hand_over(signal, arrival)) is not None:
            self._tell(RespondEffect(arrival, told, heard.route))
        else:
            self._memory.until_ended(arrival)(None)

    def _not_passed_on(
        self,
        signal: Command | Message | LiveCommand | LiveEvent | LiveAnswer | Acknowledgement,
        arrival: InboundDelivery,
    ) -> ErrorResponse:
        log.exception("a signal could not be passed on", **_about(arrival, signal.headers))
        channel = getattr(signal, "channel", "twin" if isinstance(signal, Command) else "live")
        return ErrorResponse(signal.entity, "things", INTERNAL_ERROR, signal.headers, channel)

    # requests of protocols with sessions of their own

    def _take_request(
        self, spoken: SessionMessage, heard: ReceivedSignal, arrival: InboundDelivery, changes: list[Change]
    ) -> Steps:
        """Have the desk of its protocol carry out a request. Raises StoreUnavailable."""
        try:
            desk = self.desks.of(heard.route.mapper.protocol)
            assert desk is not None, "a protocol whose clients have sessions has a desk"
            found = desk.take(spoken, heard, arrival, changes)
            says = [self._run(each, arrival, changes) if isinstance(each, SessionCommand) else each for each in found]
        except StoreUnavailable:
            raise
        except Exception:
            log.exception("a request could not be carried out", **_about(arrival, spoken.headers))
            return [RespondEffect(arrival, ErrorResponse(None, "things", INTERNAL_ERROR, spoken.headers), heard.route)]
        return [SessionEffect(arrival, say, spoken.headers) for say in says]

    def _run(self, errand: SessionCommand, arrival: InboundDelivery, changes: list[Change]) -> SessionReply:
        """Carry out a command of a request. Raises StoreUnavailable."""
        command, named = errand.command, errand.named
        told = self._commands.carry_out(command, Sender(arrival, errand.subjects, named.name, named.is_asked), changes)

        def say(error: BaseException | None, ended: Done) -> None:
            answer = told if error is None else internal_error(told)
            if error is not None:
                log.error("a change could not be stored", exc_info=error, **_about(arrival, command.headers))
            if isinstance(answer, ErrorResponse):
                self._tell_refusal(arrival, answer, is_unread=False)
            errand.told(answer, ended)

        return say

    # subscriptions

    def _stream(self, signal: Subscribe | Request | Cancel, heard: ReceivedSignal, arrival: InboundDelivery) -> None:
        # One object for all that the same party says: subscriptions keep it.
        reader = arrival.delivery.reader
        peer = self._peer(heard.route, arrival.received.subjects, heard.route.connection_id, reader=reader)
        try:
            if isinstance(signal, Subscribe):
                self._streams.subscribe(signal, peer)
            elif self._memory.is_known_request(signal, heard, arrival):
                arrival.route.meter.inbound("answered_again")
            elif isinstance(signal, Request):
                self._streams.request(signal, peer)
            else:
                self._streams.cancel(signal, peer)
        except Exception:
            log.exception("a subscription's command failed", **_about(arrival, signal.headers))
            entity = signal.query.entity if isinstance(signal, Subscribe) else signal.entity
            group = entity.type.group if entity is not None else "things"
            arrival.route.meter.inbound("failed")
            heard.route.post(ErrorResponse(entity, group, INTERNAL_ERROR, signal.headers))


def _has_failed(stored: asyncio.Future[None]) -> bool:
    return stored.done() and (stored.cancelled() or stored.exception() is not None)


def _about(arrival: InboundDelivery, headers: Headers) -> dict[str, Any]:
    """What log lines say about a delivery and the conversation that it belongs to."""
    return {
        "connection": arrival.route.connection_id,
        "source": arrival.route.index,
        "address": arrival.delivery.address,
        **log_context(headers),
    }
