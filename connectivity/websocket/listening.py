"""From a connection document to an open door: who may come in, TLS, the port.

The `uri` is where to listen: `0.0.0.0` and `[::]` are every address of the machine. With `wss` the door shows the
certificate of `credentials`; a `ca` means that peers may show certificates, too, and must where there are no tokens.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Sequence

from websockets.extensions.base import ServerExtensionFactory
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory

from connectivity.brokers.base import FILLED_LATER, Examination, Finding
from connectivity.errors import ConnectionRefused, Detail, LinkError, NotConnected
from connectivity.model import Connection
from connectivity.rules import has_expression
from connectivity.tls import load_client_certificate
from connectivity.websocket.admission import Rules
from connectivity.websocket.lifetime import CLOSING, OPENING, Bounds
from connectivity.websocket.link import DoorLink
from connectivity.websocket.options import Options, read_origins, read_tokens

BACKLOG = 512
"""Connections that the system keeps until they are accepted."""

_WINDOW_BITS = 12
_DETAILS = {errno.EACCES: Detail.NOT_AUTHORIZED, errno.EPERM: Detail.NOT_AUTHORIZED}


async def listen(connection: Connection, client: int = 0) -> DoorLink:  # noqa: ARG001 - a door has one client
    """Open the door. Raises NotConnected, ConnectionRefused."""
    options = Options.model_validate(connection.own_options)
    context = tls_context(connection)
    link = DoorLink(
        connection.id,
        [source.addresses for source in connection.sources],
        rules_of(connection, options),
        Bounds(
            ping=options.ping_interval.total_seconds(),
            pong=options.ping_timeout.total_seconds(),
            output=options.output_timeout.total_seconds(),
            idle=options.idle_timeout.total_seconds(),
        ),
        max_frame=options.max_frame,
        max_unsettled=options.max_unsettled,
        max_output=options.max_output,
        extensions=extensions_of(options),
    )
    uri = connection.broker_uri
    try:
        server = await asyncio.get_running_loop().create_server(
            link.make_peer,
            uri.host,
            uri.port,
            ssl=context,
            backlog=BACKLOG,
            ssl_handshake_timeout=OPENING if context is not None else None,
            ssl_shutdown_timeout=CLOSING if context is not None else None,
        )
    except OSError as error:
        await link.close()
        raise listen_error(error, uri.host, uri.port) from error
    except BaseException:
        await link.close()
        raise
    link.listening(server)
    return link


def rules_of(connection: Connection, options: Options) -> Rules:
    """Who may come in, and where there is something."""
    paths = {path for source in connection.sources for path in source.addresses}
    paths |= {target.address for target in connection.targets if not has_expression(target.address)}
    return Rules(
        frozenset(paths),
        read_tokens(options.tokens),
        read_origins(options.origins),
        options.max_peers,
        wants_certificate=connection.ca is not None,
    )


def extensions_of(options: Options) -> Sequence[ServerExtensionFactory]:
    if options.compression == "none":
        return ()
    # Small windows: a peer's share of memory is bounded, and telemetry repeats itself within them.
    return [
        ServerPerMessageDeflateFactory(
            server_max_window_bits=_WINDOW_BITS,
            client_max_window_bits=_WINDOW_BITS,
            compress_settings={"memLevel": 5},
        )
    ]


def tls_context(connection: Connection) -> ssl.SSLContext | None:
    """What the door shows and whom it trusts; None without TLS. Raises ConnectionRefused for what cannot be used."""
    if not connection.broker_uri.is_secure:
        return None
    own = connection.credentials
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if own is None or not own.cert or own.key is None:
            raise ValueError("the door has none; expected credentials with cert and key")
        load_client_certificate(context, own.cert, own.key.get_secret_value())
        if connection.ca is not None:
            context.load_verify_locations(cadata=connection.ca)
            has_tokens = bool(Options.model_validate(connection.own_options).tokens)
            context.verify_mode = ssl.CERT_OPTIONAL if has_tokens else ssl.CERT_REQUIRED
    except (ssl.SSLError, ValueError) as error:
        raise ConnectionRefused(Detail.CERTIFICATE, f"the connection's own: {error}") from error
    return context


def listen_error(error: OSError, host: str, port: int) -> LinkError:
    """Why nobody can listen there, in the system's words."""
    words = f"cannot listen at {host}:{port}: {os.strerror(error.errno) if error.errno else error}".lower()
    if isinstance(error, socket.gaierror):
        return NotConnected(Detail.UNKNOWN_HOST, f"{host}: {error.strerror}")
    if error.errno in _DETAILS:
        return ConnectionRefused(_DETAILS[error.errno], words)
    return NotConnected(Detail.REFUSED, words)


async def examine(connection: Connection, name: str) -> Examination:  # noqa: ARG001 - nobody has a name here
    """See `connectivity.brokers.base.Examine`: whether the port could be listened at. Nobody is let in."""
    tls_context(connection)
    uri = connection.broker_uri
    note = ""
    try:
        # Bound and not listened at: nobody could connect.
        server = await asyncio.get_running_loop().create_server(
            asyncio.Protocol, uri.host, uri.port, start_serving=False
        )
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise listen_error(error, uri.host, uri.port) from error
        note = f"somebody listens at port {uri.port} already, which may be this connection itself"
    else:
        server.close()

    def look(address: str) -> Finding:
        return Finding(address, note=FILLED_LATER, is_known=False) if has_expression(address) else Finding(address)

    return Examination(
        [[look(address) for address in source.addresses] for source in connection.sources],
        [look(source.reply_target.address) for source in connection.sources],
        [look(target.address) for target in connection.targets],
        note,
    )
