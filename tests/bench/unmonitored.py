"""The service without monitoring, for the sake of comparison alone: `python -m tests.bench.unmonitored serve …`."""

from __future__ import annotations

from connectivity import service
from connectivity.cli.console import main
from tests.bench.monitoring import SilentMonitor

if __name__ == "__main__":
    service.Monitor = SilentMonitor  # type: ignore[misc]
    main()
