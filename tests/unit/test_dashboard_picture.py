"""The picture of the dashboard shows what scrapes of the metrics say."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from tests.bench import dashboard
from tests.support.paths import ROOT

BUCKET = "connectivity_journal_commit_seconds_bucket"


def scrape(second: int) -> dashboard.Scrape:
    """A service that takes ten messages a second, and commits nine of ten times in a millisecond."""
    bounds = {"0.001": 9, "0.01": 10, "+Inf": 10}
    return {
        ("connectivity_deliveries_total", (("direction", "in"), ("outcome", "settled"))): 10.0 * second,
        ("connectivity_deliveries_total", (("direction", "in"), ("outcome", "refused"))): 0.0,
        ("connectivity_subscriptions", (("connection", "site"),)): 3.0,
        **{(BUCKET, (("le", bound),)): float(count * second) for bound, count in bounds.items()},
    }


SCRAPES = [scrape(second) for second in range(9)]


def test_a_panel_shows_rates_gauges_and_parts_of_a_histogram() -> None:
    arrived, _, open_ones, commits = dashboard.panels(SCRAPES)
    assert list(arrived.lines) == ["settled"]
    assert arrived.lines["settled"] == pytest.approx([10.0] * 8)
    assert open_ones.lines == {"open": [3.0] * 9}
    assert commits.lines == {"p50": [1.0] * 8, "p99": [10.0] * 8}


def test_each_line_of_each_panel_is_drawn_within_it() -> None:
    drawn = ElementTree.fromstring(dashboard.drawn(dashboard.panels(SCRAPES)))
    lines = [line.attrib["points"] for line in drawn.iter("{http://www.w3.org/2000/svg}polyline")]
    assert len(lines) == 4
    assert all(0 <= float(part) <= 400 for line in lines for point in line.split() for part in point.split(","))


def test_the_panels_are_those_of_the_dashboard() -> None:
    panels = json.loads((ROOT / "deploy" / "grafana" / "connectivity.json").read_text(encoding="utf-8"))["panels"]
    assert {panel.title for panel in dashboard.panels(SCRAPES)} <= {panel["title"] for panel in panels}
