"""RawMessage: live messages as bare payloads."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappings.errors import DecodeError
from mappings.ids import EntityId, EntityType
from mappings.signals import Message
from tests.behaviours.codec import FEW
from tests.behaviours.mapper import MapperBehaviours, mapper, read, write

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
HEADERS = {"ditto-message-thing-id": "acme.site:lamp-7", "ditto-message-subject": "turn"}


class TestRawMessage(MapperBehaviours):
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


@FEW
@given(text=st.text(min_size=1, max_size=50))
def test_text_comes_out_as_it_went_in(text: str) -> None:
    codec = mapper("RawMessage")
    (message,) = read(codec, text.encode(), {**HEADERS, "content-type": "text/plain"})
    assert isinstance(message, Message)
    assert write(codec, message)[0].payload == text.encode()


def test_an_error_is_about_the_thing_that_the_headers_name() -> None:
    with pytest.raises(DecodeError) as caught:
        read(mapper("RawMessage"), b"on", {"ditto-message-thing-id": "acme.site:lamp-7"})
    assert caught.value.entity == LAMP
