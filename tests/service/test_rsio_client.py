"""The example client of reactive-streams-io misses no element while its broker or listener is down."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from examples.rsio_client import Client, StreamError
from examples.rsio_links import connector
from mappings.reactive_streams_io.limits import EndpointLimits
from tests.support.brokers import free_port
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.connection_documents import READ, client, connection, example, policy_for, source, topic
from tests.support.in_process.reactive_streams_io import revisions as revisions_of
from tests.support.paths import ROOT
from tests.support.service_process import ServiceProcess
from tests.support.wait import PATIENCE, wait_until, wait_until_sync

pytestmark = pytest.mark.broker("mosquitto")

OWNER = "demo:clients"
HISTORY = "things/acme.site:lamp/history"


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    """A broker that tests may kill."""
    with Mosquitto.start() as own:
        yield own


@pytest.fixture(scope="module")
def places(broker: Mosquitto) -> dict[str, str]:
    """The addresses of the example connections."""
    return {"readers": f"tcp://{broker.host}:{broker.port}", "tcp-listener": f"tcp://127.0.0.1:{free_port()}"}


@pytest.fixture(scope="module")
def service(
    broker: Mosquitto, places: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    """A service with the example connections, and a lamp of three revisions."""
    documents = [example(name) | {"uri": uri} for name, uri in places.items()]
    documents.append(connection(broker, source("setup", OWNER)))
    reconnect = {"min": "0.1s", "max": "0.5s"}
    with ServiceProcess.start(tmp_path_factory.mktemp("rsio"), documents, reconnect=reconnect) as running:
        with client(broker, "setup") as setup:
            policy = policy_for(OWNER, **{"demo_back-end": {"thing:/": READ}})
            created = setup.ask_for(topic("lamp", "commands/create"), value={"_policy": policy})
            assert created["status"] == 201, created
        switch(broker, 2, 3)
        yield running


def switch(broker: Mosquitto, *numbers: int) -> None:
    """Write another revision of the lamp for each number."""
    with client(broker, "setup") as setup:
        for number in numbers:
            answer = setup.ask_for(topic("lamp", "commands/modify"), "/attributes/n", number)
            assert answer["status"] in (201, 204), answer


def newest(broker: Mosquitto) -> int:
    """The lamp's revision."""
    with client(broker, "setup") as setup:
        return int(setup.ask_for(topic("lamp", "commands/retrieve"), fields="_revision")["value"]["_revision"])


def statuses(service: ServiceProcess) -> set[str]:
    return {service.status(each)["status"] for each in ("readers", "site")}


@pytest.fixture(params=["mqtt", "tcp"])
def at(places: dict[str, str], request: pytest.FixtureRequest) -> str:
    """The address that a client connects to."""
    return places["tcp-listener"] if request.param == "tcp" else places["readers"].replace("tcp", "mqtt")


@pytest.mark.usefixtures("service")
async def test_a_history_is_read_by_several_at_once(at: str) -> None:
    async def revisions(reader: Client, publisher: str) -> list[int]:
        return revisions_of([element async for element in reader.subscribe(publisher, 2)])

    async with Client(connector(at)) as one, Client(connector(at)) as two, asyncio.timeout(PATIENCE):
        asked = (revisions(one, f"{HISTORY}?to=3"), revisions(one, f"{HISTORY}?from=2&to=2"), revisions(two, HISTORY))
        assert [found[:3] for found in await asyncio.gather(*asked)] == [[1, 2, 3], [2], [1, 2, 3]]
        with pytest.raises(StreamError) as refused:
            await revisions(two, "things/acme.site:safe/history")
    assert refused.value.status == 404


@pytest.mark.usefixtures("service")
def test_the_program_prints_its_elements_or_the_refusal(at: str) -> None:
    def ran(*words: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "examples.rsio_client", *words, "--at", at]
        return subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)

    read = ran(f"{HISTORY}?from=2&fields=path,value,revision", "--count", "2", "--window", "1")
    assert (read.returncode, read.stderr) == (0, "")
    assert [json.loads(line) for line in read.stdout.splitlines()] == [
        {"path": "/attributes/n", "value": number, "revision": number} for number in (2, 3)
    ]
    refused = ran("things/acme.site:safe/history")
    assert (refused.returncode, refused.stdout, refused.stderr[:12]) == (1, "", "refused: 404")


def report(number: int, **headers: str) -> bytes:
    command = {"topic": topic("lamp", "commands/modify"), "path": "/attributes/n", "value": number, "headers": headers}
    return json.dumps(command).encode()


@pytest.mark.usefixtures("service")
def test_all_commands_of_a_program_that_ends_at_once_take_effect(broker: Mosquitto, places: dict[str, str]) -> None:
    before = newest(broker)
    program = [sys.executable, "-m", "examples.rsio_client", "ingest/reports", "--publish", "--topic", "reports"]
    ran = subprocess.run(
        [*program, "--at", places["readers"].replace("tcp", "mqtt")],
        cwd=ROOT,
        input=b"\n".join(report(number) for number in range(400)),
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    wait_until_sync(lambda: newest(broker) == before + 400)


async def test_reports_take_effect_in_order_and_once_despite_a_kill_of_the_service(
    broker: Mosquitto, service: ServiceProcess, places: dict[str, str]
) -> None:
    """Reports that may not be stored are sent again, and recognized by their keys."""
    count = 600
    first = await asyncio.to_thread(newest, broker) + 1

    async def reports() -> AsyncGenerator[bytes, None]:
        for number in range(count):
            if number == count // 2:
                # All reports take effect, but the client has the confirms of only the greater part.
                await asyncio.to_thread(wait_until_sync, lambda: newest(broker) == first + count // 2 - 1, PATIENCE)
                await asyncio.to_thread(service.kill)
                await asyncio.to_thread(service.start_again)
            yield report(number, **{"idempotency-key": f"report-{number}"})

    found = list[dict[str, Any]]()
    at = connector(places["readers"].replace("tcp", "mqtt"), prefix="reports")
    async with Client(at, EndpointLimits(silence_before_ping=2.0)) as reporter, asyncio.timeout(PATIENCE):
        await reporter.publish("ingest/reports", reports())
        async with aclosing(reporter.follow(f"{HISTORY}?from={first}&follow=true")) as elements:
            async for element in elements:
                found.append(json.loads(element))
                if len(found) == count:
                    break
    assert [event["value"] for event in found] == list(range(count))
    assert await asyncio.to_thread(newest, broker) == first + count - 1


async def test_a_reader_misses_no_event_while_broker_and_service_are_down(
    broker: Mosquitto, service: ServiceProcess, at: str
) -> None:
    """Events come in order, once: after a restart of the broker, and after a restart of the service."""
    received: list[int] = []

    async def follow(reader: Client) -> None:
        async with aclosing(reader.follow(f"{HISTORY}?follow=true&from={first}", 4)) as elements:
            async for element in elements:
                received.extend(revisions_of([element]))

    async def wait_for(number: int) -> None:
        await wait_until(lambda: received == list(range(first, first + number)) or following.done())
        if following.done():
            # It has failed.
            following.result()

    first = await asyncio.to_thread(newest, broker) + 1
    # A client pings after silence, so that it soon notices a service that has lost its session.
    async with Client(connector(at), EndpointLimits(silence_before_ping=2.0)) as reader:
        following = asyncio.create_task(follow(reader))
        await asyncio.to_thread(switch, broker, 1, 2)
        await wait_for(2)
        broker.kill()
        await wait_until(lambda: statuses(service).isdisjoint({"open"}))
        await asyncio.to_thread(broker.start_again)
        await wait_until(lambda: statuses(service) == {"open"})
        await asyncio.to_thread(switch, broker, *range(10))
        await wait_for(12)
        await asyncio.to_thread(service.kill)
        await asyncio.to_thread(service.start_again)
        await asyncio.to_thread(switch, broker, *range(10))
        await wait_for(22)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
