"""Who may use a stream: by the resource that its id is, in the policy that is named for it; who may read twins' events."""

from __future__ import annotations

from typing import Any

from connectivity.twins.access import (
    Judged,
    StreamPermission,
    concerning,
    judge,
    may_follow,
    may_read_events,
    may_use_stream,
)
from mappings.errors import Fault
from mappings.streamr import errors
from mappings.streamr.access import fingerprint
from mappings.streamr.options import StreamrOptions, read_streamr
from mappings.streamr.requests import All, Publish, Resend, SubscribeRequest
from mappings.streamr.streams import OwnStream, PolicyStream, ThingStream
from tests.support.table import each_row
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
PUMP, ANYBODY = "streamr:pump", "streamr:anonymous"
OTHER = "acme.plant:others"


def a_stream_world(**entries: Any) -> TwinWorld:
    world = TwinWorld()
    world.write_policy(entries)
    return world


def may(world: TwinWorld, permission: str, stream: str, *subjects: str, by: str = POLICY) -> bool:
    return may_use_stream(stream, by, permission, subjects, world.world)


def test_read_and_write_are_two_permissions_of_a_stream() -> None:
    world = a_stream_world(
        PUMP=entry([PUMP], {"stream:/tank-9": granting("WRITE")}),
        ANYBODY=entry([ANYBODY], {"stream:/tank-9": granting("READ")}),
    )
    asked = [(who, what) for who in (PUMP, ANYBODY, OWNER) for what in ("READ", "WRITE")]
    found = {question for question in asked if may(world, question[1], "tank-9", question[0])}
    assert found == {(PUMP, "WRITE"), (ANYBODY, "READ")}
    assert may(world, "READ", "tank-9", PUMP, ANYBODY)
    assert not may(world, "READ", "tank-9")


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
def test_a_resource_speaks_for_the_streams_below_it(stream: str, is_readable: bool) -> None:
    """What is revoked below takes nothing away above: another stream is meant there."""
    resources = {"stream:/site-4": granting("READ"), "stream:/site-4/secret": revoking("READ")}
    assert may(a_stream_world(V=entry([VIEWER], resources)), "READ", stream, VIEWER) == is_readable


def test_all_streams_of_a_policy_are_meant_by_the_root_and_no_thing_is() -> None:
    world = a_stream_world(
        V=entry([VIEWER], {"stream:/": granting("READ")}), W=entry([PUMP], {"thing:/": granting("READ", "WRITE")})
    )
    assert may(world, "READ", "tank-9", VIEWER)
    assert may(world, "READ", "acme.plant:tank/9", VIEWER)
    assert not may(world, "READ", "tank-9", PUMP)
    assert not may(world, "READ", "tank-9", OWNER), "a right on things, policies and messages is none on streams"


def test_a_policy_that_is_not_there_lets_nobody_do_anything() -> None:
    world = a_stream_world(V=entry([VIEWER], {"stream:/": granting("READ")}))
    assert not may(world, "READ", "tank-9", VIEWER, by=OTHER)
    world.send("delete", to=P)
    assert not may(world, "READ", "tank-9", VIEWER)


def test_a_policy_entry_for_namespaces_counts_for_ids_that_begin_with_one_of_them() -> None:
    of_plants = {**entry([VIEWER], {"stream:/": granting("READ")}), "namespaces": ["acme.plant", "acme.plant.*"]}
    world = a_stream_world(V=of_plants)
    streams = (
        "acme.plant:tank",
        "acme.plant.north:tank",
        "acme.plants:tank",
        "acme.plant",
        "acme.plant/x:tank",
        ":tank",
    )
    assert [may(world, "READ", stream, VIEWER) for stream in streams] == [True, True, False, False, False, False]


def test_a_change_of_the_policy_or_of_one_that_it_imports_counts_at_once() -> None:
    world = a_stream_world()
    world.write_policy({"ROLES": entry([PUMP], {"stream:/tank-9": granting("READ")})}, to=OTHER)
    world.send("modify", f"/imports/{OTHER}", {}, to=P)
    assert may(world, "READ", "tank-9", PUMP)
    world.send("modify", "/entries/ROLES/resources", {"stream:/tank-8": granting("READ")}, to=policy(OTHER))
    assert not may(world, "READ", "tank-9", PUMP)


def test_a_subject_that_has_expired_may_no_more() -> None:
    viewer = entry([VIEWER], {"stream:/": granting("READ")})
    viewer["subjects"][VIEWER]["expiry"] = "2030-01-15T09:00:00Z"
    world = a_stream_world(V=viewer)
    assert may(world, "READ", "tank-9", VIEWER)
    world.now = "2030-01-15T09:00:00.000000Z"
    assert not may(world, "READ", "tank-9", VIEWER)


# --- events of things and policies ----------------------------------------------------------------------------------------


def test_events_of_a_thing_are_for_those_who_may_read_all_of_it() -> None:
    world = a_world()
    assert may_read_events(T, [OWNER], world.world)
    assert not may_read_events(T, [VIEWER], world.world)
    world.write_policy({"V": entry([VIEWER], {"thing:/": granting("READ")})})
    assert may_read_events(T, [VIEWER], world.world)
    world.write_policy({"V": entry([VIEWER], {"thing:/": granting("READ"), "thing:/attributes/a": revoking("READ")})})
    assert not may_read_events(T, [VIEWER], world.world)


def test_events_of_a_policy_are_for_those_who_may_read_all_of_it() -> None:
    """Unlike a history in the Ditto protocol, which asks for READ on any part."""
    world = a_stream_world(V=entry([VIEWER], {"policy:/entries/V": granting("READ")}))
    assert may_read_events(P, [OWNER], world.world)
    assert not may_read_events(P, [VIEWER], world.world)


def test_what_never_was_is_read_by_nobody_and_what_is_deleted_by_its_last_policy() -> None:
    world = a_world()
    assert not may_read_events(thing("acme.plant:none"), [OWNER], world.world)
    world.send("delete")
    assert may_read_events(T, [OWNER], world.world)
    world.send("delete", to=P)
    assert not may_read_events(T, [OWNER], world.world)
    assert not may_read_events(P, [OWNER], world.world)


def test_a_thing_under_another_policy_is_judged_by_that_one() -> None:
    world = a_world()
    world.write_policy({"V": entry([VIEWER], {"thing:/": granting("READ")})}, to=OTHER)
    world.send("modify", "/policyId", OTHER)
    assert may_read_events(T, [VIEWER], world.world)


# --- requests -------------------------------------------------------------------------------------------------------------

KEY, WRONG_KEY = "K", "nobody was given this one"
SOURCE = ("edge:broker",)
OPTIONS = read_streamr(
    {
        "streams": {"tank": {"policyId": POLICY, "partitions": 4}, "lost": {"policyId": OTHER}},
        "authKeys": {"pump": fingerprint(KEY)},
    }
)
NOTHING = StreamrOptions()


def a_keyed_world(**resources: Any) -> TwinWorld:
    """What the holder of KEY may; everybody may read `thing:/`, with no key as well."""
    world = a_world()
    everybody = {"thing:/": granting("READ")}
    world.write_policy({"PUMP": entry([PUMP], resources), "ANYBODY": entry([ANYBODY], everybody)})
    return world


def judged(request: Judged, world: TwinWorld, options: StreamrOptions = OPTIONS) -> StreamPermission | Fault:
    return judge(request, options, SOURCE, world.world)


def requests(stream: str, key: str | None = KEY) -> tuple[Publish, SubscribeRequest, Resend]:
    return (
        Publish(stream, "{}", auth_key=key),
        SubscribeRequest(stream, 0, key),
        Resend(stream, 0, "a", All(), key),
    )


def test_what_is_allowed_is_told_with_the_subjects_it_is_allowed_to() -> None:
    world = a_keyed_world(**{"stream:/tank": granting("READ", "WRITE")})
    for request in requests("tank"):
        assert judged(request, world) == StreamPermission(OwnStream("tank"), 4, (*SOURCE, PUMP))


def test_case_s19_p10_r23_a_key_without_the_permission_is_refused_in_the_words_of_each_request() -> None:
    world = a_keyed_world(**{"stream:/other": granting("READ", "WRITE")})
    publish, subscribe, resend = (judged(request, world) for request in requests("tank"))
    assert publish == errors.publish_forbidden("tank")
    assert subscribe == errors.not_authorized("tank", 0)
    assert resend == errors.resend_forbidden("tank", 0)


def test_case_s19_p12_r23_an_unknown_key_is_refused_whoever_may_do_it_without_one() -> None:
    world = a_keyed_world()
    world.write_policy({"ALL": entry([ANYBODY, *SOURCE], {"stream:/": granting("READ", "WRITE")})})
    publish, subscribe, resend = (judged(request, world) for request in requests("tank", WRONG_KEY))
    assert publish == errors.publish_unauthenticated("tank")
    assert subscribe == errors.not_authorized("tank", 0)
    assert resend == errors.resend_forbidden("tank", 0)


def test_case_s20_p11_a_stream_that_is_not_there_is_told_to_publishers_alone() -> None:
    world = a_keyed_world(**{"stream:/": granting("READ", "WRITE")})
    for stream, options in (("none", OPTIONS), ("tank", NOTHING), ("things/x", OPTIONS), ("policies/", OPTIONS)):
        publish, subscribe, resend = (judged(request, world, options) for request in requests(stream, None))
        assert publish == errors.stream_not_found(stream)
        assert subscribe == errors.not_authorized(stream, 0)
        assert resend == errors.resend_forbidden(stream, 0)


def test_a_stream_whose_policy_is_not_there_is_for_nobody() -> None:
    assert judged(Publish("lost", "{}"), a_keyed_world()) == errors.publish_forbidden("lost")


def test_case_s21_without_a_key_one_is_anybody_and_what_the_source_is() -> None:
    world = a_keyed_world()
    world.write_policy({"A": entry([ANYBODY], {"stream:/tank": granting("READ")})})
    assert isinstance(judged(SubscribeRequest("tank"), world), StreamPermission)
    assert judged(Publish("tank", "{}"), world) == errors.publish_forbidden("tank")
    assert judged(SubscribeRequest("tank", 0, KEY), world) == errors.not_authorized("tank", 0), (
        "who has a name is not anybody"
    )
    world.write_policy({"A": entry(SOURCE, {"stream:/tank": granting("READ")})})
    assert isinstance(judged(SubscribeRequest("tank", 0, KEY), world), StreamPermission)


def test_case_p17_who_may_write_need_not_read() -> None:
    world = a_keyed_world(**{"stream:/tank": granting("WRITE")})
    publish, subscribe, _ = (judged(request, world) for request in requests("tank"))
    assert isinstance(publish, StreamPermission)
    assert subscribe == errors.not_authorized("tank", 0)


def test_case_s16_partitions_are_told_to_those_who_may_read() -> None:
    world = a_keyed_world(**{"stream:/tank": granting("READ")})
    assert isinstance(judged(SubscribeRequest("tank", 3, KEY), world), StreamPermission)
    assert judged(SubscribeRequest("tank", 4, KEY), world) == errors.invalid_partition("tank", 4)
    assert judged(Resend("tank", 9, "a", All(), KEY), world) == errors.invalid_partition("tank", 9)
    assert judged(SubscribeRequest("tank", 4), world) == errors.not_authorized("tank", 4)
    assert judged(SubscribeRequest(f"things/{THING}", 1), world) == errors.invalid_partition(f"things/{THING}", 1)


def test_events_of_twins_need_no_list_of_streams() -> None:
    world = a_keyed_world(**{"policy:/": granting("READ")})
    anybody = (*SOURCE, ANYBODY)
    assert judged(SubscribeRequest(f"things/{THING}"), world, NOTHING) == StreamPermission(ThingStream(T), 1, anybody)
    assert judged(SubscribeRequest(f"policies/{POLICY}"), world) == errors.not_authorized(f"policies/{POLICY}", 0)
    assert judged(Resend(f"policies/{POLICY}", 0, "a", All(), KEY), world) == StreamPermission(
        PolicyStream(P), 1, (*SOURCE, PUMP)
    )
    assert judged(SubscribeRequest("things/acme.plant:none"), world) == errors.not_authorized(
        "things/acme.plant:none", 0
    )


def test_a_command_is_left_to_those_who_decide_commands() -> None:
    """Also on a thing that is not there: the command may be the one that creates it."""
    world = a_keyed_world()
    for stream in (f"things/{THING}", "things/acme.plant:new"):
        assert isinstance(judged(Publish(stream, "{}"), world), StreamPermission)
        assert judged(Publish(stream, "{}", auth_key=WRONG_KEY), world) == errors.publish_unauthenticated(stream)


def test_case_x06_what_was_allowed_once_can_be_asked_again() -> None:
    world = a_keyed_world(**{"stream:/tank": granting("READ")})
    pump = frozenset({*SOURCE, PUMP})

    def may_still(*streams: str) -> list[bool]:
        return [may_follow(stream, OPTIONS, pump, world.world) for stream in streams]

    streams = ("tank", f"things/{THING}", "none", "things/x")
    assert may_still(*streams) == [True, False, False, False]
    world.write_policy({"PUMP": entry([PUMP], {"stream:/tank": granting("WRITE"), "thing:/": granting("READ")})})
    assert may_still(*streams) == [False, True, False, False]
    assert not may_follow("tank", NOTHING, pump, world.world)


def test_who_may_read_a_stream_depends_on_its_policy_and_on_those_that_it_imports() -> None:
    world = a_stream_world()
    assert concerning("tank", OPTIONS, world.world) == {P}
    assert concerning("lost", OPTIONS, world.world) == {policy(OTHER)}, "it may be made at any time"
    world.write_policy({}, to=OTHER)
    world.send("modify", f"/imports/{OTHER}", {}, to=P)
    for _ in ("there", "deleted, and it may be made anew"):
        assert concerning("tank", OPTIONS, world.world) == {P, policy(OTHER)}
        world.snapshots.pop(policy(OTHER), None)
    assert concerning("none", OPTIONS, world.world) == set()


def test_who_may_read_events_depends_on_the_thing_and_on_the_policy_that_it_has() -> None:
    world = a_world()
    assert concerning(f"things/{THING}", NOTHING, world.world) == {T, P}
    world.write_policy({}, to=OTHER)
    world.send("modify", "/policyId", OTHER)
    assert concerning(f"things/{THING}", NOTHING, world.world) == {T, policy(OTHER)}
    assert concerning(f"policies/{POLICY}", NOTHING, world.world) == {P}
    assert concerning("things/acme.plant:none", NOTHING, world.world) == {thing("acme.plant:none")}
