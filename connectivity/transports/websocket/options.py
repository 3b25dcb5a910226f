"""The `specificConfig` of WebSocket listeners.

Values are texts. Durations have a unit (`20s`, `5m`), and so have sizes (`512KiB`, `2MiB`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ByteSize, ConfigDict, Field
from pydantic.alias_generators import to_camel

from connectivity.config.quantities import Duration, PositiveDuration
from mappings.texts import lowered

_TOKEN = re.compile(r"(?P<name>[A-Za-z0-9._:@-]{1,100})=(?P<hash>[0-9a-fA-F]{64})", re.ASCII)
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^\s/,]+", re.ASCII | re.IGNORECASE)


def _entries(text: str) -> list[str]:
    return text.replace(",", " ").split()


def read_tokens(text: str) -> Mapping[str, str]:
    """Read `tablet-7=<hash>, console=<hash>` as hash → name. Raises ValueError for other texts."""
    found: dict[str, str] = {}
    for entry in _entries(text):
        if (match := _TOKEN.fullmatch(entry)) is None:
            raise ValueError("name=<SHA-256 of the token in hex>, several of them separated by commas")
        if found.setdefault(match["hash"].lower(), match["name"]) != match["name"]:
            raise ValueError("each token once")
    return found


def read_origins(text: str) -> frozenset[str]:
    """Read origins, separated by commas, in lower case. Raises ValueError for other texts."""
    found = _entries(text)
    if not all(_ORIGIN.fullmatch(each) for each in found):
        raise ValueError("* or origins such as https://console.acme.example, separated by commas")
    return frozenset(each.lower() for each in found)


def _readable_tokens(text: str) -> str:
    read_tokens(text)
    return text


def _readable_origins(text: str) -> str:
    read_origins(text)
    return text


class Options(BaseModel):
    """The options in `specificConfig`."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    tokens: Annotated[str, AfterValidator(_readable_tokens)] = Field(
        default="",
        description="Clients that may connect: `name=<SHA-256 of the token in hex>`, separated by commas. A peer sends its "
        "token as `Authorization: Bearer …` or, if it cannot set headers, as the query member `access_token`. Empty: any "
        "client that reaches the port.",
        examples=["tablet-7=9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
    )
    origins: Annotated[str, AfterValidator(_readable_origins)] = Field(
        default="",
        description="Web pages that may connect, by their origin, separated by commas; `*` for every page. Empty: none, so "
        "that no page can use a listener on the machine of its reader. Clients other than browsers send no origin.",
        examples=["https://console.acme.example"],
    )
    max_peers: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=10_000, description="Peers that may be connected at once; others get HTTP 503.", examples=["500"]
    )
    max_frame: Annotated[ByteSize, Field(ge=1024, le=1 << 30)] = Field(
        default=ByteSize(2 << 20),
        description="The largest message that a peer may send; for a larger one its socket is closed with 1009. More than "
        "`limits.payload`, so that what is only larger than that is answered.",
        examples=["4MiB"],
    )
    max_unsettled: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=100,
        description="Messages of one peer that may be unsettled; then nothing more is read from it.",
        examples=["20"],
    )
    max_output: Annotated[ByteSize, Field(ge=1024, le=1 << 30)] = Field(
        default=ByteSize(1 << 20),
        description="Bytes that may wait for one peer because it reads slowly. Answers and subscriptions wait beyond that; "
        "messages of a target do not wait: the peer's socket is closed with 1013.",
        examples=["4MiB"],
    )
    output_timeout: PositiveDuration = Field(
        default=timedelta(seconds=30),
        description="A peer that takes nothing for so long of what waits for it is cut off.",
        examples=["10s"],
    )
    ping_interval: PositiveDuration = Field(
        default=timedelta(seconds=20),
        description="A peer that was silent for so long is sent a ping.",
        examples=["60s"],
    )
    ping_timeout: PositiveDuration = Field(
        default=timedelta(seconds=20),
        description="A peer that leaves a ping unanswered for so long is cut off.",
        examples=["30s"],
    )
    idle_timeout: Duration = Field(
        default=timedelta(0),
        description="A peer that sends no message for so long is closed with 1000. `0s`: never.",
        examples=["1h"],
    )
    compression: Annotated[Literal["none", "deflate"], BeforeValidator(lowered)] = Field(
        default="none",
        description="`deflate`: messages are compressed where a peer wants it (permessage-deflate), which costs time and "
        "some 100 KiB for each peer.",
        examples=["deflate"],
    )
