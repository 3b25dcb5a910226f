"""Deliveries while they are processed, and the ledger by which redeliveries are recognized.

An `InboundDelivery` is one delivery with its signals and the number of its unfinished responses. Each opening of a
connection has one `DeliveryLedger`, which ends with it: what the service still does for a closed opening says nothing about
what the broker delivers to the next one. Responses to commands are kept by the store (`connectivity.sources.deduplication`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count, repeat
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from connectivity.errors import ConnectivityError
from connectivity.monitoring.counters import SignalReference, SourceCounters
from connectivity.sources.acknowledgements import BUILT_IN, worse
from connectivity.sources.reader import NOTHING, DecodedDelivery, Preparation, SourceReader
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.transports.base import Delivery, Done, KnownNames, Outcome
from mappings.model.envelope import Envelope
from mappings.model.signals import Acknowledgement, is_success
from spark_store.records import DeliveryName

if TYPE_CHECKING:
    from connectivity.monitoring.tracing import Tracer

MAX_REQUEUES = 5
"""How often a delivery is requeued before it is acknowledged or rejected for good."""

_MAX_REMEMBERED = 10_000
"""How many keys of failed deliveries, deliveries of one key, and executed requests are remembered."""

_NO_CONTENT = Envelope(b"")

_numbers = count()

_DeliveryKey: TypeAlias = tuple[int, str]
"""The unique key of a delivery within its connection: the source's index, and the broker's name."""


class InboundDelivery:
    """One delivery while it is processed: its signals, and how many of its responses are not finished.

    `is_again`: it may have been processed before, by a transaction that seemed to fail, which may have stored the answers
    `tried`. `number` is the order of arrival, `tries` the number of attempts to store it that failed for reasons of its own,
    `outcome` how the delivery ends after its last response. `route` is the source's first one. `is_single`: it is one signal
    and nothing else. `results` of session handlers are kept for a retry. Further `redeliveries` that have arrived meanwhile
    end as this one.
    """

    __slots__ = (
        "about",
        "counters",
        "delivery",
        "is_again",
        "is_single",
        "key",
        "ledger",
        "number",
        "open",
        "outcome",
        "received",
        "redeliveries",
        "results",
        "route",
        "tried",
        "tries",
    )

    def __init__(
        self, delivery: Delivery, received: DecodedDelivery, route: ReplyTargetPublisher, ledger: DeliveryLedger
    ) -> None:
        self.delivery = delivery
        self.received = received
        self.route = route
        self.ledger = ledger
        self.counters = route.arriving[delivery.address]
        self.number = next(_numbers)
        self.open = self.tries = 0
        self.outcome = Outcome.SETTLED
        self.is_again = delivery.redelivered
        self.tried: frozenset[bytes] = frozenset()
        self.is_single = len(received.signals) == 1 and received.error is None
        self.results: Any = None
        self.redeliveries: list[Delivery] = []
        self.about: SignalReference | None = received.signals[0].signal if received.signals else received.error
        """The first signal of the delivery, or its error, for the log."""
        self.key: _DeliveryKey | None = (route.index, delivery.name) if delivery.name is not None else None
        """None if the broker gives it no name."""

    def respond(self) -> Done:
        """Note that a response is under way, and return the callback that finishes it.

        Call it only when the result can no longer be rolled back: from now on a redelivery is settled with this delivery.
        """
        # One that a redelivery has replaced never ends by itself.
        if self.key is not None and self.open > 0 and self.delivery.settled_with is None:
            self.ledger.pending[self.key] = self
        return self.finish

    def finish(self, error: ConnectivityError | None) -> None:
        """Note that a response is published or refused; the last one ends the delivery."""
        if error is not None and self.outcome is Outcome.SETTLED:
            self.ledger.refuse(self)
        self.open -= 1
        if self.open == 0:
            self.end()

    def count_waits(self, step: int) -> None:
        """Note that the delivery begins to wait for others (1), or has waited (-1)."""
        self.delivery.waits += step
        self.delivery.ours_since = monotonic()

    def settle_also(self, *redeliveries: Delivery) -> None:
        """Settle further deliveries of the same message with this one.

        Several signals of this delivery may add the same redeliveries.
        """
        for each in redeliveries:
            if each.settled_with is not self.delivery:
                each.settled_with = self.delivery
                self.redeliveries.append(each)

    def fail(self) -> None:
        """End the delivery after an internal error: rejected, and not requeued, since it would fail again."""
        self.outcome = Outcome.DROPPED
        if self.open > 0:
            self.open = 0
            self.end()

    def note(self, outcome: Outcome, *, is_done: bool) -> None:
        """Record the outcome of one signal. `is_done`: it was executed, although the outcome is a failure.

        A delivery that was requeued too often, or cannot be recognized as a redelivery, is not requeued again: it is
        acknowledged if the signal was executed, else rejected.
        """
        if outcome is Outcome.REDELIVER and not self.ledger.requeue(self):
            outcome = Outcome.SETTLED if is_done else Outcome.DROPPED
        self.outcome = worse(self.outcome, outcome)

    def end(self) -> None:
        """Settle the delivery with its outcome."""
        if self.key is not None and self.ledger.pending.get(self.key) is self:
            # First, since the broker may redeliver within the call.
            del self.ledger.pending[self.key]
        if self.key is not None and self.ledger.failed and self.outcome is not Outcome.REDELIVER:
            self.ledger.finish(self)
        self.delivery.settle(self.outcome)
        for each in self.redeliveries:
            each.settle(self.outcome)
        counters = self.counters
        if self.outcome is Outcome.SETTLED:
            counters.acknowledged.note(self.about)
        else:
            (counters.requeued if self.outcome is Outcome.REDELIVER else counters.rejected).note(self.about)
        # A live request may wait for its response for another minute, and no limit on unsettled bytes includes it any more.
        self.delivery.envelope, self.about = _NO_CONTENT, None
        self.received = msgspec.structs.replace(self.received, signals=())


@dataclass(slots=True)
class _FailedDelivery:
    """A delivery that was requeued, or whose responses the broker refused and would refuse again.

    `last_counted`: the number of the delivery that was last counted in `requeues`. `acks`: by signal, the successful
    acknowledgements of others, which do not give them again.
    """

    is_refused: bool = False
    requeues: int = 0
    last_counted: int | None = None
    acks: dict[str, tuple[Acknowledgement, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class DeliveryLedger:
    """The redeliverable deliveries of one opening of a connection; bounded."""

    pending: dict[_DeliveryKey, InboundDelivery] = field(default_factory=dict)
    """Deliveries with a response under way."""
    failed: OrderedDict[_DeliveryKey, OrderedDict[bytes, _FailedDelivery]] = field(default_factory=OrderedDict)
    """By key and digest: a client may give several messages one ID."""
    requests: OrderedDict[DeliveryName, None] = field(default_factory=OrderedDict)
    """Executed requests and cancels, so that demand is never added twice."""
    is_closed: bool = False
    """Whether the connection is closed, so that its deliveries open no subscriptions any more."""

    def is_known(self, inbound: InboundDelivery) -> bool:
        """Return whether a delivery is a redelivery that needs no processing.

        Its responses are under way, and it is settled with them, or the broker has refused them before. A first delivery
        frees its key.
        """
        key = inbound.key
        if key is None:
            return False
        if not inbound.delivery.redelivered:
            if self.failed:
                self.failed.pop(key, None)
            return False
        earlier = self.pending.get(key)
        if earlier is not None and earlier.delivery.envelope.payload == inbound.delivery.envelope.payload:
            earlier.settle_also(inbound.delivery)
            return True
        failed = self._find_failed(inbound)
        if failed is not None and failed.is_refused:
            inbound.end()
            return True
        return False

    def forget(self, inbound: InboundDelivery) -> None:
        """Forget a delivery that will not be finished, so that its redelivery is processed."""
        if inbound.key is not None and self.pending.get(inbound.key) is inbound:
            del self.pending[inbound.key]

    def refuse(self, inbound: InboundDelivery) -> None:
        """Remember that the broker has refused a response of this delivery."""
        if inbound.key is not None:
            self._add_failed(inbound, inbound.key).is_refused = True

    def requeue(self, inbound: InboundDelivery) -> bool:
        """Return whether a delivery may be requeued once more, and count that.

        It is counted once, although several of its signals fail, or it fails again when it is retried.
        """
        if inbound.key is None:
            return not inbound.delivery.redelivered
        failed = self._add_failed(inbound, inbound.key)
        if failed.last_counted != inbound.number:
            failed.last_counted = inbound.number
            failed.requeues += 1
        is_requeued = failed.requeues <= MAX_REQUEUES
        if is_requeued:
            # The redelivery has to be processed.
            failed.is_refused = False
        return is_requeued

    def finish(self, inbound: InboundDelivery) -> None:
        """Forget how often a delivery was requeued that is not requeued again."""
        if (key := inbound.key) is None or (same_key := self.failed.get(key)) is None:
            return
        payload = digest(inbound.delivery)
        if payload in same_key and not same_key[payload].is_refused:
            del same_key[payload]
            if not same_key:
                del self.failed[key]

    def keep_acks(self, inbound: InboundDelivery, signal: str, acks: Sequence[Acknowledgement]) -> None:
        """Remember the successful acknowledgements of others for the redelivery, which does not repeat them.

        `signal`: the name of the signal in its delivery.
        """
        earlier = tuple(ack for ack in acks if ack.label not in BUILT_IN and is_success(ack.status))
        if inbound.key is not None and earlier:
            self._add_failed(inbound, inbound.key).acks[signal] = earlier

    def take_acks(self, inbound: InboundDelivery, signal: str) -> tuple[Acknowledgement, ...]:
        """Return the acknowledgements that a signal of an earlier delivery received from others."""
        failed = self._find_failed(inbound) if inbound.delivery.redelivered else None
        return failed.acks.pop(signal, ()) if failed is not None else ()

    def is_executed(self, name: DeliveryName, *, may_be_repeated: bool) -> bool:
        """Return whether this request or cancel was executed before; if not, remember it as executed."""
        # Two records of a log may have one idempotency key.
        name = name._replace(partition="", offset=0)
        if may_be_repeated and name in self.requests:
            return True
        self.requests[name] = None
        if len(self.requests) > _MAX_REMEMBERED:
            self.requests.popitem(last=False)
        return False

    def names_of(self, source: int, prefix: str) -> KnownNames:
        """Return the names with a prefix of a source's deliveries that may come again."""
        keys = (*self.pending, *((name.source, name.name) for name in self.requests))
        # One whose response was refused is acknowledged.
        failed = [key for key, same_key in self.failed.items() if not all(it.is_refused for it in same_key.values())]
        requeued, carried_out = (
            [name for index, name in names if index == source and name.startswith(prefix)] for names in (failed, keys)
        )
        return KnownNames(requeued, carried_out)

    def forget_names(self, prefix: str) -> None:
        """Forget the deliveries whose names have a prefix: they do not come again."""
        for names in (self.pending, self.failed):
            for key in [key for key in names if key[1].startswith(prefix)]:
                del names[key]
        for name in [name for name in self.requests if name.name.startswith(prefix)]:
            del self.requests[name]

    def reject(self, delivery: Delivery) -> None:
        """Reject a delivery that nothing has settled, with what waits for its responses."""
        for inbound in tuple(self.pending.values()):
            if delivery is inbound.delivery or delivery in inbound.redeliveries:
                inbound.fail()
        delivery.settle(Outcome.DROPPED)

    def _find_failed(self, inbound: InboundDelivery) -> _FailedDelivery | None:
        # Most keys are unknown, and no digest is computed for them.
        same_key = self.failed.get(inbound.key) if inbound.key is not None else None
        return same_key.get(digest(inbound.delivery)) if same_key is not None else None

    def _add_failed(self, inbound: InboundDelivery, key: _DeliveryKey) -> _FailedDelivery:
        same_key, payload = self.failed.setdefault(key, OrderedDict()), digest(inbound.delivery)
        failed = same_key.setdefault(payload, _FailedDelivery())
        for known in (self.failed, same_key):
            if len(known) > _MAX_REMEMBERED:
                known.popitem(last=False)
        return failed


def digest(delivery: Delivery) -> bytes:
    return blake2b(delivery.envelope.payload, digest_size=16).digest()


def read(
    reader: SourceReader,
    deliveries: Sequence[Delivery],
    ledger: DeliveryLedger,
    prepared: Sequence[Preparation] = (),
    started: int | None = None,
) -> list[InboundDelivery]:
    """Decode a batch, and return the deliveries that need processing.

    `prepared` is the result of `reader.prepare`, begun at `started` (nanoseconds since 1970).
    """
    route, tracer = reader.route, reader.route.tracer
    inbound_deliveries = []
    for delivery, made in zip(deliveries, prepared or repeat(NOTHING), strict=False):
        received = reader.receive(delivery, made)
        if tracer is not None:
            received = _trace(tracer, delivery, received, route, started or time_ns())
        inbound_deliveries.append(InboundDelivery(delivery, received, route, ledger))
    _count_read(inbound_deliveries, reader.is_enforcing)
    # First deliveries are not known; those that free a key are looked up, too.
    return [
        inbound
        for inbound in inbound_deliveries
        if inbound.delivery.outcome is None
        and (not (inbound.delivery.redelivered or ledger.failed) or not ledger.is_known(inbound))
    ]


def _count_read(inbound_deliveries: Sequence[InboundDelivery], is_enforcing: bool) -> None:
    """Count what was read. Deliveries of one signal, which most are, are counted together."""
    plain: dict[SourceCounters, list[SignalReference]] = {}
    for inbound in inbound_deliveries:
        received = inbound.received
        if inbound.is_single and not (received.dropped or is_enforcing):
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
    traced = [msgspec.structs.replace(each, signal=signal) for each, signal in zip(untraced, signals, strict=True)]
    return msgspec.structs.replace(received, signals=traced, error=error)
