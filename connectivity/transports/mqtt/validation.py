"""Validation of MQTT connection documents, beyond the rules for all connection types.

Ditto's MQTT bindings: QoS is required; addresses have MQTT's syntax; MQTT 3.1.1 carries no headers, so its header
mappings can use only `mqtt.topic`, `mqtt.qos` and `mqtt.retain`, and it has one client with one consumer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import ValidationError

from connectivity.config.problems import did_you_mean, json_path, show
from connectivity.connections import schema_patterns as patterns
from connectivity.connections.model import Connection
from connectivity.connections.templates import (
    check_enforcement_inputs,
    check_source_addresses_without_placeholders,
    has_expression,
    with_dummies,
)
from connectivity.errors import Problem
from connectivity.transports.mqtt.options import Options
from connectivity.transports.mqtt.topics import filter_fault, topic_fault
from mappings.errors import PlaceholderError
from mappings.placeholders.template import Scope, parse

PACKET_HEADERS = ("mqtt.topic", "mqtt.qos", "mqtt.retain")
"""The headers that represent fields of an MQTT packet, so that MQTT 3.1.1 has them too."""

_READABLE = frozenset(f"header:{name}" for name in PACKET_HEADERS)


def check_mqtt(connection: Connection) -> Sequence[Problem]:
    """Return the problems of a document for MQTT 3.1.1."""
    return [
        *_check_both(connection),
        *_check_single_client(connection),
        *_check_reply_addresses(connection),
        *_check_header_mappings(connection),
        *check_enforcement_inputs(connection, Scope.ENFORCEMENT_INPUT_ADDRESS),
    ]


def check_mqtt_5(connection: Connection) -> Sequence[Problem]:
    """Return the problems of a document for MQTT 5."""
    return [*_check_both(connection), *check_enforcement_inputs(connection, Scope.ENFORCEMENT_INPUT)]


def _check_both(connection: Connection) -> Iterator[Problem]:
    yield from _check_client_id(connection)
    yield from check_source_addresses_without_placeholders(connection)
    for index, source in enumerate(connection.sources):
        if source.qos is None:
            yield _qos_problem("sources", index)
        for position, address in enumerate(source.addresses):
            if not has_expression(address) and (fault := filter_fault(address)) is not None:
                path = json_path("sources", index, "addresses", position)
                yield Problem(path, f"{show(address)}: {fault}", "a topic filter, with + and # as whole levels")
    for index, target in enumerate(connection.targets):
        if target.qos is None:
            yield _qos_problem("targets", index)
        yield from _check_topic(json_path("targets", index, "address"), target.address)


def _qos_problem(part: str, index: int) -> Problem:
    return Problem(json_path(part, index, "qos"), "nothing", "0, 1 or 2: MQTT requires a QoS")


def _check_topic(path: str, address: str) -> Iterator[Problem]:
    if (fault := topic_fault(with_dummies(address))) is not None:
        yield Problem(path, f"{show(address)}: {fault}", "a topic without wildcards")


def _check_single_client(connection: Connection) -> Iterator[Problem]:
    if connection.client_count > 1:
        yield Problem("clientCount", show(connection.client_count), "1, because MQTT 3.1.1 has no shared subscriptions")
    for index, source in enumerate(connection.sources):
        if source.consumer_count > 1:
            yield Problem(
                json_path("sources", index, "consumerCount"),
                show(source.consumer_count),
                "1, because MQTT 3.1.1 has no shared subscriptions",
            )


def _check_reply_addresses(connection: Connection) -> Iterator[Problem]:
    for index, source in enumerate(connection.sources):
        if source.reply_target.enabled:
            yield from _check_topic(json_path("sources", index, "replyTarget", "address"), source.reply_target.address)


def _check_header_mappings(connection: Connection) -> Iterator[Problem]:
    for index, source in enumerate(connection.sources):
        yield from _check_inbound(("sources", index, "headerMapping"), source.header_mapping)
        yield from _check_outbound(
            ("sources", index, "replyTarget", "headerMapping"), source.reply_target.header_mapping
        )
    for index, target in enumerate(connection.targets):
        yield from _check_outbound(("targets", index, "headerMapping"), target.header_mapping)


def _check_inbound(steps: tuple[str | int, ...], mapping: Mapping[str, str]) -> Iterator[Problem]:
    for name, text in mapping.items():
        if not _placeholders(text) <= _READABLE:
            expected = f"constants and the headers {', '.join(PACKET_HEADERS)}, since MQTT 3.1.1 carries no others"
            yield Problem(json_path(*steps, name), show(text), expected)


def _check_outbound(steps: tuple[str | int, ...], mapping: Mapping[str, str]) -> Iterator[Problem]:
    for name, text in mapping.items():
        path = json_path(*steps, name)
        if name not in PACKET_HEADERS:
            expected = f"one of the headers {', '.join(PACKET_HEADERS)}, since MQTT 3.1.1 carries no others"
            yield Problem(path, show(name), expected, did_you_mean(name, PACKET_HEADERS))
        elif any(not placeholder.startswith("header:") for placeholder in _placeholders(text)):
            yield Problem(path, show(text), "a constant or {{ header:<name> }}")


def _placeholders(text: str) -> frozenset[str]:
    """Return the placeholders in a template; an invalid template, reported elsewhere, has none."""
    try:
        return parse(text).names
    except PlaceholderError:
        return frozenset()


def _check_client_id(connection: Connection) -> Iterator[Problem]:
    try:
        options = Options.model_validate(connection.own_options)
    except ValidationError:
        return  # reported by the shared checks
    if options.client_id == "" and not options.clean_session:
        yield Problem(
            "specificConfig.clientId",
            "an empty client ID",
            "a client ID, or cleanSession true, because the broker finds a stored session by its client ID",
        )


_FILTER = rf"^{patterns.WITHOUT_PLACEHOLDERS}(?:\$share/[^/+#]+/)?(?:(?:[^+#/]*|\+)/)*(?:[^+#/]*|\+|#)$"


def _topic(scope: Scope) -> dict[str, str]:
    return {"pattern": f"^{patterns.part(scope, '[^+#]')}+$"}


_QOS = {"enum": [0, 1, 2]}
_HEADERS = {"headerMapping": {"propertyNames": {"enum": list(PACKET_HEADERS)}}}

MQTT_5_SCHEMA = {
    "properties": {
        "sources": {
            "items": {"properties": {"qos": _QOS, "addresses": {"items": {"pattern": _FILTER}}}, "required": ["qos"]}
        },
        "targets": {"items": {"properties": {"qos": _QOS, "address": _topic(Scope.COMMON)}, "required": ["qos"]}},
    }
}
"""The requirements of `check_mqtt_5` as JSON Schema."""

_REPLY_TARGET = {
    "properties": _HEADERS,
    "if": {"properties": {"enabled": {"const": False}}, "required": ["enabled"]},
    "else": {"properties": {"address": _topic(Scope.SOURCE)}},
}

_ENFORCEMENT = {"properties": {"input": {"pattern": patterns.template(Scope.ENFORCEMENT_INPUT_ADDRESS)}}}

MQTT_SCHEMA = {
    "allOf": [MQTT_5_SCHEMA],
    "properties": {
        "clientCount": {"enum": [None, 1]},
        "sources": {
            "items": {
                "properties": {
                    "consumerCount": {"enum": [None, 1]},
                    "replyTarget": _REPLY_TARGET,
                    "enforcement": _ENFORCEMENT,
                }
            }
        },
        "targets": {"items": {"properties": _HEADERS}},
    },
}
"""The requirements of `check_mqtt` as JSON Schema."""
