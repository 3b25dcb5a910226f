"""Where the targets are that events go to: across restarts, new documents, trimming, and in what operators see."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.errors import PublishFailed
from connectivity.targets import event_cursor as cursor_module
from connectivity.targets import event_publisher as module
from connectivity.targets.event_publisher import keys
from spark_store.journal.journal import Journal
from spark_store.records import CursorPosition, EventCause
from tests.support.in_process.event_followers import EVENTS, beside, cursor, followed, revisions, sent, turned
from tests.support.in_process.service import (
    LAMP,
    ConnectionHarness,
    Disk,
    connection,
    creation,
    pause,
    source,
    target,
    turn,
    until,
)
from tests.support.journal_entries import LATER
from tests.support.temporary_journal import follow_on
from tests.support.temporary_journal import places as positions

pytestmark = pytest.mark.usefixtures("sites")


def service(journal: Disk) -> ConnectionHarness:
    """The same service, started again."""
    return ConnectionHarness(source(), journal=journal)


async def forgotten(site: ConnectionHarness) -> None:
    """Nothing is in memory any more of what was stored."""
    await until(lambda: site.store.tail.newest == site.journal.newest_seq())
    site.store.tail.forget()


def places(site: ConnectionHarness) -> list[tuple[str, str, int]]:
    return [place[:3] for place in positions(site.journal)]


def test_a_target_is_known_by_its_address() -> None:
    """And by its number among those that share one; only those that events go to have a place."""
    made = connection(
        targets=[target(EVENTS), target(EVENTS, address="b"), target("_/_/things/live/events"), target(EVENTS)]
    )
    assert keys(made) == {0: "0:events", 1: "0:b", 3: "1:events"}


async def test_a_new_target_starts_at_the_end_and_its_place_is_durable_before_it_is_opened() -> None:
    site = ConnectionHarness(source())
    await site.has_lamp()
    other = ConnectionHarness(beside=site, id="other", targets=[target(EVENTS)])
    assert not site.dispatcher.event_publisher.has_positions(other.connection)
    assert not site.dispatcher.event_publisher.has_targets
    await turned(site, 1)
    await site.dispatcher.event_publisher.place(other.connection)
    assert places(site) == [("other", "0:events", site.journal.newest_seq())]
    assert site.dispatcher.event_publisher.has_positions(other.connection)
    await turned(site, 2)
    site.dispatcher.event_publisher.join(other.connection, other.targets)
    assert await sent(other, 1) == [3]


async def test_without_targets_nothing_more_is_stored() -> None:
    site = ConnectionHarness(source())
    await site.has_lamp()
    other = ConnectionHarness(beside=site, id="other", targets=[target("_/_/things/live/events")])
    await other.follow()
    await turned(site, 1)
    assert [found.cause for found in follow_on(site.journal, 0, 10, 1 << 20)] == [None] * 3
    assert not site.store.tail.is_followed


async def test_causes_and_places_are_there_after_a_restart() -> None:
    """Case 114 holds after it, too. What was confirmed does not come again when the service has ended in order."""
    site, other = await followed()
    await turned(site, 1, 2)
    await sent(other, 2)
    other.outbox.detach()
    await turned(site, 3)
    site.deliver(turn(4, correlation_id="c-4"))
    other.deliver(turn(5))
    await until(lambda: len(site.history()) == 6)
    await site.dispatcher.event_publisher.close()
    again = service(site.disk)
    assert again.dispatcher.event_publisher.has_targets
    assert [found.cause for found in follow_on(site.journal, 5, 10, 1 << 20)][:1] == [
        EventCause("site", {"correlation-id": "c-4", "ditto-originator": "acme:owner"})
    ]
    other = await beside(again)
    assert await sent(other, 2) == [4, 5]
    await turned(again, 6)
    assert await sent(other, 3) == [4, 5, 7]


async def test_events_after_the_last_stored_position_are_sent_again_in_order_after_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site, other = await followed()
    monkeypatch.setattr(module, "WRITE_SECONDS", 0.001)
    await turned(site, 1, 2)
    await sent(other, 2)
    await until(lambda: places(site)[0][2] == site.journal.newest_seq())
    monkeypatch.setattr(module, "WRITE_SECONDS", 1000.0)
    await pause()
    other.link.confirms = False
    await turned(site, 3, 4)
    await sent(other, 4)
    again = await beside(service(site.disk))
    assert await sent(again, 2) == [4, 5]


async def test_a_place_moves_with_the_last_confirm_though_nothing_else_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WRITE_SECONDS", 0.001)
    site, other = await followed()
    other.link.confirms = False
    await turned(site, 1)
    await sent(other, 1)
    await pause()
    assert places(site)[0][2] < site.journal.newest_seq()
    other.link.confirm()
    await until(lambda: places(site)[0][2] == site.journal.newest_seq())


async def test_a_document_that_changes_moves_no_place_and_one_that_is_closed_loses_it() -> None:
    site, _other = await followed(target(EVENTS), target(EVENTS, address="b"))
    cursors = site.dispatcher.event_publisher
    site.dispatcher.close_connection("other")
    await turned(site, 1)
    changed = await beside(site, target(EVENTS, address="c"), target(EVENTS, qos=0))
    assert await sent(changed, 1) == [2]
    assert changed.link.published[0].address == "events"
    assert [key for _, key, _ in places(site)] == ["0:c", "0:events"]
    site.dispatcher.close_connection("other")
    cursors.keep(lambda id: id == "other")
    await turned(site, 2)
    cursors.keep(lambda id: id == "site")
    await until(lambda: not places(site))
    assert not cursors.has_targets
    await turned(site, 3)
    anew = await beside(site, target(EVENTS, address="c"))
    await turned(site, 4)
    assert await sent(anew, 1) == [5]


@pytest.mark.parametrize("is_swept", [False, True])
async def test_a_closed_connection_loses_its_places_also_where_the_disk_was_full_then(is_swept: bool) -> None:
    """Opened again, it is not sent what has happened meanwhile."""
    site, _other = await followed()
    cursors = site.dispatcher.event_publisher
    site.disk.full = True
    site.deliver(turn(1))
    await until(lambda: not site.store.is_available)
    site.dispatcher.close_connection("other")
    cursors.keep(lambda id: id == "site")
    await pause()
    site.disk.full = False
    await site.store.wait_available()
    if is_swept:
        cursors.sweep()
        await until(lambda: not places(site))
    await turned(site, 2)
    anew = await beside(site)
    await turned(site, 3)
    assert await sent(anew, 1) == [len(site.history())]


async def test_an_open_connection_keeps_its_positions_when_its_document_is_unknown() -> None:
    site, _other = await followed()
    site.dispatcher.event_publisher.keep(lambda _id: False)
    await turned(site, 1)
    assert len(places(site)) == 1


async def test_trimmed_events_are_skipped_counted_and_reported_to_the_operator() -> None:
    site, other = await followed()
    skipped: list[Any] = []
    site.dispatcher.event_publisher.on_skip = lambda *told: skipped.append(told)
    other.outbox.detach()
    await turned(site, *range(10))
    site.dispatcher.close_connection("other")
    await forgotten(site)
    assert await site.store.trim(8, LATER) == 8
    other = await beside(site)
    assert await sent(other, 4) == [8, 9, 10, 11]
    assert list(site.dispatcher.event_publisher.conditions("other")) == [(0, "has missed 6 events")]
    await site.dispatcher.event_publisher.close()
    assert positions(site.journal) == [CursorPosition("other", "0:events", 12, 6)]
    assert skipped == [("other", "0", 0), ("other", "0", 6)], "a counter that begins at 0, so that its rise is seen"
    again = await beside(service(site.disk))
    assert list(again.dispatcher.event_publisher.conditions("other")) == [(0, "has missed 6 events")]


async def test_a_journal_on_a_disk_lets_go_and_keeps_places_like_one_in_memory(tmp_path: Path) -> None:
    """Trimmed events skipped and counted, also after a restart"""
    path = tmp_path / "journal.db"
    site = ConnectionHarness(source(), journal=Journal.open(path))
    await site.has_lamp()
    other = await beside(site)
    other.outbox.detach()
    await turned(site, *range(10))
    await forgotten(site)
    assert await site.store.trim(8, LATER) == 8
    await site.dispatcher.event_publisher.close()
    await site.store.close()
    again = ConnectionHarness(source(), journal=Journal.open(path))
    other = await beside(again)
    assert await sent(other, 4) == [8, 9, 10, 11]
    await again.dispatcher.event_publisher.close()
    assert positions(again.journal) == [CursorPosition("other", "0:events", 12, 6)]


async def test_when_everything_is_trimmed_all_of_it_is_skipped() -> None:
    site, other = await followed()
    other.outbox.detach()
    await turned(site, 1, 2)
    await forgotten(site)
    assert await site.store.trim(99, LATER) == 4
    other.outbox.attach(other.link)
    site.dispatcher.event_publisher.wake()
    await until(lambda: cursor(other).skipped == 2)
    await turned(site, 3)
    assert await sent(other, 1) == [4]


async def test_a_target_that_is_behind_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEHIND_EVENTS", 2)
    monkeypatch.setattr(cursor_module, "SHORTEST_PAUSE", 1000.0)
    site, other = await followed()
    cursors = site.dispatcher.event_publisher
    site.monitor.watch_figures(cursors.figures)

    def figure(name: str) -> float | None:
        labels = {"connection": "other", "target": "0"}
        found: float | None = site.monitor.registry.get_sample_value(f"connectivity_target_lag_{name}", labels)
        return found

    assert (figure("events"), figure("seconds"), list(cursors.conditions("other"))) == (0, 0, [])
    other.link.confirms = False
    await turned(site, 1, 2)
    await sent(other, 2)
    assert figure("events") == 2
    assert list(cursors.conditions("other")) == [(0, "is 2 events behind, for 0 s")]
    other.link.confirm(error=PublishFailed("the broker is busy"))
    assert list(cursors.conditions("other")) == [(0, "is 2 events behind, for 0 s: the broker is busy")]


async def test_a_store_that_cannot_be_read_stops_a_target_for_a_while_only() -> None:
    site, other = await followed()
    other.outbox.detach()
    await turned(site, 1)
    site.store._cache.clear()
    site.disk.unreadable = True
    other.outbox.attach(other.link)
    site.dispatcher.event_publisher.wake()
    await pause()
    assert revisions(other) == []
    site.disk.unreadable = False
    site.dispatcher.event_publisher.sweep()
    assert await sent(other, 1) == [2]


async def test_an_event_that_cannot_be_judged_is_missed_by_that_target_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    site, other = await followed(target(EVENTS), target(EVENTS, address="b"))
    one = cursor(other).route.interest
    judge = one.filter_shared

    def judged(happening: Any) -> Any:
        return 1 // 0 if happening.signal.value == b"1" else judge(happening)

    monkeypatch.setattr(one, "filter_shared", judged)
    with capture_logs() as lines:
        await turned(site, 1, 2)
        await sent(other, 3)
    assert sorted(message.address for message in other.link.published) == ["b", "b", "events"]
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["event not processed"]
    assert [each.skipped for each in site.dispatcher.event_publisher.of("other")] == [1, 0]


async def test_targets_that_are_at_the_same_event_ask_about_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after one of them was behind."""
    site, other = await followed(target(EVENTS), target(EVENTS, address="b"))
    third = await beside(other, id="third")
    made: list[int] = []
    happening = site.dispatcher.event_publisher.signal_context

    def noted(found: Any) -> Any:
        made.append(found.event.revision)
        return happening(found)

    monkeypatch.setattr(site.dispatcher.event_publisher, "signal_context", noted)
    third.outbox.detach()
    await turned(site, 1)
    await sent(other, 2)
    third.outbox.attach(third.link)
    site.dispatcher.event_publisher.wake()
    await sent(third, 1)
    await turned(site, 2)
    await sent(third, 2)
    await sent(other, 4)
    assert made == [2, 2, 3]


async def test_targets_that_lag_apart_have_their_turns_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are: a turn of the loop takes no longer for it, and who is up to date does not wait for them."""
    monkeypatch.setattr(module, "TURN_SECONDS", 0.0)
    site, other = await followed()
    lagging = [await beside(other, id=f"lagging-{number}") for number in range(4)]
    present = [other, *lagging]
    for number, each in enumerate(lagging):
        await turned(site, number)
        await until(lambda: {cursor(one).judged for one in present} == {site.store.tail.newest})
        present.remove(each)
        each.outbox.detach()
    await turned(site, 5, 6, 7)
    await until(lambda: cursor(other).judged == site.store.tail.newest)
    cursors = site.dispatcher.event_publisher
    advanced: list[int] = []
    turns: list[list[int]] = []
    advance, run = cursors._advance, cursors._run

    def noted_advance(taken: int, *more: Any) -> Any:
        advanced.append(taken)
        return advance(taken, *more)

    monkeypatch.setattr(cursors, "_advance", noted_advance)

    def noted() -> None:
        before = len(advanced)
        run()
        turns.append(advanced[before:])

    monkeypatch.setattr(cursors, "_run", noted)
    for each in lagging:
        each.outbox.attach(each.link)
    cursors.wake()
    await until(lambda: all(cursor(each).seq == site.store.tail.newest for each in lagging))
    assert [revisions(each) for each in lagging] == [list(range(2, 9))] * 4
    assert max(map(len, turns)) == 2
    assert all(turn[0] == max(turn) for turn in turns if turn)


async def test_places_wait_for_a_disk_that_is_full() -> None:
    site = ConnectionHarness(source())
    await site.has_lamp()
    site.disk.full = True
    other = ConnectionHarness(beside=site, id="other", targets=[target(EVENTS)])
    following = other.follow()
    site.deliver(turn(1))
    await until(lambda: not site.store.is_available)
    site.disk.full = False
    await following
    assert [place[0] for place in places(site)] == ["other"]
    await until(lambda: site.store.is_available)
    await turned(site, 2)
    assert await sent(other, 1) == [len(site.history())]


async def test_reading_positions_waits_until_the_store_is_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.001)
    site = ConnectionHarness(source())
    await site.has_lamp()
    other = ConnectionHarness(beside=site, id="other", targets=[target(EVENTS)])
    site.disk.unreadable = True
    with capture_logs() as lines:
        following = asyncio.create_task(other.follow())
        await until(lambda: len(lines) > 2)
    site.disk.unreadable = False
    await following
    assert [place[0] for place in places(site)] == ["other"]


async def test_canceling_the_wait_for_positions_removes_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.001)
    site = ConnectionHarness(source())
    await site.has_lamp()
    other = ConnectionHarness(beside=site, id="other", targets=[target(EVENTS)])
    site.disk.full = True
    following = asyncio.create_task(other.follow())
    await until(lambda: not site.store.is_available)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert (site.dispatcher.event_publisher.has_targets, site.store.tail.is_followed) == (False, False)


async def test_things_with_policies_of_their_own_are_sent_once_each() -> None:
    """The event of the policy goes to nobody."""
    site, other = await followed()
    site.deliver(creation("lamp-8"), creation("lamp-9"))
    await until(lambda: site.store.tail.newest == 6)
    await sent(other, 2)
    await until(lambda: cursor(other).seq == 6)
    names = [said["topic"].split("/")[1] for said in other.answers()]
    assert names == ["lamp-8", "lamp-9"]
    assert site.journal.latest(LAMP) == 1
