"""The service with the example connections, beside the brokers that this machine has: `make serve`.

Ends with Ctrl-C, the brokers with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from examples.brokers import NoBroker, brokers
from examples.prepare import NotPrepared, connections_at, prepare
from examples.processes import SIGNALS, Interrupted, interruptible
from examples.service import COMMAND

RUN = Path(".run/serve")


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    try:
        with interruptible(), brokers(RUN, at_usual_ports=True, tell=say) as found:
            for name, brought_by in found.missing.items():
                say(f"{name} is not here, and its connections are left out. To have it: {brought_by}")
            connections = connections_at(found, RUN / "connections", with_doors=True)
            prepare(connections)
            return serve(connections)
    except Interrupted as interrupted:
        return interrupted.code
    except (NoBroker, NotPrepared) as error:
        print(error, file=sys.stderr)
        return 1


def serve(connections: Path) -> int:
    """The service until it ends; its exit code."""
    environment = {**os.environ, "CONNECTIVITY_CONNECTIONS_DIR": str(connections)}
    running = subprocess.Popen(COMMAND, env=environment)
    # Ctrl-C reaches the service too; this program only waits for it to drain, then ends the brokers.
    for each in SIGNALS:
        signal.signal(each, lambda *_: running.terminate())
    return running.wait()


if __name__ == "__main__":
    sys.exit(main())
