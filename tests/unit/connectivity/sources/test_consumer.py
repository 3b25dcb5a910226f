"""Deliveries that the store cannot take: they are held and processed in order of arrival."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.connections.lifecycle import Status
from connectivity.dispatch.dispatcher import Dispatcher
from connectivity.errors import Detail, NotConnected
from connectivity.management.client import Backoff
from connectivity.sources.consumer import PART_BYTES, RetryBuffer, SourceConsumer, next_part
from connectivity.sources.delivery import InboundDelivery
from connectivity.sources.turns import MOST_DELIVERIES as PART
from connectivity.sources.turns import SourceTurns, UserTurns
from connectivity.targets import outbox
from connectivity.transports.base import Delivery
from mappings.model.envelope import Envelope
from tests.support.in_process.running_connection import Running, numbered
from tests.support.in_process.service import command, pause, source, turn, until
from tests.support.memory_transport import CONNECTION_TYPE, MemoryLink
from tests.support.wait import PATIENCE

pytestmark = pytest.mark.usefixtures("runs")


async def test_while_the_store_is_full_deliveries_are_held_and_later_processed_in_order() -> None:
    running = await Running.opened(source("in"), source("other", replyTarget={"address": "there"}))
    running.harness.disk.full = True
    with capture_logs() as lines:
        running.send(*numbered(1, 2))
        running.send(command("retrieve", "/attributes/on", correlation_id="r"))
        running.send(command("retrieve", correlation_id="s"), to="other")
        await until(lambda: not running.harness.store.commits.is_available)
        running.send(*numbered(3))
        running.send(b"no json", correlation_id="x")
        running.send(*numbered(4))
        await until(lambda: running.harness.disk.probes > 5)
        assert (running.answers(), running.answers("there")) == ([], [])
        assert running.supervisor.status is Status.OPEN
        assert running.supervisor.status_details == "store unavailable: the disk is full"
        running.harness.disk.full = False
        assert await running.answered(6) == ["1", "2", "r", "3", "x", "4"]
        await running.answered(1, "there")
    assert running.answers()[2]["value"] == 2
    assert running.harness.values() == [1, 2, 3, 4]
    await until(lambda: running.unsettled(0) == running.unsettled(1) == 0)
    assert running.supervisor.status_details == "connected"
    assert [line["event"] for line in lines].count("store unavailable") == 1


async def test_a_full_store_is_not_retried_in_a_busy_loop() -> None:
    """Held deliveries wait for the probe; later ones wait behind them, at the broker if possible."""
    running = await Running.opened()
    running.harness.disk.full = True
    with capture_logs():
        running.send(*numbered(*range(2000)))
        await until(lambda: running.harness.disk.probes > 20)
        commits, held = running.harness.disk.commits, running.harness.count("in", "held")
        await until(lambda: running.harness.disk.probes > 40)
        assert (running.harness.disk.commits, running.harness.count("in", "held")) == (commits, held)
        assert held <= 1000
        running.harness.disk.full = False
        assert await running.answered(2000) == [str(number) for number in range(2000)]
    assert running.harness.count("in", "held") == held


async def test_a_store_that_fails_again_holds_again_in_the_same_order() -> None:
    """A successful probe does not mean that the next commit fits."""
    running = await Running.opened()
    running.harness.disk.probe = lambda: None  # type: ignore[method-assign]
    running.harness.disk.full = True
    with capture_logs():
        running.send(*numbered(*range(20)))
        await until(lambda: running.harness.disk.commits > 4)
        running.send(*numbered(*range(20, 40)))
        await until(lambda: running.harness.disk.commits > 6)
        assert running.answers() == []
        running.harness.disk.full = False
        assert await running.answered(40) == [str(number) for number in range(40)]
    assert running.harness.values() == list(range(40))


async def test_deliveries_of_an_ended_link_are_not_processed_besides_their_redeliveries() -> None:
    running = await Running.opened()
    running.harness.disk.full = True
    with capture_logs():
        running.send(*numbered(1, 2))
        await until(lambda: running.harness.count("in", "held") == 2)
        await running.linked_again()
        running.send(*numbered(3))
        running.harness.disk.full = False
        assert await running.answered(3) == ["1", "2", "3"]
        await pause()
    assert running.correlations() == ["1", "2", "3"]
    assert running.harness.values() == [1, 2, 3]


async def test_a_commit_that_fails_after_its_link_has_died_is_left_to_the_next_link() -> None:
    running = await Running.opened()
    running.harness.disk.hold()
    with capture_logs():
        running.send(*numbered(1))
        await until(lambda: running.harness.disk.commits == 2)
        await running.linked_again()
        await until(lambda: running.unsettled() == 1)
        running.harness.disk.full = True
        running.harness.disk.release()
        await until(lambda: not running.harness.store.commits.is_available)
        running.harness.disk.full = False
        await running.answered(1)
        await until(lambda: running.unsettled() == 0)
        await pause()
    assert (running.correlations(), running.harness.values()) == (["1"], [1])


@pytest.mark.parametrize("clients", [1, 2])
async def test_an_internal_error_while_retrying_strands_no_delivery(
    monkeypatch: pytest.MonkeyPatch, clients: int
) -> None:
    """The links end, and the broker redelivers over the next ones."""
    handle = Dispatcher.handle
    mistakes: list[Exception] = []

    def fail(self: Dispatcher, *arguments: Any) -> None:
        if mistakes:
            raise mistakes.pop()
        handle(self, *arguments)

    monkeypatch.setattr(Dispatcher, "handle", fail)
    running = await Running.opened(clientCount=clients)
    await until(lambda: len(running.broker.links) == clients)
    running.harness.disk.full = True
    with capture_logs() as lines:
        running.send(*numbered(1, 2, 3))
        await until(lambda: running.harness.count("in", "held") == 3)
        mistakes.append(ZeroDivisionError("an internal error"))
        running.harness.disk.full = False
        assert sorted(await running.answered(3)) == ["1", "2", "3"]
        await until(lambda: running.unsettled() == 0)
    assert sorted(running.harness.values()) == [1, 2, 3]
    assert [line["event"] for line in lines].count("source stopped") == clients
    assert "connecting: source stopped: ZeroDivisionError" in [line.get("reason") for line in lines]


@pytest.mark.parametrize("held", [False, True], ids=["at once", "after a full disk"])
async def test_a_long_list_of_deliveries_is_processed_in_parts_with_turns_for_others(
    monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    """Each part is a turn of the event loop of its own, and the order is kept."""
    handle = Dispatcher.handle
    turns = 0
    processed: list[tuple[int, int]] = []

    def note(self: Dispatcher, arrivals: Sequence[InboundDelivery], postponed: Any) -> None:
        processed.append((len(arrivals), turns))
        handle(self, arrivals, postponed)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(Dispatcher, "handle", note)
    running = await Running.opened()
    processed.clear()
    turning = asyncio.get_running_loop().create_task(count_turns())
    if held:
        running.harness.disk.full = True
        with capture_logs():
            running.send(*numbered(*range(100)))
            await until(lambda: running.harness.count("in", "held") == 100)
            processed.clear()
            running.harness.disk.full = False
            await running.answered(100)
    else:
        running.send(*numbered(*range(100)))
    assert await running.answered(100) == [str(number) for number in range(100)]
    assert sum(size for size, _ in processed) == 100
    assert max(size for size, _ in processed) <= PART
    assert len({turn for _, turn in processed}) == len(processed)
    turning.cancel()


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1], [1]),
        ([1] * (2 * PART + 1), [PART, PART, 1]),
        ([PART_BYTES, 1, 1], [1, 2]),
        ([1, PART_BYTES], [1, 1]),
        ([3 * PART_BYTES] * 2, [1, 1]),
    ],
)
def test_parts_of_a_list_of_deliveries_are_bounded_in_number_and_bytes(sizes: list[int], expected: list[int]) -> None:
    deliveries = [Delivery(Envelope(bytes(size), {}), "in", None, False, lambda *_: None) for size in sizes]
    found: list[Sequence[Delivery]] = []
    end = 0
    while end < len(deliveries):
        part = next_part(deliveries, end, PART)
        found.append(deliveries[part])
        end = part.stop
    assert [len(part) for part in found] == expected
    assert [delivery for part in found for delivery in part] == deliveries


class User:
    """A user of a listener."""


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> dict[str, User]:
    """Users of deliveries by the header `user`, as at a listener; they arrived `age` seconds ago."""
    known: dict[str, User] = {}
    deliver = MemoryLink._deliver

    def with_user(self: MemoryLink, queue: Any) -> Delivery:
        delivery = deliver(self, queue)
        if (name := delivery.envelope.headers.get("user")) is not None:
            delivery.user = known.setdefault(name, User())
        delivery.arrived -= float(delivery.envelope.headers.get("age", "0"))
        return delivery

    monkeypatch.setattr(MemoryLink, "_deliver", with_user)
    return known


async def test_a_users_delivery_waits_for_one_turn_of_another_user_of_the_same_source(
    monkeypatch: pytest.MonkeyPatch, users: dict[str, User]
) -> None:
    """For any number of deliveries of the other, and although it pauses after each turn."""
    handle = Dispatcher.handle
    processed: list[object] = []

    def slowly(self: Dispatcher, arrivals: Sequence[InboundDelivery], postponed: Any) -> None:
        for arrival in arrivals:
            processed.append(arrival.delivery.user)
            if arrival.delivery.user is not users.get("good"):
                time.sleep(0.002)
        handle(self, arrivals, postponed)

    monkeypatch.setattr(Dispatcher, "handle", slowly)
    running = await Running.opened()
    running.send(*numbered(0), user="good")
    running.send(*numbered(*range(1, 100)), user="busy")
    await until(lambda: len(processed) > 40)
    begun = len(processed)
    running.send(*numbered(100), user="good")
    assert sorted(map(int, await running.answered(101))) == list(range(101))
    assert processed[begun:].index(users["good"]) <= 2
    busy = [int(name) for name in running.correlations() if name not in ("0", "100")]
    assert busy == sorted(busy), "the order of each user is kept"


async def test_deliveries_of_users_that_wait_when_their_link_ends_are_not_processed(users: dict[str, User]) -> None:
    running = await Running.opened(pauses=Backoff(60, 60))
    running.harness.disk.full = True
    with capture_logs():
        running.send(*numbered(1), user="one")
        await until(lambda: running.harness.count("in", "held") == 1)
        running.send(*numbered(*range(2, 50)), user="one")
        running.send(*numbered(*range(50, 60)), user="other")
        await pause()
        running.broker.cut("the cable was cut")
        running.harness.disk.full = False
        await until(lambda: running.harness.store.commits.is_available)
        await pause()
    assert (running.answers(), running.harness.values()) == ([], [])
    assert running.unsettled() == 59


async def test_the_oldest_unsettled_delivery_may_be_that_of_a_user_who_has_waited_for_a_turn(
    monkeypatch: pytest.MonkeyPatch, users: dict[str, User]
) -> None:
    """Its age is measured, and it is rejected in time, although younger deliveries of others were processed before."""
    running = await Running.opened()
    deliveries = running.supervisor.deliveries
    monkeypatch.setattr(deliveries, "process", lambda *_: None)
    running.send(*numbered(1), user="one", age="5")
    running.send(*numbered(2), user="other", age="50")
    await pause()
    now = time.monotonic()
    assert deliveries.unsettled_seconds(now)[0] >= 50
    for consumer in deliveries._consumers:
        consumer.working_since -= 50
    with capture_logs() as lines:
        deliveries.reject_overdue(now, 40)
    assert [line["seconds"] for line in lines] == [50]
    assert (running.unsettled(), len(running.broker.dropped)) == (1, 1)


async def test_an_internal_error_with_a_users_delivery_ends_the_link(
    monkeypatch: pytest.MonkeyPatch, users: dict[str, User]
) -> None:
    handle = Dispatcher.handle
    mistakes: list[Exception] = []

    def fail(self: Dispatcher, *arguments: Any) -> None:
        if mistakes:
            raise mistakes.pop()
        handle(self, *arguments)

    monkeypatch.setattr(Dispatcher, "handle", fail)
    running = await Running.opened()
    mistakes.append(ZeroDivisionError("an internal error"))
    with capture_logs() as lines:
        running.send(*numbered(1, 2, 3), user="one")
        assert await running.answered(3) == ["1", "2", "3"]
    assert [line["event"] for line in lines].count("source stopped") == 1


ACKS = ["twin-persisted", "search-persisted"]


async def test_a_command_that_requests_acknowledgements_survives_a_full_disk_and_a_lost_link() -> None:
    running = await Running.opened()
    running.harness.disk.full = True
    with capture_logs():
        running.send(turn(1, correlation_id="1", requested_acks=ACKS))
        await until(lambda: running.harness.count("in", "held") == 1)
        await running.linked_again()
        running.harness.disk.full = False
        await running.answered(1)
        await until(lambda: running.unsettled() == 0)
        await pause()
    assert (running.correlations(), running.harness.values()) == (["1"], [1])
    assert running.answers()[0]["topic"].endswith("/things/twin/acks")


async def test_a_command_that_requests_acknowledgements_survives_a_link_lost_before_its_commit_fails() -> None:
    running = await Running.opened()
    running.harness.disk.hold()
    with capture_logs():
        running.send(turn(1, correlation_id="1", requested_acks=ACKS))
        await until(lambda: running.harness.disk.commits == 2)
        await running.linked_again()
        await until(lambda: running.unsettled() == 1)
        await pause()
        running.harness.disk.full = True
        running.harness.disk.release()
        await until(lambda: not running.harness.store.commits.is_available)
        running.harness.disk.full = False
        await running.answered(1)
        await until(lambda: running.unsettled() == 0)
        await pause()
    assert (running.correlations(), running.harness.values()) == (["1"], [1])


async def with_consumer(running: Running) -> asyncio.Task[None]:
    """Run one consumer over a link of its own, with a short pause."""
    harness = running.harness
    await running.supervisor.close()
    link = await CONNECTION_TYPE.connect(running.connection)
    harness.outbox.detach()
    harness.outbox.attach(link)
    return asyncio.create_task(
        SourceConsumer(
            harness.readers[0],
            RetryBuffer(
                "site",
                harness.dispatcher.handle,
                harness.store,
                SourceTurns(harness.store.commits.progress),
                pause=0.01,
            ),
        ).run(link)
    )


async def test_an_unreadable_store_is_retried_after_a_pause() -> None:
    running = await Running.opened()
    harness, intake = running.harness, await with_consumer(running)
    harness.store._cache.clear()
    harness.disk.unreadable = True
    with capture_logs() as lines:
        running.send(*numbered(1, 2))
        await until(lambda: len(lines) >= 3)
        running.send(*numbered(3))
        assert running.answers() == []
        assert len(lines) < 10
        harness.disk.unreadable = False
        assert await running.answered(3) == ["1", "2", "3"]
    assert harness.values() == [1, 2, 3]
    running.broker.cut()
    await intake


async def test_a_change_that_cannot_be_stored_does_not_change_the_order_of_the_others() -> None:
    running = await Running.opened()
    harness, intake = running.harness, await with_consumer(running)
    harness.disk.rejected.add(b'"bad"')
    with capture_logs():
        for number in range(12):
            running.send(turn("bad" if number % 4 == 2 else number, correlation_id=str(number)))
            await pause(number)
        await running.answered(12)
        # After an internal error a delivery is rejected: its sender has got the response.
        await until(lambda: running.unsettled() == 0)
    assert harness.values() == [number for number in range(12) if number % 4 != 2]
    failed = [answer["headers"]["correlation-id"] for answer in running.answers() if answer["status"] == 500]
    assert failed == ["2", "6", "10"]
    assert len(running.broker.dropped) == 3
    running.broker.cut()
    await intake


async def test_deliveries_of_several_clients_and_sources_are_processed_in_order_of_arrival() -> None:
    running = await Running.opened(source("in"), source("other"), clientCount=3)
    await until(lambda: len(running.broker.links) == 3)
    running.harness.disk.full = True
    with capture_logs():
        for number in range(60):
            running.send(*numbered(number), to="other" if number % 3 == 1 else "in")
            await pause(number % 4)
        await until(lambda: running.harness.count("in", "held") >= 1)
        await until(lambda: running.harness.disk.probes > 5)
        assert running.answers() == []
        running.harness.disk.full = False
        correlations = await running.answered(60)
    assert [int(correlation) for correlation in correlations] == running.harness.values()
    assert sorted(running.harness.values()) == list(range(60))
    await until(lambda: running.unsettled(0) == running.unsettled(1) == 0)


async def test_deliveries_of_an_ended_link_are_dropped_and_the_others_processed() -> None:
    running = await Running.opened(clientCount=2, pauses=Backoff(60, 60))
    await until(lambda: len(running.broker.links) == 2)
    running.harness.disk.full = True
    with capture_logs():
        running.send(*numbered(*range(20)))
        await until(lambda: running.harness.count("in", "held") == 20)
        running.broker.links[0].die(NotConnected(Detail.CONNECTING, "the cable was cut"))
        await pause()
        running.harness.disk.full = False
        await until(lambda: running.unsettled() == 0)
    assert sorted(running.harness.values()) == list(range(20))


async def test_case_51_minutes_in_which_a_link_was_throttled_are_counted_at_the_source() -> None:
    running = await Running.opened(source("in"), source("other"))
    (link,) = running.broker.links
    for minutes in (1, 1, 3):
        link.throttled = minutes
        running.send(*numbered(minutes))
        await pause()
    await running.answered(3)
    inbound = running.metrics()["sourceMetrics"]["addressMetrics"]
    assert [inbound[name]["throttled"]["success"]["PT1M"] for name in ("in", "other")] == [3, 0]


async def test_b1_a_delivery_handed_back_during_a_commit_is_processed_before_the_next_one() -> None:
    running = await Running.opened()
    await running.harness.has_lamp("lamp-8")
    commits = running.harness.disk.commits
    running.harness.disk.hold()
    with capture_logs() as lines:
        running.send(command("modify", "/attributes/on", 0, name="lamp-8", correlation_id="0"))
        await until(lambda: running.harness.disk.commits > commits)
        running.harness.store._cache.clear()
        running.harness.disk.unreadable = True
        running.send(*numbered(1))
        await until(lambda: any(line["event"] == "the store cannot be read" for line in lines))
        running.harness.disk.unreadable = False
        running.send(*numbered(2))
        await pause()
        running.harness.disk.release()
        await running.answered(3)
    assert running.harness.values() == [1, 2]


async def test_a_source_waits_while_many_bytes_of_answers_wait_for_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FULL_BYTES", 1)
    running = await Running.opened()
    (link,), waiting = running.broker.links, running.supervisor._outbox
    window, link.window = link.window, 0
    running.send(*numbered(1))
    await until(lambda: len(waiting) == 1)
    running.send(*numbered(2, 3))
    await until(lambda: waiting._queues[0]._room is not None)
    assert (running.harness.values(), running.unsettled()) == ([1], 3)
    link.window = window
    waiting._link_windows[0].flush()
    assert await running.answered(3) == ["1", "2", "3"]
    assert running.unsettled() == 0


async def test_a_connection_whose_deliveries_are_held_keeps_no_turn_from_others() -> None:
    running = await Running.opened()
    turns = SourceTurns(running.harness.store.commits.progress)
    buffer = RetryBuffer("site", running.harness.dispatcher.handle, running.harness.store, turns)
    other = UserTurns()
    turns.begin(other)
    turns.end(other, 1)
    buffer.recovery = asyncio.get_running_loop().create_task(asyncio.sleep(PATIENCE))
    waiting = asyncio.create_task(buffer.begin_turn(buffer.user_turns))
    await pause()
    assert not waiting.done()
    assert turns.begin(other)
    turns.end(other, 1)
    recovery, buffer.recovery = buffer.recovery, None
    recovery.cancel()
    waiting.cancel()
