"""The status of a connection, from that of everything it consists of. Pure.

Each client, each address of a source and each target says how it is at each client; here is what that comes to for lists
of them, and for the connection (Ditto connections, status). The rules are odd in one place: something unknown in a list
counts as open as long as no client of the list says otherwise, so a target whose address is not known before there is
something to send does not keep its connection from being open, and hides a closed one beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, NamedTuple

from connectivity.connections.lifecycle import Status

CLOSED: Final = "[DISCONNECTED] connection is closed"
"""What a client says that does not run."""


class Recovery(str, Enum):
    """Whether a client is on its way back."""

    ONGOING = "ongoing"
    SUCCEEDED = "succeeded"
    GIVEN_UP = "backOffLimitReached"
    UNKNOWN = "unknown"


class ResourceStatus(NamedTuple):
    """How a client of a connection is, or what has an address, at one of the clients."""

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
        """As JSON has it."""
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


def status_of(standings: Sequence[ResourceStatus]) -> Status:
    """The status of a list: the first rule that applies."""
    found = {each.status for each in standings}
    if found <= {Status.OPEN}:
        return Status.OPEN
    for bad in (Status.FAILED, Status.MISCONFIGURED):
        if bad in found:
            return bad
    if found == {Status.CLOSED}:
        return Status.CLOSED
    has_only_open_clients = all(each.status is Status.OPEN for each in standings if each.is_client)
    return Status.OPEN if Status.UNKNOWN in found and has_only_open_clients else Status.UNKNOWN


def live_status(lists: Sequence[Sequence[ResourceStatus]]) -> Status:
    """The status of the connection, from the lists of what it consists of."""
    found = {status_of(standings) for standings in lists}
    for bad in (Status.FAILED, Status.MISCONFIGURED):
        if bad in found:
            return bad
    return found.pop() if found in ({Status.OPEN}, {Status.CLOSED}) else Status.UNKNOWN


def recovery_of(clients: Sequence[ResourceStatus]) -> Recovery:
    """Whether the connection is on its way back."""
    found = {client.recovery for client in clients}
    if found == {Recovery.SUCCEEDED}:
        return Recovery.SUCCEEDED
    return next((each for each in (Recovery.GIVEN_UP, Recovery.ONGOING) if each in found), Recovery.UNKNOWN)


def report(
    connection_id: str,
    wanted: str,
    clients: Sequence[ResourceStatus],
    sources: Sequence[ResourceStatus],
    targets: Sequence[ResourceStatus],
    connected_since: datetime | None,
) -> Mapping[str, Any]:
    """The status of a connection that runs. `wanted`: what it is to be."""
    shown: dict[str, Any] = {
        "connectionId": connection_id,
        "connectionStatus": wanted,
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


def closed_report(connection_id: str, wanted: str, client: str, since: datetime | None = None) -> Mapping[str, Any]:
    """The status of a connection without any client."""
    only = ResourceStatus("client", client, Status.CLOSED, CLOSED, since, recovery=Recovery.UNKNOWN)
    return {**report(connection_id, wanted, [only], [], [], None), "liveStatus": Status.CLOSED.value}


def stamp(time: datetime) -> str:
    """A time, as operators read it."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
