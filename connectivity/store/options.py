"""The limits and times of the store."""

from __future__ import annotations

from dataclasses import dataclass

from spark_store.journal.journal import MAX_ANSWERS

TURN_SECONDS = 0.001
"""How long changes are written in one turn of the event loop."""

BATCH_WEIGHT = 512
"""How many changes of ordinary size are written together, each entity's state once."""

GATHER = 32
"""How many submits the first change waits for at most, while each turn of the event loop brings some."""

FORGET_ANSWERS = 64
"""Old answers are deleted once in this many new ones."""

READERS = 4
"""How many threads read the lake. More would only compete for the interpreter."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Times in seconds, sizes in bytes."""

    commit_changes: int = 1000
    """The most changes in one commit."""
    cached_entities: int = 50_000
    cached_bytes: int = 32 << 20
    redelivery_window: float = 600.0
    """How long answers are remembered."""
    max_answers: int = MAX_ANSWERS
    probe_min: float = 0.1
    probe_max: float = 5.0
    """The pauses between two probes grow from `probe_min` to this."""
