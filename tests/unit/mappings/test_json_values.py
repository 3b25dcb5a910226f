"""JSON values whose numbers keep their text."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mappings.json_values import (
    WrittenFloat,
    decode_state,
    decode_value,
    encode_state,
    encode_value,
    nesting,
    parse_json,
    without_mark,
    without_strings,
)
from tests.support.cpu_budget import at_most
from tests.support.dice import examples

NUMBERS = ("8.4E37", "2e3", "1.0", "2000.0", "0.10", "-0.0", "1E-7", "0.00001", "3.141592653589793238", str(10**30))


@pytest.mark.parametrize("text", NUMBERS)
def test_a_number_keeps_its_text_at_every_place(text: str) -> None:
    for document in (text, f"[{text}]", f'{{"a":[1,{{"b":{text}}}],"c":"x"}}'):
        assert encode_value(decode_value(document)) == document.encode()
        assert encode_value(decode_value(document.encode())) == document.encode()


@pytest.mark.parametrize("text", NUMBERS)
def test_a_number_has_the_value_that_msgspec_reads(text: str) -> None:
    found, plain = decode_value(text), msgspec.json.decode(text)
    assert found == plain
    assert hash(found) == hash(plain)
    assert isinstance(found, type(plain))


def test_numbers_in_the_usual_notation_are_plain_floats() -> None:
    assert [type(each) for each in decode_value("[8.4E37, 0.5,1e-7]")] == [WrittenFloat, float, float]


def test_a_written_float_keeps_its_text_when_it_is_copied() -> None:
    number = decode_value("2e3")
    assert encode_value([copy.deepcopy(number), pickle.loads(pickle.dumps(number))]) == b"[2e3,2e3]"


def test_only_written_floats_get_a_text() -> None:
    with pytest.raises(TypeError, match="found object, expected a JSON value"):
        encode_value(object())


@pytest.mark.parametrize("text", ["", "{", "1e999", "-1e999", f"{10**400}.0", "nan"])
def test_invalid_json_is_refused(text: str) -> None:
    for read in (decode_value, parse_json):
        with pytest.raises(msgspec.DecodeError):
            read(text)


@pytest.mark.parametrize("number", ["1e300", "9.5e290", "5e-324", "1.2345678901234567e-300"])
def test_very_large_and_very_small_numbers_are_read_as_fast_as_others(number: str) -> None:
    text = f"[{','.join([number] * 100_000)}]".encode()
    with at_most(0.4):
        found = decode_value(text)
    assert found[-1] == parse_json(text)[-1] == float(number)
    with at_most(0.4):
        decode_state(encode_state(found))


@pytest.mark.parametrize("text", NUMBERS)
def test_a_state_keeps_its_numbers_and_is_marked_if_it_has_written_floats(text: str) -> None:
    state = decode_value(f'{{"a":[{text}]}}')
    stored = encode_state(state)
    assert stored.startswith(b" ") is isinstance(state["a"][0], WrittenFloat)
    assert without_mark(stored) == f'{{"a":[{text}]}}'.encode()
    assert msgspec.json.decode(stored) == state
    for kept in (stored, stored.decode()):
        assert encode_value(decode_state(kept)) == without_mark(stored)


def levels(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(levels, value), default=0) if isinstance(value, list) else 0


TEXTS = st.text(alphabet='ab"\\[]{},:', max_size=6)
DOCUMENTS = st.recursive(
    TEXTS | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


def nested(times: int, value: Any) -> Any:
    for number in range(times):
        value = [value, '[{"'] if number % 3 else {"\\": value}
    return value


@settings(max_examples=examples(250), deadline=None)
@given(st.integers(0, 20), DOCUMENTS)
@example(7, [])
@example(8, [])
@example(8, 1)
@example(200, [[], [[[]], {}]])
def test_nesting_is_that_of_the_parsed_value(times: int, value: Any) -> None:
    document = nested(times, value)
    assert nesting(json.dumps(document).encode()) == levels(document)


def bare(value: Any) -> str:
    match value:
        case dict():
            return "{" + ",".join(f":{bare(member)}" for member in value.values()) + "}"
        case list():
            return "[" + ",".join(map(bare, value)) + "]"
        case _:
            return "" if isinstance(value, str) else str(value)


@settings(max_examples=examples(250), deadline=None)
@given(DOCUMENTS)
@example(['\\"', "\\\\", {'"\\': ["]", -1]}])
def test_without_strings_only_numbers_and_punctuation_remain(value: Any) -> None:
    assert without_strings(json.dumps(value, separators=(",", ":")).encode()) == bare(value).encode()


@pytest.mark.parametrize("read", [parse_json, decode_value, decode_state])
@pytest.mark.parametrize("text", [b'"\xff"', b' {"\xff":1.50}', b"{"])
def test_a_text_that_is_no_json_is_refused_with_one_error(read: Callable[[bytes], Any], text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        read(text)
