"""The lag of the lake behind the journal, from journal and watermark, without Spark."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from spark_store.journal.reader import JournalReader


class LakeLag(NamedTuple):
    """Events that are not in the lake yet, and for how many seconds the oldest of them has been waiting."""

    events: int
    seconds: float


def measure(follower: JournalReader, seq: int, now: datetime) -> LakeLag:
    """The lag of a lake with the watermark `seq`. Raises StoreUnavailable."""
    waiting = follower.next_after(seq)
    if waiting is None:
        return LakeLag(0, 0.0)
    since = datetime.fromisoformat(waiting[1])
    return LakeLag(follower.newest() - seq, max(0.0, (now - since).total_seconds()))
