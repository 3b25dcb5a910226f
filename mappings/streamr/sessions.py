"""The sessions of one connection: owner, subscriptions, and end (Streamr protocol, sessions).

A session is the reader of one reply address. `admit` checks the sender of a request, `subscribe` and `unsubscribe` change
subscriptions, and each sign of the end removes the session. Every method returns what is to be done (`SendFrame`,
`LeaveStream`, `EndSession`), and the time is an argument. Permissions were checked before.

A session belongs to the subjects that the source or peer gave its first sender; keys in requests are permissions of the
request only, since clients do not send them always. If clients share an address, each by its own ID, a subscription lasts
until the last of them has left it.

Clients do not notice a restart: subscriptions continue from stored rows. A resend fails, and its client must learn of it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import NamedTuple, TypeAlias

import msgspec

from mappings.errors import Fault
from mappings.model.absence import AbsenceDetector
from mappings.streamr import errors
from mappings.streamr.errors import ErrorSubject, Sub
from mappings.streamr.frames import StreamrFrame, Subscribed, Unsubscribed, error_of
from mappings.streamr.requests import Publish, StreamrRequest, SubscribeRequest, Unsubscribe

Spot: TypeAlias = tuple[str, int]
"""A stream and one of its partitions."""


class SenderDecision(Enum):
    """The decision about the sender of a request."""

    SERVED = "served"
    SILENT = "processed without a response, since the request has no reply address"
    NOWHERE = "rejected, since the request has no reply address"
    OUTSIDE = "rejected, since the reply address is not allowed"
    TAKEN = "rejected, since the session has another owner"


class SessionEnd(Enum):
    """Why a session ended."""

    DISCONNECTED = "the client disconnected"
    IDLE = "no request for too long"
    UNDELIVERED = "messages had no receiver"
    REFUSED = "the broker rejected messages"
    GONE = "the client has left"


class SendFrame(NamedTuple):
    """Send the session a frame."""

    address: str
    frame: StreamrFrame


class LeaveStream(NamedTuple):
    """Send the session no more messages of a partition."""

    address: str
    stream_partition: Spot


class EndSession(NamedTuple):
    """Stop the session's resends and forget it."""

    address: str
    why: SessionEnd


Effect: TypeAlias = SendFrame | LeaveStream | EndSession


class SubscriptionRow(NamedTuple):
    """The part of a live subscription that outlives a restart; the sender keeps the last offset."""

    address: str
    owners: frozenset[str]
    stream_partition: Spot
    subjects: frozenset[str]
    clients: frozenset[str | None]


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """The limits of a connection's sessions; times in seconds."""

    sessions: int = 10_000
    subscriptions: int = 1000
    idle_timeout: float = 3600


@dataclass(slots=True)
class _Subscription:
    """A subscription. `subjects` are those of the latest subscribe, key included; `clients` have not left."""

    subjects: frozenset[str]
    clients: set[str | None]


@dataclass(slots=True)
class StreamrSession:
    """The session of one address."""

    address: str
    owners: frozenset[str]
    seen: float
    subscriptions: dict[Spot, _Subscription] = field(default_factory=dict)
    undelivered: AbsenceDetector = field(default_factory=AbsenceDetector)


class SessionTable:
    """The sessions of one connection, the one that was silent longest first."""

    def __init__(
        self, limits: SessionLimits | None = None, *, is_peer: Callable[[str], bool] = lambda _address: False
    ) -> None:
        """`is_peer`: whether an address is a peer, whose session ends with its socket and not earlier."""
        self._limits = limits or SessionLimits()
        self._is_peer = is_peer
        self._sessions: dict[str, StreamrSession] = {}

    def get(self, address: str) -> StreamrSession | None:
        return self._sessions.get(address)

    def followed_streams(self) -> set[str]:
        """The streams that any of them follow."""
        return {stream for session in self._sessions.values() for stream, _ in session.subscriptions}

    # --- requests -------------------------------------------------------------------------------------------------------

    def admit(
        self,
        request: StreamrRequest,
        address: str | None,
        owners: frozenset[str],
        now: float,
        *,
        is_allowed: Callable[[str], bool],
    ) -> SenderDecision:
        """Check the sender of a request. An accepted one keeps its session alive.

        `address` is its reply address, None if the message names none; `owners` are the subjects of its source or peer;
        `is_allowed` says whether the operator allows an address.
        """
        if address is None:
            return SenderDecision.SILENT if isinstance(request, Publish) else SenderDecision.NOWHERE
        if not is_allowed(address):
            return SenderDecision.OUTSIDE
        session = self._sessions.get(address)
        if session is not None:
            if session.owners != owners:
                return SenderDecision.TAKEN
            self._saw(session, now)
        return SenderDecision.SERVED

    def open(self, address: str, owners: frozenset[str], now: float) -> StreamrSession | None:
        """Return the session of this address, created if necessary; None if there are too many."""
        session = self._sessions.get(address)
        if session is None:
            if len(self._sessions) >= self._limits.sessions:
                return None
            session = self._sessions[address] = StreamrSession(address, owners, now)
        return session

    @property
    def too_many(self) -> Fault:
        """Return the error if `open` has no session."""
        return errors.limit_exceeded(f"{self._limits.sessions} sessions of a connection")

    def subscribe(
        self,
        request: SubscribeRequest,
        address: str,
        owners: frozenset[str],
        subjects: frozenset[str],
        now: float,
        *,
        client: str | None = None,
    ) -> list[Effect]:
        """Subscribe to a partition, with permission. Repeating it only repeats the reply."""
        spot, about = (request.stream, request.partition), ErrorSubject(request.stream, request.partition)
        session = self.open(address, owners, now)
        if session is None:
            return [SendFrame(address, error_of(self.too_many, about))]
        answer = SendFrame(address, Subscribed(*spot))
        if (found := session.subscriptions.get(spot)) is not None:
            found.subjects = subjects
            found.clients.add(client)
            return [answer]
        if len(session.subscriptions) >= self._limits.subscriptions:
            fault = errors.limit_exceeded(f"{self._limits.subscriptions} subscriptions of a session")
            return [SendFrame(address, error_of(fault, about))]
        session.subscriptions[spot] = _Subscription(subjects, {client})
        return [answer]

    def unsubscribe(self, request: Unsubscribe, address: str, *, client: str | None = None) -> list[Effect]:
        """Follow a partition no longer: the one that is named; else the only one of the stream, or the first."""
        session = self._sessions.get(address)
        own = session.subscriptions if session is not None else {}
        partitions = [
            partition
            for (stream, partition), found in own.items()
            if stream == request.stream and client in found.clients
        ]
        partition = request.partition
        if partition is None:
            partition = partitions[0] if len(partitions) == 1 else 0
        if session is None or partition not in partitions:
            fault = errors.not_subscribed(request.stream, partition)
            return [SendFrame(address, error_of(fault, ErrorSubject(request.stream, partition)))]
        spot = (request.stream, partition)
        answer = SendFrame(address, Unsubscribed(*spot))
        own[spot].clients.discard(client)
        return [answer] if own[spot].clients else [self._leave(session, spot), answer]

    def drop(self, address: str, spot: Spot) -> list[Effect]:
        """A session follows this partition no longer, for a reason that is not its own.

        Nothing, if it does not anyway.
        """
        session = self._sessions.get(address)
        return [self._leave(session, spot)] if session is not None and spot in session.subscriptions else []

    # --- ends -----------------------------------------------------------------------------------------------------------

    def end(self, address: str, why: SessionEnd) -> list[Effect]:
        """End a session without a frame, if there is one."""
        session = self._sessions.pop(address, None)
        if session is None:
            return []
        return [*(self._leave(session, spot) for spot in list(session.subscriptions)), EndSession(address, why)]

    def close(self) -> None:
        """Forget all of them."""
        self._sessions.clear()

    def idle(self, now: float) -> list[Effect]:
        """End those that have been silent for too long."""
        return [effect for address in list(self._overdue(now)) for effect in self.end(address, SessionEnd.IDLE)]

    def reader_seen(self, address: str) -> None:
        """Something that was sent was received."""
        if (session := self._sessions.get(address)) is not None:
            session.undelivered.clear()

    def undelivered(self, address: str, now: float) -> list[Effect]:
        """Process that nobody received a message. End the session if that continues."""
        session = self._sessions.get(address)
        if session is None or not session.undelivered.note(now):
            return []
        return self.end(address, SessionEnd.UNDELIVERED)

    def recheck(self, streams: Container[str], may_read: Callable[[str, frozenset[str]], bool]) -> list[Effect]:
        """End the subscriptions to these streams that are no longer permitted, after a change of policies.

        `may_read` is called once for each stream and subjects. If it raises, nothing has changed.
        """
        judged = cache(may_read)
        lost = [
            (session, spot)
            for session in self._sessions.values()
            for spot, found in session.subscriptions.items()
            if spot[0] in streams and not judged(spot[0], found.subjects)
        ]
        effects: list[Effect] = []
        for session, spot in lost:
            refusal = error_of(errors.not_authorized(*spot), ErrorSubject(*spot))
            effects += (self._leave(session, spot), SendFrame(session.address, refusal))
        return effects

    # --- restarts -------------------------------------------------------------------------------------------------------

    def row(self, address: str, spot: Spot) -> SubscriptionRow | None:
        """Return the row of this subscription that outlives a restart; None if there is none."""
        session = self._sessions.get(address)
        found = session.subscriptions.get(spot) if session is not None else None
        if session is None or found is None:
            return None
        return SubscriptionRow(address, session.owners, spot, found.subjects, frozenset(found.clients))

    def restore(self, row: SubscriptionRow, now: float) -> bool:
        """Resume a subscription after a restart; False if there is one. The session is as if just seen."""
        session = self._sessions.setdefault(row.address, StreamrSession(row.address, row.owners, now))
        if row.stream_partition in session.subscriptions:
            return False
        session.subscriptions[row.stream_partition] = _Subscription(row.subjects, set(row.clients))
        return True

    # --- inside ---------------------------------------------------------------------------------------------------------

    def _saw(self, session: StreamrSession, now: float) -> None:
        """Move the session to the end, which has the latest ones."""
        session.seen = now
        self._sessions[session.address] = self._sessions.pop(session.address)

    def _overdue(self, now: float) -> Iterator[str]:
        for session in self._sessions.values():
            if now - session.seen < self._limits.idle_timeout:
                return
            if not self._is_peer(session.address):
                yield session.address

    def _leave(self, session: StreamrSession, spot: Spot) -> LeaveStream:
        del session.subscriptions[spot]
        return LeaveStream(session.address, spot)


class PersistedSubscription(msgspec.Struct, frozen=True, array_like=True, tag="following"):
    """A session's subscription to a partition, with the permissions of `subjects`, for these clients.

    `owners`: the owners of the session. `headers`: additional headers of broadcasts.
    """

    stream: str
    partition: int
    owners: frozenset[str]
    subjects: tuple[str, ...]
    clients: frozenset[str | None]
    headers: Mapping[str, str]


class PersistedResend(msgspec.Struct, frozen=True, array_like=True, tag="asked"):
    """An unfinished resend; `headers` are those of its frames, which reply to `correlation_id`."""

    stream: str
    partition: int
    sub: Sub
    owners: frozenset[str]
    headers: Mapping[str, str]
    correlation_id: str | None


PersistedItem: TypeAlias = PersistedSubscription | PersistedResend

pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder(PersistedSubscription | PersistedResend).decode
"""Raises ValueError for invalid bytes."""


def resumed_from(last: int, missed: int, most: int) -> int | None:
    """Return the offset after which a live subscription continues after a restart; None for "now".

    `missed` messages came after the `last` sent one, and `most` are sent. The client detects a gap by the next predecessor.
    """
    return last if missed <= most else None
