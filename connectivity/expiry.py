"""Looking after policies in which something expires: subjects that are gone at their time, and told of it.

The journal says which policies are due (`Journal.due`); what that means is decided by `connectivity.twins.expiring`. Here it
is carried out, in short rounds: events are stored like those of a command, announcements made when what they say is durable,
and the journal is told when to look again. Everything that is due is known to the journal alone, so a service that was
killed finds it at its next round; somebody may then be told a second time, and nobody is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
import structlog

from connectivity.store import Store
from connectivity.twins.expiring import Judged, Told, judge
from mappings.signals import PolicyAnnouncement
from spark_store.errors import StoreUnavailable
from spark_store.records import Change, Due

log = structlog.get_logger(__name__)

MOST_POLICIES = 50
"""So many policies are looked at in one round: some milliseconds."""

_ROUNDS = 10

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[Told]).decode


class _Working(NamedTuple):
    """What was decided about a policy, and the future that says when it is stored."""

    judged: Judged
    stored: asyncio.Future[None]


class Expiry:
    """The rounds of one service."""

    def __init__(
        self, store: Store, announce: Callable[[PolicyAnnouncement], object], now: Callable[[], datetime]
    ) -> None:
        """`announce` sends an announcement to whom it is for."""
        self._store = store
        self._announce = announce
        self._now = now

    async def look(self) -> None:
        """Look after all that is due, as far as some rounds do. Where the store is unavailable it stays due."""
        for _ in range(_ROUNDS):
            if await self._round() < MOST_POLICIES:
                return

    async def _round(self) -> int:
        """How many policies were due."""
        if not self._store.is_available:
            return 0
        try:
            now = f"{self._now().astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
            found = self._store.due(now, MOST_POLICIES)
            working = [self._begin(due, now) for due in found]
            for each in working:
                await self._finish(each)
        except StoreUnavailable as error:
            log.warning("policies could not be looked after", reason=str(error))
            return 0
        return len(found)

    def _begin(self, due: Due, now: str) -> _Working | None:
        """Decide and store, in one turn of the loop: no command comes between. Raises StoreUnavailable."""
        policy = self._store.snapshot(due.entity)
        if policy is None or policy.is_deleted:
            # What says so to the journal is on its way.
            return None
        judged = judge(policy, now, frozenset(_decode(due.note)) if due.note else frozenset())
        change = [Change(judged.events, (judged.snapshot,))] if judged.events else []
        return _Working(judged, self._store.submit(change) if change else self._store.barrier())

    async def _finish(self, working: _Working | None) -> None:
        if working is None:
            return
        judged = working.judged
        try:
            await working.stored
        except StoreUnavailable:
            raise
        except Exception as error:
            # Something was written between, or cannot be; the policy stays due.
            log.error("an expiry could not be stored", policy=str(judged.snapshot.entity), reason=str(error))
            return
        for event in judged.events:
            log.info("a subject has expired", policy=str(event.entity), path=event.path, revision=event.revision)
        for announcement in judged.announcements:
            self._announce(announcement)
        note = _encode(sorted(judged.told)) if judged.told else None
        await self._store.look_again(judged.snapshot, judged.next, note)
