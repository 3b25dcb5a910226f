"""Rules about connection documents that the shared checks and the brokers' files have in common.

A rule takes a part of a document and its path, and returns the problems it finds; nothing here raises. Paths read
`sources[0].replyTarget.address`; a name that would be mistaken for a path is quoted: `headerMapping["mqtt.topic"]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from connectivity.config.problems import MAX_SHOWN_CHARACTERS, json_path, show
from connectivity.connections.model import Connection
from connectivity.errors import Problem
from mappings.errors import PlaceholderError
from mappings.placeholders.template import Scope, parse

CONFIGURATION_INVALID = "connectivity:connection.configuration.invalid"
URI_INVALID = "connectivity:connection.uri.invalid"

DIVERT_TO = "divert-response-to-connection"
DIVERTED_TYPES = "divert-expected-response-types"
"""The headers that say where a command's answer goes instead, and which kinds of answer do."""
ADDRESS_HEADER = "mqtt.topic"
"""The header that MQTT uses as the address if a header mapping sets it; checked like an address."""

_NEAREST = re.compile(r"Did you mean (.+)\?$")
_CONNECTION_ID = re.compile(r"\{\{\s*connection:id\s*\}\}|\$\{\s*connection:id\s*\}")


def has_expression(text: str) -> bool:
    """Whether the text contains an expression, valid or not."""
    try:
        return any(not isinstance(part, str) for part in parse(text, Scope.SOURCE).parts)
    except PlaceholderError:
        return True


def header_of(text: str) -> str | None:
    """Return the header of a template that is only `{{ header:NAME }}`; None for any other text."""
    try:
        return parse(text, Scope.SOURCE).header
    except PlaceholderError:
        return None


def with_dummies(text: str, dummy: str = "x") -> str:
    """Return the template with each expression replaced by a dummy, to check the text around them.

    A text with invalid expressions is one dummy: they are reported separately.
    """
    try:
        return "".join(part if isinstance(part, str) else dummy for part in parse(text, Scope.SOURCE).parts)
    except PlaceholderError:
        return dummy


def with_connection_id(text: str, connection_id: str) -> str:
    """Return the text with `{{ connection:id }}` replaced, the only placeholder in labels and group IDs."""
    return _CONNECTION_ID.sub(lambda _: connection_id, text)


def check_template(path: str, text: str, scope: Scope, *, shown: str | None = None) -> Iterator[Problem]:
    """Check that the expressions of a template are known, valid, and have a value in this scope.

    `shown` is the original text, if it differs.
    """
    try:
        parse(text, scope)
    except PlaceholderError as error:
        fault = error.fault
        reason, _, names = fault.message.removesuffix(".").partition(": expected ")
        expected = f"{names}, in" if names else "placeholders and functions that are allowed in"
        nearest = _NEAREST.search(fault.description or "")
        hint = f"did you mean {nearest[1]}?" if nearest else None
        written = text if shown is None else shown
        found = f"{show(written)}: {reason}" if len(written) < MAX_SHOWN_CHARACTERS else reason
        yield Problem(path, found, f"{expected} {scope.place}", hint, fault.error)


def check_without_placeholders(path: str, text: str) -> Iterator[Problem]:
    if has_expression(text):
        yield Problem(path, show(text), "an address without placeholders")


def check_enforcement_inputs(connection: Connection, scope: Scope) -> Iterator[Problem]:
    """Check that the inputs of an enforcement exist in deliveries of this connection type.

    Unknown placeholders are reported by the shared checks.
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
