"""Ends the sessions of clients that will not come back, without losing messages.

The broker keeps messages for a client with a session while it is away. A client does not come back if its connection is
deleted, or has another `clientCount`, client ID or broker: it settles what is there and ends its session. Before that, a
new client subscribes in its place, so that the broker always keeps messages for one of them. A message that arrives between
the two may be delivered to both.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

import structlog

from connectivity.connections.model import Connection
from connectivity.errors import ConnectionRefused, Detail, LinkError, NotConnected
from connectivity.management.client import ConnectionClient
from connectivity.transports import load_connection_type
from connectivity.transports.base import ConsumeOptions, Link, SessionLink
from connectivity.validation.limitations import refusal

log = structlog.get_logger(__name__)

SECONDS = 10.0
"""How long a new client may take to subscribe, and leaving ones to settle what the broker has kept."""

_PAUSE = 0.05
"""Seconds between two looks for the next link of a client that has lost its link."""


async def hand_over(
    clients: Sequence[ConnectionClient],
    before: Connection,
    after: Connection | None,
    others: Sequence[Connection],
    consume: ConsumeOptions,
) -> None:
    """End the sessions of clients of `before` that neither `after` (None: nothing) nor `others` have.

    `consume`: the options of their links. These clients do not connect again. A session remains at the broker if the new
    client does not connect, if no client has a link, or if time is not enough.
    """
    leaving = dict(zip(_session_names(before), clients, strict=False))
    for connection in (after, *others):
        if leaving and connection is not None and _broker(connection) == _broker(before):
            for name in _session_names(connection):
                leaving.pop(name, None)
    failure = ""
    if any(client.link is not None for client in leaving.values()):
        try:
            async with asyncio.timeout(SECONDS):
                await _replace(leaving, before, after, consume)
        except TimeoutError:
            failure = f"it took more than {SECONDS:g} s"
        except LinkError as error:
            failure = f"the new client did not connect: {error}"
    for name in leaving:
        log.warning("session not ended", connection=before.id, session=name, reason=failure or "there is no link")


async def _replace(
    leaving: dict[str, ConnectionClient], before: Connection, after: Connection | None, consume: ConsumeOptions
) -> None:
    """End the sessions of clients after a new client, if any, has subscribed. Raises LinkError."""
    begun: list[str] = []

    async def on_new_session(prefix: str) -> None:
        begun.append(prefix)

    options = replace(consume, on_new_session=on_new_session)
    successor = await _connect(after, before, leaving, options) if after is not None else None
    try:
        await asyncio.gather(*(_end(name, leaving) for name in leaving))
    finally:
        if successor is not None:
            await successor.close()
        for prefix in begun:
            # Only now: deliveries of the former sessions may have such names, too.
            await consume.on_new_session(prefix)


def _session_names(connection: Connection) -> Sequence[str]:
    return load_connection_type(connection.connection_type).session_names(connection)


def _broker(connection: Connection) -> tuple[str, int]:
    return connection.broker_uri.host, connection.broker_uri.port


async def _connect(
    after: Connection, before: Connection, leaving: dict[str, ConnectionClient], consume: ConsumeOptions
) -> Link | None:
    """Let the broker keep messages for a new client, if any; its next link gets them.

    Another address may belong to the same broker: then the new client takes a session over, which is no longer `leaving`.
    """
    known = _session_names(before) if _broker(after) == _broker(before) else ()
    new = next(((number, name) for number, name in enumerate(_session_names(after)) if name not in known), None)
    if new is None:
        return None
    if (reason := refusal(after)) is not None:
        raise ConnectionRefused(Detail.REFUSED, reason)
    number, name = new
    open_session = load_connection_type(after.connection_type).open_session
    assert open_session is not None, "the connection type has sessions"
    former = leaving[name].link if name in leaving else None
    try:
        return await open_session(after, number, consume)
    finally:
        if former is not None and former.lost.done():
            leaving.pop(name).stop_consuming()


async def _end(name: str, leaving: dict[str, ConnectionClient]) -> None:
    """End a session, on the next link if the client loses its link, and remove it from `leaving`."""
    client = leaving[name]
    while client.is_running:
        if isinstance(link := client.link, SessionLink):
            with contextlib.suppress(NotConnected):
                await link.end_session()
                client.stop_consuming()
                del leaving[name]
                return
        await asyncio.sleep(_PAUSE)
