"""Permissions to stream a history, over the life of an entity."""

from __future__ import annotations

from typing import Any

import pytest

from connectivity.twins.access import may_stream
from mappings.errors import Fault
from mappings.ids import EntityId
from spark_store.records import Snapshot
from tests.support.twin_harness import (
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


def code(harness: TwinHarness, entity: EntityId, *subjects: str) -> str | None:
    fault = may_stream(entity, subjects, harness.lookup)
    return fault.error if fault is not None else None


def test_an_unknown_thing_and_an_unreadable_thing_return_the_same_error() -> None:
    harness = twin_harness()
    hidden = may_stream(T, [VIEWER], harness.lookup)
    assert hidden == may_stream(T, [VIEWER], TwinHarness().lookup)
    assert hidden == Fault(
        404,
        "things:thing.notfound",
        f"The Thing with ID '{THING}' could not be found or requester had insufficient permissions to access it.",
        "Check if the ID of your requested Thing was correct and you have sufficient permissions.",
    )


def test_case_95_a_thing_needs_full_read() -> None:
    harness = twin_harness()
    assert code(harness, T, OWNER) is None
    harness.write_policy(
        {"VIEW": entry([VIEWER], {"thing:/": granting("READ"), "thing:/attributes/a": revoking("READ")})}
    )
    assert code(harness, T, VIEWER) == "things:thing.notfound"


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
    harness = TwinHarness()
    harness.write_policy({"VIEW": entry([VIEWER], resources)})
    assert code(harness, P, VIEWER) == (None if is_readable else "policies:policy.notfound")


def test_a_deleted_thing_is_checked_with_its_last_policy() -> None:
    harness = twin_harness()
    harness.send("delete")
    assert code(harness, T, OWNER) is None
    assert code(harness, T, VIEWER) == "things:thing.notfound"
    harness.send("delete", to=P)
    assert code(harness, T, OWNER) is None


def test_a_deleted_policy_determines_who_can_see_it() -> None:
    harness = TwinHarness()
    harness.write_policy({})
    harness.send("delete", to=P)
    assert code(harness, P, OWNER) is None
    assert code(harness, P, VIEWER) == "policies:policy.notfound"


def test_a_thing_whose_policy_was_erased_is_not_found() -> None:
    harness = twin_harness()
    harness.snapshots[P] = Snapshot(P, 1, harness.now, harness.now, None, None)
    assert code(harness, P, OWNER) == "policies:policy.notfound"
    assert code(harness, T, OWNER) == "things:thing.notfound"
