"""Ends the sessions of clients that will not come back, without losing messages.

The broker keeps messages for a client with a session while it is away. A client does not come back if its connection is
deleted, or has another `clientCount`, client ID or broker: it settles what is there and ends its session. Before that, a
new client subscribes in its place, so that the broker always keeps messages for one of them. A message that arrives between
the two may be delivered to both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from connectivity.connections.model import Connection
from connectivity.errors import LinkError, NotConnected
from connectivity.management.client import ConnectionClient
from connectivity.transports import load_connection_type
from connectivity.transports.base import Link, SessionLink

log = structlog.get_logger(__name__)


async def hand_over(clients: Sequence[ConnectionClient], before: Connection, after: Connection | None) -> None:
    """End the sessions of the clients of `before` that `after` does not have; None has no clients."""
    names = _session_names(before)
    kept = _session_names(after) if after is not None and _broker(after) == _broker(before) else ()
    leaving = [client.link for client, name in zip(clients, names, strict=False) if name not in kept]
    links = [link for link in leaving if isinstance(link, SessionLink)]
    if not links:
        return
    new = next((number for number, name in enumerate(kept) if name not in names), None)
    successor = await _connect(after, new) if after is not None and new is not None else None
    try:
        await asyncio.gather(*(_end(link, before.id) for link in links))
    finally:
        if successor is not None:
            await successor.close()


def _session_names(connection: Connection) -> Sequence[str]:
    return load_connection_type(connection.connection_type).session_names(connection)


def _broker(connection: Connection) -> tuple[str, int]:
    return connection.broker_uri.host, connection.broker_uri.port


async def _connect(connection: Connection, number: int) -> Link | None:
    """Let the broker keep messages for a new client; its next link gets those that arrive now, too."""
    open_session = load_connection_type(connection.connection_type).open_session
    assert open_session is not None, "the connection type has sessions"
    try:
        return await open_session(connection, number)
    except LinkError as error:
        log.warning("new client not connected in advance", connection=connection.id, client=number, reason=str(error))
        return None


async def _end(link: SessionLink, connection_id: str) -> None:
    try:
        await link.end_session()
    except NotConnected as error:
        log.warning("session not ended", connection=connection_id, reason=str(error))
