"""The cursors of targets: across restarts, new documents and trimming, and in status and metrics."""

from __future__ import annotations

import asyncio
import json
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
from tests.support.in_process.event_followers import (
    EVENTS,
    add_follower,
    cursor,
    revisions,
    sent,
    site_and_follower,
    write_values,
)
from tests.support.in_process.service import (
    LAMP,
    ConnectionHarness,
    command,
    connection,
    creation,
    document,
    pause,
    source,
    target,
    turn,
    until,
)
from tests.support.journal_entries import LATER
from tests.support.temporary_journal import events_after, positions

pytestmark = pytest.mark.usefixtures("harnesses")


async def service(before: ConnectionHarness) -> ConnectionHarness:
    """The same service, started again: the former one still has its journal, and writes nothing more."""
    await before.store.commits.barrier()
    return ConnectionHarness(source(), journal=before.disk)


async def forgotten(harness: ConnectionHarness) -> None:
    """Wait until all events are stored, then remove them from memory."""
    await until(lambda: harness.store.tail.newest == harness.journal.newest_seq())
    harness.store.tail.forget()


def stored_positions(harness: ConnectionHarness) -> list[tuple[str, str, int]]:
    return [place[:3] for place in positions(harness.journal)]


def test_a_target_is_known_by_its_address() -> None:
    """And by its number among those that share one; only those that events go to have a place."""
    made = connection(
        targets=[target(EVENTS), target(EVENTS, address="b"), target("_/_/things/live/events"), target(EVENTS)]
    )
    assert keys(made) == {0: "0:events", 1: "0:b", 3: "1:events"}


async def test_a_new_target_starts_at_the_end_and_its_place_is_durable_before_it_is_opened() -> None:
    harness = ConnectionHarness(source())
    await harness.has_lamp()
    other = ConnectionHarness(beside=harness, id="other", targets=[target(EVENTS)])
    assert not harness.event_publisher.is_prepared(other.connection)
    assert not harness.event_publisher.has_targets
    await write_values(harness, 1)
    await harness.event_publisher.prepare(other.connection)
    assert stored_positions(harness) == [("other", "0:events", harness.journal.newest_seq())]
    assert harness.event_publisher.is_prepared(other.connection)
    await write_values(harness, 2)
    harness.event_publisher.opened(other.opened)
    assert await sent(other, 1) == [3]


async def test_without_targets_nothing_more_is_stored() -> None:
    harness = ConnectionHarness(source())
    await harness.has_lamp()
    other = ConnectionHarness(beside=harness, id="other", targets=[target("_/_/things/live/events")])
    await other.follow()
    await write_values(harness, 1)
    assert [found.cause for found in events_after(harness.journal, 0, 10, 1 << 20)] == [None] * 3
    assert not harness.store.tail.is_followed


async def test_causes_and_cursors_survive_a_restart() -> None:
    """Case 114 holds after a restart, too. Confirmed messages do not come again after an orderly end."""
    harness, other = await site_and_follower()
    await write_values(harness, 1, 2)
    await sent(other, 2)
    other.outbox.detach()
    await write_values(harness, 3)
    harness.deliver(turn(4, correlation_id="c-4"))
    other.deliver(turn(5))
    await until(lambda: len(harness.history()) == 6)
    await harness.event_publisher.close()
    again = await service(harness)
    assert again.event_publisher.has_targets
    assert [found.cause for found in events_after(harness.journal, 5, 10, 1 << 20)][:1] == [
        EventCause("site", {"correlation-id": "c-4", "ditto-originator": "acme:owner"})
    ]
    other = await add_follower(again)
    assert await sent(other, 2) == [4, 5]
    await write_values(again, 6)
    assert await sent(other, 3) == [4, 5, 7]


def ends(harness: ConnectionHarness) -> dict[str, Any]:
    """The extra fields of the events of deletions, by the address of the target."""
    found = {sent.address: json.loads(sent.envelope.payload) for sent in harness.link.published}
    return {address: event.get("extra") for address, event in found.items() if event["topic"].endswith("deleted")}


async def test_the_event_of_a_deletion_has_the_last_values_of_extra_fields_also_after_a_restart() -> None:
    harness = ConnectionHarness(source())
    await harness.has_lamp()
    strangers = {
        "subjects": {"acme:stranger": {"type": "test"}},
        "resources": {"thing:/attributes/on": {"grant": ["READ"], "revoke": []}},
    }
    await harness.ask(document("acme.site/lamp-7/policies/commands/modify", "/entries/STRANGE", strangers))
    end, fields = f"{EVENTS}?filter=eq(topic:action,'deleted')", "attributes/on,attributes/off,_revision,policyId"
    matching, other_value = (
        f"{EVENTS}?filter=and(eq(topic:action,'deleted'),eq(attributes/on,{value}))&extraFields=attributes"
        for value in (1, 2)
    )
    targets = [
        target(end, address="plain"),
        target(f"{end}&extraFields={fields}", address="fields"),
        target(f"{end}&extraFields={fields}", address="some", authorizationContext=["acme:stranger"]),
        target(matching, address="matching"),
        target(other_value, address="other value"),
    ]
    expected = {
        "plain": None,
        "fields": {"attributes": {"on": 1}, "_revision": 3, "policyId": "acme.site:lamp-7"},
        "some": {"attributes": {"on": 1}, "_revision": 3},
        "matching": {"attributes": {"on": 1}},
    }

    def followers(beside: ConnectionHarness) -> ConnectionHarness:
        return ConnectionHarness(beside=beside, id="other", targets=targets)

    other = await followers(harness).follow()
    other.outbox.detach()
    await write_values(harness, 1)
    await harness.ask(command("delete"))
    await harness.event_publisher.close()
    again = await service(harness)
    other = await followers(again).follow()
    await until(lambda: len(ends(other)) == len(expected))
    assert ends(other) == expected


async def test_events_after_the_last_stored_position_are_sent_again_in_order_after_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness, other = await site_and_follower()
    monkeypatch.setattr(module, "WRITE_SECONDS", 0.001)
    await write_values(harness, 1, 2)
    await sent(other, 2)
    await until(lambda: stored_positions(harness)[0][2] == harness.journal.newest_seq())
    monkeypatch.setattr(module, "WRITE_SECONDS", 1000.0)
    await pause()
    other.link.confirms = False
    await write_values(harness, 3, 4)
    await sent(other, 4)
    again = await add_follower(await service(harness))
    assert await sent(again, 2) == [4, 5]


async def test_a_cursor_moves_with_the_last_confirm_without_further_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WRITE_SECONDS", 0.001)
    harness, other = await site_and_follower()
    other.link.confirms = False
    await write_values(harness, 1)
    await sent(other, 1)
    await pause()
    assert stored_positions(harness)[0][2] < harness.journal.newest_seq()
    other.link.confirm()
    await until(lambda: stored_positions(harness)[0][2] == harness.journal.newest_seq())


async def test_a_document_that_changes_moves_no_place_and_one_that_is_closed_loses_it() -> None:
    harness, other = await site_and_follower(target(EVENTS), target(EVENTS, address="b"))
    cursors = harness.event_publisher
    other.close_connection()
    await write_values(harness, 1)
    changed = await add_follower(harness, target(EVENTS, address="c"), target(EVENTS, qos=0))
    assert await sent(changed, 1) == [2]
    assert changed.link.published[0].address == "events"
    assert [key for _, key, _ in stored_positions(harness)] == ["0:c", "0:events"]
    other.close_connection()
    cursors.keep_only(lambda id: id == "other")
    await write_values(harness, 2)
    cursors.keep_only(lambda id: id == "site")
    await until(lambda: not stored_positions(harness))
    assert not cursors.has_targets
    await write_values(harness, 3)
    reopened = await add_follower(harness, target(EVENTS, address="c"))
    await write_values(harness, 4)
    assert await sent(reopened, 1) == [5]


@pytest.mark.parametrize("is_swept", [False, True])
async def test_a_closed_connection_loses_its_places_also_where_the_disk_was_full_then(is_swept: bool) -> None:
    """When it is opened again, it does not receive the events published meanwhile."""
    harness, other = await site_and_follower()
    cursors = harness.event_publisher
    harness.disk.full = True
    harness.deliver(turn(1))
    await until(lambda: not harness.store.commits.is_available)
    other.close_connection()
    cursors.keep_only(lambda id: id == "site")
    await pause()
    harness.disk.full = False
    await harness.store.commits.wait_available()
    if is_swept:
        cursors.sweep()
        await until(lambda: not stored_positions(harness))
    await write_values(harness, 2)
    reopened = await add_follower(harness)
    await write_values(harness, 3)
    assert await sent(reopened, 1) == [len(harness.history())]


async def test_an_open_connection_keeps_its_positions_when_its_document_is_unknown() -> None:
    harness, _other = await site_and_follower()
    harness.event_publisher.keep_only(lambda _id: False)
    await write_values(harness, 1)
    assert len(stored_positions(harness)) == 1


async def test_trimmed_events_are_skipped_counted_and_reported_to_the_operator() -> None:
    harness, other = await site_and_follower()
    skipped: list[Any] = []
    harness.event_publisher.on_skip = lambda *report: skipped.append(report)
    other.outbox.detach()
    await write_values(harness, *range(10))
    other.close_connection()
    await forgotten(harness)
    assert await harness.store.commits.trim(8, LATER) == 8
    other = await add_follower(harness)
    assert await sent(other, 4) == [8, 9, 10, 11]
    assert list(harness.event_publisher.conditions("other")) == [(0, "has missed 6 events")]
    await harness.event_publisher.close()
    assert positions(harness.journal) == [CursorPosition("other", "0:events", 12, 6)]
    assert skipped == [("other", "0", 0), ("other", "0", 6)], "a counter that begins at 0, so that its rise is seen"
    again = await add_follower(await service(harness))
    assert list(again.event_publisher.conditions("other")) == [(0, "has missed 6 events")]


async def test_a_journal_on_a_disk_lets_go_and_keeps_places_like_one_in_memory(tmp_path: Path) -> None:
    """Trimmed events skipped and counted, also after a restart"""
    path = tmp_path / "journal.db"
    harness = ConnectionHarness(source(), journal=Journal.open(path))
    await harness.has_lamp()
    other = await add_follower(harness)
    other.outbox.detach()
    await write_values(harness, *range(10))
    await forgotten(harness)
    assert await harness.store.commits.trim(8, LATER) == 8
    await harness.event_publisher.close()
    await harness.store.close()
    again = ConnectionHarness(source(), journal=Journal.open(path))
    other = await add_follower(again)
    assert await sent(other, 4) == [8, 9, 10, 11]
    await again.event_publisher.close()
    assert positions(again.journal) == [CursorPosition("other", "0:events", 12, 6)]


async def test_when_everything_is_trimmed_all_of_it_is_skipped() -> None:
    harness, other = await site_and_follower()
    other.outbox.detach()
    await write_values(harness, 1, 2)
    await forgotten(harness)
    assert await harness.store.commits.trim(99, LATER) == 4
    other.outbox.attach(other.link)
    harness.event_publisher.wake()
    await until(lambda: cursor(other).skipped == 2)
    await write_values(harness, 3)
    assert await sent(other, 1) == [4]


async def test_a_target_that_is_behind_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEHIND_EVENTS", 2)
    monkeypatch.setattr(cursor_module, "SHORTEST_PAUSE", 1000.0)
    harness, other = await site_and_follower()
    cursors = harness.event_publisher
    harness.monitor.watch_figures(cursors.figures)

    def figure(name: str) -> float | None:
        labels = {"connection": "other", "target": "0"}
        found: float | None = harness.monitor.registry.get_sample_value(f"connectivity_target_lag_{name}", labels)
        return found

    assert (figure("events"), figure("seconds"), list(cursors.conditions("other"))) == (0, 0, [])
    other.link.confirms = False
    await write_values(harness, 1, 2)
    await sent(other, 2)
    assert figure("events") == 2
    assert list(cursors.conditions("other")) == [(0, "is 2 events behind, for 0 s")]
    other.link.confirm(error=PublishFailed("the broker is busy"))
    assert list(cursors.conditions("other")) == [(0, "is 2 events behind, for 0 s: the broker is busy")]


async def test_a_store_that_cannot_be_read_stops_a_target_for_a_while_only() -> None:
    harness, other = await site_and_follower()
    other.outbox.detach()
    await write_values(harness, 1)
    harness.store._cache.clear()
    harness.disk.unreadable = True
    other.outbox.attach(other.link)
    harness.event_publisher.wake()
    await pause()
    assert revisions(other) == []
    harness.disk.unreadable = False
    harness.event_publisher.sweep()
    assert await sent(other, 1) == [2]


async def test_an_event_with_a_failing_filter_is_missed_by_that_target_only(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, other = await site_and_follower(target(EVENTS), target(EVENTS, address="b"))
    one = cursor(other).route.interest
    judge = one.filter

    def judged(signal_context: Any) -> Any:
        return 1 // 0 if signal_context.signal.value == b"1" else judge(signal_context)

    monkeypatch.setattr(one, "filter", judged)
    with capture_logs() as lines:
        await write_values(harness, 1, 2)
        await sent(other, 3)
    assert sorted(message.address for message in other.link.published) == ["b", "b", "events"]
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["event not processed"]
    assert [each.skipped for each in harness.event_publisher.of("other")] == [1, 0]


async def test_targets_that_are_at_the_same_event_ask_about_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after one of them was behind."""
    harness, other = await site_and_follower(target(EVENTS), target(EVENTS, address="b"))
    third = await add_follower(other, id="third")
    made: list[int] = []
    happening = harness.event_publisher.signal_context

    def noted(found: Any) -> Any:
        made.append(found.event.revision)
        return happening(found)

    monkeypatch.setattr(harness.event_publisher, "signal_context", noted)
    third.outbox.detach()
    await write_values(harness, 1)
    await sent(other, 2)
    third.outbox.attach(third.link)
    harness.event_publisher.wake()
    await sent(third, 1)
    await write_values(harness, 2)
    await sent(third, 2)
    await sent(other, 4)
    assert made == [2, 2, 3]


async def test_targets_that_lag_apart_have_their_turns_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number does not lengthen a turn of the loop, and a current target does not wait for them."""
    monkeypatch.setattr(module, "TURN_SECONDS", 0.0)
    harness, other = await site_and_follower()
    lagging = [await add_follower(other, id=f"lagging-{number}") for number in range(4)]
    present = [other, *lagging]
    for number, each in enumerate(lagging):
        await write_values(harness, number)
        await until(lambda: {cursor(one).judged for one in present} == {harness.store.tail.newest})
        present.remove(each)
        each.outbox.detach()
    await write_values(harness, 5, 6, 7)
    await until(lambda: cursor(other).judged == harness.store.tail.newest)
    cursors = harness.event_publisher
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
    await until(lambda: all(cursor(each).seq == harness.store.tail.newest for each in lagging))
    assert [revisions(each) for each in lagging] == [list(range(2, 9))] * 4
    assert max(map(len, turns)) == 2
    assert all(turn[0] == max(turn) for turn in turns if turn)


async def test_places_wait_for_a_disk_that_is_full() -> None:
    harness = ConnectionHarness(source())
    await harness.has_lamp()
    harness.disk.full = True
    other = ConnectionHarness(beside=harness, id="other", targets=[target(EVENTS)])
    following = other.follow()
    harness.deliver(turn(1))
    await until(lambda: not harness.store.commits.is_available)
    harness.disk.full = False
    await following
    assert [position[0] for position in stored_positions(harness)] == ["other"]
    await until(lambda: harness.store.commits.is_available)
    await write_values(harness, 2)
    assert await sent(other, 1) == [len(harness.history())]


async def test_reading_positions_waits_until_the_store_is_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.001)
    harness = ConnectionHarness(source())
    await harness.has_lamp()
    other = ConnectionHarness(beside=harness, id="other", targets=[target(EVENTS)])
    harness.disk.unreadable = True
    with capture_logs() as lines:
        following = asyncio.create_task(other.follow())
        await until(lambda: len(lines) > 2)
    harness.disk.unreadable = False
    await following
    assert [position[0] for position in stored_positions(harness)] == ["other"]


async def test_canceling_the_wait_for_positions_removes_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.001)
    harness = ConnectionHarness(source())
    await harness.has_lamp()
    other = ConnectionHarness(beside=harness, id="other", targets=[target(EVENTS)])
    harness.disk.full = True
    following = asyncio.create_task(other.follow())
    await until(lambda: not harness.store.commits.is_available)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert (harness.event_publisher.has_targets, harness.store.tail.is_followed) == (False, False)


async def test_things_with_policies_of_their_own_are_sent_once_each() -> None:
    """The event of the policy is sent to no target."""
    harness, other = await site_and_follower()
    harness.deliver(creation("lamp-8"), creation("lamp-9"))
    await until(lambda: harness.store.tail.newest == 6)
    await sent(other, 2)
    await until(lambda: cursor(other).seq == 6)
    names = [event["topic"].split("/")[1] for event in other.answers()]
    assert names == ["lamp-8", "lamp-9"]
    assert harness.journal.latest(LAMP) == 1
