"""Sends the announcements of policies to the targets that subscribe to them.

An announcement goes to every target of an open connection that subscribes to announcements of policies of that namespace,
and whose subjects include one of the announced subjects (Ditto protocol, announcements). It is not stored; while a broker is
unavailable it waits in the outbox of the target, up to the target's limits.

If the policy requests acknowledgements, the announcement is repeated with the same correlation ID until all of them have
come: at its timeout, or a while after one failed in a way that may pass; at most `MAX_ATTEMPTS` times. Targets give the
labels that they issue, weakly if they make no message of it, sources those that they declare. This is kept in memory only,
so it ends with the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import structlog
from msgspec.structs import replace

from connectivity.dispatch.command_executor import foreign_labels
from connectivity.errors import ConnectivityError
from connectivity.monitoring.logs import log_context
from connectivity.sources.acknowledgements import AckAggregator, weak
from connectivity.targets.open_connection import OpenConnection
from connectivity.targets.target import TargetPublisher
from connectivity.transports.base import Outcome, ignore_outcome
from mappings.ids import EntityId, new_correlation_id
from mappings.model.headers import timeout_seconds
from mappings.model.signals import MAX_TIMEOUT, Acknowledgement, PolicyAnnouncement

log = structlog.get_logger(__name__)

TOPIC: Final = "_/_/policies/announcements"

MAX_ATTEMPTS: Final = 5
"""How often an announcement is sent that is not acknowledged."""

PAUSE_SECONDS: Final = 5.0
"""Seconds after a failed acknowledgement until the announcement is repeated."""

MAX_PENDING_ANNOUNCEMENTS: Final = 10_000
"""How many announcements may await acknowledgements; others are sent once."""


class _PendingAnnouncement:
    """An announcement that awaits acknowledgements until its `timer` ends."""

    def __init__(self, signal: PolicyAnnouncement, labels: Sequence[str]) -> None:
        self.signal = signal
        self.labels = tuple(labels)
        self.timeout = min(timeout_seconds(signal.headers) or MAX_TIMEOUT, MAX_TIMEOUT)
        self.attempts = 0
        self.collector = AckAggregator(signal.entity, self.labels, "twin")
        self.timer: asyncio.TimerHandle | None = None

    @property
    def correlation_id(self) -> str:
        return str(self.signal.headers["correlation-id"])


class PolicyAnnouncements:
    """Sends announcements to the targets of open connections."""

    def __init__(self, members: Iterable[OpenConnection]) -> None:
        self._members = members
        self._pending: dict[tuple[EntityId, str | None], _PendingAnnouncement] = {}

    def __len__(self) -> int:
        """Return how many announcements await acknowledgements."""
        return len(self._pending)

    def announce(self, announcement: PolicyAnnouncement) -> int:
        """Send an announcement with a new correlation ID; return the number of targets.

        Errors are logged only.
        """
        try:
            return self._announce(announcement)
        except Exception:
            log.exception("announcement not sent", policy=str(announcement.entity))
            return 0

    def _announce(self, announcement: PolicyAnnouncement) -> int:
        signal = replace(announcement, headers={**announcement.headers, "correlation-id": new_correlation_id()})
        labels = foreign_labels(signal.headers.get("requested-acks") or ())
        if not labels:
            return sum(target.post(signal, ignore_outcome) is not None for target in self._targets(signal))
        awaited = _PendingAnnouncement(signal, labels)
        if len(self._pending) < MAX_PENDING_ANNOUNCEMENTS:
            self._pending[signal.entity, awaited.correlation_id] = awaited
        else:
            log.warning("too many announcements await acknowledgements", policy=str(signal.entity))
            awaited.attempts = MAX_ATTEMPTS
        return self._send(awaited)

    def acknowledge(self, ack: Acknowledgement) -> bool:
        """Add an acknowledgement; return False if it is late or was not requested."""
        awaited = self._pending.get((ack.entity, ack.headers.get("correlation-id")))
        if awaited is None or not awaited.collector.take(ack):
            return False
        if awaited.collector.is_complete:
            self._retry_or_remove(awaited, PAUSE_SECONDS)
        return True

    def _targets(self, signal: PolicyAnnouncement) -> list[TargetPublisher]:
        return [
            target
            for member in self._members
            for target in member.targets
            if not set(target.interest.subjects).isdisjoint(signal.subjects)
            and target.interest.wants(TOPIC, signal.entity.namespace)
        ]

    def _send(self, awaited: _PendingAnnouncement) -> int:
        awaited.attempts += 1
        awaited.collector = AckAggregator(awaited.signal.entity, awaited.labels, "twin")
        if awaited.attempts <= MAX_ATTEMPTS:
            awaited.timer = asyncio.get_running_loop().call_later(awaited.timeout, self._expire, awaited)
        return sum(self._post(awaited, target) for target in self._targets(awaited.signal))

    def _post(self, awaited: _PendingAnnouncement, target: TargetPublisher) -> bool:
        """Send an announcement to a target; return False if the target makes no message of it.

        The target's label, if it issues one, is acknowledged after publishing; weakly if there is nothing to publish.
        """
        if (label := target.label) is None or label not in awaited.labels:
            return target.post(awaited.signal, ignore_outcome) is not None
        entity, correlation_id = awaited.signal.entity, awaited.correlation_id

        def acknowledge_label(error: ConnectivityError | None) -> None:
            self.acknowledge(target.issued_acknowledgement(label, entity, error, correlation_id, "twin"))

        def acknowledge_weakly() -> None:
            self.acknowledge(weak(entity, label, "twin", correlation_id))

        is_sent = target.post(awaited.signal, acknowledge_label, acknowledge_weakly) is not None
        if not is_sent:
            acknowledge_weakly()
        return is_sent

    def _expire(self, awaited: _PendingAnnouncement) -> None:
        awaited.collector.expire(awaited.correlation_id, awaited.timeout)
        self._retry_or_remove(awaited, 0.0)

    def _retry_or_remove(self, awaited: _PendingAnnouncement, pause: float) -> None:
        """Repeat an announcement after `pause` seconds or forget it, by its acknowledgements."""
        if awaited.timer is not None:
            awaited.timer.cancel()
        if awaited.collector.outcome is not Outcome.REDELIVER:
            self._remove(awaited)
        elif awaited.attempts < MAX_ATTEMPTS:
            awaited.timer = asyncio.get_running_loop().call_later(pause, self._send, awaited)
        else:
            self._remove(awaited)
            log.warning(
                "announcement not acknowledged",
                policy=str(awaited.signal.entity),
                labels=list(awaited.labels),
                attempts=awaited.attempts,
                **log_context(awaited.signal.headers),
            )

    def _remove(self, awaited: _PendingAnnouncement) -> None:
        self._pending.pop((awaited.signal.entity, awaited.correlation_id), None)
