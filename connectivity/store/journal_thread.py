"""The thread in which the journal commits.

It carries out one call after the other, and reports each result to the event loop. With an executor, a call would create two
futures and take 40 function calls on the event loop: a tenth of what a command costs that has a commit of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

Reported = Callable[[T | None, BaseException | None], object]
"""Receives the result of a call, or its error."""


class JournalThread:
    """A thread for calls that wait for the disk, in order."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # A daemon, so that a store which was not closed does not keep the process alive.
        self._thread = Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T], reported: Reported[T]) -> None:
        """Carry out `function`, then call `reported` on this event loop."""
        self._calls.put(partial(_carry_out, asyncio.get_running_loop(), function, reported))

    async def run(self, function: Callable[[], T]) -> T:
        """Carry out `function` and return its result. Raises what it raises."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def report(result: T | None, error: BaseException | None) -> None:
            if done.cancelled():
                return
            if error is None:
                done.set_result(result)  # type: ignore[arg-type]
            else:
                done.set_exception(error)

        self.call(function, report)
        return await done

    def end(self) -> None:
        """End after the calls that wait."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _carry_out(loop: asyncio.AbstractEventLoop, function: Callable[[], T], reported: Reported[T]) -> None:
    result, failure = None, None
    try:
        result = function()
    except BaseException as error:
        # The event loop waits for the result, and later calls wait for this thread.
        failure = error
    # The event loop may have been closed meanwhile.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(reported, result, failure)
