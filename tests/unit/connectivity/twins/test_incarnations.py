"""Incarnations of things and policies: permissions to read revisions after deletions and re-creations."""

from __future__ import annotations

from typing import Any

import pytest

from connectivity.errors import TwinError
from connectivity.twins.access import readable_history
from connectivity.twins.decider import decide, needed_past
from mappings.errors import Fault
from mappings.ids import EntityId
from mappings.model.signals import Command
from spark_store.records import Incarnation, PastQuery, PastState, Snapshot
from tests.support.twin_world import (
    ALL,
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
BOB = "edge:bob"
SHARED = "acme.plant:shared"
BOBS = {"entries": {"BOB": entry([BOB], {"policy:/": ALL, "thing:/": ALL})}}


def visible(world: TwinWorld, *subjects: str, entity: EntityId = T, until: int | None = None) -> tuple[int, int] | None:
    found = readable_history(entity, subjects, world.world, until)
    return None if isinstance(found, Fault) else (found.first, found.last)


def taken_over(**thing_members: Any) -> TwinWorld:
    """OWNER's thing has revisions 1 to 3, the last of them its deletion; BOB creates it again, and its policy."""
    world = a_world(**thing_members)
    world.send("modify", "/attributes/a", 1)
    world.send("delete")
    world.send("delete", to=P)
    world.send("create", "/", {"policyId": POLICY, **BOBS}, to=P, by=[BOB])
    world.send("create", "/", {"policyId": POLICY}, by=[BOB])
    world.send("modify", "/attributes/a", 2, by=[BOB])
    return world


def test_each_owner_sees_the_own_incarnation_and_owners_of_both_see_all() -> None:
    world = taken_over()
    assert visible(world, BOB) == (4, 5)
    assert visible(world, OWNER) == (1, 3)
    assert visible(world, OWNER, BOB) == (1, 5)
    assert visible(world, VIEWER) is None
    assert visible(world, BOB, entity=P) == (3, 3)
    assert visible(world, OWNER, entity=P) == (1, 2)


def test_a_thing_that_is_never_deleted_is_visible_from_its_first_revision() -> None:
    world = a_world()
    assert visible(world, OWNER) == (1, 1)
    assert visible(world, OWNER, entity=thing("acme.plant:none")) is None


def test_a_deleted_thing_is_judged_by_its_policy_as_it_was_at_the_deletion() -> None:
    world = a_world()
    world.write_policy({"V": entry([VIEWER], {"thing:/": granting("READ")})})
    world.send("delete")
    world.write_policy({"B": entry([BOB], {"thing:/": granting("READ")})})
    assert visible(world, VIEWER) == (1, 2)
    assert visible(world, BOB) is None


def test_the_last_policy_decides_if_a_thing_has_had_several() -> None:
    world = a_world()
    world.write_policy({"V": entry([VIEWER], {"thing:/": granting("READ")})})
    world.write_policy({"B": entry([BOB], {"thing:/": granting("READ")})}, to=SHARED)
    world.send("modify", "/policyId", SHARED)
    world.send("delete")
    assert (visible(world, VIEWER), visible(world, BOB)) == (None, (1, 3))


def test_imports_are_those_of_the_moment_of_the_deletion() -> None:
    world = a_world()
    world.write_policy({"ROLES": entry([VIEWER], {"thing:/": granting("READ")})}, to=SHARED)
    world.send("modify", f"/imports/{SHARED}", {}, to=P)
    world.send("delete")
    world.write_policy({"ROLES": entry([BOB], {"thing:/": granting("READ")})}, to=SHARED)
    assert (visible(world, VIEWER), visible(world, BOB)) == ((1, 2), None)


def test_entries_for_other_namespaces_and_expired_subjects_count_as_before() -> None:
    world = a_world()
    elsewhere = {**entry(["edge:x"], {"thing:/": granting("READ")}), "namespaces": ["acme.other"]}
    viewers = entry([VIEWER], {"thing:/": granting("READ")})
    viewers["subjects"][VIEWER]["expiry"] = "2030-01-15T09:00:00Z"
    world.write_policy({"V": viewers, "X": elsewhere})
    world.send("delete")
    assert (visible(world, VIEWER), visible(world, "edge:x")) == ((1, 2), None)
    world.now = "2030-01-15T09:00:00.000000Z"
    assert (visible(world, VIEWER), visible(world, OWNER)) == (None, (1, 2))


def test_where_permissions_are_unknown_no_subject_may_read() -> None:
    world = taken_over()
    world.incarnations[T] = [Incarnation(1, 3, None)]
    assert (visible(world, OWNER), visible(world, BOB)) == (None, (4, 5))
    world.incarnations[T] = []
    world.snapshots[T] = Snapshot(T, 9, world.now, world.now, None, POLICY)
    assert visible(world, BOB) is None


def test_a_reader_of_separate_incarnations_sees_the_newest_or_the_one_that_was_asked_for() -> None:
    world = taken_over()
    world.send("delete", by=[BOB])
    world.write_policy({}, to=SHARED)
    world.send("create", "/", {"policyId": SHARED})
    assert visible(world, OWNER) == (7, 7)
    assert [visible(world, OWNER, until=until) for until in (7, 6, 3, 1)] == [(7, 7), (1, 3), (1, 3), (1, 3)]
    assert visible(world, BOB, until=2) == (4, 6), "there is nothing up to 2"
    assert visible(world, OWNER, BOB) == (1, 7)


def test_the_messages_and_the_history_of_a_policy_require_all_of_it() -> None:
    world = TwinWorld()
    world.write_policy({"V": entry([VIEWER], {"policy:/": granting("READ"), "policy:/imports": revoking("READ")})})
    world.send("delete", to=P)
    assert visible(world, VIEWER, entity=P) is None
    assert visible(world, OWNER, entity=P) == (1, 2)


# retrieves of the past


def past(world: TwinWorld, revision: int, *subjects: str, **headers: Any) -> PastQuery | None:
    command = Command(T, "retrieve", "/", None, headers or {"at-historical-revision": revision})
    return needed_past(command, subjects, world.world, world.now)


def test_a_revision_of_an_earlier_incarnation_is_unknown_to_its_new_owner() -> None:
    world = taken_over()
    for revision in (1, 3):
        with pytest.raises(TwinError) as refused:
            past(world, revision, BOB)
        assert refused.value.fault.error == "things:thing.history.notfound"
        with pytest.raises(TwinError) as refused:
            past(world, revision, OWNER)
        assert refused.value.fault.error == "things:thing.notfound", "as for a thing that stays deleted"
        assert past(world, revision, OWNER, BOB) == PastQuery(T, revision, None)
    assert past(world, 4, BOB) == PastQuery(T, 4, None)


def test_a_time_before_the_creation_is_unknown_and_others_see_what_the_policy_of_that_time_shows() -> None:
    world = a_world(attributes={"a": 1, "b": 2})
    world.write_policy({"V": entry([VIEWER], {"thing:/attributes/a": granting("READ")})})
    then = world.snapshots[T]
    world.send("delete")
    deleted = world.snapshots[T]
    world.write_policy(
        {"B": entry([BOB, VIEWER], {"thing:/": granting("READ", "WRITE"), "policy:/": granting("READ")})}
    )
    world.send("create", "/", {"policyId": POLICY}, by=[BOB])
    command = Command(T, "retrieve", "/", None, {"at-historical-timestamp": "2030-01-15T07:00:00Z"})

    def shown(snapshot: Snapshot, *subjects: str) -> bytes | str | None:
        try:
            decision = decide(command, subjects, world.world, world.now, past=PastState(snapshot, b"{}"))
        except TwinError as refused:
            return refused.fault.error
        return decision.response.value

    for snapshot in (then, deleted):
        assert shown(snapshot, BOB) == "things:thing.history.notfound"
    assert shown(then, VIEWER) == b'{"thingId":"acme.plant:boiler-07","attributes":{"a":1}}'
    assert shown(deleted, VIEWER) == "things:thing.notfound"
