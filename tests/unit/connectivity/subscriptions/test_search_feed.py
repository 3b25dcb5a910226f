"""Searches without brokers. Case numbers are those of the search cases."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from connectivity.subscriptions.feed import Feed
from connectivity.subscriptions.search_feed import AT_ONCE, SearchFeed, SearchRequest
from mappings.errors import Fault
from mappings.ids import EntityId, EntityType
from mappings.model.signals import SearchQuery, SubscriptionKind
from spark_store.errors import BudgetExceeded
from spark_store.journal.journal import Journal
from tests.support.in_process.search_client import Searcher, has_thing
from tests.support.in_process.service import (
    ConnectionHarness,
    command,
    document,
    pause,
    searching,
    source,
    turn,
    until,
)

pytestmark = pytest.mark.usefixtures("harnesses")

READ_ALL = {"grant": ["READ"], "revoke": []}
OWN_ALL = {"grant": ["READ", "WRITE"], "revoke": []}


def entries(**readers: dict[str, Any]) -> dict[str, Any]:
    """Return a policy of the owner with resources for others: `guest={"thing:/": …}`."""
    found = {
        "OWNER": {
            "subjects": {"acme:owner": {"type": "test"}},
            "resources": {"thing:/": OWN_ALL, "policy:/": OWN_ALL, "message:/": OWN_ALL},
        }
    }
    for name, resources in readers.items():
        found[name] = {"subjects": {f"acme:{name}": {"type": "test"}}, "resources": resources}
    return {"entries": found}


@pytest.fixture
def harness() -> ConnectionHarness:
    return ConnectionHarness(source(), source("guests", "acme:guest"))


async def test_case_72_only_matches_are_sent_and_then_complete(harness: ConnectionHarness) -> None:
    await has_thing(harness, "lamp-1", {"attributes": {"counter": 1}})
    await has_thing(harness, "lamp-2", {"attributes": {"other": 1}})
    searcher = Searcher(harness)
    key = await searcher.subscribe("exists(attributes/counter)")
    assert await searcher.request(key, 5) == [
        [{"thingId": "acme.site:lamp-1", "policyId": "acme.site:lamp-1", "attributes": {"counter": 1}}]
    ]
    assert searcher.messages(key) == ["created", "next", "complete"]


async def test_case_73_pages_have_the_requested_size(harness: ConnectionHarness) -> None:
    for number in range(7):
        await has_thing(harness, f"lamp-{number}")
    searcher = Searcher(harness)
    key = await searcher.subscribe(None, "size(3)")
    pages = await searcher.request(key, 5)
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [thing["thingId"][-1] for page in pages for thing in page] == list("0123456")
    assert searcher.messages(key) == ["created", "next", "next", "next", "complete"]


async def test_case_73_each_unit_of_demand_requests_one_page(harness: ConnectionHarness) -> None:
    for number in range(7):
        await has_thing(harness, f"lamp-{number}")
    searcher = Searcher(harness)
    key = await searcher.subscribe(None, "size(3)")
    for sizes in ([3], [3, 3], [3, 3, 1]):
        assert [len(page) for page in await searcher.request(key, 1)] == sizes
    assert searcher.messages(key) == ["created", "next", "next", "next", "complete"]


async def test_case_74_without_options_a_page_has_25_things(harness: ConnectionHarness) -> None:
    for number in range(30):
        await has_thing(harness, f"lamp-{number:02}")
    searcher = Searcher(harness)
    key = await searcher.subscribe()
    assert [len(page) for page in await searcher.request(key, 5)] == [25, 5]


async def test_case_75_without_matches_complete_is_sent_without_a_page(harness: ConnectionHarness) -> None:
    await has_thing(harness, "lamp-1")
    searcher = Searcher(harness)
    key = await searcher.subscribe("exists(attributes/counter)")
    assert await searcher.request(key, 1) == []
    assert searcher.messages(key) == ["created", "complete"]


async def test_complete_follows_the_last_full_page_at_once(harness: ConnectionHarness) -> None:
    for number in range(6):
        await has_thing(harness, f"lamp-{number}")
    searcher = Searcher(harness)
    key = await searcher.subscribe(None, "size(3)")
    await searcher.request(key, 2)
    await until(lambda: searcher.end(key) == "complete")


async def test_case_76_namespaces_match_exactly_and_an_empty_list_selects_all(harness: ConnectionHarness) -> None:
    await has_thing(harness, "lamp-1")
    other = command("create", value={"_policy": entries()}).replace(b"acme.site/", b"acme.lab/")
    assert (await harness.ask(other))["status"] == 201
    searcher = Searcher(harness)
    assert await searcher.all(namespaces=["acme.lab"]) == ["acme.lab:lamp-7"]
    assert await searcher.all(namespaces=["acme"]) == []
    assert await searcher.all(namespaces=[]) == ["acme.lab:lamp-7", "acme.site:lamp-1"]
    assert await searcher.all('in(thingId,"acme.lab:lamp-7","acme.site:lamp-1")', namespaces=["acme.site"]) == [
        "acme.site:lamp-1"
    ]


@pytest.mark.parametrize(
    ("filter", "options", "code", "message"),
    [
        pytest.param(
            None, "size(300)", "thing-search:search.option.invalid", "Invalid option: 'size(300)'", id="case_77"
        ),
        pytest.param(None, "size(0)", "thing-search:search.option.invalid", "Invalid option: 'size(0)'", id="case_77b"),
        pytest.param(None, "size=3", "thing-search:search.option.invalid", "Invalid options: size=3", id="case_78"),
        pytest.param("exist=attribute/lol", None, "rql.expression.invalid", "Invalid filter expression", id="case_79"),
        pytest.param("eq(foo,1)", None, "rql.expression.invalid", "Unknown property name: foo", id="unknown_property"),
        pytest.param(
            None, "sort(+foo)", "thing-search:search.option.invalid", "Unknown property name: foo", id="case_80"
        ),
        pytest.param(None, "limit(0,1)", "thing-search:search.option.invalid", "The option limit(0,1)", id="case_80b"),
        pytest.param(None, "cursor(a)", "thing-search:search.option.invalid", "The option cursor(a)", id="case_80c"),
        pytest.param(
            None, "sort(+thingId),sort(+policyId)", "thing-search:search.option.invalid", "Too many sort", id="case_80d"
        ),
    ],
)
async def test_case_77_to_80_an_invalid_search_fails_at_the_first_request(
    harness: ConnectionHarness, filter: str | None, options: str | None, code: str, message: str
) -> None:
    searcher = Searcher(harness)
    key = await searcher.subscribe(filter, options)
    await pause()
    assert searcher.messages(key) == ["created"]
    await searcher.request(key)
    assert searcher.messages(key) == ["created", "failed"]
    error = searcher.failure(key)
    assert (error["status"], error["error"]) == (400, code)
    assert message in error["message"]


async def test_case_81_missing_values_sort_first_and_last_when_descending(harness: ConnectionHarness) -> None:
    for name, attributes in {"x": {"n": 2}, "y": {}, "z": {"n": 1}}.items():
        await has_thing(harness, name, {"attributes": attributes})
    searcher = Searcher(harness)
    assert [id[-1] for id in await searcher.all(None, "sort(+attributes/n)")] == ["y", "z", "x"]
    assert [id[-1] for id in await searcher.all(None, "sort(-attributes/n)")] == ["x", "z", "y"]


@pytest.mark.parametrize("filter", [None, 'eq(thingId,"acme.site:lamp-1")'], ids=["looked for", "named"])
async def test_case_82_only_the_selected_fields_are_sent(harness: ConnectionHarness, filter: str | None) -> None:
    await has_thing(harness, "lamp-1", {"attributes": {"room": "hall", "n": 1}, "features": {"lamp": {}}})
    searcher = Searcher(harness)
    for fields, shown in {
        "thingId": {"thingId": "acme.site:lamp-1"},
        "attributes(room),_revision": {"attributes": {"room": "hall"}, "_revision": 1},
        "_namespace,_created,_modified": {
            "_namespace": "acme.site",
            "_created": "2030-01-15T07:30:00Z",
            "_modified": "2030-01-15T07:30:00Z",
        },
        "attributes/none": {},
    }.items():
        key = await searcher.subscribe(filter, fields=fields)
        assert await searcher.request(key) == [[shown]]


async def test_the_policy_is_sent_where_it_is_readable(harness: ConnectionHarness) -> None:
    policy = entries(guest={"thing:/": READ_ALL})
    await has_thing(harness, "lamp-1", policy=policy)

    async def shown_to(number: int) -> Any:
        searcher = Searcher(harness, source=number)
        return await searcher.request(await searcher.subscribe(None, fields="thingId,_policy,_lifecycle"))

    assert set((await shown_to(0))[0][0]["_policy"]["entries"]) == set(policy["entries"])
    assert await shown_to(1) == [[{"thingId": "acme.site:lamp-1", "_lifecycle": "ACTIVE"}]]


async def test_case_83_fields_without_read_permission_are_not_sent(harness: ConnectionHarness) -> None:
    await has_thing(harness, "lamp-1")
    await has_thing(harness, "lamp-2", policy=entries(guest={"thing:/": READ_ALL}))
    guest = Searcher(harness, source=1)
    assert await guest.all() == ["acme.site:lamp-2"]
    assert await guest.all('in(thingId,"acme.site:lamp-1","acme.site:lamp-2")') == ["acme.site:lamp-2"]


@pytest.mark.parametrize("named", ["", ',eq(thingId,"acme.site:lamp-2")'], ids=["looked for", "named"])
async def test_case_84_a_predicate_on_an_unreadable_field_is_false_and_its_negation_true(
    harness: ConnectionHarness, named: str
) -> None:
    resources = {"thing:/": READ_ALL, "thing:/attributes/secret": {"grant": [], "revoke": ["READ"]}}
    for name, policy in {"lamp-1": entries(), "lamp-2": entries(guest=resources)}.items():
        await has_thing(harness, name, {"attributes": {"secret": 1, "room": "hall"}}, policy=policy)
    guest = Searcher(harness, source=1)

    async def found(filter: str) -> bool:
        ids = await guest.all(f"and({filter},exists(thingId){named})", "size(200)")
        assert ids in ([], ["acme.site:lamp-2"])
        return bool(ids)

    assert not await found("eq(attributes/secret,1)")
    assert await found("not(eq(attributes/secret,1))")
    assert await found('or(eq(attributes/secret,1),eq(attributes/room,"hall"))')
    assert not await found('and(eq(attributes/secret,1),eq(attributes/room,"hall"))')
    assert not await found("exists(attributes/secret)")
    assert not await found("empty(attributes/secret)")
    assert await found("not(exists(attributes/secret))")


async def test_a_change_of_a_policy_applies_to_the_next_page(harness: ConnectionHarness) -> None:
    readable = entries(guest={"thing:/": READ_ALL})
    for number in range(4):
        await has_thing(harness, f"lamp-{number}", policy=readable)
    guest = Searcher(harness, source=1)
    key = await guest.subscribe(None, "size(1)")
    await guest.request(key)
    for number in (1, 3):
        changed = document(f"acme.site/lamp-{number}/policies/commands/modify", "/entries/guest/resources", {})
        assert (await harness.ask(changed))["status"] == 204
    pages = await guest.request(key, 9)
    assert [thing["thingId"][-1] for page in pages for thing in page] == ["0", "2"]


@pytest.mark.parametrize("channel", ["live", "none"])
async def test_case_85_other_channels_open_nothing(harness: ConnectionHarness, channel: str) -> None:
    answer = await harness.ask(searching("subscribe", {}).replace(b"/twin/", f"/{channel}/".encode()))
    assert answer["topic"] == "unknown/unknown/things/twin/errors" or channel == "live"
    assert answer["value"]["error"] == "protocoladapter:unknown.topicpath"


@pytest.mark.parametrize("demand", [-3, 0, None])
async def test_case_86_a_demand_of_zero_fails(harness: ConnectionHarness, demand: int | None) -> None:
    searcher = Searcher(harness)
    key = await searcher.subscribe()
    searcher.ask(key, demand)
    await until(lambda: searcher.end(key))
    error = searcher.failure(key)
    assert (error["status"], error["error"]) == (400, "thing-search:subscription.protocol.error")
    assert "rule 3.9" in error["message"]
    searcher.ask(key, 1)
    await until(lambda: searcher.messages(key) == ["created", "failed", "failed"])
    assert (
        searcher.failure(key)["message"] == "This subscription is considered cancelled. No more messages are processed."
    )


async def test_case_87_parallel_searches_do_not_mix(harness: ConnectionHarness) -> None:
    for number in range(8):
        await has_thing(harness, f"lamp-{number}", {"attributes": {"tag": number % 4}})
    searcher = Searcher(harness)
    keys = [await searcher.subscribe(f"eq(attributes/tag,{tag})", "size(1)") for tag in range(4)]
    await searcher.request(keys[0], 1)
    searcher.cancel(keys[0])
    harness.search.error = RuntimeError("a page cannot be read")
    await searcher.request(keys[1], 1)
    harness.search.error = None
    for key in keys[2:]:
        searcher.ask(key, 10)
    await until(lambda: all(searcher.end(key) for key in keys[1:]))
    assert [searcher.end(key) for key in keys] == [None, "failed", "complete", "complete"]
    assert searcher.failure(keys[1])["error"] == "internalerror"
    assert searcher.failure(keys[1])["status"] == 500
    for tag in (2, 3):
        found = [thing["attributes"]["tag"] for page in searcher.pages(keys[tag]) for thing in page]
        assert found == [tag, tag]


async def test_case_88_nothing_is_read_before_the_first_request(harness: ConnectionHarness) -> None:
    await has_thing(harness, "lamp-1")
    searcher = Searcher(harness)
    key = await searcher.subscribe()
    await pause()
    assert harness.search.pages == []
    await searcher.request(key)
    assert [looked.after for looked in harness.search.pages] == [None]


async def test_case_89_a_request_without_the_id_is_answered_with_an_error(harness: ConnectionHarness) -> None:
    for action in ("request", "cancel"):
        for value in ({"demand": 1}, {"subscriptionId": None}, None):
            answer = await harness.ask(searching(action, value))
            assert answer["topic"] == "unknown/unknown/things/twin/errors"
            assert answer["value"]["error"] == "json.field.missing"


async def test_case_90_a_thing_deleted_between_two_pages_is_skipped_and_the_page_filled(
    harness: ConnectionHarness,
) -> None:
    for number in range(5):
        await has_thing(harness, f"lamp-{number}")
    searcher = Searcher(harness)
    key = await searcher.subscribe(None, "size(2)")
    await searcher.request(key)
    assert (await harness.ask(command("delete", name="lamp-2")))["status"] == 204
    pages = await searcher.request(key)
    assert [thing["thingId"][-1] for page in pages for thing in page] == list("0134")
    await until(lambda: searcher.end(key) == "complete")


async def test_case_91_ids_of_searches_and_histories_are_separate(harness: ConnectionHarness) -> None:
    await has_thing(harness, "lamp-7")
    searcher = Searcher(harness)
    key = await searcher.subscribe()
    topic = b"acme.site/lamp-7/things/twin/streaming/request"
    answer = await harness.ask(
        searching("request", {"subscriptionId": key, "demand": 1}).replace(b"_/_/things/twin/search/request", topic)
    )
    assert answer["value"]["error"]["error"] == "streaming.subscription.not.found"
    assert [len(page) for page in await searcher.request(key)] == [1]


# --- the codes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["request", "cancel"])
async def test_an_unknown_or_foreign_id_is_not_found(harness: ConnectionHarness, action: str) -> None:
    searcher = Searcher(harness)
    for key, from_source in (("77", 0), (await searcher.subscribe(), 1)):
        harness.forget()
        answer = await harness.ask(searching(action, {"subscriptionId": key, "demand": 1}), source=from_source)
        assert answer["topic"] == "_/_/things/twin/search/failed"
        assert answer["value"]["error"] == {
            "status": 404,
            "error": "thing-search:subscription.not.found",
            "message": f"No subscription with ID '{key}' exists.",
        }


async def test_a_search_without_requests_expires_and_later_is_not_found(harness: ConnectionHarness) -> None:
    searcher = Searcher(harness)
    key = await searcher.subscribe()
    for _ in range(62):
        harness.clock.advance(1)
        harness.streams.sweep()
    error = searcher.failure(key)
    assert (error["status"], error["error"]) == (408, "thing-search:subscription.timeout")
    assert error["message"] == f"The subscription '{key}' stopped due to a lack of interaction."


async def test_a_search_that_runs_is_aborted_when_the_service_stops(harness: ConnectionHarness) -> None:
    for number in range(3):
        await has_thing(harness, f"lamp-{number}")
    searcher = Searcher(harness)
    running, waiting = await searcher.subscribe(None, "size(1)"), await searcher.subscribe()
    await searcher.request(running, 1)
    harness.streams.abort(SubscriptionKind.SEARCH)
    assert searcher.messages(waiting) == ["created"]
    assert searcher.failure(running) == {
        "status": 500,
        "error": "thing-search:subscription.aborted",
        "message": "The subscription is aborted due to a service restart.",
        "description": "Please try again later.",
    }


async def test_too_many_subscriptions_are_refused_with_a_code_of_searches(harness: ConnectionHarness) -> None:
    harness.streams.shares["site"].used = 30_000
    answer = await harness.ask(searching("subscribe", {}))
    assert (answer["topic"], answer["status"]) == ("unknown/unknown/things/twin/errors", 429)
    assert answer["value"]["error"] == "thing-search:subscription.limit"


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({"namespaces": "acme.site"}, "json.invalid"),
        ({"namespaces": [1]}, "json.format.invalid"),
        ({"filter": 1}, "json.invalid"),
        ({"options": 1}, "json.invalid"),
        ([1], "json.format.invalid"),
    ],
)
async def test_a_value_of_the_wrong_type_opens_no_search(harness: ConnectionHarness, value: Any, code: str) -> None:
    answer = await harness.ask(searching("subscribe", value))
    assert answer["topic"] == "unknown/unknown/things/twin/errors"
    assert answer["value"]["error"] == code


async def test_a_search_without_matches_at_its_time_limit_fails(harness: ConnectionHarness) -> None:
    harness.search.error = BudgetExceeded(5)
    searcher = Searcher(harness)
    key = await searcher.subscribe()
    await searcher.request(key)
    error = searcher.failure(key)
    assert (error["status"], error["error"]) == (503, "thing-search:budget.exceeded")


async def test_times_are_those_of_the_subscribe_and_equal_filters_share_a_predicate(harness: ConnectionHarness) -> None:
    def predicate(filter: str) -> Any:
        return harness.searching.understand(SearchQuery(filter), ()).question.predicate

    assert predicate("gt(attributes/n,1)") is predicate("gt(attributes/n,1)")
    past = predicate("lt(_modified,time:now-1h)")
    assert past is not predicate("lt(_modified,time:now-1h)")
    assert past.literal.value == "2030-01-15T06:30:00.000000000Z"


# --- pages --------------------------------------------------------------------------------------------------------------


async def test_a_page_is_filled_from_several_slices(harness: ConnectionHarness) -> None:
    for number in range(7):
        await has_thing(harness, f"lamp-{number}")
    harness.search.slice = 2
    searcher = Searcher(harness)
    key = await searcher.subscribe(None, "size(3)")
    assert [len(page) for page in await searcher.request(key, 5)] == [3, 3, 1]


async def test_things_found_until_the_time_limit_are_a_page(
    harness: ConnectionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(7):
        await has_thing(harness, f"lamp-{number}")
    searcher = Searcher(harness)
    key = await searcher.subscribe(None, "size(5)")
    page = harness.search.page

    def slowly(*asked: Any, **more: Any) -> Any:
        if len(harness.search.pages) == 1:
            harness.search.error = BudgetExceeded(5)
        return page(*asked, **more)

    harness.search.slice = 2
    monkeypatch.setattr(harness.search, "page", slowly)
    assert [len(each) for each in await searcher.request(key)] == [2]
    harness.search.error, harness.search.slice = None, None
    assert [len(each) for each in await searcher.request(key)] == [2, 5]


async def test_a_page_ends_at_its_limit_of_bytes(harness: ConnectionHarness) -> None:
    for number in range(30):
        await has_thing(harness, f"lamp-{number:02}", {"attributes": {"text": "x" * 90_000}})
    searcher = Searcher(harness)
    ids = ", ".join(f'"acme.site:lamp-{number:02}"' for number in range(24)).replace(", ", ",")
    key = await searcher.subscribe(f"in(thingId,{ids})", "size(200)")
    await searcher.request(key, 10)
    sizes = [len(page) for page in searcher.pages(key)]
    assert sizes == [11, 11, 2]
    assert max(len(message.envelope.payload) for message in harness.link.published) < 1 << 20


async def test_several_pages_are_read_at_once_up_to_a_limit(harness: ConnectionHarness) -> None:
    await has_thing(harness, "lamp-1")
    searcher = Searcher(harness)
    for options, wanted in (("size(200)", 400), ("size(1)", AT_ONCE), ("size(25)", 500)):
        await searcher.all(None, options)
        assert harness.search.pages[-1].limit == wanted


async def test_searches_run_in_worker_threads_except_for_a_named_thing(
    harness: ConnectionHarness,
) -> None:
    await has_thing(harness, "lamp-1")
    searcher = Searcher(harness)
    await searcher.all('eq(thingId,"acme.site:lamp-1")')
    assert harness.search.pages == []
    # Several large things may follow each other.
    assert await searcher.all('in(thingId,"acme.site:lamp-1","acme.site:lamp-2")') == ["acme.site:lamp-1"]
    assert len(harness.search.pages) == 1
    await searcher.all()
    assert harness.search.pages[-1].thread.startswith("search")


async def test_a_filter_that_compares_much_of_a_named_thing_runs_in_a_worker_thread(harness: ConnectionHarness) -> None:
    await has_thing(harness, "lamp-1", {"attributes": {"tags": ["a"] * 5_000}})
    searcher = Searcher(harness)
    patterns = ",".join(['like(attributes/tags,"*b?*")'] * 20)
    assert await searcher.all(f'and(eq(thingId,"acme.site:lamp-1"),or({patterns}))') == []
    assert [page.thread[:6] for page in harness.search.pages] == ["search"]


async def test_a_long_search_does_not_delay_others(harness: ConnectionHarness) -> None:
    await has_thing(harness, "lamp-7")
    searcher = Searcher(harness)
    long = await searcher.subscribe()
    harness.search.gate.clear()
    searcher.ask(long)
    await until(lambda: harness.search.pages)
    assert (await harness.ask(turn(True)))["status"] == 201
    assert await searcher.all('eq(thingId,"acme.site:lamp-7")') == ["acme.site:lamp-7"]
    searcher.cancel(long)
    harness.search.gate.set()
    await pause()
    assert searcher.messages(long) == ["created"]
    assert len(harness.search.pages) == 1


async def test_a_search_cancelled_before_its_turn_is_not_executed(harness: ConnectionHarness) -> None:
    await has_thing(harness, "lamp-7")
    searcher = Searcher(harness)
    keys = [await searcher.subscribe() for _ in range(4)]
    harness.search.gate.clear()
    for key in keys:
        searcher.ask(key)
    await until(lambda: len(harness.search.pages) == 2)
    for key in keys[1:]:
        searcher.cancel(key)
    await until(lambda: len(list(harness.streams)) == 1)
    harness.search.gate.set()
    await until(lambda: searcher.end(keys[0]) == "complete")
    assert await searcher.all() == ["acme.site:lamp-7"]
    assert [searcher.messages(key) for key in keys] == [["created", "next", "complete"], *[["created"]] * 3]
    assert len(harness.search.pages) == 3


# --- read your writes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [50, pytest.param(5_000, marks=pytest.mark.soak(shard="properties"))])
async def test_every_acknowledged_write_is_found_under_load(tmp_path: Path, number: int) -> None:
    """A search sent after a response finds the change, by value and by ID, while others write."""
    harness = ConnectionHarness(journal=Journal.open(tmp_path / "journal.db"))
    await has_thing(harness, "lamp-7")
    await has_thing(harness, "lamp-8")
    searcher = Searcher(harness)
    others = asyncio.get_running_loop().create_task(_keep_writing(harness))
    try:
        for count in range(1, number + 1):
            harness.forget()
            harness.deliver(turn(count, correlation_id=f"write-{count}"))
            await until(lambda n=count: f"write-{n}" in harness.correlations())  # type: ignore[misc]
            assert await searcher.all(f"eq(attributes/on,{count})") == ["acme.site:lamp-7"]
            named = f'and(eq(thingId,"acme.site:lamp-7"),eq(attributes/on,{count}))'
            assert await searcher.all(named) == ["acme.site:lamp-7"]
    finally:
        others.cancel()
    assert len(harness.journal.events(EntityId(EntityType.THING, "acme.site", "lamp-8"), 1, 2**62, 9, 1 << 20)) == 9


async def _keep_writing(harness: ConnectionHarness) -> None:
    """Send commands without a pause."""
    number = 0
    while True:
        number -= 1
        harness.deliver(command("modify", "/attributes/on", number, name="lamp-8", response_required=False))
        await harness.store.commits.barrier()


# --- the past -----------------------------------------------------------------------------------------------------------


async def test_a_search_in_the_past_needs_a_lake_and_an_instant(harness: ConnectionHarness) -> None:
    for at, status, code in (
        ("2029-01-01T00:00:00Z", 501, "thing-search:past.unavailable"),
        ("yesterday", 400, "header.invalid"),
    ):
        harness.forget()
        harness.deliver(searching("subscribe", {}, at_historical_timestamp=at))
        await until(lambda: harness.link.published)
        key = harness.answers()[0]["value"]["subscriptionId"]
        searcher = Searcher(harness)
        await searcher.request(key)
        assert (searcher.failure(key)["status"], searcher.failure(key)["error"]) == (status, code)
    assert searcher.failure(key)["message"] == (
        "The value 'yesterday' of the header 'at-historical-timestamp' is not a valid time (ISO-8601 with seconds and an "
        "offset, such as 2030-01-15T07:30:00Z)."
    )


async def test_a_search_in_the_past_is_opened_with_nanoseconds(harness: ConnectionHarness) -> None:
    opened: list[int] = []

    def open_past(asked: SearchRequest, at: int) -> Feed | Fault:
        opened.append(at)
        return SearchFeed(harness.searching, asked)

    harness.searching.as_of = open_past
    harness.deliver(searching("subscribe", {}, at_historical_timestamp="1970-01-01T00:00:01.5Z"))
    await until(lambda: opened)
    assert opened == [1_500_000_000]
