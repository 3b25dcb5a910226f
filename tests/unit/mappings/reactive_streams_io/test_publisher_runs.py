"""Elements of one size that were made together: reactive-streams-io, packing."""

from __future__ import annotations

import pytest

from mappings.reactive_streams_io.publisher import PackedElements

RUN = PackedElements(b"aabbccdd", 2)


def test_a_run_is_the_sequence_of_its_elements() -> None:
    assert (len(RUN), list(RUN)) == (4, [b"aa", b"bb", b"cc", b"dd"])
    assert (RUN[0], RUN[-1]) == (b"aa", b"dd")
    assert b"cc" in RUN
    with pytest.raises(IndexError):
        RUN[4]


@pytest.mark.parametrize(("start", "stop"), [(0, 2), (1, 3), (2, 9), (3, 1), (4, 9), (None, -1)])
def test_a_slice_of_packed_elements_is_packed_elements(start: int | None, stop: int) -> None:
    part = RUN[start:stop]
    assert isinstance(part, PackedElements)
    assert list(part) == list(RUN)[start:stop]


def test_a_run_has_whole_elements_that_lie_next_to_each_other() -> None:
    with pytest.raises(ValueError, match="3 bytes"):
        PackedElements(b"abc", 2)
    with pytest.raises(ValueError, match="elements of 0"):
        PackedElements(b"", 0)
    with pytest.raises(ValueError, match="step of 2"):
        RUN[::2]
