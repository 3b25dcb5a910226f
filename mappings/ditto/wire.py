"""What every written message of the Ditto protocol shares: content types, the headers beside it, JSON as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mappings.errors import EncodeError, Fault
from mappings.signals import Headers

MESSAGE = "application/vnd.eclipse.ditto+json"
"""The content type of a whole message."""

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"

_encode = msgspec.json.Encoder().encode


def json_bytes(value: Any) -> bytes:
    """The value as JSON. Raises EncodeError for what JSON has no words for."""
    try:
        return _encode(value)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise cannot_say(f"a value cannot be written as JSON: {error}") from error


def cannot_say(why: str) -> EncodeError:
    return EncodeError(Fault(500, "internalerror", f"The Ditto protocol cannot say this: {why}."))


def transport_headers(headers: Headers) -> Mapping[str, str]:
    """The headers beside a message, for a signal with these headers."""
    correlation_id = headers.get("correlation-id")
    if correlation_id is None:
        return {"content-type": MESSAGE}
    return {"content-type": MESSAGE, "correlation-id": str(correlation_id)}


def message(
    topic: str,
    headers: Headers,
    path: str,
    value: bytes | None,
    *,
    extra: bytes | None = None,
    status: int | None = None,
    revision: int | None = None,
    timestamp: str | None = None,
    fields: str | None = None,
) -> bytes:
    """A message with its members in the usual order; `value` and `extra` are JSON already."""
    parts = [b'{"topic":', json_bytes(topic), b',"headers":', json_bytes(headers), b',"path":', json_bytes(path)]
    if value is not None:
        parts += (b',"value":', value)
    if extra is not None:
        parts += (b',"extra":', extra)
    if status is not None:
        parts += (b',"status":', json_bytes(status))
    if revision is not None:
        parts += (b',"revision":', json_bytes(revision))
    if timestamp is not None:
        parts += (b',"timestamp":', json_bytes(timestamp))
    if fields is not None:
        parts += (b',"fields":', json_bytes(fields))
    parts.append(b"}")
    return b"".join(parts)
