"""What a session is sent live, and what is left out when it does not keep up (Streamr protocol, back-pressure).

The protocol knows no demand, so what a session has not taken yet is bounded by `Outbox`. A message that finds no room is
left out, as long as it can be resent: the next one that is sent names a predecessor that the client has not seen, so it asks
for what lies between. Were nothing appended after that, the client would never know; so `Live` owes it the newest message
that was left out, once there is room and some time has passed.

`resumed_from` says where a subscription goes on after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

GRACE = 2.0
"""Seconds with room and without a new message, after which a message that was left out is sent."""


class Fate(Enum):
    """What becomes of a message that was just appended."""

    SEND = "send it now"
    SKIP = "leave it out; it can be resent"
    WAIT = "keep it until there is room; it cannot be resent"
    KNOWN = "it was sent before"


@dataclass(slots=True)
class Outbox:
    """What was handed over for one session and not taken yet, in messages and in bytes."""

    most_messages: int = 1000
    most_bytes: int = 1 << 20
    messages: int = 0
    bytes: int = 0

    @property
    def has_room(self) -> bool:
        """Whether one more may be handed over. An empty box takes any message, however large."""
        return self.messages < self.most_messages and (self.bytes < self.most_bytes or not self.messages)

    def put(self, size: int) -> None:
        self.messages += 1
        self.bytes += size

    def take(self, size: int) -> None:
        """The broker, or the peer, has a message of this size."""
        self.messages -= 1
        self.bytes -= size


class Live:
    """One session on one partition; `last` is the last offset that it was sent, None for none."""

    __slots__ = ("_skipped", "_skipped_at", "last")

    def __init__(self, last: int | None = None) -> None:
        self.last = last
        self._skipped: int | None = None
        self._skipped_at = 0.0

    def __repr__(self) -> str:
        return f"<Live: sent {self.last}, left out up to {self._skipped}>"

    def offer(self, offset: int, now: float, *, has_room: bool, is_kept: bool = True) -> Fate:
        """What becomes of the message with this offset. `is_kept`: a resend brings it."""
        if self.last is not None and offset <= self.last:
            return Fate.KNOWN
        if has_room:
            self.last, self._skipped = offset, None
            return Fate.SEND
        if not is_kept:
            return Fate.WAIT
        self._skipped, self._skipped_at = offset, now
        return Fate.SKIP

    def drained(self, now: float) -> None:
        """There is room again: time begins to count."""
        if self._skipped is not None:
            self._skipped_at = now

    def owed_at(self) -> float | None:
        """When a message that was left out is due, or None."""
        return None if self._skipped is None else self._skipped_at + GRACE

    def owed(self, now: float, *, has_room: bool) -> int | None:
        """The offset that has to be sent now, because no newer one came; `offer` it like a new one."""
        return self._skipped if self._skipped is not None and has_room and now >= self._skipped_at + GRACE else None


def resumed_from(last: int | None, missed: int, most: int) -> int | None:
    """After which offset a live subscription goes on after a restart; None for "now".

    `missed` messages came after the `last` one it was sent, and `most` it catches up on. What it does not get, its client
    sees by the next predecessor.
    """
    return last if last is not None and missed <= most else None
