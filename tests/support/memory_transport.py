"""A broker in this process: the reference for the behavior of a link, for tests and examples only.

**Addresses** are names; a message goes to each source that lists exactly its address. Each source of each connection ID
has a queue from its first link on, which outlives the links. Clients of one connection receive messages in turn.

**Outcomes.** A settled delivery is removed, a dropped one is recorded in `dropped`, a requeued one goes to the front of
its queue and is delivered again immediately, marked. Deliveries without an outcome are delivered again on the next
link, marked.

**Faults**: `cut` ends all links, `refusal` refuses new links, `withheld_confirms` accepts messages without confirms,
`refused_addresses` refuses messages, and nobody reads `unread_addresses`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import NamedTuple

from connectivity.connections.model import Connection
from connectivity.connections.templates import has_expression
from connectivity.errors import ConnectionRefused, Detail, LinkError, NotConnected, Problem, PublishFailed
from connectivity.transports import MODULES
from connectivity.transports.base import (
    CONSUME_DEFAULTS,
    MAX_BATCH,
    RESOLVED_PER_MESSAGE,
    AddressCheck,
    AsyncApiNames,
    ConnectionType,
    ConsumeOptions,
    Delivery,
    Done,
    OutboundMessage,
    Outcome,
    ProbeReport,
    Readers,
    ReaderStatus,
    SpecificConfig,
    ignore_reader_status,
)
from mappings.model.envelope import Envelope

IN_FLIGHT = 1000
WINDOW = 100


class Options(SpecificConfig):
    """The options of a connection. There are no options."""


class Message(NamedTuple):
    number: int
    address: str
    envelope: Envelope


@dataclass(slots=True)
class _Queue:
    """The waiting messages of one source, and the unsettled ones of each client's link.

    `again`: the numbers of messages to mark as redelivered.
    """

    addresses: frozenset[str]
    waiting: deque[Message] = field(default_factory=deque)
    unsettled: defaultdict[int, dict[int, Message]] = field(default_factory=lambda: defaultdict(dict))
    again: set[int] = field(default_factory=set)
    arrived: defaultdict[int, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))

    def put(self, message: Message) -> None:
        self.waiting.append(message)
        self.wake()

    def wake(self) -> None:
        for event in self.arrived.values():
            event.set()

    def give_back(self, client: int) -> None:
        """Requeue all unsettled messages of a client at the front, in their order."""
        unsettled = self.unsettled[client]
        self.again.update(unsettled)
        self.waiting.extendleft(reversed(unsettled.values()))
        unsettled.clear()
        self.wake()


class MemoryBroker:
    """A broker. `MemoryBroker.named("lab")` serves connections with the URI `memory://lab:1`."""

    _named: dict[str, MemoryBroker] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.refusal: LinkError | None = None
        self.withheld_confirms = 0
        self.refused_addresses: set[str] = set()
        self.unread_addresses: set[str] = set()
        self.taken: list[Message] = []
        """All messages that were sent or published, in order."""
        self.dropped: list[Message] = []
        self.links: list[MemoryLink] = []
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._numbers = count(1)

    def __repr__(self) -> str:
        return f"<MemoryBroker {len(self.links)} links, {len(self._queues)} queues, {len(self.taken)} messages taken>"

    @classmethod
    def named(cls, name: str) -> MemoryBroker:
        return cls._named.setdefault(name, cls())

    def send(self, address: str, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send a message to the sources of this address."""
        message = Message(next(self._numbers), address, Envelope(payload, dict(headers or {})))
        self.taken.append(message)
        for queue in self._queues.values():
            if address in queue.addresses:
                queue.put(message)

    def sent_to(self, address: str) -> list[Envelope]:
        return [message.envelope for message in self.taken if message.address == address]

    def cut(self, words: str = "the link was cut") -> None:
        """End all links."""
        for link in list(self.links):
            link.die(NotConnected(Detail.CONNECTING, words))

    def queue(self, connection_id: str, source: int, addresses: Sequence[str], client: int) -> _Queue:
        queue = self._queues.setdefault((connection_id, source), _Queue(frozenset(addresses)))
        queue.addresses = frozenset(addresses)
        queue.give_back(client)
        return queue


class MemoryLink:
    """A link; see `connectivity.transports.base.Link`."""

    condition: str | None = None
    throttled = 0
    target_faults: Mapping[int, str] = MappingProxyType({})

    def __init__(self, broker: MemoryBroker, queues: Sequence[_Queue], client: int = 0) -> None:
        self._loop = asyncio.get_running_loop()
        self.window = WINDOW
        self.lost: asyncio.Future[LinkError] = self._loop.create_future()
        self.readers: Readers = ignore_reader_status
        self.client = client
        self._broker, self._queues = broker, queues
        self._is_over = False
        broker.links.append(self)

    def __repr__(self) -> str:
        return f"<MemoryLink {'over' if self._is_over else 'up'}, {self._unsettled} deliveries unsettled>"

    @property
    def _unsettled(self) -> int:
        return sum(len(queue.unsettled[self.client]) for queue in self._queues)

    async def consume(self, source: int) -> AsyncIterator[list[Delivery]]:
        queue = self._queues[source]
        while not self._is_over:
            room = min(IN_FLIGHT - self._unsettled, MAX_BATCH, len(queue.waiting))
            if room > 0:
                yield [self._deliver(queue) for _ in range(room)]
            else:
                arrived = queue.arrived[self.client]
                arrived.clear()
                await arrived.wait()

    def _deliver(self, queue: _Queue) -> Delivery:
        message = queue.waiting.popleft()
        queue.unsettled[self.client][message.number] = message

        def ended(_: Delivery, outcome: Outcome) -> None:
            if not self._is_over:
                self._end_delivery(queue, message, outcome)

        is_again = message.number in queue.again
        return Delivery(message.envelope, message.address, f"memory:{message.number}", is_again, ended)

    def _end_delivery(self, queue: _Queue, message: Message, outcome: Outcome) -> None:
        del queue.unsettled[self.client][message.number]
        if outcome is Outcome.REDELIVER:
            queue.again.add(message.number)
            queue.waiting.appendleft(message)
        else:
            queue.again.discard(message.number)
            if outcome is Outcome.DROPPED:
                self._broker.dropped.append(message)
        for every in self._queues:
            every.wake()

    def publish(self, message: OutboundMessage, done: Done) -> None:
        if self._is_over:
            return
        broker = self._broker
        if message.address in broker.refused_addresses:
            refused = PublishFailed(f"address {message.address} takes no messages")
            self._confirm(message.address, ReaderStatus.REFUSED, done, refused)
            return
        broker.send(message.address, message.envelope.payload, message.envelope.headers)
        if broker.withheld_confirms:
            broker.withheld_confirms -= 1
        else:
            sign = ReaderStatus.UNDELIVERED if message.address in broker.unread_addresses else ReaderStatus.HEARD
            self._confirm(message.address, sign, done, None)

    def _confirm(self, address: str, sign: ReaderStatus, done: Done, error: PublishFailed | None) -> None:
        def confirm() -> None:
            if not self._is_over:
                self.readers(address, sign)
                done(error)

        self._loop.call_soon(confirm)

    async def close(self) -> None:
        self._end()

    def die(self, error: LinkError) -> None:
        """End the link with an error."""
        if not self._is_over:
            self._end()
            self.lost.set_result(error)

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._broker.links.remove(self)
            for queue in self._queues:
                queue.give_back(self.client)


async def _connect(connection: Connection, client: int = 0, consume: ConsumeOptions = CONSUME_DEFAULTS) -> MemoryLink:
    broker = MemoryBroker.named(connection.broker_uri.host)
    if broker.refusal is not None:
        raise broker.refusal
    sources = enumerate(connection.sources)
    queues = [broker.queue(connection.id, index, source.addresses, client) for index, source in sources]
    return MemoryLink(broker, queues, client)


async def _examine(connection: Connection, name: str) -> ProbeReport:
    broker = MemoryBroker.named(connection.broker_uri.host)
    if broker.refusal is not None:
        raise broker.refusal

    def look(address: str) -> AddressCheck:
        if has_expression(address):
            return AddressCheck(address, note=RESOLVED_PER_MESSAGE, is_known=False)
        is_refused = address in broker.refused_addresses
        return AddressCheck(address, ConnectionRefused(Detail.NOT_AUTHORIZED, address) if is_refused else None)

    return ProbeReport(
        [[look(address) for address in source.addresses] for source in connection.sources],
        [look(source.reply_target.address) for source in connection.sources],
        [look(target.address) for target in connection.targets],
    )


def _check(_: Connection) -> list[Problem]:
    return [Problem("connectionType", '"memory"', "a broker outside this process, such as mqtt or amqp-091")]


CONNECTION_TYPE = ConnectionType(
    name="memory",
    schemes=("memory",),
    secure_schemes=(),
    options=Options,
    check=_check,
    has_headers=True,
    connect=_connect,
    asyncapi=AsyncApiNames("memory", "memory"),
    examine=_examine,
)

MODULES["memory"] = __name__
