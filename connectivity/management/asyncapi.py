"""The message interface of connections as an AsyncAPI 3 document, for people who write the clients.

Each connection is a server. Addresses of sources and targets are channels, whose placeholders and wildcards become
parameters; the service receives at sources and sends to targets and reply targets. Payloads are those of the wire protocol
that the connection maps them with. Nothing in the document is a secret.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from connectivity import __version__
from connectivity.connections.model import Connection, ResponseType, Source, Target
from connectivity.connections.target_topics import parse_target_topic
from connectivity.connections.templates import header_of
from connectivity.mapping.mapper import DEFAULT_MAPPER
from connectivity.transports import ConnectionType, load_connection_type
from mappings.errors import PlaceholderError
from mappings.mappers import load_codec
from mappings.placeholders.template import Expression, Scope, parse

Document = dict[str, Any]

ASYNCAPI = "3.0.0"

_ANSWERS = {
    ResponseType.RESPONSE: "The response to a command.",
    ResponseType.ERROR: "The error response to a command.",
    ResponseType.NACK: "The negative acknowledgements of a command.",
}
_EVENT = "An event of a subscription."


def asyncapi_document(connections: Iterable[Connection]) -> Document:
    """Return the AsyncAPI document of valid connections."""
    by_key: dict[str, _Part] = {}
    for connection in connections:
        key = _free_key(connection.id, by_key)
        by_key[key] = _Part(connection, key)
    parts = by_key.values()
    names = ", ".join(part.connection.name or part.connection.id for part in parts)
    return {
        "asyncapi": ASYNCAPI,
        "info": {
            "title": f"Messages of {names}",
            "version": __version__,
            "description": "What the connectivity service receives and sends, from the documents of its connections.",
        },
        "servers": {part.key: _server(part.connection, part.broker) for part in parts},
        "channels": {key: channel for part in parts for key, channel in part.channels.items()},
        "operations": {key: operation for part in parts for key, operation in part.operations.items()},
        **_components(parts),
    }


class _Part:
    """One connection, its channels and its operations."""

    def __init__(self, connection: Connection, key: str) -> None:
        self.connection = connection
        self.channels: dict[str, Document] = {}
        self.operations: dict[str, Document] = {}
        self.schemas: dict[str, Mapping[str, Any]] = {}
        self.broker = load_connection_type(connection.connection_type)
        self.key = key
        for index, source in enumerate(connection.sources):
            self._add_source(f"{self.key}-source-{index}", source)
        for index, target in enumerate(connection.targets):
            self._add_target(f"{self.key}-target-{index}", target)

    def _add_source(self, name: str, source: Source) -> None:
        commands = _by_key((mapper, self._message(mapper, _headers_read(source))) for mapper in _mappers(source))
        replies = self._replies(source)
        if replies and not self.broker.is_listener:
            address, parameters = _address(source.reply_target.address, {})
            is_named = header_of(source.reply_target.address) is not None
            self._add_channel(f"{name}-reply", None if is_named else address, {} if is_named else parameters, replies)
        for position, text in enumerate(source.addresses):
            key = f"{name}-address-{position}"
            address, parameters = _address(text, self.broker.asyncapi.wildcards)
            # The peers of a listener are answered where they have asked.
            self._add_channel(key, address, parameters, commands | replies if self.broker.is_listener else commands)
            operation = self._operation("receive", key, commands, source.qos)
            if replies:
                operation["reply"] = self._reply(source, key if self.broker.is_listener else f"{name}-reply", replies)
            self.operations[f"{key}-receive"] = operation

    def _add_target(self, name: str, target: Target) -> None:
        address, parameters = _address(target.address, {})
        headers = _described(target.header_mapping)
        messages = _by_key(
            (f"{topic}-{mapper}", self._published(topic, mapper, headers))
            for topic in target.topics
            for mapper in _mappers(target)
        )
        self._add_channel(name, address, parameters, messages)
        self.operations[f"{name}-send"] = self._operation("send", name, messages, target.qos)

    def _add_channel(
        self, key: str, address: str | None, parameters: Document, messages: Mapping[str, Document]
    ) -> None:
        self.channels[key] = {
            "address": address,
            "servers": [{"$ref": f"#/servers/{self.key}"}],
            "messages": dict(messages),
            **({"parameters": parameters} if parameters else {}),
        }

    def _operation(self, action: str, key: str, messages: Iterable[str], qos: int | None) -> Document:
        bindings = self.broker.asyncapi.bindings(qos)
        return {
            "action": action,
            "channel": {"$ref": f"#/channels/{key}"},
            "messages": _references(key, messages),
            **({"bindings": bindings} if bindings else {}),
        }

    def _reply(self, source: Source, key: str, messages: Iterable[str]) -> Document:
        reply: Document = {"channel": {"$ref": f"#/channels/{key}"}, "messages": _references(key, messages)}
        header = header_of(source.reply_target.address)
        if header is not None and not self.broker.is_listener:
            place = "$message.header#/" if self.broker.has_headers else "$message.payload#/headers/"
            reply["address"] = {"location": f"{place}{header}"}
        return reply

    def _replies(self, source: Source) -> dict[str, Document]:
        reply = source.reply_target
        if not reply.enabled:
            return {}
        headers = _described(reply.header_mapping)
        meanings = {kind.value: _ANSWERS[kind] for kind in reply.expected_response_types} | {"event": _EVENT}
        return _by_key(
            (f"{mapper}-{kind}", self._message(mapper, headers) | {"summary": meaning})
            for mapper in _mappers(source)
            for kind, meaning in meanings.items()
        )

    def _published(self, topic: str, mapper: str, headers: Document) -> Document:
        """The signals of one topic of a target."""
        message = self._message(mapper, headers) | {"summary": f"Signals of the topic `{topic}`."}
        if "payload" in message:
            group = parse_target_topic(topic).topic.removeprefix("_/_/")
            pattern = {
                "type": "object",
                "properties": {"topic": {"type": "string", "pattern": f"^[^/]+/[^/]+/{group}"}},
            }
            message["payload"] = {"allOf": [message["payload"], pattern]}
        return message

    def _message(self, mapper: str, headers: Document) -> Document:
        codec = load_codec(self.connection.engine_of(mapper))
        about = inspect.cleandoc(type(codec).__doc__ or "")
        message: Document = {"name": mapper, "title": mapper, "description": about}
        if codec.content_type is not None:
            message["contentType"] = codec.content_type
        if (schema := codec.message_schema()) is not None:
            name = type(codec).__name__.removesuffix("Codec")
            self.schemas[name] = schema
            message["payload"] = {"$ref": f"#/components/schemas/{name}"}
        if self.broker.has_headers and headers:
            message["headers"] = {"type": "object", "properties": headers}
            if "correlation-id" in headers:
                message["correlationId"] = {"location": "$message.header#/correlation-id"}
        return message


def _components(parts: Iterable[_Part]) -> Document:
    schemas = {name: schema for part in parts for name, schema in part.schemas.items()}
    return {"components": {"schemas": schemas}} if schemas else {}


def _server(connection: Connection, broker: ConnectionType) -> Document:
    uri = connection.broker_uri
    names = broker.asyncapi
    host = f"[{uri.host}]" if ":" in uri.host else uri.host
    server: Document = {
        "host": f"{host}:{uri.port}",
        "protocol": names.secure_protocol if uri.is_secure else names.protocol,
        "description": connection.name or connection.id,
    }
    if names.version is not None:
        server["protocolVersion"] = names.version
    if uri.path:
        server["pathname"] = uri.path
    security = [{"type": "userPassword"}] if uri.username is not None else []
    if connection.credentials is not None and not broker.is_listener:
        security.append({"type": "X509"})
    if security:
        server["security"] = security
    if connection.tags:
        server["tags"] = [{"name": tag} for tag in connection.tags]
    return server


def _mappers(part: Source | Target) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.payload_mapping)) or (DEFAULT_MAPPER,)


def _references(channel: str, messages: Iterable[str]) -> list[Document]:
    return [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in messages]


def _address(text: str, wildcards: Mapping[str, str]) -> tuple[str, Document]:
    """Return an address with parameters in place of expressions and wildcards, and the parameters."""
    parameters: Document = {}

    def parameter(name: str, meaning: str) -> str:
        while parameters.get(name, {"description": meaning})["description"] != meaning:
            name = f"{name}-{len(parameters) + 1}"
        parameters[name] = {"description": meaning}
        return f"{{{name}}}"

    def without_wildcards(text: str) -> str:
        return "".join(
            parameter(f"level-{len(parameters) + 1}", wildcards[it]) if it in wildcards else it for it in text
        )

    parts = [
        parameter(_slug(part.text.partition("|")[0]), f"The value of `{{{{ {part.text} }}}}`.")
        if isinstance(part, Expression)
        else without_wildcards(part)
        for part in parse(text, Scope.SOURCE).parts
    ]
    return "".join(parts), parameters


def _headers_read(source: Source) -> Document:
    """The transport headers that the templates of a source read."""
    enforcement = [source.enforcement.input] if source.enforcement is not None else []
    templates = [*source.header_mapping.values(), *source.authorization_context, *enforcement]
    names = sorted({name for text in templates for name in _headers_of(text)})
    return {name: {"type": "string"} for name in names}


def _headers_of(text: str) -> Iterator[str]:
    try:
        names = parse(text, Scope.SOURCE).names
    except PlaceholderError:
        return
    yield from (name.removeprefix("header:") for name in sorted(names) if name.startswith("header:"))


def _described(mapping: Mapping[str, str]) -> Document:
    return {name: {"type": "string", "description": f"`{template}`"} for name, template in mapping.items()}


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-") or "value"


def _by_key(messages: Iterable[tuple[str, Document]]) -> dict[str, Document]:
    """Return messages by keys like their texts; different texts have different keys."""
    found: dict[str, Document] = {}
    for text, message in messages:
        found[_free_key(text, found)] = message
    return found


def _free_key(text: str, taken: Container[str]) -> str:
    """Return a key like the text that is not taken."""
    key = slug = _slug(text)
    numbers = count(2)
    while key in taken:
        key = f"{slug}-{next(numbers)}"
    return key
