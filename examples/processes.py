"""Programs that an example starts and ends again, whatever happens: at its end, at Ctrl-C, at SIGTERM, at a failure.

    with interruptible(), ended([process, …]):
        …

Each program is the head of a process group, so that Ctrl-C in the terminal reaches the example alone, which then ends its
programs in its own order, and so that a program's own children end with it.
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

ENDED_WITHIN = 30.0
LAST_WORDS = 2000
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Somebody asked the example to end. `code` is what it ends with."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, the first signal to end raises Interrupted; the ones after it leave the tidying up alone."""

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
    """Run a program whose words go to `log`; `environment` comes on top of ours."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )


def end(processes: Sequence[subprocess.Popen[bytes]], within: float = ENDED_WITHIN) -> list[int]:
    """Ask all of them to end, make those that take longer than `within` seconds, and return their exit codes."""
    for process in processes:
        if process.poll() is None:
            _signal_group(process, signal.SIGTERM)
    deadline = time.monotonic() + within
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        # Those that it has started are its group, and may still be there when it is gone.
        _signal_group(process, signal.SIGKILL)
    return [process.wait() for process in processes]


def last_words(log: Path) -> str:
    """The end of what a program has said."""
    return log.read_text(encoding="utf-8", errors="replace")[-LAST_WORDS:].strip() if log.exists() else ""


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
