"""What policies announce, on its way to those whom it is about.

An announcement goes to every target of an open connection that subscribes to announcements of policies of that namespace,
and that one of the announced subjects is a subject of (Ditto protocol, announcements). It is no answer and no event: it
rests nowhere, and waits for a broker that is away as other signals do, up to the bounds of the target.

Where the policy asks for acknowledgements, the announcement is sent again under the same correlation id until all of them
have come: after its time is over, or a while after one of them was a failure that may go well later; a few times in all.
Targets give those that they issue, sources take those that they declare. This is known in memory alone, so whoever was not
told when the service ended is not told again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import structlog

from connectivity.dispatch.commands import foreign_labels
from connectivity.errors import ConnectivityError
from connectivity.monitoring.log_context import log_context
from connectivity.sources.acknowledgements import AckAggregator
from connectivity.targets.directory import OpenConnection
from connectivity.targets.target import TargetPublisher
from connectivity.transports.base import Done, Outcome, unobserved
from mappings.ids import EntityId, new_correlation_id
from mappings.model.headers import timeout_seconds
from mappings.model.signals import LONGEST_TIMEOUT, Acknowledgement, PolicyAnnouncement

log = structlog.get_logger(__name__)


TOPIC: Final = "_/_/policies/announcements"

MOST_SENDINGS: Final = 5
"""So often an announcement is sent whose acknowledgements stay away."""

PAUSE_SECONDS: Final = 5.0
"""So long after a failed acknowledgement it is sent again."""

MOST_AWAITED: Final = 10_000
"""Of so many announcements acknowledgements are awaited; those beyond are sent once."""


class _Awaited:
    """An announcement whose acknowledgements are awaited. `timer` ends the waiting."""

    def __init__(self, signal: PolicyAnnouncement, labels: Sequence[str]) -> None:
        self.signal = signal
        self.labels = tuple(labels)
        self.timeout = min(timeout_seconds(signal.headers) or LONGEST_TIMEOUT, LONGEST_TIMEOUT)
        self.sendings = 0
        self.collector = AckAggregator(signal.entity, self.labels, "twin")
        self.timer: asyncio.TimerHandle | None = None

    @property
    def correlation_id(self) -> str:
        return str(self.signal.headers["correlation-id"])


class PolicyAnnouncements:
    """Sends announcements to the members that are open."""

    def __init__(self, members: Iterable[OpenConnection]) -> None:
        self._members = members
        self._awaited: dict[tuple[EntityId, str | None], _Awaited] = {}

    def __len__(self) -> int:
        """Of how many announcements acknowledgements are awaited."""
        return len(self._awaited)

    def announce(self, announcement: PolicyAnnouncement) -> int:
        """Send an announcement under a correlation id of its own; to how many targets."""
        signal = replace(announcement, headers={**announcement.headers, "correlation-id": new_correlation_id()})
        labels = foreign_labels(signal.headers.get("requested-acks") or ())
        if not labels:
            return sum(target.post(signal, unobserved) is not None for target in self._targets(signal))
        awaited = _Awaited(signal, labels)
        if len(self._awaited) < MOST_AWAITED:
            self._awaited[signal.entity, awaited.correlation_id] = awaited
        else:
            log.warning("nobody waits for the acknowledgements of an announcement", policy=str(signal.entity))
            awaited.sendings = MOST_SENDINGS
        return self._send(awaited)

    def acknowledge(self, ack: Acknowledgement) -> bool:
        """Note an acknowledgement. False where it comes too late, or nobody asked for it."""
        awaited = self._awaited.get((ack.entity, ack.headers.get("correlation-id")))
        if awaited is None or not awaited.collector.take(ack):
            return False
        if awaited.collector.is_complete:
            self._judge(awaited, PAUSE_SECONDS)
        return True

    def _targets(self, signal: PolicyAnnouncement) -> list[TargetPublisher]:
        return [
            target
            for member in self._members
            for target in member.targets
            if not set(target.interest.subjects).isdisjoint(signal.subjects)
            and target.interest.wants(TOPIC, signal.entity.namespace)
        ]

    def _send(self, awaited: _Awaited) -> int:
        awaited.sendings += 1
        awaited.collector = AckAggregator(awaited.signal.entity, awaited.labels, "twin")
        if awaited.sendings <= MOST_SENDINGS:
            awaited.timer = asyncio.get_running_loop().call_later(awaited.timeout, self._expire, awaited)
        targets = self._targets(awaited.signal)
        return sum(target.post(awaited.signal, self._teller(awaited, target)) is not None for target in targets)

    def _teller(self, awaited: _Awaited, target: TargetPublisher) -> Done:
        """What a target says that issues one of the labels, when its broker has confirmed, or has not."""
        if (label := target.label) is None or label not in awaited.labels:
            return unobserved

        def tell(error: ConnectivityError | None) -> None:
            self.acknowledge(target.issued(label, awaited.signal.entity, error, awaited.correlation_id, "twin"))

        return tell

    def _expire(self, awaited: _Awaited) -> None:
        awaited.collector.expire(awaited.correlation_id, awaited.timeout)
        self._judge(awaited, 0.0)

    def _judge(self, awaited: _Awaited, pause: float) -> None:
        """All acknowledgements have come, or the time is over, which is pause enough."""
        if awaited.timer is not None:
            awaited.timer.cancel()
        if awaited.collector.outcome is not Outcome.REDELIVER:
            self._forget(awaited)
        elif awaited.sendings < MOST_SENDINGS:
            awaited.timer = asyncio.get_running_loop().call_later(pause, self._send, awaited)
        else:
            self._forget(awaited)
            log.warning(
                "an announcement was not acknowledged",
                policy=str(awaited.signal.entity),
                labels=list(awaited.labels),
                sendings=awaited.sendings,
                **log_context(awaited.signal.headers),
            )

    def _forget(self, awaited: _Awaited) -> None:
        self._awaited.pop((awaited.signal.entity, awaited.correlation_id), None)
