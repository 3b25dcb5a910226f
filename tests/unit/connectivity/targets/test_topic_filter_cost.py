"""Filters of targets that compare very much of a signal."""

from __future__ import annotations

import pytest

from connectivity.targets.signal_context import SuppressionReason
from connectivity.targets.topic_filter import TopicFilter
from tests.support.cpu_budget import at_most
from tests.support.in_process.topic_filter_harness import TopicFilterHarness, interest, topic
from tests.support.twin_harness import OWNER


def test_a_filter_that_compares_very_much_of_an_event_or_of_extra_fields_does_not_delay_others() -> None:
    """Two hundred comparisons of an array of 90 KB took twenty seconds. No other client was served."""
    plant = TopicFilterHarness()
    comparison = "gt(attributes/a,'z')"
    many = f"or({','.join([comparison] * 200)})"
    large = plant.apply("modify", "/attributes/a", [1] * 45_000)
    small = plant.apply("modify", "/attributes/b", 1)
    with at_most(1):
        assert plant.judge(interest(many), large) is SuppressionReason.EXPENSIVE
        assert plant.judge(interest(many), small) is SuppressionReason.FILTER
        for event in (large, small):
            assert plant.judge(interest(many, extra="attributes/a"), event) is SuppressionReason.EXPENSIVE
    twice = f"not(or({comparison},{comparison}))"
    assert plant.received(interest(twice), [large, small]) == [large, small]


@pytest.mark.parametrize("order", [1, -1])
def test_a_signal_of_which_one_topic_compares_very_much_is_sent_if_another_topic_matches(order: int) -> None:
    plant = TopicFilterHarness()
    many = topic("or(" + ",".join(["gt(attributes/a,'z')"] * 200) + ")")
    large = plant.apply("modify", "/attributes/a", [1] * 45_000)

    def judged(other: str) -> object:
        return plant.judge(TopicFilter([many, topic(other)][::order], (OWNER,)), large)

    assert judged("exists(attributes/a)") == large
    assert judged("exists(attributes/b)") is SuppressionReason.EXPENSIVE
