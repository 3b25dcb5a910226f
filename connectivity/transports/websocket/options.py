"""The `specificConfig` of WebSocket listeners.

Values are texts. Durations have a unit (`20s`, `5m`), and so have sizes (`512KiB`, `2MiB`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field

from connectivity.config.quantities import SIZE, WHOLE, Duration, PositiveDuration
from connectivity.connections.schema_patterns import any_case
from connectivity.transports.listener.options import ListenerOptions
from mappings.texts import lower_text

_TOKEN = re.compile(r"(?P<name>[A-Za-z0-9._:@-]{1,100})=(?P<hash>[0-9a-fA-F]{64})", re.ASCII)
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^\s/,]+", re.ASCII | re.IGNORECASE)


def _entries(text: str) -> list[str]:
    return text.replace(",", " ").split()


def read_tokens(text: str) -> Mapping[str, str]:
    """Read `tablet-7=<hash>, console=<hash>` as hash → name. Raises ValueError for other texts."""
    found: dict[str, str] = {}
    for entry in _entries(text):
        if (match := _TOKEN.fullmatch(entry)) is None:
            raise ValueError("name=<SHA-256 of the token in hex>, or several of these separated by commas")
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


Compression = (
    Literal["none", "deflate"] | Annotated[str, Field(pattern=f"^(?:{any_case('none')}|{any_case('deflate')})$")]
)


class Options(ListenerOptions):
    """The options in `specificConfig`."""

    tokens: Annotated[str, AfterValidator(_readable_tokens)] = Field(
        default="",
        description="Clients that may connect: `name=<SHA-256 of the token in hex>`, separated by commas. A token has at "
        "least 16 characters, unless the listener is at loopback. A peer sends its token as `Authorization: Bearer …` or, "
        "if it cannot set headers, as the query parameter `access_token`. Empty: any client that reaches the port may "
        "connect, unless a `ca` requires a certificate.",
        examples=["tablet-7=eb587cd7ff7cb296cdc3433db5657f230ef3ec224d29a97af6f3f706d70a6721"],
    )
    origins: Annotated[str, AfterValidator(_readable_origins)] = Field(
        default="",
        description="Origins of web pages that may connect, separated by commas; `*`: all. Empty: no web page, so that no "
        "page can use a listener on its visitor's machine. Clients other than browsers send no origin.",
        examples=["https://console.acme.example"],
    )
    max_frame: Annotated[ByteSize, Field(ge=1024, le=1 << 30), SIZE] = Field(
        default=ByteSize(2 << 20),
        description="Maximum size of a message; after a larger message, the service closes the peer's socket with "
        "1009. `maxFrame` should exceed `limits.payload`: a message between the two limits gets an error response.",
        examples=["4MiB"],
    )
    max_unsettled: Annotated[int, Field(ge=1, le=10_000), WHOLE] = Field(
        default=100,
        description="Maximum number of unsettled messages of one peer; at the limit, the service stops reading from "
        "this peer.",
        examples=["20"],
    )
    max_output: Annotated[ByteSize, Field(ge=1024, le=1 << 30), SIZE] = Field(
        default=ByteSize(1 << 20),
        description="Maximum size of the output that waits for a slow peer when a message of a target comes: if more "
        "waits, the service closes the peer's socket with 1013. Responses and subscriptions wait as soon as the output "
        "has 64 KiB, whatever this size is.",
        examples=["4MiB"],
    )
    ping_interval: PositiveDuration = Field(
        default=timedelta(seconds=20),
        description="A ping is sent to a peer that was silent for this long.",
        examples=["60s"],
    )
    ping_timeout: PositiveDuration = Field(
        default=timedelta(seconds=20),
        description="A peer that does not respond to a ping within this time is disconnected.",
        examples=["30s"],
    )
    idle_timeout: Duration = Field(
        default=timedelta(0),
        description="If a peer sends no message for this long, the service closes its socket with 1000. `0s`: never.",
        examples=["1h"],
    )
    compression: Annotated[
        Literal["none", "deflate"], BeforeValidator(lower_text, json_schema_input_type=Compression)
    ] = Field(
        default="none",
        description="`deflate`: compress messages if the peer offers it (permessage-deflate), which costs processor time "
        "and about 100 KiB for each peer.",
        examples=["deflate"],
    )
