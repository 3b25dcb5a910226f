"""Deletes expired subjects from policies, and sends their announcements.

The journal lists the policies that are due; `connectivity.twins.policy_expiry` decides what to do. Events are stored like
those of a command, announcements are sent when these are durable, and the time of the next check is stored. Only the journal
knows which policies are due, so a killed service continues at its next round, and may repeat an announcement. A subject that
was deleted durably just before a crash gets no announcement, as with commands.

An error with one policy delays no other: that policy is checked again a minute later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import Final

import msgspec
import structlog

from connectivity.store.policy_expiry_repository import PolicyExpiryRepository
from connectivity.store.store import Store
from connectivity.twins.policy_expiry import ExpiryNotice, ExpiryOutcome, expire_subjects
from mappings.model.signals import PolicyAnnouncement
from mappings.timestamps import utc_text
from spark_store.errors import StoreUnavailable
from spark_store.records import Change, PolicyDue

log = structlog.get_logger(__name__)

MOST_POLICIES = 50
"""How many policies are checked in one round."""

TURN_SECONDS: Final = 0.001
"""After how many seconds other tasks get a turn on the event loop."""

AGAIN: Final = timedelta(minutes=1)
"""When a policy is checked again after an error."""

_ROUNDS = 10

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[ExpiryNotice]).decode


class PolicyExpiryJob:
    """The policy expiry of one service."""

    def __init__(
        self, store: Store, announce: Callable[[PolicyAnnouncement], object], now: Callable[[], datetime]
    ) -> None:
        """`announce` sends an announcement to its subjects."""
        self._store = store
        self._due = PolicyExpiryRepository(store)
        self._announce = announce
        self._now = now

    async def round(self) -> None:
        """Handle all policies that are due, in a few rounds at most.

        They stay due while the store is unavailable.
        """
        for _ in range(_ROUNDS):
            if await self._round() < MOST_POLICIES:
                return

    async def _round(self) -> int:
        """Handle some policies that are due; return how many there were."""
        if not self._store.commits.is_available:
            return 0
        now = utc_text(self._now())
        working: list[Callable[[], Awaitable[None]]] = []
        try:
            found = self._due.due(now, MOST_POLICIES)
        except StoreUnavailable as error:
            return _postpone(error)
        began = monotonic()
        trouble: StoreUnavailable | None = None
        for due in found:
            if monotonic() - began > TURN_SECONDS:
                await asyncio.sleep(0)
                began = monotonic()
            try:
                if (begun := self._begin(due, now)) is not None:
                    working.append(begun)
            except StoreUnavailable as error:
                # Begun ones go on: their announcements depend on stored events.
                trouble = error
                break
        # Together, so that they share commits.
        for outcome in await asyncio.gather(*(finish() for finish in working), return_exceptions=True):
            if isinstance(outcome, StoreUnavailable):
                trouble = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
        return len(found) if trouble is None else _postpone(trouble)

    def _begin(self, due: PolicyDue, now: str) -> Callable[[], Awaitable[None]] | None:
        """Decide and store in one turn of the event loop, so that no command comes between. Return the rest.

        Raises StoreUnavailable.
        """
        try:
            policy = self._store.snapshot(due.entity)
            if policy is None or policy.is_deleted:
                # The journal is about to remove it.
                return None
            judged = expire_subjects(policy, now, frozenset(_decode(due.note)) if due.note else frozenset())
        except StoreUnavailable:
            raise
        except Exception as error:
            return partial(self._put_off, due, error)
        change = [Change(judged.events, (judged.snapshot,))] if judged.events else []
        stored = self._store.commits.submit(change) if change else self._store.commits.barrier()
        return partial(self._finish, due, judged, stored)

    async def _put_off(self, due: PolicyDue, error: Exception) -> None:
        """Check a policy again later, because of an error with it. Raises StoreUnavailable."""
        log.error("policy expiry failed", policy=str(due.entity), reason=repr(error))
        await self._due.reschedule(due.entity, due.revision, utc_text(self._now() + AGAIN), due.note)

    async def _finish(self, due: PolicyDue, judged: ExpiryOutcome, stored: Awaitable[None]) -> None:
        """Send announcements after the decision is durable. Raises StoreUnavailable."""
        try:
            await stored
        except StoreUnavailable:
            raise
        except Exception as error:
            # A change came between, and the policy is due again; or it cannot be stored.
            await self._put_off(due, error)
            return
        for event in judged.events:
            log.info("subject expired", policy=str(event.entity), path=event.path, revision=event.revision)
        for announcement in judged.announcements:
            self._announce(announcement)
        note = _encode(sorted(judged.announced)) if judged.announced else None
        await self._due.reschedule(judged.snapshot.entity, judged.snapshot.revision, judged.next, note)


def _postpone(error: StoreUnavailable) -> int:
    """Log the error; the policies stay due."""
    log.warning("policy expiry waits for the store", reason=str(error))
    return 0
