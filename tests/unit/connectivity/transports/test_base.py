"""Outcomes are reported in the order of arrival, with any broker."""

from __future__ import annotations

from connectivity.transports.base import Delivery, InOrderSettlement, Outcome
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


def test_each_delivery_keeps_its_own_outcome() -> None:
    watermark = InOrderSettlement()
    first, second = deliveries(watermark, 2)
    watermark.ended(second, Outcome.REDELIVER)
    assert [outcome for _, outcome in watermark.ended(first, Outcome.DROPPED)] == [Outcome.DROPPED, Outcome.REDELIVER]


def test_a_delivery_reports_its_outcome() -> None:
    told: list[Outcome] = []
    for outcome in Outcome:
        Delivery(Envelope(b"x"), "in", None, False, lambda _delivery, outcome: told.append(outcome)).settle(outcome)
    assert told == list(Outcome)


def test_a_delivery_is_settled_once() -> None:
    told: list[Outcome] = []
    delivery = Delivery(Envelope(b"x"), "in", None, False, lambda _delivery, outcome: told.append(outcome))
    delivery.settle(Outcome.DROPPED)
    delivery.settle()
    assert (told, delivery.outcome) == ([Outcome.DROPPED], Outcome.DROPPED)
