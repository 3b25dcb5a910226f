"""Why something failed, in one line: `404 things:thing.notfound The Thing 'a:b' could not be found.`

`onError` carries such a line, a status, a code and a text; the reason of a `goodbye` is free, and begins with one of
`GOODBYES` when it is ours (reactive-streams-io, error and reason strings).
"""

from __future__ import annotations

import re

from mappings.errors import Fault
from mappings.reactive_streams_io.limits import Limits

OK = "ok"
IDLE = "idle"
SHUTDOWN = "shutdown"
RESUMED_ELSEWHERE = "resumed elsewhere"
NO_SESSION = "protocol error: no session"
LATE_HELLO = "protocol error: no hello in time"
LOST = "the connection was lost"

GOODBYES = (OK, "protocol error:", "unsupported version", IDLE, SHUTDOWN, RESUMED_ELSEWHERE)
"""What the reasons of our goodbyes begin with."""

LONGEST = Limits().text_sent
_LINE = re.compile(
    r"(?P<status>[1-5][0-9]{2})(?: (?P<code>[a-z][\w\-]*(?:[:.][\w.\-]+)+))?(?: (?P<text>.*))?", re.DOTALL
)


def write(fault: Fault) -> str:
    """The line that tells of a fault."""
    return cut(f"{fault.status} {fault.error} {fault.message}")


def read(line: str) -> Fault:
    """The fault that a peer's line tells of. One that has no status counts as 500, and is all text."""
    found = _LINE.fullmatch(line)
    if found is None:
        return Fault(500, "", line)
    return Fault(int(found["status"]), found["code"] or "", found["text"] or "")


def cut(text: str, most: int = LONGEST) -> str:
    """The text, or as many of its characters as fit into so many octets of UTF-8."""
    encoded = text.encode("utf-8", "replace")
    return encoded[:most].decode("utf-8", "ignore")
