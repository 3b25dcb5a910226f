"""From a connection document to an open TCP door.

With TLS, peers and the door agree on the wire protocol by its name (ALPN) where a peer names some.
"""

from __future__ import annotations

import ssl

from connectivity.brokers.base import Examination
from connectivity.doors.listening import look_at_port, serve, tls_context
from connectivity.mapper import codecs_of
from connectivity.model import Connection
from connectivity.tcp.link import TcpLink
from connectivity.tcp.options import Options


async def listen(connection: Connection, client: int = 0) -> TcpLink:  # noqa: ARG001 - a door has one client
    """Open the door. Raises NotConnected, ConnectionRefused."""
    options = Options.model_validate(connection.own_options)
    context = context_of(connection)
    link = TcpLink(
        connection.id,
        connection.sources[0].addresses[0],
        output_timeout=options.output_timeout.total_seconds(),
        max_peers=options.max_peers,
        max_unsettled=options.max_unsettled,
    )
    return await serve(connection, link, context)


def context_of(connection: Connection) -> ssl.SSLContext | None:
    """Where the door trusts certificates, nobody is let in without one. Raises ConnectionRefused."""
    context = tls_context(connection, is_certificate_needed=True)
    if context is not None:
        codecs = codecs_of(connection, connection.sources[0].payload_mapping)
        context.set_alpn_protocols([codec.alpn for codec in codecs if codec.alpn is not None])
    return context


async def examine(connection: Connection, name: str) -> Examination:  # noqa: ARG001 - nobody has a name here
    """See `connectivity.brokers.base.Examine`: whether the port could be listened at. Nobody is let in."""
    context_of(connection)
    return await look_at_port(connection)
