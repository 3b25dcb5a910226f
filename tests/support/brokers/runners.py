"""Run a private broker as a child process or, if a Docker engine runs, in a container.

Both can be started and stopped repeatedly on the same data and ports, and write the broker's output to a log.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import psutil

from tests.support.brokers import BrokerFailed, BrokerSilent
from tests.support.wait import wait_until_sync

STOPPED_WITHIN = 60.0
RUN_WITHIN = 60.0


class Startable(Protocol):
    """A broker that has its ports, and is not started yet."""

    def start_again(self) -> None: ...
    def close(self) -> None: ...


Broker = TypeVar("Broker", bound=Startable)


def started(make: Callable[[], Broker], taken: str) -> Broker:
    """Start the broker that `make` returns; retry if a port is in use or the broker does not respond.

    Each attempt is a new broker on other ports. `taken` is the text in the broker's log that shows that a port is in
    use. Raises BrokerFailed after one start, after two if the broker does not respond, and after three if a port is in
    use; standard error has the log of each start.
    """
    tries = 0
    while True:
        broker, tries = make(), tries + 1
        try:
            broker.start_again()
        except BrokerFailed as error:
            broker.close()
            most = 3 if taken in str(error) else 2 if isinstance(error, BrokerSilent) else 1
            print(f"start {tries} of {most} failed: {error}", file=sys.stderr)
            if tries >= most:
                raise
        else:
            return broker


class BrokerShared(RuntimeError):
    """A test cannot stop a shared broker; use `own_mosquitto`, `own_rabbitmq` or `own_kafka`."""


class Runner(Protocol):
    """The process or container of a broker. `host` is the address of its ports."""

    host: str

    def start(self) -> None: ...
    def end(self, *, gently: bool) -> None: ...
    def is_running(self) -> bool: ...
    def run(self, program: str, *words: str) -> str:
        """Run a program that comes with the broker, and return its output. Raises BrokerFailed."""

    def log(self) -> str: ...
    def remove(self) -> None: ...


class Process:
    """A program of this machine, with all its child processes."""

    host = "127.0.0.1"

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._command, self._log = list(command), log
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._is_copy = False

    def __getstate__(self) -> dict[str, object]:
        """Leave out the process: a copy in another test process can neither start nor stop it."""
        return {**self.__dict__, "_process": None, "_is_copy": True}

    def _check_owned(self) -> None:
        if self._is_copy:
            raise BrokerShared(f"{self._command[0]} is shared by all tests and cannot be started or stopped")

    def start(self) -> None:
        self._check_owned()
        with self._log.open("ab") as log:
            # The program may be a script, so its own session makes it possible to end all its children.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def end(self, *, gently: bool) -> None:
        self._check_owned()
        if (process := self._process) is None:
            return
        if process.poll() is None:
            started = psutil.Process(process.pid).children(recursive=True)
            os.killpg(process.pid, signal.SIGTERM if gently else signal.SIGKILL)
            wait_until_sync(lambda: not any(_is_alive(each) for each in started), STOPPED_WITHIN)
        process.wait(STOPPED_WITHIN)

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def run(self, program: str, *words: str) -> str:
        ran = subprocess.run(
            [program, *words],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_WITHIN,
            check=False,
        )
        if ran.returncode:
            raise BrokerFailed(f"{program} {' '.join(words)}: {ran.stderr or ran.stdout}")
        return ran.stdout

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def remove(self) -> None:
        """Do nothing: a process leaves only its files, which belong to the caller."""


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Container:
    """A container of a published image. It has `folder` at the same path, so paths are valid in both."""

    def __init__(
        self,
        image: str,
        command: str | None,
        folder: Path,
        ports: Sequence[int],
        environment: Mapping[str, str] | None = None,
        **more: str,
    ) -> None:
        """`command` is None for the default of the image. `more` are arguments of Docker, e.g. `hostname`."""
        from testcontainers.core.container import DockerContainer

        self._container = DockerContainer(image).with_volume_mapping(str(folder), str(folder), "rw")
        if command is not None:
            # The default command of the image changes the user itself.
            self._container.with_command(command)
            more = {"user": f"{os.geteuid()}:{os.getegid()}", **more}
        self._container.with_kwargs(**more)
        for name, value in (environment or {}).items():
            self._container.with_env(name, value)
        for port in ports:
            # A fixed port, because Docker would select another one at each start.
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

    def run(self, program: str, *words: str) -> str:
        code, output = self._container.exec([program, *words])
        text = output.decode(errors="replace")
        if code:
            raise BrokerFailed(f"{program} {' '.join(words)}: {text}")
        return str(text)

    def log(self) -> str:
        if not self._is_made:
            return ""
        return "".join(part.decode(errors="replace") for part in self._container.get_logs())

    def remove(self) -> None:
        if self._is_made:
            self._container.stop()
            self._is_made = False
