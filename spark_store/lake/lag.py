"""How far the lake is behind the journal: read from the journal and the watermark, without Spark."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from spark_store.journal.reader import Follower


class Lag(NamedTuple):
    """Events that are not in the lake yet, and for how many seconds the oldest of them has been waiting."""

    events: int
    seconds: float


def measure(follower: Follower, seq: int, now: datetime) -> Lag:
    """The lag of a lake with the watermark `seq`. Raises StoreUnavailable."""
    waiting = follower.next_after(seq)
    if waiting is None:
        return Lag(0, 0.0)
    since = datetime.fromisoformat(waiting[1])
    return Lag(follower.newest() - seq, max(0.0, (now - since).total_seconds()))
