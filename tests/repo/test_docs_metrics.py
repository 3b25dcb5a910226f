"""Every metric follows the rules of OpenMetrics and of the project, and a service exposes no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as read_prometheus

from connectivity.config.settings import Settings
from connectivity.monitoring.prometheus import store_figures
from connectivity.service import Service
from tests.support.paths import ROOT
from tools.docs.metrics import LABELS, MetricDescription, described, example, metrics_page

METRICS = described()
UNITS = frozenset({"seconds", "bytes", "events", "files"})
"""The units of metrics: OpenMetrics' base units, or whole things."""

NOT_UNITS = re.compile(r"milliseconds|millis|_ms|minutes|hours|kilobytes|megabytes|_kb|_mb|percent")
RESERVED = ("_total", "_count", "_sum", "_bucket", "_created", "_info")
"""Endings that show the type of a metric."""


def test_the_openmetrics_parser_reads_every_exposed_metric() -> None:
    text: bytes = generate_latest(example().registry)  # type: ignore[no-untyped-call]
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}  # type: ignore[no-untyped-call]
    endings = {"counter": "_total", "info": "_info"}
    assert {name + endings.get(it.type, "") for name, it in families.items()} == {metric.name for metric in METRICS}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
class TestAMetric:
    def test_is_called_as_openmetrics_wants_it(self, metric: MetricDescription) -> None:
        assert re.fullmatch(r"connectivity(_[a-z]+)+", metric.name)
        assert not NOT_UNITS.search(metric.name)
        assert (metric.type == "counter") is metric.name.endswith("_total")
        assert (metric.type == "info") is metric.name.endswith("_info")
        assert not metric.name.removesuffix("_total").removesuffix("_info").endswith(RESERVED)
        assert metric.type in ("counter", "gauge", "histogram", "info")

    def test_has_its_unit_at_the_end(self, metric: MetricDescription) -> None:
        words = metric.name.removesuffix("_total").split("_")
        assert not UNITS.intersection(words[:-1]) or metric.name == "connectivity_events_sent_total"
        if metric.type == "histogram":
            assert words[-1] in UNITS

    def test_the_description_of_a_metric_is_one_sentence(self, metric: MetricDescription) -> None:
        assert re.fullmatch(r"[A-Z01].{8,}\.", metric.meaning)

    def test_has_only_labels_with_few_values(self, metric: MetricDescription) -> None:
        """Each value of a label is a series of its own: entities and clients are too many."""
        assert set(metric.labels) <= set(LABELS)

    def test_is_on_its_page(self, metric: MetricDescription) -> None:
        assert f"| `{metric.name}" in metrics_page()


def test_every_label_that_is_explained_is_used() -> None:
    assert set(LABELS) == {label for metric in METRICS for label in metric.labels}


def test_every_delivery_outcome_in_the_metrics_is_documented() -> None:
    """The outcome is a literal in the code that counts it."""
    counted = re.compile(r"\.(?:in|out)bound\(\s*\"([a-z_]+)\"")
    found = {
        outcome
        for file in (ROOT / "connectivity").rglob("*.py")
        for outcome in counted.findall(file.read_text(encoding="utf-8"))
    }
    assert found
    assert {outcome for outcome in found if f"`{outcome}`" not in metrics_page()} == set()


def test_a_store_that_cannot_write_is_down() -> None:
    assert [dict(figure.values) for up in (True, False) for figure in store_figures(up)] == [{(): True}, {(): False}]


async def test_a_service_exposes_nothing_that_is_not_reported(tmp_path: Path) -> None:
    service = Service(Settings(data_dir=tmp_path, connections_dir=tmp_path, spark={"mode": "external"}))
    try:
        exposed = (await service.monitor.scrape()).decode()
    finally:
        await service.close()
    families = [family for family in read_prometheus(exposed) if not family.name.endswith("_created")]
    names = {f"{it.name}_total" if it.type == "counter" else it.name for it in families}
    assert names <= {metric.name for metric in METRICS}
    assert {"connectivity_store_up", "connectivity_journal_commit_seconds", "connectivity_target_lag_events"} <= names
