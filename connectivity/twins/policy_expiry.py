"""Expiring subjects of a policy: deletions, announcements, next check.

See the Ditto protocol, subject expiry. An expired subject is deleted by the service with an event at the subject's path. A
subject with an `announcement` is notified `beforeExpiry` before the time, and with `whenDeleted` when the service or a
command has deleted it from the last entry: an announcement does not name the entry, so it would mislead a subject that
another entry still has. `expire_subjects` is pure: it takes a policy, the time, and earlier notifications, and returns what
to do. With a `randomizationInterval` an announcement comes earlier by a part of it that differs between subjects and is
always the same for one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from connectivity.authorization.enforcer import six_digits
from connectivity.twins.context import encode
from connectivity.twins.paths import below_entry
from connectivity.twins.policy_values import duration_of
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event, PolicyAnnouncement
from mappings.timestamps import shorten_timestamp, utc_text
from spark_store.history.replay import evolve_parsed
from spark_store.records import Snapshot

SUBJECT_DELETION: Final = "subjectDeletion"


class ExpiryNotice(NamedTuple):
    """A subject that was notified before its expiry at this time, as the policy writes it."""

    subject: str
    expiry: str


class ExpiryOutcome(NamedTuple):
    """The due events of a policy, its state after them, the announcements, and the next check."""

    events: tuple[Event, ...]
    snapshot: Snapshot
    announcements: tuple[PolicyAnnouncement, ...]
    next: str | None
    announced: frozenset[ExpiryNotice]


class _Subject(NamedTuple):
    """One subject of a policy entry."""

    label: str
    subject: str
    about: Mapping[str, Any]

    @property
    def announcement(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.about.get("announcement", {})
        return found


def expire_subjects(policy: Snapshot, now: str, announced: frozenset[ExpiryNotice] = frozenset()) -> ExpiryOutcome:
    """Return what is due in a policy at `now`. Times are text as in `Event.timestamp`."""
    events: list[Event] = []
    announcements: dict[ExpiryNotice, PolicyAnnouncement] = {}
    departures: dict[ExpiryNotice, PolicyAnnouncement] = {}
    moments: list[str] = []
    kept: set[ExpiryNotice] = set()
    snapshot = policy
    for found in _subjects(policy):
        if (expiry := found.about.get("expiry")) is None:
            continue
        about = ExpiryNotice(found.subject, expiry)
        if (moment := six_digits(expiry)) <= now:
            event = _deleted(snapshot, found, now)
            snapshot = evolve_parsed(snapshot, event, None)
            events.append(event)
            if found.announcement.get("whenDeleted"):
                departures[about] = _announcement(policy.entity, found, expiry)
            continue
        moments.append(moment)
        if (ahead := _ahead(policy.entity, found, moment)) is None:
            continue
        if about in announced:
            # Also while a clock that was set back has not come so far again.
            kept.add(about)
        elif ahead > now:
            moments.append(ahead)
        else:
            announcements[about] = _announcement(policy.entity, found, expiry)
            kept.add(about)
    left = {found.subject for found in _subjects(snapshot)}
    announcements |= {about: each for about, each in departures.items() if about.subject not in left}
    return ExpiryOutcome(
        tuple(events), snapshot, tuple(announcements.values()), min(moments, default=None), frozenset(kept)
    )


def departure_announcements(before: Snapshot | None, after: Snapshot) -> list[PolicyAnnouncement]:
    """Return the announcements for subjects that a command has deleted from all entries."""
    if before is None or before.state is None or after.entity.type is not EntityType.POLICY:
        return []
    left = {found.subject for found in _subjects(after)}
    announcements = {
        found.subject: _announcement(after.entity, found, shorten_timestamp(after.modified))
        for found in _subjects(before)
        if found.announcement.get("whenDeleted") and found.subject not in left
    }
    return list(announcements.values())


def _subjects(policy: Snapshot) -> Iterator[_Subject]:
    entries: Mapping[str, Any] = policy.state["entries"] if policy.state is not None else {}
    for label, entry in entries.items():
        for subject, about in entry["subjects"].items():
            yield _Subject(label, subject, about)


def _deleted(policy: Snapshot, found: _Subject, now: str) -> Event:
    path = below_entry(found.label, "subjects", found.subject).pointer
    return Event(policy.entity, policy.revision + 1, max(now, policy.modified), "deleted", path, None, b"{}")


def _ahead(policy: EntityId, found: _Subject, expiry: str) -> str | None:
    """Return when the expiry of a subject is announced; None for never."""
    before = duration_of(found.announcement.get("beforeExpiry", ""))
    if before is None:
        return None
    spread = duration_of(found.announcement.get("randomizationInterval", "")) or timedelta()
    name = f"{policy}\n{found.label}\n{found.subject}\n{expiry}".encode()
    part = int.from_bytes(hashlib.blake2b(name, digest_size=4).digest()) / 2**32
    try:
        ahead = datetime.fromisoformat(expiry) - before - spread * part
    except OverflowError:
        return ""
    return utc_text(ahead)


def _announcement(policy: EntityId, found: _Subject, at: str) -> PolicyAnnouncement:
    headers: dict[str, Any] = {"response-required": False}
    requested = found.announcement.get("requestedAcks", {})
    for name, header in (("labels", "requested-acks"), ("timeout", "timeout")):
        if name in requested:
            headers[header] = requested[name]
    value = encode({"deleteAt": at, "subjectIds": [found.subject]})
    return PolicyAnnouncement(policy, SUBJECT_DELETION, (found.subject,), value, headers)
