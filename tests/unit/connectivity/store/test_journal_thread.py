"""The journal's thread carries out calls in order and reports to the event loop that made them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from connectivity.store.journal_thread import JournalThread


@pytest.fixture
def thread() -> Iterator[JournalThread]:
    made = JournalThread()
    yield made
    made.end()


def divide(by: int) -> float:
    return 1 / by


async def test_results_and_errors_are_reported_in_the_order_of_the_calls(thread: JournalThread) -> None:
    reported: list[tuple[object, str]] = []
    for number in (1, 0, 2):
        thread.call(partial(divide, number), lambda result, error: reported.append((result, type(error).__name__)))
    await thread.run(lambda: None)
    assert reported == [(1.0, "NoneType"), (None, "ZeroDivisionError"), (0.5, "NoneType")]


async def test_results_are_reported_on_the_event_loop(thread: JournalThread) -> None:
    threads: list[threading.Thread] = []
    where = await thread.run(threading.current_thread)
    thread.call(threading.current_thread, lambda *_: threads.append(threading.current_thread()))
    await thread.run(lambda: None)
    assert where is not threads[0]
    assert threads == [threading.current_thread()]


async def test_a_call_that_is_awaited_raises_its_error(thread: JournalThread) -> None:
    with pytest.raises(ZeroDivisionError):
        await thread.run(partial(divide, 0))


async def test_the_thread_goes_on_after_an_error_that_is_no_exception_of_a_program(thread: JournalThread) -> None:
    """Otherwise the service would wait for its commits forever."""

    def leave() -> None:
        raise GeneratorExit

    with pytest.raises(GeneratorExit):
        await asyncio.wait_for(thread.run(leave), 5)
    assert await thread.run(partial(divide, 1)) == 1.0


async def test_the_thread_goes_on_after_a_waiting_task_was_cancelled(thread: JournalThread) -> None:
    goes_on = threading.Event()
    waiting = asyncio.create_task(thread.run(goes_on.wait))
    await asyncio.sleep(0)
    waiting.cancel()
    goes_on.set()
    assert await thread.run(partial(divide, 1)) == 1.0


def test_the_thread_goes_on_when_the_event_loop_of_a_call_was_closed(thread: JournalThread) -> None:
    is_closed = threading.Event()

    async def leave() -> None:
        thread.call(is_closed.wait, lambda *_: None)

    asyncio.run(leave())
    is_closed.set()
    assert asyncio.run(thread.run(partial(divide, 1))) == 1.0


async def test_the_thread_ends_after_the_calls_that_wait() -> None:
    thread, done = JournalThread(), list[float]()
    thread.call(partial(divide, 4), lambda result, _: done.append(result or 0))
    thread.end()
    await asyncio.sleep(0)
    assert done == [0.25]
