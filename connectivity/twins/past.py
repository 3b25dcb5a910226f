"""Retrieving what was: which past a command means, and whether it may be told (Ditto protocol, historical retrieve).

The headers `at-historical-revision` and `at-historical-timestamp` ask for the state right after a revision, or after the
last event before an instant; both together mean both bounds. The newest revision is the present, and answered like it. Who
may read is judged by the present policy; an entity that is deleted now has no past that could be retrieved. To find the
state is somebody else's business; it comes back in the `Case`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from connectivity.errors import TwinError
from connectivity.twins.base import Case
from connectivity.twins.enforcer import READ
from mappings.ditto.instants import parse_instant
from mappings.headers import FIELDS, invalid_header
from mappings.ids import EntityType
from mappings.signals import Command
from spark_store.records import PastQuery

REVISION: Final = "at-historical-revision"
TIMESTAMP: Final = "at-historical-timestamp"
_HEADERS: Final = frozenset({REVISION, TIMESTAMP})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def asks_for_past(command: Command) -> bool:
    """Whether a command names a past that it wants to see; those that change something cannot."""
    return command.action == "retrieve" and not _HEADERS.isdisjoint(command.headers)


def past_query(case: Case) -> PastQuery | None:
    """What a retrieve of the past asks for; None where that is the present. Raises TwinError."""
    revision, before = case.headers.get(REVISION), _instant(case)
    newest = _visible(case)
    if revision is not None and not 0 < revision <= newest:
        raise unknown_past(case)
    if before is None and revision == newest:
        return None
    if before is not None and before > _nanoseconds(case.now):
        raise unknown_past(case)
    return PastQuery(case.entity, newest if revision is None else revision, before)


def unknown_past(case: Case) -> TwinError:
    """The refusal where what was asked for is not known: never was, is to come, or is forgotten."""
    revision, before = case.headers.get(REVISION), case.headers.get(TIMESTAMP)
    asked = f"timestamp '{before}'" if revision is None else f"revision '{revision}'"
    kind = "thing" if case.entity.type is EntityType.THING else "policy"
    return case.refuse(f"{case.entity.type.group}:{kind}.history.notfound", asked)


def _instant(case: Case) -> int | None:
    text = case.headers.get(TIMESTAMP)
    if text is None:
        return None
    if (instant := parse_instant(text)) is None:
        raise TwinError(invalid_header(FIELDS[TIMESTAMP], text), case.entity.type.group)
    return instant


def _visible(case: Case) -> int:
    """The newest revision of an entity that is there and may be read. Who may not learns nothing of its past."""
    is_thing = case.entity.type is EntityType.THING
    snapshot = case.living()
    policy = snapshot.policy if snapshot is not None else None
    enforcer = case.world.enforcer(policy, case.entity.namespace) if policy is not None else None
    if snapshot is None or enforcer is None:
        raise case.refuse("things:thing.notfound" if is_thing else "policies:policy.notfound")
    if not enforcer.partial(case.subjects, READ, case.address.guarded):
        raise case.refuse(f"{case.entity.type.group}:{case.address.resource.name}.notfound")
    return snapshot.revision


def _nanoseconds(timestamp: str) -> int:
    """An instant as events write it."""
    since = datetime.fromisoformat(timestamp) - _EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000
