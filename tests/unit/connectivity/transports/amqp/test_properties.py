"""Reading and packing AMQP properties: every field type has a text, and reading never fails."""

from __future__ import annotations

import json
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectivity.transports.amqp.properties import DEEPEST, pack_properties, read_properties
from tests.support.dice import examples
from tests.support.table import each_row

HEADERS = 0x2000


def short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def long(content: bytes) -> bytes:
    return pack(">I", len(content)) + content


def table(*fields: tuple[bytes, bytes]) -> bytes:
    return long(b"".join(short(name) + value for name, value in fields))


def with_table(*fields: tuple[bytes, bytes]) -> bytes:
    return pack(">H", HEADERS) + table(*fields)


@each_row(
    ("field", "text"),
    [
        (b"t\x01", "true"),
        (b"t\x00", "false"),
        (b"b\xff", "-1"),
        (b"B\xff", "255"),
        (b"s" + pack(">h", -300), "-300"),
        (b"U" + pack(">h", -300), "-300"),
        (b"u" + pack(">H", 60_000), "60000"),
        (b"I" + pack(">i", -70_000), "-70000"),
        (b"i" + pack(">I", 4_000_000_000), "4000000000"),
        (b"l" + pack(">q", -(2**62)), str(-(2**62))),
        (b"L" + pack(">Q", 2**63), str(2**63)),
        (b"f" + pack(">f", 0.5), "0.5"),
        (b"d" + pack(">d", 1e100), "1e+100"),
        (b"d" + pack(">d", float("nan")), "nan"),
        (b"D" + pack(">Bi", 2, -1234), "-12.34"),
        (b"S" + long("nörth".encode()), "nörth"),
        (b"S" + long(b""), ""),
        (b"S" + long(b"\xff\x00"), "/wA="),
        (b"x" + long(b"bytes"), "bytes"),
        (b"x" + long(b"\xff"), "/w=="),
        (b"T" + pack(">q", 1_894_690_800), "2030-01-15T07:00:00Z"),
        (b"T" + pack(">q", 2**62), str(2**62)),
        (b"A" + long(b"t\x01" + b"S" + long(b"a") + b"V"), '[true,"a",null]'),
        (b"F" + table((b"n", b"b\x07"), (b"t", b"T" + pack(">q", 0))), '{"n":7,"t":"1970-01-01T00:00:00Z"}'),
        (b"F" + table((b"d", b"D" + pack(">Bi", 1, 5))), '{"d":"0.5"}'),
    ],
)
def test_a_field_of_every_type_is_a_text(field: bytes, text: str) -> None:
    assert read_properties(with_table((b"x", field), (b"after", b"S" + long(b"y")))) == {
        "x": text,
        "after": "y",
    }


@pytest.mark.parametrize("void", [b"V", b"\x00"])
def test_a_field_without_a_value_is_no_header(void: bytes) -> None:
    assert read_properties(with_table((b"x", void), (b"y", b"t\x01"))) == {"y": "true"}


def test_properties_count_more_than_fields_of_the_same_name() -> None:
    packed = (
        pack(">H", 0x8000 | HEADERS | 0x0400 | 0x0200 | 0x0080)
        + short(b"application/json")
        + table((b"content-type", b"S" + long(b"forged")), (b"reply-to", b"S" + long(b"forged")))
        + short(b"c-7")
        + short(b"replies/7")
        + short(b"m-7")
    )
    received = read_properties(packed)
    assert received == {
        "content-type": "application/json",
        "correlation-id": "c-7",
        "reply-to": "replies/7",
        "message-id": "m-7",
    }


def test_every_other_property_is_stepped_over() -> None:
    packed = (
        pack(">H", 0xFFFC)
        + short(b"text/plain")
        + short(b"gzip")
        + table((b"x", b"t\x01"))
        + b"\x02\x05"
        + short(b"c-7")
        + short(b"r-7")
        + short(b"60000")
        + short(b"m-7")
        + pack(">Q", 2**63)
        + short(b"type")
        + short(b"user")
        + short(b"app")
        + short(b"")
    )
    received = read_properties(packed)
    assert received == {
        "x": "true",
        "content-type": "text/plain",
        "correlation-id": "c-7",
        "reply-to": "r-7",
        "message-id": "m-7",
    }


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(b"?", id="of an unknown type"),
        pytest.param(b"S" + pack(">I", 99) + b"short", id="longer than its table"),
        pytest.param(b"I\x00", id="that ends early"),
        pytest.param(b"A" + pack(">I", 2**31), id="with a length beyond everything"),
        pytest.param(b"A" + b"".join(pack(">I", 5 * n) + b"A" for n in range(DEEPEST + 5, 0, -1)), id="too deep"),
    ],
)
def test_fields_before_an_unreadable_field_are_kept(broken: bytes) -> None:
    """Also the properties after the table, whose position follows from its length."""
    packed = pack(">H", HEADERS | 0x0400) + table((b"first", b"t\x01"), (b"x", broken)) + short(b"c-7")
    assert read_properties(packed) == {"first": "true", "correlation-id": "c-7"}


def test_a_text_that_is_no_utf_8_is_no_error() -> None:
    assert read_properties(pack(">H", 0x8000) + short(b"text/\xff")) == {"content-type": "text/\ufffd"}


@given(st.binary(max_size=200))
@settings(max_examples=examples(300))
def test_no_bytes_are_an_error(packed: bytes) -> None:
    for name, value in read_properties(packed).items():
        assert isinstance(name, str)
        assert isinstance(value, str)


@given(st.integers(0, 0xFFFF), st.binary(max_size=100))
def test_no_table_is_an_error(flags: int, fields: bytes) -> None:
    headers = read_properties(pack(">H", flags | HEADERS) + long(fields))
    assert all(isinstance(text, str) for pair in headers.items() for text in pair)


# The lowest flag says that more flags follow.
@given(st.integers(0, HEADERS // 2 - 1).map(lambda flags: 2 * flags), st.binary(max_size=100))
def test_a_malformed_table_value_keeps_the_headers_read_before_it(flags: int, value: bytes) -> None:
    packed = pack(">H", flags | HEADERS) + table((b"first", b"t\x01"), (b"x", value))
    assert read_properties(packed)["first"] == "true"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
# `CC` and `BCC` are not sent.
names = texts.filter(lambda name: name not in ("", "CC", "BCC"))


@given(st.dictionaries(names, texts, max_size=6), st.sampled_from(["", "content-type", "message-id"]))
def test_headers_arrive_as_they_were_sent(headers: dict[str, str], name: str) -> None:
    if name:
        headers[name] = "some text"
    assert read_properties(pack_properties(headers)) == headers


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"": "x"}, "the header name '' has 0 bytes"),
        ({"x" * 256: "y"}, "256 bytes, expected 1 to 255"),
        ({"x": "\ud800"}, "an unpaired surrogate at position 0"),
        ({"\udfff": "x"}, "an unpaired surrogate"),
    ],
)
def test_a_header_that_amqp_cannot_carry_is_named(headers: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        pack_properties(headers)


@pytest.mark.parametrize("name", ["content-type", "correlation-id", "reply-to", "message-id"])
@pytest.mark.parametrize(("number", "is_property"), [(127, True), (128, False)])
def test_a_text_that_is_too_long_for_a_property_is_in_the_table_alone(
    name: str, number: int, is_property: bool
) -> None:
    packed = pack_properties({name: "ö" * number})
    assert read_properties(packed) == {name: "ö" * number}
    assert packed.count("ö".encode() * number) == 1 + is_property


def test_json_inside_a_table_can_be_read_again() -> None:
    field = b"F" + table((b"list", b"A" + long(b"d" + pack(">d", 0.25) + b"S" + long('"ü"'.encode()))))
    assert json.loads(read_properties(with_table((b"x", field)))["x"]) == {"list": [0.25, '"ü"']}
