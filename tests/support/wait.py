"""Waits for a condition, instead of sleeping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

POLL = 0.01
PATIENCE = 60.0
"""Seconds that a test waits even for immediate results, because the machine may be busy."""


class TimedOut(AssertionError):
    """The condition did not become true in time."""

    def __init__(self, condition: Callable[[], object], deadline: float) -> None:
        super().__init__(f"{getattr(condition, '__qualname__', condition)} is not true after {deadline} s")


async def wait_until(condition: Callable[[], object], deadline: float = PATIENCE, poll: float = POLL) -> None:
    """Wait until `condition()` is true, checked every `poll` seconds. Raises TimedOut after `deadline`."""
    end = time.monotonic() + deadline
    while not condition():
        if time.monotonic() > end:
            raise TimedOut(condition, deadline)
        await asyncio.sleep(poll)


def wait_until_sync(condition: Callable[[], object], deadline: float = PATIENCE) -> None:
    """Block until `condition()` is true. Raises TimedOut after `deadline` seconds."""
    end = time.monotonic() + deadline
    while not condition():
        if time.monotonic() > end:
            raise TimedOut(condition, deadline)
        time.sleep(POLL)
