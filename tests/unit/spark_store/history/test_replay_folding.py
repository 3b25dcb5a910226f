"""The state of an entity from its events and from known states."""

from __future__ import annotations

from typing import Any

import msgspec

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.history.replay import FoldBase, StateFold, is_same, is_same_text, state_text
from spark_store.records import Snapshot
from tests.support.journal_entries import timestamp
from tests.support.table import each_row

LAMP = EntityId(EntityType.THING, "acme", "lamp")


def event(revision: int) -> Event:
    value = msgspec.json.encode(revision)
    return Event(LAMP, revision, timestamp(revision), "modified", f"/attributes/n{revision}", value, b"{}")


def known(revision: int, state: dict[str, Any] | None = None) -> Snapshot:
    return Snapshot(LAMP, revision, timestamp(1), timestamp(revision), state or {"attributes": {}}, None)


def folded(*items: Event | Snapshot) -> StateFold:
    folding = StateFold()
    for item in items:
        folding.event(item) if isinstance(item, Event) else folding.known(item)
    return folding


def keys(folding: StateFold) -> list[str]:
    assert folding.snapshot is not None
    assert folding.snapshot.state is not None
    return list(folding.snapshot.state["attributes"])


@each_row(
    ("items", "ground", "expected"),
    [
        ((event(1), event(2), event(3)), FoldBase.EVENTS, ["n1", "n2", "n3"]),
        # A known state is unused if all events are present.
        ((event(1), known(1), event(2), known(7)), FoldBase.EVENTS, ["n1", "n2"]),
        # A repeated event is folded once.
        ((event(1), event(1), event(2), event(2)), FoldBase.EVENTS, ["n1", "n2"]),
        # The first events have expired.
        ((event(3), known(3), event(4)), FoldBase.KNOWN, ["n4"]),
        ((known(2), event(3), event(4)), FoldBase.KNOWN, ["n3", "n4"]),
        ((known(5),), FoldBase.KNOWN, []),
        # A gap is never folded over.
        ((event(1), event(3), known(3), event(4)), FoldBase.KNOWN, ["n4"]),
        ((known(1), event(4)), FoldBase.NOTHING, None),
        ((event(1), event(3)), FoldBase.NOTHING, None),
        ((event(2),), FoldBase.NOTHING, None),
        ((), FoldBase.NOTHING, None),
    ],
)
def test_a_state_is_based_on_events_or_on_a_known_snapshot(
    items: tuple[Event | Snapshot, ...], ground: FoldBase, expected: list[str] | None
) -> None:
    folding = folded(*items)
    assert folding.ground is ground
    assert (None if folding.snapshot is None else keys(folding)) == expected
    assert folding.newest == max((item.revision for item in items if isinstance(item, Event)), default=0)


@each_row(
    ("one", "other", "expected"),
    [
        ({"a": 1, "b": [1.5]}, {"b": [1.5], "a": 1.0}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": None}, {}, False),
        ([1, 2], [2, 1], False),
        ([1], [1, 1], False),
        (2**53 + 1, 2**53, False),
        ("1", 1, False),
        (None, 0, False),
    ],
)
def test_json_equality_ignores_member_order_and_number_spelling(one: Any, other: Any, expected: bool) -> None:
    assert is_same(one, other) is expected
    assert is_same(other, one) is expected


def test_texts_are_the_same_as_values() -> None:
    assert is_same_text('{"a": 1.50, "b": [1]}', b'{"b":[1.0],"a":1.5}')
    assert is_same_text(None, None)
    assert not is_same_text(None, "null")
    assert not is_same_text("no JSON", "{}")
    assert is_same_text("no JSON", "no JSON")


def created(revision: int) -> Event:
    return event(revision)._replace(action="created", path="/", value=b'{"attributes":{"n":0},"policyId":"acme:pol"}')


def test_a_creation_event_is_a_fold_base_after_any_earlier_event() -> None:
    """As after an erasure: revisions continue, and earlier events are missing."""
    for before in ((), (event(1),), (known(2),)):
        folding = folded(*before, created(7), event(8))
        assert folding.ground is FoldBase.EVENTS
        assert folding.snapshot == Snapshot(
            LAMP, 8, timestamp(7), timestamp(8), {"attributes": {"n": 0, "n8": 8}, "policyId": "acme:pol"}, "acme:pol"
        )
    # An event that replaces the whole thing does not contain its creation time.
    assert folded(created(7)._replace(action="modified")).ground is FoldBase.NOTHING


def test_a_state_is_written_as_the_journal_does() -> None:
    assert state_text(known(1)) == b'{"attributes":{}}'
    assert state_text(Snapshot(LAMP, 2, "", "", None, None)) is None
