"""The sessions of one connection that speak reactive-streams-io through one mapping (reactive-streams-io, brokers).

Whoever reads one reply address is one client; the header `rsio-session` tells apart those that share one. A client begins
with a hello; a second one is a client that has started anew, and what it had before is over without a word. Sessions that
can be resumed are kept here while nobody is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from connectivity.sessions.reactive_streams_io.access import ReaderAccess
from connectivity.sessions.reactive_streams_io.commands import CommandResponses
from connectivity.sessions.reactive_streams_io.peer import GAP, PeerSession
from connectivity.sessions.reactive_streams_io.publishers import PublisherResolver
from connectivity.sessions.reactive_streams_io.read_ahead import ConnectionBudget
from connectivity.sessions.reactive_streams_io.streams import SessionStreams
from connectivity.sessions.reply_channel import ReplyChannel
from connectivity.subscriptions.manager import SubscriptionManager
from mappings.model.absence import AbsenceDetector
from mappings.reactive_streams_io.endpoint import Endpoint, EndpointRole, EndpointState
from mappings.reactive_streams_io.events import Closed, Event, Interrupted
from mappings.reactive_streams_io.options import RsioOptions
from mappings.reactive_streams_io.resumption import Resumables

MOST_SESSIONS = 10_000
"""Clients of one connection."""

MOST_AT_AN_ADDRESS = 256
"""Sessions that are answered at one address, told apart by their names."""

Key: TypeAlias = tuple[str, str | None]
"""A reply address, and what the client calls its session."""


class RsioSessions:
    """The clients of one connection through one mapping."""

    def __init__(
        self,
        connection_id: str,
        options: RsioOptions,
        opening: PublisherResolver,
        streams: SubscriptionManager,
        watching: ReaderAccess,
        clock: Callable[[], float],
        answers: CommandResponses,
    ) -> None:
        """`clock` gives monotonic seconds."""
        self.connection_id = connection_id
        self.options = options
        self.answers = answers
        """How commands are answered that clients have sent in streams."""
        self._opening = opening
        self._streams = streams
        self._watching = watching
        self._clock = clock
        self._resumables = Resumables(options.limits)
        self._counterparts: dict[Key, PeerSession] = {}
        self._at: dict[str, set[Key]] = {}
        """By address: the keys of those who are answered there."""
        self._unheard: dict[str, AbsenceDetector] = {}
        """By address: what nobody received there."""
        self._parted: asyncio.Future[None] | None = None
        """Set once it is time to part: resolved when nobody is left."""
        self._hall = ConnectionBudget()
        self._offers: dict[int, SessionStreams] = {}
        """By the keys of their sessions: those of clients that are there, and of those that may come back."""

    def __repr__(self) -> str:
        return f"<Room of {self.connection_id}, {len(self._counterparts)} clients, {self._resumables!r}>"

    def is_full(self, address: str) -> bool:
        """Whether nobody may begin at this address: so one client cannot have all the sessions of a connection."""
        at = self._at.get(address, ())
        return len(self._counterparts) >= MOST_SESSIONS or len(at) >= MOST_AT_AN_ADDRESS

    @property
    def is_parting(self) -> bool:
        return self._parted is not None

    def find(self, key: Key) -> PeerSession | None:
        return self._counterparts.get(key)

    def begin(self, key: Key, line: ReplyChannel, subjects: tuple[str, ...]) -> PeerSession:
        """A client says hello, or is there. What it had before is over."""
        self.forget(key)
        route = line.route
        endpoint = Endpoint(
            EndpointRole.SERVER,
            self._clock(),
            limits=self.options.limits,
            extensions=self.options.extensions,
            has_messages=not route.is_stream,
            is_connected=route.is_listener,
            subject="\0".join(sorted(subjects)),
            resumables=self._resumables,
        )
        offers = SessionStreams(
            endpoint.session, self.connection_id, subjects, self.options, self._streams, self._watching, self._hall
        )
        self._offers[endpoint.session.key] = offers
        counterpart = PeerSession(
            endpoint, offers, self._opening, line, frozenset(subjects), self._clock, self._hand_over, key[1]
        )
        self._counterparts[key] = counterpart
        self._at.setdefault(key[0], set()).add(key)
        return counterpart

    def forget(self, key: Key) -> None:
        """Whoever was there is there no more, and is told nothing."""
        if (counterpart := self._counterparts.get(key)) is not None:
            self._drop(key, counterpart)
            session = counterpart.endpoint.session
            self._resumables.void(session)
            self._offers.pop(session.key, None)
            counterpart.leave()

    def leave(self, address: str) -> None:
        """Whoever read at this address has gone.

        A session that can be resumed waits for its client, others are over.
        """
        for key in list(self._at.get(address, ())):
            counterpart = self._counterparts[key]
            self.see(key, counterpart, counterpart.lose())

    def heard(self, address: str) -> None:
        """Somebody reads at this address."""
        self._unheard.pop(address, None)

    def unheard(self, address: str) -> None:
        """A message for this address was received by nobody: those end who would not find what is missing by themselves.

        The others may come back, until it is certain that nobody reads there any more.
        """
        for key in list(self._at.get(address, ())):
            counterpart = self._counterparts[key]
            if counterpart.endpoint.state is EndpointState.CLOSING:
                self.see(key, counterpart, counterpart.lose())
            elif not counterpart.finds_gaps:
                self.see(key, counterpart, counterpart.part(GAP))
        if address in self._at and self._unheard.setdefault(address, AbsenceDetector()).note(self._clock()):
            self.leave(address)

    def see(self, key: Key, counterpart: PeerSession, events: Sequence[Event]) -> None:
        """What has become of a client's connection."""
        for event in events:
            match event:
                case Interrupted():
                    self._drop(key, counterpart)
                case Closed():
                    if counterpart.offers.session is counterpart.endpoint.session:
                        self._offers.pop(counterpart.offers.session.key, None)
                    self._drop(key, counterpart)

    def sweep(self, *, is_taking: bool) -> None:
        """Do what is due. `is_taking`: whether what comes is taken now; otherwise nobody is taken for silent."""
        for key, counterpart in list(self._counterparts.items()):
            self.see(key, counterpart, counterpart.tick(is_taking=is_taking))
        for session, _ in self._resumables.expire(self._clock()):
            if (offers := self._offers.pop(session.key, None)) is not None:
                offers.stop()

    async def part(self, reason: str) -> None:
        """Let nobody in any more, say goodbye to all who are there, and wait for theirs."""
        self._parted = asyncio.get_running_loop().create_future()
        for key, counterpart in list(self._counterparts.items()):
            counterpart.settle_up()
            self.see(key, counterpart, counterpart.part(reason))
        if self._counterparts:
            await self._parted

    def close(self) -> None:
        """The connection is closed: all sessions end without a word."""
        for key in list(self._counterparts):
            self.forget(key)
        for offers in self._offers.values():
            offers.stop()
        self._offers.clear()

    def _hand_over(self, own: int, session: int) -> SessionStreams:
        """The streams of a session, to whoever has resumed it; those of the client's own session until then are over."""
        if (former := self._offers.pop(own, None)) is not None:
            former.stop()
        offers = self._offers[session]
        # Whoever had it until now is told so.
        offers.wake()
        return offers

    def _drop(self, key: Key, counterpart: PeerSession) -> None:
        if self._counterparts.get(key) is counterpart:
            del self._counterparts[key]
            keys = self._at[key[0]]
            keys.discard(key)
            if not keys:
                del self._at[key[0]]
                self._unheard.pop(key[0], None)
        if self._parted is not None and not self._counterparts and not self._parted.done():
            self._parted.set_result(None)
