"""The service without monitoring, for comparisons: `python -m tests.bench.unmonitored serve …`."""

from __future__ import annotations

from connectivity import service
from connectivity.cli.main import main
from tests.bench.monitoring import SilentMonitor

if __name__ == "__main__":
    setattr(service, "PrometheusRegistry", SilentMonitor)  # noqa: B010 - a name of another module is replaced
    main()
