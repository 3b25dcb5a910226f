"""How the clients, sources and targets of a running connection are, as they know it themselves.

What these come to together is said by `connectivity.monitoring.status`. Of a client that is connected, every source is
being consumed: a link comes about with all of them or not at all. A target is told to be misconfigured once its broker has
said that there is no such address, or not for us, until it has taken something there (Ditto connections, status).

What is shown of a connection that does not run is here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from connectivity.connections.lifecycle import ConnectionState, Status
from connectivity.connections.model import Connection
from connectivity.errors import Detail
from connectivity.management.client import ConnectionClient
from connectivity.monitoring.meter import Meter
from connectivity.monitoring.status import CLOSED, Recovery, ResourceStatus, closed_report, report, stamp
from connectivity.targets.target import TargetPublisher

ON_DEMAND: Final = "Producers for targets with placeholders are started on-demand."

_OF_ADDRESSES: Final = (Detail.MISSING_ADDRESS, Detail.NOT_AUTHORIZED)
"""What a broker says of an address, and not of the whole link."""

_PLACEHOLDER: Final = "{{"


def name_of(number: int = 0) -> str:
    """What a client is called, by its number."""
    return f"connectivity-{number}"


def client_standing(client: ConnectionClient, details_of_open: str) -> ResourceStatus:
    """`details_of_open`: what is said of it while it is connected."""
    lifecycle = client.lifecycle
    status = lifecycle.status
    if status is Status.OPEN:
        details = details_of_open
    elif status is Status.CLOSED:
        details = CLOSED
    else:
        details = str(lifecycle.error) if lifecycle.error is not None else Detail.CONNECTING.value
    return ResourceStatus(
        "client", name_of(client.number), status, details, client.since, recovery=_recovery_of(client)
    )


def waiting_standing(client: ConnectionClient, details: str) -> ResourceStatus:
    """A client that is not told to connect yet. `details`: what it waits for."""
    return ResourceStatus(
        "client", name_of(client.number), Status.UNKNOWN, details, client.since, recovery=Recovery.ONGOING
    )


def _recovery_of(client: ConnectionClient) -> Recovery:
    if client.lifecycle.state is ConnectionState.OPEN:
        return Recovery.SUCCEEDED
    if client.lifecycle.state in (ConnectionState.CLOSED, ConnectionState.CLOSING):
        return Recovery.UNKNOWN
    return Recovery.ONGOING if client.is_running else Recovery.GIVEN_UP


def source_standings(connection: Connection, client: ConnectionClient) -> Iterator[ResourceStatus]:
    """Each address of each source at a client."""
    name, since = name_of(client.number), client.since
    error = client.lifecycle.error
    for source in connection.sources:
        for address in source.addresses:
            if client.lifecycle.state is ConnectionState.OPEN:
                yield ResourceStatus("source", name, Status.OPEN, f"Consumer started at {_at(since)}", since, address)
            elif error is not None and error.detail in _OF_ADDRESSES and address in error.words:
                yield ResourceStatus("source", name, Status.MISCONFIGURED, str(error), since, address)
            else:
                yield ResourceStatus("source", name, Status.UNKNOWN, "Consumer waits for the client.", since, address)


def target_standings(
    targets: Iterable[TargetPublisher], client: ConnectionClient, conditions: dict[int, str]
) -> Iterator[ResourceStatus]:
    """Each target at a client. `conditions`: what is to be said of targets besides, by index."""
    name, since = name_of(client.number), client.since
    for target in targets:
        address = target.address
        if target.trouble is not None:
            status, details = Status.MISCONFIGURED, target.trouble
        elif _PLACEHOLDER in address:
            status, details = Status.UNKNOWN, ON_DEMAND
        elif client.lifecycle.state is ConnectionState.OPEN:
            status, details = Status.OPEN, f"Producer started at {_at(since)}"
        else:
            status, details = Status.UNKNOWN, "Producer waits for the client."
        if (condition := conditions.get(target.index)) is not None:
            details = f"{details.removesuffix('.')}; {condition}"
        yield ResourceStatus("target", name, status, details, since, address)


def closed_status(connection_id: str, wanted: str, since: datetime | None = None) -> Mapping[str, Any]:
    """The status of a connection that does not run.

    `wanted`: what it is to be; `since`: when it was closed, if known.
    """
    return closed_report(connection_id, wanted, name_of(), since)


def unusable_status(connection_id: str, wanted: str, problems: str) -> Mapping[str, Any]:
    """The status of a connection whose document has these problems."""
    only = ResourceStatus("client", name_of(), Status.MISCONFIGURED, problems, None, recovery=Recovery.UNKNOWN)
    return report(connection_id, wanted, [only], [], [], None)


def metrics_of(meter: Meter, connection: Connection | None) -> Mapping[str, Any]:
    """What a connection has counted, whether it runs or not. None: its document cannot be used."""
    if connection is None:
        return meter.report([], [])
    sources = [address for source in connection.sources for address in source.addresses]
    return meter.report(sources, [target.address for target in connection.targets])


def logs_of(meter: Meter) -> Mapping[str, Any]:
    """What has happened to a connection lately; nothing of one that does not run."""
    return {"connectionId": meter.connection_id, **meter.log.read()}


def _at(since: datetime | None) -> str:
    return stamp(since) if since is not None else "an unknown time"
