"""The `specificConfig` of Kafka connections. Values are texts."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from connectivity.config.quantities import Positive
from connectivity.connections import schema_patterns as patterns
from connectivity.transports.base import SpecificConfig
from mappings.texts import lower_text

SERVER = re.compile(r"(?P<host>[^\s:,/@\[\]]+|\[[0-9a-fA-F:.]+\]):(?P<port>[0-9]{1,5})")
_SERVER = rf"{patterns.WHITE}*(?:[^ :,/@\[\]]+|\[[0-9a-fA-F:.]+\]):[0-9]{{1,5}}{patterns.WHITE}*"
_SERVERS = {"type": "string", "pattern": f"^{_SERVER}(?:,{_SERVER})*$"}


def _check_servers(text: str) -> str:
    for server in text.split(","):
        match = SERVER.fullmatch(server.strip())
        if match is None or not 0 < int(match["port"]) < 65_536:
            raise ValueError("host:port, or several of these separated by commas")
    return text


class Options(SpecificConfig):
    """The options in `specificConfig`."""

    bootstrap_servers: Annotated[str, AfterValidator(_check_servers), WithJsonSchema(_SERVERS)] = Field(
        description="Bootstrap brokers as `host:port`, separated by commas; the broker of the `uri` is added.",
        examples=["kafka-1.acme.example:9092,kafka-2.acme.example:9092"],
    )
    sasl_mechanism: str = Field(
        default="PLAIN",
        description="SASL mechanism for the login of the `uri`: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`.",
        examples=["SCRAM-SHA-512"],
    )
    group_id: Annotated[str, WithJsonSchema({"type": "string", "pattern": patterns.GROUP_ID})] | None = Field(
        default=None,
        description="Consumer group: letters, digits, `.`, `_`, `-`; may contain `{{ connection:id }}`. Absent: the "
        "connection's ID.",
        examples=["fleet-{{ connection:id }}"],
    )
    consumer_offset_reset: Literal["earliest", "latest"] = Field(
        default="latest",
        description="Where a group without committed offsets starts: `earliest` or `latest`.",
        examples=["earliest"],
    )
    debug_enabled: Annotated[bool, BeforeValidator(lower_text)] = Field(
        default=False,
        description="Accepted and ignored: acknowledgements do not say where a record was written.",
        examples=["true"],
    )
    throttling_limit: Positive | None = Field(
        default=None,
        description="Maximum number of records per second for each client. Absent: no limit.",
        examples=["100"],
    )
