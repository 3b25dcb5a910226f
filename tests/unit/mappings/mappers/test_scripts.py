"""Inputs of scripts, and their valid results."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from mappings.errors import DecodeError, EncodeError
from mappings.mappers.scripts import (
    MAX_SCRIPT,
    Scripts,
    incoming_argument,
    incoming_envelopes,
    outgoing_argument,
    outgoing_envelopes,
    script,
)
from mappings.model.envelope import Envelope
from mappings.options import InvalidMapperOption
from tests.support.table import each_row

ENVELOPE = Envelope(b'{"temp": 21}', {"content-type": "application/json", "device": "pump-7"})


def external(**members: Any) -> str:
    """Return one result of an outgoing script."""
    return json.dumps([{"headers": {}, "contentType": None, "text": None, "binary": None, **members}])


def test_an_incoming_script_gets_headers_text_bytes_and_content_type() -> None:
    argument = json.loads(incoming_argument(ENVELOPE))
    assert argument == {
        "headers": {"content-type": "application/json", "device": "pump-7"},
        "text": '{"temp": 21}',
        "binary": base64.b64encode(ENVELOPE.payload).decode(),
        "contentType": "application/json",
    }


@pytest.mark.parametrize(("payload", "text"), [(b"\xff\x00a", "\ufffd\x00a"), ("ä😀".encode(), "ä😀")])
def test_bytes_that_are_no_text_are_marked_in_the_text(payload: bytes, text: str) -> None:
    assert json.loads(incoming_argument(Envelope(payload)))["text"] == text


def test_an_incoming_script_gets_the_text_in_the_charset_of_the_content_type() -> None:
    envelope = Envelope("Grüße".encode("latin-1"), {"content-type": "text/plain;charset=ISO-8859-1"})
    assert json.loads(incoming_argument(envelope))["text"] == "Grüße"


@pytest.mark.parametrize(
    ("content_type", "payload"),
    [
        ("text/plain; charset=ISO-8859-1", "Grüße".encode("latin-1")),
        ("text/plain; charset=us-ascii", "Grüße".encode()),
        (None, "Grüße".encode()),
    ],
)
def test_the_text_of_an_outgoing_script_is_sent_in_the_charset_of_its_content_type(
    content_type: str | None, payload: bytes
) -> None:
    (envelope,) = outgoing_envelopes(external(text="Grüße", contentType=content_type))
    assert envelope.payload == payload


def test_the_results_of_an_incoming_script_keep_their_bytes_and_the_headers_of_the_delivery() -> None:
    found = incoming_envelopes('[{"topic":"a"},{"n":1.50}]', ENVELOPE)
    assert found == [Envelope(b'{"topic":"a"}', ENVELOPE.headers), Envelope(b'{"n":1.50}', ENVELOPE.headers)]


@pytest.mark.parametrize("results", ["", "{", "{}", "[1", "\x00", "[" * 5000])
def test_results_that_are_no_array_are_a_decode_error(results: str) -> None:
    with pytest.raises(DecodeError, match=r"connectivity:message\.mapping\.failed"):
        incoming_envelopes(results, ENVELOPE)


def test_more_than_ten_results_are_an_error() -> None:
    assert len(incoming_envelopes(json.dumps([{}] * 10), ENVELOPE)) == 10
    with pytest.raises(DecodeError, match="produced 11 messages, more than the limit of 10"):
        incoming_envelopes(json.dumps([{}] * 11), ENVELOPE)
    with pytest.raises(EncodeError, match="produced 11 messages, more than the limit of 10"):
        outgoing_envelopes(json.dumps(json.loads(external(text="a")) * 11))


def test_an_outgoing_script_gets_the_message_of_the_ditto_codec() -> None:
    assert outgoing_argument(Envelope('{"value":"ä"}'.encode())) == '{"value":"ä"}'


@pytest.mark.parametrize(
    ("members", "envelope"),
    [
        ({"text": "ä"}, Envelope("ä".encode())),
        ({"binary": "AP8=", "text": None}, Envelope(b"\x00\xff")),
        ({"text": "", "contentType": "text/csv"}, Envelope(b"", {"content-type": "text/csv"})),
        (
            {"text": "a", "contentType": "text/csv", "headers": {"Content-Type": "x", "n": "1"}},
            Envelope(b"a", {"n": "1", "content-type": "text/csv"}),
        ),
        ({"text": "a", "headers": {"content-type": "x"}}, Envelope(b"a", {"content-type": "x"})),
        ({"text": "a", "headers": {"mqtt.topic": "x/y", "KAFKA.key": "z", "ok": "1"}}, Envelope(b"a", {"ok": "1"})),
    ],
)
def test_an_outgoing_result_becomes_an_envelope(members: dict[str, Any], envelope: Envelope) -> None:
    assert outgoing_envelopes(external(**members)) == [envelope]


@each_row(
    "results",
    [
        '[{"headers":{},"contentType":null,"text":"\\ud800","binary":null}]',
        '[{"headers":{"a":1},"contentType":null,"text":"a","binary":null}]',
        '[{"headers":{},"contentType":null,"text":"a","binary":"?"}]',
        '[{"headers":{},"contentType":null,"text":"a","binary":null,"more":1}]',
        external(text="a", headers={"a\nb": "c"}),
        external(text="a", headers={"a": "b\r\nc"}),
        external(text="a", headers={"": "c"}),
        "[null]",
        "nothing",
    ],
)
def test_an_outgoing_result_that_cannot_be_sent_is_an_encode_error(results: str) -> None:
    with pytest.raises(EncodeError, match=r"connectivity:message\.mapping\.failed"):
        outgoing_envelopes(results)


def test_a_script_option_is_kept_and_a_blank_script_is_empty() -> None:
    assert script("a" * MAX_SCRIPT) == "a" * MAX_SCRIPT
    assert script(" \n") == ""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, "a string"),
        (None, "a string"),
        ("ä" * (MAX_SCRIPT // 2 + 1), f"at most {MAX_SCRIPT} bytes"),
        ("'\ud83d'", "text without unpaired surrogates"),
    ],
)
def test_an_invalid_script_is_refused(value: object, expected: str) -> None:
    with pytest.raises(InvalidMapperOption) as caught:
        script(value)
    assert [problem.expected for problem in caught.value.problems] == [expected]


def test_scripts_are_loaded_in_order() -> None:
    assert Scripts("a", "b").sources == ("a", "b")
    assert Scripts(outgoing="b").sources == ("b",)
