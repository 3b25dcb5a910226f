"""The reactive-streams-io sessions of one connection and one mapper (rsio, brokers).

The reader of a reply address is one client; the header `rsio-session` distinguishes those that share one. A client begins
with a hello; a second hello is a restarted client, whose former session ends silently. Sessions that can be resumed are kept
here without client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from connectivity.sessions.reactive_streams_io.access import ReaderRevalidation
from connectivity.sessions.reactive_streams_io.commands import CommandResponses
from connectivity.sessions.reactive_streams_io.peer import GAP, PeerSession
from connectivity.sessions.reactive_streams_io.publishers import PublisherResolver
from connectivity.sessions.reactive_streams_io.streams import SessionStreams
from connectivity.sessions.reply_channel import ReplyChannel
from connectivity.subscriptions.manager import SubscriptionManager
from mappings.model.absence import AbsenceDetector
from mappings.reactive_streams_io.endpoint import Endpoint, EndpointRole, EndpointState
from mappings.reactive_streams_io.events import Closed, EndpointEvent, Interrupted
from mappings.reactive_streams_io.options import RsioOptions
from mappings.reactive_streams_io.resumption import Resumables

MOST_SESSIONS = 10_000
"""Clients of one connection."""

MOST_AT_AN_ADDRESS = 256
"""The most sessions at one address, distinguished by their names."""

PeerKey: TypeAlias = tuple[str, str | None]
"""A reply address, and the client's name for its session."""


class RsioSessions:
    """The clients of one connection through one mapping."""

    def __init__(
        self,
        connection_id: str,
        options: RsioOptions,
        opening: PublisherResolver,
        streams: SubscriptionManager,
        reader_access: ReaderRevalidation,
        clock: Callable[[], float],
        answers: CommandResponses,
    ) -> None:
        """`clock` gives monotonic seconds."""
        self.connection_id = connection_id
        self.options = options
        self.answers = answers
        """How responses to clients' commands are sent."""
        self._opening = opening
        self._streams = streams
        self._reader_access = reader_access
        self._clock = clock
        self._resumables = Resumables(options.limits)
        self._peers: dict[PeerKey, PeerSession] = {}
        self._at: dict[str, set[PeerKey]] = {}
        """By address, the keys of its sessions."""
        self._undelivered: dict[str, AbsenceDetector] = {}
        """By address, how many messages nobody received there."""
        self._parted: asyncio.Future[None] | None = None
        """Set when the connection closes: resolved when all sessions have ended."""
        self._offers: dict[int, SessionStreams] = {}
        """By session key, connected clients and those that may come back."""

    def __repr__(self) -> str:
        return f"<RsioSessions of {self.connection_id}, {len(self._peers)} clients, {self._resumables!r}>"

    def is_full(self, address: str) -> bool:
        """Whether no session may begin at this address: one client cannot use all sessions of a connection."""
        at = self._at.get(address, ())
        return len(self._peers) >= MOST_SESSIONS or len(at) >= MOST_AT_AN_ADDRESS

    @property
    def is_parting(self) -> bool:
        return self._parted is not None

    def find(self, key: PeerKey) -> PeerSession | None:
        return self._peers.get(key)

    def begin(self, key: PeerKey, channel: ReplyChannel, subjects: tuple[str, ...]) -> PeerSession:
        """Begin the session of a client; its former one ends."""
        self.forget(key)
        route = channel.route
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
            endpoint.session, self.connection_id, subjects, self.options, self._streams, self._reader_access
        )
        self._offers[endpoint.session.key] = offers
        peer_session = PeerSession(
            endpoint, offers, self._opening, channel, frozenset(subjects), self._clock, self._hand_over, key[1]
        )
        self._peers[key] = peer_session
        self._at.setdefault(key[0], set()).add(key)
        return peer_session

    def forget(self, key: PeerKey) -> None:
        """End a session without a goodbye."""
        if (peer_session := self._peers.get(key)) is not None:
            self._drop(key, peer_session)
            session = peer_session.endpoint.session
            self._resumables.void(session)
            self._offers.pop(session.key, None)
            peer_session.leave()

    def forget_names(self, prefix: str) -> None:
        """Forget the messages whose deliveries the broker does not bring again: their names have a prefix."""
        for peer_session in self._peers.values():
            peer_session.forget_names(prefix)

    def leave(self, address: str) -> None:
        """Process that the reader at this address has disconnected.

        A session that can be resumed waits for its client, others end.
        """
        for key in list(self._at.get(address, ())):
            peer_session = self._peers[key]
            self.see(key, peer_session, peer_session.lose())

    def reader_seen(self, address: str) -> None:
        """Note that the address has a reader."""
        self._undelivered.pop(address, None)

    def undelivered(self, address: str) -> None:
        """Process a message that nobody received.

        Clients that cannot detect lost messages are disconnected. Others may come back, until it is certain that the address
        has no reader.
        """
        for key in list(self._at.get(address, ())):
            peer_session = self._peers[key]
            if peer_session.endpoint.state is EndpointState.CLOSING:
                self.see(key, peer_session, peer_session.lose())
            elif not peer_session.finds_gaps:
                self.see(key, peer_session, peer_session.part(GAP))
        if address in self._at and self._undelivered.setdefault(address, AbsenceDetector()).note(self._clock()):
            self.leave(address)

    def see(self, key: PeerKey, peer_session: PeerSession, events: Sequence[EndpointEvent]) -> None:
        """Process the end of a client's connection."""
        for event in events:
            match event:
                case Interrupted():
                    self._drop(key, peer_session)
                case Closed():
                    if peer_session.offers.session is peer_session.endpoint.session:
                        self._offers.pop(peer_session.offers.session.key, None)
                    self._drop(key, peer_session)

    def sweep(self, *, is_taking: bool) -> None:
        """Do what is due.

        `is_taking`: whether deliveries are accepted now; otherwise no client is considered silent.
        """
        for key, peer_session in list(self._peers.items()):
            self.see(key, peer_session, peer_session.tick(is_taking=is_taking))
        for session, _ in self._resumables.expire(self._clock()):
            if (offers := self._offers.pop(session.key, None)) is not None:
                offers.stop()

    async def part(self, reason: str) -> None:
        """Accept no more sessions, say goodbye to all clients, and wait for their goodbyes."""
        self._parted = asyncio.get_running_loop().create_future()
        for key, peer_session in list(self._peers.items()):
            peer_session.acknowledge_done()
            self.see(key, peer_session, peer_session.part(reason))
        if self._peers:
            await self._parted

    def close(self) -> None:
        """The connection is closed: all sessions end without a word."""
        for key in list(self._peers):
            self.forget(key)
        for offers in self._offers.values():
            offers.stop()
        self._offers.clear()

    def _hand_over(self, own: int, session: int) -> SessionStreams:
        """Transfer the streams of a session to the peer that has resumed it.

        The streams of its session until then end.
        """
        if (former := self._offers.pop(own, None)) is not None:
            former.stop()
        offers = self._offers[session]
        # The former peer learns that its session was taken over.
        offers.wake()
        return offers

    def _drop(self, key: PeerKey, peer_session: PeerSession) -> None:
        if self._peers.get(key) is peer_session:
            del self._peers[key]
            keys = self._at[key[0]]
            keys.discard(key)
            if not keys:
                del self._at[key[0]]
                self._undelivered.pop(key[0], None)
        if self._parted is not None and not self._peers and not self._parted.done():
            self._parted.set_result(None)
