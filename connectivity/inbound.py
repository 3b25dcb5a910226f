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

from connectivity.brokers.base import Delivery
from connectivity.outbound import Route
from mappings.errors import DecodeError, Fault, MappingError
from mappings.headers import normalise, readable
from mappings.ids import EntityId, new_correlation_id
from mappings.placeholders import PlaceholderContext, Scope, Template, parse
from mappings.resolution import unresolved
from mappings.signals import ErrorResponse, Inbound, Subscribe
from mappings.topic import topic_of

MAX_PAYLOAD = 1 << 20


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

    def receive(self, delivery: Delivery) -> Received:
        """Read one delivery. Never raises for anything a sender can do."""
        try:
            self._check_size(delivery)
            context = self._context(delivery)
            subjects = self._constant_subjects or tuple(
                value for template in self._subjects for value in _values(template, context)
            )
            identity = _values(self._enforced, context)[0] if self._enforced is not None else None
            decoded = self.route.codec.decode(delivery.envelope, self.route.session)
            signals = [self._complete(signal, delivery, subjects, identity) for signal in decoded]
        except DecodeError as error:
            return self._refused(error.fault, delivery, error.headers, error.entity, error.group)
        except MappingError as error:
            return self._refused(error.fault, delivery, {}, None, "things")
        return Received(signals, subjects)

    def _context(
        self, delivery: Delivery, signal: Inbound | None = None, subjects: tuple[str, ...] = ()
    ) -> PlaceholderContext:
        return PlaceholderContext(
            headers=delivery.envelope.headers,
            entity=_entity(signal) if signal is not None else None,
            topic=topic_of(signal) if signal is not None else None,
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
        """The signal with mapped headers where it has none of its own, by somebody who may speak for its entity."""
        headers: dict[str, Any] = {}
        if self.route.header_mapping:
            mapped = self.route.header_mapping.apply(self._context(delivery, signal, subjects))
            headers.update(normalise(mapped, mapped=True))
        headers.update(signal.headers)
        headers["ditto-originator"] = subjects[0]
        if "correlation-id" not in headers:
            headers["correlation-id"] = new_correlation_id()
        entity = _entity(signal)
        if identity is not None and not self._may_speak_for(entity, identity):
            raise DecodeError(
                Fault(
                    400,
                    "connectivity:connection.id.enforcement.failed",
                    f"The sender is not known as the one who speaks for '{entity or 'no entity'}'.",
                    "Send the command with the matching identity, or adjust the enforcement of the source.",
                ),
                entity=entity,
                group=entity.type.group if entity is not None else "things",
                headers=headers,
            )
        return replace(signal, headers=headers)

    def _may_speak_for(self, entity: EntityId | None, identity: str) -> bool:
        """Whether one of the filters comes to the identity that the transport gives (connection model, enforcement)."""
        if entity is None:
            return False
        context = PlaceholderContext(entity=entity, connection_id=self.route.connection_id, now=self.route.now)
        return any(identity in template.resolve(context).values for template in self._filters)

    def _refused(
        self, fault: Fault, delivery: Delivery, headers: Mapping[str, Any], entity: EntityId | None, group: str
    ) -> Received:
        """The error answer, with what can be had of headers, so that it finds its way."""
        known: dict[str, Any] = {}
        if self.route.header_mapping:
            try:
                mapped = self.route.header_mapping.apply(self._context(delivery))
            except MappingError:
                mapped = {}
            known.update(readable(mapped, mapped=True))
        known.update(headers)
        known.setdefault("correlation-id", new_correlation_id())
        return Received((), error=ErrorResponse(entity, group, fault, known))


def _entity(signal: Inbound) -> EntityId | None:
    return signal.query.entity if isinstance(signal, Subscribe) else signal.entity


def _values(template: Template, context: PlaceholderContext) -> tuple[str, ...]:
    """The values of a template that must have one. Raises Unresolved."""
    values = template.resolve(context).values
    if not values:
        raise unresolved(f"'{template.text}' has no value in this message")
    return values
