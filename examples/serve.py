"""Runs the service with the example connections, and its brokers, until Ctrl-C: `make serve`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from examples.brokers import BrokerFailed, brokers
from examples.prepare import PreparationFailed, prepare, write_connections
from examples.processes import SIGNALS, Interrupted, interruptible
from examples.service import COMMAND

RUN = Path(".run/serve")


def print_progress(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    try:
        with interruptible(), brokers(RUN, at_usual_ports=True, progress=print_progress) as available:
            for name, install_command in available.missing.items():
                print_progress(f"{name} is missing, so its connections are left out. To install it: {install_command}")
            connections = write_connections(available, RUN / "connections", with_listeners=True)
            prepare(connections)
            return serve(connections)
    except Interrupted as interrupted:
        return interrupted.code
    except (BrokerFailed, PreparationFailed) as error:
        print(error, file=sys.stderr)
        return 1


def serve(connections: Path) -> int:
    """Run the service until it ends, and return its exit code."""
    environment = {**os.environ, "CONNECTIVITY_CONNECTIONS_DIR": str(connections)}
    service = subprocess.Popen(COMMAND, env=environment)
    # The terminal sends Ctrl-C to the service too. The brokers must run until the service has stopped.
    for each in SIGNALS:
        signal.signal(each, lambda *_: service.terminate())
    return service.wait()


if __name__ == "__main__":
    sys.exit(main())
