"""Sessions that can be resumed: whose session a token names, and for how long (reactive-streams-io, resume).

A server has one `Resumables` for all its connections. Each session has one token at a time, 128 random bits that count
once and for one subject alone. Since the answer to it may be lost on its way, a token is used when the client has shown that
the answer has come: with the first frame behind its `resume`. Until then it may be presented again, and the session goes on
over the newest transport.

While its transport is there a session is only known here; once it is lost, it is kept for its lifetime, within bounds in
number and octets. What is given up, `expire` tells with the fate of its streams. Over a broker nobody says that a transport
is lost: there the lifetime counts from the last frame that came.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mappings.reactive_streams_io.events import StreamEvent
from mappings.reactive_streams_io.limits import SHORTEST_TOKEN, EndpointLimits
from mappings.reactive_streams_io.session import RsioSession

GIVEN_UP = "503 rsio:session.lost The connection was lost and has not been resumed."


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
        """When the session of an open connection is over for want of frames, or None where a loss is noticed."""
        ...

    def yield_session(self, now: float) -> None:
        """Another connection takes the session: part from the peer of this one, and leave the streams alone."""
        ...


@dataclass(slots=True)
class _Kept:
    holder: SessionHolder
    session: RsioSession
    token: bytes
    former: bytes | None
    until: float | None = None
    octets: int = 0
    """What is kept of it, as far as is known."""


class ResumeToken:
    """What a client needs to go on: its session, the token that the server gave, and the extensions that were said."""

    __slots__ = ("extensions", "session", "token")

    def __init__(self, session: RsioSession, token: bytes, extensions: frozenset[int]) -> None:
        self.session = session
        self.token = token
        self.extensions = extensions

    def __repr__(self) -> str:
        return f"<Ticket for {self.session}>"

    def give_up(self) -> list[StreamEvent]:
        """Resume no more: what becomes of the streams."""
        return self.session.end_all(GIVEN_UP)


class Resumables:
    """The sessions of one server that have a token.

    `tokens` makes one; times are the seconds that the endpoints get.
    """

    __slots__ = ("_by_session", "_by_token", "_given_up", "_idle", "_limits", "_lost", "_octets", "_tokens")

    def __init__(
        self,
        limits: EndpointLimits | None = None,
        tokens: Callable[[], bytes] = lambda: secrets.token_bytes(SHORTEST_TOKEN),
    ) -> None:
        self._limits = limits or EndpointLimits()
        self._tokens = tokens
        self._by_token: dict[bytes, _Kept] = {}
        self._by_session: dict[int, _Kept] = {}
        self._lost: dict[int, _Kept] = {}
        self._idle: dict[int, _Kept] = {}
        """Those of the lost ones that had no streams."""
        self._given_up: dict[int, _Kept] = {}
        self._octets = 0
        """What the lost ones keep together, as far as is known."""

    def __repr__(self) -> str:
        return f"<Resumables {len(self._by_token)} tokens, {len(self._lost) + len(self._given_up)} lost>"

    def grant(self, holder: SessionHolder, former: bytes | None = None) -> bytes:
        """A token for the session of a connection.

        Those before are void, but for the `former` one until it is `used`.
        """
        self.void(holder.session)
        kept = _Kept(holder, holder.session, self._tokens(), former)
        self._by_token[kept.token] = self._by_session[kept.session.key] = kept
        if former is not None:
            self._by_token[former] = kept
        return kept.token

    def used(self, session: RsioSession) -> None:
        """The client has the answer to its resume: the token that it has presented is void."""
        kept = self._by_session.get(session.key)
        if kept is not None and kept.former is not None:
            del self._by_token[kept.former]
            kept.former = None

    def void(self, session: RsioSession) -> None:
        """The session cannot be resumed any more, or not by its token."""
        if (kept := self._by_session.get(session.key)) is not None:
            self.used(session)
            del self._by_session[session.key], self._by_token[kept.token]
            self._given_up.pop(session.key, None)
            self._find(kept)

    def is_kept(self, session: RsioSession) -> bool:
        """Whether somebody may come back for a session."""
        return session.key in self._by_session

    def lose(self, session: RsioSession, until: float) -> None:
        """The transport of a session is gone: keep it until then.

        Where there are too many, the oldest are next to go.

        Those without streams go first: whoever loses his transport while he resumes leaves one of these behind.
        """
        kept = self._by_session[session.key]
        kept.until = until
        kept.octets = session.octets
        self._octets += kept.octets
        self._lost[session.key] = kept
        if not session.has_streams:
            self._idle[session.key] = kept
        self._make_room()

    def claim(self, token: bytes, subject: str, now: float) -> SessionHolder | None:
        """The connection whose session a token names, if it may still be claimed by this subject."""
        kept = self._by_token.get(token)
        if kept is None or kept.holder.subject != subject:
            return None
        until = kept.until if kept.until is not None else kept.holder.expires()
        return None if until is not None and now > until else kept.holder

    def give_up(self, session: RsioSession) -> None:
        """A claim has failed: the session is over, which `expire` will tell."""
        if (kept := self._by_session.get(session.key)) is not None:
            self._give_up(kept)

    def expire(self, now: float) -> list[tuple[RsioSession, list[StreamEvent]]]:
        """The sessions that nobody came back for in time, and what becomes of their streams."""
        for kept in self._lost.values():
            # Streams go on for a while when nobody is there.
            former, kept.octets = kept.octets, kept.session.octets
            self._octets += kept.octets - former
        self._make_room()
        late = [kept for kept in self._lost.values() if kept.until is not None and kept.until < now]
        over = [kept.session for kept in (*self._given_up.values(), *late)]
        for session in over:
            self.void(session)
        return [(session, session.end_all(GIVEN_UP)) for session in over]

    def _make_room(self) -> None:
        """Give up as many as are too many."""
        while len(self._lost) > self._limits.resumable or self._octets > self._limits.resumable_octets:
            self._give_up(next(iter((self._idle or self._lost).values())))

    def _give_up(self, kept: _Kept) -> None:
        self._find(kept)
        kept.until = float("-inf")
        self._given_up[kept.session.key] = kept

    def _find(self, kept: _Kept) -> None:
        """It is lost no more, if it was."""
        if self._lost.pop(kept.session.key, None) is not None:
            self._idle.pop(kept.session.key, None)
            self._octets -= kept.octets
