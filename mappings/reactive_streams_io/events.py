"""The events of one end of a connection (rsio, subscriptions and closing).

A stream is identified by a number that is unique in its session, in both roles, while IDs in frames are reused. The first
four events concern streams that the peer subscribes to, the next four those we subscribe to, the rest the connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec


class SubscribeReceived(msgspec.Struct, frozen=True):
    """The peer subscribes to a stream; accept or refuse it. `demand` was requested with it."""

    stream: int
    publisher: str
    demand: int


class DemandReceived(msgspec.Struct, frozen=True):
    """The peer requests `demand` more elements of a stream."""

    stream: int
    demand: int


class Cancelled(msgspec.Struct, frozen=True):
    """The peer has canceled a stream, has disconnected, or violated a rule.

    Nothing can be sent on the stream.
    """

    stream: int


class StreamAccepted(msgspec.Struct, frozen=True):
    """A stream that we asked for begins. With an `element_size` above 0 all its elements have that size."""

    stream: int
    element_size: int


class ElementsReceived(msgspec.Struct, frozen=True):
    """Elements of a stream, in order."""

    stream: int
    elements: Sequence[bytes]


class Completed(msgspec.Struct, frozen=True):
    """A stream that we asked for has no more elements."""

    stream: int


class StreamFailed(msgspec.Struct, frozen=True):
    """A requested stream ended early; `errors.read` parses the reason."""

    stream: int
    reason: str


class SessionOpened(msgspec.Struct, frozen=True):
    """Both hellos are said. `extensions` are those in force."""

    extensions: frozenset[int]


class Interrupted(msgspec.Struct, frozen=True):
    """The transport is gone and the session can be resumed over another one.

    Its streams live on meanwhile.
    """

    reason: str


class Resumed(msgspec.Struct, frozen=True):
    """This connection continues the session with this key and all its streams. Its own is discarded."""

    session: int


class NotResumed(msgspec.Struct, frozen=True):
    """The peer cannot resume the session: its streams have ended, the connection begins a new one."""

    reason: str


class Closed(msgspec.Struct, frozen=True):
    """The connection is over, and with it all streams that could not be carried on.

    `is_fault`: because the peer has broken the protocol.
    """

    reason: str
    is_fault: bool = False


StreamEvent: TypeAlias = (
    SubscribeReceived | DemandReceived | Cancelled | StreamAccepted | ElementsReceived | Completed | StreamFailed
)
EndpointEvent: TypeAlias = StreamEvent | SessionOpened | Interrupted | Resumed | NotResumed | Closed
