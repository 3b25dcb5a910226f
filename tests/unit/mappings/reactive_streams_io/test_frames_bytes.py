"""Varints: reactive-streams-io, serialization."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappings.errors import ProtocolError
from mappings.reactive_streams_io.frames import IncompleteFrame, read_varint, varint
from tests.support.reactive_streams_io.examples import longs, raw

VECTORS = [
    (0, "00"),
    (127, "7f"),
    (128, "80 01"),
    (300, "ac 02"),
    (16384, "80 80 01"),
    (2**32 - 1, "ff ff ff ff 0f"),
    (2**63 - 1, "ff ff ff ff ff ff ff ff 7f"),
]


@pytest.mark.parametrize(("value", "text"), VECTORS)
def test_a_varint_is_written_and_read_as_the_table_has_it(value: int, text: str) -> None:
    assert varint(value).hex(" ") == text
    assert read_varint(raw(f"aa {text} bb"), 1) == (value, 1 + len(raw(text)))


@given(longs, st.binary(max_size=3))
def test_a_written_varint_is_read_back_with_any_following_bytes(value: int, behind: bytes) -> None:
    written = varint(value)
    assert read_varint(written + behind, 0) == (value, len(written))
    for cut in range(len(written)):
        with pytest.raises(IncompleteFrame) as short:
            read_varint(written[:cut], 0)
        assert short.value.needed == cut + 1


@pytest.mark.parametrize("value", [-1, 2**63])
def test_a_number_outside_the_varint_range_raises_a_value_error(value: int) -> None:
    with pytest.raises(ValueError, match="expected 0 to"):
        varint(value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("8a 00", "shortest form"),
        ("80 80 00", "shortest form"),
        ("80 80 80 80 80 80 80 80 80 01", "more than 9 bytes"),
        ("ff ff ff ff ff ff ff ff ff", "more than 9 bytes"),
    ],
)
def test_an_invalid_varint_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        read_varint(raw(text), 0)
