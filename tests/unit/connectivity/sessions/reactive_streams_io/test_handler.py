"""Clients of reactive-streams-io at the session handler: hellos, demand, names, and errors of clients.

Case numbers are those of the cases for reactive-streams-io. Hexadecimal digits are bytes as they travel.
"""

from __future__ import annotations

import json

import pytest

from mappings.reactive_streams_io.frames import (
    CancelFrame,
    Goodbye,
    OnComplete,
    OnError,
    OnNext,
    OnSubscribe,
    RequestFrame,
)
from tests.support.in_process.reactive_streams_io import (
    HELLO,
    HISTORY,
    H,
    RsioHarness,
    elements,
    revisions,
    source,
    subscribe,
    subscribe_synthetic,
)
from tests.support.in_process.service import pause, until

pytestmark = pytest.mark.usefixtures("harnesses")

SERVER = "02 00 03 01 02 03"


# a history


async def test_a_client_reads_the_history_of_a_thing_at_its_own_pace() -> None:
    rsio_harness = await RsioHarness.filled(revisions=4)
    rsio_harness.send("a", H, subscribe(HISTORY, 5, 1))
    hello, begun, first = await rsio_harness.framed("a", 3)
    assert (hello, begun) == (HELLO, OnSubscribe(5, 0))
    assert isinstance(first, OnNext)
    assert json.loads(first.element)["topic"] == "acme.site/lamp-7/things/twin/events/created"
    rsio_harness.send("a", RequestFrame(5, 2))
    frames = await rsio_harness.framed("a", 5)
    assert revisions([frame.element for frame in frames[2:] if isinstance(frame, OnNext)]) == [1, 2, 3]
    rsio_harness.send("a", RequestFrame(5, 9))
    *_, last, end = await rsio_harness.framed("a", 7)
    assert isinstance(last, OnNext)
    assert json.loads(last.element) == {
        "topic": "acme.site/lamp-7/things/twin/events/modified",
        "path": "/attributes/on",
        "value": 4,
        "revision": 4,
        "timestamp": "2030-01-15T07:30:00.000000Z",
    }
    assert end == OnComplete(5)
    await until(lambda: list(rsio_harness.streams) == [])
    assert await rsio_harness.settled(3)


async def test_a_cancel_ends_a_stream_without_a_frame() -> None:
    rsio_harness = await RsioHarness.filled(revisions=4)
    rsio_harness.send("a", H, subscribe(HISTORY, 1, 1))
    await rsio_harness.framed("a", 3)
    rsio_harness.send("a", CancelFrame(1), RequestFrame(1, 9))
    await rsio_harness.framed("a", 3)
    await until(lambda: list(rsio_harness.streams) == [])


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        pytest.param("from=2&to=4", [2, 3, 4], id="N01"),
        pytest.param("from=-2", [9, 10], id="N02"),
        pytest.param("from=1&to=-8", [1, 2], id="N02a"),
        pytest.param("from=11", [], id="behind the newest"),
        pytest.param("filter=gt(attributes/on,8)", [9, 10], id="a filter"),
    ],
)
async def test_cases_n01_and_n02_a_history_has_the_revisions_in_its_name(parameters: str, expected: list[int]) -> None:
    rsio_harness = await RsioHarness.filled(revisions=10)
    rsio_harness.send("a", H, subscribe(f"{HISTORY}?{parameters}", 1, 20))
    _, _, *elements, end = await rsio_harness.framed("a", 3 + len(expected))
    assert revisions([each.element for each in elements if isinstance(each, OnNext)]) == expected
    assert end == OnComplete(1)


async def test_case_n04_after_the_newest_event_a_followed_history_continues_live() -> None:
    rsio_harness = await RsioHarness.filled(revisions=5)
    rsio_harness.send("a", H, subscribe(f"{HISTORY}?from=3&follow=true", 1, 100))
    await rsio_harness.framed("a", 5)
    for number in range(6, 9):
        await rsio_harness.dispatch(
            b'{"topic":"acme.site/lamp-7/things/twin/commands/modify","path":"/attributes/on","value":%d}' % number
        )
    frames = await rsio_harness.framed("a", 8)
    assert revisions([each.element for each in frames if isinstance(each, OnNext)]) == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("publisher", "status"),
    [
        pytest.param(f"{HISTORY}?from=1&from-ts=2024-01-01T00:00:00Z", "400", id="N03"),
        pytest.param("things/search?filter=eq(", "422", id="N06"),
        pytest.param(f"{HISTORY}?filter=eq(", "422", id="a filter that cannot be read"),
        pytest.param(f"{HISTORY}?filter=eq(&follow=true", "422", id="a filter that cannot be followed"),
        pytest.param("things/acme.site:nothing/history", "404", id="no such thing"),
        pytest.param("nope", "404", id="D07"),
        pytest.param("tck/range?x=1", "400", id="D08"),
        pytest.param(f"{HISTORY}?follow=true&to=3", "400", id="a follower has no end"),
        pytest.param(f"{HISTORY}?follow=true&to-ts=2030-01-01T00:00:00Z", "400", id="nor an end in time"),
        pytest.param("streams/tank/0", "404", id="no such stream"),
        pytest.param("ingest/telemetry", "404", id="what only the service subscribes to"),
        pytest.param(f"{HISTORY}?fields=((", "400", id="fields that cannot be read"),
        pytest.param("things/search?fields=((", "400", id="fields of a search that cannot be read"),
    ],
)
async def test_cases_n03_d07_and_d08_a_name_that_means_nothing_is_refused_and_the_others_live(
    publisher: str, status: str
) -> None:
    rsio_harness = await RsioHarness.filled(revisions=1)
    rsio_harness.send("a", H, subscribe(publisher, 7, 1), subscribe_synthetic("never", 1))
    frames = await rsio_harness.framed("a", 4)
    assert OnSubscribe(7, 0) in frames
    (error,) = [frame for frame in frames if isinstance(frame, OnError)]
    assert (error.subscriber, error.error[:3]) == (7, status)
    rsio_harness.send("a", CancelFrame(1), subscribe_synthetic("range?n=1", 1, 1))
    await rsio_harness.framed("a", 7)


async def test_case_d09_a_thing_without_read_permission_is_not_found() -> None:
    rsio_harness = await RsioHarness.filled(source("in", "acme:stranger"), revisions=1)
    rsio_harness.send("a", H, subscribe(HISTORY, 1, 1))
    *_, error = await rsio_harness.framed("a", 3)
    assert isinstance(error, OnError)
    assert error.error.startswith("404 things:thing.notfound ")


# demand


async def test_case_d15_a_stream_that_is_not_asked_for_does_not_hold_up_another_one() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H, subscribe_synthetic("range?n=2", 1, 0), subscribe_synthetic("range?n=2", 2, 2))
    await rsio_harness.received("a", f"{SERVER} 81 01 00 81 02 00 82 02 01 31 82 02 01 32 86 02")


async def test_cases_d01_and_d02_no_more_than_was_asked_for() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H, subscribe_synthetic("range?n=3", 1, 2))
    await rsio_harness.received("a", f"{SERVER} 81 01 00 82 01 01 31 82 01 01 32")
    rsio_harness.send("a", "12 01 05")
    await rsio_harness.received("a", f"{SERVER} 81 01 00 82 01 01 31 82 01 01 32 82 01 01 33 86 01")


async def test_cases_d03_and_d04_demand_adds_up() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H, subscribe_synthetic("range?n=3"))
    await rsio_harness.received("a", f"{SERVER} 81 01 00")
    rsio_harness.send("a", "12 01 01 12 01 01")
    await rsio_harness.received("a", f"{SERVER} 81 01 00 82 01 01 31 82 01 01 32")


async def test_case_d05_an_empty_stream_completes_without_demand() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H, subscribe_synthetic("range?n=0"))
    await rsio_harness.received("a", f"{SERVER} 81 01 00 86 01")


async def test_case_d05_a_history_without_events_is_complete_without_demand() -> None:
    rsio_harness = await RsioHarness.filled(revisions=2)
    rsio_harness.send("a", H, subscribe(f"{HISTORY}?from=3"))
    assert (await rsio_harness.framed("a", 3))[1:] == [OnSubscribe(1, 0), OnComplete(1)]


async def test_case_d06_a_request_for_nothing_ends_the_stream() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H, subscribe_synthetic("range?n=3"))
    rsio_harness.send("a", "12 01 00")
    rsio_harness.send("a", "12 01 01")
    _, _, error = await rsio_harness.framed("a", 3)
    assert isinstance(error, OnError)
    assert error.error.startswith("400 ")
    await until(lambda: list(rsio_harness.streams) == [])


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("parameters", ["", "&enc=cbor"])
async def test_the_error_of_a_publisher_needs_no_demand_behind_its_elements(after: int, parameters: str) -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H, subscribe_synthetic(f"fail?after={after}{parameters}", 1, after))
    *_, error = await rsio_harness.framed("a", after + 3)
    assert isinstance(error, OnError)
    assert error.error.startswith("500")
    assert len(elements(rsio_harness.frames("a"))) == after


async def test_case_d10_a_failing_stream_ends_with_an_error_after_its_elements() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H, subscribe_synthetic("fail?after=1", 1, 9))
    _, _, element, error = await rsio_harness.framed("a", 4)
    assert element == OnNext(1, b"1")
    assert isinstance(error, OnError)
    assert error.error.startswith("500 ")


async def test_cases_d11_to_d13_frames_for_an_ended_subscription_are_ignored() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send(
        "a",
        H,
        subscribe_synthetic("range?n=3"),
        "13 01 12 01 03 13 09 12 09 01",
        subscribe_synthetic("range?n=3"),
        subscribe_synthetic("range?n=3"),
    )
    await rsio_harness.received("a", f"{SERVER} 81 01 00 81 01 00")


async def test_case_d14_an_id_in_use_is_fatal() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H, subscribe_synthetic("range?n=3"))
    rsio_harness.send("a", subscribe_synthetic("range?n=4"))
    *_, goodbye = await rsio_harness.framed("a", 3)
    assert isinstance(goodbye, Goodbye)
    assert goodbye.reason.startswith("protocol error: a subscribe with an id that is in use")
    await until(lambda: list(rsio_harness.streams) == [])


async def test_case_d16_endless_demand_does_not_overflow() -> None:
    rsio_harness = await RsioHarness.filled()
    endless = "ff ff ff ff ff ff ff ff 7f"
    rsio_harness.send("a", H, subscribe_synthetic("range?n=1000"), f"12 01 {endless} 12 01 {endless}")
    *_, end = await rsio_harness.framed("a", 2 + 1000 + 1)
    assert end == OnComplete(1)


async def test_case_d17_subscriptions_are_limited() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H, *(subscribe_synthetic("never", number) for number in range(1025)))
    (error,) = [frame for frame in await rsio_harness.framed("a", 1 + 1025 + 1) if isinstance(frame, OnError)]
    assert error.error.startswith("429 ")
    assert len(list(rsio_harness.streams)) == 1024


async def test_case_i02_an_id_is_used_again_at_once() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H, subscribe_synthetic("never"), "13 01", subscribe_synthetic("range?n=1", 1, 1))
    await rsio_harness.received("a", f"{SERVER} 81 01 00 81 01 00 82 01 01 31 86 01")


async def test_case_f01_elements_of_a_fixed_size_are_packed() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H, subscribe_synthetic("fixed?n=3&size=2", 6, 3))
    await rsio_harness.received("a", f"{SERVER} 81 06 02 83 06 03 00 01 00 02 00 03 86 06")


async def test_cases_p10_and_p11_between_the_parts_of_a_large_element_others_have_their_turn() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H, subscribe_synthetic("big?bytes=200000", 5, 1), subscribe_synthetic("range?n=2", 6, 2))
    await until(lambda: OnComplete(5) in rsio_harness.frames("a"))
    frames = rsio_harness.frames("a")
    parts = [frame for frame in frames if type(frame).__name__ in ("OnNextPart", "OnNextLastPart")]
    assert b"".join(part.data for part in parts) == b"x" * 200_000  # type: ignore[attr-defined]
    assert frames.index(OnNext(6, b"1")) < frames.index(parts[-1])


async def test_an_element_that_is_too_large_fails_its_stream() -> None:
    rsio_harness = await RsioHarness.filled(options={"elementLimit": 1000})
    rsio_harness.send("a", H, subscribe_synthetic("big?bytes=1001", 5, 1), subscribe_synthetic("big?bytes=1000", 6, 1))
    await until(lambda: OnComplete(6) in rsio_harness.frames("a"))
    (error,) = [frame for frame in rsio_harness.frames("a") if isinstance(frame, OnError)]
    assert (error.subscriber, error.error[:3]) == (5, "413")
    await pause()
    await until(lambda: list(rsio_harness.streams) == [])
