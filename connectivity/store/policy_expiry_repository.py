"""Which policies have subjects that expire, and when they are due, as the journal stores it."""

from __future__ import annotations

from collections.abc import Awaitable

from connectivity.store.store import Store
from mappings.ids import EntityId
from spark_store.journal import policy_expiry
from spark_store.records import PolicyDue


class PolicyExpiryRepository:
    """The due times of all policies. Every method raises StoreUnavailable."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def due(self, until: str, most: int) -> list[PolicyDue]:
        """Return policies that are due at this time, the earliest first."""
        return self._store.read(lambda it: policy_expiry.due(it, until, most))

    def reschedule(self, policy: EntityId, revision: int, at: str | None, note: bytes | None) -> Awaitable[None]:
        """Store the note, and when a policy is due again, None for never; if it has changed, it stays due."""
        return self._store.commits.execute(lambda it: policy_expiry.reschedule(it, policy, revision, at, note))
