"""Signals on their way out: which of them are wanted, to which address, with which headers.

A `Route` is one source seen through one of its payload mappers, with everything about it compiled: the mapper, the
templates, the reply-target. An answer leaves by the route that its command came in by. `Route.messages` decides and is
pure; posting is the caller's. Responses pass only if the requester wants an answer and the reply-target
expects that kind; events of subscriptions always pass (Ditto connections, reply-targets). An address that does not resolve
drops the message, and so does one that a client's value would turn into something else than an address. A response that is
larger than the broker takes is followed by an error response that says so.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

import structlog

from connectivity.brokers.base import Outgoing
from connectivity.errors import ConnectivityError, PublishFailed
from connectivity.lanes import Ended, Posting
from connectivity.mapper import Mapper, mappers_of
from connectivity.model import Connection, Source
from connectivity.monitor import Meter
from connectivity.outbox import Outbox
from mappings.addresses import resolve_address
from mappings.envelope import Envelope
from mappings.errors import DecodeError, Fault, MappingError
from mappings.headers import HeaderMapping, response_required
from mappings.placeholders import PlaceholderContext, parse
from mappings.pointer import parse_pointer
from mappings.signals import ErrorResponse, Headers, Next, Outbound, Response
from mappings.topic import topic_of

log = structlog.get_logger(__name__)

TOO_LARGE = 413

ADDRESS_HEADER = "mqtt.topic"
"""What MQTT takes for the address where a header mapping sets it, so its value is judged like one."""


class Route:
    """One source of a connection, seen through one of its payload mappers: the first one, or the one that is given."""

    def __init__(
        self,
        connection: Connection,
        index: int,
        outbox: Outbox,
        meter: Meter,
        now: Callable[[], datetime],
        mapper: Mapper | None = None,
    ) -> None:
        source = connection.sources[index]
        self.connection_id = connection.id
        self.index = index
        self.place = (connection.id, index)
        """What names the source, whichever of its mappers is meant."""
        self.source: Source = source
        self.qos = 1 if source.qos is None else source.qos
        self.outbox = outbox
        self.meter = meter
        self.now = now
        self.header_mapping = HeaderMapping(source.header_mapping)
        target = source.reply_target
        self._address = parse(target.address) if target.enabled else None
        mapping = dict(target.header_mapping)
        override = mapping.pop(ADDRESS_HEADER, None)
        self._override = parse(override) if override is not None else None
        self._reply_mapping = HeaderMapping(mapping)
        self._expected = frozenset(kind.value for kind in target.expected_response_types)
        names = self._reply_mapping.names.union(*(it.names for it in (self._address, self._override) if it is not None))
        self._reads_topic = any(name.startswith("topic:") for name in names)
        self._reads_features = "feature:id" in names
        self._use(mapper or mappers_of(connection, source.payload_mapping)[0])

    def _use(self, mapper: Mapper) -> None:
        self.mapper = mapper
        self.terminal_needs_request = mapper.codec.terminal_needs_request
        self._needs_topic = self._reads_topic or mapper.needs_topic
        self._needs_features = self._reads_features or mapper.needs_features

    def through(self, mapper: Mapper) -> Route:
        """The same source through another mapper: the same reply-target, the same outbox."""
        route = copy.copy(self)
        route._use(mapper)
        return route

    def __repr__(self) -> str:
        return f"<Route {self.connection_id}[{self.index}] through {self.mapper.name}>"

    def post(self, signal: Outbound, ended: Ended | None = None, *, unasked: bool = False) -> Posting:
        """Send a signal to the reply-target. `unasked`: an answer to something that could not even be read.

        `ended` is told how it went; counting and logging is done here.
        """
        messages = self.messages(signal, unasked=unasked)
        if not messages:
            return self.outbox.post((), ended)
        elements = len(signal.elements) if isinstance(signal, Next) else 0
        told = partial(self._ended, signal, len(messages), elements, ended)
        return self.outbox.post(messages, told, _subject_of(signal))

    def _ended(
        self,
        signal: Outbound,
        messages: int,
        elements: int,
        ended: Ended | None,
        error: ConnectivityError | None,
    ) -> None:
        """The broker has confirmed all messages of a signal, or has refused one."""
        if error is not None:
            self.meter.outbound("failed")
            self._warn("an answer was not taken", correlation_of(signal), error)
            if isinstance(signal, Response) and (fault := _too_large(error)) is not None:
                # Whoever asked must not wait for ever; and the error is small.
                group = signal.entity.type.group if signal.entity is not None else "things"
                self.post(ErrorResponse(signal.entity, group, fault, signal.headers), ended)
                return
        else:
            self.meter.outbound("published", messages)
            if elements:
                self.meter.events_sent(elements)
        if ended is not None:
            ended(error)

    def messages(self, signal: Outbound, *, unasked: bool = False) -> Sequence[Outgoing]:
        """What has to be published to say `signal`; nothing where nobody wants it or no address resolves."""
        if self._address is None:
            self.meter.outbound("no_reply_target")
            return ()
        if isinstance(signal, Response | ErrorResponse) and not self._wants(signal, unasked):
            self.meter.outbound("not_expected")
            return ()
        try:
            context = self._context(signal)
            address = resolve_address(self._address, context)
            if address is None:
                self.meter.outbound("address_unresolved")
                return ()
            mapped = self._reply_mapping.apply(context)
            if self._override is not None and (override := resolve_address(self._override, context)) is not None:
                mapped[ADDRESS_HEADER] = override
            envelopes = self.mapper.encode(signal, context)
        except MappingError as error:
            self._warn("an answer cannot be sent", correlation_of(signal), error)
        except Exception:
            # A mistake of our own costs this one answer; whoever waits for others must not notice.
            log.exception(
                "an answer could not be written",
                connection=self.connection_id,
                source=self.index,
                correlation_id=correlation_of(signal),
            )
        else:
            if not envelopes:
                self.meter.outbound("dropped")
            if not mapped:
                return [Outgoing(address, envelope, self.qos) for envelope in envelopes]
            return self._with_headers(address, envelopes, mapped)
        self.meter.outbound("failed")
        return ()

    def _with_headers(self, address: str, envelopes: Sequence[Envelope], mapped: dict[str, str]) -> list[Outgoing]:
        """A mapped header replaces one of the codec's; envelopes that share their headers go on sharing them."""
        merged: dict[int, dict[str, str]] = {}
        messages = []
        for envelope in envelopes:
            headers = merged.get(id(envelope.headers))
            if headers is None:
                headers = merged[id(envelope.headers)] = {**envelope.headers, **mapped}
            messages.append(Outgoing(address, Envelope(envelope.payload, headers), self.qos))
        return messages

    def _wants(self, signal: Response | ErrorResponse, unasked: bool) -> bool:
        kind = "error" if isinstance(signal, ErrorResponse) else "response"
        return kind in self._expected and (unasked or response_required(signal.headers))

    def _context(self, signal: Outbound) -> PlaceholderContext:
        headers = _headers_of(signal)
        path = getattr(signal, "path", None)
        # An answer does not name the subjects that it is for; the first of them stands in its headers.
        originator = headers.get("ditto-originator")
        return PlaceholderContext(
            headers=headers,
            entity=signal.entity,
            topic=topic_of(signal) if self._needs_topic else None,
            resource_path=path,
            resource_type=signal.entity.type.value if path is not None and signal.entity is not None else None,
            feature_ids=feature_ids(path) if self._needs_features else (),
            connection_id=self.connection_id,
            subjects=(originator,) if originator is not None else (),
            now=self.now,
        )

    def _warn(self, what: str, correlation_id: str | None, error: Exception) -> None:
        log.warning(
            what, connection=self.connection_id, source=self.index, correlation_id=correlation_id, error=str(error)
        )


def feature_ids(path: str | None) -> tuple[str, ...]:
    """The feature that a path such as `/features/lamp/properties/on` leads into, or none."""
    try:
        segments = parse_pointer(path or "")
    except DecodeError:
        return ()
    return (segments[1],) if len(segments) > 1 and segments[0] == "features" else ()


def correlation_of(signal: Outbound) -> str | None:
    """What log lines call the conversation that a signal belongs to."""
    return _headers_of(signal).get("correlation-id")


def _subject_of(signal: Outbound) -> Hashable:
    """What keeps its order on the way: the entity, or the subscription where there is none."""
    return signal.entity if signal.entity is not None else getattr(signal, "key", None)


def _too_large(error: ConnectivityError) -> Fault | None:
    """What is answered instead of an answer that is larger than the broker takes; None where its size is not to blame."""
    if not isinstance(error, PublishFailed) or error.fault.status != TOO_LARGE:
        return None
    message = f"The answer is larger than the broker takes: {error.fault.message}"
    return replace(error.fault, message=message, description="Ask for less, for example with 'fields'.")


def _headers_of(signal: Outbound) -> Headers:
    """The headers of a signal. An event has none: an entry keeps text for its readers."""
    return {} if isinstance(signal.headers, bytes) else signal.headers


def routes_of(
    connection: Connection, index: int, outbox: Outbox, meter: Meter, now: Callable[[], datetime]
) -> list[Route]:
    """A source's routes: one for each entry of its `payloadMapping`, in order."""
    first, *others = mappers_of(connection, connection.sources[index].payload_mapping)
    route = Route(connection, index, outbox, meter, now, first)
    return [route, *(route.through(mapper) for mapper in others)]
