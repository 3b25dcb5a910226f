"""Frames as messages of a broker: the headers around them, and what can be told of a message without its session.

A session begins with a message whose first octet is a client's hello. Who has none is answered by a goodbye, unless it is
a goodbye itself: those are never answered twice (reactive-streams-io, brokers and closing).
"""

from __future__ import annotations

from mappings.envelope import Envelope
from mappings.reactive_streams_io.frames import CODES, ClientHello, Goodbye, Seq

CONTENT_TYPE = "application/vnd.rsio.v0"

SUBPROTOCOL = "rsio.v0"
"""What it is called among the subprotocols of a WebSocket."""

ALPN = "rsio/0"
"""What it is called among the protocols that the ends of a TLS connection agree on."""

SESSION = "rsio-session"
"""The header by which clients at one address are told apart: 16 to 64 hexadecimal digits, chosen anew at each start."""

_HELLO = bytes([CODES[ClientHello]])
_GOODBYE = CODES[Goodbye]
_SEQ = CODES[Seq]


def envelope(octets: bytes, session: str | None = None) -> Envelope:
    """A message of frames."""
    headers = {"content-type": CONTENT_TYPE}
    if session is not None:
        headers[SESSION] = session
    return Envelope(octets, headers)


def begins_session(octets: bytes) -> bool:
    """Whether a client says hello with this message."""
    return octets.startswith(_HELLO)


def is_parting(octets: bytes) -> bool:
    """Whether a message begins with a goodbye, behind its number if it has one."""
    position = 0
    if octets[:1] == bytes([_SEQ]):
        position = 1
        while position < len(octets) and octets[position] & 0x80:
            position += 1
        position += 1
    return octets[position : position + 1] == bytes([_GOODBYE])


def is_session(text: str) -> bool:
    """Whether a text can name a session."""
    return 16 <= len(text) <= 64 and all(each in "0123456789abcdefABCDEF" for each in text)
