"""The subscription engine: calls and the signals to send. Rules have their reactive-streams numbers."""

from __future__ import annotations

from typing import Any

import pytest

from connectivity.subscriptions.engine import (
    UNBOUNDED,
    Subscription,
    SubscriptionEnded,
    SubscriptionState,
)
from mappings.errors import Fault
from mappings.model.signals import EndReason
from tests.support.dice import dice

NOT_FOUND = Fault(404, "things:thing.notfound", "The Thing could not be found.")


def patient(**options: int) -> Subscription:
    """A subscription of a protocol whose terminal signals wait for the first request."""
    return Subscription(terminal_needs_request=True, **options)


def hasty(**options: int) -> Subscription:
    """A subscription of a protocol whose terminal signals may be sent at any time."""
    return Subscription(terminal_needs_request=False, **options)


def test_spec_1_01_no_element_may_be_sent_before_a_request() -> None:
    assert patient().capacity == 0


def test_spec_1_01_sending_more_than_requested_is_an_error() -> None:
    subscription = patient()
    subscription.request(2)
    with pytest.raises(ValueError, match="found 3 elements, expected at most 2"):
        subscription.emit(3)


def test_spec_1_01_a_random_conversation_never_emits_more_than_was_requested() -> None:
    """In any order of requests and elements, no more elements are sent than requested."""
    random_source = dice("subscription")
    subscription, requested, emitted = patient(), 0, 0
    for _ in range(2_000):
        if random_source.random() < 0.4:
            demand = random_source.randint(1, 9)
            requested += demand
            assert subscription.request(demand) is None
        elif subscription.capacity:
            count = random_source.randint(1, subscription.capacity)
            subscription.emit(count)
            emitted += count
        assert emitted + subscription.capacity == requested


def test_spec_1_02_a_subscription_may_end_with_demand_left() -> None:
    subscription = patient()
    subscription.request(10)
    subscription.emit(1)
    assert subscription.confirm() is None
    assert subscription.finish() == SubscriptionEnded(None)
    assert subscription.is_closed


def test_spec_1_04_a_failing_feed_ends_the_subscription_with_its_fault() -> None:
    subscription = patient()
    subscription.request(1)
    assert subscription.fail(NOT_FOUND) == SubscriptionEnded(NOT_FOUND)


def test_spec_1_05_the_end_of_the_feed_needs_no_further_demand() -> None:
    subscription = patient()
    subscription.request(1)
    subscription.emit(1)
    subscription.confirm()
    assert subscription.capacity == 0
    assert subscription.finish() == SubscriptionEnded(None)


ENDS: dict[str, tuple[Any, ...]] = {
    "finish": (),
    "fail": (NOT_FOUND,),
    "check_idle": (60, 60),
    "revoke": (NOT_FOUND,),
    "cancel": (),
}


@pytest.mark.parametrize("end", ENDS)
def test_spec_1_07_nothing_follows_the_end(end: str) -> None:
    """After any end: no elements, no second terminal signal, no expiry."""
    subscription = patient()
    subscription.request(5)
    getattr(subscription, end)(*ENDS[end])
    assert subscription.is_closed
    assert subscription.capacity == 0
    assert subscription.finish() is None
    assert subscription.fail(NOT_FOUND) is None
    assert subscription.check_idle(1000, 60) is None


def test_spec_1_08_cancel_stops_the_elements_at_once() -> None:
    subscription = patient()
    subscription.request(5)
    subscription.cancel()
    assert subscription.capacity == 0


def test_spec_3_05_and_3_07_cancel_may_be_repeated_and_is_never_answered() -> None:
    subscription = patient()
    subscription.cancel()
    subscription.cancel()
    assert subscription.is_closed


def test_spec_3_06_a_request_after_cancel_fails_and_brings_no_element() -> None:
    subscription = patient()
    subscription.cancel()
    assert subscription.request(1) == SubscriptionEnded(EndReason.CANCELLED)
    assert subscription.capacity == 0


def test_spec_3_08_requests_add_up() -> None:
    subscription = patient()
    subscription.request(2)
    subscription.request(3)
    assert subscription.capacity == 5


@pytest.mark.parametrize("demand", [0, -1, -(2**63)])
def test_spec_3_09_a_request_for_zero_or_less_fails(demand: int) -> None:
    subscription = patient()
    subscription.request(3)
    assert subscription.request(demand) == SubscriptionEnded(EndReason.INVALID_DEMAND)
    assert subscription.capacity == 0
    assert subscription.request(1) == SubscriptionEnded(EndReason.CANCELLED)


def test_spec_3_09_wins_over_a_failure_that_waits_for_the_first_request() -> None:
    subscription = patient()
    subscription.fail(NOT_FOUND)
    assert subscription.request(0) == SubscriptionEnded(EndReason.INVALID_DEMAND)


def test_spec_3_17_demand_stops_counting_at_its_cap() -> None:
    subscription = patient()
    subscription.request(UNBOUNDED)
    subscription.request(5)
    assert subscription.capacity == UNBOUNDED
    subscription.emit(2)
    assert subscription.capacity == UNBOUNDED


@pytest.mark.parametrize(("end", "reason"), [("finish", None), ("fail", NOT_FOUND)])
def test_no_terminal_signal_precedes_the_first_request(end: str, reason: Fault | None) -> None:
    """The protocol's extra guarantee: an early end is sent at the first request."""
    subscription = patient()
    assert getattr(subscription, end)(*([reason] if reason else [])) is None
    assert subscription.state is SubscriptionState.WAITING
    assert subscription.request(1) == SubscriptionEnded(reason)


def test_only_the_first_end_is_remembered_for_the_first_request() -> None:
    subscription = patient()
    subscription.fail(NOT_FOUND)
    subscription.finish()
    assert subscription.request(1) == SubscriptionEnded(NOT_FOUND)


def test_an_idle_subscription_ends_without_a_request() -> None:
    subscription = patient()
    assert subscription.check_idle(59, 60) is None
    assert subscription.check_idle(60, 60) == SubscriptionEnded(EndReason.IDLE)


@pytest.mark.parametrize("activity", ["request", "confirm"])
def test_every_activity_begins_the_idle_time_again(activity: str) -> None:
    subscription = patient(demand=5)
    if activity == "request":
        subscription.request(1, 50)
    else:
        subscription.emit(1)
        subscription.confirm(50)
    assert subscription.check_idle(109, 60) is None
    assert subscription.check_idle(110, 60) == SubscriptionEnded(EndReason.IDLE)


def test_b7_waiting_for_the_broker_is_not_idleness() -> None:
    subscription = patient(demand=5)
    subscription.emit(1)
    assert subscription.check_idle(1000, 60) is None
    assert subscription.idle_seconds(1000) == 0
    subscription.confirm(1000)
    assert subscription.check_idle(1059, 60) is None
    assert subscription.check_idle(1060, 60) == SubscriptionEnded(EndReason.IDLE)


@pytest.mark.parametrize("is_working", [True, False])
def test_b7_waiting_for_a_feed_is_idleness_unless_the_feed_has_a_timeout_of_its_own(is_working: bool) -> None:
    subscription = patient(demand=5)
    found = subscription.check_idle(60, 60, is_working=is_working)
    assert found == (None if is_working else SubscriptionEnded(EndReason.IDLE))


@pytest.mark.parametrize("end", [end for end in ENDS if end not in ("finish", "check_idle")])
def test_every_end_but_complete_waits_for_no_confirm(end: str) -> None:
    subscription = patient(demand=5)
    subscription.emit(1)
    assert getattr(subscription, end)(*ENDS[end]) == (None if end == "cancel" else SubscriptionEnded(NOT_FOUND))
    assert subscription.is_closed


def test_an_operator_ends_a_subscription_without_a_request() -> None:
    assert patient().revoke(NOT_FOUND) == SubscriptionEnded(NOT_FOUND)


def test_sent_elements_and_remaining_demand_add_up_to_the_requests() -> None:
    subscription = patient()
    subscription.request(7)
    subscription.emit(3)
    assert (subscription.sent, subscription.demand) == (3, 4)


def test_a_protocol_without_that_guarantee_ends_at_once() -> None:
    assert hasty().finish() == SubscriptionEnded(None)
    assert hasty().fail(NOT_FOUND) == SubscriptionEnded(NOT_FOUND)


def test_demand_may_come_with_the_subscribe() -> None:
    subscription = patient(demand=2)
    assert subscription.capacity == 2
    subscription.emit(2)
    subscription.confirm()
    assert subscription.finish() == SubscriptionEnded(None)


def test_b5_complete_follows_the_confirm_of_every_emission() -> None:
    subscription = patient(demand=9)
    for _ in range(2):
        subscription.emit(1)
    assert subscription.finish() is None
    assert subscription.capacity == 0, "the feed has ended"
    assert subscription.confirm() is None
    assert subscription.request(1) is None
    assert subscription.confirm() == SubscriptionEnded(None)


@pytest.mark.parametrize("is_finished", [True, False])
def test_b5_a_refused_emission_fails_the_subscription_although_others_are_unconfirmed(is_finished: bool) -> None:
    subscription = patient(demand=9)
    for _ in range(3):
        subscription.emit(1)
    if is_finished:
        subscription.finish()
    assert subscription.refuse(NOT_FOUND) == SubscriptionEnded(NOT_FOUND)
    assert subscription.confirm() is subscription.refuse(NOT_FOUND) is None


def test_b5_a_feed_that_fails_after_its_end_was_held_ends_with_its_fault() -> None:
    subscription = patient(demand=9)
    subscription.emit(1)
    subscription.finish()
    assert subscription.fail(NOT_FOUND) == SubscriptionEnded(NOT_FOUND)
    assert subscription.confirm() is None


def test_b5_a_cancelled_subscription_sends_nothing_at_the_last_confirm() -> None:
    subscription = patient(demand=9)
    subscription.emit(1)
    subscription.finish()
    subscription.cancel()
    assert subscription.confirm() is None
