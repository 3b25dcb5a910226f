"""Users whose deliveries wait share the event loop's time; the clock is the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from connectivity.sources.turns import BACKLOG, MOST_DELIVERIES, RECENT, TURN_SECONDS, SourceTurns, UserTurns
from connectivity.store.commit import PendingCommit, Progress
from spark_store.records import Change
from tests.support.cpu_budget import at_most


class TurnsHarness:
    """A clock, and changes that become durable at a call of `commit`."""

    def __init__(self) -> None:
        self.now = 100.0
        self._pending: list[PendingCommit] = []
        self.progress = Progress(lambda: [self._pending])
        self.turns = SourceTurns(self.progress, lambda: self.now)

    def submit(self, weight: int) -> None:
        pending = PendingCommit([Change((), ())], asyncio.get_running_loop().create_future())
        pending.weight = weight
        self._pending.append(pending)
        self.progress.submits += 1

    def commit(self) -> None:
        self._pending.clear()
        self.progress.notify()

    def turn(self, user: UserTurns, seconds: float = 0.0, count: int = 1, weight: int = 0) -> bool:
        """Take a whole turn of so many seconds, if the user need not wait for it."""
        if not self.turns.begin(user):
            return False
        self.now += seconds
        if weight:
            self.submit(weight)
        self.turns.end(user, count)
        return True


async def passes(count: int = 3) -> None:
    """Let the event loop make some passes."""
    for _ in range(count):
        await asyncio.sleep(0)


async def waiting(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(work)
    await passes()
    return task


async def test_a_user_alone_never_waits() -> None:
    harness, user = TurnsHarness(), UserTurns()
    assert all(harness.turn(user, seconds=0.05, weight=BACKLOG) for _ in range(10))


async def test_a_user_alone_competes_from_the_first_turn_of_another_one_on() -> None:
    harness, busy, other = TurnsHarness(), UserTurns(), UserTurns()
    harness.turns.begin(busy)
    assert harness.turns.alone is busy, "its turns need not be noted"
    harness.submit(BACKLOG)
    assert harness.turn(other)
    assert harness.turns.alone is None
    assert harness.progress.is_shared
    await passes()
    assert not harness.turns.begin(busy), "all undurable changes are taken for its own"
    harness.commit()
    assert harness.turn(busy)
    await passes()
    harness.now += 2 * RECENT
    assert harness.turns.begin(other)
    assert harness.turns.alone is other
    assert not harness.progress.is_shared


async def test_a_single_user_holds_no_turn_after_earlier_competition() -> None:
    """Turns of a user alone are not ended, so that one which is held would never be passed on."""
    harness, busy, other = TurnsHarness(), UserTurns(), UserTurns()
    assert harness.turn(other)
    await passes()
    assert harness.turn(busy, seconds=0.001)
    await passes()
    harness.submit(BACKLOG)
    busy.submitted = harness.progress.submits
    resting = await waiting(harness.turns.wait(busy))
    harness.now += 2 * RECENT
    assert harness.turns.begin(busy), "a second source of the same user"
    assert harness.turns.alone is busy
    harness.commit()
    await resting
    assert harness.turns.alone is busy, "nothing is to be ended"
    assert harness.turn(other)
    await passes()
    assert harness.turn(busy)


async def test_a_competing_user_pauses_after_a_turn_as_long_as_it_took() -> None:
    harness, busy, other = TurnsHarness(), UserTurns(), UserTurns()
    assert harness.turn(other)
    await passes()
    assert harness.turn(busy, seconds=0.02)
    await passes()
    harness.now += 0.019
    assert not harness.turns.begin(busy)
    assert harness.turn(other)
    await passes()
    harness.now += 0.002
    assert harness.turn(busy)


async def test_a_source_competes_no_more_when_the_others_had_no_turn_for_a_while() -> None:
    harness, busy, other = TurnsHarness(), UserTurns(), UserTurns()
    assert harness.turn(other)
    await passes()
    assert harness.turn(busy, seconds=0.05)
    await passes()
    assert not harness.turns.begin(busy)
    other.ended -= RECENT
    assert harness.turn(busy)


async def test_users_who_compete_have_one_turn_in_each_pass_of_the_event_loop_and_alternate() -> None:
    harness, order = TurnsHarness(), []
    users = {name: UserTurns() for name in ("bad", "good")}
    for user in users.values():
        harness.turn(user)
        await passes()

    async def work(name: str) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            if not harness.turns.begin(users[name]):
                await harness.turns.wait(users[name])
            order.append(name)
            harness.turns.end(users[name], 1)

    await asyncio.gather(*map(work, ["bad"] * 4 + ["good"]))
    assert len(order) == 15
    assert order[:8].count("good") == 3, f"four sources of one user have no more turns than another's one: {order}"


async def test_a_user_with_undurable_changes_waits_for_a_commit_while_the_backlog_is_large() -> None:
    harness, busy, other = TurnsHarness(), UserTurns(), UserTurns()
    harness.turn(other)
    await passes()
    assert harness.turn(busy, weight=BACKLOG)
    await passes()
    assert not harness.turns.begin(busy)
    task = await waiting(harness.turns.wait(busy))
    assert not task.done()
    assert harness.turn(other, weight=1), "a user without undurable changes does not wait"
    harness.commit()
    await task
    harness.turns.end(busy, 1)


async def test_a_turn_gets_as_many_deliveries_as_fit_in_its_time() -> None:
    harness, user, other = TurnsHarness(), UserTurns(), UserTurns()
    assert harness.turn(other)
    found = []
    for seconds in (3.9, 10, *[0.05] * 6):
        await passes()
        harness.now += 0.1
        assert harness.turns.begin(user)
        found.append(user.most)
        harness.now += seconds * TURN_SECONDS
        harness.turns.end(user, user.most)
    assert found == [MOST_DELIVERIES, MOST_DELIVERIES // 4, 1, 2, 4, 8, 16, 16]
    await passes()
    harness.now += 2 * RECENT
    user.fitting = 1
    assert harness.turns.begin(user)
    assert user.most == MOST_DELIVERIES, "a user alone gets as many as always"


async def test_a_turn_that_was_given_to_a_cancelled_task_goes_to_the_next() -> None:
    harness, first, second, other = TurnsHarness(), UserTurns(), UserTurns(), UserTurns()
    for user in (first, second, other):
        harness.turn(user)
        await passes()
    assert harness.turns.begin(other)
    gone = await waiting(harness.turns.wait(first))
    heir = await waiting(harness.turns.wait(second))
    harness.turns.end(other, 1)
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait_for(heir, 5)
    with pytest.raises(asyncio.CancelledError):
        await gone
    harness.turns.end(second, 1)
    await passes()
    assert harness.turn(other)


async def test_thousands_of_users_in_line_cost_each_turn_little() -> None:
    harness, users = TurnsHarness(), [UserTurns() for _ in range(3)]
    assert harness.turn(users[0])
    assert harness.turn(users[1])
    await passes()
    assert harness.turns.begin(users[2])
    line = [asyncio.create_task(harness.turns.wait(UserTurns())) for _ in range(10_000)]
    await passes()
    with at_most(0.5):
        for task in line:
            harness.turns._pass_on()
            await task
