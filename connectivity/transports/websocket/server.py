"""Opens a WebSocket listener: authentication rules and compression."""

from __future__ import annotations

import re
import ssl
from collections import defaultdict
from collections.abc import Mapping, Sequence

from websockets.exceptions import NegotiationError
from websockets.extensions.base import Extension, ServerExtensionFactory
from websockets.extensions.permessage_deflate import PerMessageDeflate, ServerPerMessageDeflateFactory
from websockets.typing import ExtensionParameter

from connectivity.config.api_settings import SHORTEST_TOKEN, is_loopback
from connectivity.connections.model import Connection
from connectivity.connections.secret_references import texts_of
from connectivity.connections.templates import has_expression
from connectivity.mapping.mapper import codecs_of
from connectivity.transports.base import CONSUME_DEFAULTS, ConsumeOptions, ProbeReport
from connectivity.transports.listener.admission import AdmissionLimits
from connectivity.transports.listener.server import probe_port, serve, tls_context
from connectivity.transports.listener.timeouts import TimeoutOptions
from connectivity.transports.websocket.handshake import KEPT_HEADERS, Rules
from connectivity.transports.websocket.link import WebSocketLink
from connectivity.transports.websocket.options import Options, read_origins, read_tokens
from mappings.mappers import Codec

EXTRA_SOCKETS = 100
"""Additional sockets beyond the maximum number of peers, for clients that are refused with a reason."""

_WINDOW_BITS = 12
_WORD = re.compile(r"[a-z0-9_.-]+")


async def listen(
    connection: Connection,
    client: int = 0,  # noqa: ARG001 - a listener has one client
    consume: ConsumeOptions = CONSUME_DEFAULTS,
) -> WebSocketLink:
    """Open the listener. Raises NotConnected, ConnectionRefused."""
    options = Options.model_validate(connection.own_options)
    context = context_of(connection, options)
    link = WebSocketLink(
        connection.id,
        [source.addresses for source in connection.sources],
        rules_of(connection, options),
        TimeoutOptions(
            ping=options.ping_interval.total_seconds(),
            pong=options.ping_timeout.total_seconds(),
            output=options.output_timeout.total_seconds(),
            idle=options.idle_timeout.total_seconds(),
        ),
        AdmissionLimits(
            options.max_peers + EXTRA_SOCKETS, options.max_peers_per_address, options.max_accepts_per_address
        ),
        max_frame=options.max_frame,
        max_unsettled=options.max_unsettled,
        held_bytes=consume.unsettled_bytes,
        max_output=options.max_output,
        extensions=extensions_of(options),
    )
    return await serve(connection, link, context)


def context_of(connection: Connection, options: Options) -> ssl.SSLContext | None:
    """Return the TLS context; certificates are required if there are no tokens. Raises ConnectionRefused."""
    return tls_context(connection, is_certificate_needed=not options.tokens)


def rules_of(connection: Connection, options: Options) -> Rules:
    """Return the rules for admission and the paths of a connection."""
    paths = {path for source in connection.sources for path in source.addresses}
    paths |= {target.address for target in connection.targets if not has_expression(target.address)}
    return Rules(
        frozenset(paths),
        read_tokens(options.tokens),
        read_origins(options.origins),
        options.max_peers,
        accepts_certificate=connection.ca is not None,
        codecs=codecs_by_path(connection),
        shortest_token=0 if is_loopback(connection.broker_uri.host) else SHORTEST_TOKEN,
        headers=used_headers(connection),
    )


def used_headers(connection: Connection) -> frozenset[str]:
    """Return the request headers that the document, its payload mappers or the service may use.

    Placeholders and scripts name headers; a word of another meaning only keeps a header in vain.
    """
    document = connection.model_dump(mode="json", exclude={"uri", "credentials", "ca"})
    words = _WORD.findall(" ".join(texts_of(document)).lower())
    read = [codec.reads_headers for codecs in codecs_by_path(connection).values() for codec in codecs]
    return KEPT_HEADERS.union(words, *(word.split(".") for word in words), *read)


def codecs_by_path(connection: Connection) -> Mapping[str, Sequence[Codec]]:
    """Return the codecs of the sources at each path."""
    found: defaultdict[str, list[Codec]] = defaultdict(list)
    for source in connection.sources:
        for path in source.addresses:
            found[path] += codecs_of(connection, source.payload_mapping)
    return found


def extensions_of(options: Options) -> Sequence[ServerExtensionFactory]:
    if options.compression == "none":
        return ()
    # Small windows bound the memory of a peer, and telemetry repeats itself within them.
    return [
        _DeflateFactory(
            server_max_window_bits=_WINDOW_BITS, client_max_window_bits=_WINDOW_BITS, compress_settings={"memLevel": 5}
        )
    ]


class _DeflateFactory(ServerPerMessageDeflateFactory):
    """Declines windows that the compressor does not have: their clients connect without compression."""

    def process_request_params(
        self, params: Sequence[ExtensionParameter], accepted_extensions: Sequence[Extension]
    ) -> tuple[list[ExtensionParameter], PerMessageDeflate]:
        try:
            return super().process_request_params(params, accepted_extensions)
        except ValueError as error:
            raise NegotiationError(str(error)) from error


async def examine(connection: Connection, name: str) -> ProbeReport:  # noqa: ARG001 - a listener has no client name
    """Check whether the port is free, without accepting connections (see `base.Probe`)."""
    context_of(connection, Options.model_validate(connection.own_options))
    return await probe_port(connection)
