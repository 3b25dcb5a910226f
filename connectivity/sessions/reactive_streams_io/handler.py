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

from connectivity.sessions.base import SessionCommand, SessionHandler, SessionReply, SessionServices
from connectivity.sessions.reactive_streams_io.access import ReaderAccess
from connectivity.sessions.reactive_streams_io.commands import CommandResponses, CommandResult, CommandSender, carry_out
from connectivity.sessions.reactive_streams_io.peer import PeerSession
from connectivity.sessions.reactive_streams_io.publishers import PublisherResolver
from connectivity.sessions.reactive_streams_io.sessions import Key, RsioSessions
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
from spark_store.records import Change

log = structlog.get_logger(__name__)


UNRELIABLE = "400 transport not reliable"
FULL = "429 rsio:sessions.limit There are as many sessions as there may be."


class RsioHandler(SessionHandler):
    """Serves all sessions of the service."""

    def __init__(self, means: SessionServices) -> None:
        self._means = means
        self._rooms: dict[tuple[str, str], RsioSessions] = {}
        """By connection and mapper."""
        self._source = StreamSource(means.store, means.lifetimes, means.now)
        self._watching = ReaderAccess(means.store, means.decider.world)

    def __repr__(self) -> str:
        return f"<RsioDesk, {list(self._rooms.values())!r}>"

    def take(
        self,
        spoken: SessionMessage,
        heard: ReceivedSignal,
        arrival: InboundDelivery,
        changes: list[Change],  # noqa: ARG002
    ) -> Sequence[SessionReply | SessionCommand]:
        """Pass a message to its session.

        The session replies at once or later; the commands in the message are executed with its batch.
        """
        if arrival.made is not None and (made := arrival.made.get(heard.name)) is not None:
            return carry_out(made, heard, arrival)
        room = self._room(heard.route)
        found = self._find(room, heard.route, spoken.headers, arrival)
        if found is None:
            return ()
        key, line = found
        counterpart = room.find(key)
        if counterpart is not None and counterpart.owners.isdisjoint(arrival.received.subjects):
            drop("a session is not for others to use", arrival, spoken.headers, answer_to=line.address)
            return ()
        if counterpart is not None and arrival.delivery.redelivered and counterpart.is_known(arrival.delivery):
            heard.route.meter.inbound("answered_again")
            return _carry_out(counterpart, room, heard, arrival, is_again=True)
        counterpart = self._seat(room, key, line, counterpart, heard.route, arrival, spoken.request)
        if counterpart is None:
            return ()
        counterpart.line = line
        before = counterpart.offers
        is_text = arrival.delivery.envelope.header(FRAME) == TEXT
        events = (
            counterpart.reject(ProtocolViolation.TEXT) if is_text else counterpart.hear(arrival.delivery, heard.border)
        )
        room.see(key, counterpart, events)
        is_again = arrival.delivery.redelivered or counterpart.offers is not before
        return _carry_out(counterpart, room, heard, arrival, is_again=is_again)

    def _seat(
        self,
        room: RsioSessions,
        key: Key,
        line: ReplyChannel,
        known: PeerSession | None,
        route: ReplyTargetPublisher,
        arrival: InboundDelivery,
        octets: bytes,
    ) -> PeerSession | None:
        """Return the session of a message; None if the message is refused."""
        if known is not None and route.is_listener:
            return known
        if not _begins(octets, route):
            # Late frames of a stream that has ended.
            if known is None and not route.is_stream and not is_parting(octets):
                self._turn_away(errors.NO_SESSION, route, line, key, CloseReason.MALFORMED)
            return known
        if room.is_parting:
            # A goodbye begins no session.
            room.forget(key)
            self._turn_away(errors.SHUTDOWN, route, line, key)
            return None
        if route.source.qos == 0 and not room.options.allows_unreliable:
            self._turn_away(UNRELIABLE, route, line, key)
            return None
        if known is None and room.is_full(line.address):
            self._turn_away(FULL, route, line, key)
            return None
        return room.begin(key, line, arrival.received.subjects)

    def _turn_away(
        self,
        reason: str,
        route: ReplyTargetPublisher,
        line: ReplyChannel,
        key: Key,
        parting: CloseReason = CloseReason.DONE,
    ) -> None:
        """Say goodbye to a sender without session."""
        route.meter.inbound("refused")
        say = log.debug if route.is_listener else log.info
        say("a message was turned away", connection=line.connection_id, address=line.address, reason=reason)
        line.post([envelope(encode(Goodbye(reason)), key[1])], parting=parting)

    def refuse(self, error: ErrorResponse, route: ReplyTargetPublisher, arrival: InboundDelivery, ended: Done) -> None:
        """A message that could not be taken is missing from its session, which ends."""
        room = self._room(route)
        found = self._find(room, route, error.headers, arrival)
        if found is not None:
            key, line = found
            reason = errors.write(error.fault)
            counterpart = room.find(key)
            # The session may be unknown if it was not looked up; the sender must still be allowed.
            subjects = arrival.received.subjects or tuple(route.source.authorization_context)
            if counterpart is None:
                self._turn_away(reason, route, line, key)
            elif counterpart.owners.isdisjoint(subjects):
                drop("a session is not for others to use", arrival, error.headers, answer_to=line.address)
            else:
                room.see(key, counterpart, counterpart.part(reason))
        ended(None)

    def sweep(self) -> None:
        self._watching.sweep()
        # Deliveries are held while the store is unavailable.
        is_taking = self._means.store.is_available
        for room in list(self._rooms.values()):
            room.sweep(is_taking=is_taking)

    def reader(self, connection_id: str, address: str, sign: ReaderStatus) -> None:
        for room in self._of(connection_id):
            if sign is ReaderStatus.HEARD:
                room.reader_seen(address)
            elif sign is ReaderStatus.UNHEARD:
                room.unheard(address)
            else:
                room.leave(address)

    async def part(self, connection_id: str) -> None:
        if not (rooms := self._of(connection_id)):
            return
        # Commands of clients are done by then, and acknowledged.
        with contextlib.suppress(StoreUnavailable):
            await self._means.store.barrier()
        await asyncio.gather(*(room.part(errors.SHUTDOWN) for room in rooms))

    def close_connection(self, connection_id: str) -> None:
        for key in [key for key in self._rooms if key[0] == connection_id]:
            self._rooms.pop(key).close()

    def _of(self, connection_id: str) -> list[RsioSessions]:
        return [room for (connection, _), room in self._rooms.items() if connection == connection_id]

    def _room(self, route: ReplyTargetPublisher) -> RsioSessions:
        key = (route.connection_id, route.mapper.name)
        room = self._rooms.get(key)
        if room is None:
            means = self._means
            options = cast(RsioOptions, route.mapper.codec.terms)
            opening = PublisherResolver(
                options, means.store, means.streams, means.decider.world, self._source, means.now
            )
            room = self._rooms[key] = RsioSessions(
                route.connection_id,
                options,
                opening,
                means.streams,
                self._watching,
                means.clock,
                CommandResponses.of(options, means.now),
            )
        return room

    def _find(
        self, room: RsioSessions, route: ReplyTargetPublisher, headers: Headers, arrival: InboundDelivery
    ) -> tuple[Key, ReplyChannel] | None:
        """Return the key of a message's session, and its reply channel.

        None if there is no reply address, or it is not allowed.
        """
        try:
            resolved = resolved_reply(route, headers, arrival)
        except MappingError as error:
            drop("a request names an address that cannot be one", arrival, headers, error=str(error))
            return None
        if resolved is None:
            drop("a request cannot be answered", arrival, headers)
            return None
        if not is_meant(resolved.address, room.options.reply_addresses, route):
            drop("a request names an address that is not meant", arrival, headers, answer_to=resolved.address)
            return None
        name = headers.get(SESSION)
        if name is not None and not is_session(str(name)):
            drop("a session has no such name", arrival, headers, answer_to=resolved.address)
            return None
        if name is None:
            return (resolved.address, None), ReplyChannel(route, resolved)
        return (resolved.address, str(name)), ReplyChannel(route, resolved, f"{resolved.address}#{name}")


def _begins(octets: bytes, route: ReplyTargetPublisher) -> bool:
    """Whether a message begins a session: a hello, or anything from a peer of a listener."""
    return not octets if route.is_stream else begins_session(octets) or (route.is_listener and not octets)


def _carry_out(
    counterpart: PeerSession, room: RsioSessions, heard: ReceivedSignal, arrival: InboundDelivery, *, is_again: bool
) -> Sequence[SessionReply | SessionCommand]:
    """Return the commands of a message.

    `is_again`: with unacknowledged earlier ones, whose deliveries may have been given up.
    """
    offers = counterpart.offers
    fresh = offers.ingest.take()
    elements = offers.ingest.untold if is_again else fresh
    if not elements:
        return ()
    party = CommandSender(offers.ingest, room.answers, counterpart.line.address, lambda: offers.wake())
    made = CommandResult(elements, party)
    arrival.made = {**(arrival.made or {}), heard.name: made}
    return carry_out(made, heard, arrival)


HANDLER = RsioHandler
