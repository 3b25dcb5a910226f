"""The service with the example connections, beside a broker that this program starts: `make serve`.

Ends with Ctrl-C, the broker with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from examples.brokers import USUAL_PORT, connections_at, mqtt_broker

RUN = Path(".run/serve")


def main() -> int:
    with mqtt_broker(RUN, USUAL_PORT) as broker:
        connections = connections_at(broker, RUN / "connections")
        print(f"broker: {broker.how} at {broker.host}:{broker.port}", flush=True)
        command = [sys.executable, "-m", "connectivity", "serve", "--settings", "examples/settings.yaml"]
        environment = {**os.environ, "CONNECTIVITY_CONNECTIONS_DIR": str(connections)}
        service = subprocess.Popen(command, env=environment)
        # Ctrl-C reaches the service too; this program only waits for it to drain, then ends the broker.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: service.terminate())
        return service.wait()


if __name__ == "__main__":
    sys.exit(main())
