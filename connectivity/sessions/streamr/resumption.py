"""Resumes stored sessions when their connection opens (Streamr protocol, lifetime of a session).

The document or policies may have changed meanwhile: sessions are resumed only at addresses that the document allows, and
subscriptions only with permission.
"""

from __future__ import annotations

from collections.abc import Mapping

from connectivity.sessions.reply_channel import is_meant
from connectivity.sessions.streamr.permissions import may_follow
from connectivity.sessions.streamr.reply_channel import StreamrReplyChannel
from connectivity.sessions.streamr.sessions import StreamrSessions
from connectivity.store.session_repository import SessionRepository
from connectivity.targets.destination import Destination
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.twins.context import StateLookup
from mappings.errors import Fault
from mappings.placeholders.template import Scope, parse
from mappings.streamr import errors
from mappings.streamr.auth_keys import has_lost_key
from mappings.streamr.errors import ErrorSubject
from mappings.streamr.frames import error_of
from mappings.streamr.options import StreamrOptions
from mappings.streamr.sessions import PersistedItem, PersistedResend, PersistedSubscription
from spark_store.records import SessionRow


def go_on(
    rows: SessionRepository,
    connection_id: str,
    registries: Mapping[ReplyTargetPublisher, StreamrSessions],
    world: StateLookup,
    now: float,
) -> None:
    """Resume the stored sessions of a connection with these publishers. Raises StoreUnavailable."""
    mappers = {registry.mapper for registry in registries.values()}
    for row in rows.rows(connection_id):
        if row.at.mapper not in mappers:
            rows.forget(row.at)
    for registry in dict.fromkeys(registries.values()):
        by_source = {route.index: route for route, own in registries.items() if own is registry}
        for row, kept in list(registry.keeping.stored_sessions()):
            route = by_source.get(row.source)
            if route is None or not is_meant(row.at.address, registry.options.reply_addresses, route):
                registry.keeping.drop(row, "no source sends replies to this address any more")
            elif route.is_peer(row.at.address):
                # Its socket has ended with the service or with the connection.
                rows.forget(row.at)
            else:
                _go_on(registry, row, kept, route, world, now)


def _go_on(
    registry: StreamrSessions,
    row: SessionRow,
    kept: PersistedItem,
    route: ReplyTargetPublisher,
    world: StateLookup,
    now: float,
) -> None:
    correlation_id = kept.correlation_id if isinstance(kept, PersistedResend) else None
    channel = StreamrReplyChannel(
        route, Destination(row.at.address, kept.headers), registry.options.style, correlation_id
    )
    if isinstance(kept, PersistedResend):
        registry.cut_off(kept, channel)
    elif (fault := _fault(kept, registry.options, route, world)) is not None:
        registry.keeping.drop(row, fault.error)
        channel.send_frame(error_of(fault, ErrorSubject(kept.stream, kept.partition)))
    else:
        registry.go_on(kept, row.last or 0, channel, now)


def _fault(
    kept: PersistedSubscription, options: StreamrOptions, route: ReplyTargetPublisher, world: StateLookup
) -> Fault | None:
    """Return why a session may not resume a subscription; None if it may."""
    if (
        not _is_owned(kept.owners, route)
        or has_lost_key(kept.subjects, kept.owners, options.keys)
        or not may_follow(kept.stream, options, kept.subjects, world)
    ):
        return errors.not_authorized(kept.stream, kept.partition)
    own = options.streams.get(kept.stream)
    is_there = kept.partition < (1 if own is None else own.partitions)
    return None if is_there else errors.invalid_partition(kept.stream, kept.partition)


def _is_owned(owners: frozenset[str], route: ReplyTargetPublisher) -> bool:
    """Whether the source still gives its clients these subjects. Expressions are not checked."""
    written = route.source.authorization_context
    is_literal = all(parse(subject, Scope.AUTHORIZATION).literal is not None for subject in written)
    return not is_literal or owners == frozenset(written)
