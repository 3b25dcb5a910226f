"""Rules about connection documents that the shared checks and the brokers' files have in common.

A rule takes a part of a document and its path, and returns the problems it finds; nothing here raises. Paths read
`sources[0].replyTarget.address`; a name that would be mistaken for a path is quoted: `headerMapping["mqtt.topic"]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from connectivity.config.problems import LONGEST_SHOWN, json_path, show
from connectivity.connections.model import Connection
from connectivity.errors import Problem
from mappings.errors import PlaceholderError
from mappings.placeholders.template import Scope, parse

CONFIGURATION_INVALID = "connectivity:connection.configuration.invalid"
URI_INVALID = "connectivity:connection.uri.invalid"

DIVERT_TO = "divert-response-to-connection"
DIVERTED_TYPES = "divert-expected-response-types"
"""The headers that say where a command's answer goes instead, and which kinds of answer do."""
_NEAREST = re.compile(r"Did you mean (.+)\?$")
_CONNECTION_ID = re.compile(r"\{\{\s*connection:id\s*\}\}|\$\{\s*connection:id\s*\}")


def has_expression(text: str) -> bool:
    """Whether an expression stands in the text, readable or not."""
    try:
        return any(not isinstance(part, str) for part in parse(text, Scope.SOURCE).parts)
    except PlaceholderError:
        return True


def with_dummies(text: str, dummy: str = "x") -> str:
    """The template with each expression replaced by a dummy, so that a check sees what its author wrote around them.

    A text whose expressions cannot be read is one dummy: that is a problem of its own.
    """
    try:
        return "".join(part if isinstance(part, str) else dummy for part in parse(text, Scope.SOURCE).parts)
    except PlaceholderError:
        return dummy


def with_connection_id(text: str, connection_id: str) -> str:
    """The text with `{{ connection:id }}` replaced: all that labels and group ids may hold of placeholders."""
    return _CONNECTION_ID.sub(lambda _: connection_id, text)


def check_template(path: str, text: str, scope: Scope, *, shown: str | None = None) -> Iterator[Problem]:
    """The expressions of a template are known and well-formed, and have a value in this scope.

    `shown` is what its author wrote, where that is not the text itself.
    """
    try:
        parse(text, scope)
    except PlaceholderError as error:
        fault = error.fault
        reason = fault.message.removesuffix(".")
        nearest = _NEAREST.search(fault.description or "")
        hint = f"did you mean {nearest[1]}?" if nearest else None
        written = text if shown is None else shown
        found = f"{show(written)}: {reason}" if len(written) < LONGEST_SHOWN else reason
        yield Problem(path, found, f"what is known in {scope.place}", hint, fault.error)


def check_without_placeholders(path: str, text: str) -> Iterator[Problem]:
    if has_expression(text):
        yield Problem(path, show(text), "an address without placeholders")


def check_enforcement_inputs(connection: Connection, scope: Scope) -> Iterator[Problem]:
    """What identifies a sender must be something that deliveries of this type carry.

    Only for what is known at all; the shared checks report the rest.
    """
    for index, source in enumerate(connection.sources):
        if source.enforcement is None:
            continue
        path, text = json_path("sources", index, "enforcement", "input"), source.enforcement.input
        if not list(check_template(path, text, Scope.ENFORCEMENT_INPUT)):
            yield from check_template(path, text, scope)


def check_source_addresses_without_placeholders(connection: Connection) -> Iterator[Problem]:
    for index, source in enumerate(connection.sources):
        for position, address in enumerate(source.addresses):
            yield from check_without_placeholders(json_path("sources", index, "addresses", position), address)
