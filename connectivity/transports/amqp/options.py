"""The `specificConfig` of AMQP 0.9.1 connections.

Values are texts; times are milliseconds unless described otherwise.
"""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import unquote

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

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


Milliseconds = Annotated[int, Field(ge=0), BeforeValidator(_read_digits)]
Count = Annotated[int, Field(ge=0), BeforeValidator(_read_digits)]
Switch = Annotated[bool, BeforeValidator(_read_switch)]


class Options(BaseModel):
    """The options in `specificConfig`."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    connection_timeout: Milliseconds = Field(
        default=60_000,
        description="Milliseconds until reaching the broker's host, with TLS, is given up; 0: never.",
        examples=["10000"],
    )
    handshake_timeout: Milliseconds = Field(
        default=10_000,
        description="Milliseconds until the login is given up; 0: never.",
        examples=["5000"],
    )
    channel_rpc_timeout: Milliseconds = Field(
        default=600_000,
        description="Milliseconds until a call on a channel (open, declare, consume) is given up; 0: never.",
        examples=["30000"],
    )
    channel_should_check_rpc_response_type: Switch = Field(
        default=False,
        description="Accepted and not used: the type of a call's answer is always checked.",
        examples=["true"],
    )
    network_recovery_interval: Milliseconds = Field(
        default=5_000,
        description="Accepted and not used: lost links are made again with the service's own pauses.",
        examples=["5000"],
    )
    requested_channel_max: Count = Field(
        default=2_047,
        description="Channels to ask for; 0: as many as the broker allows. One for each source, and two more.",
        examples=["100"],
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
        default=10_000, description="Milliseconds until closing is given up; 0: never.", examples=["3000"]
    )


def seconds(milliseconds: int) -> float | None:
    """Return a timeout for the event loop: None for none."""
    return milliseconds / 1000 if milliseconds else None


MOST_BYTES = 255
"""The longest name or routing key in bytes of UTF-8: its length is one byte."""


def split_address(address: str) -> tuple[str, str]:
    """Split `exchange/routingKey`. Raises ValueError that says what was expected."""
    exchange, *keys = address.rstrip("/").split("/")
    if len(keys) != 1:
        raise ValueError("the format exchange/routingKey, or /queue for a queue by its name")
    return exchange, keys[0]


def virtual_host(path: str) -> str:
    """Return the virtual host in the path of a `uri`. Raises ValueError for more than one segment."""
    if "/" in path[1:]:
        raise ValueError("at most one path segment, the virtual host, with %2F for a slash in it")
    return unquote(path[1:]) or "/"
