"""Looking after policies in which something expires: subjects that are gone at their time, and told of it.

The journal says which policies are due (`Journal.due`); what that means is decided by `connectivity.twins.policy_expiry`.
Here it is carried out, in short rounds: events are stored like those of a command, announcements made when what they say is
durable, and the journal is told when to look again. Everything that is due is known to the journal alone, so a service that
was killed finds it at its next round; somebody may then be told a second time. Left out is only who was to be told of his
end between the moment when that was durable and the announcement, as with every announcement of what a command has done.

What goes wrong with one policy costs the others nothing: it is looked at again a little later, behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from time import monotonic
from typing import Final, NamedTuple

import msgspec
import structlog

from connectivity.store.store import Store
from connectivity.twins.policy_expiry import ExpiryNotice, ExpiryOutcome, judge
from mappings.model.signals import PolicyAnnouncement
from mappings.texts import utc_text
from spark_store.errors import StoreUnavailable
from spark_store.journal import statements
from spark_store.records import Change, PolicyDue, Snapshot

log = structlog.get_logger(__name__)


MOST_POLICIES = 50
"""So many policies are looked at in one round."""

TURN_SECONDS: Final = 0.001
"""After so long others have their turn on the loop."""

AGAIN: Final = timedelta(minutes=1)
"""When a policy is looked at again that something went wrong with."""

_ROUNDS = 10

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[ExpiryNotice]).decode


class _Working(NamedTuple):
    """What was decided about a policy, and the future that says when it is stored."""

    due: PolicyDue
    policy: Snapshot
    judged: ExpiryOutcome
    stored: asyncio.Future[None]


class PolicyExpiryJob:
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
        now = utc_text(self._now())
        working: list[_Working] = []
        try:
            found = self._store.read(lambda it: statements.due(it, now, MOST_POLICIES))
        except StoreUnavailable as error:
            return _postponed(error)
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
                # What has begun goes on: its announcements follow from what is stored.
                trouble = error
                break
        # Together, so that they share the commits.
        for outcome in await asyncio.gather(*map(self._finish, working), return_exceptions=True):
            if isinstance(outcome, StoreUnavailable):
                trouble = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
        return len(found) if trouble is None else _postponed(trouble)

    def _begin(self, due: PolicyDue, now: str) -> _Working | None:
        """Decide and store, in one turn of the loop: no command comes between. Raises StoreUnavailable."""
        policy = self._store.snapshot(due.entity)
        if policy is None or policy.is_deleted:
            # What says so to the journal is on its way.
            return None
        try:
            judged = judge(policy, now, frozenset(_decode(due.note)) if due.note else frozenset())
        except Exception as error:
            failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return _Working(due, policy, ExpiryOutcome((), policy, (), None, frozenset()), failed)
        change = [Change(judged.events, (judged.snapshot,))] if judged.events else []
        return _Working(due, policy, judged, self._store.submit(change) if change else self._store.barrier())

    async def _finish(self, working: _Working) -> None:
        """Raises StoreUnavailable."""
        due, policy, judged, stored = working
        try:
            await stored
        except StoreUnavailable:
            raise
        except Exception as error:
            # Something was written between, then the policy is due anyway; or it cannot be judged or stored.
            log.error("an expiry could not be carried out", policy=str(policy.entity), reason=repr(error))
            await self._look_again(policy, utc_text(self._now() + AGAIN), due.note)
            return
        for event in judged.events:
            log.info("a subject has expired", policy=str(event.entity), path=event.path, revision=event.revision)
        for announcement in judged.announcements:
            self._announce(announcement)
        note = _encode(sorted(judged.told)) if judged.told else None
        await self._look_again(judged.snapshot, judged.next, note)

    async def _look_again(self, policy: Snapshot, at: str | None, note: bytes | None) -> None:
        """Store when the policy is due again: `at`, None for never."""
        await self._store.execute(lambda it: statements.look_again(it, policy.entity, policy.revision, at, note))


def _postponed(error: StoreUnavailable) -> int:
    """What could not be done stays due."""
    log.warning("policies could not be looked after", reason=str(error))
    return 0
