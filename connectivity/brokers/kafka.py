"""Kafka: what its documents may say.

Addresses. A source consumes topics, by name and without placeholders: 1 to 249 letters, digits, `.`, `_`, `-`, and not
`.` or `..`. Targets and reply-targets publish to `topic`, `topic/key` or `topic#partition`; a `/` is looked for first,
then a `#`. Key and partition may not be empty, a partition is a whole number; placeholders may stand in all parts.

The broker is the `uri` together with `bootstrapServers`; the path of the `uri` is ignored. User name and password in the
`uri` log in by SASL. With a source's `qos` 1 an offset is committed when its command is settled (at least once), with 0 or
none by itself (at most once).

Headers are record headers. An enforcement's input can only be a header. There is no tunnel to Kafka, since its brokers
name each other's addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from connectivity.brokers.base import BrokerType
from connectivity.errors import Problem
from connectivity.hosts import EXPECTED as ALLOWED_HOST
from connectivity.hosts import is_refused_host
from connectivity.model import Connection
from connectivity.rules import (
    check_enforcement_inputs,
    check_source_addresses_without_placeholders,
    did_you_mean,
    has_expression,
    show,
    with_connection_id,
    with_dummies,
)
from mappings.placeholders import Scope
from mappings.texts import lowered

LARGEST_PARTITION = 2**31 - 1
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

_TOPIC = re.compile(r"(?!\.\.?$)[a-zA-Z0-9._-]{1,249}")
_PARTITION = re.compile(r"[0-9]{1,20}")
_GROUP_ID = re.compile(r"[a-zA-Z0-9._-]+")
_SERVER = re.compile(r"(?P<host>[^\s:,/@\[\]]+|\[[0-9a-fA-F:.]+\]):(?P<port>\d{1,5})")
_TOPIC_EXPECTED = "a topic of 1 to 249 letters, digits and . _ -, which is not . or .."


def _check_servers(text: str) -> str:
    for server in text.split(","):
        match = _SERVER.fullmatch(server.strip())
        if match is None or not 0 < int(match["port"]) < 65_536:
            raise ValueError("host:port, several of them separated by commas")
    return text


class Options(BaseModel):
    """What `specificConfig` may say."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")

    bootstrap_servers: Annotated[str, AfterValidator(_check_servers)] = Field(
        description="Brokers to begin with, `host:port`, separated by commas; the broker of the `uri` is added.",
        examples=["kafka-1.acme.example:9092,kafka-2.acme.example:9092"],
    )
    sasl_mechanism: str = Field(
        default="PLAIN",
        description="How user name and password of the `uri` are sent: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`.",
        examples=["SCRAM-SHA-512"],
    )
    group_id: str | None = Field(
        default=None,
        description="Consumer group: letters, digits, `.`, `_`, `-`; may hold `{{ connection:id }}`. Absent: the "
        "connection's id.",
        examples=["fleet-{{ connection:id }}"],
    )
    consumer_offset_reset: Literal["earliest", "latest"] = Field(
        default="latest",
        description="Where a group without committed offsets begins: `earliest` or `latest`.",
        examples=["earliest"],
    )
    debug_enabled: Annotated[bool, BeforeValidator(lowered)] = Field(
        default=False,
        description="Whether acknowledgements say where a record went: topic, partition, offset, sizes.",
        examples=["true"],
    )


class Address(NamedTuple):
    """Where a record goes: at most one of key and partition is there."""

    topic: str
    key: str | None = None
    partition: str | None = None


def split_address(address: str) -> Address:
    """`topic`, `topic/key`, `topic#partition` → their parts, of which each may be empty."""
    topic, slash, key = address.partition("/")
    if slash:
        return Address(topic, key=key)
    topic, mark, partition = address.partition("#")
    return Address(topic, partition=partition if mark else None)


def check(connection: Connection) -> Sequence[Problem]:
    """The rules of Kafka."""
    return [
        *_check_tunnel(connection),
        *check_source_addresses_without_placeholders(connection),
        *check_enforcement_inputs(connection, Scope.ENFORCEMENT_INPUT_HEADER),
        *_check_sources(connection),
        *_check_published_addresses(connection),
        *_check_options(connection),
    ]


def _check_tunnel(connection: Connection) -> Iterator[Problem]:
    if connection.ssh_tunnel is not None:
        yield Problem("sshTunnel", "a tunnel", "none: SSH tunneling is not supported with Kafka")


def _check_sources(connection: Connection) -> Iterator[Problem]:
    for index, source in enumerate(connection.sources):
        if source.qos not in (None, 0, 1):
            yield Problem(f"sources[{index}].qos", str(source.qos), "0 (at most once) or 1 (at least once)")
        for position, address in enumerate(source.addresses):
            if not _TOPIC.fullmatch(address) and not has_expression(address):
                yield Problem(f"sources[{index}].addresses[{position}]", show(address), _TOPIC_EXPECTED)


def _check_published_addresses(connection: Connection) -> Iterator[Problem]:
    for index, source in enumerate(connection.sources):
        yield from _check_published(f"sources[{index}].replyTarget.address", source.reply_target.address)
    for index, target in enumerate(connection.targets):
        yield from _check_published(f"targets[{index}].address", target.address)


def _check_published(path: str, text: str) -> Iterator[Problem]:
    """Placeholders stand for one letter here, since what they bring in is judged when it is there."""
    address = split_address(with_dummies(text))
    if not _TOPIC.fullmatch(address.topic):
        yield Problem(path, show(text), f"topic, topic/key or topic#partition, with {_TOPIC_EXPECTED}")
    if address.key == "":
        yield Problem(path, show(text), "a key after the slash")
    # A digit stands for an expression here, so that letters beside one are seen.
    partition = split_address(with_dummies(text, "0")).partition
    if partition is not None and not (_PARTITION.fullmatch(partition) and int(partition) <= LARGEST_PARTITION):
        yield Problem(path, show(text), "a whole number, the partition, after the #")


def _check_options(connection: Connection) -> Iterator[Problem]:
    options = connection.own_options
    mechanism = options.get("saslMechanism", "PLAIN")
    if connection.broker_uri.password is not None and mechanism.upper() not in MECHANISMS:
        hint, expected = did_you_mean(mechanism.upper(), MECHANISMS), f"one of: {', '.join(MECHANISMS)}"
        yield Problem("specificConfig.saslMechanism", show(mechanism), expected, hint)
    group = options.get("groupId")
    if group is not None and not _GROUP_ID.fullmatch(with_connection_id(group, connection.id)):
        expected = "letters, digits and . _ - after {{ connection:id }} is put in"
        yield Problem("specificConfig.groupId", show(group), expected)
    for server in options.get("bootstrapServers", "").split(","):
        match = _SERVER.fullmatch(server.strip())
        if match and is_refused_host(match["host"].strip("[]")):
            yield Problem("specificConfig.bootstrapServers", show(server), ALLOWED_HOST)


BROKER = BrokerType(
    name="kafka",
    schemes=("tcp", "ssl"),
    secure_schemes=("ssl",),
    options=Options,
    check=check,
    has_headers=True,
    connect=None,
    example_uri="ssl://fleet:${env:BROKER_PASSWORD}@kafka-1.acme.example:9093",
)
