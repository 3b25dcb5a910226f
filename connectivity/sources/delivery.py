"""Deliveries while they are processed, and the detection of redeliveries.

An `InboundDelivery` is one delivery with its signals and the number of its unfinished responses. `RedeliveryTracker` keeps
in memory which requests were executed (so that demand is never added twice), which responses are still being published,
which ones the broker has refused, and how often a delivery was requeued. Responses to commands are kept by the store, in the
transaction of their events; this module only makes the name under which they are found.
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
MAX_REJECTIONS = 5
"""How often a delivery is requeued before it is acknowledged or rejected for good."""

_MAX_REQUESTS = 10_000
_MAX_REFUSALS = 1_000
_MAX_TRACKED_REJECTIONS = 10_000

_numbers = count()

_DeliveryKey: TypeAlias = tuple[tuple[str, int], str]
"""The unique key of a delivery: connection ID and source index, then the delivery's own name."""


class InboundDelivery:
    """One delivery while it is processed: its signals, and how many of its responses are not finished.

    `is_again`: it may have been processed before, by a transaction that seemed to fail. `number` is the order of arrival,
    `tries` the number of attempts to store it that failed for reasons of its own, `outcome` how the delivery ends after
    its last response. `route` is the source's first one. `results` of session handlers are kept for a retry.
    """

    __slots__ = (
        "counters",
        "delivery",
        "has_failed",
        "is_again",
        "key",
        "number",
        "open",
        "outcome",
        "received",
        "redeliveries",
        "results",
        "route",
        "tries",
    )

    def __init__(self, delivery: Delivery, received: DecodedDelivery, route: ReplyTargetPublisher) -> None:
        self.delivery = delivery
        self.received = received
        self.route = route
        self.counters = route.arriving.at(delivery.address)
        self.number = next(_numbers)
        self.open = self.tries = 0
        self.has_failed = False
        self.outcome = Outcome.SETTLED
        self.is_again = delivery.redelivered
        self.results: Any = None
        self.redeliveries: list[Delivery] = []
        """Further ones that have arrived meanwhile: each ends as this one."""
        self.key: _DeliveryKey | None = (route.place, delivery.name) if delivery.name is not None else None
        """The unique key of the delivery, whatever its payload; None if the broker gives it no name."""

    def ended(self, _error: ConnectivityError | None) -> None:
        """Note that a response is published or refused; the last one ends the delivery."""
        self.open -= 1
        if self.open == 0:
            self._end()

    def fail(self) -> None:
        """End the delivery after an internal error: rejected, and not requeued, since it would fail again."""
        self.outcome, self.has_failed = Outcome.DROPPED, True
        if self.open > 0:
            self.open = 0
            self._end()

    def _end(self) -> None:
        if self.outcome is Outcome.SETTLED:
            self.settle()
        else:
            for each in (self.delivery, *self.redeliveries):
                each.reject(self.outcome is Outcome.REDELIVER)
            counter = self.counters.requeued if self.outcome is Outcome.REDELIVER else self.counters.rejected
            counter.note(self.about)

    def settle(self) -> None:
        for each in (self.delivery, *self.redeliveries):
            each.settle()
        self.counters.acknowledged.note(self.about)

    @property
    def about(self) -> SignalReference | None:
        """The first signal of the delivery, or its error, for the log."""
        signals = self.received.signals
        return signals[0].signal if signals else self.received.error


def read(
    reader: SourceReader,
    deliveries: Sequence[Delivery],
    prepared: Sequence[Preparation] = (),
    started: int | None = None,
) -> list[InboundDelivery]:
    """Decode a batch.

    `prepared` is the result of `reader.prepare`, begun at `started` (nanoseconds since 1970).
    """
    each = zip(deliveries, prepared or repeat(NOTHING), strict=False)
    route = reader.route
    if (tracer := route.tracer) is None:
        inbound_deliveries = [
            InboundDelivery(delivery, reader.receive(delivery, made), route) for delivery, made in each
        ]
    else:
        inbound_deliveries = [
            InboundDelivery(delivery, _trace(tracer, delivery, reader.receive(delivery, made), route, since), route)
            for delivery, made in each
            for since in (started or time_ns(),)
        ]
    _count_read(inbound_deliveries, reader.is_enforcing)
    return inbound_deliveries


def _count_read(inbound_deliveries: Sequence[InboundDelivery], is_enforcing: bool) -> None:
    """Count what was read. Deliveries of one signal, which most are, are counted together."""
    plain: dict[SourceCounters, list[SignalReference]] = {}
    for inbound in inbound_deliveries:
        received = inbound.received
        if len(received.signals) == 1 and received.error is None and not (received.dropped or is_enforcing):
            plain.setdefault(inbound.counters, []).append(received.signals[0].signal)
        else:
            _note(inbound, is_enforcing)
    for counters, signals in plain.items():
        counters.read.note_each(signals)


def _note(inbound: InboundDelivery, is_enforcing: bool) -> None:
    """Count what was read of one delivery."""
    counters, received = inbound.counters, inbound.received
    counters.consumed.note(inbound.about)
    for each in received.signals:
        counters.mapped.note(each.signal)
        if is_enforcing:
            counters.enforced.note(each.signal)
    if received.dropped:
        counters.dropped.note(None, received.dropped)
    if (error := received.error) is not None:
        counter = counters.not_mapped if received.is_enforced else counters.not_enforced
        counter.note(error, words=f"{error.fault.error}: {error.fault.message}")


def _trace(
    tracer: Tracer, delivery: Delivery, received: DecodedDelivery, route: ReplyTargetPublisher, started: int
) -> DecodedDelivery:
    """Begin a span, and return the same delivery with the span's context in the headers of its signals."""
    untraced = received.signals
    signals, error = tracer.begin_delivery(
        delivery, [each.signal for each in untraced], received.error, route.index, started
    )
    traced = [each._replace(signal=signal) for each, signal in zip(untraced, signals, strict=True)]
    return msgspec.structs.replace(received, signals=traced, error=error)


class RedeliveryTracker:
    """Bounded memory of earlier deliveries, to recognize redeliveries."""

    def __init__(self) -> None:
        self._requests: OrderedDict[tuple[str, int, str], bytes] = OrderedDict()
        self._pending: dict[_DeliveryKey, InboundDelivery] = {}
        self._refused: OrderedDict[_DeliveryKey, bytes] = OrderedDict()
        """Deliveries whose responses the broker refused: key to digest of the payload."""
        self._rejections: OrderedDict[_DeliveryKey, int] = OrderedDict()
        self._has_failures = False
        """Whether a key may have been refused or requeued before."""
        self._closed: dict[str, int] = {}
        """By connection, the number that all deliveries of closed openings are below."""

    def close_connection(self, connection_id: str) -> None:
        self._closed[connection_id] = next(_numbers)
        for known in (self._pending, self._refused, self._rejections):
            for place in [place for place in known if place[0][0] == connection_id]:
                del known[place]

    def is_answered(self, inbound: InboundDelivery) -> bool:
        """Return whether a delivery needs no processing, because its responses are pending or refused.

        If so it is acknowledged with them. A first delivery frees its key.
        """
        place = inbound.key
        if not inbound.delivery.redelivered:
            if self._has_failures and place is not None:
                self._refused.pop(place, None)
                self._rejections.pop(place, None)
                self._has_failures = bool(self._refused or self._rejections)
            return False
        if place is None:
            return False
        earlier = self._pending.get(place)
        if earlier is inbound:
            return False  # a retry after the store was unavailable
        if earlier is not None and earlier.delivery.envelope.payload == inbound.delivery.envelope.payload:
            if earlier.delivery.redelivered:
                earlier.redeliveries.append(inbound.delivery)
            else:
                # The link of the first one has ended.
                earlier.delivery = inbound.delivery
            return True
        if self._refused.get(place) == digest(inbound.delivery):
            inbound.settle()
            return True
        return False

    def finish_one(self, inbound: InboundDelivery) -> Done:
        """Return the callback that finishes one response; until then the delivery is known as being answered.

        Call it only when the result can no longer be rolled back, because such a delivery is not processed again.
        """
        place = inbound.key
        if place is None or inbound.has_failed or inbound.number < self._closed.get(place[0][0], 0):
            # The broker redelivers to the next opening of a connection, which has to process it.
            return inbound.ended
        self._pending[place] = inbound

        def ended(error: ConnectivityError | None) -> None:
            if error is not None and inbound.outcome is Outcome.SETTLED:
                _remember(self._refused, place, digest(inbound.delivery), _MAX_REFUSALS)
                self._has_failures = True
            if inbound.open == 1:
                # Before `ended`, within which the broker may already redeliver.
                self.forget(inbound)
            inbound.ended(error)

        return ended

    def fail(self, inbound: InboundDelivery) -> None:
        """Reject a delivery after an internal error, whatever else it waits for."""
        self.forget(inbound)
        inbound.fail()

    def forget(self, inbound: InboundDelivery) -> None:
        """Forget a delivery that will not be finished, so that its redelivery is processed."""
        if inbound.key is not None and self._pending.get(inbound.key) is inbound:
            del self._pending[inbound.key]

    def note(self, inbound: InboundDelivery, outcome: Outcome, *, is_done: bool) -> None:
        """Record the outcome of one signal. `is_done`: it was executed, although the outcome is a failure.

        A delivery that was requeued too often, or cannot be recognized as a redelivery, is not requeued again: it is
        acknowledged if the signal was executed, else rejected.
        """
        if outcome is Outcome.REDELIVER and inbound.outcome is not outcome and not self._may_requeue(inbound):
            outcome = Outcome.SETTLED if is_done else Outcome.DROPPED
        inbound.outcome = worse(inbound.outcome, outcome)

    def _may_requeue(self, inbound: InboundDelivery) -> bool:
        place = inbound.key
        if place is None:
            return not inbound.delivery.redelivered
        rejections = self._rejections.get(place, 0)
        if rejections >= MAX_REJECTIONS:
            self._rejections.pop(place, None)
            return False
        _remember(self._rejections, place, rejections + 1, _MAX_TRACKED_REJECTIONS)
        self._has_failures = True
        return True

    def name(
        self, signal: Command | Request | Cancel, received: ReceivedSignal, inbound: InboundDelivery
    ) -> tuple[DeliveryName | None, bool]:
        """Return the deduplication key of a signal, and whether the signal may have arrived before.

        An idempotency key is valid for one sender and one entity or path only.
        """
        route, delivery = inbound.route, inbound.delivery
        if (key := _idempotency_key(signal.headers, delivery.envelope.headers)) is not None:
            return _key_of_idempotency(key, signal, received.name, inbound), True
        if delivery.name is None:
            return None, False
        name = delivery.name + received.name
        return DeliveryName(
            route.connection_id, route.index, name, digest(delivery), *delivery.position
        ), inbound.is_again

    def is_known_request(self, signal: Request | Cancel, received: ReceivedSignal, inbound: InboundDelivery) -> bool:
        """Return whether this request or cancel was executed before; if not, remember it as executed."""
        name, may_be_repeated = self.name(signal, received, inbound)
        if name is None:
            return False
        if may_be_repeated and self._requests.get(name.place) == name.digest:
            return True
        _remember(self._requests, name.place, name.digest, _MAX_REQUESTS)
        return False


def _key_of_idempotency(
    key: str, signal: Command | Request | Cancel, by: str, inbound: InboundDelivery
) -> DeliveryName:
    """Return the deduplication key of a signal with an idempotency key."""
    place = (signal.action, signal.path) if isinstance(signal, Command) else (signal.key,)
    parts = (type(signal).__name__, str(signal.entity), *place, *inbound.received.subjects, *((by,) if by else ()))
    hashed = blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return DeliveryName(
        inbound.route.connection_id, inbound.route.index, f"key:{key}:{hashed}", b"", *inbound.delivery.position
    )


class DeduplicationKey(NamedTuple):
    """The deduplication key of a message, if any.

    `may_be_repeated`: the message may have arrived before. `is_chosen`: a client has set the key.
    """

    name: DeliveryName | None
    may_be_repeated: bool = False
    is_chosen: bool = False


def name_in_session(
    received: ReceivedSignal, inbound: InboundDelivery, session: str | None, chosen: str | None
) -> DeduplicationKey:
    """Return the deduplication key of a session's message.

    It is the client's `idempotency-key`, or `chosen` in a session, valid within that session only; or else the broker's
    name for the delivery.
    """
    route, delivery = inbound.route, inbound.delivery
    key = _idempotency_key(received.signal.headers, delivery.envelope.headers) or (
        chosen if session is not None else None
    )
    if key is not None:
        text = "\0".join((session or "", *inbound.received.subjects, received.name))
        hashed = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return DeduplicationKey(
            DeliveryName(route.connection_id, route.index, f"key:{key}:{hashed}", b"", *inbound.delivery.position),
            True,
            True,
        )
    if delivery.name is None:
        return DeduplicationKey(None)
    name = delivery.name + received.name
    return DeduplicationKey(
        DeliveryName(route.connection_id, route.index, name, digest(delivery), *delivery.position), inbound.is_again
    )


def name_of_part(command: Command, inbound: InboundDelivery, name: str) -> DeduplicationKey:
    """Return the deduplication key of a command inside a delivery: its idempotency key, or `name`.

    The idempotency key is the same as for that command in a delivery of its own.
    """
    if (key := _idempotency_key(command.headers)) is not None:
        return DeduplicationKey(_key_of_idempotency(key, command, "", inbound), True, True)
    return DeduplicationKey(
        DeliveryName(inbound.route.connection_id, inbound.route.index, name, b"", *inbound.delivery.position)
    )


def _remember(known: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)


def digest(delivery: Delivery) -> bytes:
    return blake2b(delivery.envelope.payload, digest_size=16).digest()


def _idempotency_key(*headers: Headers) -> str | None:
    """Return the `idempotency-key` of the first headers that have one, in upper or lower case."""
    length = len(IDEMPOTENCY_KEY)
    for names in headers:
        for name in names:
            if len(name) == length and name.lower() == IDEMPOTENCY_KEY:
                return str(names[name])
    return None
