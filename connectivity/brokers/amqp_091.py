"""AMQP 0.9.1, as RabbitMQ speaks it.

**Addresses.** A source consumes queues, by name and without placeholders; they must exist. A target publishes to
`exchange/routingKey`: exactly one `/` between them, the exchange may be empty (`/orders` goes straight to the queue
`orders`), the key may not; a `/` at the end is ignored. A target's address is judged as it is written, so its expressions
must not contain a `/`. A reply-target's address is judged when something is published to it, since it mostly comes with
the request: `/{{ header:reply-to }}` is the classic pattern of a reply queue.

The path of the `uri` is the virtual host, percent-decoded: none or `/%2F` is the host `/`. Without a user name in it,
`guest` with the password `guest` logs in.

**Headers** travel as table headers. Of a delivery, `content-type`, `correlation-id`, `reply-to` and `message-id` are taken
from its properties first; values that are no text are written as text (`true`, `12.5`, `2030-01-15T07:30:00Z`, lists and
tables as JSON, bytes that are no UTF-8 in base64). In messages to send, every header goes into the table and these four
into the properties too. An enforcement's input can only be a header.

**Settling.** A settled delivery is acknowledged; one that is to come again goes back to its queue and comes at once, marked;
one that is dropped is rejected, and goes where the queue sends dead letters. Outcomes reach the broker in the order of
arrival. A delivery is named by its message id, else by its correlation id and its bytes.

**Several clients and consumers.** The clients of a connection (`clientCount`), and the consumers that each has for a queue
(`consumerCount`), compete for the messages of the queues. RabbitMQ hands messages out in the order of the queue, but two
that went to different clients may arrive the other way round; commands of one entity are carried out in the order in which
they arrive. A queue with `x-single-active-consumer` keeps its order: one consumer gets everything, and another takes over
when that one is gone.

**Publishing.** Messages are persistent and confirmed. One that no queue gets is a failure that says so; a missing exchange
is named and fails its messages until it exists. When the broker runs out of memory or disk it takes no messages: nothing is
published then, and everything in its order afterwards.

**Limits.** A missing queue keeps the connection from being made; it is tried again. 1000 deliveries of each source may wait
for their end, 500 messages for the broker's confirm. A client certificate is accepted and not used: logging in is by user
name and password.
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


async def _connect(connection: Connection, client: int = 0) -> AmqpLink:  # noqa: ARG001 - all clients are alike
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
