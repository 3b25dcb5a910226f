"""The table of frames and how they are written: reactive-streams-io, frames."""

from __future__ import annotations

import json

import pytest

from mappings.reactive_streams_io.frames import (
    CODES,
    LAYOUTS,
    TRACKED,
    Frame,
    OnNext,
    OnNextPacked,
    RequestFrame,
    encode,
)
from tests.support.reactive_streams_io.examples import EXAMPLES, Example
from tests.support.table import each_row


@each_row("example", EXAMPLES, ids=str)
def test_a_frame_is_written_as_its_worked_example(example: Example) -> None:
    assert encode(example.frame, example.element_size).hex(" ") == example.raw


def test_every_frame_has_an_example() -> None:
    assert {type(example.frame) for example in EXAMPLES} == set(CODES)


def test_every_layout_names_each_member_of_its_frame() -> None:
    assert {kind: len(kind.__struct_fields__) for kind in CODES} == {
        layout.kind: len(layout.fields) for layout in LAYOUTS.values()
    }


def test_no_code_starts_a_json_text() -> None:
    for code in LAYOUTS:
        with pytest.raises((json.JSONDecodeError, UnicodeDecodeError)):
            json.loads(bytes([code]) + b"1")
        assert chr(code) not in '{["-0123456789tfn \t\r\n'


def test_positions_count_the_frames_of_subscriptions_alone() -> None:
    assert {CODES[kind] for kind in TRACKED} == {0x11, 0x12, 0x13, *range(0x81, 0x88)}


@pytest.mark.parametrize(
    ("frame", "size"),
    [
        (OnNext(1, b"abc"), 2),
        (OnNextPacked(1, [b"ab", b"c"]), 2),
        (OnNextPacked(1, []), 2),
        (OnNextPacked(1, [b"ab"]), 0),
        (RequestFrame(-1, 1), 0),
        (RequestFrame(1, 2**63), 0),
    ],
)
def test_a_frame_that_the_protocol_cannot_encode_raises_a_value_error(frame: Frame, size: int) -> None:
    with pytest.raises(ValueError, match="found"):
        encode(frame, size)
