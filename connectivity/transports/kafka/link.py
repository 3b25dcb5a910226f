"""A link to Kafka: deliveries in, messages out, offsets that follow what is done.

**Settling.** A record's offset is stored when it and everything before it in its partition has ended. One that is to come
again is read again, and everything behind it with it, after a pause that grows from 0.1 s to a minute. What a rebalance
takes away is dropped, and late outcomes of it are ignored: whoever has the partition now reads it.

**Cuts.** The library mends small ones by itself, and nobody notices. The link is lost when no broker can be reached for
`MENDED_WITHIN` seconds, when nothing is confirmed for half a minute, and at once for what does not mend itself: a login
refused, rights taken away, a topic that is gone, another client in our place.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient

from connectivity.errors import Detail, LinkError, NotConnected
from connectivity.transports.base import (
    Delivery,
    Done,
    Inbox,
    OutboundMessage,
    Outcome,
    Readers,
    SharedDelivery,
    nobody_asks,
)
from connectivity.transports.dialer import run_in_thread
from connectivity.transports.kafka.consumer import KafkaConsumer
from connectivity.transports.kafka.errors import ALL_DOWN, ENDS, link_error, telling
from connectivity.transports.kafka.handshake import list_brokers
from connectivity.transports.kafka.partition import Partition, PartitionDelivery
from connectivity.transports.kafka.producer import KafkaProducer
from connectivity.transports.kafka.records import is_expired, received

WINDOW = 4000
MENDED_WITHIN = 5.0
ASKED_EVERY = 0.1
GONE_WITHIN = 5.0
ANSWER_WITHIN = 2.0
"""Seconds for a broker that the library cannot reach to answer a greeting, and so to be told from one that is gone."""

Asked = Callable[[float], Awaitable[None]]


class KafkaLink:
    """See `connectivity.transports.base.Link`."""

    window: int
    lost: asyncio.Future[LinkError]

    def __init__(self, topics: Sequence[Sequence[str]], mended_within: float = MENDED_WITHIN) -> None:
        """`topics`: those of each source. `mended_within`: seconds that the library has to reach a broker again."""
        self._loop = asyncio.get_running_loop()
        self.window = WINDOW
        self.lost = self._loop.create_future()
        self.readers: Readers = nobody_asks
        self.down = asyncio.Event()
        """Set when the library has said that no broker can be reached."""
        self._sources: dict[str, tuple[int, ...]] = {}
        for index, names in enumerate(topics):
            for name in names:
                self._sources[name] = (*self._sources.get(name, ()), index)
        self._inboxes = [Inbox() for _ in topics]
        self._mended_within = mended_within
        self._members: list[KafkaConsumer] = []
        self._publishing: KafkaProducer | None = None
        self._admin: AdminClient | None = None
        self._probe: asyncio.Task[None] | None = None
        self.asked: Asked | None = None
        """Greets the brokers, within so many seconds; raises LinkError if none of them answers."""
        self._last_error: KafkaError | None = None
        self._ending: LinkError | None = None
        self._is_made = self._is_over = False
        self._ended = self._delivery_ended

    def __repr__(self) -> str:
        state = "over" if self._is_over else "up"
        unconfirmed = self._publishing.unconfirmed if self._publishing is not None else 0
        return f"<KafkaLink {state}, {unconfirmed} messages unconfirmed>"

    def begin(self, publishing: KafkaProducer, admin: AdminClient) -> None:
        """Put the clients to this link's service that need no group."""
        self._publishing, self._admin = publishing, admin
        publishing.start()

    @property
    def admin(self) -> AdminClient:
        """Asks the cluster about itself. There from `begin` on."""
        assert self._admin is not None
        return self._admin

    def join(self, member: KafkaConsumer) -> None:
        self._members.append(member)
        member.start()

    def made(self) -> None:
        """The group has let us in, or there is nothing to consume: the link is there."""
        self._is_made = True
        if self.down.is_set():
            self._look_again()

    @property
    def condition(self) -> str | None:
        """While the library looks for a broker, nothing comes and nothing goes."""
        return str(self._said()) if self._is_made and self.down.is_set() else None

    @property
    def throttled(self) -> int:
        """See `connectivity.transports.base.Link`."""
        return max((member.throttled for member in self._members), default=0)

    async def reason(self, patience: float) -> LinkError:
        """Why no broker can be reached: as the library says it, where its words tell something, else as a greeting finds."""
        if self._ending is not None:
            return self._ending
        if self._last_error is not None and self._last_error.code() in ENDS:
            return link_error(self._last_error)
        if self.asked is not None:
            try:
                await self.asked(patience)
            except LinkError as error:
                return error
        # Whatever it was is over, or it is nothing that a greeting meets.
        return self._said()

    def _said(self) -> LinkError:
        """The library's own reason."""
        if self._last_error is not None:
            return link_error(self._last_error)
        return NotConnected(Detail.TIMEOUT, "no answer from a broker")

    # ── consuming ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def consume(self, source: int) -> AsyncIterator[list[Delivery]]:
        return self._inboxes[source].lists()

    def taken(self) -> None:
        """Records have come from a consumer's thread."""
        if self._is_over:
            return
        now = time.time()
        for member in self._members:
            while member.records:
                for partition, message in member.records.popleft():
                    if partition.is_ours:
                        self._arrived(partition, message, now)
                    else:
                        member.has_ended(1)
        for inbox in self._inboxes:
            if inbox.waiting:
                inbox.wake()

    def _arrived(self, partition: Partition, message: Message, now: float) -> None:
        offset, topic = message.offset() or 0, partition.topic
        is_again = offset < partition.known_below
        if not is_again:
            partition.known_below = offset + 1
        envelope = received(message, topic)
        name = partition.name_of(offset)
        sources = self._sources[topic]
        shared = None
        for index in sources:
            taken = PartitionDelivery(envelope, topic, name, is_again, self._ended)
            taken.partition, taken.offset = partition, offset
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
        if self._is_over or not partition.is_ours:
            return
        if (shared := delivery.shared) is not None:
            if not shared.ended(outcome):
                return
            delivery, outcome = shared.first, shared.outcome
        is_well = partition.ended(delivery, outcome)
        partition.owner.has_ended(1)
        if not is_well:
            partition.is_ours = False
            self.drop(partition)
            partition.owner.read_again(partition)

    def drop(self, partition: Partition) -> None:
        """A partition is not ours any more, or is read again: what we have of it is nobody's."""
        if self._is_over:
            return
        partition.owner.has_ended(partition.open)
        partition.open = 0
        for inbox in self._inboxes:
            if any(_is_of(taken, partition) for taken in inbox.waiting):
                inbox.waiting = deque(taken for taken in inbox.waiting if not _is_of(taken, partition))

    # ── publishing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, message: OutboundMessage, done: Done) -> None:
        if not self._is_over and self._publishing is not None:
            self._publishing.send(message, done)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def failed(self, error: KafkaError, topic: str) -> None:
        """The library has said something: a thing it gets over by itself, that no broker is there, or the end."""
        if self._is_over:
            return
        if error.code() == ALL_DOWN:
            self.down.set()
            if self._is_made:
                self._look_again()
        elif error.fatal() or error.code() in ENDS:
            self._last_error = error
            self.down.set()
            if self._is_made:
                self._die(link_error(error, topic))
        elif self._last_error is None or telling(error) >= telling(self._last_error):
            self._last_error = error

    def ended(self, error: LinkError) -> None:
        """A consumer's thread has come to an end by itself."""
        if self._is_made:
            self._die(error)
        else:
            self._ending = error
            self.down.set()

    def stuck(self) -> None:
        """Messages wait for confirms that do not come."""
        self._die(NotConnected(Detail.TIMEOUT, "the broker confirms nothing any more"))

    def _look_again(self) -> None:
        if self._probe is None or self._probe.done():
            self._probe = self._loop.create_task(self._find_broker())

    async def _find_broker(self) -> None:
        """Give the library its time to reach a broker; without success the link is lost."""
        assert self._admin is not None
        end = self._loop.time() + self._mended_within
        while (left := end - self._loop.time()) > 0:
            try:
                await run_in_thread("kafka reconnect", partial(list_brokers, self._admin, left))
            except KafkaException:
                # The question itself may have been on a link that was cut.
                await asyncio.sleep(min(left, ASKED_EVERY))
            else:
                self.down.clear()
                self._last_error = None
                return
        self._die(await self.reason(ANSWER_WITHIN))

    async def close(self) -> None:
        if not self._is_over:
            self._end(is_orderly=True)
        gone = [asyncio.wrap_future(member.gone) for member in self._members]
        if self._publishing is not None:
            gone.append(asyncio.wrap_future(self._publishing.gone))
        if gone and not self.lost.done():
            # A broker that does not answer any more is not waited for: the threads end by themselves.
            await asyncio.wait(gone, timeout=GONE_WITHIN)

    def abandon(self) -> None:
        """Close without waiting: connecting has failed."""
        self._end(is_orderly=False)

    def _die(self, error: LinkError) -> None:
        if not self._is_over:
            self._end(is_orderly=False)
            self.lost.set_result(error)

    def _end(self, *, is_orderly: bool) -> None:
        self._is_over = True
        if self._probe is not None and self._probe is not asyncio.current_task():
            self._probe.cancel()
        if self._publishing is not None:
            self._publishing.stop(is_orderly=is_orderly)
        for member in self._members:
            member.stop()
        for inbox in self._inboxes:
            inbox.end()


def _is_of(delivery: Delivery, partition: Partition) -> bool:
    return isinstance(delivery, PartitionDelivery) and delivery.partition is partition
