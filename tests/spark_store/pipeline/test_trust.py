"""How far a clock is believed that jumps, stops and is set right again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from spark_store.pipeline.trust import first_look, look
from tests.clock import Clock

NOW = datetime(2030, 1, 15, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NONE = timedelta(0)
RIGHT = NONE
JUMPED = 400 * DAY
STEADILY = [(HOUR, RIGHT, NONE)]

Step = tuple[timedelta, timedelta, timedelta]
"""So much is measured; then the clock is wrong by so much; what is believed is wrong by so much then."""


@pytest.mark.parametrize(
    "steps",
    [
        [*STEADILY, *STEADILY],
        [(7 * DAY, RIGHT, NONE)],
        # Corrected a little, each time.
        [(HOUR, timedelta(seconds=50), timedelta(seconds=50)), (HOUR, timedelta(seconds=100), timedelta(seconds=100))],
        # Ahead, and noticed at once; steadily so for less than a day, and for a day.
        [*STEADILY, (NONE, JUMPED, NONE), (HOUR, JUMPED, NONE), (22 * HOUR, JUMPED, NONE), (HOUR, JUMPED, JUMPED)],
        # A look so rare that a day has passed since the last one says nothing of a clock that has jumped meanwhile.
        [(7 * DAY, JUMPED, NONE), (7 * DAY, JUMPED, JUMPED)],
        # Not steadily: further ahead, or part of the way back.
        [(HOUR, JUMPED, NONE), (23 * HOUR, JUMPED + DAY, NONE), (HOUR, JUMPED + DAY, NONE)],
        [(HOUR, JUMPED, NONE), (23 * HOUR, DAY, NONE), (HOUR, DAY, NONE), (23 * HOUR, DAY, DAY)],
        # Set right again, as if nothing had been.
        [(HOUR, JUMPED, NONE), (HOUR, RIGHT, NONE), (HOUR, RIGHT, NONE)],
        # Behind: no later time is believed than what the clock says.
        [(HOUR, -DAY, -DAY), (HOUR, -DAY, -DAY), (HOUR, RIGHT, -DAY), (23 * HOUR, RIGHT, -DAY), (HOUR, RIGHT, NONE)],
    ],
)
def test_a_clock_that_went_ahead_is_believed_after_a_steady_day(steps: list[Step]) -> None:
    seconds, right = Clock(), NOW
    last = first_look(NOW, NOW, seconds.now())
    for number, (passed, wrong, expected) in enumerate(steps):
        right += passed
        last = look(last, right + wrong, seconds.advance(passed.total_seconds()))
        assert last.believed - right == expected, number
        assert last.ahead == (wrong - expected or None)


@pytest.mark.parametrize(
    ("stopped", "believed"),
    [(HOUR, NONE), (DAY, NONE), (3 * DAY, -2 * DAY), (-DAY, NONE)],
    ids=["short", "a day", "longer", "the clock was set back"],
)
def test_a_day_of_a_stop_is_believed_and_all_of_it_after_a_steady_day(stopped: timedelta, believed: timedelta) -> None:
    begun = first_look(NOW - stopped, NOW, 5.0)
    assert begun.believed - NOW == believed
    seconds, later = 5.0, NOW
    for _ in range(23):
        later, seconds = later + HOUR, seconds + 3600
        begun = look(begun, later, seconds)
        assert begun.believed - later == believed
    assert look(begun, later + HOUR, seconds + 3600).ahead is None


def test_a_lake_on_which_nobody_has_looked_yet_believes_the_clock() -> None:
    assert first_look(None, NOW, 5.0).believed == NOW
