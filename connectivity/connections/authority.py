"""The authority of a connection's clients: their subjects, and the policies of its streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from connectivity.config.problems import json_path
from connectivity.connections.model import Connection
from mappings.mappers import load_codec
from mappings.streamr.auth_keys import ANONYMOUS, subject


class GivenSubject(NamedTuple):
    """A subject, which may have placeholders, and the path in the document that gives it."""

    path: str
    subject: str


class ListedStream(NamedTuple):
    """A stream, the policy that decides who uses it, and the path in the document that lists it."""

    path: str
    stream: str
    policy_id: str


def subjects_of(connection: Connection) -> Iterator[GivenSubject]:
    """Yield the subjects of sources and targets, and those of the Streamr protocol."""
    parts = [("sources", index, it.authorization_context) for index, it in enumerate(connection.sources)]
    parts += (("targets", index, it.authorization_context) for index, it in enumerate(connection.targets))
    for kind, index, subjects in parts:
        for place, text in enumerate(subjects):
            yield GivenSubject(json_path(kind, index, "authorizationContext", place), text)
    for index, source in enumerate(connection.sources):
        for place, name in enumerate(source.payload_mapping):
            if load_codec(connection.engine_of(name)) is load_codec("Streamr"):
                # Clients without a key have this subject.
                yield GivenSubject(json_path("sources", index, "payloadMapping", place), subject(ANONYMOUS))
    for name, definition in connection.mapping_definitions.items():
        for key in definition.options.get("authKeys") or {}:
            path = json_path("mappingDefinitions", name, "options", "authKeys", key)
            yield GivenSubject(path, subject(key))


def streams_of(connection: Connection) -> Iterator[ListedStream]:
    """Yield the streams of Streamr and reactive-streams-io that the mapping definitions list."""
    for name, definition in connection.mapping_definitions.items():
        for stream, terms in (definition.options.get("streams") or {}).items():
            path = json_path("mappingDefinitions", name, "options", "streams", stream)
            yield ListedStream(path, stream, terms["policyId"])
