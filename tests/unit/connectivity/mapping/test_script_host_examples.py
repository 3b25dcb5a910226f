"""Example scripts of operators: text and bytes in, CSV out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from connectivity.connections.model import MappingDefinition
from connectivity.mapping.mapper import ConfiguredMapper
from connectivity.mapping.script_host import HostedScripts, ScriptHost
from connectivity.mapping.script_protocol import ScriptLimits
from mappings.errors import DecodeError, EncodeError
from mappings.ids import EntityId, EntityType
from mappings.mappers import load_codec
from mappings.mappers.scripts import Scripts
from mappings.model.envelope import Envelope
from mappings.model.signals import Command, Response, TwinEvent

pytestmark = pytest.mark.extra("javascript")

PUMP = EntityId(EntityType.THING, "org.acme", "pump-7")

WEATHER = """
function mapToDittoProtocolMsg(headers, textPayload, bytePayload, contentType) {
    if (contentType !== 'application/json') {
        return null;
    }
    const reading = JSON.parse(textPayload);
    const features = {
        temperature: {properties: {value: parseFloat(reading.temp)}},
        humidity: {properties: {value: reading.hum}},
    };
    return Ditto.buildDittoProtocolMsg(
        'org.acme', headers['device_id'], 'things', 'twin', 'commands', 'modify', '/features', headers, features);
}
"""

SENSOR = """
function mapToDittoProtocolMsg(headers, textPayload, bytePayload, contentType) {
    const view = new DataView(bytePayload);
    const set = (feature, value) => Ditto.buildDittoProtocolMsg(
        'org.acme', 'pump-7', 'things', 'twin', 'commands', 'modify',
        `/features/${feature}/properties/value`, {'response-required': false}, value);
    return [set('temperature', view.getInt16(0) / 100), set('pressure', view.getUint16(2))];
}
"""

CSV = """
const cell = (value) => typeof value === 'string' ? `"${value.replaceAll('"', '""')}"` : `${value}`;
function mapFromDittoProtocolMsg(namespace, name, group, channel, criterion, action, path, dittoHeaders, value, status) {
    if (criterion !== 'events') {
        return null;
    }
    const line = [`${namespace}:${name}`, action, path, JSON.stringify(value)].map(cell).join(',');
    return Ditto.buildExternalMsg({name}, line + '\\r\\n', null, 'text/csv; charset=utf-8');
}
"""


@pytest.fixture
async def host() -> AsyncIterator[ScriptHost]:
    made = ScriptHost(ScriptLimits(seconds=10.0))
    yield made
    await made.close()


async def decoded(scripts: HostedScripts, payload: bytes, headers: dict[str, str]) -> list[Any]:
    codec = load_codec("JavaScript")
    envelopes = await scripts.incoming(Envelope(payload, headers))
    return [signal for envelope in envelopes for signal in codec.decode(envelope, codec.session())]


async def test_a_device_that_sends_json_of_its_own_sets_features(host: ScriptHost) -> None:
    scripts = HostedScripts(Scripts(WEATHER), host)
    headers = {"content-type": "application/json", "device_id": "pump-7"}
    (command,) = await decoded(scripts, '{"temp": "23.42 °C", "hum": 78}'.encode(), headers)
    assert isinstance(command, Command)
    assert (command.entity, command.action, command.path) == (PUMP, "modify", "/features")
    assert json.loads(command.value or b"") == {
        "temperature": {"properties": {"value": 23.42}},
        "humidity": {"properties": {"value": 78}},
    }


async def test_a_message_that_the_script_returns_nothing_for_is_dropped(host: ScriptHost) -> None:
    assert await decoded(HostedScripts(Scripts(WEATHER), host), b"x", {"content-type": "text/plain"}) == []


async def test_a_device_that_sends_bytes_sets_two_properties_with_one_message(host: ScriptHost) -> None:
    commands = await decoded(HostedScripts(Scripts(SENSOR), host), bytes.fromhex("08bd02f8"), {})
    assert [(command.path, command.value) for command in commands] == [
        ("/features/temperature/properties/value", b"22.37"),
        ("/features/pressure/properties/value", b"760"),
    ]
    assert commands[0].headers["response-required"] is False


async def test_an_error_of_the_script_has_its_message(host: ScriptHost) -> None:
    with pytest.raises(DecodeError, match="RangeError: out of bound") as caught:
        await decoded(HostedScripts(Scripts(SENSOR), host), b"", {})
    assert caught.value.fault.error == "connectivity:message.mapping.failed"


async def test_events_are_sent_as_csv_lines_and_responses_are_dropped(host: ScriptHost) -> None:
    scripts = HostedScripts(Scripts(outgoing=CSV), host)
    codec = load_codec("JavaScript")
    event = TwinEvent(PUMP, 3, "2030-01-15T07:30:00.250000Z", "modified", "/attributes/note", b'"a \\"b\\""', {})
    assert await scripts.outgoing(codec.encode(event, codec.session())) == [
        Envelope(
            b'"org.acme:pump-7","modified","/attributes/note","""a \\""b\\"""""\r\n',
            {"name": "pump-7", "content-type": "text/csv; charset=utf-8"},
        )
    ]
    response = Response(PUMP, "modify", "/attributes/note", 204, None, {})
    assert await scripts.outgoing(codec.encode(response, codec.session())) == []


@pytest.mark.parametrize(
    ("options", "directions"), [({"outgoingScript": CSV}, (False, True)), ({"incomingScript": WEATHER}, (True, False))]
)
async def test_a_direction_without_a_script_is_not_passed_to_the_process(
    options: dict[str, str], directions: tuple[bool, bool], host: ScriptHost
) -> None:
    definition = MappingDefinition.model_validate({"mappingEngine": "JavaScript", "options": options})
    mapper = ConfiguredMapper("csv", definition, host)
    assert (mapper.must_prepare, mapper.must_finish) == directions


async def test_messages_are_mapped_in_their_order_and_one_that_fails_fails_all(host: ScriptHost) -> None:
    scripts = HostedScripts(
        Scripts(outgoing="mapFromDittoProtocolMsgWrapper = (m) => m && [1, 2].map((n) => ({textPayload: `${m}${n}`}))"),
        host,
    )
    texts = [
        envelope.payload for envelope in await scripts.outgoing([Envelope(b'"a"'), Envelope(b"null"), Envelope(b"3")])
    ]
    assert texts == [b"a1", b"a2", b"31", b"32"]
    with pytest.raises(EncodeError):
        await scripts.outgoing([Envelope(b'"a"'), Envelope(b"{")])
