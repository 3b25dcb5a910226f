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

import re
from collections.abc import Iterator, Sequence
from typing import Annotated
from urllib.parse import unquote

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

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


def _read_digits(value: object) -> object:
    """Options are texts; of a number nothing but its digits, where the library would take spaces and `_` too."""
    if isinstance(value, str) and not _DIGITS.fullmatch(value):
        raise ValueError("a whole number")
    return value


def _read_switch(value: object) -> object:
    if isinstance(value, str) and value not in ("true", "false"):
        raise ValueError("true or false")
    return value


_DIGITS = re.compile(r"[0-9]{1,18}")
Milliseconds = Annotated[int, Field(ge=0), BeforeValidator(_read_digits)]
Count = Annotated[int, Field(ge=0), BeforeValidator(_read_digits)]
Switch = Annotated[bool, BeforeValidator(_read_switch)]


class Options(BaseModel):
    """What `specificConfig` may say."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")

    connection_timeout: Milliseconds = Field(
        default=60_000, description="Milliseconds until connecting is given up; 0: never.", examples=["10000"]
    )
    handshake_timeout: Milliseconds = Field(
        default=10_000, description="Milliseconds until the handshake is given up.", examples=["5000"]
    )
    channel_rpc_timeout: Milliseconds = Field(
        default=600_000, description="Milliseconds until a call on a channel is given up.", examples=["30000"]
    )
    channel_should_check_rpc_response_type: Switch = Field(
        default=False, description="Whether the type of a call's answer is checked.", examples=["true"]
    )
    network_recovery_interval: Milliseconds = Field(
        default=5_000,
        description="Accepted and not used: lost links are made again with the service's own pauses.",
        examples=["5000"],
    )
    requested_channel_max: Count = Field(
        default=2_047, description="Channels to ask for; 0: as many as the broker allows.", examples=["100"]
    )
    requested_frame_max: Count = Field(
        default=0, description="Bytes of a frame to ask for; 0: as many as the broker allows.", examples=["131072"]
    )
    requested_heartbeat: Count = Field(
        default=60, description="Seconds between heartbeats to ask for; 0: none.", examples=["30"]
    )
    topology_recovery_enabled: Switch = Field(
        default=True,
        description="Accepted and not used: every new link declares what it needs.",
        examples=["false"],
    )
    shutdown_timeout: Milliseconds = Field(
        default=10_000, description="Milliseconds until closing is given up.", examples=["3000"]
    )


def split_address(address: str) -> tuple[str, str]:
    """`exchange/routingKey` → both. Raises ValueError that says what was expected."""
    exchange, *keys = address.rstrip("/").split("/")
    if len(keys) != 1:
        raise ValueError("the format exchange/routingKey")
    return exchange, keys[0]


def virtual_host(path: str) -> str:
    """The virtual host named by the path of a `uri`. Raises ValueError for more than one segment."""
    if "/" in path[1:]:
        raise ValueError("at most one path segment, the virtual host, with %2F for a slash in it")
    return unquote(path[1:]) or "/"


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


BROKER = BrokerType(
    name="amqp-091",
    schemes=("amqp", "amqps"),
    secure_schemes=("amqps",),
    options=Options,
    check=check,
    has_headers=True,
    connect=None,
    example_uri="amqps://fleet:${env:BROKER_PASSWORD}@broker.acme.example:5671/fleet",
)
