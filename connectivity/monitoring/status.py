"""The status of a connection, computed from those of its clients, sources and targets.

Each client, source address and target has a status at each client; this module aggregates lists of them (Ditto connections,
status). In a list, `unknown` is treated as open unless a client of that list is not open. So a target whose address is
known only when there is something to send does not keep its connection from being open; it also hides a closed target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, NamedTuple

from connectivity.connections.lifecycle import Status

CLOSED: Final = "[DISCONNECTED] connection is closed"
"""The status details of a client that does not run."""


class Recovery(str, Enum):
    """Whether a client is reconnecting."""

    ONGOING = "ongoing"
    SUCCEEDED = "succeeded"
    GIVEN_UP = "backOffLimitReached"
    UNKNOWN = "unknown"


class ResourceStatus(NamedTuple):
    """The status of a client, or of a source address or target at one of the clients (Ditto)."""

    type: str
    client: str
    status: Status
    details: str
    since: datetime | None
    address: str | None = None
    recovery: Recovery | None = None

    @property
    def is_client(self) -> bool:
        return self.type == "client"

    def shown(self) -> Mapping[str, Any]:
        """Return the status as JSON."""
        shown: dict[str, Any] = {"type": self.type, "client": self.client}
        if self.address is not None:
            shown["address"] = self.address
        shown["status"] = self.status.value
        if self.recovery is not None:
            shown["recoveryStatus"] = self.recovery.value
        shown["statusDetails"] = self.details
        if self.since is not None:
            shown["inStateSince"] = stamp(self.since)
        return shown


def status_of(resources: Sequence[ResourceStatus]) -> Status:
    """Return the status of a list: the first rule that applies."""
    statuses = {each.status for each in resources}
    if statuses <= {Status.OPEN}:
        return Status.OPEN
    for bad in (Status.FAILED, Status.MISCONFIGURED):
        if bad in statuses:
            return bad
    if statuses == {Status.CLOSED}:
        return Status.CLOSED
    has_only_open_clients = all(each.status is Status.OPEN for each in resources if each.is_client)
    return Status.OPEN if Status.UNKNOWN in statuses and has_only_open_clients else Status.UNKNOWN


def live_status(lists: Sequence[Sequence[ResourceStatus]]) -> Status:
    """Return the status of the connection from the lists of its clients, sources and targets."""
    statuses = {status_of(resources) for resources in lists}
    for bad in (Status.FAILED, Status.MISCONFIGURED):
        if bad in statuses:
            return bad
    return statuses.pop() if statuses in ({Status.OPEN}, {Status.CLOSED}) else Status.UNKNOWN


def recovery_of(clients: Sequence[ResourceStatus]) -> Recovery:
    """Return the recovery status of the connection from those of its clients."""
    statuses = {client.recovery for client in clients}
    if statuses == {Recovery.SUCCEEDED}:
        return Recovery.SUCCEEDED
    return next((each for each in (Recovery.GIVEN_UP, Recovery.ONGOING) if each in statuses), Recovery.UNKNOWN)


def report(
    connection_id: str,
    desired: str,
    clients: Sequence[ResourceStatus],
    sources: Sequence[ResourceStatus],
    targets: Sequence[ResourceStatus],
    connected_since: datetime | None,
) -> Mapping[str, Any]:
    """Return the status of a connection that runs. `desired`: the status that the operator has set."""
    shown: dict[str, Any] = {
        "connectionId": connection_id,
        "connectionStatus": desired,
        "liveStatus": live_status((clients, sources, targets)).value,
        "recoveryStatus": recovery_of(clients).value,
    }
    if connected_since is not None:
        shown["connectedSince"] = stamp(connected_since)
    return shown | {
        "clientStatus": [client.shown() for client in clients],
        "sourceStatus": [source.shown() for source in sources],
        "targetStatus": [target.shown() for target in targets],
        "sshTunnelStatus": [],
    }


def stamp(time: datetime) -> str:
    """Format a time as ISO 8601 in UTC, to the second."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
