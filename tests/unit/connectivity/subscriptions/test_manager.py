"""Open subscriptions: signals to the subscriber, their order, and how subscriptions end.

Case numbers are those of the streaming-subscription cases; the feed is a list, and tests set the clock.
"""

from __future__ import annotations

import asyncio
import gc
from itertools import pairwise

import pytest

from connectivity.errors import PublishFailed
from connectivity.subscriptions.feed import Feed
from connectivity.subscriptions.manager import AT_ONCE, SIDE_BY_SIDE, ActiveSubscription, Subscriber
from connectivity.targets.outbox import PendingPublish
from connectivity.transports.base import Done
from mappings.errors import INTERNAL_ERROR, Fault
from mappings.ids import EntityId, EntityType
from mappings.model.signals import (
    Complete,
    Created,
    EndReason,
    Failed,
    HistoryQuery,
    Next,
    Outbound,
    Request,
    Subscribe,
    SubscriptionKind,
)
from spark_store.errors import HistoryUnavailable, StoreUnavailable
from tests.support.in_process.fakes import KeepingReply, ListFeed, LiveFeed
from tests.support.in_process.subscription_harness import LAMP, NOT_FOUND, READER, SubscriptionHarness
from tests.support.wait import wait_until


async def test_case_01_the_whole_history_and_then_complete() -> None:
    harness = SubscriptionHarness()
    await harness.request(harness.subscribe(), 101)
    assert harness.reply.elements == list(range(1, 102))
    assert harness.reply.names[0] == "Created"
    assert harness.reply.names[-1] == "Complete"


async def test_case_28_and_rs_1_01_one_request_brings_one_element_and_no_more() -> None:
    harness = SubscriptionHarness()
    key = harness.subscribe()
    await harness.request(key, 1)
    assert harness.reply.elements == [1]
    harness.pass_time(10)
    await harness.settle()
    assert harness.reply.elements == [1]


async def test_case_29_and_rs_3_08_requests_add_up() -> None:
    harness = SubscriptionHarness()
    key = harness.subscribe()
    for demand in (2, 3):
        harness.streams.request(Request(SubscriptionKind.HISTORY, key, demand, {}, LAMP), harness.peer)
    await harness.settle()
    assert harness.reply.elements == [1, 2, 3, 4, 5]


async def test_case_30_and_rs_3_02_one_request_upon_every_element_delivers_everything() -> None:
    harness = SubscriptionHarness()
    key = harness.subscribe()
    for _ in range(101):
        await harness.request(key, 1)
    assert harness.reply.elements == list(range(1, 102))
    assert harness.reply.names[-1] == "Complete"


@pytest.mark.parametrize("demands", [(2**63 - 1,), (2**63 - 1, 5)], ids=["case_31", "case_32"])
async def test_case_31_32_and_rs_3_17_unbounded_demand_delivers_everything(demands: tuple[int, ...]) -> None:
    harness = SubscriptionHarness()
    key = harness.subscribe()
    for demand in demands:
        harness.streams.request(Request(SubscriptionKind.HISTORY, key, demand, {}, LAMP), harness.peer)
    await harness.settle()
    assert len(harness.reply.elements) == 101
    assert harness.reply.names[-1] == "Complete"


async def test_rs_3_03_unbounded_demand_over_a_long_history_is_served_page_by_page() -> None:
    """Unbounded demand reads one page at a time, and the stack does not grow."""
    harness = SubscriptionHarness(lambda: ListFeed(range(50_000)), page_items=100)
    await harness.request(harness.subscribe(), 2**63 - 1)
    while harness.reply.names[-1] != "Complete":
        await harness.settle()
    (feed,) = harness.opened
    assert isinstance(feed, ListFeed)
    assert max(limit for _, limit in feed.pages) == 100
    assert harness.reply.elements == list(range(50_000))


async def test_case_35_complete_follows_the_last_element_without_another_request() -> None:
    harness = SubscriptionHarness(lambda: ListFeed([1, 2, 3]))
    await harness.request(harness.subscribe(), 3)
    assert harness.reply.names == ["Created", "Next", "Complete"]


@pytest.mark.parametrize("feed", [ListFeed([]), NOT_FOUND], ids=["empty", "not found"])
async def test_case_37_nothing_ends_before_the_first_request(feed: Feed | Fault) -> None:
    harness = SubscriptionHarness(lambda: feed)
    harness.subscribe()
    harness.pass_time(59)
    await harness.settle()
    assert harness.reply.names == ["Created"]


async def test_case_38_a_refused_history_fails_at_the_first_request() -> None:
    harness = SubscriptionHarness(lambda: NOT_FOUND)
    await harness.request(harness.subscribe(), 1)
    assert harness.reply.names == ["Created", "Failed"]
    assert harness.failures() == [NOT_FOUND]


async def test_case_12_an_empty_range_completes_at_the_first_request() -> None:
    harness = SubscriptionHarness(lambda: ListFeed([]))
    await harness.request(harness.subscribe(), 1)
    assert harness.reply.names == ["Created", "Complete"]


async def test_a_request_while_a_page_waits_for_the_broker_reads_no_other_page() -> None:
    feed = ListFeed(range(1, 10))
    harness = SubscriptionHarness(lambda: feed, page_items=1)
    key = harness.subscribe()
    harness.reply.is_stalled = True
    await harness.request(key, 2)
    await harness.request(key, 3)
    assert len(feed.pages) == 1


@pytest.mark.parametrize("demand", [0, -1, -(2**63)])
async def test_case_50_and_rs_3_09_a_demand_of_nothing_fails_and_then_is_treated_as_cancelled(demand: int) -> None:
    harness = SubscriptionHarness()
    key = harness.subscribe()
    await harness.request(key, demand)
    await harness.request(key, 1)
    assert harness.failures() == [EndReason.INVALID_DEMAND, EndReason.CANCELLED]


async def test_case_51_a_bad_demand_ends_elements_that_the_broker_has_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = SubscriptionHarness()
    key = harness.subscribe()
    harness.reply.is_stalled = True
    await harness.request(key, 3)
    elements, post, were_withdrawn = harness.reply.postings[-1], harness.reply.post, []

    def post_noting(signal: Outbound) -> PendingPublish | None:
        were_withdrawn.append(elements.withdrawn)
        return post(signal)

    monkeypatch.setattr(harness.reply, "post", post_noting)
    await harness.request(key, -1)
    assert were_withdrawn == [True], "before the end is sent, behind which a link would take them"
    assert harness.failures() == [EndReason.INVALID_DEMAND]


async def test_case_52_a_request_after_cancel_fails_and_after_ten_seconds_is_not_found() -> None:
    harness = SubscriptionHarness()
    key = harness.subscribe()
    harness.cancel(key)
    assert harness.reply.names == ["Created"]
    harness.pass_time(9)
    await harness.request(key, 1)
    assert harness.failures() == [EndReason.CANCELLED]
    harness.pass_time(3)
    await harness.request(key, 1)
    assert harness.failures() == [EndReason.CANCELLED, EndReason.NOT_FOUND]


async def test_case_53_cancel_is_silent_until_the_id_is_forgotten() -> None:
    harness = SubscriptionHarness()
    key = harness.subscribe()
    harness.cancel(key)
    harness.cancel(key)
    assert harness.failures() == []
    harness.pass_time(12)
    harness.cancel(key)
    assert harness.failures() == [EndReason.NOT_FOUND]


async def test_case_54_cancel_after_complete_is_silent() -> None:
    harness = SubscriptionHarness(lambda: ListFeed([1]))
    key = harness.subscribe()
    await harness.request(key, 1)
    harness.cancel(key)
    assert harness.reply.names == ["Created", "Next", "Complete"]


async def test_case_55_and_rs_1_08_after_cancel_no_element_leaves_that_the_broker_had_not_taken() -> None:
    harness = SubscriptionHarness(page_items=2)
    key = harness.subscribe()
    harness.reply.is_stalled = True
    await harness.request(key, 5)
    harness.cancel(key)
    posting = harness.reply.postings[-1]
    assert posting.withdrawn
    posting.take()
    await harness.settle()
    assert harness.reply.elements == [1, 2]
    assert harness.reply.names == ["Created", "Next"]


@pytest.mark.parametrize("command", ["request", "cancel"])
async def test_case_56_57_an_unknown_id_is_not_found_and_echoed(command: str) -> None:
    harness = SubscriptionHarness()
    if command == "request":
        await harness.request("4711", 1, "r-9")
    else:
        harness.cancel("4711")
    (failed,) = harness.reply.signals
    assert isinstance(failed, Failed)
    assert (failed.key, failed.reason, failed.entity) == ("4711", EndReason.NOT_FOUND, LAMP)
    assert failed.headers["correlation-id"] in ("r-9", "can")


@pytest.mark.parametrize(
    ("scope", "subjects"), [("c-2", READER), ("c-1", ("acme:stranger",))], ids=["connection", "subjects"]
)
async def test_case_58_59_a_stranger_can_neither_use_nor_end_a_subscription(
    scope: str, subjects: tuple[str, ...]
) -> None:
    """For another connection, or other subjects on the same one, the ID does not exist."""
    harness = SubscriptionHarness()
    key = harness.subscribe()
    other = KeepingReply(scope)
    stranger = Subscriber(other, subjects, scope)
    await harness.request(key, 1, peer=stranger)
    harness.cancel(key, stranger)
    assert [signal.reason for signal in other.signals if isinstance(signal, Failed)] == [EndReason.NOT_FOUND] * 2
    await harness.request(key, 101)
    assert harness.reply.names[-1] == "Complete"


async def test_one_common_subject_is_enough_to_use_a_subscription() -> None:
    harness = SubscriptionHarness()
    key = harness.subscribe()
    await harness.request(key, 1, peer=Subscriber(harness.reply, ("acme:other", "acme:reader"), "c-1"))
    assert harness.reply.elements == [1]


async def test_case_60_the_entity_of_a_request_is_ignored() -> None:
    harness = SubscriptionHarness()
    key = harness.subscribe()
    other = EntityId(EntityType.THING, "acme.site", "fan-1")
    harness.streams.request(Request(SubscriptionKind.HISTORY, key, 1, {}, other), harness.peer)
    await harness.settle()
    event = harness.reply.signals[-1]
    assert isinstance(event, Next)
    assert event.entity == LAMP


async def test_case_62_an_idle_subscription_expires() -> None:
    harness = SubscriptionHarness()
    key = harness.subscribe("s-1")
    harness.pass_time(59)
    assert harness.reply.names == ["Created"]
    harness.pass_time(3)
    (failed,) = [signal for signal in harness.reply.signals if isinstance(signal, Failed)]
    assert failed.reason is EndReason.IDLE
    assert failed.headers == {"correlation-id": "s-1"}
    await harness.request(key, 1)
    assert harness.failures() == [EndReason.IDLE, EndReason.CANCELLED]


async def test_case_63_every_request_restarts_the_idle_timeout() -> None:
    harness = SubscriptionHarness()
    key = harness.subscribe()
    for _ in range(6):
        harness.pass_time(50)
        await harness.request(key, 1)
    assert harness.failures() == []
    assert len(harness.reply.elements) == 6


async def test_case_64_a_store_failure_while_reading_ends_with_an_internal_error() -> None:
    harness = SubscriptionHarness(lambda: ListFeed(range(1, 11), StoreUnavailable("disk gone"), error_at=3))
    await harness.request(harness.subscribe(), 10)
    assert harness.reply.elements == [1, 2, 3]
    assert harness.failures() == [INTERNAL_ERROR]


async def test_an_unavailable_older_part_of_a_history_is_reported_as_such() -> None:
    """Clients get an internal error whose message names the missing part."""
    harness = SubscriptionHarness(lambda: ListFeed(range(1, 11), HistoryUnavailable("the lake is gone"), error_at=3))
    await harness.request(harness.subscribe(), 10)
    (fault,) = harness.failures()
    assert isinstance(fault, Fault)
    assert (fault.status, fault.error) == (500, "internalerror")
    assert "older part of this history" in fault.message
    assert "the lake is gone" not in str(fault)


async def test_case_65_a_store_failure_at_opening_fails_at_the_first_request() -> None:
    def broken() -> Feed:
        raise StoreUnavailable("disk gone")

    harness = SubscriptionHarness(broken)
    harness.streams.subscribe(Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), {}), harness.peer)
    assert harness.reply.names == ["Created"]
    created = harness.reply.signals[0]
    assert isinstance(created, Created)
    await harness.request(created.key, 1)
    assert harness.failures() == [INTERNAL_ERROR]


async def test_case_66_and_rs_1_10_identical_subscribes_are_independent() -> None:
    harness = SubscriptionHarness(lambda: ListFeed([1, 2]))
    first, second = harness.subscribe(), harness.subscribe()
    assert first != second
    await harness.request(first, 2)
    await harness.request(second, 2)
    assert harness.reply.elements == [1, 2, 1, 2]


async def test_case_67_events_carry_the_headers_of_the_latest_command() -> None:
    harness = SubscriptionHarness()
    key = harness.subscribe("a")
    await harness.request(key, 2, "b")
    await harness.request(key, 1, "c")
    labels = [(signal.headers["correlation-id"], type(signal).__name__) for signal in harness.reply.signals]
    assert labels == [("a", "Created"), ("b", "Next"), ("c", "Next")]
    last = harness.reply.signals[-1]
    assert isinstance(last, Next)
    assert last.subscribed == {"correlation-id": "a"}


async def test_case_68_events_go_to_the_source_of_the_latest_command() -> None:
    harness = SubscriptionHarness()
    key = harness.subscribe()
    second = KeepingReply()
    await harness.request(key, 1, peer=Subscriber(second, READER, "c-1"))
    assert harness.reply.names == ["Created"]
    assert second.elements == [1]


async def test_case_69_the_subscription_of_a_repeated_subscribe_ends_at_its_idle_timeout() -> None:
    harness = SubscriptionHarness()
    used, unused = harness.subscribe(), harness.subscribe()
    harness.pass_time(40)
    await harness.request(used, 1)
    harness.pass_time(25)
    (failed,) = [signal for signal in harness.reply.signals if isinstance(signal, Failed)]
    assert (failed.key, failed.reason) == (unused, EndReason.IDLE)


async def test_case_70_closing_the_connection_ends_its_subscriptions_silently() -> None:
    harness = SubscriptionHarness()
    key = harness.subscribe()
    harness.streams.closed("c-1")
    assert harness.reply.names == ["Created"]
    await wait_until(lambda: list(harness.streams) == [])
    await harness.request(key, 1)
    assert harness.failures() == [EndReason.NOT_FOUND]


async def test_rs_3_13_an_ended_subscription_is_not_kept_until_its_idle_timeout() -> None:
    """Many subscriptions opened and cancelled within the idle timeout leave few ended ones in memory.

    Open ones are still checked in time.
    """
    gc.freeze()  # Objects of earlier tests are not looked at.
    harness = SubscriptionHarness(idle_timeout=1000, max_per_user=10)
    kept = harness.subscribe()
    for _ in range(10):
        for _ in range(500):
            harness.cancel(harness.subscribe())
        harness.pass_time(2)
    harness.pass_time(11)
    gc.collect()
    held = [live for live in gc.get_objects() if isinstance(live, ActiveSubscription) and live.peer is harness.peer]
    assert len(held) < 700
    harness.pass_time(1000)
    gone = harness.reply.signals[-1]
    assert isinstance(gone, Failed)
    assert (gone.key, gone.reason) == (kept, EndReason.IDLE)


async def test_rs_3_13_an_ended_subscription_is_forgotten_after_its_after_life() -> None:
    harness = SubscriptionHarness()
    for _ in range(20):
        harness.cancel(harness.subscribe())
    harness.pass_time(12)
    assert not harness.streams._scopes


async def test_ids_are_unguessable_and_never_repeat() -> None:
    harness = SubscriptionHarness()
    keys = {harness.subscribe() for _ in range(200)}
    assert len(keys) == 200
    assert min(map(len, keys)) >= 22


async def test_the_next_page_is_read_when_the_broker_has_taken_the_last_one() -> None:
    harness = SubscriptionHarness(page_items=10)
    key = harness.subscribe()
    harness.reply.is_stalled = True
    await harness.request(key, 100)
    (feed,) = harness.opened
    assert isinstance(feed, ListFeed)
    assert feed.pages == [(0, 10)]
    harness.reply.postings[-1].take()
    await harness.settle()
    assert feed.pages == [(0, 10), (10, 10)]


async def test_a_stalled_subscription_never_delays_another() -> None:
    """One subscriber's broker accepts nothing; the other subscriber still gets everything."""
    harness = SubscriptionHarness(page_items=10)
    stalled = harness.subscribe()
    harness.reply.is_stalled = True
    await harness.request(stalled, 100)
    reply = KeepingReply("c-2")
    peer = Subscriber(reply, READER, "c-2")
    harness.streams.subscribe(Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), {}, demand=101), peer)
    await harness.settle()
    assert len(reply.elements) == 101
    assert reply.names[-1] == "Complete"


async def test_a_subscriber_with_larger_batches_reads_larger_pages() -> None:
    harness = SubscriptionHarness(lambda: ListFeed(range(500)), page_items=10)
    replies = [KeepingReply("a"), KeepingReply("b")]
    for reply, at_once in zip(replies, (AT_ONCE, 250), strict=True):
        peer = Subscriber(reply, READER, reply.connection_id, at_once=at_once, page_items=at_once)
        harness.streams.subscribe(Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), {}, demand=500), peer)
    await harness.settle()
    assert [[len(each.elements) for each in reply.signals if isinstance(each, Next)] for reply in replies] == [
        [AT_ONCE] * 5,
        [250] * 2,
    ]


async def test_pages_of_several_subscriptions_are_sent_in_turns() -> None:
    """A broker that accepts a whole page at once does not delay other subscriptions."""
    harness = SubscriptionHarness(lambda: ListFeed(range(3 * AT_ONCE)), page_items=3 * AT_ONCE)
    order: list[str] = []

    class RecordingReply(KeepingReply):
        def post(self, signal: Outbound, ended: Done | None = None) -> PendingPublish | None:
            if isinstance(signal, Next):
                order.append(self.connection_id)
            return super().post(signal, ended)

    replies = [RecordingReply("a"), RecordingReply("b")]
    for reply in replies:
        peer = Subscriber(reply, READER, reply.connection_id)
        harness.streams.subscribe(Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), {}, demand=3 * AT_ONCE), peer)
    await harness.settle()
    assert order == ["a", "b"] * 3
    assert [reply.elements for reply in replies] == [list(range(3 * AT_ONCE))] * 2


async def test_few_subscriptions_continue_in_a_turn_of_the_event_loop() -> None:
    """Otherwise a hundred replays would together keep the loop from everything else for a hundred parts."""
    harness = SubscriptionHarness(lambda: ListFeed(range(3 * AT_ONCE)), page_items=3 * AT_ONCE)
    replies = [KeepingReply(str(number)) for number in range(10)]
    for reply in replies:
        peer = Subscriber(reply, READER, reply.connection_id)
        harness.streams.subscribe(Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), {}, demand=3 * AT_ONCE), peer)
    parts = [0]
    while any(reply.names[-1] != "Complete" for reply in replies):
        await asyncio.sleep(0)
        parts.append(sum(reply.names.count("Next") for reply in replies))
    steps = [later - earlier for earlier, later in pairwise(parts)]
    assert (sum(steps), max(steps)) == (30, SIDE_BY_SIDE)


async def test_case_55_the_rest_of_a_page_is_not_sent_after_cancel() -> None:
    harness = SubscriptionHarness(lambda: ListFeed(range(3 * AT_ONCE)), page_items=3 * AT_ONCE)
    key = harness.subscribe()
    harness.reply.is_stalled = True
    await harness.request(key, 3 * AT_ONCE)
    harness.cancel(key)
    harness.reply.postings[-1].take()
    await harness.settle()
    assert len(harness.reply.elements) == AT_ONCE
    assert harness.reply.names == ["Created", "Next"]


async def test_waiting_for_an_unavailable_broker_is_not_idleness() -> None:
    harness = SubscriptionHarness(page_items=10)
    key = harness.subscribe()
    harness.reply.is_stalled = True
    await harness.request(key, 101)
    harness.pass_time(300)
    assert harness.failures() == []


async def test_a_live_feed_without_end_is_sent_as_requested() -> None:
    """An empty page is not the end: later elements are sent by demand, in order, without a waiting task."""
    feed = LiveFeed()
    harness = SubscriptionHarness(lambda: feed)
    key = harness.subscribe()
    feed.put("a")
    await harness.request(key, 3)
    assert harness.reply.elements == ["a"]
    assert feed.is_awaited
    assert next(iter(harness.streams)).pump is None
    feed.put("b", "c", "d")
    await harness.settle()
    assert harness.reply.elements == ["a", "b", "c"]
    await harness.request(key, 1)
    assert harness.reply.elements == ["a", "b", "c", "d"]
    assert "Complete" not in harness.reply.names
    harness.cancel(key)
    feed.put("e")
    await harness.settle()
    assert harness.reply.elements == ["a", "b", "c", "d"]


async def test_a_client_may_choose_subscription_ids() -> None:
    """IDs are unique within a session: two sessions may use the same one, and one may reuse it later."""
    harness = SubscriptionHarness(lambda: ListFeed([1, 2]))
    one, two = KeepingReply("c-1"), KeepingReply("c-1")
    first, second = Subscriber(one, READER, ("c-1", "reply/one")), Subscriber(two, READER, ("c-1", "reply/two"))
    for peer in (first, second):
        harness.streams.subscribe(Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), {}, key="7"), peer)
    await harness.request("7", 1, peer=first)
    assert (one.elements, two.elements) == ([1], [])
    await harness.request("7", 2, peer=second)
    assert two.names == ["Created", "Next", "Complete"]
    harness.streams.subscribe(Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), {}, key="7"), second)
    await harness.request("7", 2, peer=second)
    assert two.elements == [1, 2, 1, 2]


async def test_a_subscribe_may_bring_demand() -> None:
    """A subscribe with demand, in a protocol whose end needs no request, gets everything at once."""
    harness = SubscriptionHarness(lambda: ListFeed([1, 2, 3]))
    reply = KeepingReply(terminal_needs_request=False)
    peer = Subscriber(reply, READER, "c-1")
    harness.streams.subscribe(Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), {}, key="1", demand=2), peer)
    await harness.settle()
    assert reply.elements == [1, 2]
    await harness.request("1", 1, peer=peer)
    assert isinstance(reply.signals[-1], Complete)


async def test_a_refused_subscribe_fails_at_once_if_terminal_signals_need_no_request() -> None:
    harness = SubscriptionHarness(lambda: NOT_FOUND)
    reply = KeepingReply(terminal_needs_request=False)
    harness.streams.subscribe(
        Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), {}), Subscriber(reply, READER, "c-1")
    )
    assert reply.names == ["Created", "Failed"]


@pytest.mark.parametrize("late", [2, 3, 5, 12, 61])
async def test_a_late_sweep_ends_all_subscriptions_that_are_due(late: int) -> None:
    """If a sweep skips seconds, idle subscriptions still end and ended ones are still forgotten."""
    harness = SubscriptionHarness()
    key = harness.subscribe()
    harness.jump(2)
    await harness.request(key, 1)
    for _ in range(140 // late + 2):
        harness.jump(late)
    assert harness.failures() == [EndReason.IDLE]
    assert not harness.streams._scopes


async def test_elements_that_the_broker_refuses_end_the_subscription() -> None:
    """A refused element leaves a gap that the client cannot see, so only the failure may follow."""
    harness = SubscriptionHarness(page_items=2)
    key = harness.subscribe()
    harness.reply.is_stalled = True
    await harness.request(key, 10)
    refusal = PublishFailed("quota exceeded")
    harness.reply.postings[-1].confirm(refusal)
    harness.reply.postings[-1].take()
    await harness.settle()
    assert harness.reply.names == ["Created", "Next", "Failed"]
    assert harness.failures() == [refusal.fault]


async def test_closing_the_connection_ends_subscriptions_that_wait_for_the_broker() -> None:
    harness = SubscriptionHarness()
    key = harness.subscribe()
    harness.reply.is_stalled = True
    await harness.request(key, 10)
    pump = next(iter(harness.streams)).pump
    assert pump is not None
    harness.streams.closed("c-1")
    await harness.settle()
    assert pump.cancelled()


async def test_case_71_a_request_immediately_after_the_subscribe_is_served_after_created() -> None:
    """A client that chose or guessed the ID need not wait for `created`."""
    harness = SubscriptionHarness(lambda: ListFeed([1]))
    harness.streams.subscribe(Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), {}, key="7"), harness.peer)
    harness.streams.request(Request(SubscriptionKind.HISTORY, "7", 1, {}, LAMP), harness.peer)
    await harness.settle()
    assert harness.reply.names == ["Created", "Next", "Complete"]
