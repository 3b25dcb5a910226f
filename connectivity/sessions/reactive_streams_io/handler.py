"""The session handler of reactive-streams-io: finds the session of each message.

A session belongs to one reply address. Its endpoint decides about each message; the resulting streams are subscriptions on
the engine. Messages without session are refused (reactive-streams-io, brokers). At a listener a session is a peer's socket:
it begins when the peer connects or says hello, and a second hello is an error (transports).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import cast

import structlog

from connectivity.sessions.base import SessionBatch, SessionCommand, SessionHandler, SessionReply, SessionServices
from connectivity.sessions.reactive_streams_io.access import ReaderRevalidation
from connectivity.sessions.reactive_streams_io.commands import CommandResponses, CommandSender, carry_out
from connectivity.sessions.reactive_streams_io.peer import PeerSession
from connectivity.sessions.reactive_streams_io.publishers import PublisherResolver
from connectivity.sessions.reactive_streams_io.sessions import PeerKey, RsioSessions
from connectivity.sessions.reply_channel import ReplyChannel, drop, is_meant, resolved_reply
from connectivity.sessions.stream_source import StreamSource
from connectivity.sources.delivery import InboundDelivery
from connectivity.sources.reader import ReceivedSignal
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.transports.base import CloseReason, Done, ReaderStatus
from connectivity.transports.websocket.handshake import FRAME, TEXT
from mappings.errors import MappingError
from mappings.model.signals import ErrorResponse, Headers, SessionMessage
from mappings.reactive_streams_io import errors
from mappings.reactive_streams_io.errors import ProtocolViolation
from mappings.reactive_streams_io.frames import (
    SESSION,
    Goodbye,
    begins_session,
    encode,
    envelope,
    is_parting,
    is_session,
)
from mappings.reactive_streams_io.options import RsioOptions
from spark_store.errors import StoreUnavailable

log = structlog.get_logger(__name__)

UNRELIABLE = "400 transport not reliable"
FULL = "429 rsio:sessions.limit The maximum number of sessions is reached."


class RsioHandler(SessionHandler):
    """Serves all sessions of the service."""

    job = "end idle reactive-streams-io sessions"

    def __init__(self, services: SessionServices) -> None:
        self._services = services
        self._registries: dict[tuple[str, str], RsioSessions] = {}
        """By connection and mapper."""
        self._source = StreamSource(services.store, services.lifetimes, services.now)
        self._reader_access = ReaderRevalidation(services.store, services.decider.world, services.now)

    def __repr__(self) -> str:
        return f"<RsioHandler, {list(self._registries.values())!r}>"

    def take(
        self,
        session_message: SessionMessage,
        received_signal: ReceivedSignal,
        arrival: InboundDelivery,
        batch: SessionBatch,  # noqa: ARG002
    ) -> Sequence[SessionReply | SessionCommand]:
        """Pass a message to its session.

        The session replies at once or later; the commands in the message are executed with its batch.
        """
        if arrival.results is not None and (sender := arrival.results.get(received_signal.name)) is not None:
            return carry_out(sender, received_signal, arrival)
        registry = self._registry(received_signal.route)
        found = self._find(registry, received_signal.route, session_message.headers, arrival)
        if found is None:
            return ()
        key, channel = found
        peer_session = registry.find(key)
        if peer_session is not None and peer_session.owners != frozenset(arrival.received.subjects):
            drop("session belongs to another client", arrival, session_message.headers, reply_to=channel.address)
            return ()
        if peer_session is not None and arrival.delivery.redelivered and peer_session.is_known(arrival.delivery):
            received_signal.route.meter.inbound("answered_again")
            return _carry_out(peer_session, registry, received_signal, arrival, is_again=True)
        is_text = arrival.delivery.envelope.header(FRAME) == TEXT
        # A text is the end of a session, with its own reason, even if it would be the beginning.
        raw = b"" if is_text else session_message.request
        peer_session = self._state(registry, key, channel, peer_session, received_signal.route, arrival, raw)
        if peer_session is None:
            return ()
        peer_session.channel = channel
        before = peer_session.offers
        events = (
            peer_session.reject(ProtocolViolation.TEXT)
            if is_text
            else peer_session.accept(arrival.delivery, received_signal.sender_check)
        )
        registry.see(key, peer_session, events)
        is_again = arrival.delivery.redelivered or peer_session.offers is not before
        return _carry_out(peer_session, registry, received_signal, arrival, is_again=is_again)

    def _state(
        self,
        registry: RsioSessions,
        key: PeerKey,
        channel: ReplyChannel,
        known: PeerSession | None,
        route: ReplyTargetPublisher,
        arrival: InboundDelivery,
        raw: bytes,
    ) -> PeerSession | None:
        """Return the session of a message; None if the message is refused."""
        if known is not None and route.is_listener:
            return known
        if not _begins(raw, route):
            # Late frames of a stream that has ended.
            if known is None and not route.is_stream and not is_parting(raw):
                self._turn_away(errors.NO_SESSION, route, channel, key, CloseReason.MALFORMED)
            return known
        if registry.is_parting:
            # A goodbye begins no session.
            registry.forget(key)
            self._turn_away(errors.SHUTDOWN, route, channel, key)
            return None
        if route.source.qos == 0 and not registry.options.allows_unreliable:
            self._turn_away(UNRELIABLE, route, channel, key)
            return None
        if known is None and registry.is_full(channel.address):
            self._turn_away(FULL, route, channel, key)
            return None
        return registry.begin(key, channel, arrival.received.subjects)

    def _turn_away(
        self,
        reason: str,
        route: ReplyTargetPublisher,
        channel: ReplyChannel,
        key: PeerKey,
        parting: CloseReason = CloseReason.DONE,
    ) -> None:
        """Say goodbye to a sender without session."""
        route.meter.inbound("refused")
        say = log.debug if route.is_listener else log.info
        say("message refused", connection=channel.connection_id, address=channel.address, reason=reason)
        channel.post([envelope(encode(Goodbye(reason)), key[1])], parting=parting)

    def refuse(self, error: ErrorResponse, route: ReplyTargetPublisher, arrival: InboundDelivery, ended: Done) -> None:
        """A message that could not be taken is missing from its session, which ends."""
        registry = self._registry(route)
        found = self._find(registry, route, error.headers, arrival)
        if found is not None:
            key, channel = found
            reason = errors.write(error.fault)
            peer_session = registry.find(key)
            if peer_session is None:
                self._turn_away(reason, route, channel, key)
            elif peer_session.owners != frozenset(arrival.received.subjects):
                drop("session belongs to another client", arrival, error.headers, reply_to=channel.address)
            else:
                registry.see(key, peer_session, peer_session.part(reason))
        ended(None)

    def sweep(self) -> None:
        self._reader_access.sweep()
        # Deliveries are held while the store is unavailable.
        is_taking = self._services.store.commits.is_available
        for registry in list(self._registries.values()):
            registry.sweep(is_taking=is_taking)

    def reader(self, connection_id: str, address: str, reader_status: ReaderStatus) -> None:
        for registry in self._of(connection_id):
            if reader_status is ReaderStatus.HEARD:
                registry.reader_seen(address)
            elif reader_status is ReaderStatus.UNDELIVERED:
                registry.undelivered(address)
            else:
                registry.leave(address)

    def forget_names(self, connection_id: str, prefix: str) -> None:
        for registry in self._of(connection_id):
            registry.forget_names(prefix)

    async def part(self, connection_id: str) -> None:
        if not (registries := self._of(connection_id)):
            return
        # Commands of clients are done by then, and acknowledged.
        with contextlib.suppress(StoreUnavailable):
            await self._services.store.commits.barrier()
        await asyncio.gather(*(registry.part(errors.SHUTDOWN) for registry in registries))

    def closed(self, connection_id: str) -> None:
        for key in [key for key in self._registries if key[0] == connection_id]:
            self._registries.pop(key).close()

    def _of(self, connection_id: str) -> list[RsioSessions]:
        return [registry for (connection, _), registry in self._registries.items() if connection == connection_id]

    def _registry(self, route: ReplyTargetPublisher) -> RsioSessions:
        key = (route.connection_id, route.mapper.name)
        registry = self._registries.get(key)
        if registry is None:
            services = self._services
            options = cast(RsioOptions, route.mapper.codec.terms)
            opening = PublisherResolver(
                options, services.store, services.streams, services.decider.world, self._source, services.now
            )
            registry = self._registries[key] = RsioSessions(
                route.connection_id,
                options,
                opening,
                services.streams,
                self._reader_access,
                services.clock,
                CommandResponses(options, services.now),
            )
        return registry

    def _find(
        self, registry: RsioSessions, route: ReplyTargetPublisher, headers: Headers, arrival: InboundDelivery
    ) -> tuple[PeerKey, ReplyChannel] | None:
        """Return the key of a message's session, and its reply channel.

        None if there is no reply address, or it is not allowed.
        """
        try:
            resolved = resolved_reply(route, headers, arrival)
        except MappingError as error:
            drop("reply address invalid", arrival, headers, error=str(error))
            return None
        if resolved is None:
            drop("request has no reply address", arrival, headers)
            return None
        if not is_meant(resolved.address, registry.options.reply_addresses, route):
            drop("reply address not allowed", arrival, headers, reply_to=resolved.address)
            return None
        name = headers.get(SESSION)
        if name is not None and not is_session(str(name)):
            drop("session name invalid", arrival, headers, reply_to=resolved.address)
            return None
        if name is None:
            return (resolved.address, None), ReplyChannel(route, resolved)
        return (resolved.address, str(name)), ReplyChannel(route, resolved, f"{resolved.address}#{name}")


def _begins(raw: bytes, route: ReplyTargetPublisher) -> bool:
    """Whether a message begins a session: a hello, or anything from a peer of a listener."""
    return not raw if route.is_stream else begins_session(raw) or (route.is_listener and not raw)


def _carry_out(
    peer_session: PeerSession,
    registry: RsioSessions,
    received_signal: ReceivedSignal,
    arrival: InboundDelivery,
    *,
    is_again: bool,
) -> Sequence[SessionReply | SessionCommand]:
    """Return the commands of a message.

    `is_again`: with unacknowledged earlier ones, whose deliveries may have been given up.
    """
    offers = peer_session.offers
    fresh = offers.ingest.take()
    elements = offers.ingest.unacknowledged if is_again else fresh
    if not elements:
        return ()
    address = peer_session.channel.address
    sender = CommandSender(elements, offers.ingest, registry.answers, address, lambda: offers.wake())
    arrival.results = {**(arrival.results or {}), received_signal.name: sender}
    return carry_out(sender, received_signal, arrival)


HANDLER = RsioHandler
