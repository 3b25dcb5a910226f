"""What is seen of a connection from its supervisor alone: its status, and that of each of its clients.

Shapes as in Ditto's connections, status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connectivity.folder import Wanted
from connectivity.lifecycle import Status
from connectivity.supervisor import Supervisor

CLIENT = "connectivity-{number}"
CLOSED = "[DISCONNECTED] connection is closed"


class SupervisorObserver:
    """Looks at supervisors; counts nothing and keeps no log."""

    def status(self, wanted: Wanted, running: Supervisor | None) -> Mapping[str, Any]:
        """As `Management.status`."""
        problems = {"problems": list(wanted.problems)} if wanted.problems else {}
        override = {"override": wanted.override} if wanted.override else {}
        if running is None:
            is_broken = wanted.connection is None
            live = (Status.MISCONFIGURED if is_broken else Status.CLOSED).value
            clients = [_client(0, live, "; ".join(wanted.problems) if is_broken else CLOSED)]
        else:
            live = running.status.value
            clients = [
                _client(number, client.lifecycle.status.value, str(client.lifecycle.error or running.status_details))
                for number, client in enumerate(running.clients)
            ]
        return {
            "connectionId": wanted.id,
            "connectionStatus": wanted.status,
            "liveStatus": live,
            "clientStatus": clients,
            "sourceStatus": [],
            "targetStatus": [],
            "sshTunnelStatus": [],
            **override,
            **problems,
        }

    def metrics(self, connection_id: str) -> Mapping[str, Any]:
        """As `Management.metrics`, with nothing counted."""
        return {"connectionId": connection_id, "containsFailures": False, "connectionMetrics": {}}

    def logs(self, connection_id: str) -> Mapping[str, Any]:
        """As `Management.logs`, with nothing logged."""
        return {"connectionId": connection_id, "connectionLogs": []}

    def reset_metrics(self, connection_id: str) -> None:
        """Nothing is counted."""

    def enable_logs(self, connection_id: str) -> None:
        """Nothing is logged."""

    def reset_logs(self, connection_id: str) -> None:
        """Nothing is logged."""


def _client(number: int, status: str, details: str) -> dict[str, Any]:
    return {
        "type": "client",
        "client": CLIENT.format(number=number),
        "status": status,
        "statusDetails": details,
    }
