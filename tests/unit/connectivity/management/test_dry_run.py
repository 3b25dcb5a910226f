"""A dry run of a message: the report has its signals and their reply addresses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from connectivity.errors import OperationRefused
from connectivity.management.definition import SampleMessage
from connectivity.management.dry_run import WHY_NOT, dry_run, payload_as_json
from connectivity.validation.validator import parse
from tests.support.in_process.service import NOW, command, document, streaming, turn

SOURCE = {
    "addresses": ["site/up"],
    "qos": 1,
    "authorizationContext": ["acme:{{ header:line }}"],
    "headerMapping": {"reply-to": "{{ header:reply-to }}", "x-line": "{{ header:line | fn:upper() }}"},
    "replyTarget": {
        "address": "{{ header:reply-to }}/{{ connection:id }}",
        "headerMapping": {"correlation-id": "{{ header:correlation-id }}"},
        "expectedResponseTypes": ["response", "error"],
    },
}
DEVICE = """
function mapToDittoProtocolMsg(headers, textPayload) {
    return Ditto.buildDittoProtocolMsg('acme.site', 'lamp-7', 'things', 'twin', 'commands', 'modify', '/attributes/on',
        headers, JSON.parse(textPayload));
}
"""
SHORT = """
function mapFromDittoProtocolMsg(namespace, name, group, channel, criterion, action, path, headers, value, status) {
    return Ditto.buildExternalMsg({'x-short': 'yes'}, String(status), null, 'text/plain');
}
"""
SENT = {"line": "north", "reply-to": "answers"}


async def dry_run_report(
    payload: bytes, headers: Mapping[str, str] = SENT, address: str | None = None, **source: Any
) -> dict[str, Any]:
    """Return the dry-run report of a message at a source with these changed members."""
    definitions = source.pop("mappingDefinitions", {})
    connection = parse(
        {
            "id": "site",
            "connectionType": "mqtt-5",
            "connectionStatus": "open",
            "uri": "tcp://127.0.0.1:1883",
            "sources": [{**SOURCE, **source}],
            "mappingDefinitions": definitions,
        }
    )
    sample = SampleMessage(payload, headers, address=address)
    report = await dry_run(connection, sample, max_payload=1000, now=lambda: NOW)
    json.dumps(report, allow_nan=False)
    return report


async def test_a_dry_run_of_a_command_shows_its_signal_and_its_reply_addresses() -> None:
    shown = await dry_run_report(command("modify", "/attributes/on", True, correlation_id="c-7"))
    assert (shown["source"], shown["address"], shown["subjects"]) == (0, "site/up", ["acme:north"])
    [signal] = shown["signals"]
    assert (signal["topic"], signal["path"]) == ("acme.site/lamp-7/things/twin/commands/modify", "/attributes/on")
    assert (signal["value"], signal["mapper"]) == (True, "Ditto")
    assert signal["headers"]["x-line"] == "NORTH"
    assert signal["headers"]["ditto-originator"] == "acme:north"
    for kind, status in (("response", 204), ("error", 404)):
        [message] = signal["replies"][kind]["messages"]
        assert message["address"] == "answers/site"
        assert message["headers"]["correlation-id"] == "c-7"
        assert message["payload"]["status"] == status
    assert "error" not in shown


async def test_a_dry_run_of_an_unreadable_payload_shows_the_error_and_its_reply_address() -> None:
    shown = await dry_run_report(b"{ no json", {**SENT, "correlation-id": "c-8"})
    assert shown["signals"] == []
    assert (shown["error"]["status"], shown["error"]["error"]) == (400, "json.invalid")
    [message] = shown["error"]["replies"]["error"]["messages"]
    assert (message["address"], message["headers"]["correlation-id"]) == ("answers/site", "c-8")
    assert message["payload"]["value"]["error"] == "json.invalid"


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"enforcement": {"input": "{{ header:line }}", "filters": ["{{ thing:name }}"]}}, "id.enforcement.failed"),
        ({"authorizationContext": ["acme:{{ header:nobody }}"]}, "placeholder:unresolved"),
    ],
)
async def test_a_dry_run_refuses_a_forbidden_command_with_the_error_of_a_delivery(
    more: dict[str, Any], code: str
) -> None:
    shown = await dry_run_report(command("delete"), **more)
    assert shown["signals"] == []
    assert shown["error"]["error"].endswith(code)


async def test_a_dry_run_refuses_a_payload_that_is_too_large() -> None:
    assert (await dry_run_report(b"x" * 1001))["error"]["status"] == 413


@pytest.mark.parametrize(
    ("more", "headers", "reason"),
    [
        ({"replyTarget": {"enabled": False, "address": "x"}}, {}, "no_reply_target"),
        ({"replyTarget": {"address": "x", "expectedResponseTypes": ["nack"]}}, {}, "not_expected"),
        ({}, {"response_required": False}, "not_expected"),
        ({"headerMapping": {}}, {}, "address_unresolved"),
    ],
)
async def test_why_an_answer_is_not_sent_is_reported(
    more: dict[str, Any], headers: dict[str, Any], reason: str
) -> None:
    [signal] = (await dry_run_report(command("delete", **headers), **more))["signals"]
    assert signal["replies"]["response"] == {"nothing": WHY_NOT[reason]}


async def test_an_answer_that_cannot_be_written_is_reported_with_its_reason() -> None:
    [signal] = (await dry_run_report(command("delete"), {**SENT, "reply-to": "up/#"}))["signals"]
    assert "connectivity:message.sending.failed" in signal["replies"]["response"]["nothing"]


@pytest.mark.extra("javascript")
async def test_scripts_map_incoming_and_outgoing_messages() -> None:
    definitions = {
        "device": {"mappingEngine": "JavaScript", "options": {"incomingScript": DEVICE, "outgoingScript": SHORT}}
    }
    shown = await dry_run_report(b"17", payloadMapping=["device", "Ditto"], mappingDefinitions=definitions)
    [signal] = shown["signals"]
    assert (signal["mapper"], signal["value"]) == ("device", 17)
    [message] = signal["replies"]["response"]["messages"]
    assert (message["payload"], message["headers"]["x-short"]) == (204, "yes")
    # The other mapper fails, which does not affect the signal of the first one.
    assert shown["error"]["status"] == 400


async def test_a_subscription_shows_its_query_and_its_events() -> None:
    shown = await dry_run_report(streaming("subscribeForPersistedEvents", {"fromHistoricalRevision": 3}))
    [signal] = shown["signals"]
    assert signal["topic"].endswith("/streaming/subscribeForPersistedEvents")
    assert signal["value"]["from_revision"] == 3
    assert set(signal["replies"]) == {"created", "failed"}
    assert signal["replies"]["created"]["messages"][0]["address"] == "answers/site"


async def test_a_request_and_a_cancel_name_their_subscription() -> None:
    for action, value in (("request", {"subscriptionId": "s-1", "demand": 5}), ("cancel", {"subscriptionId": "s-1"})):
        [signal] = (await dry_run_report(streaming(action, value)))["signals"]
        assert signal["value"] == value
        assert set(signal["replies"]) == ({"failed"} if action == "request" else set())


@pytest.mark.parametrize(
    ("topic", "path", "replies"),
    [
        ("acme.site/lamp-7/things/live/messages/blink", "/inbox/messages/blink", {"response", "error"}),
        ("acme.site/lamp-7/things/live/commands/modify", "/attributes/on", {"response", "error"}),
        ("acme.site/lamp-7/things/live/events/modified", "/attributes/on", set()),
    ],
)
async def test_a_dry_run_shows_the_replies_of_live_signals(topic: str, path: str, replies: set[str]) -> None:
    [signal] = (await dry_run_report(document(topic, path, 1)))["signals"]
    assert (signal["topic"], set(signal["replies"])) == (topic, replies)


async def test_a_diverted_answer_names_its_target() -> None:
    mapping = {**SOURCE["headerMapping"], "divert-response-to-connection": "other"}  # type: ignore[dict-item]
    [signal] = (await dry_run_report(command("delete"), headerMapping=mapping))["signals"]
    assert signal["divertedTo"] == "other"


async def test_frames_of_a_session_are_shown_as_bytes_and_answered_by_a_goodbye() -> None:
    shown = await dry_run_report(bytes.fromhex("01 00 00"), payloadMapping=["ReactiveStreamsIO"])
    [signal] = shown["signals"]
    assert signal["value"] == {"bytes": "01 00 00"}
    [message] = signal["replies"]["error"]["messages"]
    assert message["headers"]["content-type"] == "application/vnd.rsio.v0"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b'{"on": 1}', {"on": 1}),
        (b"on", "on"),
        (b"1e999", "1e999"),
        (b"NaN", "NaN"),
        (b"[" * 100_000, "[" * 100_000),
        (b"\xff\x00", "/wA="),
    ],
)
def test_a_payload_is_shown_as_json_text_or_base64(written: bytes, shown: object) -> None:
    assert payload_as_json(written) == shown


async def test_an_address_may_be_given() -> None:
    assert (await dry_run_report(command("delete"), address="site/up/7"))["address"] == "site/up/7"


ONE_DEVICE: dict[str, Any] = {
    "addresses": ["mixers/+/up"],
    "authorizationContext": ["acme:devices"],
    "enforcement": {"input": "{{ source:address }}", "filters": ["mixers/{{ entity:name }}/up"]},
}
SAY_AN_ADDRESS = (
    "The sample was received at the source's first address, 'mixers/+/up', which is a filter: name the address that the "
    "sender publishes to (`--address`, or `address` of the sample)."
)


async def test_a_sample_refused_at_a_filter_requires_an_address() -> None:
    sent = command("modify", "/attributes/on", True, name="mixer-7")
    at_filter = (await dry_run_report(sent, **ONE_DEVICE))["error"]
    assert at_filter["error"] == "connectivity:connection.id.enforcement.failed"
    assert at_filter["description"].endswith(f"or change that enforcement. {SAY_AN_ADDRESS}")
    elsewhere = (await dry_run_report(sent, address="mixers/mixer-8/up", **ONE_DEVICE))["error"]
    assert elsewhere["description"].endswith("or change that enforcement.")
    assert (await dry_run_report(b"{ no json"))["error"].get("description") != SAY_AN_ADDRESS, "site/up is an address"
    assert "error" not in await dry_run_report(sent, address="mixers/mixer-7/up", **ONE_DEVICE)


@pytest.mark.parametrize(("kind", "name"), [("mqtt", "mqtt.topic"), ("mqtt-5", "mqtt.topic"), ("kafka", "kafka.topic")])
async def test_a_sample_has_the_header_that_the_transport_sets_from_the_address(kind: str, name: str) -> None:
    connection = parse(
        {
            "id": "site",
            "connectionType": kind,
            "connectionStatus": "open",
            "uri": "tcp://127.0.0.1:1883",
            "specificConfig": {"bootstrapServers": "127.0.0.1:9092"} if kind == "kafka" else {},
            "sources": [{"addresses": ["first"], "qos": 1, "authorizationContext": [f"acme:{{{{ header:{name} }}}}"]}],
        }
    )
    for sample, subject in (
        (SampleMessage(turn(True)), "acme:first"),
        (SampleMessage(turn(True), address="second"), "acme:second"),
        (SampleMessage(turn(True), {name: "third"}, address="second"), "acme:third"),
    ):
        shown = await dry_run(connection, sample, max_payload=1000, now=lambda: NOW)
        assert (shown["subjects"], "error" in shown) == ([subject], False)


async def test_a_missing_source_is_refused() -> None:
    connection = parse(
        {
            "id": "site",
            "connectionType": "mqtt-5",
            "connectionStatus": "open",
            "uri": "tcp://127.0.0.1:1883",
            "sources": [SOURCE],
        }
    )
    with pytest.raises(OperationRefused) as refused:
        await dry_run(connection, SampleMessage(b"", source=1), max_payload=1, now=lambda: NOW)
    assert (refused.value.fault.status, refused.value.problems[0].path) == (400, "sample.source")


async def test_a_dry_run_of_a_streamr_request_shows_the_request_without_its_key() -> None:
    definitions = {"tanks": {"mappingEngine": "Streamr", "options": {}}}
    request = json.dumps({"type": "resend", "stream": "tank", "sub": "a", "resend_last": 2, "authKey": "secret"})
    report = await dry_run_report(request.encode(), payloadMapping=["tanks"], mappingDefinitions=definitions)
    (signal,) = report["signals"]
    assert signal["value"] == {
        "type": "resend",
        "stream": "tank",
        "partition": 0,
        "sub": "a",
        "selection": {"count": 2},
    }
    (message,) = signal["replies"]["error"]["messages"]
    assert message["payload"][:3] == [0, 7, ""]
    assert "secret" not in json.dumps(report)
