"""What of a connection's sessions outlives the service: what they follow, and which resends have not ended.

(Streamr protocol, lifetime of a session.)

Clients do not see a restart. So what a session follows is durable before its client is told that it follows it, from the
offset on at which that began; what is sent after that is caught up on. A resend that was cut off cannot be finished, and its
client is told so. The bytes of a row are `mappings.streamr.persistence`; when they reach the disk is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import structlog

from connectivity.sessions.streamr.reply_channel import StreamrReplyChannel
from connectivity.store.session_repository import SessionRepository
from mappings.streamr.errors import Sub
from mappings.streamr.persistence import Kept, PersistedResend, PersistedSubscription, pack, unpack
from mappings.streamr.requests import Resend
from mappings.streamr.sessions import Spot, SubscriptionRow
from mappings.streamr.streams import partition_name
from spark_store.records import SessionKey, SessionRow

log = structlog.get_logger(__name__)


class RestoredRow(NamedTuple):
    """A row that was kept, understood."""

    row: SessionRow
    kept: Kept


class SessionPersistence:
    """What is kept of the sessions of one room."""

    def __init__(self, rows: SessionRepository, connection_id: str, mapper: str) -> None:
        self._rows, self.connection_id, self.mapper = rows, connection_id, mapper

    def following(self, row: SubscriptionRow, line: StreamrReplyChannel, after: int) -> None:
        """A session follows a partition, with these clients and subjects.

        What is new to it begins behind this offset.
        """
        stream, partition = row.spot
        kept = PersistedSubscription(
            stream, partition, row.owners, tuple(sorted(row.subjects)), row.clients, line.mapped
        )
        self._rows.keep(SessionRow(self.at(row.address, row.spot), line.source, pack(kept), after))

    def left(self, address: str, spot: Spot) -> None:
        """A session follows a partition no longer."""
        self._rows.forget(self.at(address, spot))

    def sent(self, at: SessionKey, offset: int) -> None:
        """The broker has everything up to this offset of what a session follows."""
        self._rows.sent(at, offset)

    def asked(self, request: Resend, owners: frozenset[str], line: StreamrReplyChannel) -> None:
        """A resend has no end yet."""
        kept = PersistedResend(request.stream, request.partition, request.sub, owners, line.mapped, line.correlation_id)
        self._rows.keep(SessionRow(self._asked_at(line.address, request.sub), line.source, pack(kept)))

    def answered(self, address: str, sub: Sub) -> None:
        """Each resend of this `sub` has ended."""
        self._rows.forget(self._asked_at(address, sub))

    def found(self) -> Iterable[RestoredRow]:
        """What was kept. What cannot be understood any more is forgotten."""
        for row in self._rows.rows(self.connection_id):
            if row.at.mapper != self.mapper:
                continue
            try:
                yield RestoredRow(row, unpack(row.row))
            except ValueError as error:
                self.drop(row, f"it cannot be read: {error}")

    def drop(self, row: SessionRow, reason: str) -> None:
        """Forget what cannot go on."""
        log.warning("what was kept of a session is dropped", connection=self.connection_id, at=row.at, reason=reason)
        self._rows.forget(row.at)

    def at(self, address: str, spot: Spot) -> SessionKey:
        """Where it is kept that a session follows a partition."""
        return SessionKey(self.connection_id, self.mapper, address, f"follows {partition_name(*spot)}")

    def _asked_at(self, address: str, sub: Sub) -> SessionKey:
        return SessionKey(self.connection_id, self.mapper, address, f"asked {sub!r}")
