"""The present: policies compiled once, and again when they change or a subject expires."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import msgspec

from connectivity.authorization.enforcer import Enforcer
from connectivity.twins.context import TwinLimits
from connectivity.twins.decider import Decider
from connectivity.twins.incarnations import PresentOnly
from mappings.ids import EntityId
from mappings.model.signals import Command
from spark_store.records import Snapshot
from tests.support.twin_harness import OWNER, POLICY, THING, TwinHarness, policy, thing

P = policy(POLICY)


def policy_harness() -> TwinHarness:
    harness = TwinHarness()
    harness.write_policy({})
    return harness


def compiled(harness: TwinHarness) -> Enforcer:
    enforcer = harness.lookup.enforcer(POLICY)
    assert enforcer is not None
    return enforcer


def test_a_policy_is_compiled_once() -> None:
    harness = policy_harness()
    first = compiled(harness)
    assert compiled(harness) is first
    harness.snapshots[P] = msgspec.structs.replace(harness.snapshots[P])
    assert compiled(harness) is first


def test_a_policy_is_compiled_again_when_it_is_another() -> None:
    """Also under the same revision: what could not be stored gives its revision back."""
    harness = policy_harness()
    first = compiled(harness)
    state = harness.snapshots[P].state
    assert state is not None
    harness.snapshots[P] = msgspec.structs.replace(harness.snapshots[P], state={**state, "entries": {}})
    assert compiled(harness) is not first
    assert not compiled(harness).has([OWNER], "READ", "thing:/")


def test_a_policy_that_is_gone_permits_nothing() -> None:
    harness = policy_harness()
    harness.send("delete", to=P)
    assert harness.lookup.enforcer(POLICY) is None
    assert harness.lookup.enforcer("acme.plant:none") is None
    assert harness.lookup.enforcer("no id") is None


class EmptyStore:
    """A store without entities."""

    lives = PresentOnly()

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        return None


def test_a_decider_has_lookup_clock_and_limits() -> None:
    now = datetime(2030, 1, 15, 9, 30, tzinfo=timezone(timedelta(hours=2)))
    decider = Decider(EmptyStore(), now=lambda: now, limits=TwinLimits(historical_headers=("correlation-id",)))
    command = Command(thing(THING), "create", "/", b"{}", {"correlation-id": "c-1"})
    event = decider.decide(command, [OWNER]).events[-1]
    assert event.timestamp == "2030-01-15T07:30:00.000000Z"
    assert event.headers == b'{"correlation-id":"c-1"}'
    assert now.astimezone(UTC).hour == 7
