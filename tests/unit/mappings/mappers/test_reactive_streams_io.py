"""reactive-streams-io: messages are received as bytes; an error without a session is a goodbye."""

from __future__ import annotations

import pytest

from mappings.errors import EncodeError, Fault
from mappings.mappers import load_codec
from mappings.model.envelope import Envelope
from mappings.model.signals import Complete, ErrorResponse, SessionMessage, SubscriptionKind
from mappings.reactive_streams_io.options import RsioOptions

CODEC = load_codec("ReactiveStreamsIO")


@pytest.mark.parametrize("payload", [b"", b"\x01\x00\x00", b"{}", b"\xff" * 9])
def test_a_payload_becomes_a_session_message_unchanged(payload: bytes) -> None:
    assert CODEC.decode(Envelope(payload, {"reply-to": "a"}), None) == (SessionMessage(payload, {}, has_parts=True),)


def test_an_error_is_a_goodbye() -> None:
    fault = Fault(413, "connectivity:message.toolarge", "The payload has 9 bytes, but at most 8 are allowed.")
    (envelope,) = CODEC.encode(ErrorResponse(None, "things", fault, {}), None)
    reason = b"413 connectivity:message.toolarge The payload has 9 bytes, but at most 8 are allowed."
    assert envelope.payload == bytes([3, len(reason)]) + reason


def test_no_other_event_is_written_outside_a_session() -> None:
    with pytest.raises(EncodeError):
        CODEC.encode(Complete(SubscriptionKind.HISTORY, "k", None, {}), None)


def test_a_definition_has_options() -> None:
    assert CODEC.terms == RsioOptions()
    assert CODEC.configure({"tck": True}).terms == RsioOptions(has_test_publishers=True)
