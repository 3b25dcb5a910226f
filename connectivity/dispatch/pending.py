"""Signals that wait for acknowledgements or live responses, with one timer for all of them.

A `PendingRequest` is found by entity and correlation ID, which is all that an acknowledgement says about its signal. The
last label, the response or the timeout call `finish` once; an error in it is logged and affects no other request. One heap
orders the requests by their deadlines, and the timer is set for the first.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import structlog

from connectivity.monitoring.logs import log_context
from connectivity.sources.acknowledgements import AckAggregator, RequestedAcks
from connectivity.sources.delivery import InboundDelivery
from connectivity.targets.open_connection import ConnectionComponent
from connectivity.targets.outbox import PendingPublish
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.transports.base import Done
from mappings.ids import LIVE_RESPONSE, EntityId
from mappings.model.signals import Acknowledgement, Command, Live, LiveAnswer, LiveCommand, Message, Response

log = structlog.get_logger(__name__)

_MAX_ENDED_IN_HEAP = 1000
"""How many ended requests, or half of the heap, may stay in the heap until it is cleaned."""


MayAnswer: TypeAlias = Callable[[str, Sequence[str]], bool]
"""Whether these subjects, by this connection, may answer a signal."""


class PendingRequest:
    """One signal that waits, to be answered by `route`.

    `name` distinguishes a command from others in its delivery. `ended` finishes its delivery; None where the delivery does
    not wait. Until `is_done` (a command is durable, a live signal is sent) neither acknowledgements nor the timeout end it.
    `fallback` is the response to a live signal at its timeout, if its sender asked for one.
    `may_answer(connection, subjects)` decides whether a response to a live signal is accepted: none is before the signal is
    sent.
    """

    __slots__ = (
        "answer",
        "arrival",
        "collector",
        "deadline",
        "ended",
        "fallback",
        "in_heap",
        "is_done",
        "is_late",
        "is_over",
        "may_answer",
        "name",
        "postings",
        "route",
        "signal",
        "wish",
    )

    def __init__(
        self,
        signal: Command | Message | LiveCommand,
        wish: RequestedAcks,
        collector: AckAggregator,
        arrival: InboundDelivery,
        route: ReplyTargetPublisher,
        ended: Done | None,
        deadline: float,
    ) -> None:
        self.signal = signal
        self.wish = wish
        self.collector = collector
        self.arrival = arrival
        self.route = route
        self.name = ""
        self.ended = ended
        self.deadline = deadline
        self.is_done = not isinstance(signal, Command)
        self.is_late = self.is_over = self.in_heap = False
        self.answer: LiveAnswer | None = None
        self.fallback: Response | None = None
        self.postings: list[PendingPublish] = []
        self.may_answer: MayAnswer = lambda _connection_id, _subjects: False

    def __repr__(self) -> str:
        return f"<PendingRequest {self.collector!r}, {'over' if self.is_over else 'open'}>"

    @property
    def correlation_id(self) -> str | None:
        return self.signal.headers.get("correlation-id")

    def withdraw(self) -> None:
        """Withdraw the messages that no link has taken yet."""
        for posting in self.postings:
            posting.withdrawn = True


class PendingRequests(ConnectionComponent):
    """All pending requests."""

    def __init__(self, clock: Callable[[], float], finish: Callable[[PendingRequest], None]) -> None:
        """`clock` returns monotonic seconds; `finish` is called once for each completed or expired request."""
        self._clock = clock
        self._finish = finish
        self._pending: dict[tuple[EntityId, str | None], PendingRequest] = {}
        self._heap: list[tuple[float, int, PendingRequest]] = []
        self._number = self._ended_in_heap = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        """When the timer is due, on the event loop's clock; not every event loop's handle reports it."""
        self._held: Counter[str] = Counter()
        self._unheld: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._pending)

    def waiting_deliveries(self, connection_id: str) -> int:
        """Return how many deliveries of a connection wait for acknowledgements."""
        return self._held[connection_id]

    def conditions(self, connection_id: str) -> Iterable[tuple[int | None, str]]:
        if held := self.waiting_deliveries(connection_id):
            yield None, f"{held} deliveries wait for acknowledgements"

    def unheld(self, connection_id: str) -> int:
        """Return how many signals of a connection wait for a response without holding their delivery."""
        return self._unheld[connection_id]

    def begin(
        self,
        signal: Command | Message | LiveCommand,
        wish: RequestedAcks,
        channel: str,
        arrival: InboundDelivery,
        route: ReplyTargetPublisher,
        ended: Done | None,
    ) -> PendingRequest:
        """Add a signal; `find` must not find another with the same correlation ID."""
        labels = wish.labels or (LIVE_RESPONSE,)
        deadline = self._clock() + wish.timeout
        pending = PendingRequest(
            signal, wish, AckAggregator(signal.entity, labels, channel), arrival, route, ended, deadline
        )
        self._pending[_key(pending)] = pending
        self._number += 1
        heapq.heappush(self._heap, (deadline, self._number, pending))
        pending.in_heap = True
        self._count(pending, 1)
        self._set_timer()
        return pending

    def find(self, signal: Command | Live | LiveAnswer | Acknowledgement) -> PendingRequest | None:
        """Return the request that this signal answers, or with which it shares its correlation ID."""
        return self._pending.get((signal.entity, signal.headers.get("correlation-id")))

    def acknowledge(self, pending: PendingRequest, ack: Acknowledgement) -> bool:
        """Add an acknowledgement; return False if it is late or was not requested."""
        if pending.is_over or pending.is_late or not pending.collector.take(ack):
            return False
        if pending.collector.is_complete and pending.is_done:
            self._end(pending)
        return True

    def mark_durable(self, pending: PendingRequest, *acks: Acknowledgement) -> None:
        """Note that a command is durable, with the service's own acknowledgements, or a live signal sent."""
        if pending.is_over:
            return
        pending.is_done = True
        for ack in acks:
            pending.collector.take(ack)
        if pending.is_late:
            pending.collector.expire(pending.correlation_id, pending.wish.timeout)
        if pending.collector.is_complete:
            self._end(pending)

    def drop(self, pending: PendingRequest) -> None:
        """Remove a request without finishing it."""
        if pending.is_over:
            return
        pending.is_over = True
        if self._pending.get(_key(pending)) is pending:
            del self._pending[_key(pending)]
        self._count(pending, -1)
        self._ended_in_heap += pending.in_heap
        if self._ended_in_heap > max(_MAX_ENDED_IN_HEAP, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if not entry[2].is_over]
            heapq.heapify(self._heap)
            self._ended_in_heap = 0

    def closed(self, connection_id: str) -> None:
        """Remove the requests of a connection; the broker keeps their deliveries."""
        for pending in [each for each in self._pending.values() if each.arrival.route.connection_id == connection_id]:
            self.drop(pending)
        del self._held[connection_id], self._unheld[connection_id]

    def expire(self) -> None:
        """Finish the requests whose time is over."""
        now = self._clock()
        try:
            while self._heap and (self._heap[0][2].is_over or self._heap[0][0] <= now):
                pending = heapq.heappop(self._heap)[2]
                pending.in_heap = False
                if pending.is_over:
                    self._ended_in_heap -= 1
                    continue
                if not pending.is_done:
                    pending.is_late = True
                    continue
                pending.withdraw()
                pending.collector.expire(pending.correlation_id, pending.wish.timeout)
                self._end(pending)
        finally:
            self._set_timer()

    def _end(self, pending: PendingRequest) -> None:
        self.drop(pending)
        try:
            self._finish(pending)
        except Exception:
            log.exception(
                "finishing a pending request failed",
                connection=pending.arrival.route.connection_id,
                entity=str(pending.signal.entity),
                **log_context(pending.signal.headers),
            )

    def _count(self, pending: PendingRequest, step: int) -> None:
        counter = self._unheld
        if pending.ended is not None:
            counter = self._held
            pending.arrival.count_waits(step)
        counter[pending.arrival.route.connection_id] += step

    def _set_timer(self) -> None:
        """Set the timer for the earliest deadline."""
        if not self._heap:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + max(0.0, self._heap[0][0] - self._clock())
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._timer, self._due = loop.call_at(due, self._expire), due

    def _expire(self) -> None:
        self._timer = None
        self.expire()


def _key(pending: PendingRequest) -> tuple[EntityId, str | None]:
    return pending.signal.entity, pending.correlation_id
