"""Permissions of requests: by the key that they carry, and the policy of their stream."""

from __future__ import annotations

from typing import Any

import pytest

from connectivity.sessions.streamr.permissions import (
    AuthorizedRequest,
    StreamPermission,
    authorize,
    forbidden,
    may_follow,
    unknown_key,
    unknown_stream,
)
from mappings.errors import Fault
from mappings.streamr import errors
from mappings.streamr.auth_keys import fingerprint
from mappings.streamr.options import StreamrOptions, read_streamr
from mappings.streamr.requests import Publish, Resend, SubscribeRequest
from mappings.streams.entry import All
from mappings.streams.stream_id import ConfiguredStream, PolicyStream, ThingStream
from tests.support.twin_world import (
    POLICY,
    THING,
    TwinWorld,
    a_world,
    entry,
    granting,
    policy,
    thing,
)

T, P = thing(THING), policy(POLICY)
PUMP, ANYBODY = "streamr:pump", "streamr:anonymous"
OTHER = "acme.plant:others"
PUBLISH = Publish("tank", "{}")
SUBSCRIBE = SubscribeRequest("tank", 2)
RESEND = Resend("tank", 2, "a", All())

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
    """A world where the holder of KEY has rights, and every subject may read `thing:/`."""
    world = a_world()
    everybody = {"thing:/": granting("READ")}
    world.write_policy({"PUMP": entry([PUMP], resources), "ANYBODY": entry([ANYBODY], everybody)})
    return world


def authorized(
    request: AuthorizedRequest, world: TwinWorld, options: StreamrOptions = OPTIONS
) -> StreamPermission | Fault:
    return authorize(request, options, SOURCE, world.world)


def requests(stream: str, key: str | None = KEY) -> tuple[Publish, SubscribeRequest, Resend]:
    return (
        Publish(stream, "{}", auth_key=key),
        SubscribeRequest(stream, 0, key),
        Resend(stream, 0, "a", All(), key),
    )


def test_a_permitted_request_returns_the_stream_and_the_permitted_subjects() -> None:
    world = a_keyed_world(**{"stream:/tank": granting("READ", "WRITE")})
    for request in requests("tank"):
        assert authorized(request, world) == StreamPermission(ConfiguredStream("tank"), 4, (*SOURCE, PUMP))


def test_case_s19_p10_r23_a_key_without_the_permission_is_refused_in_the_words_of_each_request() -> None:
    world = a_keyed_world(**{"stream:/other": granting("READ", "WRITE")})
    publish, subscribe, resend = (authorized(request, world) for request in requests("tank"))
    assert publish == errors.publish_forbidden("tank")
    assert subscribe == errors.not_authorized("tank", 0)
    assert resend == errors.resend_forbidden("tank", 0)


def test_case_s19_p12_r23_an_unknown_key_is_refused_even_if_requests_without_a_key_are_allowed() -> None:
    world = a_keyed_world()
    world.write_policy({"ALL": entry([ANYBODY, *SOURCE], {"stream:/": granting("READ", "WRITE")})})
    publish, subscribe, resend = (authorized(request, world) for request in requests("tank", WRONG_KEY))
    assert publish == errors.publish_unauthenticated("tank")
    assert subscribe == errors.not_authorized("tank", 0)
    assert resend == errors.resend_forbidden("tank", 0)


def test_case_s20_p11_a_missing_stream_is_reported_to_publishers_alone() -> None:
    world = a_keyed_world(**{"stream:/": granting("READ", "WRITE")})
    for stream, options in (("none", OPTIONS), ("tank", NOTHING), ("things/x", OPTIONS), ("policies/", OPTIONS)):
        publish, subscribe, resend = (authorized(request, world, options) for request in requests(stream, None))
        assert publish == errors.stream_not_found(stream)
        assert subscribe == errors.not_authorized(stream, 0)
        assert resend == errors.resend_forbidden(stream, 0)


def test_a_stream_without_its_policy_refuses_every_request() -> None:
    assert authorized(Publish("lost", "{}"), a_keyed_world()) == errors.publish_forbidden("lost")


def test_case_s21_a_request_without_a_key_has_the_subjects_of_the_public_and_of_the_source() -> None:
    world = a_keyed_world()
    world.write_policy({"A": entry([ANYBODY], {"stream:/tank": granting("READ")})})
    assert isinstance(authorized(SubscribeRequest("tank"), world), StreamPermission)
    assert authorized(Publish("tank", "{}"), world) == errors.publish_forbidden("tank")
    assert authorized(SubscribeRequest("tank", 0, KEY), world) == errors.not_authorized("tank", 0), (
        "who has a name is not anybody"
    )
    world.write_policy({"A": entry(SOURCE, {"stream:/tank": granting("READ")})})
    assert isinstance(authorized(SubscribeRequest("tank", 0, KEY), world), StreamPermission)


def test_case_p17_publishing_requires_no_read_permission() -> None:
    world = a_keyed_world(**{"stream:/tank": granting("WRITE")})
    publish, subscribe, _ = (authorized(request, world) for request in requests("tank"))
    assert isinstance(publish, StreamPermission)
    assert subscribe == errors.not_authorized("tank", 0)


def test_case_s16_an_invalid_partition_is_reported_only_with_read_permission() -> None:
    world = a_keyed_world(**{"stream:/tank": granting("READ")})
    assert isinstance(authorized(SubscribeRequest("tank", 3, KEY), world), StreamPermission)
    assert authorized(SubscribeRequest("tank", 4, KEY), world) == errors.invalid_partition("tank", 4)
    assert authorized(Resend("tank", 9, "a", All(), KEY), world) == errors.invalid_partition("tank", 9)
    assert authorized(SubscribeRequest("tank", 4), world) == errors.not_authorized("tank", 4)
    assert authorized(SubscribeRequest(f"things/{THING}", 1), world) == errors.invalid_partition(f"things/{THING}", 1)


def test_events_of_twins_need_no_list_of_streams() -> None:
    world = a_keyed_world(**{"policy:/": granting("READ")})
    anybody = (*SOURCE, ANYBODY)
    assert authorized(SubscribeRequest(f"things/{THING}"), world, NOTHING) == StreamPermission(
        ThingStream(T), 1, anybody
    )
    assert authorized(SubscribeRequest(f"policies/{POLICY}"), world) == errors.not_authorized(f"policies/{POLICY}", 0)
    assert authorized(Resend(f"policies/{POLICY}", 0, "a", All(), KEY), world) == StreamPermission(
        PolicyStream(P), 1, (*SOURCE, PUMP), newest=2
    )
    assert authorized(SubscribeRequest("things/acme.plant:none"), world) == errors.not_authorized(
        "things/acme.plant:none", 0
    )


def test_publishing_a_command_to_a_thing_stream_requires_no_stream_permission() -> None:
    """Also on a thing that is not there: the command may be the one that creates it."""
    world = a_keyed_world()
    for stream in (f"things/{THING}", "things/acme.plant:new"):
        assert isinstance(authorized(Publish(stream, "{}"), world), StreamPermission)
        assert authorized(Publish(stream, "{}", auth_key=WRONG_KEY), world) == errors.publish_unauthenticated(stream)


def test_case_x06_a_subscription_permission_is_checked_again_after_a_policy_change() -> None:
    world = a_keyed_world(**{"stream:/tank": granting("READ")})
    pump = (*SOURCE, PUMP)

    def may_still(*streams: str) -> list[bool]:
        return [may_follow(stream, OPTIONS, pump, world.world) for stream in streams]

    streams = ("tank", f"things/{THING}", "none", "things/x")
    assert may_still(*streams) == [True, False, False, False]
    world.write_policy({"PUMP": entry([PUMP], {"stream:/tank": granting("WRITE"), "thing:/": granting("READ")})})
    assert may_still(*streams) == [False, True, False, False]
    assert not may_follow("tank", NOTHING, pump, world.world)


def test_cases_p10_p11_p12_a_publish_error_names_the_missing_permission_stream_or_key() -> None:
    assert forbidden(PUBLISH).message == "You are not allowed to write to stream tank"
    assert unknown_stream(PUBLISH).message == "Stream tank not found."
    assert unknown_key(PUBLISH).status == 401
    assert unknown_key(PUBLISH).message == "Authentication failed while trying to publish to stream tank"


@pytest.mark.parametrize("reader", [SUBSCRIBE, RESEND])
def test_cases_s19_s20_r23_a_reader_is_not_notified_whether_there_is_a_stream(reader: AuthorizedRequest) -> None:
    assert forbidden(reader) == unknown_stream(reader) == unknown_key(reader)
    assert forbidden(reader).status == 403
    assert "stream tank and partition 2" in forbidden(reader).message
