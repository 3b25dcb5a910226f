"""Bodies of requests, and the parameter `fields`.

Bodies are read within bounds of bytes and time, as JSON by the rules of connection files.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from fastapi import Request
from starlette.requests import ClientDisconnect

from connectivity.api.errors import refusal
from connectivity.config.documents import read_json
from mappings.model.field_selector import FieldSelection, InvalidSelector, parse_fields

_SHORT = 4096
"""Bytes of a body that take two milliseconds to read; longer bodies are read beside the event loop."""


class BodyLimits(NamedTuple):
    """The most bytes of a body, and how many seconds it may take to arrive."""

    max_bytes: int = 1024 * 1024
    seconds: float = 10.0


def media_type(request: Request) -> str:
    """Return the media type of the body without parameters; empty if there is none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def expect_media_type(request: Request, *expected: str) -> str:
    """The media type of the body. Raises OperationRefused unless it is one of these."""
    found = media_type(request)
    if found not in expected:
        # A page in a browser on this machine can send plain text without being asked, JSON it cannot.
        raise refusal(
            "api:contenttype.unsupported",
            f"The content-type '{found[:100]}' is not supported at this path.",
            f"expected content-type {' or '.join(expected)}",
        )
    return found


async def content(request: Request, bounds: BodyLimits) -> bytes:
    """The body. Raises OperationRefused for one that is too large or too slow."""
    too_large = refusal("api:body.toolarge", f"The body is larger than {bounds.max_bytes} bytes.")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and len(length) < 20 and int(length) > bounds.max_bytes:
        raise too_large
    found = bytearray()
    try:
        async with asyncio.timeout(bounds.seconds):
            async for part in request.stream():
                found += part
                if len(found) > bounds.max_bytes:
                    raise too_large
    except TimeoutError:
        raise refusal("api:body.timeout", f"The body did not arrive within {bounds.seconds:g} s.") from None
    except ClientDisconnect:
        # The client has disconnected.
        raise refusal("api:body.invalid", "The body is incomplete.") from None
    return bytes(found)


async def json_object(request: Request, bounds: BodyLimits) -> dict[str, Any]:
    """The body as a JSON object. Raises OperationRefused."""
    sent = await content(request, bounds)
    read = read_json(sent) if len(sent) <= _SHORT else await asyncio.to_thread(read_json, sent)
    if read.problems:
        raise refusal("json.invalid", "The body is not valid JSON.", str(read.problems[0]), read.problems)
    if not isinstance(read.document, dict):
        raise refusal("api:body.invalid", "The body is not a JSON object.")
    return read.document


def field_selection(fields: str | None) -> FieldSelection | None:
    """Return the members that the parameter `fields` names; None without it. Raises OperationRefused."""
    if fields is None:
        return None
    try:
        return parse_fields(fields)
    except InvalidSelector as error:
        raise refusal("json.fieldselector.invalid", "'fields' is invalid.", str(error)) from error
