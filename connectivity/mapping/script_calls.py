"""Which calls wait for the script process, which are with it, and who is to blame when it dies.

Sans-IO: what has to be written comes out as bytes, what was read goes in as answers. A few calls are with the process at
the same time, so that it need not wait for the next one; it answers in order, so the oldest is the one that it works on.
When the process dies of it, that one has failed, and the others start again with the next process. Where a process died
of something else (somebody killed it), the oldest is given a second try too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from connectivity.mapping.script_protocol import (
    Answer,
    BadFrame,
    Call,
    CallFailure,
    CallResult,
    Load,
    WorkerReady,
    frame,
)

WINDOW = 8
"""Calls that are with the process at the same time."""

MOST_TRIES = 2


class PendingCall:
    """One call until it has ended. Who has lost interest sets `is_over`."""

    __slots__ = ("call", "ended", "is_over", "scripts", "tries")

    def __init__(self, scripts: Load, call: Call, ended: Callable[[CallResult | CallFailure], None]) -> None:
        self.scripts = scripts
        self.call = call
        self.ended = ended
        self.is_over = False
        self.tries = 0

    def end(self, answer: CallResult | CallFailure) -> None:
        if not self.is_over:
            self.is_over = True
            self.ended(answer)


class Calls:
    """The calls of one script process and of those that follow it."""

    def __init__(self) -> None:
        self._waiting: deque[PendingCall] = deque()
        self._sent: deque[PendingCall] = deque()
        self._loaded: set[int] = set()
        self._is_ready = False

    def __repr__(self) -> str:
        return f"<Calls {len(self._waiting)} waiting, {len(self._sent)} sent>"

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent)

    @property
    def is_working(self) -> bool:
        """Whether an answer of the process is due: to a call, or to its start."""
        return bool(self._sent) or not self._is_ready

    def add(self, ticket: PendingCall) -> None:
        """Queue a call behind those that wait."""
        self._waiting.append(ticket)

    def send(self) -> bytes:
        """What has to be written to the process now; nothing while it is not ready or has enough to do."""
        frames = []
        while self._is_ready and self._waiting and len(self._sent) < WINDOW:
            ticket = self._waiting.popleft()
            if ticket.is_over:
                continue
            if ticket.scripts.key not in self._loaded:
                self._loaded.add(ticket.scripts.key)
                frames.append(frame(ticket.scripts))
            frames.append(frame(ticket.call))
            self._sent.append(ticket)
        return b"".join(frames)

    def answered(self, answer: Answer) -> None:
        """The process has said this. Raises BadFrame for what it has no reason to say."""
        if isinstance(answer, WorkerReady):
            if self._is_ready:
                raise BadFrame("ready twice")
            self._is_ready = True
            return
        if not self._sent:
            raise BadFrame("an answer to nothing")
        self._sent.popleft().end(answer)

    def died(self, reason: str, *, is_to_blame: bool) -> None:
        """The process is gone; the next one begins anew.

        `is_to_blame`: it died of the call that it was working on. One that has never been ready is no use to any call.
        """
        sent, was_ready = self._sent, self._is_ready
        self._sent, self._loaded, self._is_ready = deque(), set(), False
        if not was_ready:
            self.fail(reason)
        elif sent:
            sent[0].tries += 1
            if is_to_blame or sent[0].tries >= MOST_TRIES:
                sent.popleft().end(CallFailure(reason))
        self._waiting.extendleft(reversed(sent))

    def fail(self, reason: str) -> None:
        """No call that is there will have an answer."""
        left = [*self._sent, *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        for ticket in left:
            ticket.end(CallFailure(reason))
