"""Permissions of a stream, by its resource in the named policy; permissions to read twin events."""

from __future__ import annotations

from typing import Any

from connectivity.twins.access import concerning, may_read_events, may_use_stream
from mappings.streams.options import StreamDefinition
from tests.support.table import each_row
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
PUMP, ANYBODY = "streamr:pump", "streamr:anonymous"
OTHER = "acme.plant:others"
STREAMS = {"tank": StreamDefinition(4, P), "lost": StreamDefinition(1, policy(OTHER))}


def stream_harness(**entries: Any) -> TwinHarness:
    harness = TwinHarness()
    harness.write_policy(entries)
    return harness


def may(harness: TwinHarness, permission: str, stream: str, *subjects: str, by: str = POLICY) -> bool:
    return may_use_stream(stream, StreamDefinition(1, policy(by)), permission, subjects, harness.lookup)


def test_read_and_write_are_two_permissions_of_a_stream() -> None:
    harness = stream_harness(
        PUMP=entry([PUMP], {"stream:/tank-9": granting("WRITE")}),
        ANYBODY=entry([ANYBODY], {"stream:/tank-9": granting("READ")}),
    )
    asked = [(who, what) for who in (PUMP, ANYBODY, OWNER) for what in ("READ", "WRITE")]
    found = {question for question in asked if may(harness, question[1], "tank-9", question[0])}
    assert found == {(PUMP, "WRITE"), (ANYBODY, "READ")}
    assert may(harness, "READ", "tank-9", PUMP, ANYBODY)
    assert not may(harness, "READ", "tank-9")


@each_row(
    ("stream", "is_readable"),
    [
        ("site-4", True),
        ("site-4/pumps", True),
        ("site-4/pumps/north", True),
        ("site-4/secret", False),
        ("site-4/secret/key", False),
        ("site-40", False),
        ("site", False),
        ("SITE-4", False),
        ("other/site-4", False),
    ],
)
def test_a_resource_applies_to_the_streams_below_it(stream: str, is_readable: bool) -> None:
    """A revoke below does not apply above, where another stream is meant."""
    resources = {"stream:/site-4": granting("READ"), "stream:/site-4/secret": revoking("READ")}
    assert may(stream_harness(V=entry([VIEWER], resources)), "READ", stream, VIEWER) == is_readable


def test_all_streams_of_a_policy_are_meant_by_the_root_and_no_thing_is() -> None:
    harness = stream_harness(
        V=entry([VIEWER], {"stream:/": granting("READ")}), W=entry([PUMP], {"thing:/": granting("READ", "WRITE")})
    )
    assert may(harness, "READ", "tank-9", VIEWER)
    assert may(harness, "READ", "acme.plant:tank/9", VIEWER)
    assert not may(harness, "READ", "tank-9", PUMP)
    assert not may(harness, "READ", "tank-9", OWNER), "a right on things, policies and messages is none on streams"


def test_a_missing_policy_grants_no_permission() -> None:
    harness = stream_harness(V=entry([VIEWER], {"stream:/": granting("READ")}))
    assert not may(harness, "READ", "tank-9", VIEWER, by=OTHER)
    harness.send("delete", to=P)
    assert not may(harness, "READ", "tank-9", VIEWER)


def test_a_policy_entry_for_namespaces_applies_to_ids_that_start_with_one_of_them() -> None:
    of_plants = {**entry([VIEWER], {"stream:/": granting("READ")}), "namespaces": ["acme.plant", "acme.plant.*"]}
    harness = stream_harness(V=of_plants)
    streams = (
        "acme.plant:tank",
        "acme.plant.north:tank",
        "acme.plants:tank",
        "acme.plant",
        "acme.plant/x:tank",
        ":tank",
    )
    assert [may(harness, "READ", stream, VIEWER) for stream in streams] == [True, True, False, False, False, False]


def test_a_change_of_a_policy_or_of_an_imported_policy_applies_at_once() -> None:
    harness = stream_harness()
    harness.write_policy({"ROLES": entry([PUMP], {"stream:/tank-9": granting("READ")})}, to=OTHER)
    harness.send("modify", f"/imports/{OTHER}", {}, to=P)
    assert may(harness, "READ", "tank-9", PUMP)
    harness.send("modify", "/entries/ROLES/resources", {"stream:/tank-8": granting("READ")}, to=policy(OTHER))
    assert not may(harness, "READ", "tank-9", PUMP)


def test_a_subject_that_has_expired_may_no_more() -> None:
    viewer = entry([VIEWER], {"stream:/": granting("READ")})
    viewer["subjects"][VIEWER]["expiry"] = "2030-01-15T09:00:00Z"
    harness = stream_harness(V=viewer)
    assert may(harness, "READ", "tank-9", VIEWER)
    harness.now = "2030-01-15T09:00:00.000000Z"
    assert not may(harness, "READ", "tank-9", VIEWER)


# --- events of things and policies ----------------------------------------------------------------------------------------


def test_events_of_a_thing_require_read_permission_on_the_whole_thing() -> None:
    harness = twin_harness()
    assert may_read_events(T, [OWNER], harness.lookup)
    assert not may_read_events(T, [VIEWER], harness.lookup)
    harness.write_policy({"V": entry([VIEWER], {"thing:/": granting("READ")})})
    assert may_read_events(T, [VIEWER], harness.lookup)
    harness.write_policy({"V": entry([VIEWER], {"thing:/": granting("READ"), "thing:/attributes/a": revoking("READ")})})
    assert not may_read_events(T, [VIEWER], harness.lookup)


def test_events_of_a_policy_require_read_permission_on_the_whole_policy() -> None:
    """Unlike a history in the Ditto protocol, which requires READ on any part."""
    harness = stream_harness(V=entry([VIEWER], {"policy:/entries/V": granting("READ")}))
    assert may_read_events(P, [OWNER], harness.lookup)
    assert not may_read_events(P, [VIEWER], harness.lookup)


def test_events_of_a_deleted_thing_follow_its_last_policy_and_unknown_things_are_unreadable() -> None:
    harness = twin_harness()
    assert not may_read_events(thing("acme.plant:none"), [OWNER], harness.lookup)
    harness.send("delete")
    assert may_read_events(T, [OWNER], harness.lookup)
    harness.send("delete", to=P)
    assert may_read_events(T, [OWNER], harness.lookup)
    assert may_read_events(P, [OWNER], harness.lookup)
    assert not may_read_events(T, [VIEWER], harness.lookup)
    assert not may_read_events(P, [VIEWER], harness.lookup)


def test_a_thing_under_another_policy_is_checked_with_that_one() -> None:
    harness = twin_harness()
    harness.write_policy({"V": entry([VIEWER], {"thing:/": granting("READ")})}, to=OTHER)
    harness.send("modify", "/policyId", OTHER)
    assert may_read_events(T, [VIEWER], harness.lookup)


def test_read_access_to_a_stream_depends_on_its_policy_and_on_imported_policies() -> None:
    harness = stream_harness()
    assert concerning("tank", STREAMS, harness.lookup).entities == {P}
    assert concerning("lost", STREAMS, harness.lookup).entities == {policy(OTHER)}, "it may be made at any time"
    harness.write_policy({}, to=OTHER)
    harness.send("modify", f"/imports/{OTHER}", {}, to=P)
    for _ in ("there", "deleted, and it may be created again"):
        assert concerning("tank", STREAMS, harness.lookup).entities == {P, policy(OTHER)}
        harness.snapshots.pop(policy(OTHER), None)
    assert concerning("none", STREAMS, harness.lookup).entities == set()


def test_read_access_to_a_stream_ends_with_a_subject_of_an_entry_for_its_namespace() -> None:
    viewer = {**entry([VIEWER], {"stream:/": granting("READ")}), "namespaces": ["acme.north"]}
    viewer["subjects"][VIEWER]["expiry"] = "2030-01-15T09:00:00Z"
    harness = stream_harness(V=viewer)
    streams = {stream: StreamDefinition(1, P) for stream in ("acme.north:tank", "acme.plant:tank")}
    expiries = [concerning(stream, streams, harness.lookup).expires for stream in streams]
    assert expiries == ["2030-01-15T09:00:00.000000Z", None]


def test_read_access_to_events_depends_on_the_thing_and_on_its_current_policy() -> None:
    harness = twin_harness()
    assert concerning(f"things/{THING}", {}, harness.lookup).entities == {T, P}
    harness.write_policy({}, to=OTHER)
    harness.send("modify", "/policyId", OTHER)
    assert concerning(f"things/{THING}", {}, harness.lookup).entities == {T, policy(OTHER)}
    assert concerning(f"policies/{POLICY}", {}, harness.lookup).entities == {P}
    assert concerning("things/acme.plant:none", {}, harness.lookup).entities == {thing("acme.plant:none")}
