"""Turns of users at searches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from connectivity.authorization.quotas import Quotas
from connectivity.config.quotas import QuotaRule
from connectivity.subscriptions.feed import FeedFailed
from connectivity.subscriptions.search_queue import SearchQueue, User
from spark_store.errors import StoreUnavailable
from tests.support.in_process.search_client import Searcher, has_thing
from tests.support.in_process.service import ConnectionHarness, pause, policy, source, until

pytestmark = pytest.mark.usefixtures("harnesses")

BAD: User = ("acme:bad",)
GOOD: User = ("acme:good",)


class Crowd:
    """Searches that use a slot until they are ended; `order` has the users whose turn came."""

    def __init__(self, queue: SearchQueue) -> None:
        self.queue = queue
        self.order: list[User] = []

    def start(self, *users: User) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._search(user)) for user in users]

    async def _search(self, user: User) -> None:
        await self.queue.enter(user)
        self.order.append(user)

    async def end(self, user: User) -> None:
        self.queue.leave(user)
        await pause()


async def test_users_take_turns_for_any_number_of_searches() -> None:
    crowd = Crowd(SearchQueue(2, 2, 100))
    crowd.start(*[BAD] * 10)
    await pause()
    crowd.start(GOOD, GOOD)
    await pause()
    assert crowd.order == [BAD, BAD]
    for _ in range(4):
        await crowd.end(BAD)
    assert crowd.order == [BAD, BAD, BAD, GOOD, BAD, GOOD]


async def test_one_user_does_not_use_all_slots_if_its_own_are_fewer() -> None:
    crowd = Crowd(SearchQueue(2, 1, 100))
    crowd.start(BAD, BAD, GOOD)
    await pause()
    assert crowd.order == [BAD, GOOD]
    await crowd.end(GOOD)
    assert crowd.order == [BAD, GOOD]
    await crowd.end(BAD)
    assert crowd.order == [BAD, GOOD, BAD]


async def test_waiting_searches_of_a_user_are_limited_and_those_of_others_continue() -> None:
    crowd = Crowd(SearchQueue(100, 2, 3))
    tasks = crowd.start(*[BAD] * 6, GOOD)
    await pause()
    refused = tasks[5].exception()
    assert isinstance(refused, FeedFailed)
    assert (refused.fault.status, refused.fault.error) == (429, "thing-search:search.limit")
    assert refused.fault.message == "These subjects have 2 running and 3 waiting searches, which is the limit."
    assert crowd.order == [BAD, BAD, GOOD]


@pytest.mark.parametrize("is_granted", [False, True])
async def test_a_search_cancelled_while_it_waits_leaves_its_place(*, is_granted: bool) -> None:
    crowd = Crowd(SearchQueue(1, 1, 100))
    first, second, third = crowd.start(BAD, BAD, BAD)
    await pause()
    if is_granted:
        crowd.queue.leave(BAD)
    second.cancel()
    await pause()
    if not is_granted:
        crowd.queue.leave(BAD)
    await third
    assert (first.done(), second.cancelled()) == (True, True)
    await crowd.end(BAD)
    assert repr(crowd.queue) == "<SearchQueue 0 running, 0 waiting>"


async def test_searches_that_wait_fail_when_the_queue_is_closed() -> None:
    crowd = Crowd(SearchQueue(1, 1, 100))
    _, waiting, cancelled = crowd.start(BAD, BAD, BAD)
    await pause()
    cancelled.cancel()
    crowd.queue.close("the service stops")
    with pytest.raises(StoreUnavailable, match="the service stops"):
        await waiting


def quotas(**rule: Any) -> Quotas:
    return Quotas([QuotaRule.model_validate(rule)])


async def test_searches_beyond_the_quota_of_their_first_subject_are_refused_until_one_ends() -> None:
    queue = SearchQueue(100, 1, 100, quotas(subjects=["acme:bad"], searches=2))
    both, other = ("acme:bad", "acme:good"), ("acme:good", "acme:bad")
    async with contextlib.AsyncExitStack() as running:
        await running.enter_async_context(queue.slot(both))
        waiting = asyncio.create_task(running.enter_async_context(queue.slot(both)))
        await pause()
        with pytest.raises(FeedFailed) as refused:
            await queue.slot(BAD).__aenter__()
        assert (refused.value.fault.status, refused.value.fault.error) == (429, "thing-search:search.limit")
        assert refused.value.fault.message == (
            "A quota of searches is used up: the subject 'acme:bad' uses 2 of its quota searches of 2."
        )
        await running.enter_async_context(queue.slot(other))
        waiting.cancel()
        await pause()
        await running.enter_async_context(queue.slot(BAD))
    async with queue.slot(both):
        assert queue.running.total() == 1


async def test_a_search_is_added_to_the_use_of_the_namespaces_that_it_names() -> None:
    queue = SearchQueue(100, 100, 100, quotas(namespaces=["acme.*"], searches=1))
    async with queue.slot(BAD, {"acme.site", "other"}):
        with pytest.raises(FeedFailed, match=r"the namespace 'acme\.site' uses 1 of its quota searches of 1"):
            await queue.slot(GOOD, {"acme.site"}).__aenter__()
        async with queue.slot(GOOD, {"other"}), queue.slot(GOOD):
            pass
    async with queue.slot(GOOD, {"acme.site"}):
        pass


async def test_a_search_does_not_use_the_quota_of_a_namespace_in_which_the_user_sees_nothing() -> None:
    asked: list[tuple[User, str]] = []

    async def sees(user: User, namespace: str) -> bool:
        asked.append((user, namespace))
        return user == GOOD

    queue = SearchQueue(100, 100, 100, quotas(namespaces=["acme.*"], searches=1), sees)
    async with queue.slot(BAD, {"acme.site", "other"}), queue.slot(BAD, {"acme.site"}), queue.slot(GOOD, {"acme.site"}):
        with pytest.raises(FeedFailed, match=r"the namespace 'acme\.site' uses 1 of its quota searches of 1"):
            await queue.slot(GOOD, {"acme.site"}).__aenter__()
    assert asked == [(user, "acme.site") for user in (BAD, BAD, GOOD, GOOD)]


async def test_searches_of_which_the_namespaces_are_looked_up_wait() -> None:
    looked = asyncio.Event()

    async def sees(user: User, namespace: str) -> bool:
        return await looked.wait()

    async def search(queue: SearchQueue, user: User) -> None:
        async with queue.slot(user, {"acme.site"}):
            pass

    queue = SearchQueue(100, 100, 2, quotas(namespaces=["acme.*"], searches=10), sees)
    async with asyncio.TaskGroup() as searches:
        for user in (BAD, BAD, GOOD):
            searches.create_task(search(queue, user))
        await until(lambda: queue.waiting == 3)
        with pytest.raises(FeedFailed, match="0 running and 2 waiting"):
            await queue.slot(BAD, {"acme.site"}).__aenter__()
        looked.set()
    assert queue.waiting == 0
    await search(queue, BAD)


# Searches.


@pytest.fixture
def harness() -> Iterator[ConnectionHarness]:
    made = ConnectionHarness(source(), source("good", "acme:good"))
    yield made
    made.search.gate.set()


async def has_things(harness: ConnectionHarness) -> None:
    for number in range(3):
        await has_thing(harness, f"lamp-{number}", policy=policy("acme:owner", "acme:good"))


@pytest.mark.parametrize(("more", "at_once"), [({}, 8), ({"aggregation": {}}, 16)], ids=["search", "aggregation"])
async def test_a_user_is_answered_while_another_starts_very_many_searches(
    harness: ConnectionHarness, more: dict[str, Any], at_once: int
) -> None:
    """Only searches that already run in a thread come first, even if each takes several slices."""
    await has_things(harness)
    harness.search.slice = 1
    harness.search.gate.clear()
    bad, good = Searcher(harness), Searcher(harness, source=1)
    keys = [await bad.subscribe("not(exists(attributes/x))", **more) for _ in range(30)]
    for key in keys:
        bad.ask(key)
    await until(lambda: harness.searching.searches.running[("acme:owner",)] == at_once)
    own = await good.subscribe("not(exists(attributes/x))", **more)
    good.ask(own)
    await until(lambda: harness.searching.searches.running[("acme:good",)] == 1)
    harness.search.gate.set()
    await until(lambda: good.end(own) == "complete")
    assert sum(bad.end(key) is not None for key in keys) <= 4


async def test_too_many_searches_of_a_user_are_refused_with_the_limit(
    harness: ConnectionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await has_things(harness)
    monkeypatch.setattr(harness.searching, "searches", SearchQueue(100, 1, 2))
    harness.search.gate.clear()
    bad, good = Searcher(harness), Searcher(harness, source=1)
    keys = [await bad.subscribe("not(exists(attributes/x))", aggregation={}) for _ in range(4)]
    for key in keys:
        bad.ask(key)
    await until(lambda: bad.end(keys[3]) == "failed")
    assert bad.failure(keys[3])["status"] == 429
    assert bad.failure(keys[3])["error"] == "thing-search:search.limit"
    own = await good.subscribe("not(exists(attributes/x))")
    good.ask(own)
    harness.search.gate.set()
    await until(lambda: good.end(own) == "complete")
    await until(lambda: [bad.end(key) for key in keys[:3]] == ["complete"] * 3)


@pytest.mark.parametrize("more", [{}, {"aggregation": {}}], ids=["search", "aggregation"])
async def test_searches_beyond_a_quota_of_a_namespace_fail_and_name_it(
    harness: ConnectionHarness, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    await has_things(harness)
    bounded = SearchQueue(100, 16, 100, quotas(namespaces=["acme.*"], searches=1))
    monkeypatch.setattr(harness.searching, "searches", bounded)
    harness.search.gate.clear()
    searcher = Searcher(harness)
    keys = [await searcher.subscribe("exists(thingId)", namespaces=["acme.site"], **more) for _ in range(2)]
    for key in keys:
        searcher.ask(key)
    await until(lambda: searcher.end(keys[1]) == "failed")
    failure = searcher.failure(keys[1])
    assert (failure["status"], failure["error"]) == (429, "thing-search:search.limit")
    assert "the namespace 'acme.site' uses 1 of its quota searches of 1" in failure["message"]
    harness.search.gate.set()
    await until(lambda: searcher.end(keys[0]) == "complete")


@pytest.mark.parametrize("more", [{}, {"aggregation": {}}], ids=["search", "aggregation"])
async def test_searches_of_strangers_in_a_namespace_leave_its_quota_to_those_who_can_read_there(
    harness: ConnectionHarness, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    await has_thing(harness, "lamp-1")
    bounded = SearchQueue(100, 16, 100, quotas(namespaces=["acme.*"], searches=1), harness.searching.sees)
    monkeypatch.setattr(harness.searching, "searches", bounded)
    harness.search.gate.clear()
    owner, stranger = Searcher(harness), Searcher(harness, source=1)
    foreign = await stranger.subscribe("exists(thingId)", namespaces=["acme.site"], **more)
    stranger.ask(foreign)
    await until(lambda: bounded.running[("acme:good",)] == 1)
    own = await owner.subscribe("exists(thingId)", namespaces=["acme.site"], **more)
    owner.ask(own)
    await until(lambda: bounded.running[("acme:owner",)] == 1 or owner.end(own) is not None)
    harness.search.gate.set()
    await until(lambda: owner.end(own) == "complete")
    await until(lambda: stranger.end(foreign) == "complete")


async def test_waiting_for_a_turn_is_not_idleness(harness: ConnectionHarness) -> None:
    await has_things(harness)
    harness.search.gate.clear()
    searcher = Searcher(harness)
    key = await searcher.subscribe("not(exists(attributes/x))")
    searcher.ask(key)
    await until(lambda: harness.searching.searches.running.total() == 1)
    for _ in range(100):
        harness.clock.advance(1)
        harness.streams.sweep()
    harness.search.gate.set()
    await until(lambda: searcher.end(key) == "complete")
