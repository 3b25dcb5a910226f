"""Background jobs: a failing round is logged, counted and repeated later; other jobs continue."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from connectivity.maintenance.job_runner import Job, JobRunner
from tests.support.wait import wait_until


class CountedJob:
    """A job whose first rounds fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.rounds = 0

    async def round(self) -> None:
        self.rounds += 1
        if self.rounds <= self.failures:
            raise OSError("the disk is gone")


async def test_a_round_that_fails_is_logged_counted_and_repeated() -> None:
    failed: list[str] = []
    job = CountedJob(failures=2)
    runner = JobRunner([Job("sweep", job.round)], failed.append, min_backoff=0.001, max_backoff=0.002)
    with capture_logs() as lines:
        runner.start()
        await wait_until(lambda: job.rounds >= 3)
        await runner.stop()
    assert failed == ["sweep"] * 2
    assert len(lines) == 2
    assert {(line["event"], line["job"], line["log_level"]) for line in lines} == {
        ("background job failed", "sweep", "error")
    }


async def test_pauses_double_while_a_job_fails_up_to_the_longest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    job = CountedJob(failures=5)
    runner = JobRunner([Job("sweep", job.round, 0.5)], lambda _: None, min_backoff=1.0, max_backoff=6.0)
    with capture_logs():
        runner.start()
        while len(pauses) < 7:
            await real(0)
        await runner.stop()
    assert pauses[:7] == [1.0, 2.0, 4.0, 6.0, 6.0, 0.5, 0.5]


async def test_the_problems_of_a_job_are_shown_until_a_round_succeeds() -> None:
    shown: list[str] = []
    job, other = CountedJob(failures=1), CountedJob()
    jobs = [Job("erase", job.round), Job("watch", other.round)]
    runner = JobRunner(jobs, lambda _: shown.extend(runner.problems), min_backoff=0.001)
    with capture_logs():
        runner.start()
        await wait_until(lambda: job.rounds > 1 and not runner.problems)
        await runner.stop()
    assert shown == ["erase: OSError: the disk is gone"]


async def test_a_job_that_waits_or_fails_holds_up_no_other() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    failing, other = CountedJob(failures=1_000_000), CountedJob()
    jobs = [Job("hang", hang), Job("fail", failing.round), Job("go on", other.round)]
    runner = JobRunner(jobs, lambda _: None, min_backoff=60.0)
    with capture_logs():
        runner.start()
        await wait_until(lambda: other.rounds > 5)
        await runner.stop()
    assert failing.rounds == 1
