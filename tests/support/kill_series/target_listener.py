"""The listener: receives the events at a target, with an fsynced log.

    python -m tests.support.kill_series.target_listener URI ADDRESS LOG

SIGTERM ends it. After a kill, the events that are not in its log were never received.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any

from tests.support.clients.mqtt import BrokerClient
from tests.support.kill_series.clients import join
from tests.support.kill_series.load import received_messages
from tests.support.kill_series.log import LogWriter


def line_of(event: dict[str, Any]) -> dict[str, Any]:
    """Return the log line for an event."""
    return {"received": event["topic"].split("/")[1], "revision": event["revision"], "n": event.get("value")}


def listen(requester: BrokerClient, log: LogWriter, stopping: threading.Event) -> None:
    while not stopping.is_set():
        if came := received_messages(requester.received):
            log.write(*map(line_of, came))


def main(uri: str, address: str, log_path: Path) -> int:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with join(uri, f"{address}-none", address) as requester:
        # The existence of the log shows that the listener is ready.
        log = LogWriter(log_path)
        listen(requester, log, stopping)
        log.close()
    return 0


if __name__ == "__main__":
    _, uri, address, log_path = sys.argv
    sys.exit(main(uri, address, Path(log_path)))
