"""Two connections of one service: `site` sends commands, `other` declares a label and responds."""

from __future__ import annotations

import json
from typing import Any

from tests.support.in_process.service import ConnectionHarness, document, source, turn

SEEN = "other:seen"
MESSAGES, COMMANDS, EVENTS = (f"_/_/things/live/{kind}" for kind in ("messages", "commands", "events"))
NACKS: dict[str, Any] = {"replyTarget": {"address": "out", "expectedResponseTypes": ["response", "error", "nack"]}}


def other_connection(harness: ConnectionHarness, *targets: dict[str, Any], **more: Any) -> ConnectionHarness:
    """Return another connection, which declares `other:seen`."""
    return ConnectionHarness(
        source("in", declaredAcks=["{{ connection:id }}:seen"]), beside=harness, id="other", targets=targets, **more
    )


def acknowledgement(
    label: str = SEEN, status: int = 200, value: Any = ..., channel: str = "twin", **headers: Any
) -> bytes:
    headers.setdefault("correlation_id", "c-1")
    return with_status(document(f"acme.site/lamp-7/things/{channel}/acks/{label}", value=value, **headers), status)


def with_status(payload: bytes, status: int) -> bytes:
    return json.dumps({**json.loads(payload), "status": status}).encode()


def message(
    subject: str = "blink", value: Any = ..., box: str = "inbox", name: str = "lamp-7", **headers: Any
) -> bytes:
    headers.setdefault("correlation_id", "c-1")
    return document(f"acme.site/{name}/things/live/messages/{subject}", f"/{box}/messages/{subject}", value, **headers)


def live(action: str, path: str = "/", value: Any = ..., **headers: Any) -> bytes:
    headers.setdefault("correlation_id", "c-1")
    return document(f"acme.site/lamp-7/things/live/commands/{action}", path, value, **headers)


async def collected(*sources: dict[str, Any]) -> ConnectionHarness:
    made = ConnectionHarness(*(sources or (source(**NACKS),)))
    await made.has_lamp()
    return made


def asking(*labels: str, **headers: Any) -> bytes:
    return turn(True, correlation_id="c-1", requested_acks=list(labels), **headers)
