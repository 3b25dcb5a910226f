"""How long sessions live: what ends them, and what of them goes on when the service, or their connection, is there again.

Case numbers are those of the cases for Streamr.
"""

from __future__ import annotations

from typing import Any

import pytest

from connectivity.transports.base import ReaderStatus
from mappings.ids import EntityId
from mappings.streamr.auth_keys import fingerprint
from mappings.streams.stream_id import partition_id
from spark_store.errors import StoreUnavailable
from spark_store.records import Snapshot
from tests.support.in_process.service import pause, until
from tests.support.in_process.session_rows import KeptRows
from tests.support.in_process.streamr import (
    Tank,
    error,
    offsets,
    options,
    publish,
    resend,
    source,
    subscribe,
    subscribed,
    unsubscribe,
    unsubscribed,
)

pytestmark = pytest.mark.usefixtures("sites")

IDLE = 3600.0
TANK = partition_id("tank", 0)


async def following(messages: int = 0, **more: Any) -> Tank:
    """A tank that the client `a` follows."""
    tank = await Tank.filled(messages=messages, **more)
    assert await tank.asked("a", subscribe()) == [subscribed()]
    tank.forget()
    return tank


def again(tank: Tank, *sources: dict[str, Any], kept: KeptRows | None = None, **more: Any) -> Tank:
    """The service that follows one that was killed."""
    tank.dispatcher.close_connection("site")
    return Tank(*sources, journal=tank.journal, kept=kept or tank.kept.crashed(), **more)


async def is_over(tank: Tank) -> bool:
    """Whether the client `a` follows no longer, and nobody else either."""
    await pause()
    before = len(tank.link.published)
    await tank.publish(1)
    await pause()
    gone = (tank.following.followers(TANK), list(tank.streams), tank.kept.written) == (0, [], {})
    assert gone == (len(tank.link.published) == before)
    return gone


# what ends a session


async def test_case_b08_who_is_silent_for_too_long_follows_no_longer() -> None:
    tank = await following()
    ended: list[Any] = []
    tank.following.on_deleted = lambda entity, followers: ended.append((entity, followers))
    tank.clock.advance(IDLE - 1)
    tank.dispatcher.sweep()
    assert ended == []
    tank.clock.advance(1)
    tank.dispatcher.sweep()
    assert ended == [(TANK, 0)]
    assert await is_over(tank)


async def test_case_b09_who_subscribes_again_in_time_lives_on() -> None:
    tank = await following(options={"sessionIdleTimeout": "10m"})
    for _ in range(3):
        tank.clock.advance(599)
        tank.dispatcher.sweep()
        assert (await tank.asked("a", subscribe()))[-1] == subscribed()
    await tank.publish(1)
    assert offsets(await tank.frames("a", 4)) == [1]
    tank.clock.advance(600)
    tank.dispatcher.sweep()
    assert await is_over(tank)


async def test_who_receives_nothing_three_times_in_half_a_minute_is_gone() -> None:
    tank = await following()

    def undelivered(after: float) -> None:
        tank.clock.advance(after)
        tank.dispatcher.reader("site", "a", ReaderStatus.UNDELIVERED)
        tank.dispatcher.reader("site", "b", ReaderStatus.UNDELIVERED)

    for _ in range(5):
        undelivered(5)
    tank.dispatcher.reader("site", "a", ReaderStatus.HEARD)
    for after in (40, 15):
        undelivered(after)
    tank.dispatcher.reader("elsewhere", "a", ReaderStatus.UNDELIVERED)
    assert not await is_over(tank)
    undelivered(15)
    assert await is_over(tank)


@pytest.mark.parametrize("sign", [ReaderStatus.REFUSED, ReaderStatus.GONE])
async def test_who_may_not_be_sent_anything_or_has_left_is_gone_at_once(sign: ReaderStatus) -> None:
    tank = await following()
    tank.say("a", resend(resend_all=True))
    await tank.frames("a", 1)
    tank.dispatcher.reader("site", "a", sign)
    assert await is_over(tank)


async def test_an_operator_who_closes_the_connection_ends_its_sessions() -> None:
    tank = await following()
    tank.dispatcher.close_connection("site")
    tank.dispatcher.handlers.keep_only(lambda connection_id: connection_id != "site")
    assert tank.kept.written == {}
    tank.dispatcher.handlers.opened("site", tank.routes)
    assert await is_over(tank)


async def test_a_connection_that_is_opened_again_continues_with_its_sessions() -> None:
    """As when its document was changed: what came meanwhile is sent."""
    tank = await following(messages=2)
    tank.dispatcher.close_connection("site")
    await tank.publish(2)
    assert tank.heard("a") == []
    tank.dispatcher.handlers.keep_only(lambda _: True)
    tank.dispatcher.handlers.opened("site", tank.routes)
    assert offsets(await tank.frames("a", 2)) == [3, 4]


# what outlives the service


async def test_case_b10_after_a_restart_a_session_gets_what_came_meanwhile_without_asking() -> None:
    tank = await following(messages=3)
    await tank.asked("b", subscribe(stream="pair", partition=1))
    await tank.publish(1)
    assert offsets(await tank.frames("a", 1)) == [4]
    tank.dispatcher.sweep()
    tank.dispatcher.close_connection("site")
    await tank.publish(3)
    tank = again(tank)
    frames = await tank.frames("a", 3)
    assert [frame[3][5:7] for frame in frames] == [[5, 4], [6, 5], [7, 6]]
    await tank.publish(1)
    assert offsets(await tank.frames("a", 4)) == [5, 6, 7, 8]
    assert await tank.asked("a", unsubscribe()) == [unsubscribed()]
    assert {row.at.address for row in tank.kept.rows("site")} == {"b"}


async def test_case_b10_who_has_missed_too_much_continues_from_now_and_sees_what_is_missing() -> None:
    few = {"sessionCatchUpMax": 2}
    tank = await following(messages=3, options=few)
    tank.dispatcher.close_connection("site")
    await tank.publish(3)
    tank = again(tank, options=few)
    await pause()
    assert tank.heard("a") == []
    tank.dispatcher.sweep()
    tank.dispatcher.close_connection("site")
    await tank.publish(1)
    tank = again(tank, options=few)
    (frame,) = await tank.frames("a", 1)
    assert frame[3][5:7] == [7, 6]


async def test_after_a_crash_some_may_come_again_and_none_is_missing() -> None:
    """What the broker has is written down once a second."""
    tank = await following()
    await tank.publish(2)
    await tank.frames("a", 2)
    tank.dispatcher.sweep()
    await tank.publish(2)
    await tank.frames("a", 4)
    tank = again(tank)
    assert offsets(await tank.frames("a", 2)) == [3, 4]


async def test_what_the_broker_has_not_confirmed_is_sent_again() -> None:
    tank = await following()
    tank.link.confirms = False
    tank.say("b", publish(), publish())
    await tank.frames("a", 2)
    tank.dispatcher.sweep()
    tank = again(tank)
    assert offsets(await tank.frames("a", 2)) == [1, 2]


async def test_who_is_notified_that_he_follows_does_so_after_any_crash() -> None:
    tank = await Tank.filled(messages=3)
    tank.disk.hold()
    tank.say("a", subscribe())
    await pause()
    assert tank.link.published == []
    tank.disk.release()
    await tank.frames("a", 1)
    tank = again(tank)
    await tank.publish(1)
    assert offsets(await tank.frames("a", 1)) == [4]


async def test_case_s14_of_requests_in_one_batch_the_last_one_counts_after_a_restart() -> None:
    tank = await Tank.filled()
    tank.say("a", subscribe(), unsubscribe(), subscribe())
    tank.say("b", subscribe(), unsubscribe())
    assert await tank.frames("a", 3) == [subscribed(), unsubscribed(), subscribed()]
    assert {row.at.address for row in tank.kept.rows("site")} == {"a"}
    tank = again(tank)
    await tank.publish(1)
    assert offsets(await tank.frames("a", 1)) == [1]


async def test_clients_that_share_an_address_are_still_distinguished() -> None:
    tank = await Tank.filled()
    for client in ("x", "y"):
        await tank.asked("a", subscribe(), client_id=client)
    tank = again(tank)
    for frames, client in ((1, "x"), (3, "y")):
        await tank.publish(1)
        await tank.frames("a", frames)
        assert await tank.asked("a", unsubscribe(), client_id=client) == [unsubscribed()]
    await tank.publish(1)
    assert offsets(tank.heard("a")) == [1, 2]


async def test_while_the_disk_is_full_a_subscriber_waits_and_misses_nothing() -> None:
    tank = await Tank.filled()
    tank.disk.full = True
    tank.say("a", subscribe(), publish("1"))
    await until(lambda: tank.postponed)
    tank.disk.full = False
    await tank.store.wait_available()
    tank.dispatcher.handle(tank.postponed, tank.postponed.extend)
    frames = await tank.frames("a", 2)
    assert (frames[0], offsets(frames)) == (subscribed(), [1])


# what has to be said


async def test_a_resend_that_was_cut_off_fails() -> None:
    tank = await Tank.filled(messages=3)
    tank.link.confirms = False
    tank.say("a", resend(sub=7, resend_all=True), correlation_id="c-1")
    tank.say("b", resend(sub="none", resend_from=9))
    await tank.frames("a", 4)
    tank = again(tank)
    (frame,) = await tank.frames("a", 1)
    assert error(frame) == {
        "error": "Failed to request resend from stream tank and partition 0: the service was restarted",
        "status": 503,
        "code": "streamr:resend.failed",
        "stream": "tank",
        "partition": 0,
        "sub": 7,
        "correlationId": "c-1",
    }
    assert len(await tank.frames("b", 1)) == 1
    assert tank.kept.written == {}


async def test_a_resend_that_has_ended_is_not_spoken_of_again() -> None:
    tank = await Tank.filled(messages=1)
    await tank.asked("a", resend(resend_all=True), 3)
    await tank.asked("a", resend(resend_last=-1))
    assert tank.kept.written == {}


async def test_two_resends_of_one_id_are_kept_until_both_have_ended() -> None:
    tank = await Tank.filled(messages=1)
    tank.link.confirms = False
    tank.say("a", resend(resend_all=True), resend(resend_all=True))
    await tank.frames("a", 4)
    tank.link.confirm(4)
    await tank.frames("a", 6)
    tank.link.confirm(1)
    await pause()
    assert len(tank.kept.written) == 1
    tank.link.confirm()
    await pause()
    assert tank.kept.written == {}


async def test_who_may_not_read_any_longer_is_notified_so_when_the_service_is_there_again() -> None:
    tank = await following()
    kept = tank.kept.crashed()
    tank.dispatcher.close_connection("site")
    delete = b'{"topic":"acme.site/tanks/policies/commands/delete","path":"/entries/pump","headers":{}}'
    changed = await tank.ask_ditto(delete)
    assert changed["status"] == 204, changed
    tank = again(tank, kept=kept)
    assert error(tank.heard("a")[0])["code"] == "streamr:stream.forbidden"
    assert tank.kept.written == {}


@pytest.mark.parametrize(
    ("sources", "mapping"),
    [
        pytest.param([source(payloadMapping=["Ditto"])], {}, id="another protocol"),
        pytest.param([source(replyTarget={"address": "r/{{ header:reply-to }}"})], {}, id="another address"),
        pytest.param([], {"replyAddressPattern": "r/*"}, id="another pattern"),
    ],
)
async def test_what_the_document_does_not_mean_any_longer_goes_nowhere(
    sources: list[dict[str, Any]], mapping: dict[str, Any]
) -> None:
    tank = await following()
    tank = again(tank, *sources, options=mapping)
    assert tank.kept.written == {}
    assert tank.link.published == []


async def test_case_x06_who_may_not_read_any_longer_after_a_restart_is_sent_no_more() -> None:
    tank = again(await following())
    delete = b'{"topic":"acme.site/tanks/policies/commands/delete","path":"/entries/pump","headers":{}}'
    changed = await tank.ask_ditto(delete)
    assert changed["status"] == 204, changed
    (refused,) = await tank.frames("a", 1)
    assert error(refused)["code"] == "streamr:stream.forbidden"
    assert await is_over(tank)


@pytest.mark.parametrize(
    ("sources", "mapping"),
    [
        pytest.param([], {"authKeys": {"gauge": fingerprint("K")}}, id="a key that was taken away"),
        pytest.param([source("in", "streamr:pump")], {}, id="a source that speaks for others"),
    ],
)
async def test_who_is_not_known_any_longer_follows_nothing(
    sources: list[dict[str, Any]], mapping: dict[str, Any]
) -> None:
    tank = await following()
    tank = again(tank, *sources, options=mapping)
    assert error(tank.heard("a")[0])["code"] == "streamr:stream.forbidden"
    assert tank.kept.written == {}
    assert tank.following.followers(TANK) == 0


async def test_who_is_distinguished_by_his_messages_continues_whatever_the_source_says() -> None:
    by_header = source("in", "acme:{{ header:device-id }}")
    tank = await Tank.filled(by_header)
    assert await tank.asked("a", subscribe(), device_id="d-7") == [subscribed()]
    tank = again(tank, by_header)
    tank.say(None, publish(), device_id="d-8")
    assert offsets(await tank.frames("a", 1)) == [1]


async def test_a_partition_that_there_is_no_longer_is_left_with_a_word() -> None:
    tank = await Tank.filled()
    await tank.asked("a", subscribe(stream="pair", partition=1))
    fewer = options()["streams"] | {"pair": {"policyId": "acme.site:tanks"}}
    tank = again(tank, options={"streams": fewer})
    assert error(tank.heard("a")[0])["code"] == "streamr:partition.invalid"
    assert tank.kept.written == {}


async def test_sessions_wait_for_a_store_that_cannot_be_read() -> None:
    tank = await following()
    await tank.publish(1)
    kept = tank.kept.crashed()
    kept.is_unreadable = True
    tank = again(tank, kept=kept)
    tank.dispatcher.sweep()
    await pause()
    assert tank.heard("a") == []
    kept.is_unreadable = False
    tank.dispatcher.sweep()
    assert offsets(await tank.frames("a", 1)) == [1]


async def test_a_session_waits_for_a_store_in_which_its_stream_alone_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tank = await following()
    await tank.publish(1)
    journal, read = tank.journal, tank.journal.snapshot
    unread: list[EntityId] = []

    def snapshot(entity: EntityId) -> Snapshot | None:
        if entity == TANK and not unread:
            unread.append(entity)
            raise StoreUnavailable("a page cannot be read")
        return read(entity)

    monkeypatch.setattr(journal, "snapshot", snapshot)
    tank = again(tank)
    assert unread == [TANK]
    tank.dispatcher.sweep()
    assert offsets(await tank.frames("a", 1)) == [1]


async def test_a_disconnect_that_is_taken_up_again_ends_what_its_batch_has_started_before_it() -> None:
    tank = await Tank.filled()
    tank.disk.full = True
    tank.say("a", subscribe(), {"type": "disconnect"})
    await until(lambda: tank.postponed)
    tank.disk.full = False
    await tank.store.wait_available()
    tank.dispatcher.handle(tank.postponed, tank.postponed.extend)
    await tank.settled(2)
    await until(lambda: list(tank.streams) == [])
    assert list(tank.kept.rows("site")) == []
