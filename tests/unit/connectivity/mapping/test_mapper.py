"""One entry of a `payloadMapping`: conditions, block-lists and limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic.alias_generators import to_camel

from connectivity.connections.model import MappingDefinition
from connectivity.mapping.mapper import ConfiguredMapper, mappers_of
from mappings.errors import DecodeError, EncodeError, PlaceholderError
from mappings.mappers.base import PayloadMapper as BasePayloadMapper
from mappings.model.envelope import Envelope
from mappings.model.signals import Command, Complete, Event, Inbound, Next, Outbound, Response, SubscriptionKind
from mappings.options import InvalidMapperOptions
from mappings.placeholders.template import PlaceholderContext
from tests.support.in_process.service import LAMP, connection, source, turn
from tests.support.table import each_row

EMPTY = "application/vnd.eclipse-hono-empty-notification"
RESPONSE = Response(LAMP, "modify", "/attributes/on", 204, None, {"correlation-id": "c-1", "kind": "alarm"})


def mapper(
    engine: str = "Ditto", options: dict[str, Any] | None = None, **conditions: dict[str, str]
) -> ConfiguredMapper:
    definition = {"mappingEngine": engine, "options": options or {}}
    definition |= {to_camel(name): each for name, each in conditions.items()}
    return ConfiguredMapper("own", MappingDefinition.model_validate(definition))


def reads(by: ConfiguredMapper, payload: bytes, **headers: str) -> int:
    """Return how many signals a payload with these headers becomes."""
    envelope = Envelope(payload, {name.replace("_", "-"): value for name, value in headers.items()})
    return len(by.decode(envelope, PlaceholderContext(headers=envelope.headers) if by.reads_context else None))


def writes(by: ConfiguredMapper, signal: Outbound = RESPONSE) -> int:
    headers = signal.headers if not isinstance(signal.headers, bytes) else {}
    return len(by.encode(signal, PlaceholderContext(headers=headers)))


class Echo(BasePayloadMapper):
    """Returns a configured number of signals for every delivery."""

    def __init__(self, number: int = 1) -> None:
        super().__init__()
        self.number = number

    def decode(self, envelope: Envelope, session: Any) -> Sequence[Inbound]:
        return [Command(LAMP, "retrieve", "/", None, {})] * self.number

    def encode(self, signal: Outbound, session: Any) -> Sequence[Envelope]:
        elements = len(signal.elements) if isinstance(signal, Next) else 1
        return [Envelope(b"x")] * self.number * elements


def echoing(number: int) -> ConfiguredMapper:
    made = ConfiguredMapper()
    made.codec = Echo(number)
    return made


def test_without_a_payload_mapping_it_is_ditto() -> None:
    (only,) = mappers_of(connection(), ())
    assert (only.name, only.is_default) == ("Ditto", True)


def test_a_definition_overrides_a_wire_protocol_of_the_same_name() -> None:
    definitions = {"Ditto": {"mappingEngine": "Normalized", "options": {}}}
    made = connection(source(payloadMapping=["Ditto", "RawMessage"]), mappingDefinitions=definitions)
    first, second = mappers_of(made, made.sources[0].payload_mapping)
    assert (type(first.codec).__name__, first.is_default) == ("NormalizedCodec", False)
    assert type(second.codec).__name__ == "RawMessageCodec"


def test_an_invalid_definition_is_refused() -> None:
    with pytest.raises(InvalidMapperOptions):
        mapper("ConnectionStatus")
    with pytest.raises(PlaceholderError):
        mapper(incoming_conditions={"odd": "fn:nothing()"})


# conditions


@each_row(
    ("conditions", "kind", "expected"),
    [
        ({}, "alarm", 1),
        ({"one": "fn:filter(header:kind,'eq','alarm')"}, "alarm", 1),
        ({"one": "fn:filter(header:kind,'eq','alarm')"}, "report", 0),
        ({"one": "fn:filter(header:kind,'exists')", "two": "fn:filter(header:kind,'ne','alarm')"}, "report", 1),
        ({"one": "fn:filter(header:kind,'exists')", "two": "fn:filter(header:kind,'ne','alarm')"}, "alarm", 0),
        ({"one": "fn:upper()"}, "alarm", 1),
        ({"one": "fn:delete()"}, "alarm", 0),
        ({"one": "fn:replace('true','false')"}, "alarm", 0),
    ],
)
def test_every_condition_has_to_hold(conditions: dict[str, str], kind: str, expected: int) -> None:
    assert reads(mapper(incoming_conditions=conditions), turn(True), kind=kind) == expected
    answer = Response(LAMP, "modify", "/attributes/on", 204, None, {"kind": kind})
    assert writes(mapper(outgoing_conditions=conditions), answer) == expected


def test_conditions_apply_to_their_own_direction_only() -> None:
    never = {"never": "fn:delete()"}
    assert (reads(mapper(outgoing_conditions=never), turn(True)), writes(mapper(incoming_conditions=never))) == (1, 1)


def test_a_delivery_that_a_condition_excludes_is_not_read() -> None:
    assert reads(mapper(incoming_conditions={"never": "fn:delete()"}), b"{ no JSON") == 0


# content types and empty payloads


@pytest.mark.parametrize(
    ("by", "content_type", "expected"),
    [
        pytest.param(ConfiguredMapper(), EMPTY, 0, id="the default one"),
        pytest.param(ConfiguredMapper(), EMPTY.upper(), 1, id="letter for letter"),
        pytest.param(ConfiguredMapper(), "application/json", 1, id="any other"),
        pytest.param(mapper(options={"content-type-blocklist": "a/b, c/d"}), "c/d", 0, id="a list of its own"),
        pytest.param(mapper(options={"content-type-blocklist": "a/b"}), EMPTY, 1, id="instead of the default one"),
        pytest.param(mapper(options={"content-type-blocklist": ""}), EMPTY, 1, id="an empty list"),
    ],
)
def test_a_content_type_of_the_block_list_is_not_read(by: ConfiguredMapper, content_type: str, expected: int) -> None:
    assert reads(by, turn(True), content_type=content_type) == expected


def test_a_blocked_content_type_in_another_header_blocks_nothing() -> None:
    assert reads(ConfiguredMapper(), turn(True), about=EMPTY) == 1


def test_a_blocked_payload_may_be_empty_and_any_other_may_not() -> None:
    assert reads(ConfiguredMapper(), b"", content_type=EMPTY) == 0
    with pytest.raises(DecodeError) as caught:
        reads(ConfiguredMapper(), b"")
    assert caught.value.fault.error == "connectivity:message.mapping.failed"


def test_a_mapper_that_never_reads_payloads_takes_empty_ones() -> None:
    creating = mapper("ImplicitThingCreation", {"thing": {"thingId": "{{ header:device_id }}"}})
    envelope = Envelope(b"", {"device_id": str(LAMP)})
    assert len(creating.decode(envelope, PlaceholderContext(headers=envelope.headers))) == 1


# limits


def test_ten_results_are_accepted_and_eleven_are_refused() -> None:
    assert (reads(echoing(10), b"x"), writes(echoing(10))) == (10, 10)
    with pytest.raises(DecodeError, match="11 messages for one message, more than the limit of 10"):
        reads(echoing(11), b"x")
    with pytest.raises(EncodeError, match="more than the limit of 10") as caught:
        writes(echoing(11))
    assert caught.value.fault.error == "connectivity:message.mapping.failed"


def test_the_limit_applies_to_each_element_of_a_page() -> None:
    elements = [Event(LAMP, number, "2030-01-15T07:30:00Z", "modified", "/", b"{}", b"{}") for number in range(500)]
    several = Next(SubscriptionKind.HISTORY, "s-1", LAMP, {}, elements, {})
    assert (writes(ConfiguredMapper(), several), writes(echoing(10), several)) == (500, 5000)
    with pytest.raises(EncodeError, match="more than the limit of 5000"):
        writes(echoing(11), several)


def test_a_mapper_that_cannot_write_a_signal_returns_nothing() -> None:
    assert writes(mapper("Normalized"), Complete(SubscriptionKind.HISTORY, "s-1", LAMP, {})) == 0
