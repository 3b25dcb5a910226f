"""Sessions that can be resumed: tokens, owners and lifetimes (rsio, resume).

A server has one `Resumables` for all its connections. Each session has one token at a time, 128 random bits, valid once and
for one subject. The reply to it may be lost, so a token is used up when the client's first frame after `resume` shows that
the reply has arrived; until then it may be presented again, and the session continues over the newest transport. A session
whose transport is lost is kept for its lifetime, within bounds of number and bytes; `expire` returns the ended streams. Over
a broker no loss is detected: the lifetime counts from the last frame.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mappings.reactive_streams_io.events import StreamEvent
from mappings.reactive_streams_io.limits import MIN_TOKEN_LENGTH, EndpointLimits
from mappings.reactive_streams_io.session import RsioSession

GIVEN_UP = "503 rsio:session.lost The connection was lost and was not resumed."


class SessionHolder(Protocol):
    """The connection that a session belongs to."""

    @property
    def session(self) -> RsioSession: ...

    @property
    def subject(self) -> str: ...

    @property
    def offered(self) -> frozenset[int]:
        """The extensions that the peer's hello listed."""
        ...

    def expires(self) -> float | None:
        """When the session of an open connection ends without frames; None if the loss is detected."""
        ...

    def yield_session(self, now: float) -> None:
        """Another connection takes the session: part from the peer of this one, and leave the streams alone."""
        ...


@dataclass(slots=True)
class _ResumableSession:
    holder: SessionHolder
    session: RsioSession
    token: bytes
    previous_token: bytes | None
    until: float | None = None
    size: int = 0
    """Its size, as far as is known."""


class ResumeToken:
    """The data to resume: session, the server's token, and the extensions of the hello."""

    __slots__ = ("extensions", "session", "token")

    def __init__(self, session: RsioSession, token: bytes, extensions: frozenset[int]) -> None:
        self.session = session
        self.token = token
        self.extensions = extensions

    def __repr__(self) -> str:
        return f"<ResumeToken for {self.session}>"

    def give_up(self) -> list[StreamEvent]:
        """Resume no more; return the events of the streams."""
        return self.session.end_all(GIVEN_UP)


class Resumables:
    """The sessions of one server that have a token.

    `tokens` makes one; times are the seconds that the endpoints get.
    """

    __slots__ = ("_abandoned", "_by_session", "_by_token", "_idle", "_limits", "_lost", "_size", "_tokens")

    def __init__(
        self,
        limits: EndpointLimits | None = None,
        tokens: Callable[[], bytes] = lambda: secrets.token_bytes(MIN_TOKEN_LENGTH),
    ) -> None:
        self._limits = limits or EndpointLimits()
        self._tokens = tokens
        self._by_token: dict[bytes, _ResumableSession] = {}
        self._by_session: dict[int, _ResumableSession] = {}
        self._lost: dict[int, _ResumableSession] = {}
        self._idle: dict[int, _ResumableSession] = {}
        """The lost sessions without streams."""
        self._abandoned: dict[int, _ResumableSession] = {}
        self._size = 0
        """The size of the lost sessions, as far as is known."""

    def __repr__(self) -> str:
        return f"<Resumables {len(self._by_token)} tokens, {len(self._lost) + len(self._abandoned)} lost>"

    def grant(self, holder: SessionHolder, former: bytes | None = None) -> bytes:
        """A token for the session of a connection.

        Those before are void, but for the `previous_token` one until it is `used`.
        """
        self.void(holder.session)
        entry = _ResumableSession(holder, holder.session, self._tokens(), former)
        self._by_token[entry.token] = self._by_session[entry.session.key] = entry
        if former is not None:
            self._by_token[former] = entry
        return entry.token

    def used(self, session: RsioSession) -> None:
        """The client has the answer to its resume: the token that it has presented is void."""
        entry = self._by_session.get(session.key)
        if entry is not None and entry.previous_token is not None:
            del self._by_token[entry.previous_token]
            entry.previous_token = None

    def void(self, session: RsioSession) -> None:
        """The session cannot be resumed any more, or not by its token."""
        if (entry := self._by_session.get(session.key)) is not None:
            self.used(session)
            del self._by_session[session.key], self._by_token[entry.token]
            self._abandoned.pop(session.key, None)
            self._find(entry)

    def has_session(self, session: RsioSession) -> bool:
        """Whether a session is kept for its client."""
        return session.key in self._by_session

    def lose(self, session: RsioSession, until: float) -> None:
        """Keep a session whose transport is lost until this time.

        If there are too many, the oldest end next, those without streams first: an interrupted resume leaves one of these.
        """
        entry = self._by_session[session.key]
        entry.until = until
        entry.size = session.held_bytes
        self._size += entry.size
        self._lost[session.key] = entry
        if not session.has_streams:
            self._idle[session.key] = entry
        self._enforce_limits()

    def claim(self, token: bytes, subject: str, now: float) -> SessionHolder | None:
        """Return the connection of the token's session, if this subject may still claim it."""
        entry = self._by_token.get(token)
        if entry is None or entry.holder.subject != subject:
            return None
        until = entry.until if entry.until is not None else entry.holder.expires()
        return None if until is not None and now > until else entry.holder

    def give_up(self, session: RsioSession) -> None:
        """End the session of a failed claim; `expire` returns its events."""
        if (entry := self._by_session.get(session.key)) is not None:
            self._abandon(entry)

    def expire(self, now: float) -> list[tuple[RsioSession, list[StreamEvent]]]:
        """Return the expired sessions with the events of their streams."""
        for entry in self._lost.values():
            # Lost sessions still read ahead for a while.
            former, entry.size = entry.size, entry.session.held_bytes
            self._size += entry.size - former
        self._enforce_limits()
        late = [entry for entry in self._lost.values() if entry.until is not None and entry.until < now]
        over = [entry.session for entry in (*self._abandoned.values(), *late)]
        for session in over:
            self.void(session)
        return [(session, session.end_all(GIVEN_UP)) for session in over]

    def _enforce_limits(self) -> None:
        """Give up as many as are too many."""
        while len(self._lost) > self._limits.resumable or self._size > self._limits.resumable_bytes:
            self._abandon(next(iter((self._idle or self._lost).values())))

    def _abandon(self, entry: _ResumableSession) -> None:
        self._find(entry)
        entry.until = float("-inf")
        self._abandoned[entry.session.key] = entry

    def _find(self, entry: _ResumableSession) -> None:
        """It is lost no more, if it was."""
        if self._lost.pop(entry.session.key, None) is not None:
            self._idle.pop(entry.session.key, None)
            self._size -= entry.size
