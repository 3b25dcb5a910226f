"""Detection of absent readers: mappings.model.absence."""

from __future__ import annotations

import pytest

from mappings.model.absence import AbsenceDetector


@pytest.mark.parametrize(
    ("times", "is_gone"),
    [
        pytest.param((0, 1, 2), False, id="three in a moment"),
        pytest.param((0, 31), False, id="two in a while"),
        pytest.param((0, 1, 30), True, id="three in half a minute"),
        pytest.param((0, 10, 20, 29.9), False, id="not long enough"),
        pytest.param((0, 10, None, 20, 31, 49.9), False, id="one was received in between"),
        pytest.param((0, 10, None, 20, 31, 50), True, id="long enough since one was received"),
    ],
)
def test_a_reader_is_absent_after_three_undelivered_messages_over_half_a_minute(
    times: tuple[float | None, ...], is_gone: bool
) -> None:
    undelivered = AbsenceDetector()
    last = False
    for time in times:
        if time is None:
            undelivered.clear()
        else:
            last = undelivered.note(time)
    assert last is is_gone
    assert repr(undelivered).startswith(
        f"<AbsenceDetector {len(times) - (times.index(None) + 1 if None in times else 0)}, since "
    )
