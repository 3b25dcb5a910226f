"""The answers to deliveries, as the journal stores them; the store looks them up."""

from __future__ import annotations

from connectivity.store.store import Store
from spark_store.journal import answers

STEP_ROWS = 1000
"""How many answers are deleted in one commit."""


async def forget_answers(store: Store, connection_id: str, source: int, prefix: str) -> None:
    """Forget the answers to a source's deliveries with a prefix of their names. Raises StoreUnavailable."""
    while await store.commits.execute_alone(lambda it: answers.forget(it, connection_id, source, prefix, STEP_ROWS)):
        pass
