"""The ledger of deliveries; `dispatch/test_dispatcher_redelivery.py` has most of its tests."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from connectivity.errors import PublishFailed
from connectivity.sources import delivery as delivery_module
from connectivity.sources.delivery import MAX_REQUEUES, DeliveryLedger, InboundDelivery
from connectivity.sources.reader import DecodedDelivery
from connectivity.transports.amqp.delivery_names import NumberedNames
from connectivity.transports.base import Delivery, Outcome
from mappings.model.envelope import Envelope
from tests.support.in_process.service import ConnectionHarness

pytestmark = pytest.mark.usefixtures("harnesses")

AGAIN, DROPPED, SETTLED = Outcome.REDELIVER, Outcome.DROPPED, Outcome.SETTLED


class Deliveries:
    def __init__(self) -> None:
        self.route = ConnectionHarness().readers[0].route
        self.ledger = DeliveryLedger()
        self.outcomes: list[Outcome] = []

    def inbound(self, name: str | None, *, redelivered: bool = False, payload: bytes = b"x") -> InboundDelivery:
        delivery = Delivery(
            Envelope(payload), "in", name, redelivered, lambda _, outcome: self.outcomes.append(outcome)
        )
        made = InboundDelivery(delivery, DecodedDelivery(()), self.route, self.ledger)
        assert not self.ledger.is_known(made)
        made.open = 1
        return made

    def fail(self, name: str | None, *, redelivered: bool, is_done: bool = True, payload: bytes = b"x") -> Outcome:
        made = self.inbound(name, redelivered=redelivered, payload=payload)
        made.note(AGAIN, is_done=is_done)
        made.respond()(None)
        return self.outcomes[-1]


@pytest.mark.parametrize(("is_done", "last"), [(True, SETTLED), (False, DROPPED)])
async def test_a_delivery_is_requeued_at_most_five_times(is_done: bool, last: Outcome) -> None:
    deliveries = Deliveries()
    found = [deliveries.fail("x", redelivered=number > 0, is_done=is_done) for number in range(MAX_REQUEUES + 1)]
    assert found == [AGAIN] * MAX_REQUEUES + [last]


async def test_a_delivery_with_two_signals_that_fail_is_requeued_at_most_five_times() -> None:
    deliveries = Deliveries()
    for number in range(MAX_REQUEUES + 1):
        made = deliveries.inbound("x", redelivered=number > 0)
        for _ in range(2):
            made.note(AGAIN, is_done=True)
        made.respond()(None)
    assert deliveries.outcomes == [AGAIN] * MAX_REQUEUES + [SETTLED]
    assert len(deliveries.ledger.failed) == 0


async def test_each_of_several_deliveries_with_one_name_is_requeued_five_times() -> None:
    """As when a client gives all of its messages the same message ID."""
    deliveries = Deliveries()
    waiting, requeues = [b"one", b"other", b"third"], Counter[bytes]()
    for _ in range(10 * MAX_REQUEUES):
        for payload in tuple(waiting):
            if deliveries.fail("x", redelivered=True, payload=payload) is SETTLED:
                waiting.remove(payload)
            else:
                requeues[payload] += 1
    assert waiting == []
    assert list(requeues.values()) == [MAX_REQUEUES] * 3
    assert len(deliveries.ledger.failed) == 0


async def test_a_reused_delivery_name_starts_from_zero() -> None:
    deliveries = Deliveries()
    for _ in range(2 * MAX_REQUEUES):
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
    ended = made.respond()
    for left in (2, 1):
        ended(None)
        assert (made.open, deliveries.outcomes) == (left, [])
    ended(None)
    assert deliveries.outcomes == [outcome]


async def test_two_failures_of_one_delivery_count_once() -> None:
    deliveries = Deliveries()
    made = deliveries.inbound("x")
    for outcome in (AGAIN, DROPPED, AGAIN, SETTLED):
        made.note(outcome, is_done=True)
    assert made.outcome is AGAIN
    (same_key,) = deliveries.ledger.failed.values()
    assert [failed.requeues for failed in same_key.values()] == [1]


async def test_a_redelivery_while_the_response_is_pending_is_acknowledged_with_the_first() -> None:
    """The first delivery's link has ended, or a client has sent it again: each is settled at its link."""
    deliveries = Deliveries()
    ended = deliveries.inbound("x").respond()
    acknowledged: list[Delivery] = []
    copy = Delivery(Envelope(b"x"), "in", "x", True, lambda delivery, _: acknowledged.append(delivery))
    redelivery = InboundDelivery(copy, DecodedDelivery(()), deliveries.route, deliveries.ledger)
    assert deliveries.ledger.is_known(redelivery)
    ended(None)
    assert (acknowledged, deliveries.outcomes) == ([copy], [SETTLED])


async def test_a_delivery_keeps_each_earlier_one_once_although_several_of_its_signals_replace_theirs() -> None:
    """Twice the earlier ones at each redelivery would be a thousand times as many after ten."""
    deliveries = Deliveries()
    made = [deliveries.inbound(None, redelivered=number > 0) for number in range(4)]
    for earlier, later in pairwise(made):
        for _ in range(2):
            later.settle_also(earlier.delivery, *earlier.redeliveries)
    assert made[3].redeliveries == [made[2].delivery, made[1].delivery, made[0].delivery]
    assert {each.delivery.settled_with for each in made[:3]} == {made[3].delivery}


async def test_a_delivery_that_a_redelivery_has_replaced_does_not_wait_for_further_ones() -> None:
    """It is not settled by itself, so nothing may be settled with it."""
    deliveries = Deliveries()
    replaced, replacing = deliveries.inbound("x"), deliveries.inbound("x", redelivered=True)
    replacing.settle_also(replaced.delivery)
    replaced.respond()
    assert len(deliveries.ledger.pending) == 0


async def test_the_ledger_of_deliveries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_module, "_MAX_REMEMBERED", 10)
    deliveries = Deliveries()
    for number in range(100):
        deliveries.fail(str(number), redelivered=False)
    assert (len(deliveries.ledger.failed), len(deliveries.ledger.pending)) == (10, 0)


async def test_b4_a_response_of_a_failed_delivery_does_not_keep_it_under_way() -> None:
    """Its redelivery has to be processed, and settled."""
    deliveries = Deliveries()
    inbound = deliveries.inbound("x")
    inbound.open = 2
    inbound.fail()
    inbound.respond()(None)
    again = Delivery(Envelope(b"x"), "in", "x", True, lambda *_: None)
    assert not deliveries.ledger.is_known(
        InboundDelivery(again, DecodedDelivery(()), deliveries.route, deliveries.ledger)
    )
    assert deliveries.outcomes == [DROPPED]


async def test_an_overdue_delivery_leaves_the_ledger_with_its_redeliveries() -> None:
    """A response that comes later settles nothing."""
    deliveries = Deliveries()
    inbound = deliveries.inbound("x")
    finish = inbound.respond()
    deliveries.ledger.reject(inbound.delivery)
    assert (deliveries.outcomes, deliveries.ledger.pending) == ([DROPPED], {})
    finish(None)
    assert deliveries.outcomes == [DROPPED]


async def test_a_command_without_an_id_is_not_taken_for_an_equal_one_whose_response_was_refused() -> None:
    """As over AMQP: the later command comes again after a lost link, and was not executed."""
    deliveries, names = Deliveries(), NumberedNames("in")
    refused, requeued = names.first(b"x"), names.first(b"x")
    deliveries.inbound(refused).respond()(PublishFailed("no queue 'answers'"))
    assert deliveries.outcomes == [SETTLED]
    [later] = names.again([b"x"], deliveries.ledger.names_of(0, names.prefix))
    deliveries.inbound(later, redelivered=True)
    assert deliveries.fail(requeued, redelivered=False) is AGAIN
    assert names.again([b"x"], deliveries.ledger.names_of(0, names.prefix)) == [requeued]


async def test_a_delivery_that_was_requeued_and_then_settled_is_forgotten() -> None:
    deliveries = Deliveries()
    deliveries.fail("x", redelivered=False)
    deliveries.inbound("x", redelivered=True).respond()(None)
    assert (deliveries.outcomes, len(deliveries.ledger.failed)) == ([AGAIN, SETTLED], 0)


async def test_a_requeued_delivery_is_processed_again_although_the_broker_refused_another_response() -> None:
    deliveries = Deliveries()
    inbound = deliveries.inbound("x")
    inbound.open = 2
    ended = inbound.respond()
    ended(PublishFailed("refused"))
    inbound.note(AGAIN, is_done=True)
    ended(None)
    # `inbound` asserts that the redelivery is not known.
    deliveries.inbound("x", redelivered=True).respond()(None)
    assert deliveries.outcomes == [AGAIN, SETTLED]
