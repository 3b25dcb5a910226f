"""Permissions to stream a history, over the life of an entity."""

from __future__ import annotations

from typing import Any

import pytest

from connectivity.twins.access import may_stream
from mappings.errors import Fault
from mappings.ids import EntityId
from spark_store.records import Snapshot
from tests.support.twin_world import (
    OWNER,
    POLICY,
    THING,
    VIEWER,
    TwinWorld,
    a_world,
    entry,
    granting,
    policy,
    revoking,
    thing,
)

T, P = thing(THING), policy(POLICY)


def code(world: TwinWorld, entity: EntityId, *subjects: str) -> str | None:
    fault = may_stream(entity, subjects, world.world)
    return fault.error if fault is not None else None


def test_an_unknown_thing_and_an_unreadable_thing_return_the_same_error() -> None:
    world = a_world()
    hidden = may_stream(T, [VIEWER], world.world)
    assert hidden == may_stream(T, [VIEWER], TwinWorld().world)
    assert hidden == Fault(
        404,
        "things:thing.notfound",
        f"The Thing with ID '{THING}' could not be found or requester had insufficient permissions to access it.",
        "Check if the ID of your requested Thing was correct and you have sufficient permissions.",
    )


def test_case_95_a_thing_needs_full_read() -> None:
    world = a_world()
    assert code(world, T, OWNER) is None
    world.write_policy(
        {"VIEW": entry([VIEWER], {"thing:/": granting("READ"), "thing:/attributes/a": revoking("READ")})}
    )
    assert code(world, T, VIEWER) == "things:thing.notfound"


@pytest.mark.parametrize(
    ("resources", "is_readable"),
    [
        ({"policy:/": granting("READ")}, True),
        ({"policy:/entries/VIEW": granting("READ")}, False),
        ({"policy:/": granting("READ"), "policy:/entries/OWNERS": revoking("READ")}, False),
        ({"policy:/": granting("WRITE")}, False),
        ({"thing:/": granting("READ")}, False),
        ({}, False),
    ],
)
def test_the_history_of_a_policy_needs_read_on_all_of_it(resources: dict[str, Any], is_readable: bool) -> None:
    """Events are replayed unfiltered, and they have contained every entry."""
    world = TwinWorld()
    world.write_policy({"VIEW": entry([VIEWER], resources)})
    assert code(world, P, VIEWER) == (None if is_readable else "policies:policy.notfound")


def test_a_deleted_thing_is_judged_by_its_last_policy() -> None:
    world = a_world()
    world.send("delete")
    assert code(world, T, OWNER) is None
    assert code(world, T, VIEWER) == "things:thing.notfound"
    world.send("delete", to=P)
    assert code(world, T, OWNER) is None


def test_a_deleted_policy_is_judged_by_itself() -> None:
    world = TwinWorld()
    world.write_policy({})
    world.send("delete", to=P)
    assert code(world, P, OWNER) is None
    assert code(world, P, VIEWER) == "policies:policy.notfound"


def test_a_thing_whose_policy_was_erased_is_not_found() -> None:
    world = a_world()
    world.snapshots[P] = Snapshot(P, 1, world.now, world.now, None, None)
    assert code(world, P, OWNER) == "policies:policy.notfound"
    assert code(world, T, OWNER) == "things:thing.notfound"
