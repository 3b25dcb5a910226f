"""Resends of a session: the messages and their frames, the limit of concurrent resends, and failures.

Case numbers are those of the cases for Streamr; the offsets of a stream count from 1 here.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from connectivity.errors import PublishFailed
from connectivity.sessions import stream_source
from connectivity.sessions.base import FOREVER
from connectivity.sessions.stream_source import StreamSource
from connectivity.sessions.streamr.frame_cache import FrameCache
from connectivity.sessions.streamr.resend import WINDOW, ResendQueue
from mappings.streamr.frames import PLAIN
from mappings.streamr.resends import ResendLimits
from mappings.streamr.sessions import SessionTable
from mappings.streams.stream_id import partition_id
from spark_store.errors import HistoryUnavailable
from tests.support.in_process.service import pause, until
from tests.support.in_process.streamr import (
    OTHER,
    PUBLIC,
    Frame,
    StreamrHarness,
    error,
    offsets,
    publish,
    resend,
    subscribe,
    subscribed,
    unsubscribe,
)

pytestmark = pytest.mark.usefixtures("harnesses")


def place(sub: Any = "a", stream: str = "tank", partition: int = 0) -> dict[str, Any]:
    return {"stream": stream, "partition": partition, "sub": sub}


def resent(found: list[int], sub: Any = "a") -> list[tuple[int, Any]]:
    """Return the types of the frames of a resend, each with its offset or subject."""
    if not found:
        return [(6, place(sub))]
    return [(4, place(sub)), *((1, offset) for offset in found), (5, place(sub))]


def shown(frames: list[Frame]) -> list[tuple[int, Any]]:
    return [(frame[1], frame[3][5] if frame[1] in (0, 1) else frame[3]) for frame in frames]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        pytest.param({"resend_all": True}, [1, 2, 3, 4], id="R01"),
        pytest.param({"resend_last": 2}, [3, 4], id="R02"),
        pytest.param({"resend_last": 99}, [1, 2, 3, 4], id="R03"),
        pytest.param({"resend_last": 0}, [], id="R04"),
        pytest.param({"resend_from": 2}, [2, 3, 4], id="R05"),
        pytest.param({"resend_from": 3}, [3, 4], id="R06"),
        pytest.param({"resend_from": 0}, [1, 2, 3, 4], id="R06 from zero"),
        pytest.param({"resend_from": 1, "resend_to": 3}, [1, 2, 3], id="R07"),
        pytest.param({"resend_from": 2, "resend_to": 2}, [2], id="R08"),
        pytest.param({"resend_from": 3, "resend_to": 1}, [], id="R09"),
        pytest.param({"resend_from": 0, "resend_to": 0}, [], id="R09 up to zero"),
        pytest.param({"resend_from": 2, "resend_to": 2**60}, [2, 3, 4], id="R07 beyond the newest"),
        pytest.param({"resend_from": 5}, [], id="R10"),
        pytest.param({"resend_from": 2**60}, [], id="R10 beyond everything"),
        pytest.param({"resend_last": 1, "resend_from": 1}, [1, 2, 3, 4], id="R13"),
    ],
)
async def test_cases_r01_to_r13_a_resend_sends_the_messages_that_its_options_select(
    options: dict[str, Any], found: list[int]
) -> None:
    streamr_harness = await StreamrHarness.filled(messages=4)
    frames = await streamr_harness.exchange("a", resend(**options), len(resent(found)))
    assert shown(frames) == resent(found)
    assert {frame[2] for frame in frames if frame[1] == 1} <= {"a"}
    assert {frame[2] for frame in frames if frame[1] != 1} == {""}


@pytest.mark.parametrize(
    ("times", "instant", "found"),
    [
        pytest.param([4, 5, 6, 7], 5, [2, 3, 4], id="R11"),
        pytest.param([4, 9, 3, 10], 5, [2, 3, 4], id="R12"),
        pytest.param([4, 9, 3, 10], 4.5, [2, 3, 4], id="R12 a part of a millisecond"),
        pytest.param([4, 9, 3, 10], 11, [], id="R11 beyond everything"),
        pytest.param([4, None, 3, 10], 11, [2, 3, 4], id="R12 the service's own time"),
        pytest.param([], 5, [], id="R11 an empty stream"),
    ],
)
async def test_cases_r11_and_r12_a_resend_from_a_time_on_starts_with_the_first_message_from_then(
    times: list[int | None], instant: float, found: list[int]
) -> None:
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.send(None, *(publish(ts=time) for time in times))
    await until(lambda: len(streamr_harness.stored()) == len(times))
    frames = await streamr_harness.exchange("a", resend(resend_from_time=instant), len(resent(found)))
    assert shown(frames) == resent(found)


async def test_a_resend_from_an_unsearchable_time_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    streamr_harness = await StreamrHarness.filled(messages=1)

    async def unreadable(*_: Any) -> None:
        raise HistoryUnavailable("a file is gone")

    monkeypatch.setattr(stream_source, "first_published", unreadable)
    (refused,) = await streamr_harness.exchange("a", resend(resend_from_time=1))
    assert (error(refused)["status"], error(refused)["sub"]) == (503, "a")


@pytest.mark.parametrize("end", ["disconnect", "close"])
async def test_a_search_ends_with_its_session(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    streamr_harness = await StreamrHarness.filled(messages=1)
    asked, given_up = asyncio.Event(), asyncio.Event()

    async def endless(*_: Any) -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    monkeypatch.setattr(stream_source, "first_published", endless)
    streamr_harness.send("a", resend(resend_from_time=1))
    await asked.wait()
    if end == "close":
        streamr_harness.close_connection()
    else:
        streamr_harness.send("a", {"type": "disconnect"})
    await until(given_up.is_set)
    await streamr_harness.frames("a", 0)


async def test_a_disconnect_stops_the_resends_of_the_session() -> None:
    streamr_harness = await StreamrHarness.filled(messages=3 * WINDOW)
    streamr_harness.link.confirms = False
    streamr_harness.send("a", resend(resend_all=True))
    await until(lambda: len(streamr_harness.received("a")) > 1)
    await pause()
    before = len(streamr_harness.received("a"))
    streamr_harness.send("a", {"type": "disconnect"})
    await pause()
    await until(lambda: list(streamr_harness.streams) == [])
    streamr_harness.link.confirms = True
    streamr_harness.link.confirm()
    await streamr_harness.frames("a", before)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"resend_to": 2}, id="R14 an end alone"),
        pytest.param({}, id="R14 nothing"),
        pytest.param({"resend_all": "true"}, id="R14 a text"),
        pytest.param({"resend_last": -1}, id="R15 negative"),
        pytest.param({"resend_last": "2"}, id="R15 text"),
        pytest.param({"resend_last": 1.5}, id="R15 part"),
    ],
)
async def test_cases_r14_and_r15_unknown_resend_options_are_refused(options: dict[str, Any]) -> None:
    streamr_harness = await StreamrHarness.filled(messages=2)
    (refused,) = await streamr_harness.exchange("a", resend(**options))
    response = error(refused)
    assert response["error"] == f"Unknown resend options: {json.dumps(options, separators=(',', ':'))}"
    assert (response["status"], response["sub"]) == (400, "a")


async def test_case_r16_a_resend_needs_the_id_of_its_client() -> None:
    streamr_harness = await StreamrHarness.filled(messages=1)
    (refused,) = await streamr_harness.exchange("a", resend(None, resend_all=True))
    assert error(refused)["error"] == "Subscription ID not given!"


async def test_case_r17_an_id_that_is_a_number_stays_one() -> None:
    streamr_harness = await StreamrHarness.filled(messages=1)
    frames = await streamr_harness.exchange("a", resend(0, resend_all=True), 3)
    assert shown(frames) == resent([1], 0)
    assert frames[1][2] == 0


async def test_case_r18_a_resend_neither_needs_nor_creates_a_subscription() -> None:
    streamr_harness = await StreamrHarness.filled(messages=1)
    await streamr_harness.exchange("a", resend(resend_all=True), 3)
    await streamr_harness.publish(1)
    await streamr_harness.frames("a", 3)
    await until(lambda: list(streamr_harness.streams) == [])


async def test_case_r19_a_message_names_its_predecessor_even_if_that_is_outside_the_range() -> None:
    streamr_harness = await StreamrHarness.filled(messages=3)
    frames = await streamr_harness.exchange("a", resend(resend_from=2), 4)
    assert [frame[3][5:7] for frame in frames[1:3]] == [[2, 1], [3, 2]]


async def test_case_r20_two_resends_at_once_are_each_complete_and_in_order() -> None:
    streamr_harness = await StreamrHarness.filled(messages=450)
    streamr_harness.send("a", resend("x", resend_all=True), resend("y", resend_last=300))
    await until(lambda: len(streamr_harness.received("a")) == 452 + 302)
    frames = streamr_harness.received("a")
    for sub, first in (("x", 1), ("y", 151)):
        own = [frame for frame in frames if frame[2] == sub or (frame[1] != 1 and frame[3]["sub"] == sub)]
        assert shown(own) == resent(list(range(first, 451)), sub)


async def test_case_r21_messages_published_during_a_resend_are_broadcast_and_not_part_of_it() -> None:
    streamr_harness = await StreamrHarness.filled(messages=3 * WINDOW)
    await streamr_harness.exchange("a", subscribe())
    streamr_harness.link.confirms = False
    streamr_harness.send("a", resend(resend_all=True))
    await streamr_harness.settled(2)
    await pause()
    await streamr_harness.publish(1)
    await pause()
    streamr_harness.link.confirms = True
    streamr_harness.link.confirm()
    frames = await streamr_harness.frames("a", 1 + 3 * WINDOW + 2 + 1)
    assert offsets(frames) == [3 * WINDOW + 1]
    assert frames.index([0, 5, "", place()]) == len(frames) - 1
    assert shown([frame for frame in frames if frame[1] in (1, 4, 5)]) == resent(list(range(1, 3 * WINDOW + 1)))


async def test_case_r22_a_resend_fails_when_its_messages_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    streamr_harness = await StreamrHarness.filled(messages=2 * WINDOW)
    pages = streamr_harness.store.page

    async def unreadable(range: Any, position: int, limit: int, max_bytes: int) -> Any:
        if position >= WINDOW:
            raise HistoryUnavailable("a file is gone")
        return await pages(range, position, limit, max_bytes)

    monkeypatch.setattr(streamr_harness.store, "page", unreadable)
    frames = await streamr_harness.exchange("a", resend(resend_all=True), 1 + WINDOW + 1)
    response = error(frames[-1])
    assert response["error"].startswith("Failed to request resend from stream tank and partition 0: ")
    assert (response["status"], response["sub"]) == (503, "a")
    monkeypatch.undo()
    assert len(await streamr_harness.exchange("a", resend(resend_last=1), 3)) == 3


@pytest.mark.parametrize("key", ["not a key", OTHER, None])
async def test_case_r23_a_resend_without_read_permission_is_refused(key: str | None) -> None:
    streamr_harness = await StreamrHarness.filled(messages=2)
    (refused,) = await streamr_harness.exchange("a", resend(key=key, resend_all=True))
    response = error(refused)
    assert response["error"] == "Failed to request resend from stream tank and partition 0: not authorized"
    assert (response["status"], response["sub"]) == (403, "a")
    await until(lambda: list(streamr_harness.streams) == [])


async def test_case_r25_the_same_question_without_an_answer_is_answered_later_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finished: list[object] = []
    finish = ResendQueue.finish

    def count(self: ResendQueue, *given: Any, **more: Any) -> None:
        finish(self, *given, **more)
        finished.append(self)

    monkeypatch.setattr(ResendQueue, "finish", count)
    streamr_harness = await StreamrHarness.filled(messages=1)
    asking = resend(resend_from=7, resend_to=9)
    assert shown(await streamr_harness.exchange("a", asking)) == [(6, place())]
    for delay, number in ((1, 2), (2, 3)):
        streamr_harness.send("a", asking)
        # Its response is due this long after it was found, so the clock does not move until then.
        await until(lambda number=number: len(finished) == number)  # type: ignore[misc]
        streamr_harness.clock.advance(delay - 0.1)
        streamr_harness.sweep_sessions()
        assert len(await streamr_harness.frames("a", number - 1)) == number - 1
        streamr_harness.clock.advance(0.2)
        streamr_harness.sweep_sessions()
        assert shown(await streamr_harness.frames("a", number))[-1] == (6, place())
    assert offsets(await streamr_harness.exchange("a", resend(resend_all=True), 3), 1) == [1]


async def test_a_session_starts_only_so_many_resends_in_a_second() -> None:
    streamr_harness = await StreamrHarness.filled(messages=1)
    most = ResendLimits().per_second
    streamr_harness.send("a", *(resend(str(number), resend_all=True) for number in range(most + 5)))
    await streamr_harness.frames("a", 3 * most)
    streamr_harness.sweep_sessions()
    await streamr_harness.frames("a", 3 * most)
    streamr_harness.clock.advance(1)
    streamr_harness.sweep_sessions()
    frames = await streamr_harness.frames("a", 3 * (most + 5))
    assert [frame[2] for frame in frames if frame[1] == 1] == [str(number) for number in range(most + 5)]


async def test_a_session_has_so_many_resends_on_their_way_and_the_others_wait_their_turn() -> None:
    streamr_harness = await StreamrHarness.filled(messages=3)
    running = ResendLimits().running
    streamr_harness.link.confirms = False
    streamr_harness.send("a", *(resend(str(number), resend_all=True) for number in range(running + 2)))
    await streamr_harness.settled(running + 2)
    await pause()
    assert len({frame[2] for frame in streamr_harness.received("a") if frame[1] == 1}) == running
    assert len(list(streamr_harness.streams)) == running
    streamr_harness.link.confirms = True
    streamr_harness.link.confirm()
    assert len(await streamr_harness.frames("a", 5 * (running + 2))) == 5 * (running + 2)


async def test_one_resend_too_many_is_refused_and_the_others_are_answered() -> None:
    streamr_harness = await StreamrHarness.filled(messages=1)
    limits = ResendLimits()
    streamr_harness.link.confirms = False
    for number in range(limits.running + limits.waiting + 1):
        streamr_harness.send("a", resend(str(number), resend_all=True))
    await until(lambda: any(frame[1] == 7 for frame in streamr_harness.received("a")))
    (refused,) = [frame for frame in streamr_harness.received("a") if frame[1] == 7]
    assert (error(refused)["status"], error(refused)["sub"]) == (429, str(limits.running + limits.waiting))


async def test_a_resend_stops_reading_where_the_broker_does_not_keep_up() -> None:
    streamr_harness = await StreamrHarness.filled(messages=3 * WINDOW)
    streamr_harness.link.confirms = False
    streamr_harness.link.window = 10_000
    streamr_harness.send("a", resend(resend_all=True))
    await streamr_harness.settled(1)
    await pause()
    assert offsets(streamr_harness.received("a"), 1) == list(range(1, WINDOW + 1))
    streamr_harness.link.confirms = True
    streamr_harness.link.confirm()
    assert offsets(await streamr_harness.frames("a", 3 * WINDOW + 2), 1) == list(range(1, 3 * WINDOW + 1))


async def test_a_resend_of_which_the_broker_refuses_a_message_fails_and_continues_no_further() -> None:
    streamr_harness = await StreamrHarness.filled(messages=3 * WINDOW)
    streamr_harness.link.confirms = False
    streamr_harness.link.window = 10_000
    streamr_harness.send("a", resend(resend_all=True), correlation_id="c-1")
    await streamr_harness.settled(1)
    await pause()
    streamr_harness.link.confirm(WINDOW // 4)
    streamr_harness.link.confirm(1, PublishFailed("too large", status=413))
    streamr_harness.link.confirms = True
    streamr_harness.link.confirm()
    frames = await streamr_harness.frames("a", WINDOW + 2)
    response = error(frames[-1])
    assert response["error"].startswith("Failed to request resend from stream tank and partition 0: ")
    assert (response["status"], response["sub"], response["correlationId"]) == (413, "a", "c-1")
    assert (5, place()) not in shown(frames)


async def test_a_resend_continues_after_its_session_unsubscribes() -> None:
    streamr_harness = await StreamrHarness.filled(messages=2)
    streamr_harness.send("a", subscribe(), resend(resend_all=True), unsubscribe())
    frames = await streamr_harness.frames("a", 6)
    assert frames[0] == subscribed()
    assert offsets(frames, 1) == [1, 2]


async def test_a_resend_includes_messages_published_earlier_in_the_same_batch() -> None:
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.send("a", publish("1"), resend(resend_all=True), publish("2"))
    assert shown(await streamr_harness.frames("a", 3)) == resent([1])


async def test_a_public_stream_is_sent_again_without_a_key() -> None:
    streamr_harness = await StreamrHarness.filled()
    await streamr_harness.publish(1, PUBLIC)
    assert offsets(await streamr_harness.exchange("a", resend(key=None, stream=PUBLIC, resend_all=True), 3), 1) == [1]


async def test_case_r24_a_message_names_no_predecessor_that_has_expired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streamr_harness = await StreamrHarness.filled(messages=4)
    await streamr_harness.exchange("b", subscribe())
    monkeypatch.setattr(streamr_harness.store, "oldest_revision", lambda _entity: 3)
    frames = await streamr_harness.exchange("a", resend(resend_from=3), 4)
    assert [frame[3][5:7] for frame in frames[1:3]] == [[3, None], [4, 3]]
    monkeypatch.setattr(streamr_harness.store, "oldest_revision", lambda _entity: 5)
    assert (await streamr_harness.exchange("b", publish()))[0][3][5:7] == [5, None]


async def test_a_message_that_was_written_before_is_written_again_when_its_predecessor_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streamr_harness = await StreamrHarness.filled(messages=2)
    _, event = streamr_harness.history(partition_id("tank", 0))
    frames = FrameCache(StreamSource(streamr_harness.store, FOREVER, lambda: streamr_harness.now))
    before = frames.broadcast(event, PLAIN)
    assert frames.broadcast(event, PLAIN) is before
    monkeypatch.setattr(streamr_harness.store, "oldest_revision", lambda _entity: 2)
    assert json.loads(before)[3][6] == 1
    assert json.loads(frames.broadcast(event, PLAIN))[3][6] is None


async def test_a_request_beyond_the_session_limit_returns_an_error_that_names_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streamr_harness = await StreamrHarness.filled(messages=1)
    monkeypatch.setattr(SessionTable, "open", lambda *_: None)
    (refused,) = await streamr_harness.exchange("a", resend(resend_all=True))
    assert (error(refused)["error"], error(refused)["status"]) == (
        "Limit exceeded: 10000 sessions of a connection",
        429,
    )
