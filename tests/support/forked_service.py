"""Processes of the service that start quickly, because their parent has already loaded its modules.

Loading them takes most of the time of a start. A forked process runs `connectivity serve` like the command; only its
command line in the process list differs. A test process has one such server (`multiprocessing`).
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path

_LOADED = [
    "connectivity.cli.main",
    "connectivity.service",
    "connectivity.api.app",
    "connectivity.api.server",
    "connectivity.transports.amqp.connection_type",
    "connectivity.transports.kafka.connection_type",
    "connectivity.transports.mqtt.mqtt5",
]
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(_LOADED)


class ForkedService:
    """Runs `connectivity` with these arguments, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path, wrapper: str = "") -> None:
        """`wrapper`: a module whose `install` is called in the process before the service starts."""
        self._arguments = list(arguments)
        # Several threads of a test may poll at the same time.
        self._lock = threading.Lock()
        # A daemon ends with the test process.
        self._process = _FORKS.Process(
            target=_run, args=(self._arguments, dict(environment), str(log), wrapper), daemon=True
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        with self._lock:
            return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        wait([self._process.sentinel], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(["connectivity", *self._arguments], timeout)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended in the meantime
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(arguments: list[str], environment: dict[str, str], log: str, wrapper: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.stdout.flush()
    with open(log, "ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    from connectivity.__main__ import main

    if wrapper:
        importlib.import_module(wrapper).install(arguments)
    sys.argv[:] = ["connectivity", *arguments]
    main()
