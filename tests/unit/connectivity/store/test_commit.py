"""Changes that wait for a commit."""

from __future__ import annotations

import asyncio

import pytest

from connectivity.store.commit import PendingCommit
from spark_store.errors import StoreUnavailable
from tests.support.journal_entries import LAMP, TANK, change, published


async def test_the_future_of_a_pending_commit_keeps_its_first_result() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    submitted = PendingCommit([change(LAMP, 1), published(TANK, 1)], future)
    assert submitted.entities() == {LAMP, TANK}
    submitted.fail(StoreUnavailable("the disk is full"))
    submitted.succeed()
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        await future


async def test_a_pending_commit_runs_its_step_and_a_barrier_has_no_step() -> None:
    taken: list[int] = []
    loop = asyncio.get_running_loop()
    PendingCommit((), loop.create_future(), lambda: taken.append(1)).take_step()
    barrier = PendingCommit((), loop.create_future())
    barrier.take_step()
    barrier.succeed()
    await barrier.durable
    assert taken == [1]
