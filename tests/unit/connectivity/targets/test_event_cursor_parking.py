"""A target's broker refuses messages to the address of a thing: that thing waits, others continue."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.errors import ConnectivityError, MessageRefused, PublishFailed
from connectivity.targets import event_cursor as module
from connectivity.targets import event_publisher, parked_things
from connectivity.targets.event_cursor import Result
from mappings.ids import EntityId, EntityType
from spark_store.errors import StoreUnavailable
from spark_store.journal import erasure
from spark_store.records import HistoryStart
from tests.support.in_process.event_followers import EVENTS, add_follower, cursor, events, write_values
from tests.support.in_process.service import (
    LAMP,
    ConnectionHarness,
    Disk,
    command,
    pause,
    source,
    target,
    turn,
    until,
)
from tests.support.journal_entries import LATER
from tests.support.temporary_journal import positions

pytestmark = pytest.mark.usefixtures("harnesses")

BY_NAME = "events/{{ thing:name }}"
ID = "acme.site:lamp-7"


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHORTEST_PAUSE", 0.001)
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.002)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable automatic retries."""
    monkeypatch.setattr(module, "back_off", lambda *_, **__: 3600.0)


async def unroutable(*more: str, **with_target: Any) -> tuple[ConnectionHarness, ConnectionHarness]:
    """Lamps 7 to 9 and a connection with their events; lamp-7 and the given ones have no queue."""
    harness = ConnectionHarness(source())
    for name in ("lamp-7", "lamp-8", "lamp-9"):
        await harness.has_lamp(name)
    other = await add_follower(harness, target(EVENTS, **{"address": BY_NAME, **with_target}))
    other.link.unroutable = {f"events/{name}" for name in ("lamp-7", *more)}
    return harness, other


async def changed(harness: ConnectionHarness, *changes: tuple[str, Any]) -> None:
    """Turn these lamps one after the other, and wait until that is durable."""
    newest = harness.store.tail.newest
    harness.deliver(*(turn(value, name=name) for name, value in changes))
    await until(lambda: harness.store.tail.newest == newest + len(changes))


def received(harness: ConnectionHarness, name: str) -> list[int]:
    """The revisions of a lamp that the broker has accepted or refused."""
    return [event["revision"] for event in events(harness) if event["topic"].split("/")[1] == name]


def is_done(harness: ConnectionHarness) -> bool:
    """Return whether the target of a connection has no event left."""
    it = cursor(harness)
    return not it.parked and it.seq == harness.store.tail.newest


def make_due(harness: ConnectionHarness, other: ConnectionHarness) -> None:
    """The pause of lamp-7 is over."""
    cursor(other).parked.refused(LAMP, "no queue", -7200.0)
    harness.event_publisher.wake()


def result_of(it: module.EventCursor, seq: int) -> list[Result]:
    results: list[Result] = []
    it.listen(seq, results.append)
    return results


@pytest.mark.usefixtures("patient")
async def test_events_of_other_things_pass_a_thing_whose_address_is_refused() -> None:
    harness, other = await unroutable()
    with capture_logs() as lines:
        await changed(harness, ("lamp-7", 1), ("lamp-8", 1), ("lamp-7", 2), ("lamp-9", 1), ("lamp-8", 2))
        await until(lambda: received(other, "lamp-8") == [2, 3])
    it = cursor(other)
    assert (received(other, "lamp-9"), received(other, "lamp-7")) == ([2], [2])
    assert (it.seq, it.parked.positions) == (harness.store.tail.newest, ((ID, 2),))
    (line,) = [line for line in lines if line["event"] == "thing parked"]
    assert (line["entity"], line["revision"], line["error"]) == (ID, 2, "no queue events/lamp-7")


async def test_a_parked_thing_gets_all_its_events_in_order_once_its_address_is_accepted() -> None:
    harness, other = await unroutable()
    await changed(harness, ("lamp-7", 1), ("lamp-7", 2), ("lamp-8", 1), ("lamp-7", 3))
    await until(lambda: received(other, "lamp-8") == [2])
    await until(lambda: received(other, "lamp-7")[:4] == [2] * 4)
    other.link.unroutable.clear()
    with capture_logs() as lines:
        await until(lambda: is_done(other))
    assert received(other, "lamp-7")[-3:] == [2, 3, 4]
    assert [line["event"] for line in lines] == ["thing continues"]
    await changed(harness, ("lamp-7", 4))
    await until(lambda: received(other, "lamp-7")[-4:] == [2, 3, 4, 5])
    assert received(other, "lamp-8") == [2], "nothing of other things is repeated"


async def test_accepted_events_after_a_refused_one_of_the_thing_are_sent_again() -> None:
    """The last event that a reader gets of a thing is the newest."""
    harness, other = await unroutable(address="events/{{ header:device }}")
    other.link.unroutable = {"events/b"}
    other.link.confirms = False
    await write_values(harness, 1, device="a")
    await write_values(harness, 2, device="b")
    await write_values(harness, 3, device="a")
    await until(lambda: len(other.link.published) == 3)
    other.link.confirms = True
    other.link.confirm(1)
    other.link.confirm(1, MessageRefused("no queue"))
    other.link.confirm(1)
    other.link.unroutable.clear()
    await until(lambda: is_done(other))
    assert received(other, "lamp-7") == [2, 3, 4, 3, 4]


async def test_a_refusal_before_the_one_that_parked_the_thing_goes_first() -> None:
    """Brokers may confirm in any order where one thing has several addresses."""
    harness, other = await unroutable()
    other.link.confirms = False
    await changed(harness, ("lamp-7", 1), ("lamp-7", 2))
    await until(lambda: len(other.link.published) == 2)
    other.link._done.reverse()
    other.link.unroutable.clear()
    other.link.confirms = True
    other.link.confirm(1, MessageRefused("no queue"))
    other.link.confirm(1, PublishFailed("busy"))
    await until(lambda: is_done(other))
    assert received(other, "lamp-7")[-2:] == [2, 3]


async def test_an_unconfirmed_event_before_the_refused_one_is_sent_after_the_connection_was_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if the cursor reaches it before the thing is retried."""
    harness, other = await unroutable()
    other.link.confirms = False
    await changed(harness, ("lamp-7", 1), ("lamp-7", 2))
    await until(lambda: len(other.link.published) == 2)
    other.link._done.reverse()
    other.link.confirm(1, MessageRefused("no queue"))
    other.close_connection()
    retries = module.EventCursor.next_retry
    monkeypatch.setattr(module.EventCursor, "next_retry", lambda _: None)
    again = await add_follower(harness, target(EVENTS, address=BY_NAME))
    await until(lambda: cursor(again).judged == harness.store.tail.newest)
    monkeypatch.setattr(module.EventCursor, "next_retry", retries)
    harness.event_publisher.wake()
    await until(lambda: is_done(again))
    assert received(again, "lamp-7")[-2:] == [2, 3]


@pytest.mark.usefixtures("patient")
async def test_a_thing_is_not_parked_behind_an_event_that_the_cursor_goes_back_to() -> None:
    harness, other = await unroutable()
    other.link.confirms = False
    await changed(harness, ("lamp-7", 1), ("lamp-7", 2), ("lamp-8", 1))
    await until(lambda: len(other.link.published) == 3)
    other.link.confirm(1, PublishFailed("busy"))
    other.link.confirm(1, MessageRefused("no queue"))
    assert not cursor(other).parked
    other.link.confirm(1)
    assert cursor(other).reason == "no queue"


@pytest.mark.parametrize("error", [PublishFailed("busy"), MessageRefused("no queue")])
@pytest.mark.parametrize("address", ["events", BY_NAME])
async def test_a_thing_is_parked_only_if_other_addresses_may_be_accepted(
    error: ConnectivityError, address: str
) -> None:
    harness, other = await unroutable(address=address)
    other.link.confirms = False
    await changed(harness, ("lamp-8", 1))
    await until(lambda: len(other.link.published) == 1)
    other.link.confirm(1, error)
    assert len(cursor(other).parked) == (isinstance(error, MessageRefused) and address == BY_NAME)
    other.link.confirms = True
    await until(lambda: is_done(other))


async def test_with_too_many_parked_things_the_target_waits_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_things, "MAX_PARKED", 1)
    harness, other = await unroutable("lamp-8")
    await changed(harness, ("lamp-7", 1), ("lamp-8", 1), ("lamp-9", 1))
    await until(lambda: len(received(other, "lamp-8")) > 2)
    assert (cursor(other).parked.positions, received(other, "lamp-9")[1:]) == (((ID, 2),), [])
    other.link.unroutable.remove("events/lamp-8")
    await changed(harness, ("lamp-9", 2))
    await until(lambda: cursor(other).seq == harness.store.tail.newest)
    assert received(other, "lamp-9")[-2:] == [2, 3]
    assert (cursor(other).parked.positions, cursor(other).skipped) == (((ID, 2),), 0)


@pytest.mark.usefixtures("patient")
async def test_acknowledgements_for_events_of_a_parked_thing_fail_at_once() -> None:
    harness, other = await unroutable()
    it, newest = cursor(other), harness.store.tail.newest
    first, second = result_of(it, newest + 1), result_of(it, newest + 2)
    await changed(harness, ("lamp-7", 1), ("lamp-7", 2))
    await until(lambda: bool(second))
    assert [str(result) for result in (*first, *second)] == ["no queue events/lamp-7"] * 2
    assert it.is_passed(newest + 1)
    found = harness.event_publisher.signal_context(harness.store.tail.after(newest, 1)[0])
    again: list[Result] = []
    it.again(found.signal, again.append)
    assert [str(result) for result in again] == ["no queue events/lamp-7"]


async def test_a_parked_thing_gets_only_what_its_target_selects() -> None:
    """As if it had not waited: no filtered events, and no events of its own connection."""
    harness, other = await unroutable(topics=[f"{EVENTS}?filter=lt(attributes/on,10)"])
    await changed(harness, ("lamp-7", 1), ("lamp-7", 20))
    other.deliver(turn(3))
    await until(lambda: harness.store.tail.newest == cursor(other).judged == 9)
    await changed(harness, ("lamp-7", 4))
    other.link.unroutable.clear()
    await until(lambda: is_done(other))
    assert [revision for revision in received(other, "lamp-7") if revision > 2] == [5]


async def test_an_event_that_can_never_be_sent_is_skipped_and_the_parked_thing_continues() -> None:
    harness, other = await unroutable()
    await changed(harness, ("lamp-7", 1), ("lamp-7", 2))
    await until(lambda: bool(cursor(other).parked))
    with capture_logs() as lines:
        other.link.refuses = PublishFailed("too large", status=413)
        other.link.unroutable.clear()
        await until(lambda: is_done(other))
    skipped = [(line["entity"], line["revision"]) for line in lines if line["event"] == "event skipped"]
    assert (skipped, cursor(other).skipped) == ([(ID, 2), (ID, 3)], 2)


async def test_an_event_of_a_parked_thing_that_cannot_be_processed_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, other = await unroutable()
    await changed(harness, ("lamp-7", 1), ("lamp-7", 2))
    await until(lambda: bool(cursor(other).parked))
    it = cursor(other)
    post = it.route.post

    def posted(signal: Any, *more: Any) -> Any:
        if signal.revision == 2:
            raise ValueError("a mistake")
        return post(signal, *more)

    monkeypatch.setattr(it.route, "post", posted)
    other.link.unroutable.clear()
    with capture_logs():
        await until(lambda: is_done(other))
    assert (it.skipped, it.has_unconfirmed, received(other, "lamp-7")[-1]) == (1, False, 3)


@pytest.mark.usefixtures("patient")
async def test_trimmed_events_of_a_parked_thing_are_counted_and_erased_ones_are_not() -> None:
    harness, other = await unroutable("lamp-8")
    await changed(harness, ("lamp-7", 1), ("lamp-8", 1), ("lamp-7", 2), ("lamp-8", 2))
    await until(lambda: len(cursor(other).parked) == 2)
    await harness.store.commits.trim(harness.store.tail.newest - 2, LATER)
    await harness.store.commits.execute(
        lambda it: erasure.take_entries(it, erasure.begin(it, "thing", "acme.site:lamp-8", "", "operator"))
    )
    other.link.unroutable.clear()
    other.link.published.clear()
    for thing in (LAMP, EntityId(EntityType.THING, "acme.site", "lamp-8")):
        cursor(other).parked.refused(thing, "no queue", monotonic() - 3600.0)
    harness.event_publisher.wake()
    await until(lambda: is_done(other))
    assert (received(other, "lamp-7"), received(other, "lamp-8"), cursor(other).skipped) == ([3], [], 1)


@pytest.mark.usefixtures("patient")
async def test_an_event_that_is_trimmed_while_it_is_retried_is_sent_and_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness, other = await unroutable()
    await changed(harness, ("lamp-7", 1), ("lamp-7", 2), ("lamp-7", 3))
    await until(lambda: len(cursor(other).parked) == 1)
    tail = harness.store.tail
    await harness.store.commits.trim(tail.newest - 2, LATER)
    # The next trim removes the first event that is left, after it was read.
    monkeypatch.setattr(tail, "beginning", lambda _: HistoryStart(0, 4))
    other.link.unroutable.clear()
    other.link.published.clear()
    cursor(other).parked.refused(LAMP, "no queue", monotonic() - 3600.0)
    harness.event_publisher.wake()
    await until(lambda: is_done(other))
    assert (received(other, "lamp-7"), cursor(other).skipped) == ([3, 4], 1)


@pytest.mark.usefixtures("patient")
async def test_a_thing_that_leaves_without_a_message_does_not_delay_the_one_that_is_due_next() -> None:
    harness, other = await unroutable("lamp-8")
    await changed(harness, ("lamp-8", 1), ("lamp-7", 1))
    await until(lambda: len(cursor(other).parked) == 2)
    await harness.store.commits.execute(
        lambda it: erasure.take_entries(it, erasure.begin(it, "thing", "acme.site:lamp-8", "", "operator"))
    )
    other.link.unroutable.clear()
    other.link.published.clear()
    parked = cursor(other).parked
    parked.refused(EntityId(EntityType.THING, "acme.site", "lamp-8"), "no queue", monotonic() - 3600.0)
    parked.refused(LAMP, "no queue", monotonic() - 3600.0 + 0.02)
    harness.event_publisher.wake()
    await until(lambda: is_done(other))
    assert (received(other, "lamp-7"), received(other, "lamp-8")) == ([2], [])


async def test_parked_things_survive_a_restart_and_no_event_of_others_is_repeated() -> None:
    harness, other = await unroutable()
    await changed(harness, ("lamp-7", 1), ("lamp-8", 1), ("lamp-7", 2), ("lamp-9", 1))
    await until(lambda: cursor(other).seq == harness.store.tail.newest)
    await harness.event_publisher.close()
    assert positions(harness.journal)[0][2:] == (harness.store.tail.newest, 0, ((ID, 2),))
    assert isinstance(harness.journal, Disk)
    await harness.store.commits.barrier()
    again = ConnectionHarness(source(), journal=harness.journal)
    after = await add_follower(again, target(EVENTS, address=BY_NAME))
    await until(lambda: is_done(after))
    assert [event["revision"] for event in events(after)] == received(after, "lamp-7") == [2, 3]
    await again.event_publisher.close()
    assert positions(harness.journal)[0].parked == ()


async def test_nothing_is_retried_without_a_link_and_everything_is_on_the_next_one() -> None:
    harness, other = await unroutable()
    await changed(harness, ("lamp-7", 1))
    await until(lambda: bool(cursor(other).parked))
    other.outbox.detach()
    other.link.published.clear()
    other.link.unroutable.clear()
    await pause()
    harness.event_publisher.sweep()
    await pause()
    assert (other.link.published, len(other.outbox)) == ([], 0)
    other.outbox.attach(other.link)
    harness.event_publisher.linked("other")
    await until(lambda: is_done(other))
    assert received(other, "lamp-7") == [2]


async def test_a_parked_thing_waits_for_a_store_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, other = await unroutable()
    await changed(harness, ("lamp-7", 1))
    await until(lambda: bool(cursor(other).parked))
    tail, next_event = harness.store.tail, harness.store.tail.next_event

    def unreadable(*_: Any) -> Any:
        raise StoreUnavailable("a page cannot be read")

    monkeypatch.setattr(tail, "next_event", unreadable)
    other.link.unroutable.clear()
    with capture_logs() as lines:
        await until(lambda: any(line["event"] == "a target waits for the store" for line in lines))
    monkeypatch.setattr(tail, "next_event", next_event)
    harness.event_publisher.sweep()
    await until(lambda: is_done(other))


@pytest.mark.usefixtures("patient")
async def test_a_retry_waits_for_room_in_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, other = await unroutable()
    await changed(harness, ("lamp-7", 1))
    await until(lambda: bool(cursor(other).parked))
    monkeypatch.setattr(module, "WINDOW_BYTES", 1)
    other.link.unroutable.clear()
    other.link.confirms = False
    await changed(harness, ("lamp-8", 1))
    await until(lambda: received(other, "lamp-8") == [2])
    make_due(harness, other)
    await pause()
    assert received(other, "lamp-7") == [2]
    other.link.confirms = True
    other.link.confirm()
    await until(lambda: is_done(other))
    assert received(other, "lamp-7") == [2, 2]


async def test_stopping_waits_for_the_event_of_a_parked_thing_that_is_in_flight() -> None:
    harness, other = await unroutable()
    await changed(harness, ("lamp-7", 1))
    await until(lambda: bool(cursor(other).parked))
    other.link.published.clear()
    other.link.confirms = False
    await until(lambda: len(other.link.published) == 1)
    stopping = asyncio.create_task(harness.event_publisher.stop("other"))
    await pause()
    assert not stopping.done()
    other.link.confirm()
    await stopping
    assert cursor(other).parked.positions == ((ID, 3),)


@pytest.mark.usefixtures("patient")
async def test_a_closed_cursor_ignores_the_end_of_a_retry() -> None:
    harness, other = await unroutable()
    await changed(harness, ("lamp-7", 1))
    await until(lambda: bool(cursor(other).parked))
    it = cursor(other)
    other.link.confirms = False
    make_due(harness, other)
    await until(lambda: len(other.link.published) == 2)
    other.close_connection()
    other.link.confirm()
    assert it.parked.positions == ((ID, 2),)


@pytest.mark.usefixtures("patient")
async def test_status_and_metrics_show_parked_things() -> None:
    harness, other = await unroutable("lamp-8")
    labels = {"connection": "other", "target": "0"}
    publisher = harness.event_publisher
    harness.monitor.watch_figures(publisher.figures)

    def parked() -> float | None:
        return harness.monitor.registry.get_sample_value("connectivity_target_parked_things", labels)

    assert (parked(), list(publisher.conditions("other"))) == (0, [])
    await changed(harness, ("lamp-7", 1), ("lamp-8", 1), ("lamp-8", 2))
    await until(lambda: cursor(other).seq == harness.store.tail.newest)
    assert parked() == 2
    assert list(publisher.conditions("other")) == [
        (0, "has parked 2 things, first acme.site:lamp-7: no queue events/lamp-7")
    ]


async def test_a_long_wait_is_caught_up_in_short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_publisher, "TURN_SECONDS", 0.0)
    harness, other = await unroutable()
    await changed(harness, *(("lamp-7", value) for value in range(100)))
    await until(lambda: bool(cursor(other).parked))
    other.link.unroutable.clear()
    await until(lambda: is_done(other))
    assert received(other, "lamp-7")[-100:] == list(range(2, 102))


async def test_a_thing_that_is_deleted_while_it_is_parked_ends_with_its_deletion() -> None:
    harness, other = await unroutable()
    await changed(harness, ("lamp-7", 1))
    harness.deliver(command("delete"))
    await until(lambda: harness.store.tail.newest == 8)
    other.link.unroutable.clear()
    await until(lambda: is_done(other))
    assert [event["topic"].rpartition("/")[2] for event in events(other)][-2:] == ["created", "deleted"]
