"""The memory of deliveries for redeliveries; `dispatch/test_dispatcher_redelivery.py` has most of its tests."""

from __future__ import annotations

import pytest

from connectivity.sources import delivery as delivery_module
from connectivity.sources.delivery import MAX_REJECTIONS, InboundDelivery, RedeliveryTracker
from connectivity.sources.reader import DecodedDelivery
from connectivity.transports.base import Delivery, Outcome
from mappings.model.envelope import Envelope
from tests.support.in_process.service import ConnectionHarness

pytestmark = pytest.mark.usefixtures("harnesses")

AGAIN, DROPPED, SETTLED = Outcome.REDELIVER, Outcome.DROPPED, Outcome.SETTLED


class Deliveries:
    def __init__(self) -> None:
        self.route = ConnectionHarness().readers[0].route
        self.memory = RedeliveryTracker()
        self.outcomes: list[Outcome] = []

    def inbound(self, name: str | None, *, redelivered: bool = False) -> InboundDelivery:
        delivery = Delivery(Envelope(b"x"), "in", name, redelivered, lambda _, outcome: self.outcomes.append(outcome))
        made = InboundDelivery(delivery, DecodedDelivery(()), self.route)
        assert not self.memory.is_answered(made)
        made.open = 1
        return made

    def fail(self, name: str | None, *, redelivered: bool, is_done: bool = True) -> Outcome:
        made = self.inbound(name, redelivered=redelivered)
        self.memory.note(made, AGAIN, is_done=is_done)
        self.memory.finish_one(made)(None)
        return self.outcomes[-1]


@pytest.mark.parametrize(("is_done", "last"), [(True, SETTLED), (False, DROPPED)])
async def test_a_delivery_is_requeued_at_most_five_times(is_done: bool, last: Outcome) -> None:
    deliveries = Deliveries()
    found = [deliveries.fail("x", redelivered=number > 0, is_done=is_done) for number in range(MAX_REJECTIONS + 1)]
    assert found == [AGAIN] * MAX_REJECTIONS + [last]


async def test_a_reused_delivery_name_starts_from_zero() -> None:
    deliveries = Deliveries()
    for _ in range(2 * MAX_REJECTIONS):
        assert deliveries.fail("x", redelivered=False) is AGAIN


async def test_a_delivery_without_a_name_is_requeued_once() -> None:
    deliveries = Deliveries()
    assert deliveries.fail(None, redelivered=False) is AGAIN
    assert deliveries.fail(None, redelivered=True) is SETTLED


@pytest.mark.parametrize("outcome", [SETTLED, AGAIN, DROPPED])
async def test_a_delivery_ends_with_the_last_of_its_responses(outcome: Outcome) -> None:
    deliveries = Deliveries()
    made = deliveries.inbound("x")
    made.open, made.outcome = 3, outcome
    ended = deliveries.memory.finish_one(made)
    for left in (2, 1):
        ended(None)
        assert (made.open, deliveries.outcomes) == (left, [])
    ended(None)
    assert deliveries.outcomes == [outcome]


async def test_two_failures_of_one_delivery_count_once() -> None:
    deliveries = Deliveries()
    made = deliveries.inbound("x")
    for outcome in (AGAIN, DROPPED, AGAIN, SETTLED):
        deliveries.memory.note(made, outcome, is_done=True)
    assert made.outcome is AGAIN
    assert list(deliveries.memory._rejections.values()) == [1]


async def test_a_redelivery_while_the_response_is_pending_is_acknowledged_instead_of_the_first() -> None:
    """The link of the first delivery has ended: acknowledging that one would not reach the broker."""
    deliveries = Deliveries()
    ended = deliveries.memory.finish_one(deliveries.inbound("x"))
    acknowledged: list[Delivery] = []
    copy = Delivery(Envelope(b"x"), "in", "x", True, lambda delivery, _: acknowledged.append(delivery))
    assert deliveries.memory.is_answered(InboundDelivery(copy, DecodedDelivery(()), deliveries.route))
    ended(None)
    assert (acknowledged, deliveries.outcomes) == ([copy], [])


async def test_the_memory_of_deliveries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_module, "_MAX_TRACKED_REJECTIONS", 10)
    deliveries = Deliveries()
    for number in range(100):
        deliveries.fail(str(number), redelivered=False)
    assert len(deliveries.memory._rejections) == 10
    deliveries.memory.close_connection("site")
    assert (len(deliveries.memory._rejections), len(deliveries.memory._pending)) == (0, 0)


async def test_b4_a_response_of_a_failed_delivery_does_not_keep_it_under_way() -> None:
    """Its redelivery has to be processed, and settled."""
    deliveries = Deliveries()
    inbound = deliveries.inbound("x")
    inbound.open = 2
    deliveries.memory.fail(inbound)
    deliveries.memory.finish_one(inbound)(None)
    again = Delivery(Envelope(b"x"), "in", "x", True, lambda *_: None)
    assert not deliveries.memory.is_answered(InboundDelivery(again, DecodedDelivery(()), deliveries.route))
    assert deliveries.outcomes == [DROPPED]
