"""Reading of deliveries: header mapping, sender, enforcement, and error responses.

Case numbers are those of the cases for connections.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from connectivity.monitoring.prometheus import PrometheusRegistry
from connectivity.sources.reader import DecodedDelivery, SenderCheck, SourceReader
from connectivity.targets.outbox import Outbox
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.transports.base import Delivery
from mappings.errors import INTERNAL_ERROR
from mappings.ids import EntityId, EntityType
from mappings.model.envelope import Envelope
from mappings.model.signals import Command, ErrorResponse, Inbound, Request, Subscribe, SubscriptionKind
from tests.support.in_process.fixed_codec import FixedCodec
from tests.support.in_process.service import LAMP, NOW, OWNER, command, connection, document, source, streaming, turn

POLICY = EntityId(EntityType.POLICY, "acme.site", "lamp-7")


PARTS = "{{ header:list | fn:split(',') }}"
"""Concatenated with itself it exceeds the values of an expression, for a list of some hundred entries."""


def reader(max_payload: int = 1 << 20, *, type: str = "memory", **more: Any) -> SourceReader:
    """Return the reader of a source that differs from the default one in `more`."""
    made = connection(source(**more), connectionType=type)
    return SourceReader(
        ReplyTargetPublisher(made, 0, Outbox(), PrometheusRegistry().meter(made.id), lambda: NOW),
        max_payload=max_payload,
    )


def receive(with_reader: SourceReader, payload: bytes, headers: Mapping[str, str] | None = None) -> DecodedDelivery:
    delivery = Delivery(Envelope(payload, dict(headers or {})), "in/lamp-7", "d1", False, lambda *_: None)
    return with_reader.receive(delivery)


def read(with_reader: SourceReader, payload: bytes, **headers: str) -> Inbound:
    """Return the only signal of a delivery; keywords are transport headers."""
    received = receive(with_reader, payload, {name.replace("_", "-"): value for name, value in headers.items()})
    assert received.error is None, received.error
    (received_signal,) = received.signals
    assert received_signal.route is with_reader.route
    return received_signal.signal


def test_b9_a_payload_that_the_link_has_skipped_is_too_large() -> None:
    delivery = Delivery(Envelope(b"", {}), "in/lamp-7", "d1", False, lambda *_: None, skipped=256_000_000)
    received = reader(1000).receive(delivery)
    assert received.error is not None
    assert (received.error.fault.status, received.error.fault.error) == (413, "connectivity:message.toolarge")
    assert "256000000 bytes" in received.error.fault.message


def error_of(with_reader: SourceReader, payload: bytes, headers: Mapping[str, str] | None = None) -> ErrorResponse:
    received = receive(with_reader, payload, headers)
    assert received.error is not None
    assert received.signals in ((), [])
    return received.error


# headers


def test_a_signals_own_headers_override_mapped_ones() -> None:
    mapped = reader(headerMapping={"correlation-id": "{{ header:cid }}", "lang": "{{ header:lang }}"})
    signal = read(mapped, turn(True, correlation_id="own"), cid="mapped", lang="en")
    assert (signal.headers["correlation-id"], signal.headers["lang"]) == ("own", "en")


@pytest.mark.parametrize("own", ["Reply-Key", "reply-key", "REPLY-KEY"])
def test_a_signals_own_header_overrides_a_mapped_one_in_any_case(own: str) -> None:
    mapped = reader(headerMapping={"reply-key": "{{ header:rk }}"})
    signal = read(mapped, turn(True, **{own.replace("-", "_"): "own"}), rk="mapped")
    assert {name: value for name, value in signal.headers.items() if name.lower() == "reply-key"} == {own: "own"}


def test_names_of_the_protocol_are_mapped_in_any_case_and_custom_ones_keep_theirs() -> None:
    mapped = reader(headerMapping={"Correlation-ID": "{{ header:cid }}", "Custom-Name": "{{ header:cid }}"})
    headers = read(mapped, turn(True), cid="c-1").headers
    assert headers["correlation-id"] == headers["Custom-Name"] == "c-1"
    assert "Correlation-ID" not in headers
    assert "custom-name" not in headers


def test_transport_headers_are_found_in_any_case() -> None:
    mapped = reader(headerMapping={"lang": "{{ header:LANG }}"})
    received = receive(mapped, turn(True), {"Lang": "en"})
    assert received.signals[0].signal.headers["lang"] == "en"


def test_an_unresolved_mapping_entry_is_left_out() -> None:
    mapped = reader(headerMapping={"lang": "{{ header:lang }}", "site": "{{ thing:namespace }}"})
    headers = read(mapped, turn(True)).headers
    assert "lang" not in headers
    assert headers["site"] == "acme.site"


def test_a_mapping_may_use_topic_feature_sender_and_connection() -> None:
    mapping = {
        "action": "{{ topic:action }}",
        "feature": "{{ feature:id }}",
        "sender": "{{ request:subjectId }}",
        "via": "{{ connection:id }}",
        "at": "{{ time:now }}",
    }
    headers = read(reader(headerMapping=mapping), command("modify", "/features/bulb/properties/on", True)).headers
    assert {name: headers[name] for name in mapping} == {
        "action": "modify",
        "feature": "bulb",
        "sender": OWNER,
        "via": "site",
        "at": "2030-01-15T07:30:00Z",
    }


@pytest.mark.parametrize(("qos", "expected"), [("0", []), ("1", ["site:seen"])])
def test_a_filter_of_acknowledgement_requests_sees_the_headers_of_the_signal(qos: str, expected: list[str]) -> None:
    requests = {"includes": ["site:seen"], "filter": "fn:filter(header:qos,'ne','0')"}
    by = reader(headerMapping={"qos": "{{ header:mqtt.qos }}"}, acknowledgementRequests=requests)
    mapped = receive(by, turn(True), {"mqtt.qos": qos})
    assert mapped.signals[0].signal.headers["requested-acks"] == expected
    assert read(by, turn(True, qos=qos)).headers["requested-acks"] == expected
    assert read(by, turn(True), qos=qos).headers["requested-acks"] == expected


@pytest.mark.parametrize(
    ("payload", "features"),
    [
        (command("modify", "/features/bulb/properties/on", True), "bulb"),
        (command("modify", "/", {"features": {"bulb": {}, "fan": {}}}), "bulb,fan"),
        (command("merge", "/features", {"bulb": {}, "fan": None}), "bulb,fan"),
        (command("modify", "/attributes/on", {"features": {"bulb": {}}}), None),
        (command("modify", "/", 7), None),
        (command("retrieve"), None),
    ],
)
def test_a_mapping_may_use_the_features_in_the_value_of_a_command(payload: bytes, features: str | None) -> None:
    headers = read(reader(headerMapping={"features": "{{ feature:id | fn:join(',') }}"}), payload).headers
    assert headers.get("features") == features


def test_mapped_values_of_the_protocols_headers_get_their_type() -> None:
    mapped = reader(headerMapping={"response-required": "{{ header:answer }}", "timeout": "{{ header:wait }}"})
    headers = read(mapped, turn(True), answer="false", wait="5s").headers
    assert headers["response-required"] is False
    assert headers["timeout"] == "5s"


def test_a_mapped_header_of_the_wrong_type_is_refused_with_a_routable_error() -> None:
    """The error response has the entity, the signal's own headers, and readable mapped ones."""
    mapped = reader(headerMapping={"timeout": "{{ header:wait }}", "reply-key": "{{ header:rk }}"})
    error = error_of(mapped, turn(True, correlation_id="c-1"), {"wait": "soon", "rk": "desk4"})
    assert (error.fault.status, error.fault.error) == (400, "timeout.invalid")
    assert (error.entity, error.group) == (LAMP, "things")
    assert (error.headers["correlation-id"], error.headers["reply-key"]) == ("c-1", "desk4")


def test_a_failing_mapping_function_is_refused_with_entity_and_own_headers() -> None:
    mapped = reader(headerMapping={"parts": f"{PARTS}-{PARTS}"})
    error = error_of(mapped, turn(True, correlation_id="c-1"), {"list": "x," * 200})
    assert error.fault.error == "placeholder:unresolved"
    assert error.entity == LAMP
    assert error.headers["correlation-id"] == "c-1"


def test_internal_headers_cannot_be_mapped() -> None:
    mapped = reader(headerMapping={"ditto-origin": "elsewhere", "ditto-originator": "somebody"})
    headers = read(mapped, turn(True)).headers
    assert "ditto-origin" not in headers
    assert headers["ditto-originator"] == OWNER


@pytest.mark.parametrize(
    "value",
    [
        "topic:action,'eq','modify'",
        "feature:id,'eq','burner'",
        "resource:path,'eq','/features/burner/properties/on'",
        "resource:type,'eq','thing'",
        "thing:name,'eq','lamp-7'",
    ],
)
def test_a_filter_of_acknowledgement_requests_reads_the_signal(value: str) -> None:
    filtering = reader(acknowledgementRequests={"includes": ["site:seen"], "filter": f"fn:filter({value})"})
    signal = read(filtering, command("modify", "/features/burner/properties/on", True))
    assert signal.headers["requested-acks"] == ["site:seen"]
    signal = read(filtering, command("delete", "/attributes/on", name="lamp-8"))
    assert bool(signal.headers["requested-acks"]) is ("resource:type" in value)


def test_a_command_without_correlation_id_gets_a_generated_one() -> None:
    first, second = (read(reader(), turn(True)).headers["correlation-id"] for _ in range(2))
    assert len(first) == 36
    assert first != second


def test_headers_of_a_subscription_are_bounded() -> None:
    """Every element repeats them, so a client may put little there."""
    error = error_of(reader(), streaming("subscribeForPersistedEvents", {}, note="x" * 6000, correlation_id="c-1"))
    assert (error.fault.status, error.fault.error) == (431, "headers.too.large")
    assert error.entity == LAMP
    assert error.headers["correlation-id"] == "c-1"
    assert "note" not in error.headers


# default mappings


DEFAULTS = {"addresses": ["in"], "authorizationContext": [OWNER], "qos": 1}


def test_without_reply_target_the_usual_headers_are_mapped_on_types_that_carry_headers() -> None:
    made = connection(DEFAULTS, connectionType="mqtt-5")
    default = SourceReader(ReplyTargetPublisher(made, 0, Outbox(), PrometheusRegistry().meter("site"), lambda: NOW))
    asked = {"correlation-id": "c-1", "content-type": "text/plain", "reply-to": "desk/4", "other": "x"}
    headers = receive(default, turn(True), asked).signals[0].signal.headers
    assert {name: headers.get(name) for name in asked} == {**asked, "other": None}


def test_without_reply_target_nothing_is_mapped_on_mqtt_3() -> None:
    made = connection(DEFAULTS, connectionType="mqtt")
    default = SourceReader(ReplyTargetPublisher(made, 0, Outbox(), PrometheusRegistry().meter("site"), lambda: NOW))
    assert "reply-to" not in receive(default, turn(True), {"reply-to": "desk/4"}).signals[0].signal.headers


def test_a_reply_target_with_an_address_maps_no_default_headers() -> None:
    assert "reply-to" not in read(reader(type="mqtt-5", qos=1), turn(True), reply_to="desk/4").headers


def test_a_configured_mapping_overrides_the_default_one() -> None:
    mapping = {"reply-to": "{{ header:back }}"}
    made = connection({**DEFAULTS, "headerMapping": mapping}, connectionType="mqtt-5")
    own = SourceReader(ReplyTargetPublisher(made, 0, Outbox(), PrometheusRegistry().meter("site"), lambda: NOW))
    headers = (
        receive(own, turn(True), {"back": "desk/5", "reply-to": "desk/4", "correlation-id": "c-1"})
        .signals[0]
        .signal.headers
    )
    assert (headers["reply-to"], headers["correlation-id"]) == ("desk/5", "c-1")


# subjects of the sender


def test_constant_subjects_are_taken_in_their_order() -> None:
    received = receive(reader(authorizationContext=["acme:first", "acme:second"]), turn(True))
    assert received.subjects == ("acme:first", "acme:second")
    assert received.signals[0].signal.headers["ditto-originator"] == "acme:first"


def test_functions_of_a_subject_are_applied_without_placeholders_too() -> None:
    assert receive(reader(authorizationContext=["{{ fn:default('acme:first') }}"]), turn(True)).subjects == (
        "acme:first",
    )
    error = error_of(reader(authorizationContext=["{{ fn:delete() }}"]), turn(True))
    assert (error.fault.status, error.fault.error) == (400, "placeholder:unresolved")


def test_case_15_a_subject_comes_from_a_transport_header() -> None:
    named = reader(authorizationContext=["device:{{ header:device }}", OWNER])
    assert receive(named, turn(True), {"device": "lamp-7"}).subjects == ("device:lamp-7", OWNER)


def test_a_subject_that_cannot_be_resolved_is_an_error_even_beside_others() -> None:
    named = reader(authorizationContext=[OWNER, "device:{{ header:device }}"])
    error = error_of(named, turn(True, correlation_id="c-1"), {"reply-to": "desk/4"})
    assert (error.fault.status, error.fault.error) == (400, "placeholder:unresolved")
    assert error.headers["reply-to"] == "desk/4"


# enforcement

BY_HEADER = {"input": "{{ header:device_id }}", "filters": ["{{ thing:id }}", "{{ policy:id }}"]}


def test_case_11_a_thing_that_the_sender_may_not_act_for_is_refused() -> None:
    error = error_of(reader(enforcement=BY_HEADER), turn(True, correlation_id="c-1"), {"device_id": "acme.site:lamp-8"})
    assert (error.fault.status, error.fault.error) == (400, "connectivity:connection.id.enforcement.failed")
    assert (error.entity, error.group, error.headers["correlation-id"]) == (LAMP, "things", "c-1")


def test_case_12_a_policy_that_the_sender_may_not_act_for_is_refused_as_a_policy() -> None:
    payload = document("acme.site/lamp-7/policies/commands/retrieve")
    error = error_of(reader(enforcement=BY_HEADER), payload, {"device_id": "acme.site:lamp-8"})
    assert error.fault.error == "connectivity:connection.id.enforcement.failed"
    assert (error.entity, error.group) == (POLICY, "policies")


def test_case_13_a_sender_that_may_act_for_the_thing_passes() -> None:
    received = receive(reader(enforcement=BY_HEADER), turn(True), {"device_id": "acme.site:lamp-7"})
    assert received.error is None
    assert isinstance(received.signals[0].signal, Command)


def test_case_14_the_concrete_address_is_compared() -> None:
    by_address = {"input": "{{ source:address }}", "filters": ["in/{{ entity:name }}"]}
    assert receive(reader(enforcement=by_address), turn(True)).error is None
    error = error_of(reader(enforcement=by_address), command("modify", "/attributes/on", True, name="lamp-8"))
    assert error.fault.error == "connectivity:connection.id.enforcement.failed"


def test_streaming_commands_are_enforced_like_any_other() -> None:
    payload = streaming("subscribeForPersistedEvents", {})
    passed = receive(reader(enforcement=BY_HEADER), payload, {"device_id": "acme.site:lamp-7"})
    assert isinstance(passed.signals[0].signal, Subscribe)
    assert error_of(reader(enforcement=BY_HEADER), payload, {"device_id": "acme.site:lamp-8"}).entity == LAMP


def test_a_signal_without_an_entity_never_passes_an_enforcement() -> None:
    enforced = reader(enforcement=BY_HEADER)
    enforced.route.mapper.codec = FixedCodec(Request(SubscriptionKind.SEARCH, "s-1", 1, {"correlation-id": "c-1"}))
    error = error_of(enforced, b"{}", {"device_id": "acme.site:lamp-7"})
    assert error.fault.error == "connectivity:connection.id.enforcement.failed"
    assert (error.group, error.headers["correlation-id"]) == ("things", "c-1")


def test_an_enforcement_input_without_value_is_refused_before_the_payload_is_read() -> None:
    error = error_of(reader(enforcement=BY_HEADER), b"no json", {"reply-to": "desk/4"})
    assert (error.fault.status, error.fault.error) == (400, "placeholder:unresolved")
    assert error.headers["reply-to"] == "desk/4"


def test_filters_that_do_not_fit_the_entity_type_are_unresolved() -> None:
    for_things = {"input": "{{ header:device_id }}", "filters": ["{{ thing:id }}"]}
    payload = document("acme.site/lamp-7/policies/commands/retrieve")
    error = error_of(reader(enforcement=for_things), payload, {"device_id": "acme.site:lamp-7"})
    assert (error.fault.error, error.entity, error.group) == ("placeholder:unresolved", POLICY, "policies")


def sender_check(headers: Mapping[str, str], max_payload: int = 1 << 20, **more: Any) -> SenderCheck:
    """Return the sender check for the parts of a session's message."""
    (received_signal,) = receive(
        reader(max_payload, payloadMapping=["ReactiveStreamsIo"], **more), b"\x01", headers
    ).signals
    assert received_signal.sender_check is not None
    return received_signal.sender_check


def test_the_parts_of_a_session_request_are_read_like_deliveries() -> None:
    guard = sender_check({"site": "north"}, headerMapping={"site": "{{ header:site }}"})
    (received_signal,) = guard.read(turn(True, correlation_id="c-1")).signals
    assert isinstance(received_signal.signal, Command)
    assert dict(received_signal.signal.headers) == {"site": "north", "correlation-id": "c-1", "ditto-originator": OWNER}
    assert guard.refusal(None) is None


@pytest.mark.parametrize(
    ("payload", "error", "is_enforced"),
    [
        (turn(True), None, True),
        (command("modify", "/attributes/on", 1, name="lamp-8"), "connectivity:connection.id.enforcement.failed", False),
        (b"{", "json.invalid", True),
        (b" " * 1001, "connectivity:message.toolarge", True),
    ],
)
def test_the_parts_of_a_request_are_enforced_and_bounded_one_by_one(
    payload: bytes, error: str | None, is_enforced: bool
) -> None:
    guard = sender_check({"device_id": "acme.site:lamp-7"}, 1000, enforcement=BY_HEADER)
    found = guard.read(payload)
    assert (found.error.fault.error if found.error is not None else None, found.is_enforced) == (error, is_enforced)
    assert guard.refusal(LAMP) is None
    for other in (None, EntityId(EntityType.THING, "acme.site", "lamp-8")):
        assert guard.refusal(other) is not None


def test_an_enforcement_without_filters_refuses_every_sender() -> None:
    without_filters = reader(enforcement={"input": "{{ header:device_id }}"})
    error = error_of(without_filters, turn(True), {"device_id": "acme.site:lamp-7"})
    assert error.fault.error == "connectivity:connection.id.enforcement.failed"


# unreadable deliveries


def test_an_empty_payload_cannot_be_mapped() -> None:
    error = error_of(reader(), b"")
    assert (error.fault.status, error.fault.error) == (400, "connectivity:message.mapping.failed")
    assert (error.entity, error.group) == (None, "things")


def test_case_52_a_payload_beyond_the_limit_is_not_even_read() -> None:
    assert error_of(reader(max_payload=100), b"x" * 101).fault.status == 413
    assert error_of(reader(max_payload=100), b"x" * 101).fault.error == "connectivity:message.toolarge"
    assert error_of(reader(max_payload=100), b"x" * 100).fault.error == "json.invalid"


def test_case_32_a_malformed_streaming_payload_is_an_ordinary_error_about_its_entity() -> None:
    error = error_of(reader(), streaming("request", {"demand": 1}, correlation_id="c-1"))
    assert (error.fault.status, error.fault.error) == (400, "json.field.missing")
    assert (error.entity, error.headers["correlation-id"]) == (LAMP, "c-1")


def test_case_50_the_answer_to_an_unreadable_payload_keeps_transport_and_mapped_headers() -> None:
    mapped = reader(headerMapping={"reply-key": "{{ header:rk }}", "Reply-To": "{{ header:back }}"})
    headers = {"rk": "desk4", "reply-to": "desk/4", "back": "desk/5", "correlation-id": "c-1"}
    error = error_of(mapped, b"no json", headers)
    assert {name: error.headers[name] for name in ("reply-key", "reply-to", "correlation-id")} == {
        "reply-key": "desk4",
        "reply-to": "desk/5",
        "correlation-id": "c-1",
    }


@pytest.mark.parametrize(
    "payload",
    [b"no json", turn(True, timeout="soon"), command("modify", "/attributes/on", True, name="lamp-8"), b"x" * 1001],
    ids=["unreadable", "a header", "enforcement", "too large"],
)
def test_the_response_to_a_refused_message_may_be_addressed_by_its_sender(payload: bytes) -> None:
    by_sender = reader(
        1000,
        authorizationContext=["device:{{ header:device_id }}"],
        headerMapping={"reply-key": "desk/{{ request:subjectId }}"},
        enforcement=BY_HEADER,
    )
    headers = error_of(by_sender, payload, {"device_id": "acme.site:lamp-7"}).headers
    assert headers["reply-key"] == "desk/device:acme.site:lamp-7"
    assert headers["ditto-originator"] == "device:acme.site:lamp-7"


def test_headers_about_the_delivery_are_not_in_responses() -> None:
    error = error_of(reader(), b"no json", {"mqtt.topic": "in/lamp-7", "kafka.key": "k", "lang": "en"})
    assert {"mqtt.topic", "kafka.key"}.isdisjoint(error.headers)
    assert error.headers["lang"] == "en"


def test_the_headers_of_an_error_response_are_limited_like_those_of_a_command() -> None:
    error = error_of(reader(), b"no json", {"note": "x" * 6000, "reply-to": "desk/4", "correlation-id": "c-1"})
    assert error.headers == {"reply-to": "desk/4", "correlation-id": "c-1", "ditto-originator": OWNER}


def test_an_unreadable_message_refers_to_the_thing_in_the_transport_headers() -> None:
    assert error_of(reader(), b"no json", {"device_id": "acme.site:lamp-7"}).entity == LAMP
    assert error_of(reader(), b"no json", {"device_id": "no id"}).entity is None


def test_a_failing_mapping_only_leaves_out_headers_of_an_error_response() -> None:
    mapped = reader(headerMapping={"parts": f"{PARTS}-{PARTS}"})
    headers = {"list": "x," * 200, "reply-to": "desk/4"}
    assert error_of(mapped, b"no json", headers).headers["reply-to"] == "desk/4"


def test_an_incoming_error_response_has_no_signals() -> None:
    """Two services that answer each other's error responses would never stop."""
    received = receive(reader(), document("acme.site/lamp-7/things/twin/errors", value={"status": 404}))
    assert (received.signals, received.error) == ([], None)


def test_an_internal_error_while_reading_is_answered_and_not_raised() -> None:
    broken = reader()
    broken.route.mapper.codec = FixedCodec(RuntimeError("an internal error"))
    error = error_of(broken, turn(True), {"correlation-id": "c-1"})
    assert error.fault is INTERNAL_ERROR
    assert error.headers["correlation-id"] == "c-1"
