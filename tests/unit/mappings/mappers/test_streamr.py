"""Streamr: requests are decoded, and an invalid one gets an error in the style of the definition."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappings.errors import DecodeError, EncodeError, Fault
from mappings.ids import EntityId, EntityType
from mappings.mappers import load_codec
from mappings.mappers.base import Codec
from mappings.model.envelope import Envelope
from mappings.model.signals import Created, ErrorResponse, SessionMessage, SubscriptionKind
from mappings.options import InvalidMapperOptions
from mappings.streamr.requests import Publish, SubscribeRequest

CODEC = load_codec("Streamr")


def read(document: Any, codec: Codec = CODEC) -> Any:
    """Return the decoded session message."""
    (message,) = codec.decode(
        Envelope(document if isinstance(document, bytes) else json.dumps(document).encode()), None
    )
    assert isinstance(message, SessionMessage)
    return message


def refused(document: Any, codec: Codec = CODEC) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        read(document, codec)
    return caught.value


def written(fault: Fault, codec: Codec = CODEC, **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    (envelope,) = codec.encode(ErrorResponse(None, "things", fault, named), None)
    return json.loads(envelope.payload)


def test_a_request_becomes_a_session_message() -> None:
    assert read({"type": "subscribe", "stream": "tank"}) == SessionMessage(SubscribeRequest("tank"), {})


@pytest.mark.parametrize("payload", [b"not json", b"null", b"[]", b"7", b""])
def test_case_x01_a_request_that_is_not_an_object_is_refused_with_the_text_of_the_protocol(payload: bytes) -> None:
    fault = refused(payload).fault
    assert (fault.status, fault.message) == (400, "Request is not a JSON object")


def test_an_error_names_its_stream_partition_and_subscription() -> None:
    error = refused({"type": "resend", "stream": "tank", "partition": 2, "sub": 7})
    assert error.fault.extra == {"stream": "tank", "partition": 2, "sub": 7}
    layer, type, sub, message = written(error.fault, correlation_id="c-1")
    assert (layer, type, sub) == (0, 7, "")
    assert message == {
        "error": error.fault.message,
        "status": 400,
        "code": "streamr:resend.options.unknown",
        "stream": "tank",
        "partition": 2,
        "sub": 7,
        "correlationId": "c-1",
    }


@pytest.mark.parametrize(
    ("shape", "payload"),
    [
        pytest.param("string", "Request is not a JSON object", id="string"),
        pytest.param("json-string", '{"error":"Request is not a JSON object"}', id="json-string"),
    ],
)
def test_case_x05_an_error_has_the_payload_that_the_definition_names(shape: str, payload: str) -> None:
    codec = CODEC.configure({"errorPayload": shape, "subIdFiller": None})
    assert written(refused(b"7").fault, codec) == [0, 7, None, payload]


def test_a_payload_that_is_too_large_is_reported_in_the_format_of_the_protocol() -> None:
    fault = Fault(
        413, "connectivity:message.toolarge", "The payload has 2000000 bytes, but at most 1048576 are allowed."
    )
    assert written(fault)[3] == {"error": "Request too large", "status": 413, "code": "streamr:request.toolarge"}


def test_a_definition_may_let_contents_be_any_text() -> None:
    request = {"type": "publish", "stream": "tank", "msg": "{nope"}
    assert refused(request).fault.error == "streamr:publish.message.notjson"
    codec = CODEC.configure({"acceptNonJson": True})
    assert read(request, codec).request == Publish("tank", "{nope")
    assert CODEC.terms.accept_non_json is False


def test_options_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(InvalidMapperOptions) as caught:
        CODEC.configure({"streams": {"tank": {"partitions": 0}}, "hash": "sha1"})
    assert [problem.steps for problem in caught.value.problems] == [
        ("streams", "tank", "partitions"),
        ("streams", "tank", "policyId"),
        ("hash",),
    ]


def test_the_codec_refuses_to_encode_a_session_reply() -> None:
    lamp = EntityId(EntityType.THING, "acme", "lamp")
    with pytest.raises(EncodeError):
        CODEC.encode(Created(SubscriptionKind.HISTORY, "k", lamp, {}), None)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_refusal(payload: bytes) -> None:
    """Bytes at random are no request."""
    with pytest.raises(DecodeError) as caught:
        CODEC.decode(Envelope(payload), None)
    assert 400 <= caught.value.fault.status < 500
