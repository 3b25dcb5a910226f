"""The resends of one session: how many run, which wait, and their frames (Streamr protocol, resend).

Old clients that detect a gap which cannot be filled repeat their request as soon as they learn that there is nothing,
thousands of times per second. So `Resends` lets a session begin a number of resends per second and run a number at once;
others wait, and the reply to a repeated empty resend is delayed, longer each time. Requests are refused only if very many
wait. `ResendFrames` returns the frames of one resend: none before its first message, and one end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from cachetools import FIFOCache

from mappings.errors import Fault
from mappings.streamr import errors
from mappings.streamr.errors import ErrorSubject, RequestRejected, Sub
from mappings.streamr.frames import Error, NoResend, Resending, Resent, StreamrFrame, Unicast, error_of
from mappings.streamr.requests import Resend
from mappings.streams.entry import EntrySelection, StreamEntry

MAX_DELAY = 30.0
"""Seconds that an answer is kept back at most."""

QUIET = 60.0
"""Seconds after which a question that found nothing is a new one."""

MAX_REMEMBERED = 100
"""The most empty resends that are remembered; beyond that only the rate limits a session."""


@dataclass(frozen=True, slots=True)
class ResendLimits:
    """The limits of one session: resends per second, running, and waiting."""

    per_second: int = 20
    running: int = 4
    waiting: int = 64


class ResendTicket(NamedTuple):
    """One resend of a session; clients may use the same `sub` again while it runs."""

    number: int
    request: Resend


_ResendKey: TypeAlias = tuple[str, int, Sub, EntrySelection]


class Resends:
    """The resends of one session."""

    def __init__(self, limits: ResendLimits | None = None) -> None:
        self._limits = limits or ResendLimits()
        self._number = 0
        self._waiting: deque[ResendTicket] = deque()
        self._running: set[int] = set()
        self._start_times: deque[float] = deque(maxlen=self._limits.per_second)
        self._delayed: set[int] = set()
        self._empty_resends: FIFOCache[_ResendKey, tuple[int, float]] = FIFOCache(MAX_REMEMBERED)

    def ask(self, request: Resend) -> ResendTicket:
        """Put a resend in the queue. Raises RequestRejected for one too many."""
        if len(self._waiting) + len(self._delayed) >= self._limits.waiting:
            fault = errors.limit_exceeded(f"{self._limits.waiting} waiting resends of a session")
            raise RequestRejected(fault, ErrorSubject(request.stream, request.partition, request.sub))
        self._number += 1
        ticket = ResendTicket(self._number, request)
        self._waiting.append(ticket)
        return ticket

    def begin(self, now: float) -> list[ResendTicket]:
        """Return the resends that may begin, in the order of their requests."""
        begun: list[ResendTicket] = []
        while self._waiting and len(self._running) < self._limits.running and self._next_second() <= now:
            ticket = self._waiting.popleft()
            self._running.add(ticket.number)
            self._start_times.append(now)
            begun.append(ticket)
        return begun

    def finish(self, ticket: ResendTicket, found: bool, now: float) -> float:
        """A resend has come to its end; the time from which its last frame may be sent.

        Then `answered` has to be called.
        """
        self._running.discard(ticket.number)
        at = now if found else now + self._delay(ticket.request, now)
        self._delayed.add(ticket.number)
        if found:
            self._empty_resends.pop(_resend_key(ticket.request), None)
        return at

    def answered(self, ticket: ResendTicket) -> None:
        """The last frame of a resend was sent."""
        self._delayed.discard(ticket.number)

    def stop(self) -> None:
        """Forget all of them with the session."""
        for each in (self._waiting, self._running, self._delayed, self._empty_resends):
            each.clear()

    def _next_second(self) -> float:
        """When one more may begin, as far as the rate goes."""
        return self._start_times[0] + 1 if len(self._start_times) == self._limits.per_second else float("-inf")

    def _delay(self, request: Resend, now: float) -> float:
        """Return 0, 1, 2, 4 … seconds for the same repeated request."""
        question = _resend_key(request)
        times, last = self._empty_resends.get(question, (0, now))
        if now - last >= QUIET:
            times = 0
        delay = 0.0 if times == 0 else min(2.0 ** min(times - 1, 10), MAX_DELAY)
        self._empty_resends[question] = (times + 1, now + delay)
        return delay


def _resend_key(request: Resend) -> _ResendKey:
    return request.stream, request.partition, request.sub, request.selection


class ResendFrames:
    """The frames of one resend."""

    __slots__ = ("_request", "has_match")

    def __init__(self, request: Resend) -> None:
        self._request = request
        self.has_match = False

    def element_frames(self, messages: Sequence[StreamEntry]) -> list[StreamrFrame]:
        """The frames of some messages, in order."""
        request = self._request
        frames: list[StreamrFrame] = []
        if messages and not self.has_match:
            self.has_match = True
            frames.append(Resending(request.stream, request.partition, request.sub))
        return frames + [Unicast(request.sub, message) for message in messages]

    def completed(self) -> Resent | NoResend:
        """The last frame of a resend that came to its end."""
        kind = Resent if self.has_match else NoResend
        return kind(self._request.stream, self._request.partition, self._request.sub)

    def failed(self, reason: Fault, correlation_id: str | None = None) -> Error:
        """Return the last frame of a resend that did not, with the reason's status below 500; else with 503."""
        request = self._request
        status = reason.status if reason.status < 500 else 503
        fault = errors.resend_failed(request.stream, request.partition, reason.message, status)
        return error_of(fault, ErrorSubject(request.stream, request.partition, request.sub), correlation_id)
