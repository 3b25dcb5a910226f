"""The present: policies compiled once, and again when they change or a subject expires."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import msgspec

from connectivity.authorization.enforcer import Enforcer
from connectivity.twins.decider import Decider
from connectivity.twins.incarnations import PresentOnly
from mappings.ids import EntityId
from mappings.model.signals import Command
from spark_store.records import Snapshot
from tests.support.twin_world import OWNER, POLICY, THING, TwinWorld, policy, thing

P = policy(POLICY)


def a_policy_world() -> TwinWorld:
    world = TwinWorld()
    world.write_policy({})
    return world


def compiled(world: TwinWorld) -> Enforcer:
    enforcer = world.world.enforcer(POLICY)
    assert enforcer is not None
    return enforcer


def test_a_policy_is_compiled_once() -> None:
    world = a_policy_world()
    first = compiled(world)
    assert compiled(world) is first
    world.snapshots[P] = msgspec.structs.replace(world.snapshots[P])
    assert compiled(world) is first


def test_a_policy_is_compiled_again_when_it_is_another() -> None:
    """Also under the same revision: what could not be stored gives its revision back."""
    world = a_policy_world()
    first = compiled(world)
    state = world.snapshots[P].state
    assert state is not None
    world.snapshots[P] = msgspec.structs.replace(world.snapshots[P], state={**state, "entries": {}})
    assert compiled(world) is not first
    assert not compiled(world).has([OWNER], "READ", "thing:/")


def test_a_policy_that_is_gone_permits_nothing() -> None:
    world = a_policy_world()
    world.send("delete", to=P)
    assert world.world.enforcer(POLICY) is None
    assert world.world.enforcer("acme.plant:none") is None
    assert world.world.enforcer("no id") is None


class EmptyStore:
    """A store that knows nothing."""

    lives = PresentOnly()

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        return None


def test_a_decider_brings_world_clock_and_limits() -> None:
    now = datetime(2030, 1, 15, 9, 30, tzinfo=timezone(timedelta(hours=2)))
    decider = Decider(EmptyStore(), now=lambda: now, historical_headers=("correlation-id",))
    command = Command(thing(THING), "create", "/", b"{}", {"correlation-id": "c-1"})
    event = decider.decide(command, [OWNER]).events[-1]
    assert event.timestamp == "2030-01-15T07:30:00.000000Z"
    assert event.headers == b'{"correlation-id":"c-1"}'
    assert now.astimezone(UTC).hour == 7
