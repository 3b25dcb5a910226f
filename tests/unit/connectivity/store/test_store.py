"""The store's async interface: group commit, decided changes that are not durable, and disk failures."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from connectivity.store.options import StoreOptions
from connectivity.store.store import Store
from mappings.model.signals import HistoryQuery
from spark_store.errors import RevisionConflict, StoreUnavailable, Unstorable
from spark_store.journal import erasure
from spark_store.journal.journal import Journal
from spark_store.records import Change
from tests.support.failing_sqlite import Fragile
from tests.support.gated_journal import GatedJournal
from tests.support.journal_entries import (
    ALL,
    LAMP,
    MUCH,
    POLICY,
    NanoClock,
    answered,
    change,
    delivery,
    history,
    revisions,
    snapshot,
)
from tests.support.oracles.search_index import expected, found
from tests.support.state_change import change as to_state
from tests.support.wait import PATIENCE, wait_until

NOW = datetime(2030, 1, 15, tzinfo=UTC)
HASTY = StoreOptions(probe_min=0.001, probe_max=0.002)


@pytest.fixture
def gated_journal() -> GatedJournal:
    return GatedJournal()


@pytest.fixture
async def store(gated_journal: GatedJournal) -> AsyncIterator[Store]:
    made = Store(gated_journal, HASTY)
    yield made
    gated_journal.is_open.set()
    await made.close()


@pytest.fixture
def fragile(tmp_path: Path) -> Journal:
    return Journal.open(tmp_path / "journal.db", factory=Fragile)


# following


async def test_subscribers_are_woken_after_the_waiters_of_the_commit(store: Store, gated_journal: GatedJournal) -> None:
    await store.commits.submit([change(LAMP, 1)])
    notifications: list[object] = []
    store.tail.follow(lambda: notifications.append(store.tail.newest))
    durable = store.commits.submit([change(LAMP, 2), change(POLICY, 1)])
    durable.add_done_callback(lambda _: notifications.append("durable"))
    await store.commits.barrier()
    await wait_until(lambda: len(notifications) == 2)
    assert notifications == ["durable", 3]
    assert [found.event.revision for found in store.tail.after(1)] == [2, 1]
    gated_journal.trouble = StoreUnavailable("the disk is full")
    with pytest.raises(StoreUnavailable):
        await store.commits.submit([change(LAMP, 3)])
    gated_journal.trouble = None
    await store.commits.wait_available()
    assert notifications == ["durable", 3, 3]
    await store.commits.submit([change(LAMP, 3)])
    await wait_until(lambda: len(notifications) == 4)
    assert [found.seq for found in store.tail.after(1)] == [2, 3, 4]


async def test_policy_watchers_are_notified_before_the_waiters_and_the_subscribers(
    store: Store, gated_journal: GatedJournal
) -> None:
    notifications: list[object] = []

    def record(found: object, _: str) -> None:
        notifications.append(found)

    store.policy_changes.watch(record)
    store.tail.follow(lambda: notifications.append("followers"))
    store.commits.submit([change(LAMP, 1), change(POLICY, 1)]).add_done_callback(
        lambda _: notifications.append("durable")
    )
    await store.commits.barrier()
    await wait_until(lambda: len(notifications) == 3)
    assert notifications == [{POLICY}, "durable", "followers"]
    notifications.clear()
    gated_journal.trouble = StoreUnavailable("the disk is full")
    with pytest.raises(StoreUnavailable):
        await store.commits.submit([change(POLICY, 2)])
    gated_journal.trouble = None
    await store.commits.wait_available()
    assert {POLICY} not in notifications, "what is not durable has not happened"
    await store.commits.execute(lambda _: None, forgets=store.snapshot(LAMP))
    assert {LAMP} in notifications, "an erased entity is readable by no subject"
    store.policy_changes.leave(record)
    await store.commits.submit([change(POLICY, 2)])
    assert {POLICY} not in notifications


# group commit


async def test_a_change_is_durable_when_its_future_is_done(store: Store, gated_journal: GatedJournal) -> None:
    gated_journal.is_open.clear()
    durable = store.commits.submit([change(LAMP, 1)])
    await wait_until(lambda: gated_journal.threads)
    assert not durable.done()
    assert gated_journal.latest(LAMP) == 0
    gated_journal.is_open.set()
    await durable
    assert gated_journal.latest(LAMP) == 1


async def test_a_step_leaves_changes_after_it_to_the_next_commit_and_not_other_steps(
    store: Store, gated_journal: GatedJournal
) -> None:
    gated_journal.is_open.clear()
    store.commits.submit([change(LAMP, 1)])
    await wait_until(lambda: gated_journal.threads)
    store.commits.submit([change(LAMP, 2)])
    steps = [store.commits.execute(lambda _: None) for _ in range(3)]
    behind = store.commits.submit([change(LAMP, 3)])
    gated_journal.is_open.set()
    await asyncio.gather(*steps, behind)
    assert [len(batch) for batch in gated_journal.commits] == [1, 1, 1]


async def test_commits_run_in_a_worker_and_writes_on_the_loop(store: Store, gated_journal: GatedJournal) -> None:
    await store.commits.submit([change(LAMP, 1)])
    assert gated_journal.threads
    assert threading.main_thread().name not in gated_journal.threads


async def test_changes_submitted_in_one_event_loop_turn_share_a_commit(
    store: Store, gated_journal: GatedJournal
) -> None:
    await asyncio.gather(*[store.commits.submit([change(LAMP, revision)]) for revision in range(1, 6)])
    assert gated_journal.commits == [[1, 2, 3, 4, 5]]


async def test_changes_submitted_during_a_commit_go_into_the_next_commit(
    store: Store, gated_journal: GatedJournal
) -> None:
    gated_journal.is_open.clear()
    first = store.commits.submit([change(LAMP, 1)])
    await wait_until(lambda: gated_journal.threads)
    others = [store.commits.submit([change(LAMP, revision)]) for revision in (2, 3, 4)]
    gated_journal.is_open.set()
    await asyncio.gather(first, *others)
    assert gated_journal.commits == [[1], [2, 3, 4]]


async def test_changes_of_event_loop_turns_that_follow_each_other_share_a_commit(
    store: Store, gated_journal: GatedJournal
) -> None:
    durable = []
    for revision in (1, 2, 3):
        durable.append(store.commits.submit([change(LAMP, revision)]))
        await asyncio.sleep(0)
    await asyncio.gather(*durable)
    assert gated_journal.commits == [[1, 2, 3]]


async def test_a_large_commit_is_written_and_reported_in_several_turns(store: Store) -> None:
    """Waiters are notified in order, and a barrier after all of them."""
    turns = 0
    reported: list[tuple[int, int]] = []

    def turn() -> None:
        nonlocal turns
        turns += 1
        if len(reported) < 10:
            asyncio.get_running_loop().call_soon(turn)

    for number in range(10):
        changes = [change(LAMP, number * 30 + revision) for revision in range(1, 31)]
        store.commits.submit(changes).add_done_callback(lambda _, number=number: reported.append((number, turns)))  # type: ignore[misc]
    turn()
    await store.commits.barrier()
    assert [number for number, _ in reported] == list(range(10))
    assert len({at for _, at in reported}) >= 5


async def test_a_barrier_does_not_overtake_durable_changes_that_are_not_reported_yet(store: Store) -> None:
    reported: list[str] = []
    for number in range(10):
        changes = [change(LAMP, number * 30 + revision) for revision in range(1, 31)]
        store.commits.submit(changes).add_done_callback(lambda _: reported.append("changes"))
    await wait_until(lambda: reported)
    store.commits.barrier().add_done_callback(lambda _: reported.append("barrier"))
    await wait_until(lambda: "barrier" in reported)
    assert reported == ["changes"] * 10 + ["barrier"]


async def test_a_commit_is_bounded_and_order_is_kept(gated_journal: GatedJournal) -> None:
    """The changes of one call are never parted."""
    store = Store(gated_journal, StoreOptions(commit_changes=100))
    calls = [[change(LAMP, revision) for revision in range(n, n + 30)] for n in range(1, 301, 30)]
    done: list[int] = []
    for call in calls:
        last = call[-1].events[0].revision
        store.commits.submit(call).add_done_callback(lambda _, last=last: done.append(last))  # type: ignore[misc]
    await store.commits.barrier()
    assert [number for batch in gated_journal.commits for number in batch] == list(range(1, 301))
    assert all(len(batch) % 30 == 0 and len(batch) <= 180 for batch in gated_journal.commits)
    assert len(gated_journal.commits) > 1
    await wait_until(lambda: len(done) == 10)
    assert done == list(range(30, 301, 30))
    await store.close()


async def test_each_commit_is_timed(gated_journal: GatedJournal) -> None:
    seconds: list[float] = []
    store = Store(gated_journal, on_commit=seconds.append)
    await store.commits.submit([change(LAMP, 1)])
    await store.commits.submit([change(LAMP, 2)])
    assert len(seconds) == 2
    assert all(0 <= one < 10 for one in seconds)
    await store.close()


async def test_a_canceled_waiter_does_not_cancel_the_commit_of_the_others(
    store: Store, gated_journal: GatedJournal
) -> None:
    gated_journal.is_open.clear()
    first, second = store.commits.submit([change(LAMP, 1)]), store.commits.submit([change(LAMP, 2)])
    first.cancel()
    gated_journal.is_open.set()
    await second
    assert gated_journal.latest(LAMP) == 2


# barriers


async def test_a_barrier_waits_for_everything_before_it(store: Store, gated_journal: GatedJournal) -> None:
    assert store.commits.barrier().done()
    gated_journal.is_open.clear()
    submitted = store.commits.submit([change(LAMP, 1)])
    waiting = store.commits.barrier()
    await wait_until(lambda: gated_journal.threads)
    committing = store.commits.barrier()
    assert not waiting.done()
    assert not committing.done()
    gated_journal.is_open.set()
    await asyncio.gather(waiting, committing)
    assert submitted.done()
    assert gated_journal.latest(LAMP) == 1


async def test_a_barrier_passes_when_a_change_before_it_cannot_be_stored(
    store: Store, gated_journal: GatedJournal
) -> None:
    """The caller that submitted it handles the error."""
    wrong, right = store.commits.submit([change(LAMP, 7)]), store.commits.submit([change(POLICY, 1)])
    await store.commits.barrier()
    assert isinstance(wrong.exception(), RevisionConflict)
    assert right.done()
    assert gated_journal.latest(POLICY) == 1


async def test_a_barrier_fails_when_the_commit_before_it_fails(store: Store, gated_journal: GatedJournal) -> None:
    gated_journal.trouble = StoreUnavailable("disk full")
    submitted = store.commits.submit([change(LAMP, 1)])
    with pytest.raises(StoreUnavailable):
        await store.commits.barrier()
    with pytest.raises(StoreUnavailable):
        await submitted
    await store.commits.barrier()
    gated_journal.trouble = None


# decided changes


async def test_a_state_is_seen_before_it_is_durable(store: Store, gated_journal: GatedJournal) -> None:
    gated_journal.is_open.clear()
    store.commits.stage(change(LAMP, 1))
    assert store.snapshot(LAMP) == snapshot(LAMP, 1)
    durable = store.commits.submit([change(LAMP, 1)])
    await wait_until(lambda: gated_journal.threads)
    later = store.commits.submit([change(LAMP, 2)])
    assert store.snapshot(LAMP) == snapshot(LAMP, 2)
    assert gated_journal.snapshot(LAMP) is None
    gated_journal.is_open.set()
    await durable
    assert store.snapshot(LAMP) == snapshot(LAMP, 2)
    await later
    assert store.snapshot(LAMP) == snapshot(LAMP, 2)


async def test_an_answer_is_known_before_it_is_durable(store: Store, gated_journal: GatedJournal) -> None:
    gated_journal.is_open.clear()
    assert store.stored_answer(delivery(1)) is None
    durable = store.commits.submit([change(LAMP, 1, answer=answered(1))])
    await wait_until(lambda: gated_journal.threads)
    assert store.stored_answer(delivery(1)) == b"done"
    assert gated_journal.answer(delivery(1)) is None
    gated_journal.is_open.set()
    await durable
    assert store.stored_answer(delivery(1)) == gated_journal.answer(delivery(1)) == b"done"


async def test_a_name_that_comes_again_has_its_newest_answer(store: Store) -> None:
    first = store.commits.submit([change(LAMP, 1, answer=answered(1, b"old"))])
    second = store.commits.submit([change(LAMP, 2, answer=answered(1, b"new"))])
    assert store.stored_answer(delivery(1)) == b"new"
    await asyncio.gather(first, second)
    assert store.stored_answer(delivery(1)) == b"new"


async def test_an_answer_beyond_the_redelivery_window_is_not_known(gated_journal: GatedJournal) -> None:
    """Brokers reuse message names, so a delivery after so long is a new one."""
    nanoseconds = NanoClock()
    gated_journal._clock = nanoseconds
    store = Store(gated_journal, StoreOptions(redelivery_window=10), now=nanoseconds)
    await store.commits.submit([change(LAMP, 1, answer=answered(1))])
    nanoseconds.now += 10 * 10**9
    assert store.stored_answer(delivery(1)) == b"done"
    nanoseconds.now += 1
    assert store.stored_answer(delivery(1)) is None
    await store.close()


async def test_a_state_that_is_not_in_memory_is_read(gated_journal: GatedJournal) -> None:
    gated_journal.append(history(LAMP, 3))
    store = Store(gated_journal)
    assert store.snapshot(LAMP) == snapshot(LAMP, 3)
    assert store.snapshot(LAMP) is store.snapshot(LAMP)
    assert store.snapshot(POLICY) is None
    await store.close()


async def test_old_answers_are_forgotten_as_new_ones_come(gated_journal: GatedJournal) -> None:
    nanoseconds = NanoClock()
    gated_journal._clock = nanoseconds
    store = Store(gated_journal, StoreOptions(redelivery_window=10), now=nanoseconds)
    for revision in range(1, 401):
        nanoseconds.now += 100_000_000
        await store.commits.submit([change(LAMP, revision, answer=answered(revision))])
    known = [number for number in range(1, 401) if gated_journal.answer(delivery(number)) is not None]
    assert known[-1] == 400
    assert 100 <= len(known) <= 100 + 64
    await store.close()


# changes that cannot be stored


@pytest.mark.parametrize(
    ("wrong", "error"), [(change(LAMP, 5), RevisionConflict), (Change((), (snapshot(LAMP, 2),)), Unstorable)]
)
async def test_a_change_that_cannot_be_stored_fails_alone(
    store: Store, gated_journal: GatedJournal, wrong: Change, error: type[Exception]
) -> None:
    """Changes of the same call fail with it; other calls are stored; its state is forgotten."""
    before = store.commits.submit([change(LAMP, 1)])
    failing = store.commits.submit([change(POLICY, 1), wrong])
    after = store.commits.submit([change(LAMP, 2)])
    await asyncio.gather(before, after)
    with pytest.raises(error):
        await failing
    assert (gated_journal.latest(LAMP), gated_journal.latest(POLICY)) == (2, 0)
    assert store.commits.is_available
    assert store.snapshot(POLICY) is None
    await store.commits.submit([change(POLICY, 1), change(LAMP, 3)])


# trouble


async def test_a_failed_commit_never_happened(store: Store, gated_journal: GatedJournal) -> None:
    """Waiters are notified, decided states and responses are forgotten, later changes fail at once."""
    await store.commits.submit([change(LAMP, 1)])
    gated_journal.is_open.clear()
    gated_journal.trouble = StoreUnavailable("disk full: free space")
    committing = store.commits.submit([change(LAMP, 2, answer=answered(2))])
    await wait_until(lambda: gated_journal._batch)
    waiting = store.commits.submit([change(LAMP, 3)])
    gated_journal.is_open.set()
    for future in (committing, waiting):
        with pytest.raises(StoreUnavailable, match="free space"):
            await future
    assert not store.commits.is_available
    assert store.commits.reason == "disk full: free space"
    assert store.snapshot(LAMP) == snapshot(LAMP, 1)
    assert store.stored_answer(delivery(2)) is None
    store.commits.stage(change(LAMP, 2))
    refused = store.commits.submit([change(LAMP, 2)])
    assert isinstance(refused.exception(), StoreUnavailable)
    assert store.snapshot(LAMP) == snapshot(LAMP, 1)
    gated_journal.trouble = None


async def test_a_probe_finds_out_when_writing_works_again(store: Store, gated_journal: GatedJournal) -> None:
    gated_journal.trouble = StoreUnavailable("disk full")
    with pytest.raises(StoreUnavailable):
        await store.commits.submit([change(LAMP, 1)])
    back = asyncio.ensure_future(store.commits.wait_available())
    gated_journal.trouble = StoreUnavailable("still full")
    await wait_until(lambda: gated_journal.probes >= 3)
    assert not back.done()
    assert store.commits.reason == "still full"
    gated_journal.trouble = None
    await back
    assert store.commits.is_available
    assert store.commits.reason is None
    await store.commits.submit([change(LAMP, 1)])
    assert gated_journal.latest(LAMP) == 1


async def test_changes_that_do_not_fit_into_one_commit_are_stored_in_smaller_commits(
    store: Store, gated_journal: GatedJournal
) -> None:
    """A caller that was notified of a failed write repeats all of it until it is stored."""
    gated_journal.room = 3
    first = 1
    while first <= 20:
        await store.commits.wait_available()
        waiting = [store.commits.submit([change(LAMP, revision)]) for revision in range(first, 21)]
        done = await asyncio.gather(*waiting, return_exceptions=True)
        first += sum(it is None for it in done)
    assert [revision for commit in gated_journal.commits for revision in commit] == list(range(1, 21))
    assert max(map(len, gated_journal.commits)) <= 3
    gated_journal.room = 1_000_000
    for number in range(12):
        await store.commits.submit([change(LAMP, 21 + number)])
    await asyncio.gather(*(store.commits.submit([change(LAMP, revision)]) for revision in range(33, 133)))
    assert max(map(len, gated_journal.commits)) > 64, "as many as ever go together again"


async def test_a_failed_commit_without_a_waiter_logs_no_unretrieved_exception(
    store: Store, gated_journal: GatedJournal, caplog: pytest.LogCaptureFixture
) -> None:
    gated_journal.trouble = StoreUnavailable("disk full")
    store.commits.submit([change(LAMP, 1)])
    await wait_until(lambda: not store.commits.is_available)
    store.commits.submit([change(LAMP, 1)])
    gated_journal.trouble = None
    await store.commits.wait_available()
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize("late", [False, True], ids=["not carried out", "carried out"])
async def test_when_the_nth_operation_fails_every_change_is_stored_once_or_reported(
    fragile: Journal, late: bool
) -> None:
    """For each n: waiters get the true outcome, and the recovered history continues without gap or repeat."""
    store = Store(fragile, HASTY)
    await store.commits.submit([change(LAMP, 1)])
    newest, failures = 1, 0
    for number in range(1, 30):
        Fragile.arm(number, late)
        batch = [change(LAMP, newest + 1, answer=answered(newest + 1)), change(LAMP, newest + 2)]
        try:
            await store.commits.submit(batch)
            newest += 2
        except StoreUnavailable:
            failures += 1
            Fragile.arm(0)
            await asyncio.wait_for(store.commits.wait_available(), PATIENCE)
            found = store.snapshot(LAMP)
            stored = 0 if found is None else found.revision
            assert stored in (newest, newest + 2)
            assert (store.stored_answer(delivery(newest + 1)) is not None) == (stored > newest)
            newest = stored
        Fragile.arm(0)
        assert revisions(fragile.events(LAMP, 1, ALL, 1000, MUCH)) == list(range(1, newest + 1))
    assert failures >= 8
    await store.commits.submit([change(LAMP, newest + 1)])
    await store.close()


async def test_a_full_disk_is_reported_and_work_continues_with_free_space(tmp_path: Path) -> None:
    """A real SQLITE_FULL, through the file's size limit."""
    journal = Journal.open(tmp_path / "journal.db")
    store = Store(journal, HASTY)
    await store.commits.submit([change(LAMP, 1)])
    (pages,) = journal._writer.execute("PRAGMA page_count").fetchone()
    journal._writer.execute(f"PRAGMA max_page_count = {pages + 2}")
    large = b'"' + b"x" * 30_000 + b'"'
    durable = [store.commits.submit([change(LAMP, revision, large)]) for revision in (2, 3)]
    for future in durable:
        with pytest.raises(StoreUnavailable, match="free space"):
            await future
    assert not store.commits.is_available
    other = sqlite3.connect(tmp_path / "journal.db")
    assert other.execute("SELECT max(revision) FROM entries").fetchone() == (1,)
    other.close()
    roomy = Journal.probe

    def with_room(self: Journal) -> None:
        self._writer.execute("PRAGMA max_page_count = 1000000")
        roomy(self)

    journal.probe = with_room.__get__(journal)  # type: ignore[method-assign]
    await asyncio.wait_for(store.commits.wait_available(), PATIENCE)
    await asyncio.gather(*[store.commits.submit([change(LAMP, revision, large)]) for revision in (2, 3)])
    assert revisions(journal.events(LAMP, 1, ALL, 10, MUCH)) == [1, 2, 3]
    await store.close()


# closing


async def test_closing_the_store_makes_the_submitted_changes_durable(tmp_path: Path) -> None:
    store = Store(Journal.open(tmp_path / "journal.db"))
    durable = [store.commits.submit([change(LAMP, revision)]) for revision in range(1, 200)]
    await store.close()
    await store.close()
    assert all(future.exception() is None for future in durable)
    late = store.commits.submit([change(LAMP, 200)])
    assert isinstance(late.exception(), StoreUnavailable)
    journal = Journal.open(tmp_path / "journal.db")
    assert journal.latest(LAMP) == 199
    journal.close()


async def test_closing_while_the_store_is_unavailable_ends(gated_journal: GatedJournal) -> None:
    store = Store(gated_journal, HASTY)
    gated_journal.trouble = StoreUnavailable("disk full")
    durable = store.commits.submit([change(LAMP, 1)])
    await asyncio.wait_for(store.close(), PATIENCE)
    assert isinstance(durable.exception(), StoreUnavailable)


# histories


async def test_a_history_page_waits_for_changes_submitted_before_the_query(
    store: Store, gated_journal: GatedJournal
) -> None:
    """It waits also for changes that are not durable yet."""
    gated_journal.is_open.clear()
    store.commits.submit(history(LAMP, 5))
    range = store.open_range(HistoryQuery(LAMP, -3), NOW)
    reading = asyncio.ensure_future(store.page(range, 0, 10, MUCH))
    await wait_until(lambda: gated_journal.threads)
    assert not reading.done()
    gated_journal.is_open.set()
    found = await reading
    assert (revisions(found.events), found.ended) == ([3, 4, 5], True)


async def test_a_history_page_fails_when_the_commit_that_it_waits_for_fails(
    store: Store, gated_journal: GatedJournal
) -> None:
    gated_journal.is_open.clear()
    gated_journal.trouble = StoreUnavailable("disk full")
    store.commits.submit(history(LAMP, 5))
    range = store.open_range(HistoryQuery(LAMP), NOW)
    reading = asyncio.ensure_future(store.page(range, 0, 10, MUCH))
    await wait_until(lambda: gated_journal.threads)
    gated_journal.is_open.set()
    with pytest.raises(StoreUnavailable):
        await reading
    gated_journal.trouble = None
    await store.commits.wait_available()
    again = await store.page(range, 0, 10, MUCH)
    assert (again.events, again.ended) == ([], True)


# the search index


async def test_a_thing_erased_and_created_again_at_once_has_all_its_rows_in_the_index(
    store: Store, gated_journal: GatedJournal
) -> None:
    await store.commits.submit([to_state(LAMP, 1, {"attributes": {"a": 1, "b": 1}})])
    erased = store.commits.execute(
        lambda it: erasure.begin(it, "thing", LAMP.id, "", "operator"), forgets=store.snapshot(LAMP)
    )
    await store.commits.submit([to_state(LAMP, 2, {"attributes": {"a": 1, "b": 2}}, created=2)])
    await erased
    await store.commits.submit([to_state(LAMP, 3, {"attributes": {"a": 1, "b": 3}}, created=2)])
    assert gated_journal.read(found) == gated_journal.read(expected)
    assert len(gated_journal.read(found).values) == 3
