"""RawMessage: live messages as bare payloads."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappings.ditto.live import MAX_MESSAGE_PAYLOAD
from mappings.errors import DecodeError
from mappings.ids import EntityId, EntityType
from mappings.json_values import MAX_NESTING
from mappings.model.signals import Message
from tests.contract.codec import FEW
from tests.contract.payload_mapper import MapperBehaviors, mapper, read, write

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
HEADERS = {"ditto-message-thing-id": "acme.site:lamp-7", "ditto-message-subject": "turn"}


class TestRawMessage(MapperBehaviors):
    name = "RawMessage"
    headers: ClassVar = {
        **HEADERS,
        "content-type": "application/json",
        "ditto-message-direction": "TO",
        "ditto-message-feature-id": "bulb",
        "status": "200",
    }


@FEW
@given(payload=st.binary(min_size=1, max_size=100))
def test_bytes_come_out_as_they_went_in(payload: bytes) -> None:
    codec = mapper("RawMessage")
    (message,) = read(codec, payload, {**HEADERS, "content-type": "image/png"})
    assert isinstance(message, Message)
    (envelope,) = write(codec, message)
    assert (envelope.payload, envelope.header("content-type")) == (payload, "image/png")


@pytest.mark.parametrize("template", ["{{ header:content-type }}", "{{ header:no }}"])
@pytest.mark.parametrize("headers", [{}, {"content-type": ""}])
def test_a_payload_without_a_content_type_comes_out_as_it_went_in(template: str, headers: dict[str, str]) -> None:
    codec = mapper("RawMessage", {"incomingMessageHeaders": {"content-type": template}})
    (message,) = read(codec, b"x", {**HEADERS, **headers})
    assert isinstance(message, Message)
    (envelope,) = write(codec, message)
    assert (envelope.payload, envelope.header("content-type")) == (b"x", "application/octet-stream")


@FEW
@given(text=st.text(min_size=1, max_size=50))
def test_text_comes_out_as_it_went_in(text: str) -> None:
    codec = mapper("RawMessage")
    (message,) = read(codec, text.encode(), {**HEADERS, "content-type": "text/plain"})
    assert isinstance(message, Message)
    assert write(codec, message)[0].payload == text.encode()


@pytest.mark.parametrize("status", [{}, {"status": "200"}], ids=["message", "answer"])
@pytest.mark.parametrize("subject", ["bl\nink", "blink\x7f", "b" * 257])
def test_a_subject_is_one_that_the_ditto_protocol_knows_too(subject: str, status: dict[str, str]) -> None:
    with pytest.raises(DecodeError) as caught:
        read(mapper("RawMessage"), b"on", {**HEADERS, "ditto-message-subject": subject, **status})
    assert caught.value.fault.error == "messages:subject.invalid"


@pytest.mark.parametrize("status", [{}, {"status": "200"}], ids=["message", "answer"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ditto-message-subject", "lamps//turn"),
        ("ditto-message-subject", "/turn"),
        ("ditto-message-subject", "turn/"),
        ("ditto-message-feature-id", "bulb/2"),
        ("ditto-message-feature-id", "/"),
    ],
)
def test_a_subject_or_feature_that_the_path_of_a_message_cannot_have_is_refused(
    name: str, value: str, status: dict[str, str]
) -> None:
    """A client of the Ditto protocol could not read the message, or not answer it."""
    with pytest.raises(DecodeError) as caught:
        read(mapper("RawMessage"), b"on", {**HEADERS, name: value, **status})
    assert caught.value.fault.error == "connectivity:message.mapping.failed"
    assert f"'{name}' is '{value}'" in caught.value.fault.message


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream"])
@pytest.mark.parametrize("status", [{}, {"status": "200"}], ids=["message", "answer"])
def test_a_value_is_no_larger_than_the_ditto_protocol_has_it(status: dict[str, str], content_type: str) -> None:
    with pytest.raises(DecodeError) as caught:
        read(mapper("RawMessage"), b"x" * 400_000, {**HEADERS, "content-type": content_type, **status})
    assert (caught.value.fault.status, caught.value.fault.error) == (413, "messages:payload.toolarge")


def test_a_value_may_be_as_large_as_the_ditto_protocol_has_it() -> None:
    (message,) = read(mapper("RawMessage"), b"x" * (MAX_MESSAGE_PAYLOAD - 2), {**HEADERS, "content-type": "text/plain"})
    assert isinstance(message, Message)
    assert len(message.value or b"") == MAX_MESSAGE_PAYLOAD


def test_a_json_value_is_nested_no_deeper_than_the_ditto_protocol_has_it() -> None:
    headers = {**HEADERS, "content-type": "application/json"}
    deepest = b"[" * MAX_NESTING + b"]" * MAX_NESTING
    (message,) = read(mapper("RawMessage"), deepest, headers)
    assert isinstance(message, Message)
    assert message.value == deepest
    with pytest.raises(DecodeError) as caught:
        read(mapper("RawMessage"), b"[%b]" % deepest, headers)
    assert caught.value.fault.error == "json.invalid"


def test_text_with_half_of_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(DecodeError) as caught:
        read(mapper("RawMessage"), b"+2AA-", {**HEADERS, "content-type": "text/plain; charset=utf-7"})
    assert caught.value.fault.error == "connectivity:message.mapping.failed"
    assert caught.value.entity == LAMP


def test_an_error_is_about_a_live_message_of_the_thing_that_the_headers_name() -> None:
    with pytest.raises(DecodeError) as caught:
        read(mapper("RawMessage"), b"on", {"ditto-message-thing-id": "acme.site:lamp-7"})
    assert caught.value.entity == LAMP
    assert caught.value.channel == "live"


def test_json_is_read_and_written_in_the_charset_of_its_content_type() -> None:
    codec, payload = mapper("RawMessage"), '"Grüße"'.encode("latin-1")
    (message,) = read(codec, payload, {**HEADERS, "content-type": "application/json; charset=ISO-8859-1"})
    assert isinstance(message, Message)
    assert message.value == '"Grüße"'.encode()
    assert write(codec, message)[0].payload == payload
