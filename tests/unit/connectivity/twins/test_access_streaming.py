"""Who may stream a history, over the life of an entity."""

from __future__ import annotations

from connectivity.twins.access import may_stream
from mappings.errors import Fault
from mappings.ids import EntityId
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


def test_a_policy_needs_any_read() -> None:
    world = TwinWorld()
    world.write_policy({"VIEW": entry([VIEWER], {"policy:/entries/VIEW": granting("READ")})})
    assert code(world, P, VIEWER) is None
    assert code(world, P, "edge:nobody") == "policies:policy.notfound"


def test_a_deleted_thing_is_judged_by_its_last_policy() -> None:
    world = a_world()
    world.send("delete")
    assert code(world, T, OWNER) is None
    assert code(world, T, VIEWER) == "things:thing.notfound"
    world.send("delete", to=P)
    assert code(world, T, OWNER) == "things:thing.notfound"


def test_a_deleted_policy_is_not_found() -> None:
    world = a_world()
    world.send("delete", to=P)
    assert code(world, P, OWNER) == "policies:policy.notfound"
    assert code(world, T, OWNER) == "things:thing.notfound"
