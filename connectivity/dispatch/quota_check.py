"""Refuses changes that exceed a quota, and creations while the disk is almost full.

The stored data are counted in the journal at the start and every minute. Between these counts each decision is added at
once, and taken back if it cannot be stored. The use of quotas per day is stored at intervals and at the stop. Reports do the
same work for any number of namespaces and subjects.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from connectivity.authorization.quotas import (
    Quantity,
    QuotaCounts,
    QuotaHolder,
    QuotaKey,
    QuotaKind,
    QuotaLevels,
    Quotas,
    growth_by_event,
)
from connectivity.errors import TwinError
from connectivity.monitoring.prometheus import GaugeReading
from connectivity.store.quota_repository import STEP_ROWS, QuotaRepository
from connectivity.store.store import Store
from connectivity.twins import errors
from connectivity.twins.context import Decision, encode
from mappings.ids import EntityType
from mappings.model.signals import Command
from mappings.timestamps import utc_text
from spark_store.records import Snapshot, event_size

RECOUNT_SECONDS = 60.0

KEEP_SECONDS = 10.0
"""How often the use of quotas per day is stored. A crash loses at most the use of this time."""

_MOST_SHOWN = 20
"""The most quotas that readiness shows."""

_EXISTING = {EntityType.THING: Quantity.THINGS, EntityType.POLICY: Quantity.POLICIES}


def free_space(folder: Path) -> int:
    """Return the free bytes on the disk of a folder; unlimited if it is gone, which the store reports."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return sys.maxsize


class QuotaCheck:
    """Checks the decisions of all commands."""

    def __init__(
        self,
        store: Store,
        quotas: Quotas,
        low_space: int,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        free: Callable[[Path], int] = free_space,
    ) -> None:
        """`low_space`: bytes that must be free on the disk for creations."""
        self._now = now
        self._store = store
        self._quotas = quotas
        self._repository = QuotaRepository(store)
        self._low_space = low_space
        self._free = free
        self._folder = store.path.parent
        self.bounds_changes = not quotas.is_empty
        """Whether more than creations has to be checked."""

    def admit(self, command: Command, decision: Decision, subject: str) -> Callable[[], None] | None:
        """Count a decision for `subject` before it is staged; return what undoes that if it cannot be stored.

        Raises TwinError if it is refused, StoreUnavailable.
        """
        is_creation = any(event.is_creation for event in decision.events)
        if is_creation and (free := self._free(self._folder)) < self._low_space:
            detail = f"found {free} bytes free on the disk, expected at least {self._low_space}"
            raise _refusal(command, "storage.low", detail)
        if not self.bounds_changes:
            return None
        growth = self._growth(decision, subject)
        is_deletion = all(event.is_deletion for event in decision.events)
        if (exceeded := self._quotas.take(growth, self._day(), is_forced=is_deletion)) is not None:
            code = "dailyquota.exceeded" if exceeded.key[2].is_per_day else "quota.exceeded"
            raise _refusal(command, code, str(exceeded))
        return partial(self._quotas.give_back, growth, self._quotas.begun)

    async def recount(self) -> None:
        """Count the stored data, if there are quotas. Raises StoreUnavailable."""
        if not self.bounds_changes:
            return
        # In one turn of the event loop, so that the count has what was taken before, and only that.
        self._quotas.begin_count()
        counts: QuotaCounts | None = None
        try:
            counts = await self._repository.count(self._quotas.counted)
        finally:
            self._quotas.end_count(counts)

    async def resume(self) -> None:
        """Go on with the use of quotas per day from before a restart. Raises StoreUnavailable."""
        if self.bounds_changes:
            day = self._day()
            self._quotas.resume(day, await self._repository.of_day(day))

    async def keep(self) -> None:
        """Store the use of quotas per day that has changed. Raises StoreUnavailable."""
        while True:
            day, changed = self._quotas.changed(STEP_ROWS)
            if not changed:
                return
            is_kept = False
            try:
                await self._repository.keep(day, changed)
                is_kept = True
            finally:
                if not is_kept:
                    self._quotas.not_kept(day, changed)

    def _day(self) -> str:
        return utc_text(self._now())[:10]

    def nearly_used(self) -> list[str]:
        """Describe some of the quotas that are nearly used."""
        return [str(use) for use in self._quotas.nearly_used(_MOST_SHOWN)]

    def figures(self) -> Iterator[GaugeReading]:
        """Yield gauges of the use of the quotas."""
        return quota_figures(self._quotas.levels())

    def _growth(self, decision: Decision, subject: str) -> Counter[QuotaKey]:
        growth: Counter[QuotaKey] = Counter()
        for event in decision.events:
            growth.update(growth_by_event(event.entity.namespace, subject, event_size(event)))
            if step := event.is_creation - event.is_deletion:
                owner = subject if step > 0 else self._repository.creator(event.entity)
                quantity = _EXISTING[event.entity.type]
                growth[QuotaHolder.NAMESPACE, event.entity.namespace, quantity] += step
                if owner is not None:
                    growth[QuotaHolder.SUBJECT, owner, quantity] += step
        for snapshot in decision.snapshots:
            key = (QuotaHolder.NAMESPACE, snapshot.entity.namespace, Quantity.BYTES)
            if self._quotas.allowed(key) is not None:
                growth[key] += _size(snapshot) - _size(self._store.snapshot(snapshot.entity))
        return growth


def _size(snapshot: Snapshot | None) -> int:
    return 0 if snapshot is None or snapshot.state is None else len(encode(snapshot.state))


def _refusal(command: Command, code: str, detail: str) -> TwinError:
    return errors.refusal(f"{command.entity.type.group}:{code}", command.entity, "/", detail)


def quota_figures(levels: Iterable[tuple[QuotaKind, QuotaLevels]]) -> Iterator[GaugeReading]:
    """Yield the fullest quota of each quantity, and the number of those that are nearly full.

    They have no names, which may be as many as there are devices.
    """
    highest: dict[tuple[str, ...], float] = {}
    nearly: dict[tuple[str, ...], float] = {}
    for (holder, quantity), level in levels:
        key = (holder.value, quantity.value)
        highest[key] = level.highest / 100
        nearly[key] = level.nearly
    labels = ("holder", "quantity")
    text = "The used fraction of the fullest quota, in steps of 0.01, at most 1."
    yield GaugeReading("connectivity_quota_highest_use", text, highest, labels)
    yield GaugeReading("connectivity_quotas_nearly_used", "Quotas of which nine tenths are used.", nearly, labels)
