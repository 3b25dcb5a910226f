"""Checks a batch of changes, computes the resulting states, and divides the work into steps. Pure.

Every event must follow its entity's newest one, and every entity must have a state after its newest event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from mappings.ids import EntityId
from mappings.json_values import encode_state
from spark_store.errors import RevisionConflict, Unstorable
from spark_store.records import Change, Snapshot

T = TypeVar("T")

_STEP, _STEP_BYTES = 8, 64 << 10
"""How many entities, events or answers are written in one step, and after how many bytes it ends."""


def plan(changes: Sequence[Change], newest: Callable[[EntityId], int]) -> dict[EntityId, Snapshot]:
    """Return the states after a batch: one of each entity, however many changes lead to it.

    `newest` returns an entity's revision before the batch, 0 if it has none. Raises RevisionConflict and Unstorable.
    """
    revisions: dict[EntityId, int] = {}
    snapshots: dict[EntityId, Snapshot] = {}
    for change in changes:
        for event in change.events:
            entity = event.entity
            found = revisions.get(entity)
            if found is None:
                found = newest(entity)
            if event.revision != found + 1:
                raise RevisionConflict(entity, event.revision - 1, found)
            revisions[entity] = event.revision
        for snapshot in change.snapshots:
            if snapshot.revision != revisions.get(snapshot.entity):
                raise Unstorable(
                    f"{snapshot.entity}: expected the state after an event of the same change, found revision "
                    f"{snapshot.revision} after {revisions.get(snapshot.entity, 'no event')}"
                )
            snapshots[snapshot.entity] = snapshot
    for entity, revision in revisions.items():
        if entity not in snapshots or snapshots[entity].revision != revision:
            raise Unstorable(f"{entity}: expected the state at revision {revision}, found none")
    return snapshots


def encode(snapshot: Snapshot) -> bytes | None:
    """Return a state as JSON; None if the entity is deleted. Raises Unstorable."""
    if snapshot.state is None:
        return None
    try:
        return encode_state(snapshot.state)
    except (TypeError, ValueError, RecursionError) as error:
        raise Unstorable(f"{snapshot.entity}: expected a state that is JSON: {error}") from error


def batched(items: Iterable[T], size: Callable[[T], int] = lambda _: 0) -> Iterator[Sequence[T]]:
    """Divide items into those of one step; `size` returns the bytes of one."""
    part: list[T] = []
    total = 0
    for item in items:
        part.append(item)
        total += size(item)
        if len(part) >= _STEP or total >= _STEP_BYTES:
            yield part
            part, total = [], 0
    if part:
        yield part


def answer_owners(change: Change, keys: Mapping[EntityId, int]) -> tuple[int | None, str | None]:
    """Return the columns `entity` and `others`: the entities whose erasure deletes the answer."""
    if not change.events:
        return None, None
    first, *others = dict.fromkeys(keys[event.entity] for event in change.events)
    return first, f",{','.join(map(str, others))}," if others else None
