"""The `specificConfig` of TCP doors. Values are texts.

Durations have a unit (`20s`, `5m`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from connectivity.quantities import PositiveDuration


class Options(BaseModel):
    """What `specificConfig` may say."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    max_peers: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=10_000, description="Peers that may be connected at once; others are hung up on.", examples=["500"]
    )
    max_unsettled: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=16,
        description="Pieces of one peer's stream, of 64 KiB at most, that wait for their end; nothing more is read from it "
        "meanwhile.",
        examples=["4"],
    )
    output_timeout: PositiveDuration = Field(
        default=timedelta(seconds=30),
        description="A peer that takes nothing for so long of what waits for it is cut off.",
        examples=["10s"],
    )
