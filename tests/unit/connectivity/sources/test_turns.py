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


class World:
    """A clock, and changes that become durable when the test says so."""

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
    world, user = World(), UserTurns()
    assert all(world.turn(user, seconds=0.05, weight=BACKLOG) for _ in range(10))


async def test_a_user_alone_competes_from_the_first_turn_of_another_one_on() -> None:
    world, busy, other = World(), UserTurns(), UserTurns()
    world.turns.begin(busy)
    assert world.turns.alone is busy, "its turns need not be noted"
    world.submit(BACKLOG)
    assert world.turn(other)
    assert world.turns.alone is None
    assert world.progress.is_shared
    await passes()
    assert not world.turns.begin(busy), "all undurable changes are taken for its own"
    world.commit()
    assert world.turn(busy)
    await passes()
    world.now += 2 * RECENT
    assert world.turns.begin(other)
    assert world.turns.alone is other
    assert not world.progress.is_shared


async def test_a_user_alone_holds_no_turn_though_it_had_to_wait_when_another_one_competed() -> None:
    """Turns of a user alone are not ended, so that one which is held would never be passed on."""
    world, busy, other = World(), UserTurns(), UserTurns()
    assert world.turn(other)
    await passes()
    assert world.turn(busy, seconds=0.001)
    await passes()
    world.submit(BACKLOG)
    busy.submitted = world.progress.submits
    resting = await waiting(world.turns.wait(busy))
    world.now += 2 * RECENT
    assert world.turns.begin(busy), "a second source of the same user"
    assert world.turns.alone is busy
    world.commit()
    await resting
    assert world.turns.alone is busy, "nothing is to be ended"
    assert world.turn(other)
    await passes()
    assert world.turn(busy)


async def test_a_user_who_competes_rests_after_a_turn_as_long_as_it_took() -> None:
    world, busy, other = World(), UserTurns(), UserTurns()
    assert world.turn(other)
    await passes()
    assert world.turn(busy, seconds=0.02)
    await passes()
    world.now += 0.019
    assert not world.turns.begin(busy)
    assert world.turn(other)
    await passes()
    world.now += 0.002
    assert world.turn(busy)


async def test_a_source_competes_no_more_when_the_others_had_no_turn_for_a_while() -> None:
    world, busy, other = World(), UserTurns(), UserTurns()
    assert world.turn(other)
    await passes()
    assert world.turn(busy, seconds=0.05)
    await passes()
    assert not world.turns.begin(busy)
    other.ended -= RECENT
    assert world.turn(busy)


async def test_users_who_compete_have_one_turn_in_each_pass_of_the_event_loop_and_alternate() -> None:
    world, order = World(), []
    users = {name: UserTurns() for name in ("bad", "good")}
    for user in users.values():
        world.turn(user)
        await passes()

    async def work(name: str) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            if not world.turns.begin(users[name]):
                await world.turns.wait(users[name])
            order.append(name)
            world.turns.end(users[name], 1)

    await asyncio.gather(*map(work, ["bad"] * 4 + ["good"]))
    assert len(order) == 15
    assert order[:8].count("good") == 3, f"four sources of one user have no more turns than another's one: {order}"


async def test_a_user_with_undurable_changes_waits_for_a_commit_while_the_backlog_is_large() -> None:
    world, busy, other = World(), UserTurns(), UserTurns()
    world.turn(other)
    await passes()
    assert world.turn(busy, weight=BACKLOG)
    await passes()
    assert not world.turns.begin(busy)
    task = await waiting(world.turns.wait(busy))
    assert not task.done()
    assert world.turn(other, weight=1), "a user without undurable changes does not wait"
    world.commit()
    await task
    world.turns.end(busy, 1)


async def test_a_turn_gets_as_many_deliveries_as_fit_in_its_time() -> None:
    world, user, other = World(), UserTurns(), UserTurns()
    assert world.turn(other)
    found = []
    for seconds in (3.9, 10, *[0.05] * 6):
        await passes()
        world.now += 0.1
        assert world.turns.begin(user)
        found.append(user.most)
        world.now += seconds * TURN_SECONDS
        world.turns.end(user, user.most)
    assert found == [MOST_DELIVERIES, MOST_DELIVERIES // 4, 1, 2, 4, 8, 16, 16]
    await passes()
    world.now += 2 * RECENT
    user.fitting = 1
    assert world.turns.begin(user)
    assert user.most == MOST_DELIVERIES, "a user alone gets as many as always"


async def test_a_turn_that_was_given_to_a_cancelled_task_goes_to_the_next() -> None:
    world, first, second, other = World(), UserTurns(), UserTurns(), UserTurns()
    for user in (first, second, other):
        world.turn(user)
        await passes()
    assert world.turns.begin(other)
    gone = await waiting(world.turns.wait(first))
    heir = await waiting(world.turns.wait(second))
    world.turns.end(other, 1)
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait_for(heir, 5)
    with pytest.raises(asyncio.CancelledError):
        await gone
    world.turns.end(second, 1)
    await passes()
    assert world.turn(other)


async def test_thousands_of_users_in_line_cost_each_turn_little() -> None:
    world, users = World(), [UserTurns() for _ in range(3)]
    assert world.turn(users[0])
    assert world.turn(users[1])
    await passes()
    assert world.turns.begin(users[2])
    line = [asyncio.create_task(world.turns.wait(UserTurns())) for _ in range(10_000)]
    await passes()
    with at_most(0.5):
        for task in line:
            world.turns._pass_on()
            await task
