"""The status of the clients, sources and targets of a connection.

`connectivity.monitoring.status` combines them. A connected client consumes every source: a link has all or none. A target is
misconfigured after its broker has rejected its address, until the next confirmed message (Ditto connections, status).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from connectivity.connections.lifecycle import ConnectionState, Status
from connectivity.connections.model import Connection
from connectivity.connections.templates import has_expression
from connectivity.errors import Detail
from connectivity.management.client import ConnectionClient
from connectivity.monitoring.meter import Meter
from connectivity.monitoring.status import CLOSED, Recovery, ResourceStatus, report, stamp
from connectivity.targets.target import TargetPublisher

ON_DEMAND: Final = "Producers for targets with placeholders are started on-demand."

_OF_ADDRESSES: Final = (Detail.MISSING_ADDRESS, Detail.NOT_AUTHORIZED)
"""Errors about an address, and not about the whole link."""


def name_of(number: int = 0) -> str:
    """Return the name of a client by its number."""
    return f"connectivity-{number}"


def client_status(client: ConnectionClient, details_of_open: str) -> ResourceStatus:
    """Return the status of a client. `details_of_open`: the details while it is connected."""
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


def waiting_status(client: ConnectionClient, details: str) -> ResourceStatus:
    """Return the status of a client that does not connect yet. `details`: what it waits for."""
    return ResourceStatus(
        "client", name_of(client.number), Status.UNKNOWN, details, client.since, recovery=Recovery.ONGOING
    )


def _recovery_of(client: ConnectionClient) -> Recovery:
    if client.lifecycle.state is ConnectionState.OPEN:
        return Recovery.SUCCEEDED
    if client.lifecycle.state in (ConnectionState.CLOSED, ConnectionState.CLOSING):
        return Recovery.UNKNOWN
    return Recovery.ONGOING if client.is_running else Recovery.GIVEN_UP


def source_statuses(connection: Connection, client: ConnectionClient) -> Iterator[ResourceStatus]:
    """Each address of each source at a client."""
    name, since = name_of(client.number), client.since
    error = client.lifecycle.error
    for source in connection.sources:
        for address in source.addresses:
            if client.lifecycle.state is ConnectionState.OPEN:
                yield ResourceStatus("source", name, Status.OPEN, f"Consumer started at {_at(since)}", since, address)
            elif error is not None and error.detail in _OF_ADDRESSES and _is_about(error.text, address):
                yield ResourceStatus("source", name, Status.MISCONFIGURED, str(error), since, address)
            else:
                yield ResourceStatus("source", name, Status.UNKNOWN, "Consumer waits for the client.", since, address)


def _is_about(text: str, address: str) -> bool:
    """Whether an error is about an address, which it quotes, or which it begins with."""
    place = r"(?:^|, |; |(?<!vhost )(?<!user )')"
    # Several clients of MQTT 5 subscribe to the address in a group.
    group = r"(?:\$share/[^/\s]+/)?"
    return re.search(rf"{place}{group}{re.escape(address)}(?:'|, |: )", text) is not None


def target_statuses(
    targets: Iterable[TargetPublisher], client: ConnectionClient, conditions: Mapping[int, Sequence[str]]
) -> Iterator[ResourceStatus]:
    """Return the status of each target at a client. `conditions`: additional details by index."""
    name, since = name_of(client.number), client.since
    for target in targets:
        address = target.address
        if target.trouble is not None:
            status, details = Status.MISCONFIGURED, target.trouble
        elif has_expression(address):
            status, details = Status.UNKNOWN, ON_DEMAND
        elif client.lifecycle.state is ConnectionState.OPEN:
            status, details = Status.OPEN, f"Producer started at {_at(since)}"
        else:
            status, details = Status.UNKNOWN, "Producer waits for the client."
        if more := conditions.get(target.index):
            details = "; ".join((details.removesuffix("."), *more))
        yield ResourceStatus("target", name, status, details, since, address)


def closed_status(connection_id: str, wanted: str, since: datetime | None = None) -> Mapping[str, Any]:
    """Return the status of a connection that does not run.

    `wanted`: its desired status; `since`: when it was closed, if known.
    """
    only = ResourceStatus("client", name_of(), Status.CLOSED, CLOSED, since, recovery=Recovery.UNKNOWN)
    return {**report(connection_id, wanted, [only], [], [], None), "liveStatus": Status.CLOSED.value}


def unusable_status(connection_id: str, wanted: str, problems: str) -> Mapping[str, Any]:
    """Return the status of a connection whose document has these problems."""
    only = ResourceStatus("client", name_of(), Status.MISCONFIGURED, problems, None, recovery=Recovery.UNKNOWN)
    return report(connection_id, wanted, [only], [], [], None)


def metrics_of(meter: Meter, connection: Connection | None) -> Mapping[str, Any]:
    """Return the metrics of a connection. None: its document is invalid."""
    if connection is None:
        return meter.report([], [])
    sources = [address for source in connection.sources for address in source.addresses]
    return meter.report(sources, [target.address for target in connection.targets])


def _at(since: datetime | None) -> str:
    return stamp(since) if since is not None else "an unknown time"
