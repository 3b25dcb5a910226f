"""Deliveries on their way in: decoded, headers mapped, checked that the sender may speak for the entity.

`Reader.receive` decides and is pure. What cannot be read or is not allowed becomes an error answer, never an exception:
the delivery is settled all the same, since another try would end the same way. The order of the steps is that of the Ditto
connection model: decode, then the source's header mapping fills the gaps that the signal's own headers leave, then
enforcement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from connectivity.brokers.base import Delivery
from connectivity.outbound import Route, feature_ids
from mappings.errors import INTERNAL_ERROR, DecodeError, Fault, MappingError
from mappings.headers import normalise, readable, require_size
from mappings.ids import EntityId, EntityType, new_correlation_id, parse_entity_id
from mappings.placeholders import PlaceholderContext, Scope, Template, parse
from mappings.resolution import unresolved
from mappings.signals import Command, ErrorResponse, Inbound, Subscribe
from mappings.topic import topic_of

log = structlog.get_logger(__name__)

MAX_PAYLOAD = 1 << 20

DEVICE_HEADER = "device_id"
"""The transport header that names the thing which a message is about, where its payload does not."""

_BROKERS_OWN = ("mqtt.", "kafka.")
"""How headers begin that say something about the delivery alone."""


@dataclass(frozen=True, slots=True)
class Received:
    """What a delivery says: signals with the sender's subjects, or the one error that it is answered with."""

    signals: Sequence[Inbound]
    subjects: tuple[str, ...] = ()
    error: ErrorResponse | None = None


class Reader:
    """How one source's deliveries are read: its route, and the templates of authorization and enforcement."""

    def __init__(self, route: Route, *, max_payload: int = MAX_PAYLOAD) -> None:
        source = route.source
        self.route = route
        self._max_payload = max_payload
        self._subjects = [parse(subject, Scope.AUTHORIZATION) for subject in source.authorization_context]
        self._constant_subjects = (
            tuple(source.authorization_context) if all(subject.is_constant for subject in self._subjects) else None
        )
        enforcement = source.enforcement
        self._enforced = parse(enforcement.input, Scope.ENFORCEMENT_INPUT) if enforcement else None
        self._filters: list[Template] = (
            [parse(text, Scope.ENFORCEMENT_FILTER) for text in enforcement.filters] if enforcement else []
        )
        names = route.header_mapping.names
        self._needs_topic = any(name.startswith("topic:") for name in names)
        self._needs_features = "feature:id" in names

    def receive(self, delivery: Delivery) -> Received:
        """Read one delivery. Never raises for anything a sender can do."""
        try:
            self._check_size(delivery)
            subjects, identity = self._sender(delivery)
            decoded = self.route.codec.decode(delivery.envelope, self.route.session)
            signals = [self._complete(signal, delivery, subjects, identity) for signal in decoded]
        except DecodeError as error:
            return self._refused(error.fault, delivery, error.headers, error.entity, error.group)
        except MappingError as error:
            return self._refused(error.fault, delivery)
        except Exception:
            # A mistake of our own; read again, the delivery would meet it again.
            log.exception("a delivery could not be read", connection=self.route.connection_id, source=self.route.index)
            return self._refused(INTERNAL_ERROR, delivery)
        return Received(signals, subjects)

    def _sender(self, delivery: Delivery) -> tuple[tuple[str, ...], str | None]:
        """Whom the sender speaks as, and the identity that enforcement compares. Raises Unresolved."""
        if self._constant_subjects is not None and self._enforced is None:
            return self._constant_subjects, None
        context = self._context(delivery)
        subjects = self._constant_subjects or tuple(
            value for template in self._subjects for value in _values(template, context)
        )
        return subjects, _values(self._enforced, context)[0] if self._enforced is not None else None

    def _context(
        self,
        delivery: Delivery,
        signal: Inbound | None = None,
        subjects: tuple[str, ...] = (),
        entity: EntityId | None = None,
    ) -> PlaceholderContext:
        return PlaceholderContext(
            headers=delivery.envelope.headers,
            entity=_entity(signal) if signal is not None else entity,
            topic=topic_of(signal) if self._needs_topic and signal is not None else None,
            feature_ids=feature_ids(getattr(signal, "path", None)) if self._needs_features else (),
            connection_id=self.route.connection_id,
            subjects=subjects,
            source_address=delivery.address,
            now=self.route.now,
        )

    def _check_size(self, delivery: Delivery) -> None:
        size = len(delivery.envelope.payload)
        if size == 0:
            raise DecodeError(
                Fault(
                    400, "connectivity:message.mapping.failed", "As payload was absent or empty, nothing can be read."
                )
            )
        if size > self._max_payload:
            message = f"The payload has {size} bytes, allowed are {self._max_payload}."
            raise DecodeError(Fault(413, "connectivity:message.toolarge", message))

    def _complete(
        self, signal: Inbound, delivery: Delivery, subjects: tuple[str, ...], identity: str | None
    ) -> Inbound:
        """The signal with mapped headers where it has none of its own, by somebody who may speak for its entity.

        Raises DecodeError, which knows what was understood of the signal.
        """
        headers = dict(signal.headers)
        try:
            if self.route.header_mapping:
                mapped = self.route.header_mapping.apply(self._context(delivery, signal, subjects))
                headers = _filled(headers, normalise(mapped, mapped=True))
            if not isinstance(signal, Command):
                # Subscriptions repeat their headers with every element. (Commands are measured where they are decided.)
                require_size(headers)
            if identity is not None:
                self._enforce(_entity(signal), identity)
        except MappingError as error:
            entity = _entity(signal)
            group = entity.type.group if entity is not None else "things"
            known = _filled(headers, error.headers) if isinstance(error, DecodeError) else headers
            raise DecodeError(error.fault, entity=entity, group=group, headers=known) from error
        headers["ditto-originator"] = subjects[0]
        if "correlation-id" not in headers:
            headers["correlation-id"] = new_correlation_id()
        return replace(signal, headers=headers)

    def _enforce(self, entity: EntityId | None, identity: str) -> None:
        """Raise where none of the filters comes to the identity that the transport gives (connection model, enforcement).

        That is an Unresolved if no filter has a value for this entity, as with one on things for a policy.
        """
        if entity is not None:
            context = PlaceholderContext(entity=entity, connection_id=self.route.connection_id, now=self.route.now)
            found = [template.resolve(context) for template in self._filters]
            if any(identity in resolution.values for resolution in found):
                return
            if found and not any(resolution.is_resolved for resolution in found):
                raise unresolved(f"no filter of the source's enforcement has a value for '{entity}'")
        raise DecodeError(
            Fault(
                400,
                "connectivity:connection.id.enforcement.failed",
                f"The sender is not known as the one who speaks for '{entity or 'no entity'}'.",
                "Send the command with the matching identity, or adjust the enforcement of the source.",
            )
        )

    def _refused(
        self,
        fault: Fault,
        delivery: Delivery,
        headers: Mapping[str, Any] | None = None,
        entity: EntityId | None = None,
        group: str = "things",
    ) -> Received:
        """The error answer, with what can be had of headers, so that it finds its way.

        The signal's own count most, then mapped ones, then those of the transport.
        """
        own = dict(headers or {})
        if entity is None and (device := delivery.envelope.header(DEVICE_HEADER)) is not None:
            entity = parse_entity_id(EntityType.THING, device)
        transport = {
            name: value for name, value in delivery.envelope.headers.items() if not name.startswith(_BROKERS_OWN)
        }
        known = readable(transport, mapped=True)
        if self.route.header_mapping:
            try:
                mapped = self.route.header_mapping.apply(self._context(delivery, entity=entity))
            except MappingError:
                mapped = {}
            known = _filled(readable(mapped, mapped=True), known)
        known = _filled(own, known)
        try:
            require_size(known)
        except DecodeError as error:
            known = dict(error.headers)
        known.setdefault("correlation-id", new_correlation_id())
        return Received((), error=ErrorResponse(entity, group, fault, known))


def _filled(own: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Headers, and those of the others whose names they have in no spelling."""
    names = {name.lower() for name in own}
    filled = {name: value for name, value in others.items() if name.lower() not in names}
    filled.update(own)
    return filled


def _entity(signal: Inbound) -> EntityId | None:
    return signal.query.entity if isinstance(signal, Subscribe) else signal.entity


def _values(template: Template, context: PlaceholderContext) -> tuple[str, ...]:
    """The values of a template that must have one. Raises Unresolved."""
    values = template.resolve(context).values
    if not values:
        raise unresolved(f"'{template.text}' has no value in this message")
    return values
