"""Real brokers for tests, one module for each, which start and stop with the tests.

If a Docker engine runs, they are containers; otherwise they are private processes on free ports with their data in
temporary folders. A test fails if its broker is unavailable; it is never skipped.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import BinaryIO

ENGINE_ANSWERS_WITHIN = 10.0


class BrokerMissing(RuntimeError):
    """Neither Docker nor the program is installed; the message has the command that installs it."""

    def __init__(self, program: str, searched: str) -> None:
        super().__init__(
            f"{program}: no Docker engine answers and no such program in {searched}; `make install` brings it"
        )


class BrokerFailed(RuntimeError):
    """The broker did not become ready, or it exited; the message has the end of its log."""


class BrokerSilent(BrokerFailed):
    """The broker runs, but does not respond."""


@functools.cache
def docker_answers() -> bool:
    """Whether a Docker engine responds."""
    # The command, not the library: the library leaves its socket open if there is no engine.
    if (docker := shutil.which("docker")) is None:
        return False
    asked = [docker, "version", "--format", "{{.Server.Version}}"]
    try:
        return subprocess.run(asked, capture_output=True, timeout=ENGINE_ANSWERS_WITHIN, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def free_port() -> int:
    """Return a free port of the loopback interface, which no other test process gets while this one runs.

    It is outside the range from which the system takes ports for outgoing connections, so these cannot take it.
    """
    while True:
        port = _DICE.choice(_NOT_GIVEN)
        # Locks of a file belong to the process: its threads would share them, and lose them with a second file.
        with _CHOOSING, socket.socket() as probe, contextlib.suppress(OSError):
            if port in _TAKEN:
                continue
            fcntl.lockf(_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            probe.bind(("127.0.0.1", port))
            _TAKEN.add(port)
            return port


@functools.cache
def _locks() -> BinaryIO:
    """Return a file of locks for all test processes of this user.

    The process with the lock on byte n owns port n until it ends.
    """
    return Path(tempfile.gettempdir(), f"connectivity-test-ports-{os.getuid()}").open("wb")


_NOT_GIVEN = range(16_384, 32_000)
_TAKEN: set[int] = set()
_CHOOSING = threading.Lock()
_DICE = random.SystemRandom()
"""Not seeded: tests in parallel must not draw the same ports."""


def is_listening(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False
