"""The connection type `websocket`: its options, its validation, and how the listener is opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from connectivity.config.problems import json_path, show
from connectivity.connections import schema_patterns as patterns
from connectivity.connections.model import Connection
from connectivity.connections.templates import URI_INVALID, check_without_placeholders, has_expression, with_dummies
from connectivity.errors import Problem
from connectivity.transports.base import AsyncApiNames, ConnectionType
from connectivity.transports.listener.server import LISTENER_SCHEMA, check_listener
from connectivity.transports.websocket.options import Options
from connectivity.transports.websocket.server import examine, listen
from mappings.placeholders.template import Scope


def check(connection: Connection) -> Sequence[Problem]:
    """Return the problems of a document for a WebSocket listener."""
    return [*_check_uri(connection), *check_listener(connection), *_check_addresses(connection)]


def _check_uri(connection: Connection) -> Iterator[Problem]:
    uri = connection.broker_uri
    if uri.path not in ("", "/"):
        expected = "an address to listen at without a path, since the paths are the addresses of sources"
        yield Problem("uri", show(uri.path), expected, code=URI_INVALID)
    if uri.username is not None:
        yield Problem(
            "uri",
            "a user name",
            "no user name, because peers log in with tokens (specificConfig.tokens)",
            code=URI_INVALID,
        )


def _check_addresses(connection: Connection) -> Iterator[Problem]:
    for index, source in enumerate(connection.sources):
        for position, address in enumerate(source.addresses):
            path = json_path("sources", index, "addresses", position)
            yield from check_without_placeholders(path, address)
            if not has_expression(address):
                yield from _check_path(path, address)
    for index, target in enumerate(connection.targets):
        yield from _check_path(json_path("targets", index, "address"), target.address)


def _check_path(path: str, address: str) -> Iterator[Problem]:
    sample = with_dummies(address)
    if not sample.startswith("/") or any(character in sample for character in "?# "):
        yield Problem(path, show(address), "a path such as /twins, without a query")


_SCHEMA = {
    "allOf": [LISTENER_SCHEMA],
    "properties": {
        "sources": {"items": {"properties": {"addresses": {"items": {"pattern": "^/[^?# ]*$"}}}}},
        "targets": {"items": {"properties": {"address": {"pattern": rf"^/{patterns.part(Scope.COMMON, '[^?# ]')}*$"}}}},
    },
}

CONNECTION_TYPE = ConnectionType(
    name="websocket",
    schemes=("ws", "wss"),
    secure_schemes=("wss",),
    options=Options,
    check=check,
    has_headers=True,
    connect=listen,
    asyncapi=AsyncApiNames("ws", "wss"),
    examine=examine,
    is_listener=True,
    schema=_SCHEMA,
)
