"""What is done with the signals of deliveries: twin commands to the store, subscription commands to the streams.

Deliveries come in batches, in order. The commands of a batch are decided one after the other, each seeing what the ones
before it decided, and stored together; an answer is posted when what it says is durable, and a delivery is settled when
the broker has its answers. A batch whose changes could not be stored is handed back unanswered, to be taken up again.

A redelivered command that is known is answered again and not carried out again: its answer was stored in the transaction
of its events. A redelivered request or cancel is remembered in memory, so that demand never doubles.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec
import structlog

from connectivity.brokers.base import Delivery
from connectivity.errors import ConnectivityError, TwinError
from connectivity.inbound import Reader, Received
from connectivity.outbound import Route
from connectivity.store import Store
from connectivity.streams import Peer, Streams
from connectivity.twins.decide import Decider
from mappings.errors import INTERNAL_ERROR
from mappings.signals import Cancel, Command, ErrorResponse, Request, Response, Subscribe
from spark_store.errors import StoreUnavailable
from spark_store.records import Answer, Change, DeliveryName

log = structlog.get_logger(__name__)

IDEMPOTENCY_KEY = "idempotency-key"
_REMEMBERED_REQUESTS = 10_000


class Arrival:
    """One delivery on its way through: what it says, and how many of its answers have not ended yet.

    `is_again` says that it was taken up before: a commit that failed may have been carried out all the same.
    """

    __slots__ = ("delivery", "is_again", "open", "received", "route")

    def __init__(self, delivery: Delivery, received: Received, route: Route) -> None:
        self.delivery = delivery
        self.received = received
        self.route = route
        self.open = 0
        self.is_again = delivery.redelivered

    def ended(self, error: ConnectivityError | None) -> None:
        """One answer has reached the broker, or was refused by it. The last one settles the delivery."""
        if error is not None:
            self.route.meter.outbound("failed")
            log.warning("an answer was not taken", connection=self.route.connection_id, error=str(error))
        self.open -= 1
        if self.open == 0:
            self.delivery.settle()
            self.route.meter.inbound("settled")


Postponed = Callable[[list[Arrival]], None]
"""Takes back the arrivals that could not be stored, in order."""


class Dispatcher:
    """The one place that knows which signal goes where."""

    def __init__(self, store: Store, streams: Streams, decider: Decider) -> None:
        self._store = store
        self._streams = streams
        self._decider = decider
        self._requests: OrderedDict[DeliveryName, None] = OrderedDict()
        self._peer = lru_cache(maxsize=1024)(Peer)

    def handle(self, arrivals: Sequence[Arrival], postponed: Postponed) -> None:
        """Carry out a batch, in order. Returns at once; answers follow when they are durable."""
        waiting: list[tuple[Arrival, Response | ErrorResponse]] = []
        changes: list[Change] = []
        for arrival in arrivals:
            if arrival.received.error is not None:
                arrival.open = 1
                arrival.route.meter.inbound("malformed")
                arrival.route.post(arrival.received.error, arrival.ended, unasked=True)
                continue
            commands = [signal for signal in arrival.received.signals if isinstance(signal, Command)]
            arrival.open = len(commands) or 1
            for signal in arrival.received.signals:
                if isinstance(signal, Command):
                    waiting.append((arrival, self._carry_out(signal, arrival, changes)))
                else:
                    self._stream(signal, arrival)
            if not commands:
                # Streams answer for themselves, as fast as the link takes it.
                arrival.route.outbox.behind(arrival.ended)
        if waiting:
            stored = self._store.submit(changes) if changes else self._store.barrier()
            stored.add_done_callback(lambda future: self._answer(future, waiting, postponed))

    def _answer(
        self,
        stored: asyncio.Future[None],
        waiting: list[tuple[Arrival, Response | ErrorResponse]],
        postponed: Postponed,
    ) -> None:
        if stored.cancelled() or isinstance(stored.exception(), StoreUnavailable):
            held = list(dict.fromkeys(arrival for arrival, _ in waiting))
            for arrival in held:
                arrival.is_again = True
            postponed(held)
            return
        if (error := stored.exception()) is not None:
            log.error("changes could not be stored", error=str(error), exc_info=error)
        for arrival, answer in waiting:
            if error is not None:
                answer = ErrorResponse(answer.entity, "things", INTERNAL_ERROR, answer.headers)
            arrival.route.post(answer, arrival.ended)

    def _carry_out(self, command: Command, arrival: Arrival, changes: list[Change]) -> Response | ErrorResponse:
        name, is_asked = self._name(command, arrival)
        if name is not None and is_asked and (known := self._store.answered(name)) is not None:
            arrival.route.meter.inbound("answered_again")
            return _stored_answer(known, command)
        try:
            decision = self._decider.decide(command, arrival.received.subjects)
        except TwinError as refused:
            arrival.route.meter.inbound("refused")
            return ErrorResponse(command.entity, refused.group, refused.fault, command.headers)
        except Exception:
            log.exception("a command could not be decided", connection=arrival.route.connection_id, path=command.path)
            return ErrorResponse(command.entity, command.entity.type.group, INTERNAL_ERROR, command.headers)
        if decision.events:
            answer = Answer(name, _answer_bytes(decision.response)) if name is not None else None
            change = Change(decision.events, decision.snapshots, answer)
            self._store.stage(change)
            changes.append(change)
        return decision.response

    def _stream(self, signal: Subscribe | Request | Cancel, arrival: Arrival) -> None:
        # One object for all that the same party says: subscriptions keep it.
        peer = self._peer(arrival.route, arrival.received.subjects, arrival.route.connection_id)
        if isinstance(signal, Subscribe):
            self._streams.subscribe(signal, peer)
            return
        if self._is_known_request(signal, arrival):
            arrival.route.meter.inbound("answered_again")
        elif isinstance(signal, Request):
            self._streams.request(signal, peer)
        else:
            self._streams.cancel(signal, peer)

    def _is_known_request(self, signal: Request | Cancel, arrival: Arrival) -> bool:
        name, is_asked = self._name(signal, arrival)
        if name is None:
            return False
        if is_asked and name in self._requests:
            return True
        self._requests[name] = None
        if len(self._requests) > _REMEMBERED_REQUESTS:
            self._requests.popitem(last=False)
        return False

    def _name(self, signal: Command | Request | Cancel, arrival: Arrival) -> tuple[DeliveryName | None, bool]:
        """What names this delivery across redeliveries, and whether it may have come before."""
        route, delivery = arrival.route, arrival.delivery
        key = signal.headers.get(IDEMPOTENCY_KEY)
        if key is not None:
            return DeliveryName(route.connection_id, route.index, f"key:{key}", b""), True
        if delivery.name is None:
            return None, False
        digest = blake2b(delivery.envelope.payload, digest_size=16).digest()
        return DeliveryName(route.connection_id, route.index, delivery.name, digest), arrival.is_again


def read(reader: Reader, deliveries: Sequence[Delivery]) -> list[Arrival]:
    """Decode a batch."""
    return [Arrival(delivery, reader.receive(delivery), reader.route) for delivery in deliveries]


def _answer_bytes(response: Response) -> bytes:
    return msgspec.msgpack.encode(
        (response.action, response.path, response.status, response.value, dict(response.headers))
    )


def _stored_answer(known: bytes, command: Command) -> Response:
    action, path, status, value, headers = msgspec.msgpack.decode(
        known, type=tuple[str, str, int, bytes | None, dict[str, Any]]
    )
    return Response(command.entity, action, path, status, value, headers)
