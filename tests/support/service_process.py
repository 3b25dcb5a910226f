"""The whole service as a process, which tests start, stop, kill and start again on the same data.

with ServiceProcess.start(tmp_path, [document]) as service:
    ...
    service.kill()
    service.start_again()
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.api.described_answers import check_answer
from tests.support.brokers import free_port
from tests.support.forked_service import ForkedService
from tests.support.wait import TimedOut, wait_until_sync

READY_WITHIN = 60.0
STOPPED_WITHIN = 60.0


class ServiceProcess:
    """A process of `connectivity serve` with connection documents, settings, and its log in a file.

    It is forked from a process with loaded modules; `ServiceCommand` starts the command.
    """

    program: Sequence[str] = ()
    """The command that starts it; empty for a fork."""

    wrapper = ""
    """A module for the forked process; see `ForkedService`."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log_file = folder / "service.log"
        self.port = free_port()
        self._settings = settings
        self.process: subprocess.Popen[bytes] | ForkedService | None = None

    def __repr__(self) -> str:
        return f"<ServiceProcess {self.process and self.process.pid}, data in {self.data}>"

    @classmethod
    def start(cls, folder: Path, connections: Sequence[Mapping[str, Any]], **settings: Any) -> Self:
        """Start a service and wait until it is ready. `settings` are nested as in the settings file."""
        service = cls(folder, settings)
        documents = folder / "connections"
        documents.mkdir(parents=True, exist_ok=True)
        for document in connections:
            (documents / f"{document['id']}.json").write_text(json.dumps(document), encoding="utf-8")
        service.start_again()
        return service

    def start_again(self, *, ready: bool = True) -> None:
        """Start on the same data, and wait until the service is ready."""
        file = self.folder / "settings.json"
        settings = {
            "connections_dir": str(self.folder / "connections"),
            "data_dir": str(self.data),
            "log": {"format": "json"},
            "spark": {"mode": "off"},
            **self._settings,
            "api": {"port": self.port, **self._settings.get("api", {})},
        }
        file.write_text(json.dumps(settings), encoding="utf-8")
        arguments = ["serve", "--settings", str(file)]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if self.program:
            with self.log_file.open("ab") as log:
                command = [*self.program, *arguments]
                self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        else:
            self.process = ForkedService(arguments, environment, self.log_file, self.wrapper)
        if ready:
            try:
                self.wait_ready()
            except BaseException:
                # The caller has no service to stop.
                self.kill()
                raise

    def wait_ready(self) -> None:
        """Wait until the first attempt of each connection has ended. Raises AssertionError with the log."""
        process = self.process
        assert process is not None

        def is_settled() -> bool:
            return process.poll() is not None or self.get("/health/ready")[0] == 200

        try:
            wait_until_sync(is_settled, READY_WITHIN)
        except TimedOut as error:
            raise AssertionError(f"the service is not ready:\n{self.log()}") from error
        assert process.poll() is None, f"the service ended with {process.returncode}:\n{self.log()}"

    def get(self, path: str, token: str | None = None) -> tuple[int, bytes]:
        """Return the status and body of a GET; status 0 without a response."""
        return self.ask("GET", path, token=token, within=5)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        token: str | None = None,
        within: float = 60,
    ) -> tuple[int, bytes]:
        """Return the status and body of a response of the API; status 0 without a response.

        A `body` that is not text is sent as JSON.
        """
        sent = None if body is None else body if isinstance(body, str) else json.dumps(body)
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", None if sent is None else sent.encode(), method=method
        )
        if sent is not None:
            request.add_header("content-type", content_type)
        if token is not None:
            request.add_header("authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=within) as response:
                return _described(method, path, response)
        except urllib.error.HTTPError as error:
            with error:
                return _described(method, path, error)
        except OSError:
            return 0, b""

    @property
    def _token(self) -> str | None:
        """The API's token, if the settings have one."""
        return dict(self._settings.get("api", {})).get("token")

    def status(self, connection_id: str) -> dict[str, str]:
        """Return status and details of a connection, as `/health/ready` shows them."""
        shown: dict[str, Any] = json.loads(self.get("/health/ready", self._token)[1] or b"{}")
        found: dict[str, str] = shown.get("connections", {}).get(connection_id, {})
        return found

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples with these labels."""
        total = 0.0
        for line in self.get("/metrics")[1].decode().splitlines():
            if line.startswith((name + "{", name + " ")) and all(f'{k}="{v}"' in line for k, v in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8")[-8000:]

    def records(self) -> list[dict[str, Any]]:
        """Return all complete lines of the log, as JSON. Raises ValueError for an invalid line."""
        whole, _, _ = self.log_file.read_text(encoding="utf-8").rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def stop(self) -> tuple[int, float]:
        """Send SIGTERM, and return the exit code and the seconds until the end."""
        process = self.process
        assert process is not None
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        return process.wait(STOPPED_WITHIN), time.monotonic() - begun

    def kill(self) -> None:
        """Send SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(STOPPED_WITHIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()


def _described(method: str, path: str, answer: Any) -> tuple[int, bytes]:
    body: bytes = answer.read()
    check_answer(method, path, answer.status, {name.lower(): value for name, value in answer.headers.items()}, body)
    return answer.status, body


class ServiceCommand(ServiceProcess):
    """A service that its command starts, like in production."""

    program = (sys.executable, "-m", "connectivity")
