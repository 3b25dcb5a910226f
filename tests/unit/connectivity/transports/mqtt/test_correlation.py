"""Correlation data of MQTT 5, which is binary, as the text of a header, and back."""

from __future__ import annotations

from base64 import urlsafe_b64encode

from hypothesis import example, given
from hypothesis import strategies as st

from connectivity.transports.base import OutboundMessage
from connectivity.transports.mqtt import properties as packed
from connectivity.transports.mqtt.mqtt5 import BINARY, Mqtt5
from connectivity.transports.mqtt.protocol_version import ReceivedPublish
from mappings.model.envelope import Envelope

AMBIGUOUS = st.text("AQUJDYmFzZTY0_-=/+ ", max_size=8).map(lambda text: BINARY + text)
IDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | AMBIGUOUS
DATA = st.binary(min_size=1) | AMBIGUOUS.map(str.encode)


def received(data: bytes) -> str:
    properties = packed.pack_binary(packed.CORRELATION_DATA, data)
    headers, _ = Mqtt5().headers_of(ReceivedPublish("ask", b"", 1, False, False, 7, properties))
    return headers["correlation-id"]


def sent(id: str) -> bytes:
    properties = Mqtt5().publication(OutboundMessage("answers", Envelope(b"", {"correlation-id": id}), 1)).properties
    data = packed.unpack(properties[packed.unpack_varint(properties, 0)[1] :]).correlation
    assert data is not None
    return data


@given(DATA)
def test_data_of_any_bytes_comes_back_from_its_id(data: bytes) -> None:
    if not data.isspace():
        assert sent(received(data)) == data


@given(IDS)
@example(BINARY)
@example(f"{BINARY}QUJD")
@example(f"{BINARY}AP/7")
def test_any_id_comes_back_from_its_data(id: str) -> None:
    if not id.isspace():
        assert received(sent(id)) == id


def test_data_that_is_not_utf_8_is_in_base64_without_characters_that_topics_do_not_allow() -> None:
    assert received(b"\x00\xff\xfb") == f"{BINARY}AP_7"


def test_nested_data_is_read_once_for_each_level() -> None:
    data = b"\xff"
    while len(data) < 60_000:
        data = BINARY.encode() + urlsafe_b64encode(data)
    assert sent(received(data)) == data
