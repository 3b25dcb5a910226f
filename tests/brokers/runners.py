"""How a private broker is run: as a child process of the tests, or in a container where a Docker engine answers.

Both are started and ended any number of times on the same data and ports, and both keep what the broker says in a log.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

STOPPED_WITHIN = 15.0


class Runner(Protocol):
    """One broker's process, wherever it is. `host` is where its ports are reached."""

    host: str

    def start(self) -> None: ...
    def end(self, *, gently: bool) -> None: ...
    def is_running(self) -> bool: ...
    def log(self) -> str: ...
    def remove(self) -> None: ...


class Process:
    """A program of this machine."""

    host = "127.0.0.1"

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command, self._log = list(command), log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def end(self, *, gently: bool) -> None:
        if self._process is None:
            return
        if gently:
            self._process.terminate()
        else:
            self._process.kill()
        self._process.wait(STOPPED_WITHIN)

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def remove(self) -> None:
        """Nothing of a process stays but its files, which are the caller's."""


class Container:
    """A published image, with `folder` at the same place inside, so that one configuration serves both ways."""

    def __init__(self, image: str, command: str, folder: Path, ports: Sequence[int]) -> None:
        from testcontainers.core.container import DockerContainer

        self._container = (
            DockerContainer(image)
            .with_command(command)
            .with_volume_mapping(str(folder), str(folder), "rw")
            .with_kwargs(user=f"{os.geteuid()}:{os.getegid()}")
        )
        for port in ports:
            # A fixed port outside too: with a chosen one, Docker would choose anew at each start.
            self._container.with_bind_ports(port, port)
        self.host = self._container.get_container_host_ip()
        self._is_made = False

    def start(self) -> None:
        if self._is_made:
            self._container.get_wrapped_container().start()
        else:
            self._container.start()
            self._is_made = True

    def end(self, *, gently: bool) -> None:
        if not self.is_running():
            return
        container = self._container.get_wrapped_container()
        if gently:
            container.stop(timeout=int(STOPPED_WITHIN))
        else:
            container.kill()
        container.wait()

    def is_running(self) -> bool:
        if not self._is_made:
            return False
        container = self._container.get_wrapped_container()
        container.reload()
        return bool(container.status == "running")

    def log(self) -> str:
        if not self._is_made:
            return ""
        return "".join(part.decode(errors="replace") for part in self._container.get_logs())

    def remove(self) -> None:
        if self._is_made:
            self._container.stop()
            self._is_made = False
