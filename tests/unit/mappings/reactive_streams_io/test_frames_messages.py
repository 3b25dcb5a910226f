"""Frames of a message that are decoded without its session."""

from __future__ import annotations

import pytest

from mappings.reactive_streams_io.frames import SESSION, begins_session, envelope, is_parting, is_session


def test_an_envelope_carries_the_content_type_and_the_session() -> None:
    assert envelope(b"\x03\x00").headers == {"content-type": "application/vnd.rsio.v0"}
    assert envelope(b"\x03\x00", "ab" * 8).headers[SESSION] == "ab" * 8


@pytest.mark.parametrize(("text", "expected"), [("01 00 00", True), ("12 01 01", False), ("", False)])
def test_a_session_starts_with_a_clients_hello(text: str, expected: bool) -> None:
    assert begins_session(bytes.fromhex(text)) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("03 00", True),
        ("b0 01 03 00", True),
        ("b0 80 01 03 00", True),
        ("b0 03", False),
        ("12 01 01", False),
        ("", False),
    ],
)
def test_a_goodbye_is_known_after_its_number_too(text: str, expected: bool) -> None:
    assert is_parting(bytes.fromhex(text)) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a" * 15, False), ("a" * 16, True), ("F0" * 32, True), ("a" * 65, False), ("g" * 16, False), ("", False)],
)
def test_a_session_is_named_by_hexadecimal_digits(text: str, expected: bool) -> None:
    assert is_session(text) is expected
