"""A disk that is full: deliveries are held, nothing is answered that is not stored, and work goes on when there is room.

The service's process may not make its files any larger than they are (a limit of the system for one process), so that its
writes fail for real; lifting the limit on the running process is the operator who makes room.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers.mosquitto import Mosquitto
from tests.client import MqttClient
from tests.helpers import wait_until_sync
from tests.integration.documents import Reader, client, connection, policy_for, source, topic
from tests.service import ServiceProcess

pytestmark = pytest.mark.broker("mosquitto")

WRITER = "acme:writer"
COMMANDS = 200


@pytest.fixture
def service(mosquitto: Mosquitto, tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess.start(tmp_path, [connection(mosquitto, source("disk", WRITER))]) as running:
        yield running


@pytest.fixture
def writer(service: ServiceProcess, mosquitto: Mosquitto) -> Iterator[MqttClient]:
    with client(mosquitto, "disk") as party:
        answer = party.ask_for(topic("lamp-1", "commands/create"), value={"_policy": policy_for(WRITER)})
        assert answer["status"] == 201, answer
        yield party


def fill_disk(service: ServiceProcess) -> None:
    """From now on no file of the service may grow beyond what the largest has."""
    largest = max(file.stat().st_size for file in service.data.iterdir())
    _limit(service, largest)


def make_room(service: ServiceProcess) -> None:
    _limit(service, resource.RLIM_INFINITY)


def _limit(service: ServiceProcess, size: int) -> None:
    assert service.process is not None
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_design_8_10_a_full_disk_holds_deliveries_and_loses_none(service: ServiceProcess, writer: MqttClient) -> None:
    fill_disk(service)
    note = "x" * 2_000
    sent = [
        writer.command(topic("lamp-1", "commands/modify"), "/attributes/n", {"number": number, "note": note})
        for number in range(COMMANDS)
    ]
    wait_until_sync(lambda: service.status("site").get("details", "").startswith("store unavailable"), 15)
    assert service.get("/health/live")[0] == 200
    assert service.get("/health/ready")[0] == 503
    answered = writer.received.qsize()
    assert answered < COMMANDS

    make_room(service)
    answers = [writer.next(30) for _ in range(COMMANDS)]
    assert [answer["headers"]["correlation-id"] for answer in answers] == sent
    assert {answer["status"] for answer in answers} <= {201, 204}
    items = Reader(writer, "lamp-1").all()
    assert [item["value"]["number"] for item in items[1:]] == list(range(COMMANDS))
    assert service.get("/health/ready")[0] == 200
    assert service.metric("connectivity_deliveries_total", outcome="held") > 0


def test_what_was_held_when_the_service_was_killed_comes_again(service: ServiceProcess, writer: MqttClient) -> None:
    """Nothing that is held was acknowledged to the broker, so the next service gets it."""
    fill_disk(service)
    note = "x" * 2_000
    for number in range(COMMANDS):
        writer.command(topic("lamp-1", "commands/modify"), "/attributes/n", {"number": number, "note": note})
    wait_until_sync(lambda: service.status("site").get("details", "").startswith("store unavailable"), 15)
    service.kill()
    service.start_again()
    wait_until_sync(lambda: service.metric("connectivity_deliveries_total", outcome="settled", direction="in") > 0, 15)
    numbers: list[int] = []

    def is_complete() -> bool:
        while not writer.received.empty():
            writer.next()
        numbers[:] = [item["value"]["number"] for item in Reader(writer, "lamp-1").all()[1:]]
        return len(numbers) >= COMMANDS

    wait_until_sync(is_complete, 20)
    assert numbers == list(range(COMMANDS))
