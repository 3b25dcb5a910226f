"""The service for the examples: started as a process of its own, asked until it is ready, ended in an orderly way."""

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

from examples.party import NoAnswer
from examples.processes import end, last_words, start

READY_WITHIN = 120.0
COMMAND = (sys.executable, "-m", "connectivity", "serve", "--settings", "examples/settings.yaml")

QUICK_JAVA = "-XX:TieredStopAtLevel=1"
"""Spark does not run long enough here for Java's second compiler to be worth its time."""


class EndedBadly(RuntimeError):
    """The service did not end with 0."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A service that runs: where its data lies, and its API."""

    data: Path
    log: Path

    def get(self, path: str) -> str:
        """What the API says. Raises NoAnswer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{api_port(self.log)}{path}", timeout=5) as response:
                return str(response.read(), "utf-8")
        except OSError as error:
            raise NoAnswer(f"the service does not answer {path}: {error}") from error

    def ready(self) -> dict[str, Any]:
        """What it says of itself."""
        said: dict[str, Any] = json.loads(self.get("/health/ready"))
        return said


@contextmanager
def service(folder: Path, connections: Path, *, with_lake: bool = False) -> Iterator[Serving]:
    """The service with a folder of connections, ready; its data and log lie in `folder`. `with_lake`: it fills one.

    It drains and stops at the end. Raises NoAnswer where it does not get ready, EndedBadly where it does not end with 0.
    """
    environment = {
        "CONNECTIVITY_CONNECTIONS_DIR": str(connections),
        "CONNECTIVITY_DATA_DIR": str(folder / "data"),
        "CONNECTIVITY_API__PORT": "0",
        "CONNECTIVITY_LOG__FORMAT": "json",
    }
    if with_lake:
        environment |= {"CONNECTIVITY_SPARK__MODE": "embedded", "JDK_JAVA_OPTIONS": QUICK_JAVA}
        # At once, since someone waits for it.
        environment["CONNECTIVITY_LAKE__INTERVAL"] = "0s"
    log = folder / "service.log"
    running = start(COMMAND, log, environment)
    try:
        wait_ready(running, log)
        yield Serving(folder / "data", log)
    except BaseException:
        end([running])
        raise
    if code := end([running])[0]:
        raise EndedBadly(f"the service ended with exit code {code}, expected 0")


def wait_ready(running: subprocess.Popen[bytes], log: Path) -> None:
    """Until the API says that every connection is open. Raises NoAnswer, with what is missing."""
    deadline = time.monotonic() + READY_WITHIN
    missing = "its API does not answer"
    while time.monotonic() < deadline and running.poll() is None:
        if (port := api_port(log)) is not None:
            missing = missing_in(f"http://127.0.0.1:{port}/health/ready")
            if not missing:
                return
        time.sleep(0.05)
    ended = "" if running.poll() is None else f" and ended with exit code {running.returncode}"
    raise NoAnswer(f"the service did not get ready{ended}: {missing}\nIts log ends with:\n{last_words(log)}")


def api_port(log: Path) -> int | None:
    """The port that the service says it listens at."""
    for line in log.read_text(encoding="utf-8").splitlines():
        if line.startswith("{") and line.endswith("}") and (entry := json.loads(line)).get("event") == "api listening":
            return int(entry["port"])
    return None


def missing_in(url: str) -> str:
    """What the service lacks to be ready, in its own words; empty when nothing does."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            said = json.loads(response.read())
    except OSError as error:
        return str(error)
    closed = [f"{name}: {it['details']}" for name, it in said["connections"].items() if it["status"] != "open"]
    return "; ".join(closed) or ("" if said["connections"] else "it has no connections yet")
