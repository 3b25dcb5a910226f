"""The `specificConfig` of AMQP 0.9.1 connections.

Values are texts; times are milliseconds unless described otherwise.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import unquote

from pydantic import BeforeValidator, Field

from connectivity.transports.base import SpecificConfig

_DIGITS = re.compile(r"[0-9]{1,18}")


def _read_digits(value: object) -> object:
    """Accept only digits: the library would also accept spaces and `_`."""
    if isinstance(value, str) and not _DIGITS.fullmatch(value):
        raise ValueError("a whole number")
    return value


def _read_switch(value: object) -> object:
    if isinstance(value, str) and value not in ("true", "false"):
        raise ValueError("true or false")
    return value


Digits = Annotated[str, Field(pattern="^[0-9]{1,18}$")]
Milliseconds = Annotated[int, Field(ge=0), BeforeValidator(_read_digits, json_schema_input_type=Digits)]
Count = Annotated[int, Field(ge=0), BeforeValidator(_read_digits, json_schema_input_type=Digits)]
Switch = Annotated[bool, BeforeValidator(_read_switch, json_schema_input_type=Literal["true", "false"])]

MAX_CHANNELS, MAX_FRAME = (1 << 16) - 1, (1 << 32) - 1
"""The highest values of the protocol's fields."""

MAX_HEARTBEAT = 65_534
"""The field has 16 bits; the library takes its highest value for no heartbeats."""


class Options(SpecificConfig):
    """The options in `specificConfig`."""

    connection_timeout: Milliseconds = Field(
        default=60_000,
        description="Timeout in milliseconds for connecting to the broker's host, including TLS; 0: the timeout of the "
        "system, and 60 s for TLS.",
        examples=["10000"],
    )
    handshake_timeout: Milliseconds = Field(
        default=10_000, description="Timeout in milliseconds for the login; 0: no timeout.", examples=["5000"]
    )
    channel_rpc_timeout: Milliseconds = Field(
        default=600_000,
        description="Timeout in milliseconds for a call on a channel (open, declare, consume); 0: no timeout.",
        examples=["30000"],
    )
    channel_should_check_rpc_response_type: Switch = Field(
        default=False, description="Accepted and ignored: the type of a response is always checked.", examples=["true"]
    )
    network_recovery_interval: Milliseconds = Field(
        default=5_000,
        description="Accepted and ignored: the service reconnects with its own delays.",
        examples=["5000"],
    )
    requested_channel_max: Annotated[Count, Field(le=MAX_CHANNELS)] = Field(
        default=2_047,
        description="Maximum number of channels to request; 0: the broker's limit. The service needs one channel for "
        "each source, and two more.",
        examples=["100"],
    )
    requested_frame_max: Annotated[Count, Field(le=MAX_FRAME)] = Field(
        default=0, description="Maximum frame size in bytes to request; 0: the broker's limit.", examples=["131072"]
    )
    requested_heartbeat: Annotated[Count, Field(le=MAX_HEARTBEAT)] = Field(
        default=60,
        description=f"Heartbeat interval in seconds to request, at most {MAX_HEARTBEAT:,}; 0: no heartbeats.",
        examples=["30"],
    )
    topology_recovery_enabled: Switch = Field(
        default=True,
        description="Accepted and ignored: every new link opens its channels and consumers again.",
        examples=["false"],
    )
    shutdown_timeout: Milliseconds = Field(
        default=10_000,
        description="Timeout in milliseconds for closing the connection; 0: no timeout.",
        examples=["3000"],
    )


def seconds(milliseconds: int) -> float | None:
    """Return a timeout in seconds for the event loop; None (no timeout) for 0."""
    return milliseconds / 1000 if milliseconds else None


MOST_BYTES = 255
"""The longest name or routing key in bytes of UTF-8: its length is one byte."""


DIRECT_REPLIES = "amq.rabbitmq.reply-to"
"""The `reply-to` that RabbitMQ replaces by the publisher's own address for direct replies."""

DIRECT_REPLY = f"{DIRECT_REPLIES}."
"""The beginning of RabbitMQ's addresses for direct replies, which are not queues. The rest is base64.

RabbitMQ delivers a mandatory message to such an address, and returns it as unroutable too.
"""


def split_address(address: str) -> tuple[str, str]:
    """Split `exchange/routingKey`. Raises ValueError that says what was expected."""
    if address.startswith(f"/{DIRECT_REPLY}"):
        return "", address[1:]
    exchange, *keys = address.rstrip("/").split("/")
    if len(keys) != 1:
        raise ValueError("exchange/routingKey, or /queue to publish to the queue of this name")
    return exchange, keys[0]


def virtual_host(path: str) -> str:
    """Return the virtual host in the path of a `uri`. Raises ValueError for more than one segment."""
    if "/" in path[1:]:
        raise ValueError("at most one path segment, the virtual host, in which %2F is a slash")
    return unquote(path[1:]) or "/"
