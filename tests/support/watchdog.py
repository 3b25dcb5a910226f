"""Ends a run in which a test hangs, and prints the stack of each thread and child process."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

import psutil

STACK_WITHIN = 20.0
"""The timeout for the stacks of one process, in seconds."""


class Watchdog:
    """Limits the time of each test; a test that exceeds it ends the run with all stacks in `report`."""

    def __init__(self, report: TextIO) -> None:
        self._report = report
        self._timer: threading.Timer | None = None

    def watch(self, name: str, seconds: float) -> None:
        """Start the time of this test."""
        self.rest()
        self._timer = threading.Timer(seconds, self._end, (name, seconds))
        self._timer.daemon = True
        self._timer.start()
        # If native code holds the interpreter lock, no Python thread runs, but this timer does.
        faulthandler.dump_traceback_later(2 * seconds, exit=True, file=self._report)

    def rest(self) -> None:
        """Stop the time while no test runs."""
        faulthandler.cancel_dump_traceback_later()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, name: str, seconds: float) -> None:
        self._write(f"\nTimeout: {name} has not ended after {seconds:g} s. Threads of the test process:\n")
        faulthandler.dump_traceback(self._report, all_threads=True)
        for task in tasks():
            self._write("\n")
            task.print_stack(file=self._report)
        children = psutil.Process().children(recursive=True)
        for child in children:
            self._write(f"\n{describe(child)}\n")
            if runs(child, "python"):
                self._write(stack_of(child.pid))
            elif runs(child, "java"):
                self._write(java_stacks_of(child.pid))
        for child in children:
            with contextlib.suppress(psutil.Error):  # it has ended in the meantime
                child.kill()
        self._report.flush()
        os._exit(1)

    def _write(self, text: str) -> None:
        self._report.write(text)
        self._report.flush()


def tasks() -> list[asyncio.Task[Any]]:
    """Return the tasks of the running event loops in this process."""
    # Not `isinstance`, which also evaluates `__class__`, and a fake may raise an error there.
    loops = [it for it in gc.get_objects() if issubclass(type(it), asyncio.AbstractEventLoop) and it.is_running()]
    return [task for loop in loops for task in asyncio.all_tasks(loop)]


def describe(process: psutil.Process) -> str:
    try:
        return f"process {process.pid} ({process.status()}): {' '.join(process.cmdline())[:300]}"
    except psutil.Error:
        return f"process {process.pid}: ended"


def runs(process: psutil.Process, program: str) -> bool:
    try:
        return program in os.path.basename(process.exe())
    except psutil.Error:
        return False


def stack_of(pid: int) -> str:
    """Return the stacks of another Python process, without its cooperation."""
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


def java_stacks_of(pid: int) -> str:
    """Return the stacks of a Java process by the protocol of `jstack`, which any JRE supports."""
    # Java opens its socket if it finds this file at SIGQUIT.
    wanted, address = Path(f"/proc/{pid}/cwd/.attach_pid{pid}"), Path(f"/tmp/.java_pid{pid}")
    deadline = time.monotonic() + STACK_WITHIN
    try:
        wanted.touch()
        try:
            os.kill(pid, signal.SIGQUIT)
            while not address.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            wanted.unlink()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(STACK_WITHIN)
            connection.connect(str(address))
            connection.sendall(b"1\0threaddump\0\0\0\0")
            with connection.makefile(encoding="utf-8", errors="replace") as answer:
                return answer.read()
    except OSError as error:
        return f"no stack: {error}\n"
