"""Takes the deliveries of a link to the dispatcher, in the order in which they arrive.

A `SourceConsumer` consumes what one link delivers for one source. The users of a listener do not wait for each other: each
has a queue of its own, and `connectivity.sources.turns` divides the time. While the store cannot write, the `RetryBuffer`
of the connection holds the deliveries of all of its consumers, makes the consumers wait, and later processes the deliveries
in order of arrival. So deliveries about one entity stay in order, whichever client or source they arrive by. It also
rejects deliveries that nothing settles, as the last resort.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic, time_ns
from typing import Any

import structlog

from connectivity.errors import Detail
from connectivity.monitoring.prometheus import GaugeReading
from connectivity.sources.delivery import DeliveryLedger, InboundDelivery, read
from connectivity.sources.reader import Preparation, SourceReader
from connectivity.sources.turns import MOST_DELIVERIES, SourceTurns, UserTurns
from connectivity.store.answer_repository import forget_answers
from connectivity.store.store import Store
from connectivity.transports.base import Delivery, KnownNames, Link
from spark_store.errors import StoreUnavailable

log = structlog.get_logger(__name__)

PAUSE = 0.5
"""Seconds before deliveries are retried that the store refused although it is available."""

LONGEST_PAUSE = 60.0
"""The most seconds between two attempts to forget deliveries of an earlier session."""

PART_BYTES = 64 << 10
"""The most bytes of the deliveries of one turn, unless it is a single one."""

_ONLY = slice(0, 1)
"""The part of a list with a single delivery."""

Handle = Callable[[Sequence[InboundDelivery], Callable[[Sequence[InboundDelivery]], None]], None]
"""Processes deliveries in order; those that the store cannot take now go to the second argument."""


class RetryBuffer:
    """The consumers of a connection, and the deliveries that wait because the store was unavailable."""

    def __init__(
        self, connection_id: str, process: Handle, store: Store, turns: SourceTurns, *, pause: float = PAUSE
    ) -> None:
        self._connection_id = connection_id
        self.process = process
        self._store = store
        self.turns = turns
        self.user_turns = UserTurns()
        """The turns of the connection's broker; peers of a listener have their own."""
        self._pause = pause
        self.ledger = DeliveryLedger()
        self._consumers: set[SourceConsumer] = set()
        self._held: list[tuple[InboundDelivery, SourceConsumer]] = []
        self.recovery: asyncio.Task[None] | None = None
        """Retries the held deliveries while there are some; others wait for it."""

    def names_of(self, source: int, prefix: str) -> KnownNames:
        """Return the names with a prefix of a source's deliveries that may come again, in any order."""
        known = self.ledger.names_of(source, prefix)
        try:
            answered = self._store.answered_names(self._connection_id, source, prefix)
        except StoreUnavailable as error:
            self._warn("redeliveries not compared with the journal", error)
            return known
        return known._replace(carried_out=[*known.carried_out, *answered])

    async def forget_names(self, sources: int, prefix: str) -> None:
        """Forget the deliveries whose names have a prefix: the broker does not deliver them again.

        `sources`: how many sources the connection has.
        """
        self.ledger.forget_names(prefix)
        self._store.answers_to_forget.update((self._connection_id, source, prefix) for source in range(sources))
        await self._forget()

    @property
    def _to_forget(self) -> Sequence[tuple[str, int, str]]:
        """The answers that could not be forgotten yet, in earlier openings of the connection too."""
        return [each for each in self._store.answers_to_forget if each[0] == self._connection_id]

    async def _forget(self) -> bool:
        """Forget the answers to deliveries that do not come again; False if the store does not allow it now."""
        try:
            for each in self._to_forget:
                await forget_answers(self._store, *each)
                self._store.answers_to_forget.discard(each)
        except StoreUnavailable as error:
            self._warn("deliveries of an earlier session not forgotten yet", error)
            return False
        return True

    def _warn(self, event: str, error: StoreUnavailable) -> None:
        log.warning(event, connection=self._connection_id, reason=str(error))

    def enter(self, consumer: SourceConsumer) -> None:
        """Add a consumer, whose deliveries wait until those of an earlier session are forgotten."""
        self._consumers.add(consumer)
        if self._to_forget:
            self._begin_recovery()

    def leave(self, consumer: SourceConsumer) -> None:
        """Remove a consumer whose link has ended, and its deliveries, which the broker will redeliver."""
        self._consumers.discard(consumer)
        self._held = [(delivery, owner) for delivery, owner in self._held if owner is not consumer]
        if not self._consumers and self.recovery is not None:
            self.recovery.cancel()
            self.recovery = None

    async def begin_turn(self, user: UserTurns) -> None:
        """Wait until no deliveries are held, and for a turn of the user, who has none while it waits."""
        while True:
            while self.recovery is not None:
                await asyncio.shield(self.recovery)
            if not self.turns.begin(user):
                await self.turns.wait(user)
            if self.recovery is None:
                return
            self.turns.end(user, 0)

    def unsettled_seconds(self, now: float) -> Mapping[int, float]:
        """Return the age of the oldest unsettled delivery by source; 0 if all are settled."""
        ages: dict[int, float] = {}
        for consumer in self._consumers:
            age = max((now - delivery.arrived for delivery in consumer.unsettled()), default=0.0)
            ages[consumer.source] = max(age, ages.get(consumer.source, 0.0))
        return ages

    def reject_overdue(self, now: float, timeout: float) -> None:
        """Reject deliveries that nothing has settled within these seconds.

        Without that their source would stall. The time does not run while the store is unavailable, or the broker takes no
        responses, and not for deliveries that wait for others.
        """
        for consumer in self._consumers:
            if not consumer.is_working or not self._store.commits.is_available or self.recovery is not None:
                consumer.working_since = now
            elif now - consumer.working_since > timeout:
                for delivery in consumer.unsettled():
                    waiting = delivery.settled_with or delivery
                    if not waiting.waits and now - max(delivery.arrived, waiting.ours_since) > timeout:
                        consumer.reject(delivery, now)

    def hold(self, owners: Mapping[InboundDelivery, SourceConsumer], deliveries: Sequence[InboundDelivery]) -> None:
        """Keep deliveries for a retry, each with the consumer it came by."""
        held = [(delivery, owners[delivery]) for delivery in deliveries if owners[delivery] in self._consumers]
        if not held:
            return
        for delivery, _ in held:
            delivery.route.meter.inbound("held")
        self._held += held
        self._begin_recovery()

    def _begin_recovery(self) -> None:
        if self.recovery is None:
            self.recovery = asyncio.get_running_loop().create_task(self._recover())

    async def _recover(self) -> None:
        """Retry the held deliveries; an internal error ends the links, so that brokers redeliver."""
        try:
            while self._held or self._to_forget:
                await self._wait_for_store()
                await self._retry()
        except Exception as error:
            for consumer in self._consumers:
                consumer.stop(error)
        self.recovery = None

    async def _wait_for_store(self) -> None:
        """Wait until the store is available, and everything submitted to it is durable."""
        pause = self._pause
        while True:
            if self._store.commits.is_available:
                await asyncio.sleep(pause)
            await self._store.commits.wait_available()
            with contextlib.suppress(StoreUnavailable):
                # Transactions before the barrier may still hand deliveries back.
                await self._store.commits.barrier()
                if await self._forget():
                    break
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _retry(self) -> None:
        """Process the held deliveries in order of arrival, until one is handed back again."""
        self._held.sort(key=lambda each: each[0].number)
        retried, self._held = self._held, []
        owners = dict(retried)
        deliveries = [inbound.delivery for inbound, _ in retried]
        end = 0
        while end < len(retried):
            part = next_part(deliveries, end, MOST_DELIVERIES)
            end = part.stop
            if self._held:
                # The others wait behind it.
                self._held += retried[part.start :]
                break
            # A link that has ended in the meantime has its deliveries redelivered.
            ready = [inbound for inbound, owner in retried[part] if owner in self._consumers]
            self.process(ready, partial(self.hold, owners))
            await asyncio.sleep(0)


class SourceConsumer:
    """Consumes what one link delivers for one source."""

    def __init__(self, reader: SourceReader, retry_buffer: RetryBuffer) -> None:
        self._reader = reader
        self._retry_buffer = retry_buffer
        self._task: asyncio.Task[Any] | None = None
        self._error: Exception | None = None
        self._link: Link | None = None
        self._unsettled: deque[Delivery] = deque()
        """In order of arrival for each user; `unsettled` and the next part remove settled ones."""
        self._queues: dict[Hashable, deque[Delivery]] = {}
        """The waiting deliveries of each user of a listener, while a task processes them."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.working_since = monotonic()
        """Since when deliveries can be settled."""

    @property
    def source(self) -> int:
        return self._reader.route.index

    @property
    def is_working(self) -> bool:
        """Whether the link can take responses."""
        if self._link is None or self._reader.route.outbox.is_full:
            return False
        condition = self._link.condition
        return condition is None or condition.startswith(Detail.CONNECTED.value)

    def unsettled(self) -> Sequence[Delivery]:
        """Return the unsettled deliveries, in order of arrival for each user, and forget the settled ones."""
        found = [delivery for delivery in self._unsettled if delivery.outcome is None]
        self._unsettled = deque(found)
        return found

    def reject(self, delivery: Delivery, now: float) -> None:
        """Reject a delivery that nothing has settled, without requeue."""
        route = self._reader.route
        log.error(
            "delivery not settled in time",
            connection=route.connection_id,
            source=route.index,
            address=delivery.address,
            seconds=round(now - delivery.arrived),
        )
        route.meter.inbound("overdue")
        self._retry_buffer.ledger.reject(delivery)

    async def run(self, link: Link) -> None:
        """Consume until the link ends; the broker redelivers what is not acknowledged then.

        Raises the error that `stop` was called with.
        """
        self._task, self._link = asyncio.current_task(), link
        throttled = link.throttled
        buffer = self._retry_buffer
        buffer.enter(self)
        try:
            async for deliveries in link.consume(self.source):
                if (minutes := link.throttled) != throttled:
                    self._reader.note_throttled(minutes - throttled)
                    throttled = minutes
                if deliveries[0].user is None:
                    await self._process(deliveries, buffer.user_turns)
                else:
                    self._divide(deliveries)
        except asyncio.CancelledError:
            if self._error is not None:
                raise self._error from None
            raise
        finally:
            for task in self._tasks:
                task.cancel()
            buffer.leave(self)

    def _divide(self, deliveries: Sequence[Delivery]) -> None:
        """Process deliveries of users whose turn can begin now; the others wait in the queues of their users."""
        by_user: dict[Hashable, list[Delivery]] = {}
        for delivery in deliveries:
            by_user.setdefault(delivery.user, []).append(delivery)
        for key, own in by_user.items():
            if (queue := self._queues.get(key)) is not None:
                queue += own
                continue
            user = self._retry_buffer.turns.user(key)
            if (done := self._process_at_once(own, user)) < len(own):
                queue = self._queues[key] = deque(own[done:])
                task = asyncio.get_running_loop().create_task(self._process_queue(key, queue, user))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _process_at_once(self, deliveries: Sequence[Delivery], user: UserTurns) -> int:
        """Process the first deliveries if the user's turn can begin now; return how many."""
        buffer, turns = self._retry_buffer, self._retry_buffer.turns
        must_wait = self._reader.has_scripts or buffer.recovery is not None
        if must_wait or not (turns.alone is user or turns.begin(user)):
            return 0
        first = deliveries[next_part(deliveries, 0, user.most)]
        self._unsettled += first
        self._process_part(first, (), user, time_ns())
        return len(first)

    async def _process_queue(self, key: Hashable, queue: deque[Delivery], user: UserTurns) -> None:
        """Process the deliveries of a user until its queue is empty."""
        try:
            while queue:
                await self._process([queue.popleft() for _ in range(min(len(queue), MOST_DELIVERIES))], user)
        except Exception as error:
            self.stop(error)
        finally:
            del self._queues[key]

    async def _process(self, deliveries: Sequence[Delivery], user: UserTurns) -> None:
        """Process the deliveries of one user in its turns."""
        buffer = self._retry_buffer
        turns = buffer.turns
        started = time_ns()
        self._unsettled += deliveries
        await self._reader.route.outbox.wait_for_room()
        # The user waits for mapping scripts, so that its deliveries stay in order.
        prepared = await self._reader.prepare(deliveries)
        end = 0
        while end < len(deliveries):
            if end:
                await asyncio.sleep(0)
            if turns.alone is not user or buffer.recovery is not None:
                await buffer.begin_turn(user)
            part = _ONLY if len(deliveries) == 1 else next_part(deliveries, end, user.most)
            end = part.stop
            self._process_part(deliveries[part], prepared[part], user, started)

    def _process_part(
        self, deliveries: Sequence[Delivery], prepared: Sequence[Preparation], user: UserTurns, started: int
    ) -> None:
        """Process deliveries in the turn of their user, and end it."""
        buffer, turns = self._retry_buffer, self._retry_buffer.turns
        unsettled = self._unsettled
        while unsettled and unsettled[0].outcome is not None:
            unsettled.popleft()
        try:
            inbound = read(self._reader, deliveries, buffer.ledger, prepared, started)
            buffer.process(inbound, partial(buffer.hold, dict.fromkeys(inbound, self)))
        finally:
            if turns.alone is not user:
                turns.end(user, len(deliveries))

    def stop(self, error: Exception) -> None:
        """End `run` with this error, because the deliveries of the link cannot be processed."""
        self._error = error
        if self._task is not None:
            self._task.cancel()


def next_part(deliveries: Sequence[Delivery], start: int, most: int) -> slice:
    """Return the next deliveries: at most `most`, and `PART_BYTES` if they are more than one."""
    size = 0
    for position in range(start, min(start + most, len(deliveries))):
        size += len(deliveries[position].envelope.payload)
        if size > PART_BYTES and position > start:
            return slice(start, position)
    return slice(start, min(start + most, len(deliveries)))


def settlement_metrics(ages: Mapping[tuple[str, ...], float]) -> Iterator[GaugeReading]:
    """Return the metrics of unsettled deliveries, by connection and source."""
    yield GaugeReading(
        "connectivity_oldest_unsettled_seconds",
        "Age of the oldest delivery of a source that is not settled.",
        ages,
        ("connection", "source"),
    )
