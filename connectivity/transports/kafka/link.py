"""A link to Kafka: deliveries, messages, and offsets that follow settled records.

**Settling.** An offset is stored when its record and all earlier ones in the partition have ended. A record rejected for
redelivery is read again with all that follow, after a delay from 0.1 s to 1 min. Records of a revoked partition are
dropped and their outcomes ignored: the new owner reads them.

**Lost connections.** The library reconnects by itself. The link is lost when no broker can be reached for
`REPAIR_SECONDS` seconds, when nothing is confirmed for 30 s, and at once for permanent errors: a refused login, revoked
permissions, a missing topic, a fenced client.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import cast

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from connectivity.errors import Detail, LinkError, NotConnected
from connectivity.transports.base import (
    UNKNOWN_SIZE,
    Delivery,
    Done,
    Inbox,
    OutboundMessage,
    Outcome,
    Readers,
    SharedDelivery,
    ignore_reader_status,
)
from connectivity.transports.dialer import run_in_thread
from connectivity.transports.kafka.consumer import KafkaConsumer
from connectivity.transports.kafka.errors import ALL_DOWN, ENDS, code_of, link_error, telling
from connectivity.transports.kafka.handshake import list_brokers
from connectivity.transports.kafka.partition import Partition, PartitionDelivery
from connectivity.transports.kafka.producer import KafkaProducer
from connectivity.transports.kafka.records import Record, UnreadableRecord, envelope_of, is_expired

WINDOW = 4000
MOST_DOUBTFUL = 32_000
"""Bound on how far small messages to topics that may be missing extend the window."""

REPAIR_SECONDS = 5.0
PROBE_INTERVAL = 0.1
CLOSE_TIMEOUT = 5.0
RESPONSE_TIMEOUT = 2.0
"""Seconds for a broker to answer a probe, before it is considered unreachable."""

BrokerProbe = Callable[[float], Awaitable[None]]


class KafkaLink:
    """A `connectivity.transports.base.Link` to a Kafka cluster."""

    window: int
    lost: asyncio.Future[LinkError]
    target_faults: Mapping[int, str] = MappingProxyType({})

    def __init__(self, topics: Sequence[Sequence[str]], repair_seconds: float = REPAIR_SECONDS) -> None:
        """`topics`: the topics of each source.

        `repair_seconds`: seconds that the library has to reach a broker again.
        """
        self._loop = asyncio.get_running_loop()
        self.window = WINDOW
        self.lost = self._loop.create_future()
        self.readers: Readers = ignore_reader_status
        self.down = asyncio.Event()
        """Set when the library has reported that no broker can be reached, or a permanent error."""
        self._sources: dict[str, tuple[int, ...]] = {}
        for index, names in enumerate(topics):
            for name in names:
                self._sources[name] = (*self._sources.get(name, ()), index)
        self._inboxes = [Inbox() for _ in topics]
        self._repair_seconds = repair_seconds
        self._members: list[KafkaConsumer] = []
        self._producer: KafkaProducer | None = None
        self._admin: AdminClient | None = None
        self._probe: asyncio.Task[None] | None = None
        self.probe: BrokerProbe | None = None
        """Probes the brokers within so many seconds; raises LinkError if none of them answers."""
        self._last_error: KafkaError | None = None
        self._ending: LinkError | None = None
        self._is_started = self._is_over = False
        self._ended = self._delivery_ended

    def __repr__(self) -> str:
        state = "over" if self._is_over else "up"
        unconfirmed = self._producer.unconfirmed if self._producer is not None else 0
        return f"<KafkaLink {state}, {unconfirmed} messages unconfirmed>"

    def begin(self, publishing: KafkaProducer, admin: AdminClient) -> None:
        """Set the clients of this link that need no group."""
        self._producer, self._admin = publishing, admin
        publishing.start()

    @property
    def admin(self) -> AdminClient:
        """The admin client, which others do not keep alive. Raises the error of a lost link."""
        if self._admin is None:
            raise self.lost.result()
        return cast(AdminClient, weakref.proxy(self._admin))

    def join(self, member: KafkaConsumer) -> None:
        self._members.append(member)
        member.start()

    def mark_started(self) -> None:
        """Start the link after it has joined the group, or without sources."""
        self._is_started = True
        if self._ending is not None:
            # A consumer may end while others join.
            self._die(self._ending)
        elif self.down.is_set():
            self._start_probe()

    @property
    def condition(self) -> str | None:
        """The reason while the library looks for a broker, or cannot read records, or None."""
        if self._is_started and self.down.is_set():
            return str(self._library_error())
        return next((lasting for member in self._members if (lasting := member.errors.lasting) is not None), None)

    @property
    def throttled(self) -> int:
        """The number of minutes with throttling (see `connectivity.transports.base.Link`)."""
        return max((member.throttled for member in self._members), default=0)

    async def reason(self, patience: float) -> LinkError:
        """Return why no broker can be reached: the library's reason if specific, else that of a probe."""
        if self._ending is not None:
            return self._ending
        if self.probe is not None:
            try:
                await self.probe(patience)
            except LinkError as error:
                return error
        # The fault is over, or a probe does not meet it.
        return self._library_error()

    def _library_error(self) -> LinkError:
        """Return the library's own reason."""
        if self._last_error is not None:
            return link_error(self._last_error)
        return NotConnected(Detail.TIMEOUT, "no broker of the cluster responded")

    # ── consuming ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def consume(self, source: int) -> AsyncIterator[list[Delivery]]:
        return self._inboxes[source].lists()

    def taken(self) -> None:
        """Handle records from a consumer's thread."""
        if self._is_over:
            return
        now = time.time()
        for member in self._members:
            while member.records:
                for partition, message, size in member.records.popleft():
                    if partition.is_assigned:
                        self._arrived(partition, message, size, now)
                    else:
                        member.has_ended(1, size, 1)
        for inbox in self._inboxes:
            if inbox.waiting:
                inbox.wake()

    def _arrived(self, partition: Partition, message: Record, size: int, now: float) -> None:
        offset, topic = message.offset() or 0, partition.topic
        is_again = offset < partition.seen_below
        if not is_again:
            partition.seen_below = offset + 1
        envelope = envelope_of(message, topic)
        name = partition.name_of(offset)
        sources = self._sources[topic]
        shared = None
        skipped = UNKNOWN_SIZE if isinstance(message, UnreadableRecord) else 0
        for index in sources:
            taken = PartitionDelivery(
                envelope, topic, name, is_again, self._ended, skipped=skipped, position=(partition.key, offset)
            )
            taken.partition, taken.offset, taken.size = partition, offset, size
            if index == sources[0]:
                partition.arrived(taken)
                if is_expired(envelope, now):
                    taken.shared = None
                    taken.settle()
                    return
                if len(sources) > 1:
                    shared = SharedDelivery(taken, len(sources))
            taken.shared = shared
            self._inboxes[index].waiting.append(taken)

    def _delivery_ended(self, delivery: Delivery, outcome: Outcome) -> None:
        assert isinstance(delivery, PartitionDelivery)
        partition = delivery.partition
        if self._is_over or not partition.is_assigned:
            return
        if (shared := delivery.shared) is not None:
            if not shared.ended(outcome):
                return
            delivery, outcome = shared.first, shared.outcome
        waiting = partition.waiting
        can_continue = partition.ended(delivery, outcome)
        partition.owner.has_ended(1, delivery.size, waiting - partition.waiting)
        if not can_continue:
            partition.is_assigned = False
            self.drop(partition)
            partition.owner.read_again(partition)

    def drop(self, partition: Partition) -> None:
        """Drop the deliveries of a partition that was revoked or is read again."""
        if self._is_over:
            return
        partition.owner.has_ended(partition.open, partition.open_bytes, partition.waiting)
        partition.clear()
        for inbox in self._inboxes:
            if any(_belongs_to(taken, partition) for taken in inbox.waiting):
                inbox.waiting = deque(taken for taken in inbox.waiting if not _belongs_to(taken, partition))

    # ── publishing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, message: OutboundMessage, done: Done) -> None:
        if self._is_over or (producer := self._producer) is None:
            return
        producer.send(message, done)
        if producer.doubtful or self.window != WINDOW:
            self.window = WINDOW + min(producer.doubtful, MOST_DOUBTFUL)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def failed(self, error: KafkaError, topic: str) -> None:
        """Handle an error of the library: temporary, no broker reachable, or permanent."""
        if self._is_over:
            return
        if error.code() == ALL_DOWN:
            self.down.set()
            if self._is_started:
                self._start_probe()
        elif error.fatal() or code_of(error) in ENDS:
            self.ended(link_error(error, topic))
        elif self._last_error is None or telling(error) >= telling(self._last_error):
            self._last_error = error

    def ended(self, error: LinkError) -> None:
        """Handle a permanent error, or the unexpected end of a consumer's thread."""
        if self._is_started:
            self._die(error)
        else:
            self._ending = error
            self.down.set()

    def stuck(self) -> None:
        """Handle missing confirms."""
        self._die(NotConnected(Detail.TIMEOUT, "the broker has stopped confirming messages"))

    def _start_probe(self) -> None:
        if self._probe is None or self._probe.done():
            self._probe = self._loop.create_task(self._find_broker())

    async def _find_broker(self) -> None:
        """Give the library time to reach a broker; if it does not, the link is lost."""
        end = self._loop.time() + self._repair_seconds
        while (left := end - self._loop.time()) > 0:
            try:
                await run_in_thread("kafka reconnect", partial(list_brokers, self.admin, left))
            except KafkaException:
                # The request itself may have been sent on a lost connection.
                await asyncio.sleep(min(left, PROBE_INTERVAL))
            else:
                self.down.clear()
                self._last_error = None
                return
        self._die(await self.reason(RESPONSE_TIMEOUT))

    async def close(self) -> None:
        if not self._is_over:
            self._end(is_orderly=True)
        gone = [asyncio.wrap_future(member.closed) for member in self._members]
        if self._producer is not None:
            gone.append(asyncio.wrap_future(self._producer.gone))
        if gone and not self.lost.done():
            # Not waited for if the broker is unreachable: the threads end by themselves.
            await asyncio.wait(gone, timeout=CLOSE_TIMEOUT)

    def abandon(self) -> None:
        """Close without waiting, after a failed attempt to connect."""
        self._end(is_orderly=False)

    def _die(self, error: LinkError) -> None:
        if not self._is_over:
            self._end(is_orderly=False)
            self.lost.set_result(error)

    def _end(self, *, is_orderly: bool) -> None:
        self._is_over = True
        if self._probe is not None and self._probe is not asyncio.current_task():
            self._probe.cancel()
        if self._producer is not None:
            self._producer.stop(is_orderly=is_orderly)
        for member in self._members:
            member.stop()
        if self._admin is not None:
            last, self._admin = [self._admin], None
            threading.Thread(
                target=_end_admin, args=(last, self._members), name="kafka admin's end", daemon=True
            ).start()
        for inbox in self._inboxes:
            inbox.end()


def _end_admin(last: list[AdminClient], members: Sequence[KafkaConsumer]) -> None:
    """Delete the admin client, which waits for the library's threads, and these for name servers."""
    for member in members:
        member.closed.result()
    last.clear()


def _belongs_to(delivery: Delivery, partition: Partition) -> bool:
    return isinstance(delivery, PartitionDelivery) and delivery.partition is partition
