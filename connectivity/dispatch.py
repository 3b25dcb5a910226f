"""What is done with the signals of deliveries: twin commands to the store, subscription commands to the streams.

Deliveries come in batches, in order. The commands of a batch are decided one after the other, each seeing what the ones
before it decided, and stored together; an answer is posted when what it says is durable, and a delivery is settled when
the broker has its answers. What could not be stored, or not be decided because the store cannot be read, is handed back
unanswered, to be taken up again. A change that no store can take costs its own command an answer of 500, and nobody else.

A redelivered command that is known is answered again and not carried out again: its answer was stored in the transaction
of its events. A redelivered request or cancel is remembered in memory, so that demand never doubles. One whose answers are
still on their way is settled by those and gets no others, and one whose answer the broker has refused is settled at once:
to send the same again would end the same way, for ever where the broker refuses by hanging up.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import msgspec
import structlog

from connectivity.brokers.base import Delivery
from connectivity.errors import ConnectivityError, TwinError
from connectivity.inbound import Heard, Reader, Received
from connectivity.lanes import Ended
from connectivity.outbound import Route
from connectivity.store import Store
from connectivity.streams import Peer, Streams
from connectivity.twins.decide import Decider
from mappings.errors import INTERNAL_ERROR
from mappings.headers import essential
from mappings.signals import Cancel, Command, ErrorResponse, Headers, Inbound, Request, Response, Subscribe
from mappings.topic import topic_of, unknown_topic
from spark_store.errors import RevisionConflict, StoreUnavailable
from spark_store.records import Answer, Change, DeliveryName

log = structlog.get_logger(__name__)

IDEMPOTENCY_KEY = "idempotency-key"
_REMEMBERED_REQUESTS = 10_000
_REMEMBERED_REFUSALS = 1_000

_MOST_TRIES = 5
"""How often a command is decided anew because another one before it, upon which it was decided, could not be stored."""

_HEADERS_TOO_LARGE = 431

_numbers = count()

_Place: TypeAlias = tuple[tuple[str, int], str]
"""What names a delivery among all that are known: connection and source, then the delivery's own name."""


class Arrival:
    """One delivery on its way through: what it says, and how many of its answers have not ended yet.

    `is_again` says that it was taken up before: a commit that failed may have been carried out all the same. `number`
    grows with the order of arrival, `tries` with every time that it could not be stored for reasons of its own. `route`
    stands for the source; each signal is answered by its own.
    """

    __slots__ = ("delivery", "is_again", "number", "open", "place", "received", "route", "tries")

    def __init__(self, delivery: Delivery, received: Received, route: Route) -> None:
        self.delivery = delivery
        self.received = received
        self.route = route
        self.number = next(_numbers)
        self.open = self.tries = 0
        self.is_again = delivery.redelivered
        self.place: _Place | None = (route.place, delivery.name) if delivery.name is not None else None
        """What names the delivery, apart from what it says; None where nothing does."""

    def __repr__(self) -> str:
        return f"<Arrival {self.number} at {self.delivery.address}, {self.open} answers open>"

    def ended(self, _error: ConnectivityError | None) -> None:
        """One answer has reached the broker, or was refused by it. The last one settles the delivery."""
        self.open -= 1
        if self.open == 0:
            self.delivery.settle()
            self.route.meter.inbound("settled")


Postponed = Callable[[Sequence[Arrival]], None]
"""Takes back arrivals that could not be carried out now. None of them has been answered."""


class _Answer(NamedTuple):
    """An answer that may be told once what was submitted is durable, and the route by which it leaves."""

    arrival: Arrival
    said: Response | ErrorResponse
    route: Route


_Waiting: TypeAlias = list[_Answer]


class Dispatcher:
    """The one place that knows which signal goes where."""

    def __init__(self, store: Store, streams: Streams, decider: Decider) -> None:
        self._store = store
        self._streams = streams
        self._decider = decider
        self._submitted: set[asyncio.Future[None]] = set()
        """What waits for the disk. Where one of these has failed, those behind it must not be faster than its return."""
        self._requests: OrderedDict[tuple[str, int, str], bytes] = OrderedDict()
        self._underway: dict[_Place, Arrival] = {}
        self._refused: OrderedDict[_Place, bytes] = OrderedDict()
        """Deliveries whose answers the broker did not take: place → payload's digest."""
        self._peer = lru_cache(maxsize=1024)(Peer)

    def handle(self, arrivals: Sequence[Arrival], postponed: Postponed) -> None:
        """Carry out a batch, in order. Returns at once; answers follow when they are durable."""
        if len(arrivals) > 1 and any(arrival.tries for arrival in arrivals):
            # One of these cannot be stored. Each by itself shows which, and the others are no worse for it.
            for arrival in arrivals:
                self.handle([arrival], postponed)
            return
        waiting: _Waiting = []
        changes: list[Change] = []
        left = arrivals
        if self._store.is_available and not any(map(_has_failed, self._submitted)):
            left = self._take_all(arrivals, waiting, changes)
        if waiting or left:
            # Also without changes: no answer overtakes another one, and what is handed back comes back in order.
            must_submit = changes or not self._store.is_available
            stored = self._store.submit(changes) if must_submit else self._store.barrier()
            self._submitted.add(stored)
            stored.add_done_callback(lambda future: self._answer(future, waiting, left, postponed))

    def close_connection(self, connection_id: str) -> None:
        """Nothing more comes from this connection, and nobody there waits for elements."""
        self._streams.close_connection(connection_id)
        self._peer.cache_clear()
        for known in (self._underway, self._refused):
            for place in [place for place in known if place[0][0] == connection_id]:
                del known[place]

    def _take_all(self, arrivals: Sequence[Arrival], waiting: _Waiting, changes: list[Change]) -> Sequence[Arrival]:
        """Carry out as many as can be; those that are left."""
        for position, arrival in enumerate(arrivals):
            try:
                self._take(arrival, waiting, changes)
            except StoreUnavailable as error:
                log.error("the store cannot be read", connection=arrival.route.connection_id, reason=str(error))
                arrival.is_again = True
                return arrivals[position:]
        return ()

    def _take(self, arrival: Arrival, waiting: _Waiting, changes: list[Change]) -> None:
        """Carry out one delivery. Raises StoreUnavailable where it has to be taken up again."""
        if arrival.delivery.redelivered:
            if self._is_answered(arrival):
                return
        elif self._refused and arrival.place is not None:
            # The name is used again, for something new.
            self._refused.pop(arrival.place, None)
        received = arrival.received
        answers: _Waiting = []
        if received.error is not None:
            answers.append(_Answer(arrival, received.error, received.route or arrival.route))
        elif not received.signals:
            arrival.route.meter.inbound("dropped")
        for heard in received.signals:
            signal = heard.signal
            if isinstance(signal, Command):
                answers.append(_Answer(arrival, self._carry_out(signal, heard, arrival, changes), heard.route))
            elif isinstance(signal, Subscribe | Request | Cancel):
                self._stream(signal, heard, arrival)
            else:
                answers.append(_Answer(arrival, _not_served(signal), heard.route))
        waiting += answers
        arrival.open = len(answers) or 1
        if not answers:
            # Streams answer for themselves, as fast as the link takes it.
            arrival.route.outbox.behind(self._underway_until_ended(arrival))

    # answers to commands

    def _answer(
        self, stored: asyncio.Future[None], waiting: _Waiting, left: Sequence[Arrival], postponed: Postponed
    ) -> None:
        self._submitted.discard(stored)
        error = StoreUnavailable("cancelled") if stored.cancelled() else stored.exception()
        if error is None:
            for answer in waiting:
                self._post(answer)
        elif isinstance(error, StoreUnavailable):
            taken = list(dict.fromkeys(answer.arrival for answer in waiting))
            for arrival in taken:
                arrival.is_again = True
            left = [*taken, *left]
        else:
            left = [*self._not_stored(error, waiting), *left]
        if left:
            postponed(left)

    def _not_stored(self, error: BaseException, waiting: _Waiting) -> list[Arrival]:
        """Answer whoever is to blame; the others, to be taken up again."""
        found = _by_arrival(waiting)
        innocent: list[Arrival] = []
        for arrival, answers in found:
            arrival.tries += 1
            if (len(found) > 1 or isinstance(error, RevisionConflict)) and arrival.tries < _MOST_TRIES:
                innocent.append(arrival)
                continue
            for answer in answers:
                if answer.said is arrival.received.error:
                    self._post(answer)
                    continue
                log.error("a change could not be stored", exc_info=error, **_about(arrival, answer.said.headers))
                self._post(answer._replace(said=_internal_error(answer.said)))
        return innocent

    def _post(self, answer: _Answer) -> None:
        arrival, said, route = answer
        is_unread = said is arrival.received.error
        if isinstance(said, ErrorResponse):
            self._tell_refusal(arrival, said, is_unread)
        route.post(said, self._underway_until_ended(arrival), unasked=is_unread)

    # answers on their way

    def _is_answered(self, arrival: Arrival) -> bool:
        """Whether the answers to a redelivered delivery are on their way, or are in vain. It is settled accordingly."""
        place = arrival.place
        if place is None:
            return False
        earlier = self._underway.get(place)
        if earlier is not None and earlier.delivery.envelope.payload == arrival.delivery.envelope.payload:
            # The link that it came by first is dead: this is the one to settle.
            earlier.delivery = arrival.delivery
            return True
        if self._refused.get(place) == _digest(arrival.delivery):
            arrival.delivery.settle()
            arrival.route.meter.inbound("settled")
            return True
        return False

    def _underway_until_ended(self, arrival: Arrival) -> Ended:
        """What ends one answer to a delivery that until then is known to be on its way."""
        place = arrival.place
        if place is None:
            return arrival.ended
        self._underway[place] = arrival

        def ended(error: ConnectivityError | None) -> None:
            if error is not None:
                self._refused[place] = _digest(arrival.delivery)
                if len(self._refused) > _REMEMBERED_REFUSALS:
                    self._refused.popitem(last=False)
            arrival.ended(error)
            if not arrival.open and self._underway.get(place) is arrival:
                del self._underway[place]

        return ended

    def _tell_refusal(self, arrival: Arrival, answer: ErrorResponse, is_unread: bool) -> None:
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

    def _carry_out(
        self, command: Command, heard: Heard, arrival: Arrival, changes: list[Change]
    ) -> Response | ErrorResponse:
        """Decide a command, unless it is known. Raises StoreUnavailable."""
        name, is_asked = self._name(command, heard, arrival)
        if name is not None and is_asked and (known := self._store.answered(name)) is not None:
            arrival.route.meter.inbound("answered_again")
            return _stored_answer(known, command)
        answer: Answer | None = None
        try:
            decision = self._decider.decide(command, arrival.received.subjects)
            if decision.events and name is not None:
                answer = Answer(name, _answer_bytes(decision.response, command))
        except TwinError as refused:
            headers = essential(command.headers) if refused.fault.status == _HEADERS_TOO_LARGE else command.headers
            return ErrorResponse(command.entity, refused.group, refused.fault, headers)
        except StoreUnavailable:
            raise
        except Exception:
            log.exception("a command could not be decided", path=command.path, **_about(arrival, command.headers))
            return ErrorResponse(command.entity, command.entity.type.group, INTERNAL_ERROR, command.headers)
        if decision.events:
            change = Change(decision.events, decision.snapshots, answer)
            self._store.stage(change)
            changes.append(change)
        return decision.response

    # subscriptions

    def _stream(self, signal: Subscribe | Request | Cancel, heard: Heard, arrival: Arrival) -> None:
        # One object for all that the same party says: subscriptions keep it.
        peer = self._peer(heard.route, arrival.received.subjects, heard.route.connection_id)
        try:
            if isinstance(signal, Subscribe):
                self._streams.subscribe(signal, peer)
            elif self._is_known_request(signal, heard, arrival):
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

    def _is_known_request(self, signal: Request | Cancel, heard: Heard, arrival: Arrival) -> bool:
        name, is_asked = self._name(signal, heard, arrival)
        if name is None:
            return False
        if is_asked and self._requests.get(name.place) == name.digest:
            return True
        self._requests[name.place] = name.digest
        self._requests.move_to_end(name.place)
        if len(self._requests) > _REMEMBERED_REQUESTS:
            self._requests.popitem(last=False)
        return False

    # names

    def _name(
        self, signal: Command | Request | Cancel, heard: Heard, arrival: Arrival
    ) -> tuple[DeliveryName | None, bool]:
        """What names this signal across redeliveries, and whether it may have come before.

        A key that a client has chosen is its own: it says nothing about what others send, or about another place.
        """
        route, delivery = arrival.route, arrival.delivery
        if (key := _idempotency_key(signal.headers, delivery)) is not None:
            place = (signal.action, signal.path) if isinstance(signal, Command) else (signal.key,)
            by = (heard.name,) if heard.name else ()
            text = "\0".join((type(signal).__name__, str(signal.entity), *place, *arrival.received.subjects, *by))
            digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            return DeliveryName(route.connection_id, route.index, f"key:{key}:{digest.hex()}", b""), True
        if delivery.name is None:
            return None, False
        name = delivery.name + heard.name
        return DeliveryName(route.connection_id, route.index, name, _digest(delivery)), arrival.is_again


def read(reader: Reader, deliveries: Sequence[Delivery]) -> list[Arrival]:
    """Decode a batch."""
    return [Arrival(delivery, reader.receive(delivery), reader.route) for delivery in deliveries]


def _has_failed(stored: asyncio.Future[None]) -> bool:
    return stored.done() and (stored.cancelled() or stored.exception() is not None)


def _digest(delivery: Delivery) -> bytes:
    return blake2b(delivery.envelope.payload, digest_size=16).digest()


def _idempotency_key(headers: Headers, delivery: Delivery) -> str | None:
    """The key that a client has chosen, in any spelling of its name, in the signal or beside it."""
    length = len(IDEMPOTENCY_KEY)
    for among in (headers, delivery.envelope.headers):
        for name in among:
            if len(name) == length and name.lower() == IDEMPOTENCY_KEY:
                return str(among[name])
    return None


def _answer_bytes(response: Response, command: Command) -> bytes:
    """An answer as it is remembered: of its headers those that the command did not bring along."""
    asked = command.headers
    own = {name: value for name, value in response.headers.items() if asked.get(name) != value}
    return msgspec.msgpack.encode((response.action, response.path, response.status, response.value, own))


def _stored_answer(known: bytes, command: Command) -> Response:
    """The same answer again, to whoever asks now."""
    action, path, status, value, own = msgspec.msgpack.decode(
        known, type=tuple[str, str, int, bytes | None, dict[str, Any]]
    )
    return Response(command.entity, action, path, status, value, {**command.headers, **own})


def _internal_error(answer: Response | ErrorResponse) -> ErrorResponse:
    group = answer.entity.type.group if answer.entity is not None else "things"
    return ErrorResponse(answer.entity, group, INTERNAL_ERROR, answer.headers)


def _not_served(signal: Inbound) -> ErrorResponse:
    """The answer to what nobody here carries out."""
    topic = topic_of(signal)
    entity = signal.query.entity if isinstance(signal, Subscribe) else signal.entity
    return ErrorResponse(entity, topic.group, unknown_topic(str(topic)).fault, signal.headers)


def _by_arrival(waiting: _Waiting) -> list[tuple[Arrival, list[_Answer]]]:
    """The answers of each delivery, in order."""
    found: dict[Arrival, list[_Answer]] = {}
    for answer in waiting:
        found.setdefault(answer.arrival, []).append(answer)
    return list(found.items())


def _about(arrival: Arrival, headers: Headers) -> dict[str, Any]:
    """What log lines say about a delivery and the conversation that it belongs to."""
    return {
        "connection": arrival.route.connection_id,
        "source": arrival.route.index,
        "address": arrival.delivery.address,
        "correlation_id": headers.get("correlation-id"),
    }
