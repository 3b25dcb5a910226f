"""Runs the background jobs of the service in rounds, with growing pauses while a job fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import structlog

log = structlog.get_logger(__name__)


class Job(NamedTuple):
    """A background job. `pause`: seconds from the end of a round to the beginning of the next."""

    name: str
    round: Callable[[], Awaitable[object] | None]
    pause: float = 0.0


class JobRunner:
    """The background jobs of one service.

    A round that raises is logged and counted, and stops no other job.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        on_failure: Callable[[str], object],
        min_backoff: float = 1.0,
        max_backoff: float = 60.0,
    ) -> None:
        """`on_failure` receives the name of the job after each round that failed. Back-offs are in seconds."""
        self._jobs = jobs
        self._on_failure = on_failure
        self._min_backoff, self._max_backoff = min_backoff, max_backoff
        self._tasks: list[asyncio.Task[None]] = []
        self._failing: dict[str, str] = {}

    @property
    def problems(self) -> list[str]:
        """The jobs whose latest round failed, with the error."""
        return [f"{name}: {error}" for name, error in self._failing.items()]

    def start(self) -> None:
        """Begin the first round of every job."""
        self._tasks = [asyncio.create_task(self._run(job), name=job.name) for job in self._jobs]

    async def stop(self) -> None:
        """Cancel all jobs and wait until they have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, job: Job) -> None:
        backoff = 0.0
        while True:
            try:
                if (waiting := job.round()) is not None:
                    await waiting
            except Exception as error:
                backoff = min(max(2 * backoff, self._min_backoff), self._max_backoff)
                self._failing[job.name] = f"{type(error).__name__}: {error}"
                self._on_failure(job.name)
                log.exception("background job failed", job=job.name, retry_seconds=backoff)
            else:
                backoff = 0.0
                self._failing.pop(job.name, None)
            await asyncio.sleep(max(job.pause, backoff))
