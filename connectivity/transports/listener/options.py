"""The options in `specificConfig` that all listeners have."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from connectivity.config.quantities import WHOLE, PositiveDuration
from connectivity.transports.base import SpecificConfig


class ListenerOptions(SpecificConfig):
    """The options of any listener."""

    max_peers: Annotated[int, Field(ge=1, le=100_000), WHOLE] = Field(
        default=10_000,
        description="Maximum number of connected peers. A WebSocket listener refuses further ones with HTTP 503, a TCP "
        "listener closes their connections.",
        examples=["500"],
    )
    max_peers_per_address: Annotated[int, Field(ge=0, le=100_000), WHOLE] = Field(
        default=0,
        description="Maximum number of connections of one IP address, or of one IPv6 network; further ones are closed. `0`: "
        "only `maxPeers` applies, since many peers may be behind a proxy.",
        examples=["50"],
    )
    max_accepts_per_address: Annotated[int, Field(ge=0, le=100_000), WHOLE] = Field(
        default=1000,
        description="Maximum number of connections of one address that are accepted in a second; further ones are closed. "
        "`0`: no limit.",
        examples=["20"],
    )
    output_timeout: PositiveDuration = Field(
        default=timedelta(seconds=30),
        description="A peer that reads none of its waiting output for this long is disconnected.",
        examples=["10s"],
    )
