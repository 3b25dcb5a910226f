"""What the service and a script process say to each other: frames of a length (4 bytes, most significant first) and
msgpack.

The service opens with `ScriptLimits` and is answered with `WorkerReady`. Then it says `Load` for each set of scripts, which
is not answered, and `Call`, which is answered with `CallResult` or `CallFailure`, in the order of the calls. What comes out
of a script process is not to be trusted: it is decoded to these types alone, and a frame that is longer than agreed ends the
process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

LENGTH = 4

MOST_MESSAGES = 10
"""What one message may become."""

Direction: TypeAlias = Literal["incoming", "outgoing", "check"]
"""Which way a message goes. `check` asks whether the scripts have a function for the direction that is the argument."""


class ScriptLimits(msgspec.Struct, tag="limits", frozen=True, array_like=True):
    """What one call may cost. `seconds` of processor time, everything else in bytes.

    The call depth of the Ditto connection model (25) is bounded as the size of the stack: 256 KiB are about 150 calls of a
    small function, and let JSON nest as deep as messages may.
    """

    seconds: float = 0.5
    memory: int = 32 << 20
    stack: int = 256 << 10
    output: int = 2 << 20


class Load(msgspec.Struct, tag="load", frozen=True, array_like=True):
    """The scripts that calls with this key run, one after the other, with the helper libraries of these names."""

    key: int
    sources: tuple[str, ...]
    libraries: tuple[str, ...]


class Call(msgspec.Struct, tag="call", frozen=True, array_like=True):
    """Run a direction's function. `argument` is JSON; what it looks like is between the caller and the library."""

    key: int
    direction: Direction
    argument: str


class WorkerReady(msgspec.Struct, tag="ready", frozen=True, array_like=True):
    """The process has given up what it does not need and waits for calls."""


class CallResult(msgspec.Struct, tag="done", frozen=True, array_like=True):
    """The results as one JSON array."""

    results: str


class CallFailure(msgspec.Struct, tag="failed", frozen=True, array_like=True):
    """Why the scripts gave no results."""

    reason: str


Order: TypeAlias = ScriptLimits | Load | Call
Answer: TypeAlias = WorkerReady | CallResult | CallFailure

_encode = msgspec.msgpack.Encoder().encode


class BadFrame(Exception):
    """The other end says what nobody understands, or too much of it."""


def frame(message: Order | Answer) -> bytes:
    """One message with its length before it."""
    body = _encode(message)
    return len(body).to_bytes(LENGTH, "big") + body


class Frames:
    """Bytes in, messages out: for the end that reads whatever has come."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._received = bytearray()
        self._decode = msgspec.msgpack.Decoder(Answer).decode

    def feed(self, received: bytes) -> Iterator[Answer]:
        """The messages that are whole now. Raises BadFrame."""
        self._received += received
        while len(self._received) >= LENGTH:
            length = int.from_bytes(self._received[:LENGTH], "big")
            if length > self._longest:
                raise BadFrame(f"a frame of {length} bytes, the longest may have {self._longest}")
            if len(self._received) < LENGTH + length:
                return
            body = bytes(self._received[LENGTH : LENGTH + length])
            del self._received[: LENGTH + length]
            try:
                yield self._decode(body)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise BadFrame(str(error)) from error
