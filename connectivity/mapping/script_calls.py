"""The queue of calls to a script process: which calls wait, and which are being processed.

Without I/O: frames to be written are returned as bytes, and answers are passed in. Up to `WINDOW` calls are sent in advance.
The process answers in order, so the oldest sent call is the one that it executes. If that call ended the process, it fails,
and the others are sent to the next process. If the process ended for another reason, the oldest call is retried once.
"""

from __future__ import annotations

from asyncio import Future
from collections import deque

from connectivity.mapping.script_protocol import (
    BadFrame,
    Call,
    CallFailure,
    CallResult,
    Load,
    ScriptAnswer,
    WorkerReady,
    frame,
)

WINDOW = 8
"""The most calls that are sent to the process without an answer."""

MAX_ATTEMPTS = 2


class PendingCall:
    """A call, and the future of its answer, which is ignored if the future is cancelled."""

    __slots__ = ("answer", "call", "scripts", "tries")

    def __init__(self, scripts: Load, call: Call, answer: Future[CallResult | CallFailure]) -> None:
        self.scripts = scripts
        self.call = call
        self.answer = answer
        self.tries = 0

    def end(self, answer: CallResult | CallFailure) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


class Calls:
    """The calls of one script process and of its successors."""

    def __init__(self) -> None:
        self._waiting: deque[PendingCall] = deque()
        self._sent: deque[PendingCall] = deque()
        self._loaded: set[int] = set()
        self._is_ready = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent)

    @property
    def is_working(self) -> bool:
        """Whether the process owes an answer: to a call, or to its start."""
        return bool(self._sent) or not self._is_ready

    def add(self, pending_call: PendingCall) -> None:
        """Add a call to the end of the queue."""
        self._waiting.append(pending_call)

    def send(self) -> bytes:
        """Return the bytes to write to the process now; empty while it is not ready or has enough calls."""
        frames = []
        while self._is_ready and self._waiting and len(self._sent) < WINDOW:
            pending_call = self._waiting.popleft()
            if pending_call.answer.done():
                continue
            if pending_call.scripts.key not in self._loaded:
                self._loaded.add(pending_call.scripts.key)
                frames.append(frame(pending_call.scripts))
            frames.append(frame(pending_call.call))
            self._sent.append(pending_call)
        return b"".join(frames)

    def handle_answer(self, answer: ScriptAnswer) -> None:
        """Process an answer. Raises BadFrame for an unexpected one."""
        if isinstance(answer, WorkerReady):
            if self._is_ready:
                raise BadFrame("found a second ready message")
            self._is_ready = True
            return
        if not self._sent:
            raise BadFrame("found a response without a call")
        self._sent.popleft().end(answer)

    def process_ended(self, reason: str, *, is_to_blame: bool) -> None:
        """Note that the process has ended; the next one starts without loaded scripts.

        `is_to_blame`: the oldest sent call has ended it. If the process was never ready, all calls fail.
        """
        sent, was_ready = self._sent, self._is_ready
        self._sent, self._loaded, self._is_ready = deque(), set(), False
        if not was_ready:
            self.fail(reason)
        elif sent:
            sent[0].tries += 1
            if is_to_blame or sent[0].tries >= MAX_ATTEMPTS:
                sent.popleft().end(CallFailure(reason))
        self._waiting.extendleft(reversed(sent))

    def fail(self, reason: str) -> None:
        """Fail all calls."""
        remaining = [*self._sent, *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        for pending_call in remaining:
            pending_call.end(CallFailure(reason))
