"""The session handler of the Streamr protocol: publish, subscribe, unsubscribe, resend, disconnect.

A session belongs to one reply address. Its requests are processed in order, each completely before the next, and its frames
are sent in order. Published messages go into the commit of the batch, and are broadcast when they are durable. See the
Streamr protocol, requests and sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

import structlog

from connectivity.authorization.quotas import growth_by_event
from connectivity.monitoring.logs import log_context
from connectivity.sessions.base import SessionBatch, SessionCommand, SessionHandler, SessionReply, SessionServices
from connectivity.sessions.reply_channel import drop, is_meant, resolved_reply
from connectivity.sessions.stream_source import StreamSource
from connectivity.sessions.streamr.access import StreamRevalidation
from connectivity.sessions.streamr.frame_cache import FrameCache
from connectivity.sessions.streamr.live_subscription import LiveSubscription
from connectivity.sessions.streamr.permissions import StreamPermission, admit, entity_at, error_subject, forbidden
from connectivity.sessions.streamr.persistence import SessionPersistence
from connectivity.sessions.streamr.reply_channel import StreamrReplyChannel
from connectivity.sessions.streamr.resend import ResendQueue, ResendRequest
from connectivity.sessions.streamr.resumption import go_on
from connectivity.sessions.streamr.sessions import StreamrSessions
from connectivity.sessions.streamr.twin_commands import twin_command
from connectivity.sources.deduplication import name_in_session
from connectivity.sources.delivery import InboundDelivery
from connectivity.sources.reader import ReceivedSignal
from connectivity.targets.open_connection import OpenConnection
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.transports.base import Done, ReaderStatus, ignore_outcome
from mappings.errors import MappingError
from mappings.model.signals import ErrorResponse, Headers, SessionMessage
from mappings.streamr import errors
from mappings.streamr.errors import ErrorSubject, RequestRejected
from mappings.streamr.frames import Error, Unsubscribed, error_of, fault_frame, version_in
from mappings.streamr.options import StreamrOptions
from mappings.streamr.requests import Disconnect, Publish, Resend, StreamrRequest, SubscribeRequest, Unsubscribe
from mappings.streamr.sessions import SenderDecision, SessionEnd
from mappings.streams.stream_id import ConfiguredStream, partition_id
from mappings.timestamps import utc_text
from spark_store.errors import RevisionConflict, StoreError, StoreUnavailable

log = structlog.get_logger(__name__)

PROTOCOL = "streamr"
CLIENT_ID = "client-id"
"""The header that distinguishes clients that share an address."""


class _Request(NamedTuple):
    """A request and its sender.

    `channel` of None: there is no reply address. `is_taken`: the session belongs to another sender.
    """

    registry: StreamrSessions
    channel: StreamrReplyChannel | None
    owners: frozenset[str]
    received_signal: ReceivedSignal
    arrival: InboundDelivery
    is_taken: bool


class StreamrHandler(SessionHandler):
    """Serves all sessions of the service."""

    job = "end idle Streamr sessions"

    def __init__(self, services: SessionServices) -> None:
        self._services = services
        self._registries: dict[tuple[str, str], StreamrSessions] = {}
        """By connection and mapper."""
        self._source = StreamSource(services.store, services.lifetimes, services.now)
        self._frames = FrameCache(self._source)
        self._reader_access = StreamRevalidation(services.store, services.decider.world, services.now)
        self._rows = services.rows(PROTOCOL)
        self._unopened: dict[str, Sequence[ReplyTargetPublisher]] = {}
        """Connections whose sessions could not be read yet."""
        self._is_desired: Callable[[str], bool] | None = None
        """Which connections may be open; kept while the store cannot be read."""

    def take(
        self,
        session_message: SessionMessage,
        received_signal: ReceivedSignal,
        arrival: InboundDelivery,
        batch: SessionBatch,
    ) -> Sequence[SessionReply | SessionCommand]:
        """Process a request. Its reply, a refusal too, is sent after everything before it is durable."""
        request: StreamrRequest = session_message.request
        context = self._context(request, session_message.headers, received_signal, arrival)
        if context is None:
            return ()
        try:
            if context.is_taken:
                raise _session_in_use(request)
            return (self._carry_out(request, context, session_message.headers, batch),)
        except RequestRejected as error:
            return (self._refusal(error, context, session_message.headers),)

    def _carry_out(
        self, request: StreamrRequest, context: _Request, headers: Headers, batch: SessionBatch
    ) -> SessionReply | SessionCommand:
        if isinstance(request, Publish):
            return self._publish(request, context, headers, batch)
        channel = context.channel
        assert channel is not None, "a request without a reply address can only publish"
        match request:
            case SubscribeRequest():
                return self._subscribe(request, context, channel, _client(headers))
            case Unsubscribe():
                return self._unsubscribe(request, context, channel, _client(headers))
            case Resend():
                return self._resend(request, context, channel)
            case Disconnect():
                context.registry.do(context.registry.sessions.end(channel.address, SessionEnd.DISCONNECTED))
        # No reply; a retried batch repeats it after the requests before it.
        return _silent

    def _context(
        self, request: StreamrRequest, headers: Headers, received_signal: ReceivedSignal, arrival: InboundDelivery
    ) -> _Request | None:
        """Return the sender of a request; None if the request is not processed because of it."""
        route = received_signal.route
        registry = self._registry(route)
        owners = frozenset(arrival.received.subjects)
        try:
            channel = self._channel(route, headers, arrival, registry.options)
        except MappingError as error:
            drop("reply address invalid", arrival, headers, error=str(error))
            return None
        address = channel.address if channel is not None else None
        decision = registry.sessions.admit(
            request,
            address,
            owners,
            self._services.clock(),
            is_allowed=partial(is_meant, pattern=registry.options.reply_addresses, route=route),
        )
        if decision is SenderDecision.NOWHERE:
            drop("request has no reply address", arrival, headers)
            return None
        if decision is SenderDecision.OUTSIDE:
            drop("reply address not allowed", arrival, headers, reply_to=address)
            return None
        is_taken = decision is SenderDecision.TAKEN
        if is_taken and isinstance(request, Disconnect):
            drop("session belongs to another client", arrival, headers, reply_to=address)
            return None
        return _Request(registry, channel, owners, received_signal, arrival, is_taken)

    def _publish(
        self, request: Publish, context: _Request, headers: Headers, batch: SessionBatch
    ) -> SessionReply | SessionCommand:
        options, arrival = context.registry.options, context.arrival
        permission = self._admit(request, context)
        session = context.channel.address if context.channel is not None else None
        chosen = context.channel.correlation_id if context.channel is not None else None
        named = name_in_session(context.received_signal, arrival, session, chosen)
        if not isinstance(permission.stream, ConfiguredStream):
            return twin_command(request, permission.stream.entity, permission, headers, named, context.channel)
        if not self._source.is_known(named):
            self._check_quota(request, permission.subjects, batch)
            self._source.append(
                request.stream,
                request.content,
                key=request.key,
                timestamp=request.timestamp,
                partitions=permission.partitions,
                hash=options.hash,
                name=named,
                changes=batch.changes,
            )
        else:
            context.received_signal.route.meter.inbound("answered_again")
        return partial(_report_publish, request, context.channel)

    def _check_quota(self, request: Publish, subjects: Sequence[str], batch: SessionBatch) -> None:
        """Count a message that is to be stored. Raises RequestRejected if it exceeds a quota."""
        quotas = self._services.quotas
        if quotas.is_empty:
            return
        namespace = partition_id(request.stream, 0).namespace
        growth = growth_by_event(namespace, subjects[0], len(request.content.encode()))
        if (exceeded := quotas.take(growth, utc_text(self._services.now())[:10])) is not None:
            raise RequestRejected(errors.limit_exceeded(str(exceeded)), error_subject(request))
        batch.undo.append(partial(quotas.give_back, growth))

    def _subscribe(
        self, request: SubscribeRequest, context: _Request, channel: StreamrReplyChannel, client: str | None
    ) -> SessionReply:
        permission = self._admit(request, context)
        subjects = frozenset(permission.subjects)
        frames = context.registry.subscribe(request, channel, context.owners, subjects, self._services.clock(), client)
        return lambda _error, ended: context.registry.answer(frames, channel, ended)

    def _unsubscribe(
        self, request: Unsubscribe, context: _Request, channel: StreamrReplyChannel, client: str | None
    ) -> SessionReply:
        frames = context.registry.unsubscribe(request, channel, client)
        if context.arrival.is_again and isinstance(frames[-1], Error):
            # It was carried out when it came first.
            frames = [Unsubscribed(request.stream, request.partition or 0)]
        return lambda _error, ended: context.registry.answer(frames, channel, ended)

    def _resend(self, request: Resend, context: _Request, channel: StreamrReplyChannel) -> SessionReply:
        registry = context.registry
        permission = self._admit(request, context)
        if registry.sessions.open(channel.address, context.owners, self._services.clock()) is None:
            raise RequestRejected(registry.sessions.too_many, error_subject(request))
        registry.keeping.add_resend(request, context.owners, channel)
        entity = entity_at(permission.stream, request.partition)
        newest = self._services.store.newest_revision(entity) if permission.newest is None else permission.newest
        wanted = ResendRequest(request, entity, newest, permission.subjects)
        return partial(self._begin_resend, wanted, context, channel)

    def _begin_resend(
        self,
        wanted: ResendRequest,
        context: _Request,
        channel: StreamrReplyChannel,
        _error: BaseException | None,
        ended: Done,
    ) -> None:
        """Begin a resend, when it is durable and all requests before it are answered."""
        ended(None)
        registry, sub = context.registry, wanted.request.sub
        if registry.sessions.get(channel.address) is None:
            registry.keeping.remove_resend(channel.address, sub)
            return
        resending = registry.state(channel).resending
        try:
            resending.ask(wanted, channel)
        except RequestRejected as refusal:
            if sub not in resending.subs:
                registry.keeping.remove_resend(channel.address, sub)
            self._refusal(refusal, context, context.received_signal.signal.headers)(None, ignore_outcome)

    def _admit(self, request: Publish | SubscribeRequest | Resend, context: _Request) -> StreamPermission:
        return admit(request, context.registry.options, context.arrival.received.subjects, self._services.decider.world)

    def refuse(self, error: ErrorResponse, route: ReplyTargetPublisher, arrival: InboundDelivery, ended: Done) -> None:
        registry = self._registry(route)
        try:
            channel = self._channel(route, error.headers, arrival, registry.options)
        except MappingError:
            channel = None
        if channel is None or not is_meant(channel.address, registry.options.reply_addresses, route):
            drop("invalid request without an allowed reply address", arrival, error.headers, error=error.fault.message)
            ended(None)
            return
        channel.send_frame(fault_frame(error.fault, channel.correlation_id), ended)

    def _refusal(self, error: RequestRejected, context: _Request, headers: Headers) -> SessionReply:
        context.received_signal.route.meter.inbound("refused")
        log.info(
            "request refused",
            connection=context.registry.connection_id,
            source=context.received_signal.route.index,
            stream=error.about.stream,
            status=error.fault.status,
            error=error.fault.error,
            **log_context(headers),
        )
        channel = context.channel
        if channel is None:
            return _silent

        def reply(_error: BaseException | None, ended: Done) -> None:
            channel.send_frame(error_of(error.fault, error.about, channel.correlation_id), ended)

        return reply

    def sweep(self) -> None:
        self._reader_access.sweep()
        now = self._services.clock()
        for registry in list(self._registries.values()):
            registry.do(registry.sessions.idle(now))
            for state in registry:
                if not state.resending.is_idle:
                    state.resending.go_on()
        for connection_id, routes in list(self._unopened.items()):
            self._resume(connection_id, routes)
        if self._is_desired is not None:
            self.keep_only(self._is_desired)
        self._rows.sweep()

    def opened(self, opened: OpenConnection) -> None:
        """Resume the stored sessions of a connection."""
        self._resume(opened.connection_id, opened.routes)

    def _resume(self, connection_id: str, routes: Sequence[ReplyTargetPublisher]) -> None:
        own = [route for route in routes if route.mapper.protocol == PROTOCOL]
        world, now = self._services.decider.world, self._services.clock()
        try:
            go_on(self._rows, connection_id, {route: self._registry(route) for route in own}, world, now)
        except StoreError as error:
            log.warning("sessions not resumed yet", connection=connection_id, reason=str(error))
            self._unopened[connection_id] = own
        else:
            self._unopened.pop(connection_id, None)

    def keep_only(self, is_wanted: Callable[[str], bool]) -> None:
        try:
            self._rows.keep_only(is_wanted)
            self._is_desired = None
        except StoreUnavailable:
            self._is_desired = is_wanted

    def reader(self, connection_id: str, address: str, reader_status: ReaderStatus) -> None:
        for registry in self._of(connection_id):
            if reader_status is ReaderStatus.HEARD:
                registry.sessions.reader_seen(address)
            elif reader_status is ReaderStatus.UNDELIVERED:
                registry.do(registry.sessions.undelivered(address, self._services.clock()))
            else:
                registry.do(
                    registry.sessions.end(
                        address, SessionEnd.REFUSED if reader_status is ReaderStatus.REFUSED else SessionEnd.GONE
                    )
                )

    async def close(self) -> None:
        await self._rows.close()

    def closed(self, connection_id: str) -> None:
        for registry in self._of(connection_id):
            registry.close()
            self._reader_access.close(registry)
            del self._registries[connection_id, registry.mapper]
        self._unopened.pop(connection_id, None)

    def _of(self, connection_id: str) -> list[StreamrSessions]:
        return [registry for (connection, _), registry in self._registries.items() if connection == connection_id]

    def _registry(self, route: ReplyTargetPublisher) -> StreamrSessions:
        key = (route.connection_id, route.mapper.name)
        registry = self._registries.get(key)
        if registry is None:
            services, keeping = self._services, SessionPersistence(self._rows, *key)
            registry = self._registries[key] = StreamrSessions(
                keeping,
                cast(StreamrOptions, route.mapper.codec.terms),
                partial(LiveSubscription, services.streams, self._frames),
                partial(ResendQueue, services.store, services.streams, self._source, services.clock),
                services.store.newest_revision,
                route.is_peer,
                self._reader_access.follow,
            )
        return registry

    def _channel(
        self, route: ReplyTargetPublisher, headers: Headers, arrival: InboundDelivery, options: StreamrOptions
    ) -> StreamrReplyChannel | None:
        """Return the reply channel of a request; None if there is none.

        Raises MappingError.
        """
        resolved = resolved_reply(route, headers, arrival)
        if resolved is None:
            return None
        style, version = options.style, version_in(arrival.delivery.envelope.headers)
        if version is not None and version != style.version:
            style = replace(style, version=version)
        return StreamrReplyChannel(route, resolved, style, headers.get("correlation-id"))


def _client(headers: Headers) -> str | None:
    client = headers.get(CLIENT_ID)
    return str(client) if client is not None else None


def _session_in_use(request: StreamrRequest) -> RequestRejected:
    """Return the error for a sender that uses the session of another one."""
    if isinstance(request, Publish | SubscribeRequest | Resend):
        return RequestRejected(forbidden(request), error_subject(request))
    stream, partition = (request.stream, request.partition or 0) if isinstance(request, Unsubscribe) else ("", 0)
    return RequestRejected(errors.not_authorized(stream, partition), ErrorSubject(stream, partition))


def _silent(_error: BaseException | None, ended: Done) -> None:
    """Reply to nothing: there is no reply address."""
    ended(None)


def _report_publish(
    request: Publish, channel: StreamrReplyChannel | None, error: BaseException | None, ended: Done
) -> None:
    """Report a message that could not be stored; a durable one has no reply."""
    if error is None:
        ended(None)
        return
    log.error("message not stored", stream=request.stream, exc_info=error)
    reason = "the stream was changed concurrently" if isinstance(error, RevisionConflict) else "it cannot be stored"
    if channel is None:
        ended(None)
    else:
        channel.send_frame(
            error_of(errors.publish_failed(reason), ErrorSubject(request.stream), channel.correlation_id), ended
        )


HANDLER = StreamrHandler
