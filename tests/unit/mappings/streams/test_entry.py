"""Stream messages: nine items, the content a string, and checks when they are sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.streamr.errors import UnknownVersion
from mappings.streams.entry import StreamEntry, encode_content, encode_entry, time_to_live
from tests.support.dice import examples
from tests.support.streamr_frames import FrameRefused, decode_content, read_message
from tests.support.table import each_row

MESSAGE = StreamEntry("tank", 0, 1_700_000_000_000, 0, 10, 7, encode_content('{"v":1}'))
ARRAY: list[Any] = [28, "tank", 0, 1_700_000_000_000, 0, 10, 7, 27, '{"v":1}']


@settings(max_examples=examples(100), deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_case_s04_a_content_is_json_in_json_to_the_letter(text: str) -> None:
    content = encode_content(text)
    assert decode_content(content) == text
    written = encode_entry(StreamEntry("tank", 0, 1, 0, 10, 7, content))
    assert json.loads(written)[8] == text
    assert written.endswith(b"," + content + b"]")


def test_version_29_is_the_same_and_unsigned() -> None:
    assert json.loads(encode_entry(MESSAGE, 29)) == [29, *ARRAY[1:], 0, None, None]
    assert read_message([29, *ARRAY[1:], 1, "0xf00", "0xba5"]) == MESSAGE


@each_row("version", [27, 30, 31, 32, 33, 0, -1, 28.5, "28", None, True, [28], {}])
def test_another_version_is_reported_and_the_known_ones_are_named(version: Any) -> None:
    with pytest.raises(UnknownVersion, match="expected 28 or 29") as refused:
        read_message([version, *ARRAY[1:]])
    known = {27: "27, which is binary", 30: "30, which has no offsets"}
    assert known.get(version if isinstance(version, int) else 0, "found") in refused.value.fault.message


@pytest.mark.parametrize("length", [6, 7, 8, 10, 12])
def test_an_array_of_another_length_is_refused(length: int) -> None:
    """Version 28 began with six items, then seven, both without the partition."""
    with pytest.raises(FrameRefused, match="version 28 has 9"):
        read_message([*ARRAY, 0, None, None][:length])


@each_row(
    ("index", "value"),
    [
        (1, 5),
        (1, None),
        (2, "0"),
        (2, 1.5),
        (3, None),
        (4, "0"),
        (5, None),
        (5, True),
        (6, "7"),
        (6, False),
        (7, 28),
        (7, 11),
        (7, "27"),
        (8, {"v": 1}),
        (8, None),
        (8, 5),
    ],
)
def test_an_item_of_another_type_is_refused(index: int, value: Any) -> None:
    items = list(ARRAY)
    items[index] = value
    with pytest.raises(FrameRefused):
        read_message(items)


@pytest.mark.parametrize("items", [None, {}, "x", 28, []])
def test_an_entry_that_is_not_a_filled_array_is_refused(items: Any) -> None:
    with pytest.raises(FrameRefused):
        read_message(items)


@pytest.mark.parametrize(
    ("retention", "now", "left"),
    [(60, 1_000, 60), (60, 31_000, 30), (60, 31_999, 29), (60, 60_500, 1), (60, 99_000, 1)],
)
def test_the_time_to_live_is_the_remaining_retention(retention: float, now: int, left: int) -> None:
    assert time_to_live(1_000, retention, now) == left
