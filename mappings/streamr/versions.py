"""Which forms of the protocol a peer may ask for, in the query of the address it connects to (Streamr protocol, versions).

    ws://…/api/v1/ws?controlLayerVersion=0&messageLayerVersion=29

Spoken are control layer 0 and messages of version 28 and 29. Both members count together; with one of them or none, a peer
gets 0 and 28, as do those who name versions in one of the two older ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

from mappings.errors import Fault
from mappings.streamr.faults import UnknownVersion, shown
from mappings.streamr.frames import CONTROL_LAYER
from mappings.streamr.messages import VERSIONS

CONTROL = "controlLayerVersion"
MESSAGE = "messageLayerVersion"
HEADER = "streamr-version"
"""The header of a peer's requests that says which version of messages it has asked for."""

_DIGITS = 4
_MOST_MEMBERS = 100


def message_version(query: str) -> int:
    """The version of the messages that this peer is sent. Raises UnknownVersion for a pair that is not spoken."""
    try:
        members: Mapping[str, Sequence[str]] = parse_qs(query, max_num_fields=_MOST_MEMBERS)
    except ValueError:
        raise _unknown("a query of too many members") from None
    if CONTROL not in members or MESSAGE not in members:
        return VERSIONS[0]
    control, message = members[CONTROL][-1], members[MESSAGE][-1]
    if _number(control) != CONTROL_LAYER or (version := _number(message)) not in VERSIONS:
        raise _unknown(f"{shown(control)} and {shown(message)}")
    return version


def version_in(headers: Mapping[str, str]) -> int | None:
    """The version of messages that these headers of a request ask for; None where they ask for none that is spoken."""
    version = _number(headers.get(HEADER, ""))
    return version if version in VERSIONS else None


def _number(text: str) -> int | None:
    return int(text) if len(text) <= _DIGITS and text.isascii() and text.isdecimal() else None


def _unknown(found: str) -> UnknownVersion:
    message = f"Unknown versions of control layer and messages: found {found}, expected 0 and 28, or 0 and 29"
    return UnknownVersion(Fault(400, "streamr:version.unsupported", message))
