"""Traces: what becomes of a delivery, as spans of OpenTelemetry.

A delivery is a span of the kind consumer, from the moment when it is read until the broker is told what became of it. A
signal that leaves is one of the kind producer, until the broker has confirmed. In between lies what was decided and stored.

**Whose child a span is.** A delivery continues the trace that its transport headers name (MQTT 5 user properties, AMQP and
Kafka headers), or else the one that the signal's own headers name, which is all that MQTT 3.1.1 has. From then on the
context travels in the headers of the signals, `traceparent` and `tracestate`, like the correlation id: into responses, into
events, and with what is remembered of a command to targets that are sent its event much later. What leaves carries the
context of its own span in its transport headers, in the place of whatever a header mapping has put there (W3C Trace Context;
OpenTelemetry, semantic conventions for messaging).

**What it costs.** Nothing while it is off: nothing of this file, nor what makes and exports spans, is loaded, and whoever
might make one tests for None. Spans are handed to a thread that exports them in batches; when that cannot keep pace or the
collector is away, spans are lost, and one warning says so. The only file that knows the library.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import structlog
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
from connectivity.monitoring.log_context import CORRELATION_ID, TRACEPARENT, TRACESTATE
from connectivity.transports import load_connection_type
from connectivity.transports.base import Delivery, OutboundMessage, Outcome
from mappings.model.envelope import Envelope
from mappings.model.signals import ErrorResponse, Inbound, Outbound, Subscribe

log = structlog.get_logger(__name__)


_SYSTEMS: Final = {"amqp-091": "rabbitmq", "mqtt-5": "mqtt"}
"""Connection types whose system OpenTelemetry calls otherwise."""

_TRACES_PATH: Final = "/v1/traces"
_EXPORT_SECONDS: Final = 5.0
_CONTEXT: Final = frozenset({TRACEPARENT, TRACESTATE})
_OUTCOMES: Final = {Outcome.SETTLED: "settled", Outcome.REDELIVER: "given_back", Outcome.DROPPED: "dropped"}

_propagator = TraceContextTextMapPropagator()


class Tracing:
    """The spans of the service, and the way they leave."""

    def __init__(
        self,
        processor: SpanProcessor,
        *,
        ratio: float = 1.0,
        service: str = "connectivity",
        abandon: Callable[[], None] | None = None,
    ) -> None:
        """`ratio`: which share of the traces that begin here is recorded. Of others, those are that their senders record.

        `abandon` makes a processor give up that does not come to an end.
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
        """Export to the collector that the settings name."""
        assert settings.endpoint is not None
        exporter = OTLPSpanExporter(_address_of(settings.endpoint), timeout=_EXPORT_SECONDS)
        processor = BatchSpanProcessor(_Told(exporter, _Complaints()))
        return cls(processor, ratio=settings.ratio, service=settings.service, abandon=exporter.shutdown)

    def of(self, connection: Connection) -> Tracer:
        """What makes the spans of a connection."""
        return Tracer(self._tracer, connection)

    async def close(self, seconds: float) -> None:
        """Export what is left, for so many seconds at most."""
        # A thread that nobody waits for: the library would wait for a collector that is away.
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
        self._sources = [_only(source.addresses) for source in connection.sources]

    def received(
        self, delivery: Delivery, signals: Sequence[Inbound], error: ErrorResponse | None, source: int, started: int
    ) -> tuple[list[Inbound], ErrorResponse | None]:
        """Begin the span of a delivery that was read since `started` (nanoseconds since 1970), which ends with it.

        What it said, with the context of the span among its headers.
        """
        said: Sequence[Inbound | ErrorResponse] = [*signals, error] if error is not None else signals
        own = said[0].headers if said else {}
        template = self._sources[source]
        attributes = {
            **self._common,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": delivery.address,
            "messaging.message.body.size": len(delivery.envelope.payload),
            "connectivity.source": source,
        }
        _describe(attributes, said[0] if said else None, own)
        if delivery.redelivered:
            attributes["connectivity.redelivered"] = True
        span = self._span("process", template, SpanKind.CONSUMER, _transported(delivery) or own, attributes, started)
        if error is not None:
            span.set_attribute("error.type", error.fault.error)
            span.set_status(Status(StatusCode.ERROR, error.fault.message))
        delivery.ended = _ending(span, delivery.ended)
        context = _context_of(span)
        told = replace(error, headers=_with(error.headers, context)) if error is not None else None
        return [replace(signal, headers=_with(signal.headers, context)) for signal in signals], told

    def sending(self, signal: Outbound, template: str) -> SendSpan:
        """Begin the span of a signal that leaves for an address with this template."""
        attributes = {
            **self._common,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
        }
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
    """A signal on its way out, and its span. One that nothing comes of is not exported."""

    __slots__ = ("_context", "_span")

    def __init__(self, span: Span, context: Mapping[str, str]) -> None:
        self._span = span
        self._context = context

    def carry(self, messages: Sequence[OutboundMessage]) -> Sequence[OutboundMessage]:
        """The messages with the span's context among their headers. Those that share their headers go on sharing them."""
        if not messages:
            return messages
        self._span.set_attribute("messaging.destination.name", messages[0].address)
        if len(messages) > 1:
            self._span.set_attribute("messaging.batch.message_count", len(messages))
        if not self._context:
            return messages
        merged: dict[int, dict[str, Any]] = {}
        carrying = []
        for message in messages:
            envelope = message.envelope
            headers = merged.get(id(envelope.headers))
            if headers is None:
                headers = merged[id(envelope.headers)] = _with(envelope.headers, self._context)
            carrying.append(msgspec.structs.replace(message, envelope=Envelope(envelope.payload, headers)))
        return carrying

    def end(self, error: ConnectivityError | None) -> None:
        """The broker has confirmed, or has not."""
        if error is not None:
            kind = error.fault.error if isinstance(error, PublishFailed) else type(error).__name__
            self._span.set_attribute("error.type", kind)
            self._span.set_status(Status(StatusCode.ERROR, str(error)))
        self._span.end()


def _ending(span: Span, ended: Callable[[Delivery, Outcome], None]) -> Callable[[Delivery, Outcome], None]:
    """What ends a delivery, and its span with it."""

    def end(delivery: Delivery, outcome: Outcome) -> None:
        span.set_attribute("connectivity.outcome", _OUTCOMES[outcome])
        if outcome is not Outcome.SETTLED:
            span.set_status(Status(StatusCode.ERROR, outcome.value))
        span.end()
        ended(delivery, outcome)

    return end


def _describe(attributes: dict[str, Any], signal: Inbound | Outbound | None, headers: Mapping[str, Any]) -> None:
    """What a signal is, what it is about, and in which conversation."""
    if signal is not None:
        attributes["connectivity.signal"] = type(signal).__name__
        entity = signal.query.entity if isinstance(signal, Subscribe) else signal.entity
        if entity is not None:
            attributes["connectivity.entity"] = str(entity)
    if (correlation := headers.get(CORRELATION_ID)) is not None:
        attributes["messaging.message.conversation_id"] = correlation


def _only(addresses: Sequence[str]) -> str | None:
    """The address by which a source's spans are called; None where it has several."""
    return addresses[0] if len(addresses) == 1 else None


def _transported(delivery: Delivery) -> Mapping[str, str] | None:
    """The context that a delivery's transport headers name, in any spelling of their names."""
    envelope = delivery.envelope
    if (parent := envelope.header(TRACEPARENT)) is None:
        return None
    state = envelope.header(TRACESTATE)
    return {TRACEPARENT: parent} if state is None else {TRACEPARENT: parent, TRACESTATE: state}


def _context_of(span: Span) -> Mapping[str, str]:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, set_span_in_context(span))
    return carrier


def _with(headers: Mapping[str, Any], context: Mapping[str, str]) -> dict[str, Any]:
    """Headers with this context in the place of any other, however that was spelt."""
    return {**{name: value for name, value in headers.items() if name.lower() not in _CONTEXT}, **context}


def _address_of(endpoint: str) -> str:
    """Where spans are posted: at the usual path, unless the endpoint has one."""
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + _TRACES_PATH


# --- losses -------------------------------------------------------------------------------------------------------------


class _Complaints(logging.Handler):
    """What those parts of the library have to say that export, said once: until spans are exported again, everything
    further is the same trouble. It comes from the exporting thread too."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._has_told = False
        for part in ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal"):
            logger = logging.getLogger(part)
            logger.handlers[:] = [self]
            logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.tell(record.getMessage())

    def tell(self, reason: str) -> None:
        if not self._has_told:
            self._has_told = True
            log.warning("spans are lost", reason=reason)

    def over(self) -> None:
        if self._has_told:
            self._has_told = False
            log.info("spans are exported again")


class _Told(SpanExporter):
    """An exporter that says when spans are lost, and when they are not any more."""

    def __init__(self, exporter: SpanExporter, complaints: _Complaints) -> None:
        self._exporter = exporter
        self._complaints = complaints

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._complaints.over()
        else:
            self._complaints.tell("the collector does not take them")
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()
