"""Lifetime of sessions: their ends, and their continuation after a restart of service or connection.

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
    StreamrHarness,
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

pytestmark = pytest.mark.usefixtures("harnesses")

IDLE = 3600.0
TANK = partition_id("tank", 0)


async def following(messages: int = 0, **more: Any) -> StreamrHarness:
    """A tank that the client `a` follows."""
    streamr_harness = await StreamrHarness.filled(messages=messages, **more)
    assert await streamr_harness.exchange("a", subscribe()) == [subscribed()]
    streamr_harness.forget()
    return streamr_harness


async def again(
    streamr_harness: StreamrHarness, *sources: dict[str, Any], kept: KeptRows | None = None, **more: Any
) -> StreamrHarness:
    """The service that follows one that was killed, which still has its journal, and writes nothing more."""
    streamr_harness.close_connection()
    await streamr_harness.store.commits.barrier()
    return StreamrHarness(
        *sources, journal=streamr_harness.journal, kept=kept or streamr_harness.kept.crashed(), **more
    )


async def is_over(streamr_harness: StreamrHarness) -> bool:
    """Return whether the client `a` and all other clients have no subscription left."""
    await pause()
    before = len(streamr_harness.link.published)
    await streamr_harness.publish(1)
    await pause()
    gone = (streamr_harness.following.followers(TANK), list(streamr_harness.streams), streamr_harness.kept.written) == (
        0,
        [],
        {},
    )
    assert gone == (len(streamr_harness.link.published) == before)
    return gone


# what ends a session


async def test_case_b08_a_session_ends_after_its_idle_timeout() -> None:
    streamr_harness = await following()
    streamr_harness.clock.advance(IDLE - 1)
    streamr_harness.sweep_sessions()
    assert streamr_harness.following.followers(TANK) == 1
    streamr_harness.clock.advance(1)
    streamr_harness.sweep_sessions()
    assert await is_over(streamr_harness)


async def test_case_b09_a_repeated_subscribe_restarts_the_idle_timeout() -> None:
    streamr_harness = await following(options={"sessionIdleTimeout": "10m"})
    for _ in range(3):
        streamr_harness.clock.advance(599)
        streamr_harness.sweep_sessions()
        assert (await streamr_harness.exchange("a", subscribe()))[-1] == subscribed()
    await streamr_harness.publish(1)
    assert offsets(await streamr_harness.frames("a", 4)) == [1]
    streamr_harness.clock.advance(600)
    streamr_harness.sweep_sessions()
    assert await is_over(streamr_harness)


async def test_a_session_ends_after_three_undelivered_messages_within_30_seconds() -> None:
    streamr_harness = await following()

    def undelivered(after: float) -> None:
        streamr_harness.clock.advance(after)
        streamr_harness.reader("a", ReaderStatus.UNDELIVERED)
        streamr_harness.reader("b", ReaderStatus.UNDELIVERED)

    for _ in range(5):
        undelivered(5)
    streamr_harness.reader("a", ReaderStatus.HEARD)
    for after in (40, 15):
        undelivered(after)
    streamr_harness.handlers["streamr"].reader("elsewhere", "a", ReaderStatus.UNDELIVERED)
    assert not await is_over(streamr_harness)
    undelivered(15)
    assert await is_over(streamr_harness)


@pytest.mark.parametrize("sign", [ReaderStatus.REFUSED, ReaderStatus.GONE])
async def test_a_session_ends_at_once_when_its_reader_is_refused_or_gone(sign: ReaderStatus) -> None:
    streamr_harness = await following()
    streamr_harness.send("a", resend(resend_all=True))
    await streamr_harness.frames("a", 1)
    streamr_harness.reader("a", sign)
    assert await is_over(streamr_harness)


async def test_closing_the_connection_ends_its_sessions() -> None:
    streamr_harness = await following()
    streamr_harness.close_connection()
    streamr_harness.handlers["streamr"].keep_only(lambda connection_id: connection_id != "site")
    assert streamr_harness.kept.written == {}
    streamr_harness.handlers["streamr"].opened(streamr_harness.opened)
    assert await is_over(streamr_harness)


async def test_a_connection_that_is_opened_again_continues_with_its_sessions() -> None:
    """As after a change of its document: messages published meanwhile are sent."""
    streamr_harness = await following(messages=2)
    streamr_harness.close_connection()
    await streamr_harness.publish(2)
    assert streamr_harness.received("a") == []
    streamr_harness.handlers["streamr"].keep_only(lambda _: True)
    streamr_harness.handlers["streamr"].opened(streamr_harness.opened)
    assert offsets(await streamr_harness.frames("a", 2)) == [3, 4]


# what outlives the service


async def test_case_b10_a_session_gets_the_missed_messages_automatically_after_a_restart() -> None:
    streamr_harness = await following(messages=3)
    await streamr_harness.exchange("b", subscribe(stream="pair", partition=1))
    await streamr_harness.publish(1)
    assert offsets(await streamr_harness.frames("a", 1)) == [4]
    streamr_harness.sweep_sessions()
    streamr_harness.close_connection()
    await streamr_harness.publish(3)
    streamr_harness = await again(streamr_harness)
    frames = await streamr_harness.frames("a", 3)
    assert [frame[3][5:7] for frame in frames] == [[5, 4], [6, 5], [7, 6]]
    await streamr_harness.publish(1)
    assert offsets(await streamr_harness.frames("a", 4)) == [5, 6, 7, 8]
    assert await streamr_harness.exchange("a", unsubscribe()) == [unsubscribed()]
    assert {row.at.address for row in streamr_harness.kept.rows("site")} == {"b"}


async def test_case_b10_a_session_beyond_the_catch_up_limit_skips_to_new_messages_and_sees_the_gap() -> None:
    few = {"sessionCatchUpMax": 2}
    streamr_harness = await following(messages=3, options=few)
    streamr_harness.close_connection()
    await streamr_harness.publish(3)
    streamr_harness = await again(streamr_harness, options=few)
    await pause()
    assert streamr_harness.received("a") == []
    streamr_harness.sweep_sessions()
    streamr_harness.close_connection()
    await streamr_harness.publish(1)
    streamr_harness = await again(streamr_harness, options=few)
    (frame,) = await streamr_harness.frames("a", 1)
    assert frame[3][5:7] == [7, 6]


async def test_messages_may_be_repeated_but_are_not_lost_after_a_crash() -> None:
    """The position confirmed by the broker is stored once a second."""
    streamr_harness = await following()
    await streamr_harness.publish(2)
    await streamr_harness.frames("a", 2)
    streamr_harness.sweep_sessions()
    await streamr_harness.publish(2)
    await streamr_harness.frames("a", 4)
    streamr_harness = await again(streamr_harness)
    assert offsets(await streamr_harness.frames("a", 2)) == [3, 4]


async def test_unconfirmed_messages_are_sent_again_after_a_crash() -> None:
    streamr_harness = await following()
    streamr_harness.link.confirms = False
    streamr_harness.send("b", publish(), publish())
    await streamr_harness.frames("a", 2)
    streamr_harness.sweep_sessions()
    streamr_harness = await again(streamr_harness)
    assert offsets(await streamr_harness.frames("a", 2)) == [1, 2]


async def test_a_confirmed_subscription_survives_a_crash() -> None:
    streamr_harness = await StreamrHarness.filled(messages=3)
    streamr_harness.disk.hold()
    streamr_harness.send("a", subscribe())
    await pause()
    assert streamr_harness.link.published == []
    streamr_harness.disk.release()
    await streamr_harness.frames("a", 1)
    streamr_harness = await again(streamr_harness)
    await streamr_harness.publish(1)
    assert offsets(await streamr_harness.frames("a", 1)) == [4]


async def test_case_s14_the_last_request_of_a_batch_applies_after_a_restart() -> None:
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.send("a", subscribe(), unsubscribe(), subscribe())
    streamr_harness.send("b", subscribe(), unsubscribe())
    assert await streamr_harness.frames("a", 3) == [subscribed(), unsubscribed(), subscribed()]
    assert {row.at.address for row in streamr_harness.kept.rows("site")} == {"a"}
    streamr_harness = await again(streamr_harness)
    await streamr_harness.publish(1)
    assert offsets(await streamr_harness.frames("a", 1)) == [1]


async def test_clients_that_share_an_address_are_still_distinguished() -> None:
    streamr_harness = await StreamrHarness.filled()
    for client in ("x", "y"):
        await streamr_harness.exchange("a", subscribe(), client_id=client)
    streamr_harness = await again(streamr_harness)
    for frames, client in ((1, "x"), (3, "y")):
        await streamr_harness.publish(1)
        await streamr_harness.frames("a", frames)
        assert await streamr_harness.exchange("a", unsubscribe(), client_id=client) == [unsubscribed()]
    await streamr_harness.publish(1)
    assert offsets(streamr_harness.received("a")) == [1, 2]


async def test_while_the_disk_is_full_a_subscriber_waits_and_misses_nothing() -> None:
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.disk.full = True
    streamr_harness.send("a", subscribe(), publish("1"))
    await until(lambda: streamr_harness.postponed)
    streamr_harness.disk.full = False
    await streamr_harness.store.commits.wait_available()
    streamr_harness.dispatcher.handle(streamr_harness.postponed, streamr_harness.postponed.extend)
    frames = await streamr_harness.frames("a", 2)
    assert (frames[0], offsets(frames)) == (subscribed(), [1])


# messages that must be sent


async def test_a_resend_that_was_cut_off_fails() -> None:
    streamr_harness = await StreamrHarness.filled(messages=3)
    streamr_harness.link.confirms = False
    streamr_harness.send("a", resend(sub=7, resend_all=True), correlation_id="c-1")
    streamr_harness.send("b", resend(sub="none", resend_from=9))
    await streamr_harness.frames("a", 4)
    streamr_harness = await again(streamr_harness)
    (frame,) = await streamr_harness.frames("a", 1)
    assert error(frame) == {
        "error": "Failed to request resend from stream tank and partition 0: the service was restarted",
        "status": 503,
        "code": "streamr:resend.failed",
        "stream": "tank",
        "partition": 0,
        "sub": 7,
        "correlationId": "c-1",
    }
    assert len(await streamr_harness.frames("b", 1)) == 1
    assert streamr_harness.kept.written == {}


async def test_an_ended_resend_is_not_reported_again() -> None:
    streamr_harness = await StreamrHarness.filled(messages=1)
    await streamr_harness.exchange("a", resend(resend_all=True), 3)
    await streamr_harness.exchange("a", resend(resend_last=-1))
    assert streamr_harness.kept.written == {}


async def test_two_resends_of_one_id_are_kept_until_both_have_ended() -> None:
    streamr_harness = await StreamrHarness.filled(messages=1)
    streamr_harness.link.confirms = False
    streamr_harness.send("a", resend(resend_all=True), resend(resend_all=True))
    await streamr_harness.frames("a", 4)
    streamr_harness.link.confirm(4)
    await streamr_harness.frames("a", 6)
    streamr_harness.link.confirm(1)
    await pause()
    assert len(streamr_harness.kept.written) == 1
    streamr_harness.link.confirm()
    await pause()
    assert streamr_harness.kept.written == {}


async def test_a_session_that_lost_read_permission_while_closed_gets_an_error_after_the_restart() -> None:
    streamr_harness = await following()
    kept = streamr_harness.kept.crashed()
    streamr_harness.close_connection()
    delete = b'{"topic":"acme.site/tanks/policies/commands/delete","path":"/entries/pump","headers":{}}'
    changed = await streamr_harness.ask_ditto(delete)
    assert changed["status"] == 204, changed
    streamr_harness = await again(streamr_harness, kept=kept)
    assert error(streamr_harness.received("a")[0])["code"] == "streamr:stream.forbidden"
    assert streamr_harness.kept.written == {}


@pytest.mark.parametrize(
    ("sources", "mapping"),
    [
        pytest.param([source(payloadMapping=["Ditto"])], {}, id="another protocol"),
        pytest.param([source(replyTarget={"address": "r/{{ header:reply-to }}"})], {}, id="another address"),
        pytest.param([], {"replyAddressPattern": "r/*"}, id="another pattern"),
    ],
)
async def test_sessions_that_no_longer_match_the_connection_document_are_deleted(
    sources: list[dict[str, Any]], mapping: dict[str, Any]
) -> None:
    streamr_harness = await following()
    streamr_harness = await again(streamr_harness, *sources, options=mapping)
    assert streamr_harness.kept.written == {}
    assert streamr_harness.link.published == []


async def test_case_x06_a_restored_session_that_loses_read_permission_gets_an_error_and_ends() -> None:
    streamr_harness = await again(await following())
    delete = b'{"topic":"acme.site/tanks/policies/commands/delete","path":"/entries/pump","headers":{}}'
    changed = await streamr_harness.ask_ditto(delete)
    assert changed["status"] == 204, changed
    (refused,) = await streamr_harness.frames("a", 1)
    assert error(refused)["code"] == "streamr:stream.forbidden"
    assert await is_over(streamr_harness)


@pytest.mark.parametrize(
    ("sources", "mapping"),
    [
        pytest.param([], {"authKeys": {"gauge": fingerprint("K")}}, id="a key that was taken away"),
        pytest.param([source("in", "streamr:pump")], {}, id="a source that speaks for others"),
    ],
)
async def test_a_restored_session_with_an_unknown_subject_gets_an_error_and_ends(
    sources: list[dict[str, Any]], mapping: dict[str, Any]
) -> None:
    streamr_harness = await following()
    streamr_harness = await again(streamr_harness, *sources, options=mapping)
    assert error(streamr_harness.received("a")[0])["code"] == "streamr:stream.forbidden"
    assert streamr_harness.kept.written == {}
    assert streamr_harness.following.followers(TANK) == 0


async def test_a_session_whose_subject_comes_from_message_headers_continues_after_a_restart() -> None:
    by_header = source("in", "acme:{{ header:device-id }}")
    streamr_harness = await StreamrHarness.filled(by_header)
    assert await streamr_harness.exchange("a", subscribe(), device_id="d-7") == [subscribed()]
    streamr_harness = await again(streamr_harness, by_header)
    streamr_harness.send(None, publish(), device_id="d-8")
    assert offsets(await streamr_harness.frames("a", 1)) == [1]


async def test_a_deleted_partition_is_left_with_a_log_line() -> None:
    streamr_harness = await StreamrHarness.filled()
    await streamr_harness.exchange("a", subscribe(stream="pair", partition=1))
    fewer = options()["streams"] | {"pair": {"policyId": "acme.site:tanks"}}
    streamr_harness = await again(streamr_harness, options={"streams": fewer})
    assert error(streamr_harness.received("a")[0])["code"] == "streamr:partition.invalid"
    assert streamr_harness.kept.written == {}


async def test_sessions_wait_for_a_store_that_cannot_be_read() -> None:
    streamr_harness = await following()
    await streamr_harness.publish(1)
    kept = streamr_harness.kept.crashed()
    kept.is_unreadable = True
    streamr_harness = await again(streamr_harness, kept=kept)
    streamr_harness.sweep_sessions()
    await pause()
    assert streamr_harness.received("a") == []
    kept.is_unreadable = False
    streamr_harness.sweep_sessions()
    assert offsets(await streamr_harness.frames("a", 1)) == [1]


async def test_a_session_waits_for_a_store_in_which_its_stream_alone_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streamr_harness = await following()
    await streamr_harness.publish(1)
    journal, read = streamr_harness.journal, streamr_harness.journal.snapshot
    unread: list[EntityId] = []

    def snapshot(entity: EntityId) -> Snapshot | None:
        if entity == TANK and not unread:
            unread.append(entity)
            raise StoreUnavailable("a page cannot be read")
        return read(entity)

    monkeypatch.setattr(journal, "snapshot", snapshot)
    streamr_harness = await again(streamr_harness)
    assert unread == [TANK]
    streamr_harness.sweep_sessions()
    assert offsets(await streamr_harness.frames("a", 1)) == [1]


async def test_a_retried_disconnect_ends_the_subscriptions_that_its_batch_started() -> None:
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.disk.full = True
    streamr_harness.send("a", subscribe(), {"type": "disconnect"})
    await until(lambda: streamr_harness.postponed)
    streamr_harness.disk.full = False
    await streamr_harness.store.commits.wait_available()
    streamr_harness.dispatcher.handle(streamr_harness.postponed, streamr_harness.postponed.extend)
    await streamr_harness.settled(2)
    await until(lambda: list(streamr_harness.streams) == [])
    assert list(streamr_harness.kept.rows("site")) == []
