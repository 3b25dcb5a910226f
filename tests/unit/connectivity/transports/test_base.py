"""Outcomes are reported in the order of arrival, with any broker."""

from __future__ import annotations

import pytest

from connectivity.transports.base import MOST_BUDGETS, Delivery, InOrderSettlement, Outcome, ReadLimit
from mappings.model.envelope import Envelope


def deliveries(watermark: InOrderSettlement, count: int) -> list[Delivery]:
    made = [Delivery(Envelope(b"x"), "in", str(number), False, lambda *_: None) for number in range(count)]
    for delivery in made:
        watermark.arrived(delivery)
    return made


def names(ready: list[tuple[Delivery, Outcome]]) -> list[str | None]:
    return [delivery.name for delivery, _ in ready]


def test_an_outcome_waits_for_everything_that_arrived_before() -> None:
    watermark = InOrderSettlement()
    first, second, third = deliveries(watermark, 3)
    assert watermark.ended(third, Outcome.SETTLED) == []
    assert watermark.ended(second, Outcome.SETTLED) == []
    assert names(watermark.ended(first, Outcome.SETTLED)) == ["0", "1", "2"]
    assert len(watermark) == 0


def test_a_settled_delivery_that_waits_keeps_no_payload() -> None:
    watermark = InOrderSettlement()
    first, second = deliveries(watermark, 2)
    watermark.ended(second, Outcome.SETTLED)
    assert (first.envelope.payload, second.envelope.payload) == (b"x", b"")


def test_each_delivery_keeps_its_own_outcome() -> None:
    watermark = InOrderSettlement()
    first, second = deliveries(watermark, 2)
    watermark.ended(second, Outcome.REDELIVER)
    assert [outcome for _, outcome in watermark.ended(first, Outcome.DROPPED)] == [Outcome.DROPPED, Outcome.REDELIVER]


def test_a_delivery_reports_its_outcome() -> None:
    outcomes: list[Outcome] = []
    for outcome in Outcome:
        Delivery(Envelope(b"x"), "in", None, False, lambda _delivery, outcome: outcomes.append(outcome)).settle(outcome)
    assert outcomes == list(Outcome)


def test_a_delivery_is_settled_once() -> None:
    outcomes: list[Outcome] = []
    delivery = Delivery(Envelope(b"x"), "in", None, False, lambda _delivery, outcome: outcomes.append(outcome))
    delivery.settle(Outcome.DROPPED)
    delivery.settle()
    assert (outcomes, delivery.outcome) == ([Outcome.DROPPED], Outcome.DROPPED)


def end(limit: ReadLimit, size: int) -> None:
    limit.count -= 1
    limit.size -= size


def must_pause(limit: ReadLimit, *, is_paused: bool = False, waits: bool = False) -> bool:
    return limit.must_pause(is_paused=is_paused, waits_for_confirms=waits)


@pytest.mark.parametrize(("count", "size"), [(10, 0), (1, 100), (1, 1000)])
def test_reading_stops_at_either_limit_until_half_of_it_is_left(count: int, size: int) -> None:
    limit = ReadLimit(10, 100)
    for _ in range(count):
        assert not must_pause(limit)
        limit.arrived(size)
    assert must_pause(limit)
    for _ in range(count // 2):
        assert must_pause(limit, is_paused=True)
        end(limit, size)
    if count == 1:
        end(limit, size)
    assert must_pause(limit, is_paused=True) is (count == 10)
    if count == 10:
        end(limit, size)
    assert not must_pause(limit, is_paused=True)


def test_reading_continues_while_confirms_are_outstanding_up_to_a_multiple_of_the_limit() -> None:
    limit = ReadLimit(10, 100)
    limit.arrived(100)
    assert not must_pause(limit, waits=True)
    assert not must_pause(limit, is_paused=True, waits=True)
    assert not limit.is_exceeded
    limit.arrived((MOST_BUDGETS - 1) * 100)
    assert limit.is_exceeded
