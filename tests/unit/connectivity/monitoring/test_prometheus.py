"""Metrics with their names and labels."""

from __future__ import annotations

import asyncio
import platform
import threading
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from connectivity import __version__
from connectivity.monitoring.prometheus import _MOST_CLOSED, PrometheusRegistry
from tests.support.wait import wait_until


@dataclass
class Open:
    connection_id: str
    demand: int


def shown(monitor: PrometheusRegistry) -> list[str]:
    return [line for line in generate_latest(monitor.registry).decode().splitlines() if not line.startswith("#")]


def test_design_8_21_deliveries_are_counted_by_connection_direction_and_outcome() -> None:
    monitor = PrometheusRegistry()
    meter = monitor.meter("site")
    facts = meter.source(["in"])["in"]
    facts.acknowledged.note(None, 2)
    facts.acknowledged.note(None)
    meter.target("out").published.note(None)
    assert 'connectivity_deliveries_total{connection="site",direction="in",outcome="settled"} 3.0' in shown(monitor)
    assert 'connectivity_deliveries_total{connection="site",direction="out",outcome="published"} 1.0' in shown(monitor)


def test_the_version_is_a_metric() -> None:
    version = f'connectivity_build_info{{python="{platform.python_version()}",version="{__version__}"}} 1.0'
    assert version in shown(PrometheusRegistry())


def test_outcomes_with_alerts_have_a_sample_of_zero() -> None:
    monitor = PrometheusRegistry()
    meter = monitor.meter("depot-7")
    meter.inbound("settled")
    assert [counted(monitor, direction, "failed") for direction in ("in", "out")] == [0, 0]
    meter.inbound("failed")
    assert [counted(monitor, direction, "failed") for direction in ("in", "out")] == [1, 0]
    assert counted(monitor, "in", "malformed") is None


def test_missed_events_are_counted_from_0() -> None:
    monitor = PrometheusRegistry()
    monitor.meter("depot-7")
    for events, total in ((0, 0), (3, 3), (2, 5)):
        monitor.skip("depot-7", "1", events)
        assert 'connectivity_target_skipped_total{connection="depot-7",target="1"} ' + f"{total}.0" in shown(monitor)


def counted(monitor: PrometheusRegistry, direction: str, outcome: str) -> float | None:
    labels = {"connection": "depot-7", "direction": direction, "outcome": outcome}
    return monitor.registry.get_sample_value("connectivity_deliveries_total", labels)


def test_design_8_21_events_and_links_are_counted_by_connection() -> None:
    monitor = PrometheusRegistry()
    meter = monitor.meter("site")
    meter.events += 5
    meter.is_up = True
    assert 'connectivity_events_sent_total{connection="site"} 5.0' in shown(monitor)
    assert 'connectivity_connection_up{connection="site"} 1.0' in shown(monitor)


def test_design_8_21_subscriptions_and_demand_are_read_at_a_scrape() -> None:
    monitor, live = PrometheusRegistry(), [Open("a", 3), Open("a", 4), Open("b", 0)]
    monitor.watch_subscriptions(lambda: live)
    assert 'connectivity_subscriptions{connection="a"} 2.0' in shown(monitor)
    assert 'connectivity_demand{connection="a"} 7.0' in shown(monitor)
    live.clear()
    assert not any(line.startswith('connectivity_subscriptions{connection="a"} 2') for line in shown(monitor))


def test_commits_are_a_histogram_of_seconds() -> None:
    monitor = PrometheusRegistry()
    monitor.commit.observe(0.003)
    assert 'connectivity_journal_commit_seconds_bucket{le="0.005"} 1.0' in shown(monitor)


def test_two_services_in_one_process_count_separately() -> None:
    one, other = PrometheusRegistry(), PrometheusRegistry()
    one.meter("site").inbound("refused")
    assert not any("refused" in line for line in shown(other))


def samples(monitor: PrometheusRegistry) -> dict[tuple[str, ...], float]:
    """Return the numbers by name and label values, as Prometheus reads them."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(generate_latest(monitor.registry).decode())
        for sample in family.samples
    }


def test_every_metric_starts_with_the_name_of_the_service() -> None:
    monitor = PrometheusRegistry()
    monitor.watch_subscriptions(list)
    monitor.meter("site").inbound("refused")
    assert {name for name, *_ in samples(monitor) if not name.startswith("connectivity_")} == set()


def test_a_connection_without_subscriptions_has_a_sample_of_zero() -> None:
    monitor = PrometheusRegistry()
    monitor.watch_subscriptions(list)
    monitor.meter("site")
    found = samples(monitor)
    assert (found["connectivity_subscriptions", "site"], found["connectivity_demand", "site"]) == (0, 0)
    assert found["connectivity_connection_up", "site"] == 0


def test_a_reopened_connection_continues_its_counts() -> None:
    monitor = PrometheusRegistry()
    for _ in range(2):
        monitor.meter("site").inbound("refused")
    assert samples(monitor)["connectivity_deliveries_total", "site", "in", "refused"] == 2


def test_a_closed_connection_keeps_its_counts_of_every_step() -> None:
    """A signal that a filter excludes is only in the number of dispatched ones."""
    monitor = PrometheusRegistry()
    monitor.meter("site").target("out").dispatched.note(None, 3)
    monitor.forget("site")
    for meter in (monitor.find_meter("site"), monitor.meter("site")):
        report = meter.report([], ["out"])
        assert report["connectionMetrics"]["outbound"]["dispatched"]["success"]["PT24H"] == 3


def test_a_deleted_connection_has_no_samples() -> None:
    """Connections that are created and deleted often leave nothing behind."""
    monitor = PrometheusRegistry()
    for connection_id in ("site", "depot"):
        monitor.meter(connection_id).inbound("refused")
        monitor.skip(connection_id, "0", 2)
        monitor.skip(connection_id, "1", 3)
    monitor.forget("site")
    monitor.erase("site")
    assert not [line for line in shown(monitor) if "site" in line]
    assert 'connectivity_target_skipped_total{connection="depot",target="1"} 3.0' in shown(monitor)


def test_connections_that_come_and_go_leave_no_counts_of_skipped_events() -> None:
    monitor = PrometheusRegistry()
    for number in range(_MOST_CLOSED + 2):
        monitor.meter(f"kept-{number}")
        monitor.skip(f"kept-{number}", "0", 1)
        monitor.forget(f"kept-{number}")
        monitor.meter(f"idle-{number}")
        monitor.skip(f"idle-{number}", "0", 0)
        monitor.forget(f"idle-{number}")
    found = [line for line in shown(monitor) if line.startswith("connectivity_target_skipped_total")]
    assert len(found) == _MOST_CLOSED
    assert found[-1] == f'connectivity_target_skipped_total{{connection="kept-{_MOST_CLOSED + 1}",target="0"}} 1.0'


async def test_a_scrape_is_written_in_a_thread_with_the_values_of_its_beginning() -> None:
    monitor = PrometheusRegistry()
    monitor.meter("site").inbound("refused")
    begun, may_go_on = threading.Event(), threading.Event()

    def encode(registry: CollectorRegistry) -> bytes:
        begun.set()
        assert may_go_on.wait(30), "no other task ran"
        return generate_latest(registry)

    scraping = asyncio.create_task(monitor.scrape(encode))
    await wait_until(begun.is_set)
    monitor.meter("site").inbound("refused")
    monitor.meter("other").inbound("refused")
    may_go_on.set()
    lines = (await scraping).decode().splitlines()
    assert [line for line in lines if "deliveries_total" in line and 'outcome="refused"' in line] == [
        'connectivity_deliveries_total{connection="site",direction="in",outcome="refused"} 1.0'
    ]


@pytest.mark.parametrize("connection_id", ['a"b', "a\\b", "a\nb"])
def test_every_label_value_is_escaped_correctly(connection_id: str) -> None:
    monitor = PrometheusRegistry()
    monitor.meter(connection_id).inbound("refused")
    assert samples(monitor)["connectivity_deliveries_total", connection_id, "in", "refused"] == 1
