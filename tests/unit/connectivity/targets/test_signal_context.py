"""The context of a signal: values that are computed once for all targets."""

from __future__ import annotations

from typing import Any

from connectivity.targets.signal_context import SignalContext, SuppressionReason
from mappings.ids import EntityId
from mappings.model.json_pointer import MISSING
from mappings.model.signals import TwinEvent
from spark_store.records import Snapshot
from tests.support.in_process.topic_filter_harness import TopicFilterHarness
from tests.support.twin_harness import OWNER, VIEWER, entry, granting, twin_harness


class CountingHarness(TopicFilterHarness):
    """A state lookup that counts its requests."""

    asked = 0

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        self.asked += 1
        return super().snapshot(entity)

    def enforcer(self, policy_id: str, namespace: str | None = None) -> Any:
        self.asked += 1
        return super().enforcer(policy_id)


def test_a_state_is_read_once_for_many_readers_of_an_event() -> None:
    plant = CountingHarness()
    event = plant.apply("modify", "/attributes/a", 1)
    plant.asked = 0
    signal_context = SignalContext(event, plant, plant.now)
    for subjects in ((OWNER,), (VIEWER,), (OWNER, VIEWER), (OWNER,)):
        signal_context.visible_to(subjects)
    assert plant.asked == 2


def test_those_with_equal_subjects_see_the_same_thing() -> None:
    plant = TopicFilterHarness()
    signal_context = SignalContext(plant.apply("modify", "/attributes/a", 1), plant, plant.now)
    assert signal_context.visible_to((OWNER,)) is signal_context.visible_to((OWNER,))
    assert signal_context.visible_to((VIEWER,)) is SuppressionReason.FORBIDDEN


def test_a_value_is_parsed_and_filtered_when_it_is_asked_for_and_once() -> None:
    plant = TopicFilterHarness(twin_harness())
    plant.harness.write_policy({"VIEW": entry([VIEWER], {"thing:/attributes/a": granting("READ")})})
    event = plant.apply("modify", "/attributes", {"a": 1, "b": 2})
    signal_context = SignalContext(event, plant, plant.now)
    seen = signal_context.visible_to((VIEWER,))
    assert not isinstance(seen, SuppressionReason)
    assert seen.signal is seen.signal
    assert seen.signal.value == b'{"a":1}'
    assert seen.document() is seen.document()
    assert seen.document()["attributes"] == {"a": 1}
    assert signal_context.value == {"a": 1, "b": 2}


def test_an_event_without_a_value_reports_the_id_and_the_time() -> None:
    plant = TopicFilterHarness(twin_harness(attributes={"a": 1}))
    event = plant.apply("delete", "/attributes/a")
    signal_context: SignalContext[TwinEvent] = SignalContext(event, plant, plant.now)
    assert signal_context.value is MISSING
    assert signal_context.described_thing(MISSING) == {
        "thingId": "acme.plant:boiler-07",
        "_revision": 2,
        "_modified": event.timestamp,
    }
