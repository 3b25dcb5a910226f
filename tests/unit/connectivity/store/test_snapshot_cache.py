"""The states used last, bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from connectivity.store.snapshot_cache import SnapshotCache
from mappings.ids import EntityId, EntityType
from spark_store.records import Change, Snapshot
from tests.support.journal_entries import snapshot


def state(name: str, size: int = 10) -> Snapshot:
    entity = EntityId(EntityType.THING, "acme.site", name)
    return snapshot(entity, 1, {"attributes": {"text": "x" * size}})


def keep(cache: SnapshotCache, *states: Snapshot) -> None:
    for one in states:
        cache.put(one)


def names(cache: SnapshotCache, among: str) -> str:
    return "".join(name for name in among if cache.get(state(name).entity) is not None)


@pytest.mark.parametrize(
    ("cache", "left"),
    [
        (lambda: SnapshotCache(2, 1 << 20), "bc"),
        (lambda: SnapshotCache(10, 700), "bc"),
        (lambda: SnapshotCache(10, 100), ""),
    ],
    ids=["number", "bytes", "too small for one"],
)
def test_the_cache_is_bounded(cache: Callable[[], SnapshotCache], left: str) -> None:
    made = cache()
    keep(made, state("a"), state("b"), state("c"))
    assert names(made, "abc") == left
    assert len(made) == len(left)


def test_the_state_that_was_not_used_for_longest_goes_first() -> None:
    cache = SnapshotCache(2, 1 << 20)
    keep(cache, state("a"), state("b"))
    assert cache.get(state("a").entity) is not None
    keep(cache, state("c"))
    assert names(cache, "abc") == "ac"


def test_the_size_of_the_cache_follows_its_states() -> None:
    """Growth is added at once, and a replaced state is subtracted."""
    cache = SnapshotCache(10, 1 << 20)
    cache.update([Change((), (state("a", 10),))])
    small = cache.size
    cache.put(state("a", 5000), grown=5000)
    assert cache.size >= small + 4900
    for _ in range(1000):
        cache.put(state("a", 5000), grown=5000)
    assert cache.size < 3 * 5300
    cache.clear()
    assert (cache.size, len(cache)) == (0, 0)
