"""Deliveries on their way through, and what names them: which of them are known already, and which come again too often.

An `InboundDelivery` is one delivery with what it says and what is still to come of it. `RedeliveryTracker` remembers in
memory what helps when a broker brings a delivery again: requests that were carried out (so that demand never doubles),
answers that are still on their way, answers that the broker has refused, and how often a delivery was given back. Answers to
commands are remembered by the store, in the transaction of their events; here is only the name under which they are found.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from itertools import count, repeat
from time import time_ns
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from connectivity.errors import ConnectivityError
from connectivity.monitoring.counters import SignalReference, SourceCounters
from connectivity.sources.acknowledgements import worse
from connectivity.sources.reader import NOTHING, DecodedDelivery, Preparation, ReceivedSignal, SourceReader
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.transports.base import Delivery, Done, Outcome
from mappings.model.signals import Cancel, Command, Headers, Request
from spark_store.records import DeliveryName

if TYPE_CHECKING:
    from connectivity.monitoring.tracing import Tracer


IDEMPOTENCY_KEY = "idempotency-key"
MOST_REJECTIONS = 5
"""How often a delivery is given back to come again, before it is settled all the same."""

_REMEMBERED_REQUESTS = 10_000
_REMEMBERED_REFUSALS = 1_000
_REMEMBERED_REJECTIONS = 10_000

_numbers = count()

_Place: TypeAlias = tuple[tuple[str, int], str]
"""What names a delivery among all that are known: connection and source, then the delivery's own name."""


class InboundDelivery:
    """One delivery on its way through: what it says, and how many of its answers have not ended yet.

    `is_again` says that it was taken up before: a commit that failed may have been carried out all the same. `number`
    grows with the order of arrival, `tries` with every time that it could not be stored for reasons of its own. `outcome`
    is what becomes of it when the last answer has ended. `route` stands for the source; each signal is answered by its own.
    `made` is what a desk has made of it, for when it is taken up again.
    """

    __slots__ = (
        "delivery",
        "facts",
        "is_again",
        "made",
        "number",
        "open",
        "outcome",
        "place",
        "received",
        "route",
        "tries",
    )

    def __init__(self, delivery: Delivery, received: DecodedDelivery, route: ReplyTargetPublisher) -> None:
        self.delivery = delivery
        self.received = received
        self.route = route
        self.facts = route.arriving.at(delivery.address)
        self.number = next(_numbers)
        self.open = self.tries = 0
        self.outcome = Outcome.SETTLED
        self.is_again = delivery.redelivered
        self.made: Any = None
        self.place: _Place | None = (route.place, delivery.name) if delivery.name is not None else None
        """What names the delivery, apart from what it says; None where nothing does."""

    def __repr__(self) -> str:
        return f"<Arrival {self.number} at {self.delivery.address}, {self.open} answers open, {self.outcome.value}>"

    def ended(self, _error: ConnectivityError | None) -> None:
        """One answer has reached the broker, or was refused by it. The last one settles the delivery, or rejects it."""
        self.open -= 1
        if self.open == 0:
            if self.outcome is Outcome.SETTLED:
                self.settle()
            else:
                self.delivery.reject(self.outcome is Outcome.REDELIVER)
                fact = self.facts.given_back if self.outcome is Outcome.REDELIVER else self.facts.rejected
                fact.note(self.about)

    def settle(self) -> None:
        self.delivery.settle()
        self.facts.acknowledged.note(self.about)

    @property
    def about(self) -> SignalReference | None:
        """What the delivery says, or the first of it, for the log."""
        signals = self.received.signals
        return signals[0].signal if signals else self.received.error


def read(
    reader: SourceReader,
    deliveries: Sequence[Delivery],
    prepared: Sequence[Preparation] = (),
    started: int | None = None,
) -> list[InboundDelivery]:
    """Decode a batch; `prepared` is what `reader.prepare` has made of it, since `started` (nanoseconds since 1970)."""
    each = zip(deliveries, prepared or repeat(NOTHING), strict=False)
    route = reader.route
    if (tracer := route.tracer) is None:
        arrivals = [InboundDelivery(delivery, reader.receive(delivery, made), route) for delivery, made in each]
    else:
        arrivals = [
            InboundDelivery(delivery, _traced(tracer, delivery, reader.receive(delivery, made), route, since), route)
            for delivery, made in each
            for since in (started or time_ns(),)
        ]
    _note_read(arrivals, reader.is_enforcing)
    return arrivals


def _note_read(arrivals: Sequence[InboundDelivery], is_enforcing: bool) -> None:
    """Tell what was read. Deliveries of one signal, which is what most are, are told of together."""
    plain: dict[SourceCounters, list[SignalReference]] = {}
    for arrival in arrivals:
        received = arrival.received
        if len(received.signals) == 1 and received.error is None and not (received.dropped or is_enforcing):
            plain.setdefault(arrival.facts, []).append(received.signals[0].signal)
        else:
            _note(arrival, is_enforcing)
    for facts, signals in plain.items():
        facts.read.note_each(signals)


def _note(arrival: InboundDelivery, is_enforcing: bool) -> None:
    """Tell what was read of a delivery."""
    facts, received = arrival.facts, arrival.received
    facts.consumed.note(arrival.about)
    for heard in received.signals:
        facts.mapped.note(heard.signal)
        if is_enforcing:
            facts.enforced.note(heard.signal)
    if received.dropped:
        facts.dropped.note(None, received.dropped)
    if (error := received.error) is not None:
        fact = facts.not_mapped if received.is_enforced else facts.not_enforced
        fact.note(error, words=f"{error.fault.error}: {error.fault.message}")


def _traced(
    tracer: Tracer, delivery: Delivery, received: DecodedDelivery, route: ReplyTargetPublisher, started: int
) -> DecodedDelivery:
    """The same, with a span that its signals name in their headers."""
    heard = received.signals
    signals, error = tracer.received(delivery, [each.signal for each in heard], received.error, route.index, started)
    said = [each._replace(signal=signal) for each, signal in zip(heard, signals, strict=True)]
    return msgspec.structs.replace(received, signals=said, error=error)


class RedeliveryTracker:
    """What is remembered of deliveries for the case that they come again. All of it is bounded."""

    def __init__(self) -> None:
        self._requests: OrderedDict[tuple[str, int, str], bytes] = OrderedDict()
        self._underway: dict[_Place, InboundDelivery] = {}
        self._refused: OrderedDict[_Place, bytes] = OrderedDict()
        """Deliveries whose answers the broker did not take: place → payload's digest."""
        self._rejections: OrderedDict[_Place, int] = OrderedDict()
        self.has_failures = False
        """Whether a name that is used anew may have been refused or rejected before."""

    def close_connection(self, connection_id: str) -> None:
        for known in (self._underway, self._refused, self._rejections):
            for place in [place for place in known if place[0][0] == connection_id]:
                del known[place]

    # answers on their way

    def is_answered(self, arrival: InboundDelivery) -> bool:
        """Whether nothing is to be done for a delivery: the broker marks it, and its answers are on their way or in vain.

        It is settled accordingly. Ask first for every delivery that is marked, and for every other one while this
        `has_failures`: it uses its name anew.
        """
        place = arrival.place
        if not arrival.delivery.redelivered:
            if place is not None:
                self._refused.pop(place, None)
                self._rejections.pop(place, None)
            self.has_failures = bool(self._refused or self._rejections)
            return False
        if place is None:
            return False
        earlier = self._underway.get(place)
        if earlier is arrival:
            return False  # taken up anew, since the store was away
        if earlier is not None and earlier.delivery.envelope.payload == arrival.delivery.envelope.payload:
            # The link that it came by first is dead: this is the one to settle.
            earlier.delivery = arrival.delivery
            return True
        if self._refused.get(place) == digest(arrival.delivery):
            arrival.settle()
            return True
        return False

    def until_ended(self, arrival: InboundDelivery) -> Done:
        """What ends one answer to a delivery that until then is known to be on its way.

        Ask for it when nothing can take back any more what is answered: a delivery that is on its way is not taken up again.
        """
        place = arrival.place
        if place is None:
            return arrival.ended
        self._underway[place] = arrival

        def ended(error: ConnectivityError | None) -> None:
            if error is not None and arrival.outcome is Outcome.SETTLED:
                _remember(self._refused, place, digest(arrival.delivery), _REMEMBERED_REFUSALS)
                self.has_failures = True
            if arrival.open == 1:
                # Before it ends: a broker may bring it again within the call.
                self.forget(arrival)
            arrival.ended(error)

        return ended

    def forget(self, arrival: InboundDelivery) -> None:
        """Nothing will end this delivery any more: when the broker brings it again, it is taken up again."""
        if arrival.place is not None and self._underway.get(arrival.place) is arrival:
            del self._underway[arrival.place]

    # failures

    def note(self, arrival: InboundDelivery, outcome: Outcome, *, is_done: bool) -> None:
        """One signal of a delivery has ended so. `is_done` says that it was carried out, though it is not well.

        What came again too often, or cannot be known when it comes again, is given back no more: it is settled where it
        was carried out, else dropped.
        """
        if outcome is Outcome.REDELIVER and arrival.outcome is not outcome and not self._may_come_again(arrival):
            outcome = Outcome.SETTLED if is_done else Outcome.DROPPED
        arrival.outcome = worse(arrival.outcome, outcome)

    def _may_come_again(self, arrival: InboundDelivery) -> bool:
        place = arrival.place
        if place is None:
            return not arrival.delivery.redelivered
        rejections = self._rejections.get(place, 0)
        if rejections >= MOST_REJECTIONS:
            self._rejections.pop(place, None)
            return False
        _remember(self._rejections, place, rejections + 1, _REMEMBERED_REJECTIONS)
        self.has_failures = True
        return True

    # names

    def name(
        self, signal: Command | Request | Cancel, heard: ReceivedSignal, arrival: InboundDelivery
    ) -> tuple[DeliveryName | None, bool]:
        """What names this signal across redeliveries, and whether it may have come before.

        A key that a client has chosen is its own: it says nothing about what others send, or about another place.
        """
        route, delivery = arrival.route, arrival.delivery
        if (key := _idempotency_key(signal.headers, delivery.envelope.headers)) is not None:
            return _by_key(key, signal, heard.name, arrival), True
        if delivery.name is None:
            return None, False
        name = delivery.name + heard.name
        return DeliveryName(route.connection_id, route.index, name, digest(delivery)), arrival.is_again

    def is_known_request(self, signal: Request | Cancel, heard: ReceivedSignal, arrival: InboundDelivery) -> bool:
        """Whether this request or cancel was carried out before; if not, it is from now on."""
        name, is_asked = self.name(signal, heard, arrival)
        if name is None:
            return False
        if is_asked and self._requests.get(name.place) == name.digest:
            return True
        _remember(self._requests, name.place, name.digest, _REMEMBERED_REQUESTS)
        return False


def _by_key(key: str, signal: Command | Request | Cancel, by: str, arrival: InboundDelivery) -> DeliveryName:
    """What names a signal whose client has chosen a key for it."""
    place = (signal.action, signal.path) if isinstance(signal, Command) else (signal.key,)
    parts = (type(signal).__name__, str(signal.entity), *place, *arrival.received.subjects, *((by,) if by else ()))
    hashed = blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return DeliveryName(arrival.route.connection_id, arrival.route.index, f"key:{key}:{hashed}", b"")


class DeduplicationKey(NamedTuple):
    """What names a message when it comes again, if anything; whether it may have come before; whether a client chose it."""

    name: DeliveryName | None
    is_asked: bool = False
    is_chosen: bool = False


def name_in_session(
    heard: ReceivedSignal, arrival: InboundDelivery, session: str | None, chosen: str | None
) -> DeduplicationKey:
    """What names a message of a session: a key that its client has chosen, or else what the broker calls the delivery.

    The key is the `idempotency-key`, or `chosen` where there is a session. It says nothing about what other sessions send.
    """
    route, delivery = arrival.route, arrival.delivery
    key = _idempotency_key(heard.signal.headers, delivery.envelope.headers) or (chosen if session is not None else None)
    if key is not None:
        text = "\0".join((session or "", *arrival.received.subjects, heard.name))
        hashed = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return DeduplicationKey(DeliveryName(route.connection_id, route.index, f"key:{key}:{hashed}", b""), True, True)
    if delivery.name is None:
        return DeduplicationKey(None)
    name = delivery.name + heard.name
    return DeduplicationKey(DeliveryName(route.connection_id, route.index, name, digest(delivery)), arrival.is_again)


def name_of_part(command: Command, arrival: InboundDelivery, name: str) -> DeduplicationKey:
    """What names a command that a desk has found inside of a delivery: the key that its client has chosen, or `name`.

    The key is the one of the same command in a delivery of its own.
    """
    if (key := _idempotency_key(command.headers)) is not None:
        return DeduplicationKey(_by_key(key, command, "", arrival), True, True)
    return DeduplicationKey(DeliveryName(arrival.route.connection_id, arrival.route.index, name, b""))


def _remember(known: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)


def digest(delivery: Delivery) -> bytes:
    return blake2b(delivery.envelope.payload, digest_size=16).digest()


def _idempotency_key(*headers: Headers) -> str | None:
    """The key that a client has chosen, in any spelling of its name, in the signal or beside it."""
    length = len(IDEMPOTENCY_KEY)
    for among in headers:
        for name in among:
            if len(name) == length and name.lower() == IDEMPOTENCY_KEY:
                return str(among[name])
    return None
