"""Reads deliveries: decodes them, maps headers, adds acknowledgement requests, enforces.

That is the order of the Ditto connection model. `SourceReader.receive` is pure; `prepare` runs mapping scripts before it.
Header mapping only adds headers that a signal does not have. A delivery that is unreadable or not allowed becomes an error
response, never an exception; it is acknowledged, because a redelivery would fail in the same way.

Each payload mapper of the source reads the delivery, in order. If one of them fails, the signals of the others remain, and
the delivery is answered with the first error. Errors are written in the Ditto protocol, or by the mapper whose protocol has
error responses of its own, or whose signals were not allowed.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import structlog
from msgspec.structs import replace

from connectivity.connections.templates import with_connection_id
from connectivity.mapping.mapper import ConfiguredMapper, Prepared
from connectivity.monitoring.logs import log_context
from connectivity.sources.acknowledgements import SourceAckRequests, channel_of
from connectivity.targets.destination import features_of
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.transports.base import UNKNOWN_SIZE, Delivery
from mappings.errors import INTERNAL_ERROR, DecodeError, Fault, MappingError
from mappings.ids import EntityId, EntityType, group_of, new_correlation_id, parse_entity_id
from mappings.mappers.base import Answers
from mappings.model.envelope import Envelope
from mappings.model.headers import normalize, readable, require_size
from mappings.model.signals import (
    Acknowledgement,
    Command,
    ErrorResponse,
    Inbound,
    LiveCommand,
    Message,
    SessionMessage,
)
from mappings.model.topic_path import topic_of
from mappings.placeholders.resolution import unresolved
from mappings.placeholders.template import PlaceholderContext, Scope, Template, parse

log = structlog.get_logger(__name__)

MAX_PAYLOAD = 1 << 20

DEVICE_HEADER = "device_id"
"""The transport header with the thing ID of a message whose payload has none."""

_DELIVERY_HEADERS = ("mqtt.", "kafka.")
"""Prefixes of headers about the delivery, not about the signal."""


class ReceivedSignal(msgspec.Struct, frozen=True):
    """One signal of a delivery, and the route of its mapper, by which it is answered.

    `name` distinguishes it from other signals of the delivery, and is the same at every redelivery; the first one of the
    mapper `Ditto` has an empty one. `sender_check` checks the parts that a session handler finds in the signal.
    """

    signal: Inbound
    route: ReplyTargetPublisher
    name: str = ""
    sender_check: SenderCheck | None = None


class DecodedDelivery(msgspec.Struct, frozen=True):
    """The result of reading a delivery: its signals and subjects, and the error to answer with.

    `route` answers with the error. `is_enforced`: the error, if any, is not one of enforcement. `dropped`: how many
    mappers do not accept the delivery.
    """

    signals: Sequence[ReceivedSignal]
    subjects: tuple[str, ...] = ()
    error: ErrorResponse | None = None
    route: ReplyTargetPublisher | None = None
    is_enforced: bool = True
    dropped: int = 0


class _ReadError(NamedTuple):
    """The error of a mapper, the route that answers with it, and whether it is not one of enforcement."""

    error: ErrorResponse
    route: ReplyTargetPublisher
    is_enforced: bool


class _NotEnforced(MappingError):
    """The sender is not allowed to act for the entity."""


class SenderCheck:
    """Reads and enforces the parts of one request, by the same rules as whole deliveries."""

    __slots__ = ("_delivery", "_identity", "_reader", "_subjects")

    def __init__(
        self, reader: SourceReader, delivery: Delivery, subjects: tuple[str, ...], identity: str | None
    ) -> None:
        self._reader = reader
        self._delivery = delivery
        self._subjects = subjects
        self._identity = identity

    def read(self, payload: bytes) -> DecodedDelivery:
        """Read a message of the Ditto protocol. Never raises for anything a sender can do."""
        return self._reader.receive_part(payload, self._delivery, self._subjects, self._identity)

    def refusal(self, entity: EntityId | None) -> Fault | None:
        """Return the fault if the sender is not allowed to act for an entity, else None."""
        return self._reader.refusal(entity, self._identity)


Preparation: TypeAlias = Mapping[ReplyTargetPublisher, Prepared]
"""The results of mapping scripts for a delivery, by route."""

NOTHING: Preparation = {}


class SourceReader:
    """Reads the deliveries of one source, with a route for each of its mappers.

    `route` is the first one, for all that concerns the source as a whole.
    """

    def __init__(self, *routes: ReplyTargetPublisher, max_payload: int = MAX_PAYLOAD) -> None:
        self.routes = routes
        self._routes_with_prefix = list(zip(routes, _prefixes(routes), strict=True))
        self._routes_with_scripts = [route for route in routes if route.mapper.must_prepare]
        self.has_scripts = bool(self._routes_with_scripts)
        """Whether mapping scripts read the deliveries."""
        self.route = route = routes[0]
        source, enforcement = route.source, route.source.enforcement
        self.is_enforcing = enforcement is not None
        default = next((route for route in routes if route.mapper.is_default), None)
        self._default = default or route.through(ConfiguredMapper())
        # A chunk of a stream has no size limit of its own.
        self._max_payload = sys.maxsize if route.is_stream else max_payload
        self._subjects = [parse(subject, Scope.AUTHORIZATION) for subject in source.authorization_context]
        is_constant = all(subject.literal is not None for subject in self._subjects)
        self._constant_subjects = tuple(source.authorization_context) if is_constant else None
        self._constant_sender = self._constant_subjects if enforcement is None else None
        """The subjects of every sender, if they depend on nothing."""
        self._enforcement_template = parse(enforcement.input, Scope.ENFORCEMENT_INPUT) if enforcement else None
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
        self._maps_headers = bool(route.header_mapping)
        names = route.header_mapping.names | (self._requests.names if self._requests is not None else frozenset())
        self._needs_topic = any(name.startswith("topic:") for name in names)
        self._needs_features = "feature:id" in names

    def note_throttled(self, minutes: int) -> None:
        """Count so many minutes in which consuming was throttled."""
        for counters in self.route.arriving.each():
            counters.throttled.note(None, minutes)

    async def prepare(self, deliveries: Sequence[Delivery]) -> Sequence[Preparation]:
        """Return the results of the mapping scripts for deliveries, in order; empty without scripts."""
        if not self.has_scripts:
            return ()
        return await asyncio.gather(*map(self._prepare, deliveries))

    async def _prepare(self, delivery: Delivery) -> Preparation:
        if (delivery.skipped or len(delivery.envelope.payload)) > self._max_payload:
            return {}
        try:
            subjects = self._constant_sender or self._sender(delivery)[0]
        except MappingError:
            # `receive` will fail before it uses a mapper.
            return {}
        prepared: dict[ReplyTargetPublisher, Prepared] = {}
        for route in self._routes_with_scripts:
            context = self._context(delivery, None, subjects) if route.mapper.reads_context else None
            try:
                prepared[route] = await route.mapper.prepare(delivery.envelope, context)
            except Exception as error:
                prepared[route] = error
        return prepared

    def receive(self, delivery: Delivery, prepared: Preparation = NOTHING) -> DecodedDelivery:
        """Read one delivery, using the results of mapping scripts. Never raises for anything a sender can do."""
        received: list[ReceivedSignal] = []
        unreadable: _ReadError | None = None
        dropped = 0
        try:
            if (size := delivery.skipped or len(delivery.envelope.payload)) > self._max_payload:
                raise self._too_large(size)
            subjects, identity = self._constant_sender, None
            if subjects is None:
                subjects, identity = self._sender(delivery)
        except MappingError as error:
            known = self._known_subjects(delivery)
            return DecodedDelivery((), known, *self._unreadable(error, delivery, known, self.route, is_read=False))
        for route, prefix in self._routes_with_prefix:
            is_read = False
            try:
                mapper = route.mapper
                context = self._context(delivery, None, subjects) if mapper.reads_context else None
                decoded = mapper.decode(delivery.envelope, context, prepared.get(route))
                is_read = True
                signals = [self._complete(signal, delivery, subjects, identity) for signal in decoded]
            except Exception as error:
                unreadable = unreadable or self._unreadable(error, delivery, subjects, route, is_read)
            else:
                dropped += not signals
                for number, signal in enumerate(signals):
                    sender_check = (
                        SenderCheck(self, delivery, subjects, identity) if isinstance(signal, SessionMessage) else None
                    )
                    received.append(
                        ReceivedSignal(signal, route, f"{prefix}#{number}" if number else prefix, sender_check)
                    )
        if unreadable is None:
            return DecodedDelivery(received, subjects, dropped=dropped)
        return DecodedDelivery(received, subjects, *unreadable, dropped)

    def receive_part(
        self, payload: bytes, delivery: Delivery, subjects: tuple[str, ...], identity: str | None
    ) -> DecodedDelivery:
        """Read one message of the Ditto protocol inside of a delivery."""
        route = self._default
        is_read = False
        try:
            if len(payload) > self._max_payload:
                raise self._too_large(len(payload))
            decoded = route.mapper.decode(Envelope(payload, {}), None)
            is_read = True
            signals = [ReceivedSignal(self._complete(each, delivery, subjects, identity), route) for each in decoded]
        except Exception as error:
            return DecodedDelivery((), subjects, *self._unreadable(error, delivery, subjects, route, is_read))
        return DecodedDelivery(signals, subjects)

    def refusal(self, entity: EntityId | None, identity: str | None) -> Fault | None:
        """Return the fault if a sender with this identity is not allowed to act for an entity, else None."""
        try:
            if identity is not None:
                self._enforce(entity, identity)
        except MappingError as error:
            return error.fault
        return None

    def _unreadable(
        self,
        error: Exception,
        delivery: Delivery,
        subjects: tuple[str, ...],
        route: ReplyTargetPublisher,
        is_read: bool,
    ) -> _ReadError:
        """Return the error of this route's mapper. `is_read`: it has decoded the delivery."""
        answers = route.mapper.answers
        own = answers is Answers.ALL or (is_read and answers is Answers.READ)
        by = route if own else self._default
        is_enforced = not isinstance(error, _NotEnforced) and not isinstance(error.__cause__, _NotEnforced)
        if isinstance(error, DecodeError):
            response = self._error_response(error.fault, delivery, subjects, error.headers, error.entity, error.group)
            return _ReadError(
                replace(response, channel=error.channel) if error.channel == "live" else response, by, is_enforced
            )
        if isinstance(error, MappingError):
            return _ReadError(self._error_response(error.fault, delivery, subjects), by, is_enforced)
        # An internal error; a redelivery would fail in the same way.
        log.error(
            "delivery not readable",
            exc_info=error,
            connection=route.connection_id,
            source=route.index,
            mapper=route.mapper.name,
            **log_context(delivery.envelope.headers),
        )
        return _ReadError(self._error_response(INTERNAL_ERROR, delivery, subjects), by, is_enforced)

    def _sender(self, delivery: Delivery) -> tuple[tuple[str, ...], str | None]:
        """Return the sender's subjects, and the identity that enforcement compares. Raises _NotEnforced."""
        try:
            subjects = self._sender_subjects(delivery)
            if self._enforcement_template is None:
                return subjects, None
            return subjects, _values(self._enforcement_template, self._context(delivery))[0]
        except MappingError as error:
            raise _NotEnforced(error.fault) from error

    def _sender_subjects(self, delivery: Delivery) -> tuple[str, ...]:
        """Return the sender's subjects. Raises MappingError."""
        if self._constant_subjects is not None:
            return self._constant_subjects
        context = self._context(delivery)
        return tuple(value for template in self._subjects for value in _values(template, context))

    def _known_subjects(self, delivery: Delivery) -> tuple[str, ...]:
        """Return the subjects of the sender of a delivery that is refused unread; empty if they are not known."""
        try:
            return self._sender_subjects(delivery)
        except MappingError:
            return ()

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
            feature_ids=features_of(signal) if self._needs_features and signal is not None else (),
            connection_id=self.route.connection_id,
            subjects=subjects,
            source_address=delivery.address,
            now=self.route.now,
        )

    def _too_large(self, size: int) -> DecodeError:
        found = "more bytes than the service can decompress" if size == UNKNOWN_SIZE else f"{size} bytes"
        message = f"The payload has {found}, but at most {self._max_payload} are allowed."
        return DecodeError(Fault(413, "connectivity:message.toolarge", message))

    def _complete(
        self, signal: Inbound, delivery: Delivery, subjects: tuple[str, ...], identity: str | None
    ) -> Inbound:
        """Return the signal with the mapped headers that it does not have, after enforcement.

        Raises DecodeError with the headers and the entity of the signal.
        """
        headers = dict(signal.headers)
        try:
            if self._maps_headers:
                mapped = self.route.header_mapping.apply(self._context(delivery, signal, subjects))
                headers = _merge(headers, normalize(mapped, mapped=True))
            if isinstance(signal, SessionMessage):
                return self._complete_session_message(signal, headers, delivery, subjects, identity)
            if self._requests is not None and (channel := channel_of(signal)) is not None:
                assert isinstance(signal, Command | Message | LiveCommand), "no other signals have a channel"
                context = self._context(delivery, signal, subjects)
                path, kind = signal.path, signal.entity.type.value
                known = _merge(headers, context.headers)
                context = replace(context, headers=known, resource_path=path, resource_type=kind)
                self._requests.apply(headers, channel, context)
            if not isinstance(signal, Command):
                if isinstance(signal, Acknowledgement):
                    self._add_connection(headers)
                # Subscriptions repeat their headers with every element. Those of commands are checked later.
                require_size(headers)
            if identity is not None:
                self._enforce(signal.entity, identity)
        except MappingError as error:
            entity = signal.entity
            known = _merge(headers, error.headers) if isinstance(error, DecodeError) else headers
            raise DecodeError(error.fault, entity=entity, group=group_of(entity), headers=known) from error
        headers["ditto-originator"] = subjects[0]
        if "correlation-id" not in headers:
            headers["correlation-id"] = new_correlation_id()
        if isinstance(signal, Command):
            # Twice as fast as `replace`, and most signals are commands.
            return Command(signal.entity, signal.action, signal.path, signal.value, headers, signal.fields)
        return replace(signal, headers=headers)

    def _complete_session_message(
        self,
        signal: SessionMessage,
        mapped: dict[str, Any],
        delivery: Delivery,
        subjects: tuple[str, ...],
        identity: str | None,
    ) -> SessionMessage:
        """Return a request of a protocol without headers, with mapped headers and those of the transport.

        Only they identify the sender and the reply address. The correlation ID is the client's; none is generated.
        """
        headers = _merge(mapped, self._transport_headers(delivery))
        require_size(headers)
        if identity is not None and not signal.has_parts:
            self._enforce(signal.entity, identity)
        headers["ditto-originator"] = subjects[0]
        return replace(signal, headers=headers)

    @staticmethod
    def _transport_headers(delivery: Delivery) -> dict[str, Any]:
        """Return the transport headers of a message, except for those about its delivery."""
        headers = delivery.envelope.headers
        return readable(
            {name: headers[name] for name in headers if not name.startswith(_DELIVERY_HEADERS)}, mapped=True
        )

    def _add_connection(self, headers: dict[str, Any]) -> None:
        """Add the connection of an acknowledgement. Raises DecodeError if it has no correlation ID."""
        if "correlation-id" not in headers:
            raise DecodeError(
                Fault(
                    400,
                    "acknowledgement:correlation-id.missing",
                    "The acknowledgement has no correlation id.",
                    "Set 'correlation-id' to the correlation id of the acknowledged signal.",
                )
            )
        headers["ditto-connection-id"] = self.route.connection_id

    def _enforce(self, entity: EntityId | None, identity: str) -> None:
        """Raise _NotEnforced if no filter resolves to the identity (Ditto connections, enforcement).

        The error is another one if no filter can be resolved for this entity, such as a filter on things for a policy.
        """
        if entity is not None:
            context = PlaceholderContext(entity=entity, connection_id=self.route.connection_id, now=self.route.now)
            resolutions = [template.resolve(context) for template in self._filters]
            if any(identity in resolution.values for resolution in resolutions):
                return
            if resolutions and not any(resolution.is_resolved for resolution in resolutions):
                missing = unresolved(f"no filter of the source's enforcement can be resolved for '{entity}'")
                raise _NotEnforced(missing.fault)
        raise _NotEnforced(
            Fault(
                400,
                "connectivity:connection.id.enforcement.failed",
                f"The sender is not allowed to act for '{entity or 'no entity'}'.",
                "Send the command as the sender that the source's enforcement expects, or change that enforcement.",
            )
        )

    def _error_response(
        self,
        fault: Fault,
        delivery: Delivery,
        subjects: tuple[str, ...],
        headers: Mapping[str, Any] | None = None,
        entity: EntityId | None = None,
        group: str = "things",
    ) -> ErrorResponse:
        """Return the error response with all headers that are known, so that its address can be resolved.

        The signal's own headers take precedence, then mapped ones, then those of the transport.
        """
        own = dict(headers or {})
        if entity is None and (device := delivery.envelope.header(DEVICE_HEADER)) is not None:
            entity = parse_entity_id(EntityType.THING, device)
        known = self._transport_headers(delivery)
        if self.route.header_mapping:
            try:
                mapped = self.route.header_mapping.apply(self._context(delivery, subjects=subjects, entity=entity))
            except MappingError:
                mapped = {}
            known = _merge(readable(mapped, mapped=True), known)
        known = _merge(own, known)
        if subjects:
            known["ditto-originator"] = subjects[0]
        try:
            require_size(known)
        except DecodeError as error:
            known = dict(error.headers)
        known.setdefault("correlation-id", new_correlation_id())
        return ErrorResponse(entity, group, fault, known)


def _prefixes(routes: Sequence[ReplyTargetPublisher]) -> list[str]:
    """Return a prefix of signal names for each mapper, independent of the order of mappers."""
    seen: Counter[str] = Counter()
    prefixes = []
    for route in routes:
        name = route.mapper.name
        if earlier := seen[name]:
            prefixes.append(f"#{name}.{earlier}")
        else:
            prefixes.append("" if route.mapper.is_default else f"#{name}")
        seen[name] += 1
    return prefixes


def _merge(own: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return `own` with those of `others` whose names it does not have, in upper or lower case."""
    names = {name.lower() for name in own}
    merged = {name: value for name, value in others.items() if name.lower() not in names}
    merged.update(own)
    return merged


def _values(template: Template, context: PlaceholderContext) -> tuple[str, ...]:
    """Return the values of a template, at least one. Raises Unresolved."""
    values = template.resolve(context).values
    if not values:
        raise unresolved(f"'{template.text}' has no value in this message")
    return values
