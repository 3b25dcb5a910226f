"""The vector files of the Streamr protocol: messages and their meanings.

`requests.json` has a request and its decoded form, `refused.json` a request and its error; `frames.json` has a frame and
its bytes for a certain style of peer. A row begins with its case in the specification, if there is one. The field `text`
is for messages that a JSON object cannot hold.
"""

from __future__ import annotations

import json
from typing import Any

from mappings.streamr import frames, requests
from mappings.streamr.errors import ErrorSubject
from mappings.streams.entry import StreamEntry, encode_content
from tests.support.paths import VECTORS

FOLDER = VECTORS / "streamr"


def rows(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def case(row: dict[str, Any]) -> str:
    return str(row["case"])


def payload(row: dict[str, Any]) -> bytes:
    return (row["text"] if "text" in row else json.dumps(row["message"])).encode()


def request(row: dict[str, Any]) -> requests.StreamrRequest:
    """Return the request in a row."""
    members = dict(row["members"])
    if "selection" in members:
        ((kind, options),) = members["selection"].items()
        members["selection"] = getattr(requests, kind)(**options)
    built: requests.StreamrRequest = getattr(requests, row["request"])(**members)
    return built


def frame(row: dict[str, Any]) -> frames.StreamrFrame:
    members = dict(row["members"])
    if "message" in members:
        written = members["message"]
        members["message"] = StreamEntry(**{**written, "content": encode_content(written["content"])})
    if "about" in members:
        members["about"] = ErrorSubject(**members["about"])
    built: frames.StreamrFrame = getattr(frames, row["frame"])(**members)
    return built


def style(row: dict[str, Any]) -> frames.FrameStyle:
    options = dict(row.get("style", {}))
    if "errors" in options:
        options["errors"] = frames.ErrorPayload(options["errors"])
    return frames.FrameStyle(**options)
