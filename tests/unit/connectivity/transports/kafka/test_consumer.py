"""The limit on records per second, with a fake clock."""

from __future__ import annotations

import pytest

from connectivity.transports.kafka.consumer import Throttle
from tests.support.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(6_000)
    monkeypatch.setattr("connectivity.transports.kafka.consumer.time.monotonic", clock.now)
    return clock


def test_case_51_a_second_has_so_many_records_and_no_more(clock: Clock) -> None:
    throttle = Throttle(10)
    assert (throttle.pause(), throttle.remaining) == (0, 10)
    throttle.took(10)
    clock.advance(0.25)
    assert throttle.pause() == 0.75
    clock.advance(0.75)
    assert (throttle.pause(), throttle.remaining) == (0, 10)


def test_case_51_a_throttle_counts_the_minutes_with_pauses(clock: Clock) -> None:
    throttle = Throttle(10)
    throttle.pause()
    assert throttle.minutes == 0
    for _ in range(90):
        throttle.took(10)
        throttle.pause()
        throttle.pause()
        clock.advance(1)
        throttle.pause()
    assert throttle.minutes == 2


def test_without_a_limit_records_are_not_delayed(clock: Clock) -> None:
    throttle = Throttle(None)
    throttle.took(1_000_000)
    assert (throttle.pause(), throttle.minutes) == (0, 0)
