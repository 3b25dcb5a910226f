"""A full disk: deliveries are held, only stored commands are answered, and work resumes later.

A limit of the system stops the service's process from enlarging its files, so its writes really fail. Removing the limit is
the operator who frees space.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import (
    Reader,
    client,
    connection,
    policy_for,
    running,
    source,
    topic,
    wait_until_open,
)
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.broker("mosquitto")

WRITER = "acme:writer"
COMMANDS = 200
ROOM_FOR_LOG = 64 * 1024


@pytest.fixture(scope="module")
def own_service(mosquitto: Mosquitto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with ServiceProcess.start(tmp_path_factory.mktemp("disk"), [connection(mosquitto, source("disk", WRITER))]) as it:
        yield it


@pytest.fixture
def service(own_service: ServiceProcess) -> Iterator[ServiceProcess]:
    """A service with room on its disk; the test may fill it, and stop the service."""
    started = running(own_service)
    make_room(started)
    wait_until_open(started, "site")
    yield started
    if started.process is not None and started.process.poll() is None:
        make_room(started)


@pytest.fixture
def lamp() -> str:
    """A thing of the test's own."""
    return f"lamp-{uuid4().hex[:8]}"


@pytest.fixture
def writer(service: ServiceProcess, mosquitto: Mosquitto, lamp: str) -> Iterator[MqttClient]:
    with client(mosquitto, "disk") as requester:
        answer = requester.ask_for(topic(lamp, "commands/create"), value={"_policy": policy_for(WRITER)})
        assert answer["status"] == 201, answer
        yield requester


def fill_disk(service: ServiceProcess) -> None:
    """Limit the files of the service to the size of its log from now on.

    That is less than the journal has: otherwise a checkpoint into it could free space in its write-ahead log.
    """
    most = service.log_file.stat().st_size + ROOM_FOR_LOG
    assert most < max(file.stat().st_size for file in service.data.iterdir())
    _limit(service, most)


def make_room(service: ServiceProcess) -> None:
    _limit(service, resource.RLIM_INFINITY)


def _limit(service: ServiceProcess, size: int) -> None:
    assert service.process is not None
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def is_full(service: ServiceProcess) -> bool:
    return service.status("site").get("details", "").startswith("store unavailable: ")


def fill_and_notice(service: ServiceProcess, writer: MqttClient, lamp: str) -> list[str]:
    """Fill the disk, and send until the service has noticed; the correlation ids.

    The service is not ready then. The store may find room in its own files a moment later, so the test does not check again.
    """
    fill_disk(service)
    sent: list[str] = []

    def has_noticed() -> bool:
        sent.append(writer.command(topic(lamp, "commands/modify"), "/attributes/note", "x" * 20_000))
        status, body = service.get("/health/ready")
        shown = json.loads(body)
        if shown["connections"]["site"]["details"].startswith("store unavailable: "):
            assert (status, shown["store"].startswith("unavailable: ")) == (503, True)
            return True
        return False

    wait_until_sync(has_noticed)
    return sent


def correlations(answers: list[dict[str, Any]]) -> list[str]:
    return [answer["headers"]["correlation-id"] for answer in answers]


def test_design_8_10_a_full_disk_holds_deliveries_and_loses_no_delivery(
    service: ServiceProcess, writer: MqttClient, lamp: str
) -> None:
    """A command waits for the held creation of its thing, and a retrieve returns earlier writes."""
    sent = fill_and_notice(service, writer, lamp)
    other = f"{lamp}-2"
    create, change, read, remove = (
        topic(other, f"commands/{verb}") for verb in ("create", "modify", "retrieve", "delete")
    )
    sent += [writer.command(topic(lamp, "commands/modify"), "/attributes/n", number) for number in range(COMMANDS)]
    sent += [
        writer.command(create, value={"_policy": policy_for(WRITER)}),
        writer.command(change, "/attributes/n", 1),
        writer.command(read, "/attributes/n"),
        writer.command(change, "/attributes/n", 2),
        writer.command(remove),
        writer.command(read),
    ]
    writer.send(b"no JSON")
    assert service.get("/health/live")[0] == 200
    make_room(service)
    answers = [writer.next() for _ in range(len(sent) + 1)]
    assert correlations(answers)[:-1] == sent
    assert {answer["status"] for answer in answers[:-7]} <= {201, 204}
    assert [answer["status"] for answer in answers[-7:]] == [201, 201, 200, 204, 204, 404, 400]
    assert answers[-5]["value"] == 1
    items = Reader(writer, lamp).all()
    assert [item["value"] for item in items[-COMMANDS:]] == list(range(COMMANDS))
    assert service.get("/health/ready")[0] == 200
    assert service.metric("connectivity_deliveries_total", outcome="held") > 0


def test_room_that_comes_a_little_at_a_time(service: ServiceProcess, writer: MqttClient, lamp: str) -> None:
    """The disk becomes full repeatedly: some commands succeed each time, in order and once."""
    sent = fill_and_notice(service, writer, lamp)
    note = "x" * 5_000
    sent += [
        writer.command(topic(lamp, "commands/modify"), "/attributes/note", {"number": number, "note": note}, wait=False)
        for number in range(COMMANDS)
    ]
    answers: list[dict[str, Any]] = []
    for _ in range(5):
        size = max(file.stat().st_size for file in service.data.iterdir())
        _limit(service, size + 300_000)
        wait_until_sync(lambda: not writer.received.empty() or not is_full(service))
        while not writer.received.empty():
            answers.append(writer.next())
    make_room(service)
    answers += [writer.next() for _ in range(len(sent) - len(answers))]
    assert correlations(answers) == sent
    items = Reader(writer, lamp).all()
    assert [item["value"]["number"] for item in items[-COMMANDS:]] == list(range(COMMANDS))
    assert len(items) == len(sent) + 1


def test_deliveries_held_during_a_kill_are_delivered_again(
    service: ServiceProcess, writer: MqttClient, lamp: str
) -> None:
    """Nothing that is held was acknowledged to the broker, so the next service gets it."""
    fill_and_notice(service, writer, lamp)
    for number in range(COMMANDS):
        writer.command(topic(lamp, "commands/modify"), "/attributes/n", number)
    service.kill()
    service.start_again()
    # Unconfirmed responses may come again, so read up to the response to the last command.
    last = writer.command(topic(lamp, "commands/modify"), "/attributes/n", COMMANDS)
    while writer.next()["headers"]["correlation-id"] != last:
        pass
    items = Reader(writer, lamp).all()
    assert [item["value"] for item in items if item["path"] == "/attributes/n"] == list(range(COMMANDS + 1))


def test_sigterm_while_the_disk_is_full_ends_with_0_and_loses_nothing(
    service: ServiceProcess, writer: MqttClient, lamp: str
) -> None:
    sent = fill_and_notice(service, writer, lamp)
    sent += [writer.command(topic(lamp, "commands/modify"), "/attributes/note", number) for number in range(50)]
    code, seconds = service.stop()
    assert code == 0, service.log()
    assert seconds < 10
    service.start_again()
    assert correlations([writer.next() for _ in sent]) == sent
    writer.assert_nothing_came(lamp)
    assert [item["value"] for item in Reader(writer, lamp).all()[-50:]] == list(range(50))
