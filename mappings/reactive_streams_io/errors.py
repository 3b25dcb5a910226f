"""Protocol violations and their consequences (rsio, limits and malformed input).

Each row of `ProtocolViolation` has its condition as text and its consequence. A fatal one ends the connection with
`goodbye("protocol error: …")`, since a byte stream cannot be read on after an error; one of a subscription ends that
subscription; the others are normal between two sides that send at the same time, and are ignored.
"""

from __future__ import annotations

import re
from enum import Enum

from mappings.errors import Fault, ProtocolError, UnsupportedVersion
from mappings.reactive_streams_io.limits import EndpointLimits

VERSION = 0
"""The version of the protocol that is spoken here."""


class Consequence(Enum):
    FATAL = "goodbye, and the connection is closed"
    SUBSCRIPTION = "the subscription ends"
    IGNORED = "the frame is ignored"


_F, _S, _I = Consequence.FATAL, Consequence.SUBSCRIPTION, Consequence.IGNORED


class ProtocolViolation(Enum):
    """A condition and its consequence. `condition` is written so that it can follow `protocol error:`."""

    VARINT_TOO_LONG = ("a varint of more than 9 bytes", _F)
    VARINT_NOT_MINIMAL = ("a varint that is not in its shortest form", _F)
    OUT_OF_RANGE = ("a number beyond the range of its field", _F)
    UNKNOWN_CODE = ("an unknown frame code", _F)
    NOT_IN_FORCE = ("a frame of an extension that is not in force", _F)
    NOT_UTF_8 = ("a string that is not well-formed UTF-8", _F)
    FRAME_TOO_LARGE = ("a frame that is too large", _F)
    TEXT_TOO_LONG = ("a reason or an error that is too long", _F)
    BYTES_OUT_OF_BOUNDS = ("bytes that are too short or too long for their field", _F)
    TOO_MANY_EXTENSIONS = ("a hello with too many extensions", _F)
    HELLO_MISSING = ("a first frame that is not a hello", _F)
    HELLO_REPEATED = ("a second hello", _F)
    HELLO_OF_THE_WRONG_KIND = ("the hello of the other role", _F)
    ELEMENT_SIZE_TOO_LARGE = ("an element size that is too large", _F)
    PART_TOO_LARGE = ("a part that is too large", _F)
    ID_IN_USE = ("a subscribe with an id that is in use", _F)
    NOT_ASKED_FOR = ("an onSubscribe without a subscribe", _F)
    NO_ELEMENT_SIZE = ("an element before the onSubscribe of its id", _F)
    PACKED_WITHOUT_SIZE = ("a packed frame in a stream without an element size", _F)
    PACKED_NOTHING = ("a packed frame without elements", _F)
    TEXT = ("a text message instead of a binary one", _F)
    TOO_MANY_FRAMES = ("a message with too many frames", _F)
    CUT_FRAME = ("a message that ends inside a frame", _F)
    NO_SEQUENCE_NUMBER = ("a message without its sequence number", _F)
    SEQUENCE_GAP = ("sequence gap", _F)
    SEQUENCE_MISPLACED = ("a sequence number that does not begin a message", _F)
    RESUME_MISPLACED = ("an unexpected resume frame", _F)
    ACKNOWLEDGED_TOO_MUCH = ("an acknowledgement of frames that were never sent", _F)
    UNREAD = ("responses are not read", _F)

    NAME_TOO_LONG = ("a publisher string that is too long", _S)
    TOO_MANY_SUBSCRIPTIONS = ("too many subscriptions", _S)
    NO_DEMAND = ("a request without demand", _S)
    MORE_THAN_DEMANDED = ("more elements than were requested", _S)
    ELEMENT_TOO_LARGE = ("an element that is too large", _S)
    TOO_MANY_OPEN_ELEMENTS = ("too many split elements at a time", _S)
    WRONG_ELEMENT_SIZE = ("a split element whose size is not the element size of its stream", _S)
    COMPLETE_AMID_AN_ELEMENT = ("an onComplete inside a split element", _S)

    SUBSCRIBED_AGAIN = ("the same subscribe again", _I)
    NOBODY_THERE = ("a request or cancel for an id that is not active", _I)
    TOO_LATE = ("a frame for a subscription that has ended", _I)
    PART_OF_NOTHING = ("a transport closed inside a frame", _I)

    def __init__(self, condition: str, consequence: Consequence) -> None:
        self.condition = condition
        self.consequence = consequence


def broken(violation: ProtocolViolation, found: object = None) -> ProtocolError:
    """Return the error of a fatal violation; `found` is the actual value."""
    message = violation.condition if found is None else f"{violation.condition}: found {found}"
    return ProtocolError(Fault(400, "rsio:protocol.error", f"protocol error: {message}"))


def unsupported(version: int) -> UnsupportedVersion:
    """The error of a hello in another version."""
    return UnsupportedVersion(
        Fault(400, "rsio:version.unsupported", f"unsupported version {version}; supported: {VERSION}")
    )


OK = "ok"
IDLE = "idle"
SHUTDOWN = "shutdown"
RESUMED_ELSEWHERE = "resumed elsewhere"
NO_SESSION = "protocol error: no session"
LATE_HELLO = "protocol error: no hello in time"
LOST = "the connection was lost"

MAX_TEXT_LENGTH = EndpointLimits().text_sent
_LINE = re.compile(
    r"(?P<status>[1-5][0-9]{2})(?: (?P<code>[a-z][\w\-]*(?:[:.][\w.\-]+)+))?(?: (?P<text>.*))?", re.DOTALL
)


def write(fault: Fault) -> str:
    """Return the line for a fault."""
    return truncate(f"{fault.status} {fault.error} {fault.message}")


def read(line: str) -> Fault:
    """Return the fault in a peer's line. Without status it is 500, with the whole text."""
    found = _LINE.fullmatch(line)
    if found is None:
        return Fault(500, "", line)
    return Fault(int(found["status"]), found["code"] or "", found["text"] or "")


def truncate(text: str, most: int = MAX_TEXT_LENGTH) -> str:
    """Return the text, cut to so many bytes of UTF-8."""
    encoded = text.encode("utf-8", "replace")
    return encoded[:most].decode("utf-8", "ignore")
