"""Searches of the past without brokers, with canned answers instead of Spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest

from connectivity.subscriptions import as_of_feed as module
from connectivity.subscriptions.as_of_feed import AsOfFeed, AsOfSearches, PastOptions
from connectivity.subscriptions.feed import Page, PageEnd
from connectivity.subscriptions.search_feed import SearchRequest
from spark_store.errors import QueryCancelled, QueryRefused, QueryTimeout, StoreError, StoreUnavailable
from spark_store.journal.journal import Journal
from spark_store.lake.tables import Lake
from spark_store.lake.watermark import Watermark, publish_watermark
from spark_store.queries.as_of import CandidateAccess
from spark_store.queries.as_of_fold import Candidate, FoldOutput
from spark_store.queries.spark_query import Cancellation, QueryLimits, SparkQueries, SparkQuery
from spark_store.queries.spool import SpoolLimits
from spark_store.records import StateGuard
from spark_store.rql.options import read_options
from spark_store.rql.query import ThingQuery
from tests.support.in_process.search_client import Searcher, has_thing
from tests.support.in_process.service import NOW, ConnectionHarness, command, document, policy, searching, source, until
from tests.support.open_files import open_files

pytestmark = pytest.mark.usefixtures("harnesses")

PAST = "2030-01-01T00:00:00Z"
CLOCK = NOW + timedelta(hours=1)
GUEST = {
    "subjects": {"acme:guest": {"type": "test"}},
    "resources": {"thing:/attributes/a": {"grant": ["READ"], "revoke": []}},
}


class CannedQueries(SparkQueries):
    """Answers every query with the same rows, in files of two, once it is allowed or the query is stopped."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake)
        self.rows: list[dict[str, Any]] = []
        self.error: StoreError | None = None
        self.is_complete = True
        self.requests, self.held, self.allowed = 0, False, threading.Semaphore(0)
        self.running, self.stopped = threading.Event(), threading.Event()

    def has(self, name: str, *, matches: bool = True, **attributes: Any) -> None:
        state = msgspec.json.encode({"policyId": f"acme.site:{name}", "attributes": attributes}).decode()
        row = (f"acme.site:{name}", 3, PAST, PAST, state, matches)
        self.rows.append(dict(zip(Candidate._fields, row, strict=True)))

    def run(  # type: ignore[override]
        self, query: SparkQuery, limits: QueryLimits, cancellation: Cancellation | None = None
    ) -> list[WrittenFile]:
        self.requests += 1
        assert cancellation is not None
        # Instead of a query, the feed has its output: see `make_past`.
        assert isinstance(query, FoldOutput)
        self.running.set()
        while self.held and not self.allowed.acquire(timeout=0.01):
            if cancellation.is_set:
                self.stopped.set()
                raise QueryCancelled("stopped")
        if self.error is not None:
            raise self.error
        return [self._write(Path(query.folder), at) for at in range(0, len(self.rows), 2)]

    def _write(self, folder: Path, at: int) -> WrittenFile:
        rows, file = pa.RecordBatch.from_pylist(self.rows[at : at + 2]), folder / f"{at}"
        with pa.ipc.new_stream(file, rows.schema) as stream:
            stream.write_batch(rows)
        return WrittenFile(str(file), self.is_complete)


class WrittenFile(NamedTuple):
    """A row of an answer."""

    file: str
    is_complete: bool


class PastSearchSite:
    """A site with an up-to-date lake, and searches of its past."""

    def __init__(self, folder: Path, options: PastOptions) -> None:
        self.lake = Lake(folder)
        self.lake.pipeline.mkdir(parents=True)
        self.harness = ConnectionHarness(
            source(),
            source("guests", "acme:guest"),
            source("strangers", "acme:stranger"),
            journal=Journal.open(self.lake.journal),
        )
        self.spark = CannedQueries(self.lake)
        self.searches = AsOfSearches(self.harness.store, self.harness.decider.world, self.spark, lambda: CLOCK, options)
        self.harness.searching.as_of = self.searches.open
        self.reach(10**6)

    def reach(self, seq: int) -> None:
        publish_watermark(self.lake.watermark, Watermark(seq))

    async def subscribe(self, at: str = PAST, source: int = 0, **value: Any) -> tuple[Searcher, str]:
        before = len(self.harness.link.published)
        self.harness.deliver(searching("subscribe", value, at_historical_timestamp=at), source=source)
        await until(lambda: len(self.harness.link.published) > before)
        return Searcher(self.harness, source), self.harness.answers()[before]["value"]["subscriptionId"]

    async def ends(self, at: str = PAST, **value: Any) -> tuple[Any, ...]:
        """Return how a search ends: `complete`, or its status and code."""
        searcher, key = await self.subscribe(at, **value)
        searcher.ask(key, 9)
        await until(lambda: searcher.end(key) is not None)
        if searcher.end(key) == "complete":
            return ("complete",)
        return searcher.failure(key)["status"], searcher.failure(key)["error"]

    async def wait_for_open_files(self, count: int) -> None:
        """Wait for a number of open spools, the only open files.

        A thread may close one after the response.
        """
        spools = f"{self.lake.folder}/"
        await until(lambda: sum(spools in it and it.endswith(" (deleted)") for it in open_files()) == count)
        assert not self.lake.results.exists() or list(self.lake.results.iterdir()) == []


@pytest.fixture
async def make_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., PastSearchSite]]:
    monkeypatch.setattr(module, "query", lambda *arguments: arguments[-1])
    made: list[PastSearchSite] = []

    def make(**options: Any) -> PastSearchSite:
        made.append(PastSearchSite(tmp_path / "data", PastOptions(**{"open_timeout": 30.0, **options})))
        return made[-1]

    yield make
    for past in made:
        past.searches.close()
        await past.harness.close()


async def test_past_things_are_sent_in_pages_with_one_spark_query(make_past: Callable[..., PastSearchSite]) -> None:
    past = make_past()
    for number in range(5):
        await has_thing(past.harness, f"lamp-{number}", {"attributes": {"a": "now"}})
    for number in (3, 1, 4, 0, 2):
        past.spark.has(f"lamp-{number}", a=number)
    past.spark.has("never", a=9)
    searcher, key = await past.subscribe(options="size(2),sort(-attributes/a)")
    pages = []
    for demand in (1, 2):
        pages = await searcher.request(key, demand)
    assert [[thing["attributes"]["a"] for thing in page] for page in pages] == [[4, 3], [2, 1], [0]]
    assert searcher.messages(key) == ["created", "next", "next", "next", "complete"]
    assert past.spark.requests == 1
    await past.wait_for_open_files(0)  # the last page was complete


async def test_the_current_policy_applies_when_collecting_and_for_every_page(
    make_past: Callable[..., PastSearchSite],
) -> None:
    past = make_past()
    for number in range(3):
        await has_thing(past.harness, f"lamp-{number}", policy=_shared())
        past.spark.has(f"lamp-{number}", a=number, b=number)
    await has_thing(past.harness, "secret")
    past.spark.has("secret", a=9)
    guest, key = await past.subscribe(source=1, filter="not(eq(attributes/b,1))", options="size(1)")
    assert await guest.request(key) == [[_readable("lamp-0", a=0)]]
    # An unreadable field equals nothing; from now on they cannot read the second thing at all.
    resources = {"thing:/x": {"grant": ["READ"], "revoke": []}}
    past.harness.deliver(document("acme.site/lamp-1/policies/commands/modify", "/entries/GUEST/resources", resources))
    await until(lambda: past.harness.answers()[-1].get("status") == 204)
    assert (await guest.request(key))[1:] == [[_readable("lamp-2", a=2)]]
    assert guest.end(key) == "complete"
    owner, key = await past.subscribe(filter="not(eq(attributes/b,1))")
    (page,) = await owner.request(key)
    assert [thing["thingId"] for thing in page] == [
        "acme.site:lamp-0",
        "acme.site:lamp-1",
        "acme.site:lamp-2",
        "acme.site:secret",
    ]


async def test_states_from_before_a_deletion_are_found_by_those_who_could_read_them_then(
    make_past: Callable[..., PastSearchSite],
) -> None:
    past = make_past()
    await has_thing(past.harness, "lamp-1", policy=_shared())
    for path in ("/attributes/a", "/attributes/b"):
        assert (await past.harness.ask(command("modify", path, 1, name="lamp-1")))["status"] == 201
    deleted = command("delete", name="lamp-1"), document("acme.site/lamp-1/policies/commands/delete")
    for payload in deleted:
        assert (await past.harness.ask(payload))["status"] == 204
    past.spark.has("lamp-1", a=1, b=2)
    everything = {"thingId": "acme.site:lamp-1", "policyId": "acme.site:lamp-1", "attributes": {"a": 1, "b": 2}}

    async def found_by(source: int) -> list[Any]:
        searcher, key = await past.subscribe(source=source)
        return [thing for page in await searcher.request(key) for thing in page]

    assert await found_by(0) == [everything]
    assert await found_by(1) == [_readable("lamp-1", a=1)]
    # A stranger takes both ids over.
    created = command("create", value={"_policy": policy("acme:stranger")}, name="lamp-1")
    assert (await past.harness.ask(created, source=2))["status"] == 201
    assert [await found_by(source) for source in range(3)] == [[everything], [_readable("lamp-1", a=1)], []]


async def test_other_tasks_run_while_many_policies_are_read(
    make_past: Callable[..., PastSearchSite], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLICE_SECONDS", 0.0)
    candidate = Candidate("acme.site:lamp", 1, PAST, PAST, "{}", matches=True)
    found = [CandidateAccess(candidate, StateGuard(f"acme.site:p{each}", "acme.site")) for each in range(20)]
    looking = asyncio.create_task(make_past().searches.accesses(found, ("acme:owner",)))
    turns = 0
    while not looking.done():
        await asyncio.sleep(0)
        turns += 1
    assert await looking == {it.guard: None for it in found}
    assert turns >= 20


def _shared() -> dict[str, Any]:
    owned = policy("acme:owner")
    return {"entries": {**owned["entries"], "GUEST": GUEST}}


def _readable(name: str, **attributes: Any) -> dict[str, Any]:
    """A thing for a subject that can read only these attributes."""
    return {"thingId": f"acme.site:{name}", "attributes": attributes}


async def test_design_8_32_a_lake_that_lags_too_long_is_503(make_past: Callable[..., PastSearchSite]) -> None:
    past = make_past(open_timeout=0.3)
    await has_thing(past.harness, "lamp-1")
    past.reach(0)
    now, later = (_text(NOW + timedelta(microseconds=it)) for it in (0, 1))
    assert await past.ends(now) == ("complete",), "nothing from before it is missing"
    assert past.spark.requests == 1
    assert await past.ends(later) == (503, "thing-search:past.behind")
    assert past.spark.requests == 1
    past.searches.options = PastOptions(open_timeout=30)
    searcher, key = await past.subscribe(later)
    searcher.ask(key)
    past.reach(past.harness.journal.newest_seq())
    await until(lambda: searcher.end(key) == "complete")


async def test_design_8_32_a_timestamp_in_the_future_is_400(make_past: Callable[..., PastSearchSite]) -> None:
    past = make_past()
    assert await past.ends(_text(CLOCK + timedelta(microseconds=1))) == (400, "header.invalid")
    assert await past.ends(_text(CLOCK)) == ("complete",)
    assert await past.ends("0001-01-01T00:00:00Z") == ("complete",)


def _text(instant: datetime) -> str:
    return instant.isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StoreUnavailable("killed"), (503, "thing-search:past.unreachable")),
        (QueryTimeout("60 s"), (503, "thing-search:budget.exceeded")),
        (QueryRefused("odd"), (500, "internalerror")),
    ],
    ids=lambda it: type(it).__name__,
)
async def test_a_failed_spark_query_fails_at_the_first_request(
    make_past: Callable[..., PastSearchSite], error: StoreError, expected: tuple[Any, ...]
) -> None:
    past = make_past()
    past.spark.error = error
    assert await past.ends() == expected
    await past.wait_for_open_files(0)


async def test_the_size_of_a_result_is_limited(make_past: Callable[..., PastSearchSite]) -> None:
    past = make_past(bound=SpoolLimits(records=1))
    for name in ("lamp-1", "lamp-2"):
        await has_thing(past.harness, name)
        past.spark.has(name)
    assert await past.ends() == (503, "thing-search:budget.exceeded")
    await past.wait_for_open_files(0)


async def test_the_results_of_a_users_open_searches_are_limited_together(
    make_past: Callable[..., PastSearchSite],
) -> None:
    past = make_past(bound=SpoolLimits(bytes=1000))
    for name in ("lamp-1", "lamp-2"):
        await has_thing(past.harness, name, policy=_shared())
        past.spark.has(name, a="x" * 300)
    opened = []
    for _ in range(2):
        searcher, key = await past.subscribe(options="size(1)")
        assert len(await searcher.request(key)) == 1
        opened.append((searcher, key))
    assert await past.ends() == (429, "thing-search:search.limit")
    guest, key = await past.subscribe(source=1, options="size(1)")
    assert len(await guest.request(key)) == 1
    guest.cancel(key)
    searcher, key = opened[0]
    searcher.cancel(key)
    await past.wait_for_open_files(1)
    assert await past.ends() == ("complete",)
    await past.wait_for_open_files(1)
    searcher, key = opened[1]
    searcher.cancel(key)
    await past.wait_for_open_files(0)
    assert past.searches.result_bytes.used == 0


async def test_a_user_without_room_for_results_is_refused_before_the_query(
    make_past: Callable[..., PastSearchSite],
) -> None:
    past = make_past(bound=SpoolLimits(bytes=1000))
    share = past.searches.result_bytes.peer(("acme:owner",), ("acme:owner",))
    share.take(2000)
    assert await past.ends() == (429, "thing-search:search.limit")
    assert past.spark.requests == 0
    share.give_back(2000)
    assert await past.ends() == ("complete",)


async def test_a_result_that_is_not_collected_to_the_end_takes_no_space(
    make_past: Callable[..., PastSearchSite],
) -> None:
    past = make_past(bound=SpoolLimits(bytes=1000))
    for name in ("lamp-1", "lamp-2", "lamp-3", "lamp-4"):
        await has_thing(past.harness, name)
        past.spark.has(name, a="x" * 300)
    assert await past.ends() == (503, "thing-search:budget.exceeded")
    assert past.searches.result_bytes.used == 0


async def test_a_result_that_spark_has_cut_is_refused(make_past: Callable[..., PastSearchSite]) -> None:
    past = make_past()
    await has_thing(past.harness, "lamp-1")
    past.spark.has("lamp-1")
    past.spark.is_complete = False
    assert await past.ends() == (503, "thing-search:budget.exceeded")
    await past.wait_for_open_files(0)


def test_results_that_a_killed_service_left_behind_are_removed_at_the_start(
    make_past: Callable[..., PastSearchSite],
) -> None:
    past = make_past()
    with past.searches.result_folder() as folder:
        Path(folder, "part").touch()
        AsOfSearches(past.harness.store, past.harness.decider.world, past.spark, lambda: CLOCK)
        assert not Path(folder).exists()


async def test_a_search_that_is_cancelled_or_idle_stops_spark_and_leaves_nothing(
    make_past: Callable[..., PastSearchSite],
) -> None:
    past = make_past()
    past.spark.held = True
    searcher, key = await past.subscribe()
    searcher.ask(key)
    await until(past.spark.running.is_set)
    searcher.cancel(key)
    await until(past.spark.stopped.is_set)
    assert searcher.messages(key) == ["created"]
    past.spark.held = False
    for name in ("lamp-1", "lamp-2"):
        await has_thing(past.harness, name)
        past.spark.has(name)
    searcher, key = await past.subscribe(options="size(1)")
    assert len(await searcher.request(key)) == 1
    await past.wait_for_open_files(1)

    def has_idled() -> bool:
        # A subscription is not idle while its page is being read.
        past.harness.clock.advance(120)
        past.harness.streams.sweep()
        return searcher.end(key) == "failed"

    await until(has_idled)
    await past.wait_for_open_files(0)


async def test_a_page_ends_at_its_limit_of_bytes(make_past: Callable[..., PastSearchSite]) -> None:
    past = make_past()
    for number in range(5):
        await has_thing(past.harness, f"lamp-{number}")
        past.spark.has(f"lamp-{number}", a="x" * 300)
    feed = past.searches.open(SearchRequest(ThingQuery(None, read_options(None).order), 25, None, ("acme:owner",)), 0)
    assert isinstance(feed, AsOfFeed)
    position, lengths, then = 0, [], PageEnd.MORE
    while then is PageEnd.MORE:
        page: Page = await feed.page(position, 3, 900)
        position, then = page.position, page.then
        lengths += [len(msgspec.json.decode(it)) for it in page.elements]
    assert (lengths, then) == ([2, 2, 1], PageEnd.END)
    feed.close()
    await past.wait_for_open_files(0)


async def test_several_requested_pages_are_together_not_larger_than_one_may_be(
    make_past: Callable[..., PastSearchSite],
) -> None:
    past = make_past()
    for number in range(9):
        await has_thing(past.harness, f"lamp-{number}")
        past.spark.has(f"lamp-{number}", text="x" * 1000)
    request = SearchRequest(ThingQuery(None, read_options(None).order), 2, None, ("acme:owner",))
    feed = past.searches.open(request, 0)
    assert isinstance(feed, AsOfFeed)
    position, found = 0, list[Page]()
    while not found or found[-1].then is not PageEnd.END:
        found.append(await feed.page(position, 100, 3000))
        position = found[-1].position
    assert max(sum(map(len, page.elements)) for page in found) <= 3000
    assert sum(page.count(b'"thingId"') for each in found for page in each.elements) == 9
    feed.close()
