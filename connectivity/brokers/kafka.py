"""Kafka: what a connection document of this type may say, and what people are told about it.

`MANUAL` says how addresses, headers, outcomes and limits are here; `docs/kafka.md` is printed from it. The options are
described in `connectivity.kafka.options`, the link in `connectivity.kafka.link`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from connectivity.brokers.base import BrokerType
from connectivity.errors import Problem
from connectivity.hosts import refusal
from connectivity.kafka.addresses import TOPIC, TOPIC_EXPECTED, Address, split_address
from connectivity.kafka.connecting import connect
from connectivity.kafka.consuming import IN_FLIGHT
from connectivity.kafka.examining import examine
from connectivity.kafka.link import MENDED_WITHIN, WINDOW, KafkaLink
from connectivity.kafka.options import SERVER, Options
from connectivity.kafka.records import SENDER
from connectivity.manual import AddressForm, Fault, HeaderRule, Limit, Manual, Note, Outcomes
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
        if match and (why := refusal(match["host"].strip("[]"))) is not None:
            yield Problem("specificConfig.bootstrapServers", f"{show(server)}, {why.found}", why.expected)


async def _connect(connection: Connection, client: int = 0) -> KafkaLink:
    return await connect(connection, client)


MANUAL = Manual(
    family="Kafka",
    title="Kafka",
    introduction="""\
The brokers to begin with are the one of the `uri` and those of `bootstrapServers`; the path of the `uri` is ignored. User
name and password in the `uri` log in by SASL. There is no tunnel to Kafka, since its brokers name each other's addresses.
""",
    example="examples/connections/analytics.json",
    addresses=(
        AddressForm("source", "topic", "the topic of this name", "analytics.ask"),
        AddressForm("target, reply-target", "topic", "any partition of the topic", "analytics.answers"),
        AddressForm("target, reply-target", "topic/key", "the partition that the key has", "answers/{{ entity:id }}"),
        AddressForm("target, reply-target", "topic#partition", "this partition", "answers#0"),
    ),
    address_rules="""\
A topic has 1 to 249 letters, digits, `.`, `_`, `-`, and is not `.` or `..`. Those of sources have no placeholders and must
exist. In the others placeholders may stand in all parts. A `/` is looked for first, then a `#`. Key and partition may not be
empty, a partition is a whole number; a key that comes out empty is none.
""",
    headers=(
        HeaderRule("kafka.topic", "the record's topic", "a record header"),
        HeaderRule("kafka.key", "the record's key, if there is one", "a record header"),
        HeaderRule("kafka.timestamp", "when it was made, in milliseconds", "a record header"),
        HeaderRule("correlation-id", "the record header, else a new one", "a record header"),
        HeaderRule(
            "creation-time, ttl", "in milliseconds: a record whose time is over is passed over", "record headers"
        ),
        HeaderRule(SENDER, "a record header", "the connection that publishes"),
        HeaderRule("any other", "a record header", "a record header"),
    ),
    header_rules="A record without a value has an empty payload. An enforcement's input can only be a header.",
    outcomes=Outcomes(
        settled="its offset is committed when it and all before it in its partition are settled or dropped",
        again="it is read again after a pause, with everything behind it",
        dropped="as settled",
    ),
    settling_rules="""\
That is so with a source's `qos` 1 (at least once). With 0 or none the offset is committed as soon as the record is there
(at most once). A delivery is named by topic id, partition and offset. Kafka has no mark for redeliveries: those records
carry one that were there before this link got their partition, or that it had already.
""",
    limits=(
        Limit("deliveries that wait for their end", f"{IN_FLIGHT}; then partitions are paused"),
        Limit("messages that wait for the broker's confirm", str(WINDOW)),
        Limit(
            "cuts that are mended without a new link; meanwhile the status says what is the matter",
            f"shorter than {MENDED_WITHIN:.0f} s",
        ),
    ),
    faults=(
        Fault(
            "a source's topic is missing, or is deleted",
            "status `missing address`; the connection goes on when it has been made",
        ),
        Fault("a record is larger than the topic takes", "the message fails, the others do not"),
    ),
    notes=(
        Note(
            "Group and order",
            """\
A connection is a member of its group, known by its id, so it has its partitions back at once after a crash; another
service with the same connection takes its place. A group without offsets begins where `consumerOffsetReset` says;
partitions that are made later are read from their beginning.

Each client (`clientCount`), and each consumer of a client (`consumerCount`), is a member of its own; Kafka parts the
partitions among them, so more members than partitions are of no use. One member reads a partition at a time, so its records
keep their order; give an entity's commands one key. When a document wants fewer members than before, those that are gone
keep their partitions for ten seconds. `throttlingLimit` counts for each client.

Records are published once and in order, acknowledged by all in-sync replicas.
""",
        ),
    ),
)

BROKER = BrokerType(
    name="kafka",
    schemes=("tcp", "ssl"),
    secure_schemes=("ssl",),
    options=Options,
    check=check,
    has_headers=True,
    connect=_connect,
    examine=examine,
    example_uri="ssl://fleet:${env:BROKER_PASSWORD}@kafka-1.acme.example:9093",
    manual=MANUAL,
    confirmed_status=204,
    parts_by_key=True,
)
