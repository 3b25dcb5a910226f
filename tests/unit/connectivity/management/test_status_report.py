"""The status of a connection's clients, sources and targets, with an in-process broker."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from connectivity.connections.lifecycle import Status
from connectivity.errors import ConnectionRefused, Detail, NotConnected, PublishFailed
from connectivity.management.client import Backoff
from connectivity.management.status_report import closed_status, metrics_of
from connectivity.monitoring.prometheus import PrometheusRegistry
from connectivity.targets import event_publisher
from tests.support.in_process.running_connection import Running
from tests.support.in_process.service import connection, source, target, turn, until
from tests.support.memory_transport import MemoryLink

pytestmark = pytest.mark.usefixtures("runs")

SINCE = "2030-01-15T07:30:00Z"
EVENTS = "_/_/things/twin/events"


def only(report: Any, kind: str) -> Any:
    (part,) = report[f"{kind}Status"]
    return part


async def test_status_7_3_of_an_open_connection_names_every_part_with_the_time_since_when_it_is_so() -> None:
    running = await Running.opened(source("in"), targets=[target(EVENTS)])
    assert running.supervisor.status_report() == {
        "connectionId": "site",
        "connectionStatus": "open",
        "liveStatus": "open",
        "recoveryStatus": "succeeded",
        "connectedSince": SINCE,
        "clientStatus": [
            {
                "type": "client",
                "client": "connectivity-0",
                "status": "open",
                "recoveryStatus": "succeeded",
                "statusDetails": "connected",
                "inStateSince": SINCE,
            }
        ],
        "sourceStatus": [
            {
                "type": "source",
                "client": "connectivity-0",
                "address": "in",
                "status": "open",
                "statusDetails": f"Consumer started at {SINCE}",
                "inStateSince": SINCE,
            }
        ],
        "targetStatus": [
            {
                "type": "target",
                "client": "connectivity-0",
                "address": "events",
                "status": "open",
                "statusDetails": f"Producer started at {SINCE}",
                "inStateSince": SINCE,
            }
        ],
        "sshTunnelStatus": [],
    }


async def test_status_7_3_every_client_reports_the_status_of_every_address() -> None:
    running = Running(source("in", addresses=["in", "also"]), source("more"), clientCount=2)
    running.supervisor.open()
    await running.open_again()
    report = running.supervisor.status_report()
    assert [part["client"] for part in report["clientStatus"]] == ["connectivity-0", "connectivity-1"]
    found = [(part["client"], part["address"]) for part in report["sourceStatus"]]
    assert found == [(f"connectivity-{client}", address) for client in (0, 1) for address in ("in", "also", "more")]


@pytest.mark.parametrize("address", ["events/{{ thing:name }}", "events/${thing:name}"])
async def test_status_7_3_a_target_with_a_placeholder_is_unknown_while_the_connection_is_open(address: str) -> None:
    running = await Running.opened(targets=[target(EVENTS, address=address)])
    report = running.supervisor.status_report()
    part = only(report, "target")
    assert (part["status"], report["liveStatus"]) == ("unknown", "open")
    assert part["statusDetails"] == "Producers for targets with placeholders are started on-demand."


async def test_status_7_3_a_connection_that_is_closed_has_one_closed_client() -> None:
    running = await Running.opened(clientCount=2, targets=[target(EVENTS)])
    await running.supervisor.close()
    report = running.supervisor.status_report()
    part = only(report, "client")
    assert (report["liveStatus"], part["status"]) == ("closed", "closed")
    assert (part["statusDetails"], part["inStateSince"]) == ("[DISCONNECTED] connection is closed", SINCE)
    assert report["sourceStatus"] == report["targetStatus"] == []


def test_status_7_3_a_connection_without_clients_reports_live_status_closed() -> None:
    found = closed_status("depot", "open")
    assert (found["connectionStatus"], found["liveStatus"]) == ("open", "closed")
    (client,) = found["clientStatus"]
    assert (client["status"], client["statusDetails"]) == ("closed", "[DISCONNECTED] connection is closed")
    assert (found["sourceStatus"], found["targetStatus"]) == ([], [])
    assert "connectedSince" not in found


def test_a_connection_that_never_ran_shows_that_it_is_closed_and_has_counted_nothing() -> None:
    monitor = PrometheusRegistry()
    meter = monitor.find_meter("depot")
    assert meter.log.read() == {"connectionLogs": []}
    found = metrics_of(meter, connection(source("in"), targets=[target(EVENTS)]))
    assert found["containsFailures"] is False
    assert set(found["sourceMetrics"]["addressMetrics"]) == {"in"}
    assert set(found["targetMetrics"]["addressMetrics"]) == {"events", "_responses"}
    assert b"depot" not in generate_latest(monitor.registry)


def test_a_stopped_connection_keeps_its_counts() -> None:
    monitor = PrometheusRegistry()
    monitor.meter("site").source(["in"])["in"].consumed.note(None)
    monitor.meter("site").source(["in"])["in"].acknowledged.note(None)
    monitor.forget("site")
    found = metrics_of(monitor.find_meter("site"), connection())
    assert found["sourceMetrics"]["addressMetrics"]["in"]["consumed"]["success"]["PT1M"] == 1


async def test_status_7_3_the_caller_can_pass_the_desired_status() -> None:
    running = Running()
    assert running.supervisor.status_report("closed")["connectionStatus"] == "closed"
    assert running.supervisor.status_report()["connectionStatus"] == "open"


async def test_status_7_3_a_link_that_was_lost_is_failed_and_on_its_way_back() -> None:
    running = await Running.opened(targets=[target(EVENTS)], pauses=Backoff(60, 60))
    with capture_logs():
        running.broker.cut("the cable was cut")
        await until(lambda: running.supervisor.status is Status.FAILED)
    report = running.supervisor.status_report()
    part = only(report, "client")
    assert (report["liveStatus"], report["recoveryStatus"]) == ("failed", "ongoing")
    assert (part["status"], part["statusDetails"]) == ("failed", "connecting: the cable was cut")
    assert only(report, "source")["status"] == only(report, "target")["status"] == "unknown"
    assert "connectedSince" not in report


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConnectionRefused(Detail.BAD_CREDENTIALS, "who are you"), "misconfigured"),
        (NotConnected(Detail.TIMEOUT, "nobody answers"), "failed"),
    ],
)
async def test_status_7_3_a_connection_without_failover_does_not_come_back(error: Any, status: str) -> None:
    running = Running(failoverEnabled=False)
    running.broker.refusal = error
    with capture_logs():
        running.supervisor.open()
        await until(lambda: not running.supervisor.clients[0].is_running)
    report = running.supervisor.status_report()
    assert (report["liveStatus"], report["recoveryStatus"]) == (status, "backOffLimitReached")
    assert only(report, "client")["statusDetails"] == str(error)


async def test_status_7_8_a_queue_that_is_missing_makes_its_source_misconfigured_and_no_other() -> None:
    running = Running(source("cmd.in"), source("more"), pauses=Backoff(60, 60))
    running.broker.refusal = ConnectionRefused(Detail.MISSING_ADDRESS, "queue 'cmd.in': no such queue")
    with capture_logs():
        running.supervisor.open()
        await until(lambda: running.supervisor.status is Status.MISCONFIGURED)
    report = running.supervisor.status_report()
    assert [part["status"] for part in report["sourceStatus"]] == ["misconfigured", "unknown"]
    assert report["sourceStatus"][0]["statusDetails"] == "missing address: queue 'cmd.in': no such queue"
    assert report["liveStatus"] == "misconfigured"


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("NOT_FOUND - no queue 'gone' in vhost 'more'", ["gone"]),
        ("queue 'gone': ACCESS_REFUSED - access to queue 'gone' in vhost 'more' refused for user 'more'", ["gone"]),
        ("gone: Broker: Unknown topic or partition", ["gone"]),
        ("other, gone: Not authorized in this realm", ["gone"]),
        ("go, gone: Broker: Unknown topic", ["gone", "go"]),
        ("in/gone: Not authorized", []),
        ("$share/site/gone: Not authorized", ["gone"]),
    ],
)
async def test_status_7_8_a_source_is_misconfigured_only_if_its_whole_address_is_in_the_error(
    text: str, refused: list[str]
) -> None:
    running = Running(source("gone"), source("in"), source("go"), source("more"), pauses=Backoff(60, 60))
    running.broker.refusal = ConnectionRefused(Detail.MISSING_ADDRESS, text)
    with capture_logs():
        running.supervisor.open()
        await until(lambda: running.supervisor.status is Status.MISCONFIGURED)
    parts = running.supervisor.status_report()["sourceStatus"]
    assert [part["address"] for part in parts if part["status"] == "misconfigured"] == refused


async def test_status_7_8_a_target_without_its_exchange_is_misconfigured_until_a_message_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("connectivity.targets.event_cursor.SHORTEST_PAUSE", 0.01)
    running = await Running.opened(id="other", targets=[target(EVENTS)])
    (link,) = running.broker.links
    missing = PublishFailed("missing address: no exchange 'events'")
    publish = link.publish
    monkeypatch.setattr(link, "publish", lambda _message, done: done(missing))
    with capture_logs():
        await running.harness.ask(turn(1))
        await until(lambda: running.supervisor.status_report()["liveStatus"] == "misconfigured")
        part = only(running.supervisor.status_report(), "target")
        assert part["statusDetails"].startswith("missing address: no exchange 'events'")
        monkeypatch.setattr(link, "publish", publish)
        await until(lambda: running.supervisor.status_report()["liveStatus"] == "open")


async def test_2_3_1_a_target_whose_exchange_is_missing_when_the_link_opens_is_misconfigured_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault = "missing address: no exchange 'events'"
    with monkeypatch.context() as missing:
        missing.setattr(MemoryLink, "target_faults", {1: fault})
        running = await Running.opened(id="other", targets=[target("_/_/things/live/events"), target(EVENTS)])
    report = running.supervisor.status_report()
    assert [(part["status"], part["statusDetails"]) for part in report["targetStatus"]][1] == ("misconfigured", fault)
    assert (report["targetStatus"][0]["status"], report["liveStatus"]) == ("open", "misconfigured")
    await running.harness.ask(turn(1))
    await until(lambda: running.supervisor.status_report()["liveStatus"] == "open")


async def test_status_details_of_a_target_include_its_backlog_and_missed_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_publisher, "BEHIND_EVENTS", 1)
    running = await Running.opened(id="other", targets=[target(EVENTS)], pauses=Backoff(60, 60))
    (cursor,) = running.harness.event_publisher.of("other")
    cursor.skipped = 3
    with capture_logs():
        running.broker.cut("the cable was cut")
        await until(lambda: running.supervisor.status is Status.FAILED)
    await running.harness.ask(turn(1))
    await until(lambda: "behind" in only(running.supervisor.status_report(), "target")["statusDetails"])
    part = only(running.supervisor.status_report(), "target")
    assert part["statusDetails"] == ("Producer waits for the client; is 1 events behind, for 0 s; has missed 3 events")


async def test_status_details_of_a_client_report_an_unavailable_store() -> None:
    running = await Running.opened()
    running.harness.disk.full = True
    with capture_logs():
        running.send(turn(1))
        await until(lambda: not running.harness.store.commits.is_available)
    details = only(running.supervisor.status_report(), "client")["statusDetails"]
    assert details == "store unavailable: the disk is full"
