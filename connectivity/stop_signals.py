"""The signals that stop the service and long commands."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator


def stop_signals() -> Iterator[signal.Signals]:
    """Yield the signals that stop a process in good order: also SIGHUP, which a closed terminal sends.

    `nohup` sets SIGHUP to be ignored; then it stays so.
    """
    yield from (signal.SIGTERM, signal.SIGINT)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        yield signal.SIGHUP


def end_at_stop_signals() -> None:
    """Let a stop signal end the process at once, with exit code 0: there is nothing to finish yet.

    Without a handler it would be an error, and the kernel would withhold it from the first process of a container.
    """
    for number in stop_signals():
        signal.signal(number, lambda *_: os._exit(0))


def ignore_stop_signals() -> None:
    """Ignore further stop signals, so that the process ends with the exit code that it has."""
    for number in stop_signals():
        signal.signal(number, signal.SIG_IGN)
