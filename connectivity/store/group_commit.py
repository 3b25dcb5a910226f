"""The commits of a store: changes of many senders share one, and a failure of the disk is outlived.

Submitted changes wait in a queue, are written into the journal's transaction in portions, and are committed in a worker
thread. A reply that depends on changes which are not durable yet waits for a `barrier`.

If the journal cannot write, all undurable changes are discarded, their futures raise StoreUnavailable, and so does every
later change until a probe succeeds. Nothing is retried here: deliveries are kept and repeated by their owners.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import structlog

from connectivity.store.commit import CommitResult, PendingCommit, PendingTrim, Progress, ReportQueue, take_barriers
from connectivity.store.commit_followers import CommitFollowers
from connectivity.store.journal_thread import JournalThread
from connectivity.store.options import BATCH_WEIGHT, FORGET_ANSWERS, GATHER, TURN_SECONDS, StoreOptions
from spark_store.errors import CommitFailed, StoreUnavailable
from spark_store.journal.journal import TRIM_EVENTS, Journal
from spark_store.records import Change, Snapshot

log = structlog.get_logger(__name__)

T = TypeVar("T")


class GroupCommit:
    """The only writer of a journal, used from one event loop."""

    def __init__(
        self,
        journal: Journal,
        options: StoreOptions,
        followers: CommitFollowers,
        on_commit: Callable[[float], object] | None,
        now: Callable[[], int],
    ) -> None:
        """`on_commit` receives the duration of each commit in seconds; `now` returns nanoseconds since 1970."""
        self._journal = journal
        self._options = options
        self._followers = followers
        self._on_commit = on_commit
        self._now = now
        self._thread = JournalThread()
        self._trimming: PendingTrim | None = None
        self._queue: deque[PendingCommit] = deque()
        self._batch: list[PendingCommit] = []
        """Changes that are being written into the transaction, by the remaining `_steps`."""
        self._steps: Iterator[None] = iter(())
        self._written: list[PendingCommit] = []
        self._reports = ReportQueue()
        """Commits of which some waiters are not notified yet."""
        self._last: int | None = None
        """The number of the newest event in the current commit, while the tail has readers."""
        self._answers = 0
        self._most = options.commit_changes
        """The most changes in the next commit: halved after a failure, doubled after each success."""
        self.progress = Progress(lambda: (self._written, self._batch, self._queue))
        self._is_busy = False
        self._is_closed = False
        self._pause = options.probe_min
        self._probing: asyncio.Task[None] | None = None
        self._available = asyncio.Event()
        self._available.set()
        self.is_available = True
        """Whether the journal can write."""
        self.reason: str | None = None
        """Why it cannot; None if it can."""

    async def wait_available(self) -> None:
        """Wait until the journal can write."""
        await self._available.wait()

    def stage(self, change: Change) -> None:
        """Make a change visible here before it is submitted. Submit it before the event loop's next turn."""
        self._followers.decided.add(change)

    def submit(self, changes: Sequence[Change]) -> asyncio.Future[None]:
        """Stage changes, and queue them as `submit_staged` does."""
        for change in changes:
            self.stage(change)
        return self.submit_staged(changes)

    def submit_staged(self, changes: Sequence[Change]) -> asyncio.Future[None]:
        """Queue staged changes, in order; they share one commit. The future resolves when they are durable.

        It raises StoreUnavailable if none is stored and all may be stored later, CommitFailed if they may be stored already,
        or the error of one of them; then none is stored either.
        """
        submitted = PendingCommit(changes, asyncio.get_running_loop().create_future())
        if self._is_closed or not self.is_available:
            self._followers.decided.clear()
            submitted.fail(self._unavailable())
            return submitted.durable
        self.progress.submits += 1
        self._queue.append(submitted)
        self._schedule()
        return submitted.durable

    def execute(self, step: Callable[[Any], object], *, forgets: Snapshot | None = None) -> asyncio.Future[None]:
        """Queue a short step on the journal's tables, given its connection. The future is as that of `submit`.

        The step shares a commit with the changes around it. If it `forgets` the newest state of an entity, commands that are
        decided from now on find neither this nor its policy.
        """
        queued = self._queue_step(lambda: self._journal.within(step))
        if forgets is not None and not queued.durable.done():
            queued.forgotten = msgspec.structs.replace(forgets, state=None, policy=None)
            self._followers.decided.snapshots[forgets.entity] = queued.forgotten
        return queued.durable

    async def execute_alone(self, step: Callable[[Any], T]) -> T:
        """Execute a step that takes long in the worker thread, as a transaction of its own.

        Returns the step's result. Raises StoreUnavailable.
        """

        def run() -> T:
            found = self._journal.within(step)
            self._journal.commit()
            return found

        return await self.run_in_worker(run)

    async def scrub(self) -> bool:
        """Remove erased data from the journal's log; False while a reader prevents it.

        Raises StoreUnavailable.
        """
        return await self.run_in_worker(self._journal.scrub)

    async def run_in_worker(self, run: Callable[[], T]) -> T:
        """Run in the worker thread while no transaction is open."""
        results: list[T] = []
        await self._queue_step(lambda: results.append(run()), is_outside_transaction=True).durable
        return results[0]

    def _queue_step(self, step: Callable[[], object], *, is_outside_transaction: bool = False) -> PendingCommit:
        queued = PendingCommit((), asyncio.get_running_loop().create_future(), step)
        queued.is_outside_transaction = is_outside_transaction
        if self._is_closed or not self.is_available:
            queued.fail(self._unavailable())
            return queued
        self._queue.append(queued)
        self._schedule()
        return queued

    def barrier(self) -> asyncio.Future[None]:
        """Return a future that resolves when everything submitted so far is durable.

        It may raise StoreUnavailable.
        """
        passed = PendingCommit((), asyncio.get_running_loop().create_future())
        if self._queue or self._batch:
            self._queue.append(passed)
        elif self._written:
            self._written.append(passed)
        else:
            self._reports.add(passed.succeed, passed.weight)
        return passed.durable

    async def trim(self, last: int, before: str) -> int:
        """Delete up to `TRIM_EVENTS` of the oldest events, and return how many.

        Only events numbered up to `last` and older than `before`; the caller makes sure that the lake has them. The step is
        part of a commit. If it deletes the most that it may, there may be more to delete. Raises StoreUnavailable.
        """
        if self._is_closed or not self.is_available:
            raise self._unavailable()
        if self._trimming is None:
            self._trimming = PendingTrim(last, before, asyncio.get_running_loop().create_future())
            self._schedule()
        return await asyncio.shield(self._trimming.done)

    async def close(self) -> None:
        """Accept no more changes, make submitted ones durable, and close the journal."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(StoreUnavailable):
            await self.barrier()
            if self._trimming is not None:
                await self._trimming.done
        if self._probing is not None:
            self._probing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._probing
        try:
            await self._thread.run(self._journal.close)
        finally:
            self._thread.end()

    def _unavailable(self) -> StoreUnavailable:
        return StoreUnavailable(self.reason or "the store is closed")

    def _schedule(self) -> None:
        """Begin a commit, unless one is running: the next one takes what waits."""
        if self._is_busy:
            return
        self._is_busy = True
        asyncio.get_running_loop().call_soon(self._gather, 0)

    def _gather(self, seen: int) -> None:
        """Write once a turn of the event loop brings no more changes, so that each state is written once."""
        progress, queue = self.progress, self._queue
        has_grown = progress.submits > seen and not progress.is_shared
        if has_grown and 0 < len(queue) < GATHER and queue[-1].step is None:
            asyncio.get_running_loop().call_soon(self._gather, progress.submits)
        else:
            self._write()

    def _write(self) -> None:
        """Write some of the queue into the transaction; then continue later, or commit."""
        try:
            if not self._batch:
                if self._is_worker_step_next and not self._written:
                    self._run_step_in_worker(self._queue.popleft())
                    return
                self._take_batch()
            if not self._write_batch():
                asyncio.get_running_loop().call_soon(self._write)
                return
            has_step = bool(self._queue) and self._queue[0].step is not None and not self._is_worker_step_next
            if has_step:
                # An operator may wait for it: changes behind it are left for the next commit.
                self._take_step(self._queue.popleft())
            self._written += take_barriers(self._queue)
            is_full = sum(len(submitted.changes) for submitted in self._written) >= self._most
            is_next = self._queue and (not has_step or self._queue[0].step is not None)
            if is_next and not self._is_worker_step_next and not is_full:
                asyncio.get_running_loop().call_soon(self._write)
                return
            self._forget_answers()
            self._last = self._journal.newest_written() if self._followers.tail.is_followed else None
        except StoreUnavailable as error:
            self._on_failure(error)
        else:
            self._thread.call(partial(self._commit, self._trimming), self._on_commit_done)

    def _take_batch(self) -> None:
        """Take from the queue what is written together."""
        weight = count = 0
        while self._queue and weight < BATCH_WEIGHT and count < self._most and self._queue[0].step is None:
            self._batch.append(submitted := self._queue.popleft())
            weight += submitted.weight
            count += len(submitted.changes)
        self._steps = self._journal.steps([change for submitted in self._batch for change in submitted.changes])

    def _write_batch(self) -> bool:
        """Write until the batch is in the transaction, or this turn is over. Raises StoreUnavailable."""
        end = time.perf_counter() + TURN_SECONDS
        try:
            if any(time.perf_counter() > end for _ in self._steps):
                return False
            self._written += self._batch
        except StoreUnavailable:
            raise
        except Exception:
            self._write_singly(self._batch)
        self._batch = []
        return True

    @property
    def _is_worker_step_next(self) -> bool:
        return bool(self._queue) and self._queue[0].is_outside_transaction

    def _take_step(self, taken: PendingCommit) -> None:
        """Raises StoreUnavailable."""
        try:
            taken.take_step()
            self._written.append(taken)
        except StoreUnavailable:
            self._written.append(taken)
            raise
        except Exception as error:
            log.exception("journal step failed")
            taken.fail(error)

    def _run_step_in_worker(self, taken: PendingCommit) -> None:
        def done(_: None, error: BaseException | None) -> None:
            if error is not None:
                taken.fail(StoreUnavailable(str(error)))
            taken.succeed()
            self._is_busy = False
            if self._queue or self._trimming is not None:
                self._schedule()

        self._thread.call(taken.take_step, done)

    def _write_singly(self, batch: list[PendingCommit]) -> None:
        """Store all but the changes that cannot be stored. Raises StoreUnavailable."""
        for submitted in batch:
            try:
                self._journal.write(submitted.changes)
                self._written.append(submitted)
            except StoreUnavailable:
                raise
            except Exception as error:
                log.error("changes not stored", reason=str(error), changes=len(submitted.changes))
                self._followers.undo(submitted)
                submitted.fail(error)

    def _forget_answers(self) -> None:
        """Delete old answers, about twice as many as are added, so that this never takes long."""
        self._answers += sum(change.answer is not None for submitted in self._written for change in submitted.changes)
        if self._answers >= FORGET_ANSWERS:
            self._journal.forget_answers(self.window_start(), self._options.max_answers, 2 * self._answers)
            self._answers = 0

    def window_start(self) -> int:
        """Return the time in nanoseconds before which answers are no longer known."""
        return self._now() - int(self._options.redelivery_window * 1e9)

    def _commit(self, trimming: PendingTrim | None) -> CommitResult:
        """Commit, and trim. Runs in the worker thread."""
        start = time.perf_counter()
        trimmed = 0 if trimming is None else self._journal.trim(trimming.last, trimming.before, TRIM_EVENTS)
        self._journal.commit()
        return CommitResult(time.perf_counter() - start, trimming, trimmed)

    def _on_commit_done(self, result: CommitResult | None, error: BaseException | None) -> None:
        self.progress.notify()
        if result is None:
            assert error is not None
            self._on_failure(error)
            return
        self._pause = self._options.probe_min
        self._most = min(2 * self._most, self._options.commit_changes)
        seconds, trimming, trimmed = result
        if trimming is not None:
            self._trimming = None
            self._followers.retained_history.trimmed()
            trimming.done.set_result(trimmed)
        if self._on_commit is not None:
            self._on_commit(seconds)
        done, self._written = self._written, []
        changes = [change for submitted in done for change in submitted.changes]
        erased = [submitted.forgotten.entity for submitted in done if submitted.forgotten is not None]
        for submitted in done:
            self._reports.add(partial(self._followers.succeed, submitted), submitted.weight)
        if erased:
            self._reports.finish()
        self._followers.policy_changes.notify(changes, erased)
        if self._followers.tail.is_followed and any(change.events for change in changes):
            # Callers that wait for these come first: their replies precede the events to targets.
            notify = partial(asyncio.get_running_loop().call_soon, self._followers.tail.notify, self._last, changes)
            self._reports.add(notify, 0)
        self._is_busy = False
        if self._queue or self._trimming is not None:
            self._is_busy = True
            self._write()

    def _on_failure(self, error: BaseException) -> None:
        """Discard everything that is not durable, and probe until writing works again."""
        self.progress.notify()
        self._reports.finish()
        if isinstance(error, CommitFailed):
            for submitted in self._written:
                submitted.fail(CommitFailed(str(error)))
        lost = [*self._written, *self._batch, *self._queue]
        # There may be room for some of them.
        self._most = max(1, sum(len(submitted.changes) for submitted in (*self._written, *self._batch)) // 2)
        self._written.clear()
        self._batch.clear()
        self._queue.clear()
        self._followers.clear()
        self._is_busy = False
        self._answers = 0
        self.is_available, self.reason = False, str(error)
        self._available.clear()
        log.error("store unavailable", reason=self.reason, changes=sum(len(submitted.changes) for submitted in lost))
        for submitted in lost:
            submitted.fail(StoreUnavailable(self.reason))
        if self._trimming is not None:
            self._trimming.done.set_exception(StoreUnavailable(self.reason))
            self._trimming = None
        self._probing = asyncio.get_running_loop().create_task(self._probe(), name="store probe")

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(self._pause)
            # Grows until a commit has succeeded: a probe needs less room than a commit.
            self._pause = min(2 * self._pause, self._options.probe_max)
            try:
                await self._thread.run(self._journal.probe)
                newest = self._journal.newest_seq()
            except StoreUnavailable as error:
                self.reason = str(error)
            else:
                break
        self._followers.tail.reach(newest)
        log.info("store available again")
        self.is_available, self.reason, self._probing = True, None, None
        self._available.set()
