"""The connection type `tcp`: its options, its validation, and how the listener is opened."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field

from connectivity.config.problems import json_path, show
from connectivity.config.quantities import WHOLE
from connectivity.connections import schema_patterns as patterns
from connectivity.connections.model import Connection
from connectivity.connections.templates import URI_INVALID, check_without_placeholders
from connectivity.errors import Problem
from connectivity.mapping.mapper import codecs_of
from connectivity.transports.base import CONSUME_DEFAULTS, AsyncApiNames, ConnectionType, ConsumeOptions, ProbeReport
from connectivity.transports.listener.admission import AdmissionLimits
from connectivity.transports.listener.link import REPLY_TO
from connectivity.transports.listener.options import ListenerOptions
from connectivity.transports.listener.server import LISTENER_SCHEMA, check_listener, probe_port, serve, tls_context
from connectivity.transports.tcp.link import TcpLink


class Options(ListenerOptions):
    """The options in `specificConfig`."""

    max_unsettled: Annotated[int, Field(ge=1, le=1000), WHOLE] = Field(
        default=256,
        description="Maximum number of unsettled pieces, of up to 4 KiB each, of one peer's stream; at the limit the "
        "service stops reading from the peer.",
        examples=["64"],
    )


async def listen(
    connection: Connection,
    client: int = 0,  # noqa: ARG001 - a listener has one client
    consume: ConsumeOptions = CONSUME_DEFAULTS,
) -> TcpLink:
    """Open the listener. Raises NotConnected, ConnectionRefused."""
    options = Options.model_validate(connection.own_options)
    context = context_of(connection)
    link = TcpLink(
        connection.id,
        connection.sources[0].addresses[0],
        AdmissionLimits(options.max_peers, options.max_peers_per_address, options.max_accepts_per_address),
        output_timeout=options.output_timeout.total_seconds(),
        max_unsettled=options.max_unsettled,
        held_bytes=consume.unsettled_bytes,
    )
    return await serve(connection, link, context)


def context_of(connection: Connection) -> ssl.SSLContext | None:
    """Return the TLS context; a `ca` makes client certificates required. Raises ConnectionRefused."""
    context = tls_context(connection, is_certificate_needed=True)
    if context is not None:
        codecs = codecs_of(connection, connection.sources[0].payload_mapping)
        context.set_alpn_protocols([codec.alpn for codec in codecs if codec.alpn is not None])
    return context


async def examine(connection: Connection, name: str) -> ProbeReport:  # noqa: ARG001 - a listener has no client name
    """Check whether the port is free, without accepting connections (see `base.Probe`)."""
    context_of(connection)
    return await probe_port(connection)


_REPLY_TO_PEER = re.compile(rf"\{{\{{\s*header:{REPLY_TO}\s*\}}\}}")


def check(connection: Connection) -> Sequence[Problem]:
    """Return the problems of a document for a TCP listener."""
    return [*_check_uri(connection), *check_listener(connection), *_check_source(connection)]


def _check_uri(connection: Connection) -> Iterator[Problem]:
    uri = connection.broker_uri
    if uri.path not in ("", "/"):
        yield Problem(
            "uri", show(uri.path), "host:port without a path, because a TCP listener has none", code=URI_INVALID
        )
    if uri.username is not None:
        expected = "no user name, since peers present certificates (ca)"
        yield Problem("uri", "a user name", expected, code=URI_INVALID)


def _check_source(connection: Connection) -> Iterator[Problem]:
    """Check that there is one source with one address: peers do not name an address when they connect."""
    if len(connection.sources) != 1:
        yield Problem(
            "sources", f"{len(connection.sources)} sources", "one source, because TCP peers cannot choose an address"
        )
    for index, source in enumerate(connection.sources):
        path = json_path("sources", index, "addresses")
        if len(source.addresses) != 1:
            yield Problem(path, f"{len(source.addresses)} addresses", "one address")
        for position, address in enumerate(source.addresses):
            yield from check_without_placeholders(f"{path}[{position}]", address)
        if len(source.payload_mapping) > 1:
            expected = "one payload mapping, since a byte stream has one wire protocol"
            place = json_path("sources", index, "payloadMapping")
            yield Problem(place, f"{len(source.payload_mapping)} payload mappings", expected)
        reply = source.reply_target
        if reply.enabled and not _REPLY_TO_PEER.fullmatch(reply.address):
            expected = f"{{{{ header:{REPLY_TO} }}}}: replies can only go to the peer that sent the request"
            yield Problem(json_path("sources", index, "replyTarget", "address"), show(reply.address), expected)
    if connection.targets:
        yield Problem(
            "targets",
            f"{len(connection.targets)} targets",
            "no targets, because a TCP peer receives only what it requests",
        )


_REPLY_TARGET = {
    "if": {"properties": {"enabled": {"const": False}}, "required": ["enabled"]},
    "else": {"properties": {"address": {"pattern": "^" + _REPLY_TO_PEER.pattern.replace(r"\s", patterns.WHITE) + "$"}}},
}

_SCHEMA = {
    "allOf": [LISTENER_SCHEMA],
    "properties": {
        "sources": {
            "minItems": 1,
            "maxItems": 1,
            "items": {
                "properties": {
                    "addresses": {"maxItems": 1},
                    "payloadMapping": {"minItems": 1, "maxItems": 1},
                    "replyTarget": _REPLY_TARGET,
                },
                "required": ["payloadMapping"],
            },
        },
        "targets": {"maxItems": 0},
    },
    "required": ["sources"],
}

CONNECTION_TYPE = ConnectionType(
    name="tcp",
    schemes=("tcp",),
    secure_schemes=("ssl", "tls"),
    options=Options,
    check=check,
    has_headers=True,
    connect=listen,
    asyncapi=AsyncApiNames("tcp", "tls"),
    examine=examine,
    is_listener=True,
    is_stream=True,
    schema=_SCHEMA,
)
