"""A signal on its way: what is worked out about it, once."""

from __future__ import annotations

from typing import Any

from connectivity.targets.signal_context import SignalContext, SuppressionReason
from mappings.ids import EntityId
from mappings.model.json_pointer import MISSING
from mappings.model.signals import TwinEvent
from spark_store.records import Snapshot
from tests.support.in_process.interest_world import DecisionWorld
from tests.support.twin_world import OWNER, VIEWER, a_world, entry, granting


class CountingWorld(DecisionWorld):
    """A present that counts what it is asked."""

    asked = 0

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        self.asked += 1
        return super().snapshot(entity)

    def enforcer(self, policy_id: str, namespace: str | None = None) -> Any:
        self.asked += 1
        return super().enforcer(policy_id)


def test_the_world_is_asked_once_however_many_look_at_an_event() -> None:
    plant = CountingWorld()
    event = plant.apply("modify", "/attributes/a", 1)
    plant.asked = 0
    happening = SignalContext(event, plant)
    for subjects in ((OWNER,), (VIEWER,), (OWNER, VIEWER), (OWNER,)):
        happening.visible_to(subjects)
    assert plant.asked == 2


def test_those_with_equal_subjects_see_the_same_thing() -> None:
    plant = DecisionWorld()
    happening = SignalContext(plant.apply("modify", "/attributes/a", 1), plant)
    assert happening.visible_to((OWNER,)) is happening.visible_to((OWNER,))
    assert happening.visible_to((VIEWER,)) is SuppressionReason.FORBIDDEN


def test_a_value_is_parsed_and_filtered_when_it_is_asked_for_and_once() -> None:
    plant = DecisionWorld(a_world())
    plant.world.write_policy({"VIEW": entry([VIEWER], {"thing:/attributes/a": granting("READ")})})
    event = plant.apply("modify", "/attributes", {"a": 1, "b": 2})
    happening = SignalContext(event, plant)
    seen = happening.visible_to((VIEWER,))
    assert not isinstance(seen, SuppressionReason)
    assert seen.signal is seen.signal
    assert seen.signal.value == b'{"a":1}'
    assert seen.document() is seen.document()
    assert seen.document()["attributes"] == {"a": 1}
    assert happening.value == {"a": 1, "b": 2}


def test_an_event_without_a_value_reports_the_id_and_the_time() -> None:
    plant = DecisionWorld(a_world(attributes={"a": 1}))
    event = plant.apply("delete", "/attributes/a")
    happening: SignalContext[TwinEvent] = SignalContext(event, plant)
    assert happening.value is MISSING
    assert happening.described_thing(MISSING) == {
        "thingId": "acme.plant:boiler-07",
        "_revision": 2,
        "_modified": event.timestamp,
    }
