"""Messages between the service and a script process: msgpack with a length of 4 bytes before it.

The length is in network byte order. The service sends `ScriptLimits`, answered by `WorkerReady`, then `Load` for each set of
scripts (no answer) and `Call`, answered by `CallResult` or `CallFailure` in the order of the calls. The output of a script
process is not trusted: it is decoded to these types only, and a frame that is too long ends the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

LENGTH = 4

MAX_MESSAGES = 10
"""How many messages a script may make of one."""

Direction: TypeAlias = Literal["incoming", "outgoing", "check"]
"""The direction of a message. `check` tests for the function of the direction in the argument."""


class ScriptLimits(msgspec.Struct, tag="limits", frozen=True, array_like=True):
    """The limits of one call: `seconds` of CPU time, everything else in bytes.

    The call depth of the Ditto connection model (25) is limited by the size of the stack: 256 KiB are about 150 calls of a
    small function, and let JSON nest as deeply as messages may.
    """

    seconds: float = 0.5
    memory: int = 32 << 20
    stack: int = 256 << 10
    output: int = 2 << 20


class Load(msgspec.Struct, tag="load", frozen=True, array_like=True):
    """Loads the scripts for calls with this key, run in order, and the libraries with these names."""

    key: int
    sources: tuple[str, ...]
    libraries: tuple[str, ...]


class Call(msgspec.Struct, tag="call", frozen=True, array_like=True):
    """Runs a direction's function. `argument` is JSON for the library `ditto.js`."""

    key: int
    direction: Direction
    argument: str


class WorkerReady(msgspec.Struct, tag="ready", frozen=True, array_like=True):
    """The process has given up its privileges and waits for calls.

    `missing`: what this system could not take away.
    """

    missing: tuple[str, ...] = ()


class CallResult(msgspec.Struct, tag="done", frozen=True, array_like=True):
    """The results as one JSON array."""

    results: str


class CallFailure(msgspec.Struct, tag="failed", frozen=True, array_like=True):
    """The reason why the scripts gave no results."""

    reason: str


Order: TypeAlias = ScriptLimits | Load | Call
ScriptAnswer: TypeAlias = WorkerReady | CallResult | CallFailure

_encode = msgspec.msgpack.Encoder().encode


class BadFrame(Exception):
    """The other side sent a frame that is invalid or too long."""


def frame(message: Order | ScriptAnswer) -> bytes:
    """Return the frame of one message."""
    body = _encode(message)
    return len(body).to_bytes(LENGTH, "big") + body


class Frames:
    """Splits received bytes into messages."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._received = bytearray()
        self._decode = msgspec.msgpack.Decoder(ScriptAnswer).decode

    def feed(self, received: bytes) -> Iterator[ScriptAnswer]:
        """Yield the messages that are complete. Raises BadFrame."""
        self._received += received
        while len(self._received) >= LENGTH:
            length = int.from_bytes(self._received[:LENGTH], "big")
            if length > self._longest:
                raise BadFrame(f"found a frame of {length} bytes, expected at most {self._longest}")
            if len(self._received) < LENGTH + length:
                return
            body = bytes(self._received[LENGTH : LENGTH + length])
            del self._received[: LENGTH + length]
            try:
                yield self._decode(body)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise BadFrame(str(error)) from error
