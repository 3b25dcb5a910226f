"""Which things wait apart at a target, until when, and where each continues."""

from __future__ import annotations

from math import inf

import pytest

from connectivity.targets import parked_things as module
from connectivity.targets.parked_things import ParkedThings
from mappings.ids import EntityId, EntityType


def thing(name: str) -> EntityId:
    return EntityId(EntityType.THING, "acme.site", name)


LAMP, FAN = thing("lamp"), thing("fan")


@pytest.fixture
def parked() -> ParkedThings:
    """Parked things with pauses of 1, 2, 3 … seconds."""
    return ParkedThings((), float)


def test_a_thing_is_due_after_pauses_that_grow_with_each_refusal(parked: ParkedThings) -> None:
    assert (parked.next_due, parked.due(inf)) == (inf, None)
    assert parked.park(LAMP, 5, "no queue", 10.0)
    assert (parked.next_due, parked.due(10.9), parked.due(11.0)) == (11.0, None, (LAMP, 5))
    parked.begin(LAMP, 5)
    assert (parked.next_due, parked.due(1e9)) == (inf, None), "one event of it at a time"
    parked.refused(LAMP, "no queue yet", 20.0)
    assert (parked.next_due, parked.reason(LAMP)) == (22.0, "no queue yet")


def test_a_thing_continues_at_once_after_an_event_that_has_passed(parked: ParkedThings) -> None:
    parked.park(LAMP, 5, "no queue", 10.0)
    parked.begin(LAMP, 5)
    parked.passed(LAMP, 5, 12.0)
    assert parked.due(12.0) == (LAMP, 6)
    parked.begin(LAMP, 6)
    parked.refused(LAMP, "no queue", 12.0)
    assert parked.next_due == 13.0, "the pauses begin again"


def test_later_events_of_a_parked_thing_change_nothing_and_earlier_ones_go_first(parked: ParkedThings) -> None:
    parked.park(LAMP, 5, "no queue", 10.0)
    assert parked.park(LAMP, 6, "no queue", 10.5)
    assert (parked.positions, parked.next_due) == ((("acme.site:lamp", 5),), 11.0)
    parked.begin(LAMP, 5)
    assert parked.park(LAMP, 3, "no queue", 11.0)
    parked.passed(LAMP, 5, 12.0)
    assert parked.due(12.0) == (LAMP, 3)


def test_a_thing_with_missing_events_continues_with_the_next_existing_one(parked: ParkedThings) -> None:
    parked.park(LAMP, 5, "no queue", 10.0)
    parked.begin(LAMP, 8)
    parked.passed(LAMP, 8, 12.0)
    assert parked.positions == (("acme.site:lamp", 9),)


def test_things_wait_independently(parked: ParkedThings) -> None:
    parked.park(LAMP, 5, "no queue", 10.0)
    parked.park(FAN, 7, "full", 10.5)
    assert (LAMP in parked, FAN in parked, thing("door") in parked) == (True, True, False)
    assert str(parked) == "2 things, first acme.site:lamp: no queue"
    parked.leave(LAMP)
    assert (str(parked), parked.next_due, parked.due(20.0)) == ("1 thing, acme.site:fan: full", 11.5, (FAN, 7))


def test_no_more_things_are_parked_than_the_limit(parked: ParkedThings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PARKED", 1)
    assert parked.park(LAMP, 5, "no queue", 10.0)
    assert not parked.park(FAN, 7, "no queue", 10.0)
    assert parked.park(LAMP, 4, "no queue", 10.0)
    assert parked.positions == (("acme.site:lamp", 4),)


def test_stored_things_are_due_at_once() -> None:
    parked = ParkedThings((("acme.site:lamp", 5), ("acme.site:fan", 7)), float)
    assert (parked.positions, len(parked)) == ((("acme.site:lamp", 5), ("acme.site:fan", 7)), 2)
    assert (parked.due(0.0), str(parked)) == ((LAMP, 5), "2 things, first acme.site:lamp: not retried yet")
