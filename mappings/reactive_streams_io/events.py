"""What one end of a connection tells whoever uses it (reactive-streams-io, subscriptions and closing).

A stream is named by a running number that no other stream of its session ever has, in either role: ids on the wire are used
again, these are not. The first four are about streams that the peer asked us for, the next four about those that we asked it
for, the rest about the connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec


class SubscribeReceived(msgspec.Struct, frozen=True):
    """The peer wants a stream; it is to be accepted or refused. `demand` has been requested with it."""

    stream: int
    publisher: str
    demand: int


class DemandReceived(msgspec.Struct, frozen=True):
    """The peer wants `demand` more elements of a stream."""

    stream: int
    demand: int


class Cancelled(msgspec.Struct, frozen=True):
    """The peer wants no more of a stream, or is gone, or broke a rule.

    Nothing can be said about the stream any more.
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
    """A stream that we asked for ends early; `reasons.read` takes the reason apart."""

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
    """This connection carries on the session with this key, with all its streams.

    What was its own before is gone.
    """

    session: int


class NotResumed(msgspec.Struct, frozen=True):
    """The peer cannot go on with the old session: its streams are over, the connection begins anew."""

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
Event: TypeAlias = StreamEvent | SessionOpened | Interrupted | Resumed | NotResumed | Closed
