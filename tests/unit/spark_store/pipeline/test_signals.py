"""A pipeline that a signal stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from spark_store.pipeline.__main__ import stop_at_signals
from tests.support.wait import PATIENCE

INTERRUPTED_IN_A_WAIT = """
import os, signal, threading
from spark_store.pipeline.__main__ import stop_at_signals

stopping = threading.Event()
stop_at_signals(stopping)
with stopping._cond:  # as a wait does for a moment
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):
        pass
stopping.wait()
"""


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it(number: signal.Signals) -> None:
    stopping = threading.Event()
    stop_at_signals(stopping)
    os.kill(os.getpid(), number)
    assert stopping.wait(PATIENCE)


def test_a_signal_that_interrupts_a_wait_for_the_stop_keeps_it_from_nothing() -> None:
    subprocess.run([sys.executable, "-c", INTERRUPTED_IN_A_WAIT], check=True, timeout=PATIENCE)
