"""Random histories of one thing: created, changed in all ways, deleted and created again.

There are few paths and values, so that events often affect each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st

from mappings.ids import EntityId
from mappings.model.signals import Event
from spark_store.history.replay import evolve
from spark_store.records import Snapshot
from tests.support.journal_entries import timestamp


class RandomChange(NamedTuple):
    action: str
    path: str
    value: Any
    headers: bytes = b"{}"


_NONE = st.just(b"{}")


_KEYS = st.sampled_from(["a", "b", "n"])
_SCALARS = st.sampled_from([None, True, 1, 1.5, 2**60, "x", "ü"])
_VALUES = st.recursive(_SCALARS, lambda inner: st.dictionaries(_KEYS, inner, max_size=2), max_leaves=3)
_POLICIES = st.sampled_from(["acme.site:open", "acme.site:shut", "acme.site:half"])
THINGS = st.fixed_dictionaries(
    {"policyId": _POLICIES}, optional={"attributes": st.dictionaries(_KEYS, _VALUES, max_size=2)}
)
_PATHS = st.sampled_from(
    [
        "/attributes/a",
        "/attributes/a/b",
        "/attributes/n",
        "/features/lamp/properties/on",
        "/features/lamp",
        "/definition",
    ]
)
_HEADERS = st.sampled_from([b"{}", b"{}", b'{"_metadata":[["/attributes/a/unit","W"]]}', b'{"source":"s"}'])
_SETS = st.builds(RandomChange, st.sampled_from(["modified", "created"]), _PATHS, _VALUES, _HEADERS)
_CHANGES = st.one_of(
    _SETS,
    st.builds(
        RandomChange, st.just("merged"), st.just("/attributes"), st.dictionaries(_KEYS, _VALUES, max_size=2), _NONE
    ),
    st.builds(RandomChange, st.just("deleted"), _PATHS, st.none(), _NONE),
    st.builds(RandomChange, st.just("modified"), st.just("/"), THINGS, _NONE),
    st.just(RandomChange("deleted", "/", None)),
)
CREATED = st.builds(RandomChange, st.just("created"), st.just("/"), THINGS, _NONE)
HISTORIES: st.SearchStrategy[list[RandomChange]] = st.one_of(
    st.lists(_SETS, max_size=8), st.lists(_CHANGES, max_size=12)
).flatmap(lambda later: CREATED.map(lambda first: [first, *later]))


def history_of(
    entity: EntityId, changes: Sequence[RandomChange], seconds: Sequence[int]
) -> list[tuple[Event, Snapshot]]:
    """Return each event with the state after it; after a deletion, the next event is a creation."""
    states: list[tuple[Event, Snapshot]] = []
    snapshot: Snapshot | None = None
    for change, second in zip(changes, seconds, strict=False):
        action, path, value, headers = change
        if snapshot is not None and snapshot.is_deleted:
            action, path, value, headers = (
                "created",
                "/",
                {"policyId": "acme.site:open", "attributes": {"n": second}},
                b"{}",
            )
        raw = None if action == "deleted" else msgspec.json.encode(value)
        revision = 1 if snapshot is None else snapshot.revision + 1
        event = Event(entity, revision, timestamp(second), action, path, raw, headers)
        snapshot = evolve(snapshot, event)
        states.append((event, snapshot))
    return states
