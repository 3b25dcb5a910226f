"""The names under which redelivered signals are recognized.

A name is made of the broker's identifier of the delivery, or of the `idempotency-key` that a client has set. The store keeps
the responses to commands under it, in the transaction of their events.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from connectivity.sources.delivery import InboundDelivery, digest
from connectivity.sources.reader import ReceivedSignal
from connectivity.store.store import Store
from mappings.model.signals import Cancel, Command, Headers, Request
from spark_store.records import DeliveryName

IDEMPOTENCY_KEY = "idempotency-key"


class DeduplicationKey(msgspec.Struct, frozen=True):
    """The deduplication key of a message, if any.

    `may_be_repeated`: the message may have been processed before. `is_chosen`: a client has set the key. `own`: the answers
    that earlier attempts may have stored, if the broker has not marked the message; others are of another message with this
    name. `delivery`: the broker's key for a message of a session with a chosen one.
    """

    name: DeliveryName | None
    may_be_repeated: bool = False
    is_chosen: bool = False
    own: frozenset[bytes] | None = None
    delivery: DeduplicationKey | None = None

    def stored_answer(self, store: Store) -> bytes | None:
        """Return the answer if the message was carried out before. Raises StoreUnavailable."""
        if self.name is None or not self.may_be_repeated:
            return None
        stored = store.stored_answer(self.name)
        return stored if self.own is None or stored in self.own else None


def name_of_signal(
    signal: Command | Request | Cancel, received: ReceivedSignal, inbound: InboundDelivery
) -> DeduplicationKey:
    """Return the deduplication key of a signal.

    It is its idempotency key, or the broker's name for the delivery. An idempotency key is valid for one sender and one
    entity or path only.
    """
    if (key := _idempotency_key(signal.headers, inbound.delivery.envelope.headers)) is not None:
        return DeduplicationKey(_key_of_idempotency(key, signal, received.name, inbound), True, True)
    return _name_of_delivery(received, inbound)


def name_in_session(
    received: ReceivedSignal, inbound: InboundDelivery, session: str | None, chosen: str | None
) -> DeduplicationKey:
    """Return the deduplication key of a session's message.

    It is the client's `idempotency-key`, or the `chosen` correlation ID of the message in a session, valid within that
    session only; or else the broker's name for the delivery.
    """
    envelope = inbound.delivery.envelope
    key = _idempotency_key(received.signal.headers, envelope.headers) or (
        chosen if session is not None and envelope.has_own_id else None
    )
    delivery = _name_of_delivery(received, inbound)
    if key is None:
        return delivery
    text = "\0".join((session or "", *inbound.received.subjects, received.name))
    return DeduplicationKey(_name_of_key(key, text, inbound), True, True, delivery=delivery)


def name_of_part(command: Command, inbound: InboundDelivery, name: str) -> DeduplicationKey:
    """Return the deduplication key of a command inside a delivery: its idempotency key, or `name`.

    The idempotency key is the same as for that command in a delivery of its own.
    """
    if (key := _idempotency_key(command.headers)) is not None:
        return DeduplicationKey(_key_of_idempotency(key, command, "", inbound), True, True)
    return DeduplicationKey(
        DeliveryName(inbound.route.connection_id, inbound.route.index, name, b"", *inbound.delivery.position)
    )


def _name_of_delivery(received: ReceivedSignal, inbound: InboundDelivery) -> DeduplicationKey:
    route, delivery = inbound.route, inbound.delivery
    if delivery.name is None:
        return DeduplicationKey(None)
    name = DeliveryName(
        route.connection_id, route.index, delivery.name + received.name, digest(delivery), *delivery.position
    )
    own = None if delivery.redelivered else inbound.tried
    return DeduplicationKey(name, inbound.is_again, own=own)


def _key_of_idempotency(
    key: str, signal: Command | Request | Cancel, by: str, inbound: InboundDelivery
) -> DeliveryName:
    place = (signal.action, signal.path) if isinstance(signal, Command) else (signal.key,)
    parts = (type(signal).__name__, str(signal.entity), *place, *inbound.received.subjects, *((by,) if by else ()))
    return _name_of_key(key, "\0".join(parts), inbound)


def _name_of_key(key: str, scope: str, inbound: InboundDelivery) -> DeliveryName:
    hashed = blake2b(scope.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    # The client may send its message again over another source, or an edit may move its source.
    return DeliveryName(inbound.route.connection_id, 0, f"key:{key}:{hashed}", b"", *inbound.delivery.position)


def _idempotency_key(*headers: Headers) -> str | None:
    """Return the `idempotency-key` of the first headers that have one, in upper or lower case.

    An empty one is none.
    """
    length = len(IDEMPOTENCY_KEY)
    for names in headers:
        for name in names:
            if len(name) == length and name.lower() == IDEMPOTENCY_KEY and (key := str(names[name])):
                return key
    return None
