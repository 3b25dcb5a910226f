"""Filters of targets that compare very much of a signal."""

from __future__ import annotations

from connectivity.targets.signal_context import SuppressionReason
from tests.support.cpu_budget import at_most
from tests.support.in_process.topic_filter_harness import TopicFilterHarness, interest


def test_a_filter_that_compares_very_much_of_an_event_or_of_extra_fields_does_not_delay_others() -> None:
    """Two hundred comparisons of an array of 90 KB took twenty seconds, in which the service served nobody."""
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
