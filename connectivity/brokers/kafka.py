"""Kafka.

**Addresses.** A source consumes topics, by name and without placeholders: 1 to 249 letters, digits, `.`, `_`, `-`, and not
`.` or `..`. They have to exist. Targets and reply-targets publish to `topic`, `topic/key` or `topic#partition`; a `/` is
looked for first, then a `#`. Key and partition may not be empty, a partition is a whole number; placeholders may stand in
all parts, and a key that comes out empty is none.

**Brokers.** The one of the `uri` together with `bootstrapServers`; the path of the `uri` is ignored. User name and password
in the `uri` log in by SASL. There is no tunnel to Kafka, since its brokers name each other's addresses.

**Headers** are record headers. Deliveries also have `kafka.topic`, `kafka.timestamp` (milliseconds), `kafka.key` if there
is one, and a new `correlation-id` if there is none. A record with `creation-time` and `ttl` (milliseconds) whose time is
over is passed over. Published records name their connection in `ditto-connection-id`. A record without a value has an empty
payload. An enforcement's input can only be a header.

**Settling.** With a source's `qos` 1 an offset is committed when its record and all before it in its partition are settled
or dropped (at least once), with 0 or none as soon as the record is there (at most once). A record that is to come again is
read again after a pause, with everything behind it. A delivery is named by topic id, partition and offset. Kafka has no
mark for redeliveries: those records carry one that were there before this link got their partition, or that it had already.

**Group.** A connection is a member of its group, known by its id, so it has its partitions back at once after a crash;
another service with the same connection takes its place. Each client (`clientCount`), and each consumer of a client
(`consumerCount`), is a member of its own; Kafka parts the partitions among them, so more members than partitions are of no
use. One member reads a partition at a time, so its records keep their order; give an entity's commands one key. When a
document wants fewer members than before, those that are gone keep their partitions for ten seconds. A group without
offsets begins where `consumerOffsetReset` says; partitions that are made later are read from their beginning.

**Limits.** Records are published once and in order, acknowledged by all in-sync replicas; those larger than the topic takes
are refused one by one. 4000 messages may wait for the broker's confirm, 1000 deliveries for their end; then partitions are
paused. Cuts shorter than five seconds are mended without a new link.

The options are described in `connectivity.kafka.options`, the link in `connectivity.kafka.link`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from connectivity.brokers.base import BrokerType
from connectivity.errors import Problem
from connectivity.hosts import EXPECTED as ALLOWED_HOST
from connectivity.hosts import is_refused_host
from connectivity.kafka.addresses import TOPIC, TOPIC_EXPECTED, Address, split_address
from connectivity.kafka.connecting import connect
from connectivity.kafka.link import KafkaLink
from connectivity.kafka.options import SERVER, Options
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

__all__ = ["BROKER", "Address", "Options", "split_address"]

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

LARGEST_PARTITION = 2**31 - 1

_PARTITION = re.compile(r"[0-9]{1,20}")
_GROUP_ID = re.compile(r"[a-zA-Z0-9._-]+")


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
            if not TOPIC.fullmatch(address) and not has_expression(address):
                yield Problem(f"sources[{index}].addresses[{position}]", show(address), TOPIC_EXPECTED)


def _check_published_addresses(connection: Connection) -> Iterator[Problem]:
    for index, source in enumerate(connection.sources):
        yield from _check_published(f"sources[{index}].replyTarget.address", source.reply_target.address)
    for index, target in enumerate(connection.targets):
        yield from _check_published(f"targets[{index}].address", target.address)


def _check_published(path: str, text: str) -> Iterator[Problem]:
    """Placeholders stand for one letter here, since what they bring in is judged when it is there."""
    address = split_address(with_dummies(text))
    if not TOPIC.fullmatch(address.topic):
        yield Problem(path, show(text), f"topic, topic/key or topic#partition, with {TOPIC_EXPECTED}")
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
        match = SERVER.fullmatch(server.strip())
        if match and is_refused_host(match["host"].strip("[]")):
            yield Problem("specificConfig.bootstrapServers", show(server), ALLOWED_HOST)


async def _connect(connection: Connection, client: int = 0) -> KafkaLink:
    return await connect(connection, client)


BROKER = BrokerType(
    name="kafka",
    schemes=("tcp", "ssl"),
    secure_schemes=("ssl",),
    options=Options,
    check=check,
    has_headers=True,
    connect=_connect,
    example_uri="ssl://fleet:${env:BROKER_PASSWORD}@kafka-1.acme.example:9093",
)
