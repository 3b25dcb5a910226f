"""AMQP 0.9.1, as RabbitMQ speaks it: what its documents may say.

Addresses. A source consumes queues, by name and without placeholders; they must exist. A target publishes to
`exchange/routingKey`: exactly one `/` between them, the exchange may be empty (`/orders` goes straight to the queue
`orders`), the key may not; a `/` at the end is ignored. A target's address is judged as it is written, so its expressions
must not contain a `/`. A reply-target's address is judged when something is published to it, since it mostly comes with
the request: `/{{ header:reply-to }}` is the classic pattern of a reply queue.

The path of the `uri` is the virtual host, percent-decoded: none or `/%2F` is the host `/`.

Headers travel as table headers, with `content-type`, `correlation-id` and `reply-to` as properties. An enforcement's
input can only be a header. A client certificate is accepted and not used: logging in is by user name and password.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from connectivity.amqp.addresses import split_address, virtual_host
from connectivity.amqp.connecting import connect
from connectivity.amqp.link import AmqpLink
from connectivity.amqp.options import Options
from connectivity.brokers.base import BrokerType
from connectivity.errors import Problem
from connectivity.model import Connection
from connectivity.rules import (
    URI_INVALID,
    check_enforcement_inputs,
    check_source_addresses_without_placeholders,
    show,
)
from mappings.placeholders import Scope


def check(connection: Connection) -> Sequence[Problem]:
    """The rules of AMQP 0.9.1."""
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


async def _connect(connection: Connection) -> AmqpLink:
    return await connect(connection)


BROKER = BrokerType(
    name="amqp-091",
    schemes=("amqp", "amqps"),
    secure_schemes=("amqps",),
    options=Options,
    check=check,
    has_headers=True,
    connect=_connect,
    example_uri="amqps://fleet:${env:BROKER_PASSWORD}@broker.acme.example:5671/fleet",
)
