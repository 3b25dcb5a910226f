"""Closing a connection: current messages are delivered, no new ones are read, within bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from connectivity.connections.lifecycle import ConnectionState, Status
from connectivity.connections.model import Connection
from connectivity.errors import Detail, NotConnected
from connectivity.management.client import Backoff
from connectivity.transports.base import CONSUME_DEFAULTS, ConsumeOptions, Done, Link
from tests.support.in_process.running_connection import Running, numbered, with_broker
from tests.support.in_process.service import pause, source, streaming, target, turn, until
from tests.support.memory_transport import CONNECTION_TYPE
from tests.support.temporary_journal import positions
from tests.support.wait import PATIENCE

pytestmark = pytest.mark.usefixtures("runs")


async def test_a_closed_connection_has_left_the_broker() -> None:
    running = await Running.opened()
    await running.supervisor.close()
    assert (running.supervisor.status, running.supervisor.status_details) == (Status.CLOSED, "closed")
    assert (running.broker.links, running.up()) == ([], 0)
    running.send(*numbered(1))
    await pause()
    assert running.answers() == []


async def test_closing_waits_until_accepted_commands_are_durable_and_answered() -> None:
    running = await Running.opened()
    running.harness.disk.hold()
    running.send(*numbered(1, 2))
    await until(lambda: running.harness.disk.commits == 2)
    closing = asyncio.create_task(running.supervisor.close(600))
    await pause()
    running.send(*numbered(3))
    await pause()
    assert not closing.done()
    assert len(running.broker.links) == 1
    running.harness.disk.release()
    await asyncio.wait_for(closing, PATIENCE)
    assert running.correlations() == ["1", "2"]
    assert running.harness.values() == [1, 2]
    assert running.unsettled() == 1


async def test_closing_waits_for_unconfirmed_events_to_avoid_duplicates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = await Running.opened(id="other", targets=[target("_/_/things/twin/events")])
    running.broker.withheld_confirms = 1
    running.harness.deliver(turn(1), turn(2))
    await until(lambda: len(running.answers("events")) == 2)
    newest = running.harness.journal.newest_seq()
    await asyncio.wait_for(running.supervisor.close(0.05), PATIENCE)
    await running.harness.event_publisher.close()
    assert positions(running.harness.journal)[0].seq == newest - 2, "the first one was never confirmed"
    again = await Running.opened(id="other", targets=[target("_/_/things/twin/events")])
    held: list[Done] = []
    monkeypatch.setattr(
        again.supervisor.clients[0].link, "_confirm", lambda _at, _sign, done, _error: held.append(done)
    )
    again.harness.deliver(turn(1), turn(2))
    await until(lambda: len(held) == 2)
    closing = asyncio.create_task(again.supervisor.close(600))
    await pause()
    again.harness.deliver(turn(3))
    await pause()
    assert not closing.done()
    for done in held:
        done(None)
    await asyncio.wait_for(closing, PATIENCE)
    await again.harness.event_publisher.close()
    assert positions(again.harness.journal)[0].seq == again.harness.journal.newest_seq() - 1, (
        "the third waits in the journal"
    )


async def test_closing_waits_for_the_brokers_confirmation_but_not_forever() -> None:
    running = await Running.opened()
    running.broker.withheld_confirms = 1
    running.send(*numbered(1))
    await running.answered(1)
    await asyncio.wait_for(running.supervisor.close(0.05), PATIENCE)
    assert (running.unsettled(), running.broker.links) == (1, [])


async def test_closing_does_not_wait_for_a_link_that_has_died() -> None:
    running = await Running.opened()
    running.broker.withheld_confirms = 1
    running.send(*numbered(1))
    await running.answered(1)
    with capture_logs() as lines:
        closing = asyncio.create_task(running.supervisor.close(600))
        await pause()
        assert not closing.done()
        running.broker.cut()
        await asyncio.wait_for(closing, PATIENCE)
    assert running.supervisor.status is Status.CLOSED
    assert lines == [], "nobody wants this link to be made again"


async def test_a_subscribe_beside_a_change_that_is_durable_after_the_close_opens_nothing() -> None:
    running = await Running.opened(
        source("in"),
        source("both", payloadMapping=["creating", "Ditto"]),
        mappingDefinitions={
            "creating": {
                "mappingEngine": "ImplicitThingCreation",
                "options": {"thing": {"thingId": "{{ header:device }}"}},
            }
        },
    )
    running.harness.disk.hold()
    running.send(streaming("subscribeForPersistedEvents", {}), to="both", device="acme.site:fan-1")
    await until(lambda: running.unsettled(1))
    await pause()
    await running.supervisor.close()
    running.harness.disk.release()
    await running.harness.store.commits.barrier()
    await pause()
    assert list(running.harness.streams) == []
    assert running.connection.id not in running.harness.streams.budgets


async def test_closing_ends_the_subscriptions_and_does_not_wait_for_their_elements() -> None:
    running = await Running.opened()
    running.send(*numbered(*range(300)))
    await running.answered(300)
    running.send(streaming("subscribeForPersistedEvents", {}))
    await running.answered(301)
    key = running.answers()[300]["value"]["subscriptionId"]
    running.broker.withheld_confirms = 100
    running.send(streaming("request", {"subscriptionId": key, "demand": 2**63 - 1}))
    await running.answered(302)
    closing = asyncio.create_task(running.supervisor.close(600))
    await pause()
    await until(lambda: list(running.harness.streams) == [])
    running.broker.cut()
    await asyncio.wait_for(closing, PATIENCE)


async def test_closing_while_the_store_is_unavailable_requeues_everything() -> None:
    running = await Running.opened()
    running.harness.disk.full = True
    with capture_logs():
        running.send(*numbered(1, 2))
        await until(lambda: running.harness.count("in", "held") == 2)
        await asyncio.wait_for(running.supervisor.close(600), PATIENCE)
        running.harness.disk.full = False
        await until(lambda: running.harness.store.commits.is_available)
        await pause()
    assert (running.answers(), running.harness.values(), running.unsettled()) == ([], [], 2)


async def test_closing_ends_even_if_the_last_commit_fails() -> None:
    running = await Running.opened()
    running.harness.disk.hold()
    with capture_logs():
        running.send(*numbered(1))
        await until(lambda: running.harness.disk.commits == 2)
        running.harness.disk.full = True
        closing = asyncio.create_task(running.supervisor.close(600))
        await pause()
        running.harness.disk.release()
        await asyncio.wait_for(closing, PATIENCE)
    assert (running.answers(), running.unsettled()) == ([], 1)


async def hang(connection: Connection, client: int = 0, consume: ConsumeOptions = CONSUME_DEFAULTS) -> Link:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody answers")


@pytest.mark.parametrize("moment", ["never opened", "connecting", "between two tries", "without failover"])
async def test_a_connection_can_be_closed_at_any_time(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(pauses=Backoff(60, 60), failoverEnabled=moment != "without failover")
    running.broker.refusal = NotConnected(Detail.REFUSED, "nobody listens")
    reached: dict[str, Callable[[], bool]] = {
        "never opened": lambda: True,
        "connecting": lambda: running.supervisor.clients[0].lifecycle.state is ConnectionState.CONNECTING,
        "between two tries": lambda: running.supervisor.clients[0].lifecycle.state is ConnectionState.WAITING,
        "without failover": lambda: running.supervisor.clients[0].lifecycle.state is ConnectionState.WAITING,
    }
    if moment == "connecting":
        with_broker(monkeypatch, replace(CONNECTION_TYPE, connect=hang))
    with capture_logs():
        if moment != "never opened":
            running.supervisor.open()
        await until(reached[moment])
        await asyncio.wait_for(running.supervisor.close(600), PATIENCE)
    assert running.supervisor.status is Status.CLOSED


async def test_closing_twice_is_closing_once() -> None:
    running = await Running.opened()
    await running.supervisor.close(1)
    await running.supervisor.close(1)
    assert running.supervisor.status is Status.CLOSED
