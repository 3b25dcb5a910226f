"""Sliding windows, with a clock that tests set."""

from __future__ import annotations

import pytest

from connectivity.monitoring.windows import WINDOWS, CountSnapshot, SecondClock, WindowedCount
from tests.support.clock import Clock as Hands
from tests.support.dice import dice


@pytest.fixture
def hands() -> Hands:
    return Hands(100_000)


def moved(hands: Hands, clock: SecondClock, seconds: float) -> None:
    hands.advance(seconds)
    clock.tick()


def test_the_latest_count_is_in_every_window(hands: Hands) -> None:
    clock = SecondClock(hands.now)
    count = WindowedCount(clock)
    count.add()
    count.add(4)
    assert count.read() == CountSnapshot((5, 5, 5), 100_000)
    assert count.total == 5


@pytest.mark.parametrize(
    ("seconds", "found"),
    [
        (49, (1, 1, 1)),
        (60, (0, 1, 1)),
        (3_500, (0, 1, 1)),
        (3_600, (0, 0, 1)),
        (82_000, (0, 0, 1)),
        (86_400, (0, 0, 0)),
    ],
)
def test_a_count_leaves_each_window_when_its_time_is_over(hands: Hands, seconds: float, found: tuple[int, ...]) -> None:
    clock = SecondClock(hands.now)
    count = WindowedCount(clock)
    count.add()
    moved(hands, clock, seconds)
    assert count.read() == CountSnapshot(found, 100_000)


def test_counting_works_while_the_clock_does_not_move(hands: Hands) -> None:
    count = WindowedCount(SecondClock(hands.now))
    hands.advance(30)
    count.add()
    assert count.read().windows == (1, 1, 1)


def test_a_reset_empties_the_windows_and_keeps_the_total(hands: Hands) -> None:
    count = WindowedCount(SecondClock(hands.now))
    count.add(3)
    count.reset()
    assert count.read() == CountSnapshot()
    count.add()
    assert (count.read().windows, count.total) == ((1, 1, 1), 4)


def test_a_count_that_never_grew_keeps_no_buckets(hands: Hands) -> None:
    clock = SecondClock(hands.now)
    count = WindowedCount(clock)
    moved(hands, clock, 1_000)
    assert count.read() == CountSnapshot()
    assert count._buckets is None


def test_a_sum_of_count_snapshots_has_the_latest_second() -> None:
    assert CountSnapshot((1, 2, 3), 10) + CountSnapshot((4, 5, 6), 12) + CountSnapshot() == CountSnapshot((5, 7, 9), 12)


def test_windows_agree_with_a_list_of_all_timestamps(hands: Hands) -> None:
    """Compared with a list of all timestamps and the buckets of each window."""
    random_source = dice("windows")
    clock = SecondClock(hands.now)
    count, moments = WindowedCount(clock), []
    for _ in range(2_000):
        moved(hands, clock, random_source.choice((0, 0, 1, 3, 9, 31, 200, 4_000)))
        for _ in range(random_source.randrange(3)):
            count.add()
            moments.append(clock.second)
        if random_source.random() < 0.3:
            expected = tuple(
                sum(clock.second // window.seconds - moment // window.seconds < window.buckets for moment in moments)
                for window in WINDOWS
            )
            assert count.read() == CountSnapshot(expected, moments[-1] if moments else None)
