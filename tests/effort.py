"""What a piece of work costs a processor, for tests which hold that no input is a trap.

A trap takes minutes or hours where an honest input takes milliseconds, so a bound between the two is no timing. It must
hold on any machine and in any company, though: a clock on the wall counts what other programs do, the processor time of
a process counts its other threads, and a collection of everything that ten thousand tests have left takes a second by
itself. Only the thread that does the work is counted here, and nothing is collected meanwhile.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """The block takes this thread no more than so many seconds of a processor; AssertionError else."""
    collecting = gc.isenabled()
    gc.disable()
    begun = time.thread_time()
    try:
        yield
        taken = time.thread_time() - begun
    finally:
        if collecting:
            gc.enable()
    assert taken <= seconds, f"it took {taken:.2f} s of a processor, expected at most {seconds} s"
