"""Content types of payloads."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from mappings.model.envelope import ContentType, Envelope, parse_content_type
from tests.support.table import each_row


@each_row(
    ("text", "expected"),
    [
        ("text/plain", ContentType("text/plain")),
        ("Text/Plain; Charset=ISO-8859-1", ContentType("text/plain", "iso8859-1")),
        ("text/plain;charset=utf-16", ContentType("text/plain", "utf-16")),
        ('text/plain; charset="latin-1"', ContentType("text/plain", "iso8859-1")),
        ("text/plain; charset=ISO-8859-1; format=flowed", ContentType("text/plain", "iso8859-1")),
        ("text/plain;  format=flowed ;\tcharset=ISO-8859-1 ", ContentType("text/plain", "iso8859-1")),
        ("text/plain; charset=klingon", ContentType("text/plain")),
        ("text/plain; charset=", ContentType("text/plain")),
        ("text/plain; charset=\0", ContentType("text/plain")),
        ("text/plain; charset=punycode", ContentType("text/plain")),
        ("text/plain; charset=IDNA", ContentType("text/plain")),
        ("text/plain; charset=unicode_escape", ContentType("text/plain")),
        ("application/json; format=flowed", ContentType("application/json")),
        ("", ContentType("")),
    ],
)
def test_a_content_type_is_read(text: str, expected: ContentType) -> None:
    assert parse_content_type(text) == expected


def test_long_content_types_are_not_kept() -> None:
    tracemalloc.start()
    try:
        for number in range(20):
            assert parse_content_type(f"TEXT/{number}{'a' * 100_000}").is_text
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1 << 20


def test_json_has_many_names() -> None:
    assert [parse_content_type(text).is_json for text in ("application/json", "a/b+json; x=y", "text/json-ish")] == [
        True,
        True,
        False,
    ]
    assert parse_content_type("text/csv").is_text
    assert not parse_content_type("application/text").is_text


@given(st.text(max_size=40))
def test_anything_is_some_content_type(text: str) -> None:
    assert parse_content_type(f"text/plain; charset={text}").media_type == "text/plain"


@each_row(
    ("content_type", "payload", "text"),
    [
        ("application/json; charset=ISO-8859-1", '"Grüße"'.encode("latin-1"), '"Grüße"'),
        ("application/json;charset=utf-16", '"Grüße 😀"'.encode("utf-16"), '"Grüße 😀"'),
        ("application/json; charset=utf-8", '"Grüße"'.encode(), '"Grüße"'),
        ("application/json; charset=utf-16", b'"in ASCII"', '"in ASCII"'),
        ("application/json; charset=utf-16-le", '"a"'.encode("utf-16-le"), '"a"'),
        ("application/json; charset=cp500", '"a"'.encode("cp500"), '"a"'),
        ("application/json; charset=iso-2022-jp", '"日本"'.encode("iso-2022-jp"), '"日本"'),
        ("application/json; charset=ISO-2022-KR", '"한국"'.encode("iso-2022-kr"), '"한국"'),
        ("application/json", '"Grüße"'.encode(), '"Grüße"'),
        ("application/json; charset=klingon", '"Grüße"'.encode(), '"Grüße"'),
        ("application/json; charset=us-ascii", '"Grüße"'.encode(), '"Grüße"'),
    ],
)
def test_the_charset_of_the_content_type_says_how_a_text_is_read(content_type: str, payload: bytes, text: str) -> None:
    assert Envelope(payload, {"Content-Type": content_type}).utf8().decode() == text


def test_a_payload_without_headers_is_read_as_it_is() -> None:
    assert Envelope(b"\xff").utf8() == b"\xff"
