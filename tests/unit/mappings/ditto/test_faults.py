"""The words for what is wrong with a message."""

from __future__ import annotations

from mappings.ditto import faults
from mappings.errors import Fault
from tests.support.table import each_row

LONG = "x" * 10_000


def test_the_texts_are_the_protocol_s_own() -> None:
    assert faults.field_missing("topic").message == "JSON did not include required </topic> field!"
    assert faults.wrong_type("demand", "2", "Long").message == 'Value <"2"> for </demand> is not of type <Long>!'
    assert faults.not_convertible(1.5, "a long") == Fault(
        400, "json.format.invalid", "This JSON value is not a long: 1.5"
    )
    assert faults.not_json(b"{").message == "Failed to parse JSON string '{'!"


def test_json_that_cannot_be_kept_is_told_what_could_be() -> None:
    fault = faults.not_sound(b'{"value": 9223372036854775808}')
    assert fault.message == faults.not_json(b'{"value": 9223372036854775808}').message
    assert "integers have 64 bits at most" in (fault.description or "")
    assert "200 deep" in (fault.description or "")


@each_row(
    "fault",
    [
        faults.wrong_type("path", [LONG], "String"),
        faults.not_convertible({LONG: LONG}, "an object"),
        faults.not_json(LONG.encode()),
        faults.not_json("ä".encode() * 5000),
        faults.nul_in_key(f"\0{LONG}"),
        faults.nul_in_text(f"\0{LONG}"),
        faults.unknown_path(LONG),
        faults.invalid_id("things", LONG),
    ],
    ids=lambda fault: fault.error,
)
def test_what_is_quoted_is_cut(fault: Fault) -> None:
    assert "…" in fault.message
    assert len(fault.message) < 300


def test_bytes_that_are_no_text_can_be_quoted() -> None:
    assert faults.not_json(b"\xff{").message == "Failed to parse JSON string '\ufffd{'!"


def test_an_invalid_id_is_told_in_the_words_of_its_group() -> None:
    assert faults.invalid_id("policies", "a").message == "Policy ID 'a' is not valid!"
    assert faults.invalid_id("policies", "a").error == "policies:id.invalid"
    assert faults.looks_like_response(204).status == 422
