"""Real brokers for tests: one file for each, each started for the tests alone and gone after them.

A Docker engine is used where one answers, otherwise a private process on a free port with its data in a temporary
folder. A broker that cannot be had is an error, so the test fails: none is skipped for want of a broker.
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
from pathlib import Path
from typing import BinaryIO

ENGINE_ANSWERS_WITHIN = 10.0


class BrokerMissing(RuntimeError):
    """Neither a Docker engine nor the program is there; the message names the command that brings it."""

    def __init__(self, program: str, searched: str) -> None:
        super().__init__(
            f"{program}: no Docker engine answers and no such program in {searched}; `make install` brings it"
        )


class BrokerFailed(RuntimeError):
    """The broker was started and did not get ready, or ended by itself; the message holds its last words."""


class BrokerSilent(BrokerFailed):
    """The broker runs and does not answer."""


@functools.cache
def docker_answers() -> bool:
    """Whether a Docker engine can be asked to run brokers."""
    # The command, and not the library, which leaves its socket open where nobody answers.
    if (docker := shutil.which("docker")) is None:
        return False
    asked = [docker, "version", "--format", "{{.Server.Version}}"]
    try:
        return subprocess.run(asked, capture_output=True, timeout=ENGINE_ANSWERS_WITHIN, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def free_port() -> int:
    """A port on the loopback interface that nobody listens at, given to no other test process while this one runs.

    None of those that the system gives to whoever connects somewhere: such a one could be taken before it is used.
    """
    while True:
        port = _DICE.choice(_NOT_GIVEN)
        if port in _TAKEN:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            fcntl.lockf(_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            probe.bind(("127.0.0.1", port))
            _TAKEN.add(port)
            return port


@functools.cache
def _locks() -> BinaryIO:
    """One file for all test processes of this user. Who holds the lock on byte n has port n, until the process ends."""
    return Path(tempfile.gettempdir(), f"connectivity-test-ports-{os.getuid()}").open("wb")


_NOT_GIVEN = range(16_384, 32_000)
_TAKEN: set[int] = set()
_DICE = random.SystemRandom()
"""Tests that run side by side must not throw the same numbers."""


def is_listening(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False
