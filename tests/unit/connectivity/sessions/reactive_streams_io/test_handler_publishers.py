"""Publishers of reactive-streams-io in the session handler: searches, streams, live events.

Also projections and permissions. Case numbers are those of the cases for reactive-streams-io.
"""

from __future__ import annotations

import asyncio
import json
import struct
from datetime import timedelta
from typing import Any

import pytest

from connectivity.sessions.reactive_streams_io.feeds import (
    WRITTEN_AT_ONCE,
    ConcatenatedFeed,
    DeferredFeed,
    EncodedFeed,
    NumbersFeed,
    SyntheticFeed,
)
from connectivity.sessions.reactive_streams_io.publishers import followed_feed
from connectivity.subscriptions.feed import NOTHING, Feed, FeedFailed, Page, PageEnd
from connectivity.subscriptions.limits import SubscriptionLimits
from mappings.errors import Fault
from mappings.model.signals import Event
from mappings.reactive_streams_io.frames import (
    Frame,
    OnComplete,
    OnError,
    OnNext,
    OnNextPacked,
    OnSubscribe,
    RequestFrame,
)
from mappings.reactive_streams_io.publisher_names import SyntheticName
from spark_store.errors import StoreUnavailable
from spark_store.history.history import HistoryPage
from tests.support.in_process.reactive_streams_io import HISTORY, H, RsioHarness, elements, revisions, subscribe
from tests.support.in_process.service import LAMP, OWNER, command, creation, pause, policy, turn, until
from tests.support.in_process.streamr import StreamrHarness, publish
from tests.support.in_process.two_protocols import add_rsio_connection, tank_streams

pytestmark = pytest.mark.usefixtures("harnesses")

EVENTS = f"things/{LAMP}/events"


async def received_frames(rsio_harness: RsioHarness, *publishers: str, demand: int = 100, number: int) -> list[Frame]:
    """Subscribe a client to these publishers; return the first `number` frames after the hello."""
    rsio_harness.send("a", H, *(subscribe(each, at, demand) for at, each in enumerate(publishers, 1)))
    return (await rsio_harness.framed("a", 1 + number))[1:]


# live


async def test_a_subscriber_receives_the_events_of_a_thing_from_now_on() -> None:
    rsio_harness = await RsioHarness.filled(revisions=2)
    await received_frames(
        rsio_harness, EVENTS, f"{EVENTS}?filter=gt(attributes/on,3)", f"{EVENTS}?fields=revision,value", number=3
    )
    for number in (3, 4):
        await rsio_harness.dispatch(turn(number))
    frames = (await rsio_harness.framed("a", 4 + 5))[4:]
    by_stream: dict[int, list[Any]] = {1: [], 2: [], 3: []}
    for frame in frames:
        assert isinstance(frame, OnNext)
        by_stream[frame.subscriber].append(json.loads(frame.element))
    assert [each["revision"] for each in by_stream[1]] == [3, 4]
    assert [each["revision"] for each in by_stream[2]] == [4]
    assert by_stream[3] == [{"revision": 3, "value": 3}, {"revision": 4, "value": 4}]


async def test_events_excluded_by_a_filter_use_no_demand() -> None:
    rsio_harness = await RsioHarness.filled(revisions=1)
    await received_frames(rsio_harness, f"{EVENTS}?filter=eq(attributes/on,9)", demand=1, number=1)
    for number in range(2, 10):
        await rsio_harness.dispatch(turn(number))
    assert revisions(elements(await rsio_harness.framed("a", 3))) == [9]


async def test_a_live_event_of_which_a_filter_compares_very_much_ends_the_stream() -> None:
    rsio_harness = await RsioHarness.filled(revisions=1)
    comparisons = ",".join(f"eq(attributes/on,'x{number}')" for number in range(3))
    await received_frames(rsio_harness, f"{EVENTS}?filter=not(or({comparisons}))", number=1)
    await rsio_harness.dispatch(turn(1))
    await rsio_harness.dispatch(turn([1] * 45_000))
    frames = await rsio_harness.framed("a", 4)
    assert revisions(elements(frames)) == [2]
    assert isinstance(frames[-1], OnError)
    assert frames[-1].error.startswith("400 rql.expression.invalid ")


@pytest.mark.parametrize(("range", "expected"), [("from=1&to=-1", [1, 2, 3, 4]), ("from=-4&to=3", [2, 3])])
async def test_relative_revisions_of_a_thing_that_was_created_again_refer_to_its_newest_event(
    range: str, expected: list[int]
) -> None:
    rsio_harness = await RsioHarness.filled(revisions=3)
    await rsio_harness.dispatch(command("delete"))
    await rsio_harness.dispatch(command("create", value={"policyId": str(LAMP)}))
    rsio_harness.send("a", H, subscribe(f"{HISTORY}?{range}", 1, 100))
    await until(lambda: OnComplete(1) in rsio_harness.frames("a"))
    assert revisions(elements(rsio_harness.frames("a"))) == expected


@pytest.mark.parametrize("range", ["from=6", "from-ts=2030-01-15T07:30:01Z"])
async def test_a_followed_history_leaves_out_live_events_before_its_beginning(range: str) -> None:
    rsio_harness = await RsioHarness.filled(revisions=3)
    await received_frames(rsio_harness, f"{HISTORY}?{range}&follow=true", number=1)
    await rsio_harness.dispatch(turn(4))
    await rsio_harness.dispatch(turn(5))
    rsio_harness.now += timedelta(seconds=2)
    await rsio_harness.dispatch(turn(6))
    await rsio_harness.dispatch(turn(7))
    frames = (await rsio_harness.framed("a", 4))[2:]
    assert revisions(elements(frames)) == [6, 7]


@pytest.mark.parametrize("parameters", ["", "&from=2", "&from=3"])
async def test_case_n04_a_followed_history_has_the_event_after_one_that_could_not_be_stored(parameters: str) -> None:
    rsio_harness = await RsioHarness.filled(revisions=2)
    disk, owner = rsio_harness.disk, len(rsio_harness.readers) - 1
    disk.hold()
    commits = disk.commits
    rsio_harness.deliver(creation("lamp-8"), source=owner)
    await until(lambda: disk.commits > commits)
    disk.rejected.add(b"unfit")
    rsio_harness.deliver(turn("unfit"), source=owner)
    rsio_harness.send("a", H, subscribe(f"{HISTORY}?follow=true{parameters}", 1, 100))
    disk.release()
    await until(lambda: rsio_harness.following.followers(LAMP) == 1)
    await rsio_harness.dispatch(turn(3))
    await until(lambda: revisions(elements(rsio_harness.frames("a")))[-1:] == [3])


async def test_case_n12_a_projection_is_a_number_of_fixed_size() -> None:
    rsio_harness = await RsioHarness.filled(revisions=3)
    await rsio_harness.dispatch(turn("off"))
    await rsio_harness.dispatch(command("modify", "/attributes", {"on": 7.5}))
    await rsio_harness.dispatch(command("modify", "/attributes/other", 1))
    frames = await received_frames(rsio_harness, f"{HISTORY}?project=/attributes/on&pack=f64", number=3)
    begun, packed, end = frames
    assert begun == OnSubscribe(1, 8)
    assert end == OnComplete(1)
    assert list(packed.elements) == [struct.pack(">d", each) for each in (2, 3, 7.5)]  # type: ignore[attr-defined]


def projected(frames: list[Frame]) -> list[float]:
    """Return the numbers in these frames, packed or not."""
    raw = b"".join(
        b"".join(frame.elements) if isinstance(frame, OnNextPacked) else frame.element
        for frame in frames
        if isinstance(frame, OnNext | OnNextPacked)
    )
    return [number for (number,) in struct.iter_unpack(">d", raw)]


@pytest.mark.parametrize("filter", ["", "&filter=gt(_revision,1)"])
async def test_a_projection_completes_with_its_last_number_although_events_without_one_follow(filter: str) -> None:
    rsio_harness = await RsioHarness.filled(revisions=3)
    name = f"{HISTORY}?project=/attributes/on&pack=f64{filter}"
    for number in range(300):
        rsio_harness.deliver(command("modify", "/attributes/other", number), source=1)
    await rsio_harness.dispatch(turn("off"))
    rsio_harness.send("a", H, subscribe(name, 1, 2))
    await until(lambda: OnComplete(1) in rsio_harness.frames("a"))
    assert projected(rsio_harness.frames("a")) == [2, 3]
    await rsio_harness.dispatch(turn(4))
    rsio_harness.send("b", H, subscribe(name, 1, 2))
    await until(lambda: projected(rsio_harness.frames("b")) == [2, 3])
    await until(lambda: all(each.pump is None for each in rsio_harness.streams))
    assert OnComplete(1) not in rsio_harness.frames("b")
    rsio_harness.send("b", RequestFrame(1, 1))
    await until(lambda: OnComplete(1) in rsio_harness.frames("b"))
    assert projected(rsio_harness.frames("b")) == [2, 3, 4]


async def test_case_n12_a_projection_of_events_can_be_packed_as_numbers() -> None:
    rsio_harness = await RsioHarness.filled(revisions=2)
    await received_frames(rsio_harness, f"{EVENTS}?project=/features/t/properties/value&pack=f64", number=1)
    await rsio_harness.dispatch(command("modify", "/features", {"t": {"properties": {"value": 21.5, "unit": "C"}}}))
    await rsio_harness.dispatch(command("modify", "/features/t/properties/unit", "F"))
    await rsio_harness.dispatch(command("modify", "/features/t/properties/value", -1))
    begun, *numbers = (await rsio_harness.framed("a", 1 + 3))[1:]
    assert begun == OnSubscribe(1, 8)
    assert numbers == [OnNext(1, struct.pack(">d", each)) for each in (21.5, -1)]


# permissions


async def test_a_subscriber_that_loses_read_permission_gets_an_error_and_no_more_events() -> None:
    rsio_harness = await RsioHarness.filled(revisions=1)
    rsio_harness.send("a", H, subscribe(EVENTS, 1, 100), subscribe(HISTORY, 2, 0))
    await rsio_harness.framed("a", 3)
    others = policy("acme:other")
    others["entries"]["OWNER"]["subjects"] = {OWNER: {"type": "test"}}
    others["entries"]["OWNER"]["resources"] = {"policy:/": {"grant": ["READ", "WRITE"], "revoke": []}}
    changed = command("modify", value=others).replace(b"things/twin", b"policies")
    answer = await rsio_harness.dispatch(changed)
    assert answer["status"] == 204, answer
    frames = (await rsio_harness.framed("a", 5))[3:]
    assert {frame.subscriber for frame in frames if isinstance(frame, OnError)} == {1, 2}
    assert all(frame.error.startswith("404 ") for frame in frames if isinstance(frame, OnError))
    await until(lambda: list(rsio_harness.streams) == [])


async def test_an_erased_thing_ends_its_subscriptions_with_an_error() -> None:
    rsio_harness = await RsioHarness.filled(revisions=1)
    await received_frames(rsio_harness, EVENTS, number=1)
    fault = Fault(404, "things:thing.notfound", "gone")
    rsio_harness.streams.fail_entity(LAMP, fault)
    *_, error = await rsio_harness.framed("a", 3)
    assert isinstance(error, OnError)
    assert error.error == "404 things:thing.notfound gone"


# searches


async def test_case_n05_a_search_brings_pages_or_things() -> None:
    rsio_harness = await RsioHarness.filled()
    for number in range(5):
        assert (await rsio_harness.dispatch(creation(f"lamp-{number}")))["status"] == 201
    rsio_harness.forget()
    frames = await received_frames(
        rsio_harness,
        "things/search?options=size(2),sort(%2BthingId)&fields=thingId",
        "things/search?options=size(2),sort(%2BthingId)&fields=thingId&unit=thing",
        number=2 + 3 + 5 + 2,
    )
    pages = [json.loads(each.element) for each in frames if isinstance(each, OnNext) and each.subscriber == 1]
    things = [json.loads(each.element) for each in frames if isinstance(each, OnNext) and each.subscriber == 2]
    assert [len(page) for page in pages] == [2, 2, 1]
    assert things == [thing for page in pages for thing in page]
    assert OnComplete(1) in frames
    assert OnComplete(2) in frames


async def test_case_n05_a_search_returns_the_things_that_match_its_filter() -> None:
    rsio_harness = await RsioHarness.filled()
    for number in range(5):
        assert (await rsio_harness.dispatch(creation(f"lamp-{number}")))["status"] == 201
        value = "x" if number % 2 == 0 else "y"
        assert (await rsio_harness.dispatch(command("modify", "/attributes/a", value, name=f"lamp-{number}")))[
            "status"
        ] == 201
    rsio_harness.forget()
    publisher = "things/search?filter=eq(attributes/a,%22x%22)&options=size(2)&fields=attributes"
    begun, first, second, end = await received_frames(rsio_harness, publisher, number=4)
    assert (begun, end) == (OnSubscribe(1, 0), OnComplete(1))
    pages = [json.loads(each) for each in elements([first, second])]
    assert [len(page) for page in pages] == [2, 1]
    assert [thing for page in pages for thing in page] == [{"attributes": {"a": "x"}}] * 3


async def test_things_of_a_search_come_one_by_one_as_they_are_wanted() -> None:
    """No more things are read, which no limit on slow readers would include."""
    rsio_harness = await RsioHarness.filled()
    for number in range(6):
        await rsio_harness.dispatch(creation(f"lamp-{number}"))
    rsio_harness.forget()
    await received_frames(rsio_harness, "things/search?options=size(2)&unit=thing", demand=1, number=2)
    rsio_harness.send("a", RequestFrame(1, 3))
    await rsio_harness.framed("a", 6)
    assert [page.limit for page in rsio_harness.search.pages] == [1, 3]
    rsio_harness.send("a", RequestFrame(1, 9))
    await until(lambda: OnComplete(1) in rsio_harness.frames("a"))
    assert len(elements(rsio_harness.frames("a"))) == 6


@pytest.mark.parametrize("publisher", ["things/search", "things/search?unit=thing"])
async def test_a_search_while_the_store_is_unavailable_ends_with_an_error_that_says_so(publisher: str) -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.search.error = StoreUnavailable("the file was moved")
    *_, error = await received_frames(rsio_harness, publisher, number=2)
    assert isinstance(error, OnError)
    assert error.error.startswith("503 thing-search:store.unavailable ")


# streams


@pytest.mark.parametrize(
    ("parameters", "expected", "is_complete"),
    [
        pytest.param("resend_from=10&resend_to=13", [10, 11, 12, 13], True, id="N07"),
        pytest.param("resend_last=2", [14, 15], False, id="N08"),
        pytest.param("resend_all=true&follow=false", list(range(1, 16)), True, id="all"),
        pytest.param("resend_from_time=0&follow=false", list(range(1, 16)), True, id="from a time"),
        pytest.param("follow=false", [], True, id="nothing"),
        pytest.param("resend_from=99&follow=false", [], True, id="behind the newest"),
        pytest.param("", [], False, id="live"),
    ],
)
async def test_cases_n07_and_n08_a_stream_is_read_from_the_start_in_its_name(
    parameters: str, expected: list[int], is_complete: bool
) -> None:
    streamr_harness = await StreamrHarness.filled(messages=15)
    rsio_harness = await add_rsio_connection(streamr_harness)
    publisher = f"streams/tank/0?{parameters}" if parameters else "streams/tank/0"
    frames = await received_frames(rsio_harness, publisher, number=1 + len(expected) + is_complete)
    assert [json.loads(each)[5] for each in elements(frames)] == expected
    assert (OnComplete(1) in frames) is is_complete
    if not is_complete:
        await streamr_harness.publish(1)
        *_, last = await rsio_harness.framed("a", 3 + len(expected))
        assert isinstance(last, OnNext)
        assert json.loads(last.element)[:1] + json.loads(last.element)[5:7] == [28, 16, 15]


async def test_a_followed_stream_leaves_out_live_messages_before_its_first_offset() -> None:
    streamr_harness = await StreamrHarness.filled(messages=15)
    rsio_harness = await add_rsio_connection(streamr_harness)
    await received_frames(rsio_harness, "streams/tank/0?resend_from=18", number=1)
    await streamr_harness.publish(4)
    frames = await rsio_harness.framed("a", 4)
    assert [json.loads(each)[5] for each in elements(frames)] == [18, 19]


async def test_a_followed_stream_leaves_out_live_messages_before_the_first_one_of_its_time() -> None:
    streamr_harness = await StreamrHarness.filled()
    rsio_harness = await add_rsio_connection(streamr_harness)
    await received_frames(rsio_harness, "streams/tank/0?resend_from_time=10", number=1)
    streamr_harness.send(None, *(publish(ts=time) for time in (8, 10, 9)))
    frames = await rsio_harness.framed("a", 4)
    assert [json.loads(each)[3] for each in elements(frames)] == [10, 9]


@pytest.mark.parametrize(
    ("publisher", "status"),
    [
        pytest.param("streams/tanks/9", "404", id="N09"),
        pytest.param("streams/nowhere/0", "404", id="no such stream"),
        pytest.param("streams/tank/0?resend_last=2&resend_from=1", "400", id="N11"),
    ],
)
async def test_cases_n09_and_n11_a_missing_partition_is_refused(publisher: str, status: str) -> None:
    rsio_harness = await add_rsio_connection(await StreamrHarness.filled())
    *_, error = await received_frames(rsio_harness, publisher, number=2)
    assert isinstance(error, OnError)
    assert error.error.startswith(f"{status} ")


async def test_case_n10_a_slash_of_an_id_is_escaped() -> None:
    rsio_harness = await add_rsio_connection(await StreamrHarness.filled())
    assert await received_frames(rsio_harness, "streams/a%2Fb/0", number=1) == [OnSubscribe(1, 0)]


async def test_case_d09_a_stream_needs_its_permission() -> None:
    streamr_harness = await StreamrHarness.filled(messages=1)
    rsio_harness = RsioHarness(options={"streams": tank_streams()}, beside=streamr_harness)
    *_, error = await received_frames(rsio_harness, "streams/tank/0?resend_all=true", number=2)
    assert isinstance(error, OnError)
    assert error.error.startswith("403 ")


# feeds


class ListFeed(Feed):
    """A feed of lists of elements, a page each."""

    def __init__(self, *pages: list[Any]) -> None:
        self.pages = pages
        self.is_closed = False

    async def page(self, position: int, limit: int, max_bytes: int) -> Page:
        then = PageEnd.END if position + 1 >= len(self.pages) else PageEnd.MORE
        return Page(self.pages[position], position + 1, then)

    def wake(self, ready: Any) -> None:
        ready()

    def close(self) -> None:
        self.is_closed = True


async def all_of(feed: Any, limit: int = 10) -> list[Any]:
    found: list[Any] = []
    position: Any = 0
    while True:
        page = await feed.page(position, limit, 1 << 20)
        assert len(page.elements) <= limit
        found += page.elements
        position = page.position
        if page.then is PageEnd.END:
            return found


async def test_a_feed_continues_with_the_one_after_it() -> None:
    first, second = ListFeed([1], [2]), ListFeed([3])
    both = ConcatenatedFeed(first, lambda: second)
    assert await all_of(both) == [1, 2, 3]
    assert first.is_closed
    both.close()
    assert second.is_closed
    with pytest.raises(FeedFailed):
        await all_of(ConcatenatedFeed(NOTHING, lambda: Fault(404, "x:y", "gone")))


@pytest.mark.parametrize(("past", "after"), [([], 4), ([2, 3], 4), ([4, 5, 6], 6)])
async def test_a_followed_history_continues_behind_its_last_event(past: list[int], after: int) -> None:
    continued: list[int] = []

    def live(after: int) -> Feed:
        continued.append(after)
        return ListFeed([])

    events = [Event(LAMP, revision, "2030-01-15T07:30:00Z", "modified", "/", b"1", b"{}") for revision in past]
    feed = followed_feed(ListFeed(events), lambda event: event.value, 4, live)
    assert await all_of(feed) == [b"1"] * len(past)
    assert continued == [after]


async def test_a_feed_has_the_elements_before_one_that_it_cannot_continue_with() -> None:
    def write(element: int) -> bytes:
        if element == 3:
            raise FeedFailed(Fault(400, "x:y", "too large"))
        return str(element).encode()

    encoded = EncodedFeed(ListFeed([1, 2, 3, 4]), write)
    for feed in (encoded, ConcatenatedFeed(encoded, lambda: NOTHING)):
        page = await feed.page(0, 10, 1 << 20)
        assert (page.elements, page.fault) == ([b"1", b"2"], Fault(400, "x:y", "too large"))


async def test_closing_a_concatenated_feed_during_its_first_feed_opens_no_second_feed() -> None:
    both: ConcatenatedFeed

    class ClosingFeed(ListFeed):
        async def page(self, position: Any, limit: int, max_bytes: int) -> Page:
            both.close()
            return await super().page(position, limit, max_bytes)

    opened: list[ListFeed] = []

    def open() -> ListFeed:
        opened.append(ListFeed([2]))
        return opened[-1]

    both = ConcatenatedFeed(ClosingFeed([1]), open)
    assert (await both.page(0, 10, 1000)).elements == [1]
    assert opened == []


async def test_an_encoded_feed_leaves_out_what_its_encoder_does_not_write() -> None:
    assert await all_of(EncodedFeed(ListFeed([1, 2], [3]), lambda each: b"%d" % each if each != 2 else None)) == [
        b"1",
        b"3",
    ]


@pytest.mark.parametrize("parameters", ["", "?from=1", "?fields=value", "?follow=true", "?project=/value&pack=i32"])
async def test_a_history_whose_first_page_does_not_come_in_time_fails(
    parameters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the other protocols; such a stream has no idle timeout that would end it."""
    rsio_harness = await RsioHarness.filled(revisions=2)
    monkeypatch.setattr(rsio_harness.streams, "_bounds", SubscriptionLimits(open_timeout=0.01))

    async def page(*_: object) -> HistoryPage:
        await asyncio.Event().wait()
        raise AssertionError("nothing sets the event")

    monkeypatch.setattr(rsio_harness.store, "page", page)
    rsio_harness.send("a", H, subscribe(f"{HISTORY}{parameters}", 1, 1))
    error = (await rsio_harness.framed("a", 3))[-1]
    assert isinstance(error, OnError)
    assert error.error.startswith("500 internalerror")


async def test_a_feed_that_has_to_be_found_is_found_once() -> None:
    found = ListFeed([1], [2])
    times: list[int] = []

    async def find() -> Any:
        times.append(1)
        return found

    later = DeferredFeed(find)
    assert await all_of(later) == [1, 2]
    assert times == [1]
    later.close()
    assert found.is_closed

    async def refused() -> Fault:
        return Fault(404, "x:y", "gone")

    with pytest.raises(FeedFailed):
        await all_of(DeferredFeed(refused))


async def test_a_test_publisher_ends_with_its_last_element() -> None:
    assert await all_of(SyntheticFeed(SyntheticName("range", 3)), limit=1) == [b"1", b"2", b"3"]
    assert SyntheticFeed(SyntheticName("range")).is_empty
    assert not SyntheticFeed(SyntheticName("never")).is_empty
    assert SyntheticFeed(SyntheticName("fail")).is_empty
    await pause()


async def test_numbers_of_a_fixed_size_come_in_runs_as_long_as_there_is_room_for() -> None:
    numbers = NumbersFeed(SyntheticName("fixed", 700, 2))
    assert await all_of(numbers, limit=300) == [number.to_bytes(2, "big") for number in range(1, 701)]
    page = await numbers.page(0, 700, 128)
    assert (len(page.elements), page.position, page.then) == (64, 64, PageEnd.MORE)
    assert len((await numbers.page(699, 700, 1)).elements) == 1
    assert NumbersFeed(SyntheticName("fixed", 0, 2)).is_empty


async def test_elements_that_have_to_be_written_are_so_few_that_others_have_their_turn() -> None:
    asked: list[int] = []

    class RecordingFeed(ListFeed):
        async def page(self, position: Any, limit: int, max_bytes: int) -> Page:
            asked.append(limit)
            return await super().page(position, limit, max_bytes)

    written = EncodedFeed(RecordingFeed([1], [2]), lambda each: b"%d" % each)
    await written.page(0, 8192, 1 << 20)
    await written.page(1, 20, 1 << 20)
    assert asked == [WRITTEN_AT_ONCE, 20]
