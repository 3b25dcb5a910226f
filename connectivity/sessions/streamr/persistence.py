"""The parts of sessions that outlive the service: subscriptions, and unfinished resends.

Clients do not notice a restart (Streamr protocol, lifetime of a session): a subscription is durable before it is confirmed,
from the offset where it began; later messages are sent after the restart. An interrupted resend fails, and its client is
notified. `mappings.streamr.sessions` defines the bytes of a row.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from connectivity.sessions.streamr.reply_channel import StreamrReplyChannel
from connectivity.store.session_repository import SessionRepository
from mappings.streamr.errors import Sub
from mappings.streamr.requests import Resend
from mappings.streamr.sessions import (
    PersistedItem,
    PersistedResend,
    PersistedSubscription,
    Spot,
    SubscriptionRow,
    pack,
    unpack,
)
from mappings.streams.stream_id import partition_name
from spark_store.records import SessionKey, SessionRow

log = structlog.get_logger(__name__)


class SessionPersistence:
    """The stored rows of a connection's sessions."""

    def __init__(self, rows: SessionRepository, connection_id: str, mapper: str) -> None:
        self._rows, self.connection_id, self.mapper = rows, connection_id, mapper

    def add_subscription(self, row: SubscriptionRow, channel: StreamrReplyChannel, after: int) -> None:
        """Store that a session is subscribed to a partition, for these clients and subjects.

        New subscriptions begin after this offset.
        """
        stream, partition = row.stream_partition
        kept = PersistedSubscription(
            stream, partition, row.owners, tuple(sorted(row.subjects)), row.clients, channel.mapped
        )
        self._rows.keep(SessionRow(self.at(row.address, row.stream_partition), channel.source, pack(kept), after))

    def remove_subscription(self, address: str, spot: Spot) -> None:
        """A session follows a partition no longer."""
        self._rows.forget(self.at(address, spot))

    def confirm_sent(self, at: SessionKey, offset: int) -> None:
        """Note that the broker has confirmed a session's messages up to this offset."""
        self._rows.sent(at, offset)

    def add_resend(self, request: Resend, owners: frozenset[str], channel: StreamrReplyChannel) -> None:
        """A resend has no end yet."""
        kept = PersistedResend(
            request.stream, request.partition, request.sub, owners, channel.mapped, channel.correlation_id
        )
        self._rows.keep(SessionRow(self._session_key(channel.address, request.sub), channel.source, pack(kept)))

    def remove_resend(self, address: str, sub: Sub) -> None:
        """Each resend of this `sub` has ended."""
        self._rows.forget(self._session_key(address, sub))

    def stored_sessions(self) -> Iterable[tuple[SessionRow, PersistedItem]]:
        """Return the stored sessions, each row with its content. Unreadable rows are deleted."""
        for row in self._rows.rows(self.connection_id):
            if row.at.mapper != self.mapper:
                continue
            try:
                yield row, unpack(row.row)
            except ValueError as error:
                self.drop(row, f"the stored row cannot be read: {error}")

    def drop(self, row: SessionRow, reason: str) -> None:
        """Delete a subscription that cannot be resumed."""
        log.warning("persisted session state deleted", connection=self.connection_id, at=row.at, reason=reason)
        self._rows.forget(row.at)

    def at(self, address: str, spot: Spot) -> SessionKey:
        """Return the key of a session's subscription to a partition."""
        return SessionKey(self.connection_id, self.mapper, address, f"follows {partition_name(*spot)}")

    def _session_key(self, address: str, sub: Sub) -> SessionKey:
        return SessionKey(self.connection_id, self.mapper, address, f"asked {sub!r}")
