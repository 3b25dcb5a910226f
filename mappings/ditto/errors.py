"""The errors of invalid messages, in the protocol's texts (subscriptions, parse errors).

Four kinds, each with its code and text: a missing field, a field of another JSON type, a value that cannot be converted,
invalid JSON. Quotations are cut, so that a response never grows with the message.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mappings.errors import Fault
from mappings.json_values import MAX_NESTING, encode_value
from mappings.texts import MAX_QUOTE_LENGTH, shorten

JSON_HINT = "Expected a JSON object."

STORABLE_HINT = (
    f"A message must be UTF-8 text. Its value may have up to {MAX_NESTING} levels of nesting, integers of up to 64 "
    "bits, and other numbers in the range of a double."
)

_EXPECTED_TYPES = {
    "String": "a text",
    "Integer": "a whole number",
    "Long": "a whole number",
    "Instant": "a time with seconds and an offset, such as 2030-01-15T07:30:00Z",
    "JsonObject": "an object",
    "JsonArray": "an array",
}
"""The protocol's names of types → how a description says them."""

_ID_HREF = "https://www.eclipse.dev/ditto/basic-namespaces-and-names.html#namespaced-id"


def quote(value: Any) -> str:
    """A parsed value in JSON notation, cut where it is long."""
    return shorten(encode_value(value).decode())


def field_missing(name: str) -> Fault:
    """A required field that is not there, or null."""
    return Fault(
        400,
        "json.field.missing",
        f"JSON did not include required </{name}> field!",
        "Check if all required JSON fields were set.",
    )


def wrong_type(name: str, value: Any, expected: str) -> Fault:
    """A field of another JSON type than `expected` (String, Long, JsonObject, …)."""
    message = f"Value <{quote(value)}> for </{name}> is not of type <{expected}>!"
    return Fault(400, "json.invalid", message, f"Expected {_EXPECTED_TYPES[expected]}.")


def not_convertible(value: Any, expected: str) -> Fault:
    """A value that is not `a long`, `an object` or the like."""
    return Fault(400, "json.format.invalid", f"This JSON value is not {expected}: {quote(value)}")


def not_json(payload: bytes, description: str = JSON_HINT) -> Fault:
    """Bytes that are no JSON object."""
    start = payload[: 4 * MAX_QUOTE_LENGTH + 4].decode("utf-8", "replace")
    return Fault(400, "json.invalid", f"Failed to parse JSON string '{shorten(start)}'!", description)


def malformed(payload: bytes, error: Exception) -> Fault:
    """Return the error of text that the JSON library cannot read, with its reason and position."""
    if not isinstance(error, msgspec.DecodeError) or isinstance(error, msgspec.ValidationError):
        # Too deep, not UTF-8, or a number out of range.
        return not_storable(payload)
    reason = str(error)
    if "truncated" in reason:
        reason = "The text ends too early, or has half of a surrogate pair"
    return not_json(payload, f"{JSON_HINT} {reason}.")


def not_storable(payload: bytes) -> Fault:
    """Return the error of JSON that cannot be stored: too deep, too large numbers, invalid text.

    JSON validators accept most of it, so the description gives the limits.
    """
    return not_json(payload, STORABLE_HINT)


def too_many_segments(path: str, found: int) -> Fault:
    """Return the error of a path that leads deeper than a value may be nested."""
    description = f"Found {found} segments, expected at most {MAX_NESTING}."
    return Fault(400, "json.invalid", f"The path '{shorten(path)}' is not valid.", description)


def nul_in_key(key: str) -> Fault:
    return Fault(400, "json.key.invalid", f"The JSON key {quote(key)} is not valid!", "A key must not contain U+0000.")


def nul_in_text(text: str) -> Fault:
    return Fault(
        400, "json.invalid", f"The JSON string {quote(text)} is not valid!", "A string must not contain U+0000."
    )


def unknown_path(path: str) -> Fault:
    return Fault(
        400, "protocoladapter:unknown.path", f"The path '{shorten(path)}' is unknown.", "Check if the path is correct."
    )


def invalid_id(group: str, text: str) -> Fault:
    """Return the error of a topic with an invalid ID of a thing or policy."""
    kind = "Policy" if group == "policies" else "Thing"
    return Fault(
        400,
        f"{group}:id.invalid",
        f"{kind} ID '{shorten(text)}' is not valid!",
        "It must conform to the namespaced entity ID notation (see Ditto documentation)",
        {"href": _ID_HREF},
    )


def invalid_selector(why: str) -> Fault:
    """A field selector that cannot be read."""
    return Fault(
        400,
        "json.fieldselector.invalid",
        f"The field selector is not valid: {why}.",
        "Check the parentheses and commas of the selector.",
    )


def invalid_label(label: str) -> Fault:
    """A label of an acknowledgement outside its grammar."""
    return Fault(
        400,
        "acknowledgement:label.invalid",
        f"The acknowledgement label '{shorten(label)}' is not valid!",
        "A label has 3 to 100 letters, digits and the characters - _ :",
    )


def invalid_subject(subject: str) -> Fault:
    """Return the error of a message whose subject is missing or invalid."""
    return Fault(
        400,
        "messages:subject.invalid",
        f"The message subject '{shorten(subject)}' is not valid!",
        "A subject must not be empty and must not contain control characters.",
    )


def too_large_payload(size: int, limit: int) -> Fault:
    return Fault(
        413,
        "messages:payload.toolarge",
        f"The payload of the message has {size} bytes, expected at most {limit}.",
        "Send a smaller payload.",
    )


def looks_like_response(status: int) -> Fault:
    """Return the error of a command's topic with a status: only responses have one."""
    return Fault(
        422,
        "protocoladapter:illegal.adaptable",
        f"A command must not have a status, found {status}.",
        "Remove 'status' from the command; only responses have a status.",
    )
