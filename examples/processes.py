"""Starts and stops programs of the examples, also after Ctrl-C, SIGTERM or an error.

Each program leads a process group. So Ctrl-C in the terminal reaches only the example, which then stops its programs in its
own order, and the children of a program stop with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

STOP_TIMEOUT = 30.0
LOG_CHARACTERS = 2000
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """The example received a signal to end. `code` is its exit code."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the block, the first signal of `SIGNALS` raises Interrupted.

    Later signals are ignored, so that the cleanup completes.
    """

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    before = {each: signal.signal(each, interrupt) for each in SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def start(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a program that appends its output to `log`.

    `environment` extends the environment of this process.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )


def stop(processes: Sequence[subprocess.Popen[bytes]], timeout: float = STOP_TIMEOUT) -> list[int]:
    """Send SIGTERM to the processes, and return their exit codes.

    Processes that still run after `timeout` seconds are killed.
    """
    for process in processes:
        if process.poll() is None:
            _signal_group(process, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        # Children in the group may still run when the process has ended.
        _signal_group(process, signal.SIGKILL)
    return [process.wait() for process in processes]


def log_end(log: Path) -> str:
    """The last `LOG_CHARACTERS` characters of a log; empty if there is no log."""
    return log.read_text(encoding="utf-8", errors="replace")[-LOG_CHARACTERS:].strip() if log.exists() else ""


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
