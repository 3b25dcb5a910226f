"""Measures the processor time of work, for tests that no input is disproportionately slow.

Such an input takes minutes instead of milliseconds, so a limit between the two is not sensitive to the machine. Only the
thread of the work is measured, without garbage collection, because wall time includes other programs, and the processor
time of the process includes other threads. Seconds are normalized to a machine of average speed, by a constant piece of
work before and after the measurement.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_AVERAGE = 0.0004
"""The seconds that a processor of average speed takes for `_work`."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Require that the block takes at most `seconds` of processor time, normalized to average speed."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        before = _slowness()
        begun = time.thread_time()
        yield
        taken = time.thread_time() - begun
        allowed = seconds * max(1.0, before, _slowness())
    finally:
        if collecting:
            gc.enable()
    assert taken <= allowed, f"it took {taken:.2f} s of this processor, expected at most {allowed:.2f} s"


def _slowness() -> float:
    """Return how many times slower than average this processor is at the moment."""
    return min(_work() for _ in range(3)) / _AVERAGE


def _work() -> float:
    """Return the seconds that this processor takes for a constant piece of work."""
    begun = time.thread_time()
    for _ in range(2):
        made: list[dict[str, list[Any]]] = [{"a": [number, str(number)]} for number in range(1000)]
        sum(len(it["a"][1]) for it in made)
    return time.thread_time() - begun
