"""The connection type `amqp-091`: its options, its validation, and how to connect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from connectivity.config.problems import show
from connectivity.connections import schema_patterns as patterns
from connectivity.connections.model import Connection
from connectivity.connections.templates import (
    URI_INVALID,
    check_enforcement_inputs,
    check_source_addresses_without_placeholders,
)
from connectivity.errors import Problem
from connectivity.transports.amqp.connector import connect, examine
from connectivity.transports.amqp.options import Options, split_address, virtual_host
from connectivity.transports.base import AsyncApiNames, ConnectionType
from mappings.placeholders.template import Scope


def check(connection: Connection) -> Sequence[Problem]:
    """Return the problems of a document for AMQP 0.9.1."""
    return [
        *_check_virtual_host(connection),
        *check_source_addresses_without_placeholders(connection),
        *check_enforcement_inputs(connection, Scope.ENFORCEMENT_INPUT_HEADER),
        *_check_target_addresses(connection),
    ]


def _check_virtual_host(connection: Connection) -> Iterator[Problem]:
    try:
        virtual_host(connection.broker_uri.path)
    except ValueError as error:
        yield Problem("uri", show(connection.broker_uri.path), str(error), code=URI_INVALID)


def _check_target_addresses(connection: Connection) -> Iterator[Problem]:
    for index, target in enumerate(connection.targets):
        try:
            split_address(target.address)
        except ValueError as error:
            yield Problem(f"targets[{index}].address", show(target.address), str(error))


_SCHEMA = {
    "properties": {
        "uri": {"pattern": f"{patterns.REFERENCE}|://[^/]*(?:/[^/]*)?$"},
        "sources": {
            "items": {
                "properties": {
                    "addresses": {"items": {"pattern": f"^{patterns.WITHOUT_PLACEHOLDERS}"}},
                    "enforcement": {
                        "properties": {"input": {"pattern": patterns.template(Scope.ENFORCEMENT_INPUT_HEADER)}}
                    },
                }
            }
        },
        "targets": {"items": {"properties": {"address": {"pattern": "^[^/]*/[^/]+/*$"}}}},
    }
}

CONNECTION_TYPE = ConnectionType(
    name="amqp-091",
    schemes=("amqp", "amqps"),
    secure_schemes=("amqps",),
    options=Options,
    check=check,
    has_headers=True,
    connect=connect,
    asyncapi=AsyncApiNames("amqp", "amqps", "0.9.1"),
    examine=examine,
    key_mark="/",
    schema=_SCHEMA,
)
