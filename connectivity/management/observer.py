"""Status, metrics and logs of a connection, whether it runs or not.

A supervisor reports on a running connection. Any other is closed, or misconfigured if its document is invalid; it has no
log, and keeps its metrics as long as they are remembered (Ditto connections, status, metrics, logs).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connectivity.management.reconciler import DesiredConnection
from connectivity.management.status_report import closed_status, logs_of, metrics_of, unusable_status
from connectivity.management.supervisor import Supervisor
from connectivity.monitoring.prometheus import PrometheusRegistry


class ConnectionObserver:
    """Reports on every connection."""

    def __init__(self, monitor: PrometheusRegistry) -> None:
        self._monitor = monitor

    def status(self, wanted: DesiredConnection, running: Supervisor | None) -> Mapping[str, Any]:
        """As `Management.status`."""
        if running is not None:
            shown = running.status_report(wanted.status)
        elif wanted.connection is None:
            shown = unusable_status(wanted.id, wanted.status, "; ".join(wanted.problems))
        else:
            shown = closed_status(wanted.id, wanted.status)
        problems = {"problems": list(wanted.problems)} if wanted.problems else {}
        override = {"override": wanted.override} if wanted.override else {}
        return {**shown, **override, **problems}

    def metrics(self, wanted: DesiredConnection, running: Supervisor | None) -> Mapping[str, Any]:
        """As `Management.metrics`."""
        if running is not None:
            return running.metrics_report()
        return metrics_of(self._monitor.find_meter(wanted.id), wanted.connection)

    def logs(self, wanted: DesiredConnection, running: Supervisor | None) -> Mapping[str, Any]:
        """As `Management.logs`."""
        return running.logs_report() if running is not None else logs_of(self._monitor.find_meter(wanted.id))

    def reset_metrics(self, connection_id: str, _running: Supervisor | None) -> None:
        """Set the metrics to zero."""
        self._monitor.find_meter(connection_id).reset()

    def enable_logs(self, _connection_id: str, running: Supervisor | None) -> None:
        """Keep a log for the usual time from now; only of a running connection."""
        if running is not None:
            running.enable_logs()

    def reset_logs(self, _connection_id: str, running: Supervisor | None) -> None:
        """Forget the entries of the log."""
        if running is not None:
            running.reset_logs()

    def forget(self, connection_id: str) -> None:
        """Delete the counters of a deleted connection."""
        self._monitor.erase(connection_id)
