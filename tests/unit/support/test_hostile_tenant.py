"""The rule that decides whether a tenant is harmed by another one."""

from __future__ import annotations

import pytest

from tests.support.hostile_tenant.judgment import (
    Answered,
    Bounds,
    Measured,
    Span,
    failures,
    is_delayed,
    waits_behind,
    within,
)

BOUNDS = Bounds(memory=100, stored=1000)


def answers(*milliseconds: float, processor: float = 1.0) -> list[Answered]:
    return [Answered(number / 200, each, processor) for number, each in enumerate(milliseconds)]


QUICK = answers(*[2.0] * 100)


@pytest.mark.parametrize(
    ("alone", "beside", "expected"),
    [
        (2.0, 15.0, False),
        (2.0, 15.1, True),
        (10.0, 30.0, False),
        (10.0, 30.1, True),
    ],
)
def test_a_p99_of_more_than_three_times_that_alone_is_a_delay(alone: float, beside: float, expected: bool) -> None:
    measured = Measured(answers(*[1.0] * 98, alone, alone), answers(*[1.0] * 98, beside, beside))
    assert is_delayed(measured) is expected


def test_one_of_a_hundred_commands_may_take_longer() -> None:
    assert not is_delayed(Measured(QUICK, answers(*[2.0] * 99, 500.0)))


def test_a_wait_is_limited_by_the_processor_time_of_the_service() -> None:
    assert not waits_behind(Measured(QUICK, answers(*[200.0] * 100, processor=5.0)))
    beside = answers(*[200.0] * 100, processor=18.1)
    assert waits_behind(Measured(QUICK, beside))
    assert not waits_behind(Measured(answers(*[2.0] * 100, processor=7.0), beside))


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (Measured(QUICK, QUICK, memory=100, stored=1000), []),
        (Measured(QUICK, QUICK, refused=2), ["2 commands refused, expected none"]),
        (Measured(QUICK, QUICK, unanswered=1), ["1 commands without an answer, expected none"]),
        (Measured(QUICK, QUICK, unreachable=3), ["3 requests to the API without an answer, expected none"]),
        (Measured(QUICK, QUICK, memory=101), ["101 bytes of memory more, expected at most 100"]),
        (Measured(QUICK, QUICK, stored=1001), ["1,001 bytes stored, expected at most 1,000"]),
    ],
)
def test_each_failure_is_found(measured: Measured, expected: list[str]) -> None:
    assert failures(measured, BOUNDS) == expected


def test_commands_belong_to_the_time_in_which_they_were_due() -> None:
    found = within(answers(*[1.0] * 100), Span(0.1, 0.2))
    assert [each.due for each in found] == [number / 200 for number in range(20, 40)]
