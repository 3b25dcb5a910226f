"""What operators are shown of connections that run and that do not. More is in `test_manager.py`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from connectivity.connections.model import Connection
from connectivity.management.interface import Owner
from connectivity.management.observer import ConnectionObserver
from connectivity.management.reconciler import DesiredConnection
from connectivity.monitoring.prometheus import PrometheusRegistry
from tests.support.in_process.running_connection import Running
from tests.support.in_process.service import connection, target, turn, until

pytestmark = pytest.mark.usefixtures("runs")

NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)


def wanted(*problems: str, of: Connection | None = None, override: str | None = None) -> DesiredConnection:
    found = {"connectionStatus": "open"}
    return DesiredConnection("site", Owner.API, found, of, 1, NOW, override=override, problems=problems)


def test_one_that_cannot_be_used_is_misconfigured_and_says_why() -> None:
    observer = ConnectionObserver(PrometheusRegistry())
    shown = observer.status(wanted("uri: found nothing"), None)
    assert (shown["connectionStatus"], shown["liveStatus"]) == ("open", "misconfigured")
    assert shown["problems"] == ["uri: found nothing"]
    assert shown["clientStatus"][0]["statusDetails"] == "uri: found nothing"
    assert observer.metrics(wanted("uri: found nothing"), None)["sourceMetrics"] == {"addressMetrics": {}}


def test_one_that_does_not_run_is_closed_and_shows_what_is_to_be() -> None:
    shown = ConnectionObserver(PrometheusRegistry()).status(wanted(of=connection(), override="closed"), None)
    assert (shown["connectionStatus"], shown["liveStatus"], shown["override"]) == ("closed", "closed", "closed")
    assert shown["clientStatus"][0]["statusDetails"] == "[DISCONNECTED] connection is closed"


async def test_one_that_runs_shows_its_own_status_metrics_and_log() -> None:
    running = await Running.opened(targets=[target("_/_/things/twin/events")])
    observer, it = ConnectionObserver(running.site.monitor), wanted(of=running.connection)
    assert observer.status(it, running.supervisor)["liveStatus"] == "open"
    assert len(observer.logs(it, running.supervisor)["connectionLogs"]) > 1
    observer.reset_logs("site", running.supervisor)
    assert observer.logs(it, running.supervisor)["connectionLogs"] == []
    running.supervisor._meter.log.disable()
    observer.enable_logs("site", running.supervisor)
    assert "enabledUntil" in observer.logs(it, running.supervisor)
    consumed = observer.metrics(it, running.supervisor)["connectionMetrics"]["inbound"]["consumed"]["success"]
    assert consumed["PT1M"] == 1


async def test_what_was_counted_is_shown_after_the_close_and_can_be_reset() -> None:
    running = await Running.opened()
    running.send(turn(1))
    await running.answered(1)
    await until(lambda: running.unsettled() == 0)
    await running.supervisor.close()
    running.site.monitor.forget("site")
    observer, it = ConnectionObserver(running.site.monitor), wanted(of=running.connection)
    assert observer.metrics(it, None)["connectionMetrics"]["inbound"]["consumed"]["success"]["PT1M"] == 2
    assert observer.logs(it, None) == {"connectionId": "site", "connectionLogs": []}
    observer.enable_logs("site", None)
    observer.reset_logs("site", None)
    observer.reset_metrics("site", None)
    assert observer.metrics(it, None)["connectionMetrics"]["inbound"]["consumed"]["success"]["PT1M"] == 0


def test_one_that_was_deleted_starts_again() -> None:
    monitor = PrometheusRegistry()
    monitor.meter("site").source(["in"]).at("in").acknowledged.note(None)
    monitor.forget("site")
    ConnectionObserver(monitor).forget("site")
    assert monitor.find_meter("site").deliveries() == {}
    assert b'"site"' not in monitor.exposition()
