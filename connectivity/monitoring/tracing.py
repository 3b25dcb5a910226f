"""OpenTelemetry traces: one span for each delivery and one for each signal that is sent.

A delivery is a consumer span, from its reading until it is acknowledged or rejected. A signal that is sent is a producer
span, until the broker has confirmed it. A delivery continues the trace in its transport headers (MQTT 5 user properties,
AMQP and Kafka headers), or else the one in the signal's own headers. Then `traceparent` and `tracestate` travel in the
headers of signals, as the correlation ID does, also into events that targets are sent later. A sent message carries the
context of its own span (W3C Trace Context; OpenTelemetry, semantic conventions for messaging).

While tracing is off this module is not loaded. A thread exports spans in batches; spans that it cannot export are lost,
which is logged once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import structlog
from msgspec.structs import replace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from connectivity.config.settings import TracingSettings
from connectivity.connections.model import Connection
from connectivity.errors import ConnectivityError, PublishFailed
from connectivity.monitoring.logs import CORRELATION_ID, TRACEPARENT, TRACESTATE
from connectivity.transports import load_connection_type
from connectivity.transports.base import Delivery, OutboundMessage, Outcome
from mappings.model.envelope import Envelope
from mappings.model.signals import ErrorResponse, Inbound, Outbound, Subscribe

log = structlog.get_logger(__name__)

_SYSTEMS: Final = {"amqp-091": "rabbitmq", "mqtt-5": "mqtt"}
"""The OpenTelemetry names of systems that differ from the connection type."""

_TRACES_PATH: Final = "/v1/traces"
_EXPORT_SECONDS: Final = 5.0
_CONTEXT: Final = frozenset({TRACEPARENT, TRACESTATE})
_OUTCOMES: Final = {Outcome.SETTLED: "settled", Outcome.REDELIVER: "requeued", Outcome.DROPPED: "dropped"}

_propagator = TraceContextTextMapPropagator()


class Tracing:
    """Records and exports the spans of the service."""

    def __init__(
        self,
        processor: SpanProcessor,
        *,
        ratio: float = 1.0,
        service: str = "connectivity",
        abandon: Callable[[], None] | None = None,
    ) -> None:
        """Add a processor of spans.

        `ratio`: the share of the traces that begin here which is recorded. Other traces are recorded if their sender
        records them. `abandon` stops the export of a processor whose shutdown takes too long.
        """
        self._abandon = abandon
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(ratio)),
            resource=Resource.create({SERVICE_NAME: service}),
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_attribute_length=1024),
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("connectivity")

    @classmethod
    def open(cls, settings: TracingSettings) -> Tracing:
        """Open the exporter to the collector that the settings name."""
        assert settings.endpoint is not None
        exporter = OTLPSpanExporter(_address_of(settings.endpoint), timeout=_EXPORT_SECONDS)
        processor = BatchSpanProcessor(_ReportingExporter(exporter, _LossReporter()))
        return cls(processor, ratio=settings.ratio, service=settings.service, abandon=exporter.shutdown)

    def of(self, connection: Connection) -> Tracer:
        """Return the tracer of a connection."""
        return Tracer(self._tracer, connection)

    async def close(self, seconds: float) -> None:
        """Export the remaining spans, for at most so many seconds."""
        # A daemon thread, because the library's shutdown waits for a collector that is not reachable.
        closing = threading.Thread(target=self._provider.shutdown, name="tracing", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, seconds)
        if closing.is_alive() and self._abandon is not None:
            self._abandon()


class Tracer:
    """Makes the spans of one connection."""

    def __init__(self, tracer: Any, connection: Connection) -> None:
        self._tracer = tracer
        broker = connection.broker_uri
        kind = connection.connection_type
        self._common: dict[str, Any] = {
            "messaging.system": _SYSTEMS.get(kind, kind),
            "server.address": broker.host,
            "server.port": broker.port,
            "connectivity.connection": connection.id,
        }
        self._carries_context = load_connection_type(kind).has_headers
        self._sources = [_only_address(source.addresses) for source in connection.sources]

    def begin_delivery(
        self, delivery: Delivery, signals: Sequence[Inbound], error: ErrorResponse | None, source: int, started: int
    ) -> tuple[list[Inbound], ErrorResponse | None]:
        """Begin the span of a delivery, read since `started` (nanoseconds since 1970), until it ends.

        Return the signals and the error with the span's context in their headers.
        """
        read: Sequence[Inbound | ErrorResponse] = [*signals, error] if error is not None else signals
        own = read[0].headers if read else {}
        template = self._sources[source]
        attributes = {
            **self._common,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": delivery.address,
            "messaging.message.body.size": len(delivery.envelope.payload),
            "connectivity.source": source,
        }
        _describe(attributes, read[0] if read else None, own)
        if delivery.redelivered:
            attributes["connectivity.redelivered"] = True
        span = self._span(
            "process", template, SpanKind.CONSUMER, _transport_context(delivery) or own, attributes, started
        )
        if error is not None:
            span.set_attribute("error.type", error.fault.error)
            span.set_status(Status(StatusCode.ERROR, error.fault.message))
        delivery.ended = _end_with_span(span, delivery.ended)
        context = _context_of(span)
        error_with_context = (
            replace(error, headers=_with_context(error.headers, context)) if error is not None else None
        )
        return [
            replace(signal, headers=_with_context(signal.headers, context)) for signal in signals
        ], error_with_context

    def sending(self, signal: Outbound, template: str) -> SendSpan:
        """Begin the span of a signal that is sent to an address with this template."""
        attributes = {**self._common, "messaging.operation.name": "send", "messaging.operation.type": "send"}
        _describe(attributes, signal, signal.headers)
        if isinstance(signal, ErrorResponse):
            attributes["connectivity.error"] = signal.fault.error
        span = self._span("send", template, SpanKind.PRODUCER, signal.headers, attributes)
        return SendSpan(span, _context_of(span) if self._carries_context else {})

    def _span(
        self,
        operation: str,
        template: str | None,
        kind: SpanKind,
        parent: Mapping[str, Any],
        attributes: dict[str, Any],
        started: int | None = None,
    ) -> Span:
        name = operation
        if template is not None:
            name = f"{operation} {template}"
            attributes["messaging.destination.template"] = template
        context = _propagator.extract({name: parent[name] for name in _CONTEXT if isinstance(parent.get(name), str)})
        span: Span = self._tracer.start_span(name, context, kind, attributes, start_time=started)
        return span


class SendSpan:
    """A signal to be sent and its span. A span that is not ended is not exported."""

    __slots__ = ("_context", "_span")

    def __init__(self, span: Span, context: Mapping[str, str]) -> None:
        self._span = span
        self._context = context

    def carry(self, messages: Sequence[OutboundMessage]) -> Sequence[OutboundMessage]:
        """Return messages with the span's context in their headers; those that share headers still do."""
        if not messages:
            return messages
        self._span.set_attribute("messaging.destination.name", messages[0].address)
        if len(messages) > 1:
            self._span.set_attribute("messaging.batch.message_count", len(messages))
        if not self._context:
            return messages
        merged: dict[int, dict[str, Any]] = {}
        messages_with_context = []
        for message in messages:
            envelope = message.envelope
            headers = merged.get(id(envelope.headers))
            if headers is None:
                headers = merged[id(envelope.headers)] = _with_context(envelope.headers, self._context)
            messages_with_context.append(msgspec.structs.replace(message, envelope=Envelope(envelope.payload, headers)))
        return messages_with_context

    def end(self, error: ConnectivityError | None) -> None:
        """End the span: the broker has confirmed the messages, or there is an error."""
        if error is not None:
            kind = error.fault.error if isinstance(error, PublishFailed) else type(error).__name__
            self._span.set_attribute("error.type", kind)
            self._span.set_status(Status(StatusCode.ERROR, str(error)))
        self._span.end()


def _end_with_span(span: Span, ended: Callable[[Delivery, Outcome], None]) -> Callable[[Delivery, Outcome], None]:
    """Return a callback that ends the span and then the delivery."""

    def end(delivery: Delivery, outcome: Outcome) -> None:
        span.set_attribute("connectivity.outcome", _OUTCOMES[outcome])
        if outcome is not Outcome.SETTLED:
            span.set_status(Status(StatusCode.ERROR, outcome.value))
        span.end()
        ended(delivery, outcome)

    return end


def _describe(attributes: dict[str, Any], signal: Inbound | Outbound | None, headers: Mapping[str, Any]) -> None:
    """Add the attributes of a signal: its type, its entity, and its correlation ID."""
    if signal is not None:
        attributes["connectivity.signal"] = type(signal).__name__
        entity = signal.query.entity if isinstance(signal, Subscribe) else signal.entity
        if entity is not None:
            attributes["connectivity.entity"] = str(entity)
    if (correlation := headers.get(CORRELATION_ID)) is not None:
        attributes["messaging.message.conversation_id"] = correlation


def _only_address(addresses: Sequence[str]) -> str | None:
    """Return the address for the span names of a source; None if it has several."""
    return addresses[0] if len(addresses) == 1 else None


def _transport_context(delivery: Delivery) -> Mapping[str, str] | None:
    """Return the trace context in a delivery's transport headers, in upper or lower case."""
    envelope = delivery.envelope
    if (parent := envelope.header(TRACEPARENT)) is None:
        return None
    state = envelope.header(TRACESTATE)
    return {TRACEPARENT: parent} if state is None else {TRACEPARENT: parent, TRACESTATE: state}


def _context_of(span: Span) -> Mapping[str, str]:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, set_span_in_context(span))
    return carrier


def _with_context(headers: Mapping[str, Any], context: Mapping[str, str]) -> dict[str, Any]:
    """Return headers with this trace context in place of any other, in upper or lower case."""
    return {**{name: value for name, value in headers.items() if name.lower() not in _CONTEXT}, **context}


def _address_of(endpoint: str) -> str:
    """Return the URL for the export: the endpoint with the usual path, unless it has a path."""
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + _TRACES_PATH


class _LossReporter(logging.Handler):
    """Log handler of the exporting library: logs when spans are lost, and when export works again.

    Called from the exporting thread as well.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._is_losing = False
        for part in ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal"):
            logger = logging.getLogger(part)
            logger.handlers[:] = [self]
            logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.report_loss(record.getMessage())

    def report_loss(self, reason: str) -> None:
        if not self._is_losing:
            self._is_losing = True
            log.warning("spans are lost", reason=reason)

    def report_recovery(self) -> None:
        if self._is_losing:
            self._is_losing = False
            log.info("spans are exported again")


class _ReportingExporter(SpanExporter):
    """An exporter that logs when spans are lost, and when they are exported again."""

    def __init__(self, exporter: SpanExporter, losses: _LossReporter) -> None:
        self._exporter = exporter
        self._losses = losses

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._losses.report_recovery()
        else:
            self._losses.report_loss("the collector refuses them")
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()
