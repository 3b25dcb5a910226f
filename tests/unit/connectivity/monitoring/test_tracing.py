"""Traces: parents and attributes of spans, and that tracing costs nothing while it is off."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from structlog.testing import capture_logs

from connectivity.config.settings import TracingSettings
from connectivity.errors import PublishFailed
from connectivity.monitoring.tracing import Tracing
from connectivity.transports.base import OutboundMessage
from mappings.ids import EntityId, EntityType
from mappings.model.envelope import Envelope
from mappings.model.signals import ConnectionAnnouncement, ErrorResponse, Response
from tests.support.in_process.service import (
    LAMP,
    ConnectionHarness,
    command,
    connection,
    source,
    streaming,
    target,
    turn,
    until,
)
from tests.support.span_collector import collector
from tests.support.wait import PATIENCE, wait_until_sync

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = f"00-{TRACE}-{PARENT}-01"
NOT_SAMPLED = f"00-{TRACE}-{PARENT}-00"
TWIN_EVENTS = "_/_/things/twin/events"


class Collected:
    """Tracing into a list."""

    def __init__(self, ratio: float = 1.0) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracing = Tracing(SimpleSpanProcessor(self._exporter), ratio=ratio)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """The spans in the order of their ends."""
        return self._exporter.get_finished_spans()

    def forget(self) -> None:
        self._exporter.clear()

    def of(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self.spans if span.kind is kind]

    @property
    def consumer(self) -> ReadableSpan:
        (span,) = self.of(SpanKind.CONSUMER)
        return span

    @property
    def producer(self) -> ReadableSpan:
        (span,) = self.of(SpanKind.PRODUCER)
        return span


def context_of(span: ReadableSpan) -> str:
    """Return the span's context in the format of `traceparent`."""
    assert span.context is not None
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


def attribute(span: ReadableSpan, name: str) -> Any:
    assert span.attributes is not None
    return span.attributes.get(name)


def parent_of(span: ReadableSpan) -> str | None:
    return f"{span.parent.span_id:016x}" if span.parent is not None else None


def own_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


@pytest.fixture
def collected() -> Collected:
    return Collected()


async def lamp(collected: Collected, *sources: Any, **more: Any) -> ConnectionHarness:
    """A site with a lamp; the spans of its creation are removed."""
    harness = ConnectionHarness(*sources, tracing=collected.tracing, **more)
    await harness.has_lamp()
    collected.forget()
    return harness


pytestmark = pytest.mark.usefixtures("harnesses")


# --- parents ---


async def test_a_delivery_continues_the_trace_of_its_transport_headers_into_the_response(
    collected: Collected,
) -> None:
    harness = await lamp(collected)
    await harness.ask(turn(True), traceparent=CONTEXT, tracestate="acme=1")
    await harness.settled(1)
    consumer, producer = collected.consumer, collected.producer
    assert parent_of(consumer) == PARENT
    assert parent_of(producer) == own_id(consumer)
    headers = harness.link.published[-1].envelope.headers
    assert (headers["traceparent"], headers["tracestate"]) == (context_of(producer), "acme=1")
    assert context_of(producer)[3:35] == TRACE


async def test_transport_headers_override_those_of_the_signal(collected: Collected) -> None:
    harness = await lamp(collected)
    other = f"00-{'1' * 32}-{'2' * 16}-01"
    await harness.ask(turn(True, traceparent=other), Traceparent=CONTEXT)
    assert parent_of(collected.producer) is not None
    assert context_of(collected.producer)[3:35] == TRACE


async def test_without_transport_headers_the_signal_names_the_parent_span(collected: Collected) -> None:
    """A client of MQTT 3.1.1 has no other way."""
    harness = await lamp(collected)
    await harness.ask(turn(True, traceparent=CONTEXT))
    await harness.settled(1)
    assert parent_of(collected.consumer) == PARENT


async def test_a_delivery_without_trace_context_starts_a_trace(collected: Collected) -> None:
    harness = await lamp(collected)
    await harness.ask(turn(True))
    await harness.settled(1)
    assert parent_of(collected.consumer) is None
    assert parent_of(collected.producer) == own_id(collected.consumer)


@pytest.mark.parametrize("odd", ["", "garbage", "00-0-0-00", CONTEXT.upper(), f"ff{CONTEXT[2:]}", "x" * 5_000])
async def test_an_invalid_trace_context_starts_a_new_trace(collected: Collected, odd: str) -> None:
    harness = await lamp(collected)
    answer = await harness.ask(turn(True), traceparent=odd)
    await harness.settled(1)
    assert answer["status"] == 201
    assert parent_of(collected.consumer) is None


async def test_a_sent_message_has_the_trace_context_once(collected: Collected) -> None:
    """Even if a header mapping adds one in other upper or lower case."""
    mapping = {"Traceparent": "{{ header:traceparent }}", "TraceState": "old=1", "other": "kept"}
    harness = await lamp(collected, source(replyTarget={"address": "out", "headerMapping": mapping}))
    answer = await harness.ask(turn(True), traceparent=CONTEXT)
    await harness.settled(1)
    headers = harness.link.published[-1].envelope.headers
    assert {name: value for name, value in headers.items() if name.lower().startswith("trace")} == {
        "traceparent": context_of(collected.producer)
    }
    assert headers["other"] == "kept"
    assert answer["headers"]["traceparent"] == context_of(collected.consumer)


async def test_an_event_for_a_target_belongs_to_the_trace_of_its_command(collected: Collected) -> None:
    """Even at another connection, and however long it waits for its broker."""
    harness = await lamp(collected)
    beside = ConnectionHarness(
        beside=harness,
        tracing=collected.tracing,
        id="other",
        targets=[target(TWIN_EVENTS, address="events/{{ thing:name }}")],
    )
    await beside.follow()
    await harness.ask(turn(True), traceparent=CONTEXT)
    await until(lambda: len(beside.link.published) == 1)
    await until(lambda: len(collected.of(SpanKind.PRODUCER)) == 2)
    (event,) = [
        span for span in collected.of(SpanKind.PRODUCER) if attribute(span, "connectivity.connection") == "other"
    ]
    assert parent_of(event) == own_id(collected.consumer)
    assert beside.link.published[0].envelope.headers["traceparent"] == context_of(event)
    assert event.name == "send events/{{ thing:name }}"
    assert attribute(event, "messaging.destination.name") == "events/lamp-7"


async def test_events_of_a_subscription_belong_to_the_trace_of_the_request(collected: Collected) -> None:
    harness = await lamp(collected)
    created = await harness.ask(streaming("subscribeForPersistedEvents", {}))
    collected.forget()
    asked = {"subscriptionId": created["value"]["subscriptionId"], "demand": 10}
    harness.deliver(streaming("request", asked), traceparent=CONTEXT)
    await until(lambda: len(collected.spans) == 3)
    assert {parent_of(span) for span in collected.of(SpanKind.PRODUCER)} == {own_id(collected.consumer)}
    assert {attribute(span, "connectivity.signal") for span in collected.of(SpanKind.PRODUCER)} == {"Next", "Complete"}


# --- attributes ---


async def test_a_span_has_the_attributes_of_the_messaging_conventions(collected: Collected) -> None:
    harness = await lamp(collected)
    payload = turn(True, correlation_id="c-7")
    await harness.ask(payload)
    await harness.settled(1)
    common = {
        "messaging.system": "memory",
        "server.address": "site",
        "server.port": 1,
        "connectivity.connection": "site",
        "connectivity.entity": "acme.site:lamp-7",
        "messaging.message.conversation_id": "c-7",
    }
    assert dict(collected.consumer.attributes or {}) == {
        **common,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "in",
        "messaging.destination.template": "in",
        "messaging.message.body.size": len(payload),
        "connectivity.source": 0,
        "connectivity.signal": "Command",
        "connectivity.outcome": "settled",
    }
    assert dict(collected.producer.attributes or {}) == {
        **common,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "out",
        "messaging.destination.template": "out",
        "connectivity.signal": "Response",
    }
    assert [span.name for span in collected.spans] == ["send out", "process in"]


async def test_an_unreadable_delivery_is_an_error_of_its_span(collected: Collected) -> None:
    harness = await lamp(collected)
    await harness.ask(b"{", traceparent=CONTEXT)
    await harness.settled(1)
    consumer, producer = collected.consumer, collected.producer
    assert (consumer.status.status_code, attribute(consumer, "error.type")) == (StatusCode.ERROR, "json.invalid")
    assert (parent_of(consumer), attribute(producer, "connectivity.error")) == (PARENT, "json.invalid")


async def test_the_span_of_a_response_has_the_error_of_a_refused_command(collected: Collected) -> None:
    harness = await lamp(collected)
    await harness.ask(command("retrieve", "/features/none"))
    await harness.settled(1)
    assert attribute(collected.producer, "connectivity.error") == "things:feature.notfound"
    assert collected.consumer.status.status_code is StatusCode.UNSET


async def test_a_span_ends_when_the_broker_has_the_answer(collected: Collected) -> None:
    harness = await lamp(collected)
    harness.link.confirms = False
    await harness.ask(turn(True))
    assert list(collected.spans) == []
    harness.link.confirm()
    assert [span.kind for span in collected.spans] == [SpanKind.PRODUCER, SpanKind.CONSUMER]


async def test_an_answer_that_the_broker_refuses_is_an_error(collected: Collected) -> None:
    harness = await lamp(collected)
    harness.link.confirms = False
    await harness.ask(turn(True))
    harness.link.confirm(error=PublishFailed("no such queue", status=404))
    producer = collected.producer
    assert (producer.status.status_code, producer.status.description) == (StatusCode.ERROR, "no such queue")
    assert attribute(producer, "error.type") == "connectivity:message.sending.failed"


async def test_a_delivery_without_a_response_has_a_span(collected: Collected) -> None:
    harness = await lamp(collected)
    harness.deliver(turn(True, response_required=False))
    await harness.settled(1)
    assert [span.kind for span in collected.spans] == [SpanKind.CONSUMER]


def a_tracer(collected: Collected, kind: str = "memory", uri: str = "memory://site:1", *addresses: str) -> Any:
    sources = [source(addresses=list(addresses))] if addresses else []
    return collected.tracing.of(connection(*sources, connectionType=kind, uri=uri))


@pytest.mark.parametrize(
    ("kind", "uri", "system", "carries"),
    [
        ("mqtt", "tcp://broker:1883", "mqtt", False),
        ("mqtt-5", "tcp://broker:1883", "mqtt", True),
        ("amqp-091", "amqp://broker:5672/%2F", "rabbitmq", True),
        ("kafka", "tcp://broker:9092", "kafka", True),
    ],
)
def test_each_broker_has_its_system_name_and_carries_context_if_it_has_headers(
    collected: Collected, kind: str, uri: str, system: str, carries: bool
) -> None:
    signal = Response(LAMP, "modify", "/", 204, None, {"traceparent": CONTEXT})
    sending = a_tracer(collected, kind, uri).sending(signal, "{{ header:reply-to }}")
    (message,) = sending.carry([OutboundMessage("out", Envelope(b"", {"a": "b"}))])
    sending.end(None)
    assert attribute(collected.producer, "messaging.system") == system
    assert message.envelope.headers["a"] == "b"
    assert ("traceparent" in message.envelope.headers) is carries


def test_messages_that_share_their_headers_continue_sharing_them(collected: Collected) -> None:
    shared, other = {"a": "b"}, {"c": "d"}
    signal = Response(LAMP, "modify", "/", 204, None, {})
    sending = a_tracer(collected).sending(signal, "out")
    first, second, third = sending.carry(
        [OutboundMessage("out", Envelope(b"", each)) for each in (shared, shared, other)]
    )
    assert first.envelope.headers is second.envelope.headers
    assert third.envelope.headers["c"] == "d"
    sending.end(None)
    assert attribute(collected.producer, "messaging.batch.message_count") == 3
    assert (shared, other) == ({"a": "b"}, {"c": "d"})


def test_a_signal_that_is_not_sent_has_no_span(collected: Collected) -> None:
    a_tracer(collected).sending(ConnectionAnnouncement("site", "opened", b"{}", {}), "out").carry([])
    assert collected.spans == ()


def test_a_span_name_has_no_values_of_messages(collected: Collected) -> None:
    """Spans are grouped by name: several addresses have no common one."""
    signal = ErrorResponse(EntityId(EntityType.THING, "a", "b"), "things", _fault(), {})
    a_tracer(collected).sending(signal, "{{ header:reply-to }}").end(None)
    assert collected.producer.name == "send {{ header:reply-to }}"


def _fault() -> Any:
    from mappings.errors import INTERNAL_ERROR

    return INTERNAL_ERROR


async def test_a_source_with_several_addresses_has_no_template_in_span_names(collected: Collected) -> None:
    harness = await lamp(collected, source(addresses=["in", "in-too"]))
    await harness.ask(turn(True))
    await harness.settled(1)
    assert collected.consumer.name == "process"
    assert attribute(collected.consumer, "messaging.destination.template") is None


# --- sampling ---


async def test_a_trace_that_its_sender_does_not_record_is_only_passed_on(collected: Collected) -> None:
    harness = await lamp(collected)
    await harness.ask(turn(True), traceparent=NOT_SAMPLED)
    await harness.settled(1)
    assert collected.spans == ()
    carried = harness.link.published[-1].envelope.headers["traceparent"]
    assert (carried[3:35], carried[-2:]) == (TRACE, "00")


async def test_with_a_ratio_of_zero_only_traces_recorded_by_their_sender_are_recorded() -> None:
    collected = Collected(ratio=0)
    harness = await lamp(collected)
    await harness.ask(turn(True))
    assert collected.spans == ()
    await harness.ask(turn(False), traceparent=CONTEXT)
    await harness.settled(2)
    assert len(collected.spans) == 2


# --- scripts ---


SCRIPT = """function mapFromDittoProtocolMsg() {
    return Ditto.buildExternalMsg({'content-type': 'text/plain'}, 'made', null, 'text/plain');
}"""


async def test_messages_made_by_scripts_carry_the_context(collected: Collected) -> None:
    """A response and an event of one command."""
    mapped: dict[str, Any] = {
        "mappingDefinitions": {"js": {"mappingEngine": "JavaScript", "options": {"outgoingScript": SCRIPT}}}
    }
    harness = await lamp(collected)
    beside = ConnectionHarness(
        source(payloadMapping=["js"]),
        beside=harness,
        tracing=collected.tracing,
        id="scripted",
        targets=[target(TWIN_EVENTS, payloadMapping=["js"])],
        **mapped,
    )
    await beside.follow()
    await harness.ask(turn(True), traceparent=CONTEXT)
    beside.deliver(command("retrieve"), traceparent=CONTEXT)
    await until(lambda: len(beside.link.published) == 2)
    await until(lambda: len(collected.of(SpanKind.PRODUCER)) == 3)
    made = [
        span for span in collected.of(SpanKind.PRODUCER) if attribute(span, "connectivity.connection") == "scripted"
    ]
    assert {message.envelope.payload for message in beside.link.published} == {b"made"}
    carried = {message.envelope.headers["traceparent"] for message in beside.link.published}
    assert carried == {context_of(span) for span in made}
    assert {context[3:35] for context in carried} == {TRACE}
    assert {attribute(span, "connectivity.signal") for span in made} == {"TwinEvent", "Response"}


# --- logs ---


async def test_log_lines_name_the_trace(collected: Collected) -> None:
    harness = await lamp(collected)
    with capture_logs() as logs:
        await harness.ask(command("retrieve", "/attributes/none", correlation_id="c-9"), traceparent=CONTEXT)
    (line,) = [line for line in logs if line["event"] == "command refused"]
    assert (line["connection"], line["correlation_id"], line["trace_id"]) == ("site", "c-9", TRACE)


# --- tracing is off ---


async def test_without_tracing_trace_headers_are_passed_on_unchanged() -> None:
    """They are headers of the protocol like the correlation ID: neither lost nor duplicated."""
    harness = ConnectionHarness()
    await harness.has_lamp()
    answer = await harness.ask(turn(True, traceparent=CONTEXT, tracestate="acme=1"))
    assert (answer["headers"]["traceparent"], answer["headers"]["tracestate"]) == (CONTEXT, "acme=1")
    assert "traceparent" not in harness.link.published[-1].envelope.headers


_LOADED = """
import json, sys
from pathlib import Path
from connectivity.service import Service
from connectivity.config.settings import Settings
service = Service(Settings(data_dir=Path(sys.argv[1]), connections_dir=Path(sys.argv[1]), spark={"mode": "off"}))
opentelemetry = ("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto")
tracing = ("connectivity.monitoring.tracing", *opentelemetry, "requests")
print(json.dumps([name for name in sys.modules if name.startswith(tracing)]))
import asyncio; asyncio.run(service.store.close())
"""


def run_python(code: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_service_without_tracing_does_not_load_opentelemetry(tmp_path: Any) -> None:
    """FastAPI's own use of OpenTelemetry's API has no effect without the SDK."""
    done = run_python(_LOADED, tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


_NOT_INSTALLED = """
import sys
from pathlib import Path
from connectivity.config.extras import Extra
Extra.is_installed = property(lambda extra: extra is not Extra.TRACING)
from connectivity.service import main
from connectivity.config.settings import Settings
folder = Path(sys.argv[1])
sys.exit(main(Settings(
    data_dir=folder, connections_dir=folder, spark={"mode": "off"}, api={"port": 0},
    tracing={"endpoint": "http://localhost:4318"},
)))
"""


def test_tracing_without_its_libraries_is_a_settings_error(tmp_path: Any) -> None:
    done = run_python(_NOT_INSTALLED, tmp_path)
    assert done.returncode == 2
    assert "tracing.endpoint: found http://localhost:4318" in done.stderr
    assert "pip install 'broker-connectivity[tracing]'" in done.stderr


# --- export to the collector ---


@pytest.fixture
def restored_loggers() -> Iterator[None]:
    """Restore the loggers that `Tracing.open` configures for the whole process."""
    parts = [logging.getLogger(name) for name in ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal")]
    was = [(part.handlers[:], part.propagate) for part in parts]
    yield
    for part, (handlers, propagate) in zip(parts, was, strict=True):
        part.handlers[:], part.propagate = handlers, propagate


def send(tracing: Tracing, number: int) -> None:
    tracer = tracing.of(connection())
    for _ in range(number):
        tracer.sending(Response(LAMP, "modify", "/", 204, None, {}), "out").end(None)


@pytest.mark.usefixtures("restored_loggers")
async def test_spans_reach_the_collector_before_the_service_ends() -> None:
    with collector() as spans:
        tracing = Tracing.open(TracingSettings(endpoint=spans.address))
        send(tracing, 3)
        await tracing.close(30)
    assert spans.paths == ["/v1/traces"]


@pytest.mark.usefixtures("restored_loggers")
async def test_an_endpoint_with_a_path_is_used_as_it_is() -> None:
    with collector() as spans:
        tracing = Tracing.open(TracingSettings(endpoint=f"{spans.address}/otlp/spans"))
        send(tracing, 1)
        await tracing.close(30)
    assert spans.paths == ["/otlp/spans"]


def exporting() -> list[str]:
    """Return the names of the exporting threads."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("Otel")]


@pytest.mark.usefixtures("restored_loggers")
async def test_an_unavailable_collector_loses_spans_with_one_warning() -> None:
    with collector() as spans:
        """Its port is free afterwards."""
    tracing = Tracing.open(TracingSettings(endpoint=spans.address))
    with capture_logs() as logs:
        started = time.monotonic()
        send(tracing, 4_000)
        assert time.monotonic() - started < PATIENCE, "sending waits for the collector"
        await asyncio.to_thread(wait_until_sync, lambda: logs, 60)
        send(tracing, 4_000)
        started = time.monotonic()
        await tracing.close(0.2)
        assert time.monotonic() - started < PATIENCE
        await asyncio.to_thread(wait_until_sync, lambda: not exporting(), 60)
    assert [line["event"] for line in logs] == ["spans are lost"]


@pytest.mark.usefixtures("restored_loggers")
async def test_a_collector_that_refuses_spans_and_its_recovery_are_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    with collector(400, 400) as spans, capture_logs() as logs:
        tracing = Tracing.open(TracingSettings(endpoint=spans.address))
        for number in (1, 2, 3):
            send(tracing, 1)
            await asyncio.to_thread(wait_until_sync, lambda number=number: len(spans.paths) == number, 60)  # type: ignore[misc]
        await tracing.close(30)
    assert [line["event"] for line in logs] == ["spans are lost", "spans are exported again"]
