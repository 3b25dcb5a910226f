"""The counts of a connection, as operators and Prometheus see them."""

from __future__ import annotations

from typing import Any

import pytest

from connectivity.monitoring.meter import Meter
from connectivity.monitoring.windows import SecondClock
from tests.support.clock import Clock as Hands

ZERO = {"PT1M": 0, "PT1H": 0, "PT24H": 0}
NOON = 1_767_355_200.0


class ClockedMeter:
    """A meter and its clocks."""

    def __init__(self) -> None:
        self.hands, self.wall = Hands(10_000), Hands(NOON)
        self.clock = SecondClock(self.hands.now)
        self.meter = Meter("metered", self.clock, self.wall.now)

    def advance(self, seconds: float) -> None:
        self.hands.advance(seconds)
        self.wall.advance(seconds)
        self.clock.tick()

    def report(self) -> Any:
        return self.meter.report(["in"], ["out"])


@pytest.fixture
def metered() -> ClockedMeter:
    return ClockedMeter()


def test_every_type_of_every_address_is_reported_before_the_first_count(metered: ClockedMeter) -> None:
    report = metered.report()
    inbound, outbound = report["connectionMetrics"]["inbound"], report["connectionMetrics"]["outbound"]
    assert set(inbound) == {"consumed", "mapped", "other", "dropped", "enforced", "acknowledged", "throttled"}
    assert set(outbound) == {"dispatched", "filtered", "mapped", "other", "dropped", "published", "acknowledged"}
    assert report["connectionId"] == "metered"
    assert report["containsFailures"] is False
    assert report["sourceMetrics"] == {"addressMetrics": {"in": inbound}}
    assert report["targetMetrics"] == {"addressMetrics": {"out": outbound, "_responses": outbound}}
    assert {repr(each) for each in (*inbound.values(), *outbound.values())} == {
        repr({"success": ZERO, "failure": ZERO})
    }


def test_a_metric_reports_counts_per_window_and_the_time_of_the_last_message(metered: ClockedMeter) -> None:
    consumed = metered.meter.source(["in"])["in"].consumed
    consumed.note(None)
    metered.advance(100)
    consumed.note(None, 2)
    metered.advance(7)
    found = metered.report()["sourceMetrics"]["addressMetrics"]["in"]["consumed"]["success"]
    assert found == {"PT1M": 2, "PT1H": 3, "PT24H": 3, "lastMessageAt": "2026-01-02T12:01:40Z"}


def test_connection_metrics_sum_the_counts_of_all_addresses(metered: ClockedMeter) -> None:
    metered.meter.target("out").published.note(None, 9)
    metered.meter.replies.published.note(None, 2)
    report = metered.report()
    assert report["connectionMetrics"]["outbound"]["published"]["success"]["PT1M"] == 11
    assert report["targetMetrics"]["addressMetrics"]["_responses"]["published"]["success"]["PT1M"] == 2


def test_a_failure_shows_for_a_day(metered: ClockedMeter) -> None:
    metered.meter.source(["in"])["in"].not_mapped.note(None)
    metered.advance(80_000)
    assert metered.report()["containsFailures"] is True
    metered.advance(10_000)
    assert metered.report()["containsFailures"] is False


def test_reasons_for_the_same_outcome_are_one_metric(metered: ClockedMeter) -> None:
    metered.meter.replies.unresolved.note(None)
    metered.meter.replies.not_expected.note(None)
    report = metered.report()["targetMetrics"]["addressMetrics"]["_responses"]
    assert report["dropped"]["success"]["PT1M"] == 2
    assert metered.meter.deliveries() == {("out", "address_unresolved"): 1, ("out", "not_expected"): 1}


def test_a_reset_clears_the_windows_and_keeps_the_prometheus_counters(metered: ClockedMeter) -> None:
    metered.meter.target("out").published.note(None, 9)
    metered.meter.reset()
    assert metered.report()["connectionMetrics"]["outbound"]["published"]["success"] == ZERO
    assert metered.meter.deliveries() == {("out", "published"): 9}


def test_a_removed_address_keeps_its_part_of_the_prometheus_counters(metered: ClockedMeter) -> None:
    gone = metered.meter.target("old")
    gone.published.note(None, 9)
    metered.meter.target("out").published.note(None)
    metered.meter.keep(["in"], ["out"])
    assert metered.report()["connectionMetrics"]["outbound"]["published"]["success"]["PT1M"] == 1
    assert metered.meter.deliveries() == {("out", "published"): 10}


def test_sources_that_share_an_address_share_its_counters(metered: ClockedMeter) -> None:
    for _ in range(2):
        metered.meter.source(["in"])["in"].consumed.note(None)
    found = metered.report()["sourceMetrics"]["addressMetrics"]["in"]["consumed"]["success"]
    assert found["PT1M"] == 2
