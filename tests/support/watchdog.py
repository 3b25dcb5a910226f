"""Ends a run in which a test hangs, and shows where each of its threads and child processes is."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import threading
from typing import TextIO

import psutil

STACK_WITHIN = 20.0
"""Seconds that one process has to show its stack."""


class Watchdog:
    """Gives each test so many seconds; then every stack is written to `report`, and the process ends with 1."""

    def __init__(self, report: TextIO) -> None:
        self._report = report
        self._timer: threading.Timer | None = None

    def watch(self, name: str, seconds: float) -> None:
        """Begin anew with this test."""
        self.rest()
        self._timer = threading.Timer(seconds, self._end, (name, seconds))
        self._timer.daemon = True
        self._timer.start()
        # Where native code holds the interpreter's lock, no Python thread runs: this needs none.
        faulthandler.dump_traceback_later(2 * seconds, exit=True, file=self._report)

    def rest(self) -> None:
        """No test runs."""
        faulthandler.cancel_dump_traceback_later()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, name: str, seconds: float) -> None:
        self._write(f"\nTimeout: {name} has not ended after {seconds:g} s. Threads of the test process:\n")
        faulthandler.dump_traceback(self._report, all_threads=True)
        children = psutil.Process().children(recursive=True)
        for child in children:
            self._write(f"\n{describe(child)}\n")
            if is_python(child):
                self._write(stack_of(child.pid))
        for child in children:
            if child.is_running():
                child.kill()
        self._report.flush()
        os._exit(1)

    def _write(self, text: str) -> None:
        self._report.write(text)
        self._report.flush()


def describe(process: psutil.Process) -> str:
    try:
        return f"process {process.pid} ({process.status()}): {' '.join(process.cmdline())[:300]}"
    except psutil.Error:
        return f"process {process.pid}: ended"


def is_python(process: psutil.Process) -> bool:
    try:
        return "python" in os.path.basename(process.exe())
    except psutil.Error:
        return False


def stack_of(pid: int) -> str:
    """The stacks of another Python process, without its help."""
    program = os.path.join(os.path.dirname(sys.executable), "py-spy")
    try:
        shown = subprocess.run(
            [program, "dump", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=STACK_WITHIN,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no stack: {error}\n"
    return shown.stdout or f"no stack: {shown.stderr}"
