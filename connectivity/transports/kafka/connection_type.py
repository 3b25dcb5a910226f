"""The connection type `kafka`: its options, its validation, and how to connect."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from connectivity.config.problems import did_you_mean, show
from connectivity.connections import schema_patterns as patterns
from connectivity.connections.model import Connection
from connectivity.connections.templates import (
    check_enforcement_inputs,
    check_source_addresses_without_placeholders,
    has_expression,
    with_connection_id,
    with_dummies,
)
from connectivity.errors import Problem
from connectivity.security.egress import refusal
from connectivity.transports.base import AsyncApiNames, ConnectionType
from connectivity.transports.kafka.connector import connect
from connectivity.transports.kafka.options import SERVER, Options
from connectivity.transports.kafka.probe import examine
from connectivity.transports.kafka.records import TOPIC, TOPIC_EXPECTED, TOPIC_NAME, read_partition, split_address
from mappings.placeholders.template import Scope

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

_GROUP_ID = re.compile(r"[a-zA-Z0-9._-]+")


def check(connection: Connection) -> Sequence[Problem]:
    """Return the problems of a document for Kafka."""
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
        yield Problem("sshTunnel", "a tunnel", "no sshTunnel, because Kafka connections do not support SSH tunnels")


def _check_sources(connection: Connection) -> Iterator[Problem]:
    for index, source in enumerate(connection.sources):
        if source.qos not in (None, 0, 1):
            yield Problem(f"sources[{index}].qos", str(source.qos), "0 (at most once) or 1 (at least once)")
        for position, address in enumerate(source.addresses):
            if not TOPIC_NAME.fullmatch(address) and not has_expression(address):
                yield Problem(f"sources[{index}].addresses[{position}]", show(address), TOPIC_EXPECTED)


def _check_published_addresses(connection: Connection) -> Iterator[Problem]:
    for index, source in enumerate(connection.sources):
        yield from _check_published(f"sources[{index}].replyTarget.address", source.reply_target.address)
    for index, target in enumerate(connection.targets):
        yield from _check_published(f"targets[{index}].address", target.address)


def _check_published(path: str, text: str) -> Iterator[Problem]:
    """Check an address to publish to, with one letter in place of each placeholder."""
    address = split_address(with_dummies(text))
    if not TOPIC_NAME.fullmatch(address.topic):
        yield Problem(path, show(text), f"topic, topic/key or topic#partition, with {TOPIC_EXPECTED}")
    if address.key == "":
        yield Problem(path, show(text), "a key after the slash")
    # A digit in place of each placeholder, so that letters beside one are found.
    partition = split_address(with_dummies(text, "0")).partition
    if partition is not None and read_partition(partition) is None:
        yield Problem(path, show(text), "a partition number after the #")


def _check_options(connection: Connection) -> Iterator[Problem]:
    options = connection.own_options
    mechanism = options.get("saslMechanism", "PLAIN")
    if connection.broker_uri.password is not None and mechanism.upper() not in MECHANISMS:
        hint, expected = did_you_mean(mechanism.upper(), MECHANISMS), f"one of: {', '.join(MECHANISMS)}"
        yield Problem("specificConfig.saslMechanism", show(mechanism), expected, hint)
    group = options.get("groupId")
    if group is not None and not _GROUP_ID.fullmatch(with_connection_id(group, connection.id)):
        expected = "letters, digits and . _ - after {{ connection:id }} is replaced"
        yield Problem("specificConfig.groupId", show(group), expected)
    for server in options.get("bootstrapServers", "").split(","):
        match = SERVER.fullmatch(server.strip())
        if match and (why := refusal(match["host"].strip("[]"))) is not None:
            yield Problem("specificConfig.bootstrapServers", f"{show(server)}, {why.found}", why.expected)


def _published(scope: Scope) -> dict[str, str]:
    name, key, digit = (patterns.part(scope, literal) for literal in ("[a-zA-Z0-9._-]", r"[\s\S]", "[0-9]"))
    return {"pattern": rf"^{name}+(?:/{key}+|#{digit}+)?$"}


_HAS_PASSWORD = {"properties": {"uri": {"pattern": r"^[^$]+://[^\s/@]*:[^\s/@]*@"}}, "required": ["uri"]}
_MECHANISM = {"pattern": f"^(?:{'|'.join(map(patterns.any_case, MECHANISMS))})$|{patterns.REFERENCE}"}

_SCHEMA = {
    "properties": {
        "sshTunnel": {"type": "null"},
        "sources": {
            "items": {
                "properties": {
                    "addresses": {"items": {"pattern": r"^(?!\.\.?$)[a-zA-Z0-9._-]{1,249}$"}},
                    "qos": {"enum": [None, 0, 1]},
                    "replyTarget": {"properties": {"address": _published(Scope.SOURCE)}},
                    "enforcement": {
                        "properties": {"input": {"pattern": patterns.template(Scope.ENFORCEMENT_INPUT_HEADER)}}
                    },
                }
            }
        },
        "targets": {"items": {"properties": {"address": _published(Scope.COMMON)}}},
    },
    "if": _HAS_PASSWORD,
    "then": {"properties": {"specificConfig": {"properties": {"saslMechanism": _MECHANISM}}}},
}

CONNECTION_TYPE = ConnectionType(
    name="kafka",
    schemes=("tcp", "ssl"),
    secure_schemes=("ssl",),
    options=Options,
    check=check,
    has_headers=True,
    connect=connect,
    asyncapi=AsyncApiNames("kafka", "kafka-secure"),
    examine=examine,
    confirmed_status=204,
    address_header=TOPIC,
    key_mark="/",
    keeps_key_order=True,
    schema=_SCHEMA,
)
