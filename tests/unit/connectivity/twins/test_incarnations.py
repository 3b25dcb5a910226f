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
from tests.support.twin_harness import (
    ALL,
    OWNER,
    POLICY,
    THING,
    VIEWER,
    TwinHarness,
    entry,
    granting,
    policy,
    revoking,
    thing,
    twin_harness,
)

T, P = thing(THING), policy(POLICY)
BOB = "edge:bob"
SHARED = "acme.plant:shared"
BOBS = {"entries": {"BOB": entry([BOB], {"policy:/": ALL, "thing:/": ALL})}}


def visible(
    harness: TwinHarness, *subjects: str, entity: EntityId = T, until: int | None = None
) -> tuple[int, int] | None:
    found = readable_history(entity, subjects, harness.lookup, until)
    return None if isinstance(found, Fault) else (found.first, found.last)


def taken_over(**thing_members: Any) -> TwinHarness:
    """Return a harness where OWNER deleted thing and policy at revision 3, and BOB created both again."""
    harness = twin_harness(**thing_members)
    harness.send("modify", "/attributes/a", 1)
    harness.send("delete")
    harness.send("delete", to=P)
    harness.send("create", "/", {"policyId": POLICY, **BOBS}, to=P, by=[BOB])
    harness.send("create", "/", {"policyId": POLICY}, by=[BOB])
    harness.send("modify", "/attributes/a", 2, by=[BOB])
    return harness


def test_each_owner_sees_the_own_incarnation_and_owners_of_both_see_all() -> None:
    harness = taken_over()
    assert visible(harness, BOB) == (4, 5)
    assert visible(harness, OWNER) == (1, 3)
    assert visible(harness, OWNER, BOB) == (1, 5)
    assert visible(harness, VIEWER) is None
    assert visible(harness, BOB, entity=P) == (3, 3)
    assert visible(harness, OWNER, entity=P) == (1, 2)


def test_a_thing_that_is_never_deleted_is_visible_from_its_first_revision() -> None:
    harness = twin_harness()
    assert visible(harness, OWNER) == (1, 1)
    assert visible(harness, OWNER, entity=thing("acme.plant:none")) is None


def test_a_deleted_thing_is_checked_with_its_policy_at_the_deletion() -> None:
    harness = twin_harness()
    harness.write_policy({"V": entry([VIEWER], {"thing:/": granting("READ")})})
    harness.send("delete")
    harness.write_policy({"B": entry([BOB], {"thing:/": granting("READ")})})
    assert visible(harness, VIEWER) == (1, 2)
    assert visible(harness, BOB) is None


def test_the_last_policy_decides_if_a_thing_has_had_several() -> None:
    harness = twin_harness()
    harness.write_policy({"V": entry([VIEWER], {"thing:/": granting("READ")})})
    harness.write_policy({"B": entry([BOB], {"thing:/": granting("READ")})}, to=SHARED)
    harness.send("modify", "/policyId", SHARED)
    harness.send("delete")
    assert (visible(harness, VIEWER), visible(harness, BOB)) == (None, (1, 3))


def test_imports_are_those_of_the_moment_of_the_deletion() -> None:
    harness = twin_harness()
    harness.write_policy({"ROLES": entry([VIEWER], {"thing:/": granting("READ")})}, to=SHARED)
    harness.send("modify", f"/imports/{SHARED}", {}, to=P)
    harness.send("delete")
    harness.write_policy({"ROLES": entry([BOB], {"thing:/": granting("READ")})}, to=SHARED)
    assert (visible(harness, VIEWER), visible(harness, BOB)) == ((1, 2), None)


def test_entries_for_other_namespaces_and_expired_subjects_count_as_before() -> None:
    harness = twin_harness()
    elsewhere = {**entry(["edge:x"], {"thing:/": granting("READ")}), "namespaces": ["acme.other"]}
    viewers = entry([VIEWER], {"thing:/": granting("READ")})
    viewers["subjects"][VIEWER]["expiry"] = "2030-01-15T09:00:00Z"
    harness.write_policy({"V": viewers, "X": elsewhere})
    harness.send("delete")
    assert (visible(harness, VIEWER), visible(harness, "edge:x")) == ((1, 2), None)
    harness.now = "2030-01-15T09:00:00.000000Z"
    assert (visible(harness, VIEWER), visible(harness, OWNER)) == (None, (1, 2))


def test_where_permissions_are_unknown_no_subject_may_read() -> None:
    harness = taken_over()
    harness.incarnations[T] = [Incarnation(1, 3, None)]
    assert (visible(harness, OWNER), visible(harness, BOB)) == (None, (4, 5))
    harness.incarnations[T] = []
    harness.snapshots[T] = Snapshot(T, 9, harness.now, harness.now, None, POLICY)
    assert visible(harness, BOB) is None


def test_a_reader_of_separate_incarnations_sees_the_newest_or_the_one_that_was_asked_for() -> None:
    harness = taken_over()
    harness.send("delete", by=[BOB])
    harness.write_policy({}, to=SHARED)
    harness.send("create", "/", {"policyId": SHARED})
    assert visible(harness, OWNER) == (7, 7)
    assert [visible(harness, OWNER, until=until) for until in (7, 6, 3, 1)] == [(7, 7), (1, 3), (1, 3), (1, 3)]
    assert visible(harness, BOB, until=2) == (4, 6), "there is nothing up to 2"
    assert visible(harness, OWNER, BOB) == (1, 7)


def test_incarnations_without_gap_are_visible_up_to_the_newest_revision_whatever_revision_ends_the_request() -> None:
    """Otherwise relative revisions would refer to the end of an earlier incarnation."""
    harness = taken_over()
    assert [visible(harness, OWNER, BOB, until=until) for until in (5, 3, 1)] == [(1, 5)] * 3
    harness.send("delete", by=[BOB])
    harness.write_policy({}, to=SHARED)
    harness.send("create", "/", {"policyId": SHARED})
    assert [visible(harness, OWNER, BOB, until=until) for until in (7, 5, 2)] == [(1, 7)] * 3
    assert [visible(harness, BOB, until=until) for until in (7, 5)] == [(4, 6)] * 2


def test_the_messages_and_the_history_of_a_policy_require_all_of_it() -> None:
    harness = TwinHarness()
    harness.write_policy({"V": entry([VIEWER], {"policy:/": granting("READ"), "policy:/imports": revoking("READ")})})
    harness.send("delete", to=P)
    assert visible(harness, VIEWER, entity=P) is None
    assert visible(harness, OWNER, entity=P) == (1, 2)


# retrieves of the past


def past(harness: TwinHarness, revision: int, *subjects: str, **headers: Any) -> PastQuery | None:
    command = Command(T, "retrieve", "/", None, headers or {"at-historical-revision": revision})
    return needed_past(command, subjects, harness.lookup, harness.now)


def test_a_revision_of_an_earlier_incarnation_is_unknown_to_its_new_owner() -> None:
    harness = taken_over()
    for revision in (1, 3):
        with pytest.raises(TwinError) as refused:
            past(harness, revision, BOB)
        assert refused.value.fault.error == "things:thing.history.notfound"
        with pytest.raises(TwinError) as refused:
            past(harness, revision, OWNER)
        assert refused.value.fault.error == "things:thing.notfound", "as for a thing that stays deleted"
        assert past(harness, revision, OWNER, BOB) == PastQuery(T, revision, None)
    assert past(harness, 4, BOB) == PastQuery(T, 4, None)


def test_a_time_before_the_creation_is_unknown_and_others_see_what_the_policy_of_that_time_shows() -> None:
    harness = twin_harness(attributes={"a": 1, "b": 2})
    harness.write_policy({"V": entry([VIEWER], {"thing:/attributes/a": granting("READ")})})
    then = harness.snapshots[T]
    harness.send("delete")
    deleted = harness.snapshots[T]
    harness.write_policy(
        {"B": entry([BOB, VIEWER], {"thing:/": granting("READ", "WRITE"), "policy:/": granting("READ")})}
    )
    harness.send("create", "/", {"policyId": POLICY}, by=[BOB])
    command = Command(T, "retrieve", "/", None, {"at-historical-timestamp": "2030-01-15T07:00:00Z"})

    def shown(snapshot: Snapshot, *subjects: str) -> bytes | str | None:
        try:
            decision = decide(command, subjects, harness.lookup, harness.now, past=PastState(snapshot, b"{}"))
        except TwinError as refused:
            return refused.fault.error
        return decision.response.value

    for snapshot in (then, deleted):
        assert shown(snapshot, BOB) == "things:thing.history.notfound"
    assert shown(then, VIEWER) == b'{"thingId":"acme.plant:boiler-07","attributes":{"a":1}}'
    assert shown(deleted, VIEWER) == "things:thing.notfound"
