"""A batch of changes, and the resulting entities."""

from __future__ import annotations

import pytest

from mappings.ids import EntityId
from spark_store.errors import RevisionConflict, Unstorable
from spark_store.journal.batch import encode, plan
from spark_store.records import Change
from tests.support.journal_entries import LAMP, TANK, change, event, history, published, snapshot


def newest(entity: EntityId) -> int:
    return 4 if entity == LAMP else 0


def test_each_entity_is_left_in_its_last_state() -> None:
    planned = plan([change(LAMP, 5), published(TANK, 1), change(LAMP, 6)], newest)
    assert planned == {LAMP: snapshot(LAMP, 6), TANK: published(TANK, 1).snapshots[0]}
    assert [encode(it) for it in planned.values()] == [b'{"attributes":{"counter":5}}', b"{}"]


def test_an_event_follows_the_newest_one() -> None:
    with pytest.raises(RevisionConflict) as conflict:
        plan(history(LAMP, 7, 6), newest)
    assert (conflict.value.expected, conflict.value.found) == (5, 4)


@pytest.mark.parametrize("snapshots", [(), (snapshot(LAMP, 6),)])
def test_an_event_without_the_state_after_it_cannot_be_stored(snapshots: tuple[()]) -> None:
    with pytest.raises(Unstorable):
        plan([Change((event(LAMP, 5),), snapshots)], newest)
