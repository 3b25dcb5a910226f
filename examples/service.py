"""Starts the service of the examples as a process, waits until it is ready, and stops it with SIGTERM."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.broker_client import NoResponse
from examples.processes import log_end, start, stop

START_TIMEOUT = 120.0
COMMAND = (sys.executable, "-m", "connectivity", "serve", "--settings", "examples/settings.yaml")

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
"""Without Java's second compiler, which makes only long runs of Spark faster."""


class ServiceFailed(RuntimeError):
    """The exit code of the service was not 0."""


@dataclass(frozen=True, slots=True)
class RunningService:
    """A running service: its data folder, its log and its API."""

    data: Path
    log: Path

    def get(self, path: str) -> str:
        """The response of the API. Raises NoResponse."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{api_port(self.log)}{path}", timeout=5) as response:
                return str(response.read(), "utf-8")
        except OSError as error:
            raise NoResponse(f"the service does not respond to {path}: {error}") from error

    def ready(self) -> dict[str, Any]:
        """The response of the readiness probe."""
        response: dict[str, Any] = json.loads(self.get("/health/ready"))
        return response


@contextmanager
def service(folder: Path, connections: Path, *, with_lake: bool = False) -> Iterator[RunningService]:
    """The ready service with a folder of connections. Its data and log are in `folder`.

    `with_lake`: it writes a lake. The service stops at the end. Raises NoResponse if it does not get ready, ServiceFailed if
    its exit code is not 0.
    """
    environment = {
        "CONNECTIVITY_CONNECTIONS_DIR": str(connections),
        "CONNECTIVITY_DATA_DIR": str(folder / "data"),
        "CONNECTIVITY_API__PORT": "0",
        "CONNECTIVITY_LOG__FORMAT": "json",
    }
    if with_lake:
        environment |= {"CONNECTIVITY_SPARK__MODE": "embedded", "JDK_JAVA_OPTIONS": JAVA_OPTIONS}
        # The demo waits for the lake.
        environment["CONNECTIVITY_LAKE__INTERVAL"] = "0s"
    log = folder / "service.log"
    process = start(COMMAND, log, environment)
    try:
        wait_ready(process, log)
        yield RunningService(folder / "data", log)
    except BaseException:
        stop([process])
        raise
    if code := stop([process])[0]:
        raise ServiceFailed(f"the service ended with exit code {code}, expected 0")


def wait_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until every connection is open. Raises NoResponse with the reason."""
    deadline = time.monotonic() + START_TIMEOUT
    reason = "its API does not respond"
    while time.monotonic() < deadline and process.poll() is None:
        if (port := api_port(log)) is not None:
            reason = unready_reason(f"http://127.0.0.1:{port}/health/ready")
            if not reason:
                return
        time.sleep(0.05)
    ended = "" if process.poll() is None else f" and ended with exit code {process.returncode}"
    raise NoResponse(f"the service did not get ready{ended}: {reason}\nIts log ends with:\n{log_end(log)}")


def api_port(log: Path) -> int | None:
    """The port of the API, from the service's log; None if the service does not listen yet."""
    for line in log.read_text(encoding="utf-8").splitlines():
        if line.startswith("{") and line.endswith("}") and (entry := json.loads(line)).get("event") == "api listening":
            return int(entry["port"])
    return None


def unready_reason(url: str) -> str:
    """Why the service is not ready, from its readiness probe; empty if it is ready."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            body = json.loads(response.read())
    except OSError as error:
        return str(error)
    closed = [f"{name}: {it['details']}" for name, it in body["connections"].items() if it["status"] != "open"]
    return "; ".join(closed) or ("" if body["connections"] else "it has no connections yet")
