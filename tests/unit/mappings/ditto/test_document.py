"""Valid and invalid messages of the Ditto protocol."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mappings.ditto.document import compact, is_storable, parse_value, read_message
from mappings.ditto.errors import STORABLE_HINT
from mappings.errors import DecodeError
from mappings.json_values import MAX_NESTING
from tests.support.dice import examples


def depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


def numbers(value: Any) -> list[int | float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for member in value for number in numbers(member)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def is_kept(document: Any) -> bool:
    """The same question, asked of the parsed document."""
    return depth(document) <= MAX_NESTING + 1 and all(
        -(2**63) <= number < 2**63 if isinstance(number, int) else math.isfinite(number) for number in numbers(document)
    )


NUMBERS = st.from_regex(r"\A-?(?:0|[1-9][0-9]{0,24})(?:\.[0-9]{1,22})?(?:[eE][+-]?[0-9]{1,4})?\Z")
JSON = st.recursive(
    NUMBERS | st.sampled_from(["true", "null", '"12345678901234567890"', '"1e400\\"[{"', '"ä"', '"\\\\"']),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda members: f"[{','.join(members)}]")
        | st.lists(inner, max_size=4).map(lambda members: "{" + ",".join(f'"a":{member}' for member in members) + "}")
    ),
    max_leaves=12,
)


@settings(max_examples=examples(250), deadline=None)
@given(JSON)
@example("9223372036854775807")
@example("-9223372036854775808")
@example("9223372036854775808")
@example("[1e308, 1e309]")
@example("0.000000000000000000001e400")
@example("1" + "0" * 308 + ".0")
@example("1" + "0" * 309 + ".0")
@example("[" * 201 + "]" * 201)
@example("[" * 202 + "]" * 202)
@example('{"a":[{}]}' + " " * 3)
def test_the_quick_check_agrees_with_a_check_of_the_parsed_document(text: str) -> None:
    # The library's own parser keeps the first of two equal members where it must not; "a" is repeated on purpose.
    document = json.loads(text, object_pairs_hook=lambda pairs: [value for _, value in pairs])
    assert is_storable(text.encode()) == is_kept(document)


def test_text_that_is_not_utf_8_is_not_sound() -> None:
    assert is_storable('"ä"'.encode())
    assert not is_storable('"ä"'.encode("latin-1"))
    assert not is_storable(b'"\xed\xa0\x80"')


def test_white_space_goes_and_spelling_stays() -> None:
    assert compact(msgspec.Raw(b' { "a" : [ 1.50 ,\n\t-0, "x  y" ] } ')) == b'{"a":[1.50,-0,"x  y"]}'


def test_no_value_and_null_are_two_things() -> None:
    assert not read_message(b'{"topic":"a","path":"b"}').value
    assert bytes(read_message(b'{"topic":"a","path":"b","value":null}').value) == b"null"
    assert parse_value(msgspec.Raw(b"")) is None


def test_a_decode_error_keeps_the_entity_and_headers_already_read() -> None:
    payload = b'{"topic":"acme.site/pol-7/policies/commands/delete","headers":{"correlation-id":"c-1"}}'
    with pytest.raises(DecodeError) as caught:
        read_message(payload)
    error = caught.value
    assert (str(error.entity), error.group) == ("acme.site:pol-7", "policies")
    assert error.headers == {"correlation-id": "c-1"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ('"/"', "9223372036854775808"),
        ('"/"', "1e400"),
        ('"/"', "[" * 201 + "]" * 201),
        ("5", "9223372036854775808"),
    ],
)
def test_unstorable_json_is_reported_with_the_storable_limits(path: str, value: str) -> None:
    with pytest.raises(DecodeError) as raised:
        read_message(f'{{"topic": "a/b/things/twin/commands/modify", "path": {path}, "value": {value}}}'.encode())
    assert raised.value.fault.error == "json.invalid"
    assert raised.value.fault.description == STORABLE_HINT
