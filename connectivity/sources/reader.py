"""Deliveries on their way in: decoded, headers mapped, checked that the sender may speak for the entity.

`SourceReader.receive` decides and is pure; `prepare` comes before it for mappers with scripts, which take their time. What
cannot be read or is not allowed becomes an error answer, never an exception: the delivery is settled all the same, since
another try would end the same way. The order of the steps is that of the Ditto connection model: decode, then the source's
header mapping fills the gaps that the signal's own headers leave, then the source adds its requests for acknowledgements,
then enforcement.

Each payload mapper of the source reads the delivery, in order. What one of them cannot read does not touch what the others
have read; the delivery is answered with one error, the first. What no mapper has read is answered by the Ditto protocol,
unless the wire protocol answers for itself; what was read and is not allowed, by the mapper that has read it.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import msgspec
import structlog

from connectivity.connections.templates import with_connection_id
from connectivity.mapping.mapper import ConfiguredMapper, Prepared
from connectivity.monitoring.log_context import log_context
from connectivity.sources.acknowledgements import SourceAckRequests, channel_of
from connectivity.targets.destination import feature_ids
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.transports.base import Delivery
from mappings.errors import INTERNAL_ERROR, DecodeError, Fault, MappingError
from mappings.ids import EntityId, EntityType, new_correlation_id, parse_entity_id
from mappings.mappers.base import Answers
from mappings.model.envelope import Envelope
from mappings.model.headers import normalise, readable, require_size
from mappings.model.signals import Acknowledgement, Command, ErrorResponse, Inbound, SessionMessage
from mappings.model.topic_path import topic_of
from mappings.placeholders.resolution import unresolved
from mappings.placeholders.template import PlaceholderContext, Scope, Template, parse

log = structlog.get_logger(__name__)


MAX_PAYLOAD = 1 << 20

DEVICE_HEADER = "device_id"
"""The transport header that names the thing which a message is about, where its payload does not."""

_BROKERS_OWN = ("mqtt.", "kafka.")
"""How headers begin that say something about the delivery alone."""


class ReceivedSignal(NamedTuple):
    """One signal of a delivery, and the route by which it is answered: that of the mapper that has read it.

    `name` tells it from the others of its delivery, the same at every redelivery; the first one of `Ditto` has none. What a
    desk finds inside of it, the desk takes to the `border`.
    """

    signal: Inbound
    route: ReplyTargetPublisher
    name: str = ""
    border: SenderCheck | None = None


class DecodedDelivery(msgspec.Struct, frozen=True):
    """What a delivery says: signals with the sender's subjects, and the error that it is answered with by `route`.

    `is_enforced`: the error, if there is one, does not say that the sender may not speak for the entity. `dropped`: so many
    mappers are not meant for the delivery.
    """

    signals: Sequence[ReceivedSignal]
    subjects: tuple[str, ...] = ()
    error: ErrorResponse | None = None
    route: ReplyTargetPublisher | None = None
    is_enforced: bool = True
    dropped: int = 0


class _Unreadable(NamedTuple):
    """Why a mapper made nothing of a delivery, who answers that, and whether that is not for who has sent it."""

    error: ErrorResponse
    route: ReplyTargetPublisher
    is_enforced: bool


class _NotEnforced(MappingError):
    """The sender may not speak for the entity."""


class SenderCheck:
    """What a source demands of what a desk finds inside of one request: the same as of a delivery."""

    __slots__ = ("_delivery", "_identity", "_reader", "_subjects")

    def __init__(
        self, reader: SourceReader, delivery: Delivery, subjects: tuple[str, ...], identity: str | None
    ) -> None:
        self._reader = reader
        self._delivery = delivery
        self._subjects = subjects
        self._identity = identity

    def read(self, octets: bytes) -> DecodedDelivery:
        """What a message of the Ditto protocol says. Never raises for anything a sender can do."""
        return self._reader.receive_part(octets, self._delivery, self._subjects, self._identity)

    def refusal(self, entity: EntityId | None) -> Fault | None:
        """Why the sender may not speak for an entity; None where he may."""
        return self._reader.refusal(entity, self._identity)


Preparation: TypeAlias = Mapping[ReplyTargetPublisher, Prepared]
"""What scripts have made of a delivery, for each route that has some."""

NOTHING: Preparation = {}


class SourceReader:
    """How one source's deliveries are read: a route for each of its mappers, the templates of authorization and
    enforcement. `route` is the first one, which stands for the source."""

    def __init__(self, *routes: ReplyTargetPublisher, max_payload: int = MAX_PAYLOAD) -> None:
        self.routes = routes
        self.is_enforcing = routes[0].source.enforcement is not None
        self._named = list(zip(routes, _prefixes(routes), strict=True))
        self._scripted = [route for route in routes if route.mapper.must_prepare]
        self.route = route = routes[0]
        source = route.source
        default = next((route for route in routes if route.mapper.is_default), None)
        self._default = default or route.through(ConfiguredMapper())
        # A piece of a stream has no size of its own.
        self._max_payload = sys.maxsize if route.is_stream else max_payload
        self._subjects = [parse(subject, Scope.AUTHORIZATION) for subject in source.authorization_context]
        self._constant_subjects = (
            tuple(source.authorization_context) if all(subject.is_constant for subject in self._subjects) else None
        )
        enforcement = source.enforcement
        self._enforced = parse(enforcement.input, Scope.ENFORCEMENT_INPUT) if enforcement else None
        self._filters: list[Template] = (
            [parse(text, Scope.ENFORCEMENT_FILTER) for text in enforcement.filters] if enforcement else []
        )
        requests = source.acknowledgement_requests
        self._requests = (
            SourceAckRequests(
                [with_connection_id(text, route.connection_id) for text in requests.includes], requests.filter
            )
            if requests is not None
            else None
        )
        names = route.header_mapping.names
        self._needs_topic = any(name.startswith("topic:") for name in names)
        self._needs_features = "feature:id" in names

    def note_throttled(self, minutes: int) -> None:
        """Deliveries were held back in so many minutes, since their rate is limited."""
        for facts in self.route.arriving.each():
            facts.throttled.note(None, minutes)

    async def prepare(self, deliveries: Sequence[Delivery]) -> Sequence[Preparation]:
        """What scripts make of deliveries, in their order; nothing where the source has none."""
        if not self._scripted:
            return ()
        return await asyncio.gather(*map(self._prepare, deliveries))

    async def _prepare(self, delivery: Delivery) -> Preparation:
        try:
            self._check_size(len(delivery.envelope.payload))
            subjects, _ = self._sender(delivery)
        except MappingError:
            # No mapper will get to read it.
            return {}
        prepared: dict[ReplyTargetPublisher, Prepared] = {}
        for route in self._scripted:
            context = self._context(delivery, None, subjects) if route.mapper.reads_context else None
            try:
                prepared[route] = await route.mapper.prepare(delivery.envelope, context)
            except Exception as error:
                prepared[route] = error
        return prepared

    def receive(self, delivery: Delivery, prepared: Preparation = NOTHING) -> DecodedDelivery:
        """Read one delivery, or what scripts have made of it. Never raises for anything a sender can do."""
        heard: list[ReceivedSignal] = []
        unreadable: _Unreadable | None = None
        dropped = 0
        try:
            self._check_size(len(delivery.envelope.payload))
            subjects, identity = self._sender(delivery)
        except MappingError as error:
            return DecodedDelivery((), (), *self._unreadable(error, delivery, self.route, is_read=False))
        for route, prefix in self._named:
            is_read = False
            try:
                mapper = route.mapper
                context = self._context(delivery, None, subjects) if mapper.reads_context else None
                decoded = mapper.decode(delivery.envelope, context, prepared.get(route))
                is_read = True
                signals = [self._complete(signal, delivery, subjects, identity) for signal in decoded]
            except Exception as error:
                unreadable = unreadable or self._unreadable(error, delivery, route, is_read)
            else:
                dropped += not signals
                for number, signal in enumerate(signals):
                    border = (
                        SenderCheck(self, delivery, subjects, identity) if isinstance(signal, SessionMessage) else None
                    )
                    heard.append(ReceivedSignal(signal, route, f"{prefix}#{number}" if number else prefix, border))
        if unreadable is None:
            return (
                DecodedDelivery(heard, subjects) if not dropped else DecodedDelivery(heard, subjects, dropped=dropped)
            )
        return DecodedDelivery(heard, subjects, *unreadable, dropped)

    def receive_part(
        self, octets: bytes, delivery: Delivery, subjects: tuple[str, ...], identity: str | None
    ) -> DecodedDelivery:
        """Read one message of the Ditto protocol that a delivery has brought inside of something else."""
        route = self._default
        is_read = False
        try:
            self._check_size(len(octets))
            decoded = route.mapper.decode(Envelope(octets, {}), None)
            is_read = True
            signals = [ReceivedSignal(self._complete(each, delivery, subjects, identity), route) for each in decoded]
        except Exception as error:
            return DecodedDelivery((), subjects, *self._unreadable(error, delivery, route, is_read))
        return DecodedDelivery(signals, subjects)

    def refusal(self, entity: EntityId | None, identity: str | None) -> Fault | None:
        """Why somebody with this identity may not speak for an entity; None where he may."""
        try:
            if identity is not None:
                self._enforce(entity, identity)
        except MappingError as error:
            return error.fault
        return None

    def _unreadable(
        self, error: Exception, delivery: Delivery, route: ReplyTargetPublisher, is_read: bool
    ) -> _Unreadable:
        """Why this route's mapper made nothing of a delivery. `is_read` says that it has words for what it has read."""
        answers = route.mapper.answers
        own = answers is Answers.ALL or (is_read and answers is Answers.READ)
        by = route if own else self._default
        is_enforced = not isinstance(error, _NotEnforced) and not isinstance(error.__cause__, _NotEnforced)
        if isinstance(error, DecodeError):
            refused = self._refused(error.fault, delivery, error.headers, error.entity, error.group)
            return _Unreadable(
                replace(refused, channel=error.channel) if error.channel == "live" else refused, by, is_enforced
            )
        if isinstance(error, MappingError):
            return _Unreadable(self._refused(error.fault, delivery), by, is_enforced)
        # A mistake of our own; read again, the delivery would meet it again.
        log.error(
            "a delivery could not be read",
            exc_info=error,
            connection=route.connection_id,
            source=route.index,
            mapper=route.mapper.name,
            **log_context(delivery.envelope.headers),
        )
        return _Unreadable(self._refused(INTERNAL_ERROR, delivery), by, is_enforced)

    def _sender(self, delivery: Delivery) -> tuple[tuple[str, ...], str | None]:
        """Whom the sender speaks as, and the identity that enforcement compares. Raises _NotEnforced."""
        if self._constant_subjects is not None and self._enforced is None:
            return self._constant_subjects, None
        context = self._context(delivery)
        try:
            subjects = self._constant_subjects or tuple(
                value for template in self._subjects for value in _values(template, context)
            )
            return subjects, _values(self._enforced, context)[0] if self._enforced is not None else None
        except MappingError as error:
            raise _NotEnforced(error.fault) from error

    def _context(
        self,
        delivery: Delivery,
        signal: Inbound | None = None,
        subjects: tuple[str, ...] = (),
        entity: EntityId | None = None,
    ) -> PlaceholderContext:
        return PlaceholderContext(
            headers=delivery.envelope.headers,
            entity=signal.entity if signal is not None else entity,
            topic=topic_of(signal) if self._needs_topic and signal is not None else None,
            feature_ids=feature_ids(getattr(signal, "path", None)) if self._needs_features else (),
            connection_id=self.route.connection_id,
            subjects=subjects,
            source_address=delivery.address,
            now=self.route.now,
        )

    def _check_size(self, size: int) -> None:
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
            if isinstance(signal, SessionMessage):
                return self._complete_spoken(signal, headers, delivery, subjects, identity)
            if self._requests is not None and (channel := channel_of(signal)) is not None:
                self._requests.apply(headers, channel, self._context(delivery, signal, subjects))
            if not isinstance(signal, Command):
                if isinstance(signal, Acknowledgement):
                    self._attribute(headers)
                # Subscriptions repeat their headers with every element. (Commands are measured where they are decided.)
                require_size(headers)
            if identity is not None:
                self._enforce(signal.entity, identity)
        except MappingError as error:
            entity = signal.entity
            group = entity.type.group if entity is not None else "things"
            known = _filled(headers, error.headers) if isinstance(error, DecodeError) else headers
            raise DecodeError(error.fault, entity=entity, group=group, headers=known) from error
        headers["ditto-originator"] = subjects[0]
        if "correlation-id" not in headers:
            headers["correlation-id"] = new_correlation_id()
        if isinstance(signal, Command):
            # What most deliveries are, and twice as fast as `replace`.
            return Command(signal.entity, signal.action, signal.path, signal.value, headers, signal.fields)
        return replace(signal, headers=headers)

    def _complete_spoken(
        self,
        signal: SessionMessage,
        mapped: dict[str, Any],
        delivery: Delivery,
        subjects: tuple[str, ...],
        identity: str | None,
    ) -> SessionMessage:
        """A request of a protocol without headers of its own: it has those of the transport, where none is mapped.

        Nothing else tells whose request it is, and where it is answered. A correlation id is the client's, or there is none.
        """
        headers = _filled(mapped, self._transported(delivery))
        require_size(headers)
        if identity is not None and not signal.has_parts:
            self._enforce(signal.entity, identity)
        headers["ditto-originator"] = subjects[0]
        return replace(signal, headers=headers)

    @staticmethod
    def _transported(delivery: Delivery) -> dict[str, Any]:
        """What the transport's headers say of a message, apart from what they say of the delivery."""
        headers = delivery.envelope.headers
        return readable({name: headers[name] for name in headers if not name.startswith(_BROKERS_OWN)}, mapped=True)

    def _attribute(self, headers: dict[str, Any]) -> None:
        """Say by which connection an acknowledgement came. Raises DecodeError where nothing says what it is about."""
        if "correlation-id" not in headers:
            raise DecodeError(
                Fault(
                    400,
                    "acknowledgement:correlation-id.missing",
                    "The acknowledgement has no correlation id.",
                    "Send the 'correlation-id' of the signal that is acknowledged.",
                )
            )
        headers["ditto-connection-id"] = self.route.connection_id

    def _enforce(self, entity: EntityId | None, identity: str) -> None:
        """Raise _NotEnforced where none of the filters comes to the identity that the transport gives (connection model,
        enforcement). It says so if no filter has a value for this entity, as with one on things for a policy."""
        if entity is not None:
            context = PlaceholderContext(entity=entity, connection_id=self.route.connection_id, now=self.route.now)
            found = [template.resolve(context) for template in self._filters]
            if any(identity in resolution.values for resolution in found):
                return
            if found and not any(resolution.is_resolved for resolution in found):
                missing = unresolved(f"no filter of the source's enforcement has a value for '{entity}'")
                raise _NotEnforced(missing.fault)
        raise _NotEnforced(
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
    ) -> ErrorResponse:
        """The error answer, with what can be had of headers, so that it finds its way.

        The signal's own count most, then mapped ones, then those of the transport.
        """
        own = dict(headers or {})
        if entity is None and (device := delivery.envelope.header(DEVICE_HEADER)) is not None:
            entity = parse_entity_id(EntityType.THING, device)
        known = self._transported(delivery)
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
        return ErrorResponse(entity, group, fault, known)


def _prefixes(routes: Sequence[ReplyTargetPublisher]) -> list[str]:
    """What the names of a mapper's signals begin with, the same wherever the mapper stands among the others."""
    seen: Counter[str] = Counter()
    prefixes = []
    for route in routes:
        name, earlier = route.mapper.name, seen[route.mapper.name]
        prefixes.append(
            "" if route.mapper.is_default and not earlier else f"#{name}.{earlier}" if earlier else f"#{name}"
        )
        seen[name] += 1
    return prefixes


def _filled(own: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Headers, and those of the others whose names they have in no spelling."""
    names = {name.lower() for name in own}
    filled = {name: value for name, value in others.items() if name.lower() not in names}
    filled.update(own)
    return filled


def _values(template: Template, context: PlaceholderContext) -> tuple[str, ...]:
    """The values of a template that must have one. Raises Unresolved."""
    values = template.resolve(context).values
    if not values:
        raise unresolved(f"'{template.text}' has no value in this message")
    return values
