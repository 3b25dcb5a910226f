"""One entity's newest state, made anew from its events: what `rebuild` writes and what `verify` compares with.

Where every event from the first one on is there, the state is folded from them alone, and nothing that was known before is
asked. Where the first ones are past their time, a state that is known (a row of `snapshots` or of `latest`) is the ground
for those after it. Over a hole nobody folds: what comes after it waits for a known state, too, or for the event that creates
the entity again, which brings all of it.

A folded state equals the journal's as a JSON value (`is_same`). Its bytes are the same as well, as long as the journal's
were made by `spark_store.replay.evolve` and msgspec: keys stand in the order in which events brought them. They may differ
in the order of keys or in how a number is written (`1.50` and `1.5`) where the state rests on a known one of another
origin, such as a table that somebody else has written.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from mappings.ids import EntityType
from mappings.signals import Event
from spark_store.records import Snapshot
from spark_store.replay import evolve

FOLDABLE = frozenset(type.value for type in EntityType)
"""The types of entities that can be folded: the lake may have others, of a later version."""


class Ground(str, Enum):
    """What a state rests on: all events; a state known before and the events after it; nothing, so there is none."""

    EVENTS = "events"
    KNOWN = "known"
    NOTHING = "nothing"


class Folding:
    """Give it one entity's events in order of revision, and known states among them: after the event of their revision."""

    __slots__ = ("ground", "newest", "snapshot")

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.ground = Ground.NOTHING
        self.newest = 0
        """The revision of the newest event that was given."""

    def event(self, event: Event) -> None:
        """One that has been taken already, or lies before the known state, changes nothing."""
        self.newest = max(self.newest, event.revision)
        current = 0 if self.snapshot is None else self.snapshot.revision
        if event.revision <= current:
            return
        if event.revision == current + 1:
            self.ground = Ground.EVENTS if self.snapshot is None else self.ground
            self.snapshot = evolve(self.snapshot, event)
        elif event.action == "created" and event.path == "/":
            # Made again after events that are gone, by an erasure for example: it brings all there is.
            self.snapshot, self.ground = evolve(None, event), Ground.EVENTS
        else:
            self.snapshot, self.ground = None, Ground.NOTHING

    def known(self, snapshot: Snapshot) -> None:
        """Used only where the events do not lead."""
        if self.snapshot is None:
            self.snapshot, self.ground = snapshot, Ground.KNOWN


def is_same(one: Any, other: Any) -> bool:
    """Whether two parsed JSON values are the same value: the order of keys does not count, and 1 is 1.0, but not true."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def is_same_text(one: bytes | str | None, other: bytes | str | None) -> bool:
    """The same for JSON texts; None is no state. A text that is no JSON is the same as nothing else."""
    if one == other:
        return True
    if one is None or other is None:
        return False
    try:
        return is_same(msgspec.json.decode(one), msgspec.json.decode(other))
    except msgspec.DecodeError:
        return False


def state_text(snapshot: Snapshot) -> bytes | None:
    """The state as the journal writes it."""
    return None if snapshot.state is None else msgspec.json.encode(snapshot.state)
