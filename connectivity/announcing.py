"""What policies announce, on its way to those whom it is about.

An announcement goes to every target of an open connection that subscribes to announcements of policies of that namespace,
and that one of the announced subjects is a subject of (Ditto protocol, announcements). It is no answer and no event: it
rests nowhere, and waits for a broker that is away as other signals do, up to the bounds of the target.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from connectivity.errors import ConnectivityError
from connectivity.members import Member
from mappings.ids import new_correlation_id
from mappings.signals import PolicyAnnouncement

TOPIC = "_/_/policies/announcements"


def announce(announcement: PolicyAnnouncement, members: Iterable[Member]) -> int:
    """Send an announcement under a correlation id of its own; to how many targets."""
    signal = replace(announcement, headers={**announcement.headers, "correlation-id": new_correlation_id()})
    targets = [
        target
        for member in members
        for target in member.targets
        if not set(target.interest.subjects).isdisjoint(signal.subjects)
        and target.interest.wants(TOPIC, signal.entity.namespace)
    ]
    return sum(target.post(signal, _nobody) is not None for target in targets)


def _nobody(_error: ConnectivityError | None) -> None:
    """What a broker does not take is counted and logged by the target."""
