"""The error messages for invalid messages."""

from __future__ import annotations

import re

import pytest

from mappings.ditto import errors
from mappings.ditto.document import read_message
from mappings.errors import DecodeError, Fault
from tests.support.table import each_row

LONG = "x" * 10_000


def test_the_texts_are_the_protocol_s_own() -> None:
    assert errors.field_missing("topic").message == "JSON did not include required </topic> field!"
    assert errors.wrong_type("demand", "2", "Long").message == 'Value <"2"> for </demand> is not of type <Long>!'
    assert errors.not_convertible(1.5, "a long") == Fault(
        400, "json.format.invalid", "This JSON value is not a long: 1.5"
    )
    assert errors.not_json(b"{").message == "Failed to parse JSON string '{'!"


def test_unstorable_json_is_reported_with_the_storable_limits() -> None:
    fault = errors.not_storable(b'{"value": 9223372036854775808}')
    assert fault.message == errors.not_json(b'{"value": 9223372036854775808}').message
    assert "integers of up to 64 bits" in (fault.description or "")
    assert "200 levels of nesting" in (fault.description or "")


@each_row(
    "fault",
    [
        errors.wrong_type("path", [LONG], "String"),
        errors.not_convertible({LONG: LONG}, "an object"),
        errors.not_json(LONG.encode()),
        errors.not_json("ä".encode() * 5000),
        errors.nul_in_key(f"\0{LONG}"),
        errors.nul_in_text(f"\0{LONG}"),
        errors.unknown_path(LONG),
        errors.invalid_id("things", LONG),
    ],
    ids=lambda fault: fault.error,
)
def test_a_long_quotation_in_an_error_is_truncated(fault: Fault) -> None:
    assert "…" in fault.message
    assert len(fault.message) < 300


def test_bytes_that_are_no_text_can_be_quoted() -> None:
    assert errors.not_json(b"\xff{").message == "Failed to parse JSON string '\ufffd{'!"


def test_an_invalid_id_is_reported_with_the_error_code_of_its_group() -> None:
    assert errors.invalid_id("policies", "a").message == "Policy ID 'a' is not valid!"
    assert errors.invalid_id("policies", "a").error == "policies:id.invalid"
    assert errors.looks_like_response(204).status == 422


@each_row(
    ("payload", "reason"),
    [
        (b'{"topic": "a"', "The text ends too early"),
        (b"{'topic': 'a'}", r"\(byte 1\)"),
        (b'{"topic": "a",}', r"\(byte 14\)"),
        (b"[1]", "^Expected a JSON object.$"),
        (b"[" * 5_000, "200 levels of nesting"),
        (b'{"topic": "\xff"}', "must be UTF-8 text"),
        (b'{"topic": 5, "path": "/"}', "^Expected a text.$"),
    ],
)
def test_the_description_of_unreadable_json_has_reason_and_position(payload: bytes, reason: str) -> None:
    with pytest.raises(DecodeError) as refused:
        read_message(payload)
    assert re.search(reason, refused.value.fault.description or "")
