"""Signals on their way out: which of them are wanted, to which address, with which headers.

A `Route` is one source with everything about it compiled: its codec, its templates, its reply-target. `Route.messages`
decides and is pure; posting is the caller's. Responses pass only if the requester wants an answer and the reply-target
expects that kind; events of subscriptions always pass (Ditto connections, reply-targets). An address that does not resolve
drops the message, and so does one that a client's value would turn into something else than an address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import structlog

from connectivity.brokers.base import Outgoing
from connectivity.model import Connection, Source
from connectivity.monitor import Meter
from connectivity.outbox import Ended, Outbox, Posting
from mappings.addresses import resolve_address
from mappings.codecs import load_codec
from mappings.envelope import Envelope
from mappings.errors import MappingError
from mappings.headers import HeaderMapping, response_required
from mappings.placeholders import PlaceholderContext, parse
from mappings.signals import ErrorResponse, Next, Outbound, Response
from mappings.topic import topic_of

log = structlog.get_logger(__name__)

DEFAULT_MAPPER = "Ditto"


class Route:
    """One source of a connection, ready for use."""

    def __init__(
        self, connection: Connection, index: int, outbox: Outbox, meter: Meter, now: Callable[[], datetime]
    ) -> None:
        source = connection.sources[index]
        self.connection_id = connection.id
        self.index = index
        self.source: Source = source
        self.qos = 1 if source.qos is None else source.qos
        self.outbox = outbox
        self.meter = meter
        self.now = now
        self.codec = load_codec(_engine(connection, source))
        self.session = self.codec.session()
        self.terminal_needs_request = self.codec.terminal_needs_request
        self.header_mapping = HeaderMapping(source.header_mapping)
        target = source.reply_target
        self._address = parse(target.address) if target is not None and target.enabled else None
        self._reply_mapping = HeaderMapping(target.header_mapping if target is not None else {})
        self._expected = frozenset(kind.lower() for kind in target.expected_response_types) if target else frozenset()
        self._needs_topic = self._address is not None and any(
            name.startswith(("topic:", "resource:")) for name in self._address.names | self._reply_mapping.names
        )

    def __repr__(self) -> str:
        return f"<Route {self.connection_id}[{self.index}]>"

    def post(self, signal: Outbound, ended: Ended | None = None, *, unasked: bool = False) -> Posting:
        """Send a signal to the reply-target. `unasked`: an answer to something that could not even be read."""
        messages = self.messages(signal, unasked=unasked)
        if isinstance(signal, Next):
            self.meter.events_sent(len(signal.elements))
        if messages:
            self.meter.outbound("published", len(messages))
        return self.outbox.post(messages, ended)

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
            envelopes = self.codec.encode(signal, self.session)
        except MappingError as error:
            log.warning("an answer cannot be sent", connection=self.connection_id, source=self.index, error=str(error))
            self.meter.outbound("failed")
            return ()
        if not mapped:
            return [Outgoing(address, envelope, self.qos) for envelope in envelopes]
        return self._with_headers(address, envelopes, mapped)

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
        return PlaceholderContext(
            headers=signal.headers if isinstance(signal.headers, dict) else {},
            entity=signal.entity,
            topic=topic_of(signal) if self._needs_topic else None,
            resource_path=getattr(signal, "path", None),
            connection_id=self.connection_id,
            now=self.now,
        )


def _engine(connection: Connection, source: Source) -> str:
    """The wire protocol of a source: the engine of its first payload mapping."""
    name = source.payload_mapping[0] if source.payload_mapping else DEFAULT_MAPPER
    definition = connection.mapping_definitions.get(name)
    return definition.mapping_engine if definition is not None else name
