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
from tests.support.twin_harness import (
    POLICY,
    THING,
    TwinHarness,
    entry,
    granting,
    policy,
    thing,
    twin_harness,
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


def keyed_harness(**resources: Any) -> TwinHarness:
    """A harness where the holder of KEY has rights, and every subject may read `thing:/`."""
    harness = twin_harness()
    everybody = {"thing:/": granting("READ")}
    harness.write_policy({"PUMP": entry([PUMP], resources), "ANYBODY": entry([ANYBODY], everybody)})
    return harness


def authorized(
    request: AuthorizedRequest, harness: TwinHarness, options: StreamrOptions = OPTIONS
) -> StreamPermission | Fault:
    return authorize(request, options, SOURCE, harness.lookup)


def requests(stream: str, key: str | None = KEY) -> tuple[Publish, SubscribeRequest, Resend]:
    return (
        Publish(stream, "{}", auth_key=key),
        SubscribeRequest(stream, 0, key),
        Resend(stream, 0, "a", All(), key),
    )


def test_a_permitted_request_returns_the_stream_and_the_permitted_subjects() -> None:
    harness = keyed_harness(**{"stream:/tank": granting("READ", "WRITE")})
    for request in requests("tank"):
        assert authorized(request, harness) == StreamPermission(ConfiguredStream("tank"), 4, (*SOURCE, PUMP))


def test_case_s19_p10_r23_a_key_without_the_permission_is_refused_in_the_format_of_each_request() -> None:
    harness = keyed_harness(**{"stream:/other": granting("READ", "WRITE")})
    publish, subscribe, resend = (authorized(request, harness) for request in requests("tank"))
    assert publish == errors.publish_forbidden("tank")
    assert subscribe == errors.not_authorized("tank", 0)
    assert resend == errors.resend_forbidden("tank", 0)


def test_case_s19_p12_r23_an_unknown_key_is_refused_even_if_requests_without_a_key_are_allowed() -> None:
    harness = keyed_harness()
    harness.write_policy({"ALL": entry([ANYBODY, *SOURCE], {"stream:/": granting("READ", "WRITE")})})
    publish, subscribe, resend = (authorized(request, harness) for request in requests("tank", WRONG_KEY))
    assert publish == errors.publish_unauthenticated("tank")
    assert subscribe == errors.not_authorized("tank", 0)
    assert resend == errors.resend_forbidden("tank", 0)


def test_case_s20_p11_a_missing_stream_is_reported_to_publishers_alone() -> None:
    harness = keyed_harness(**{"stream:/": granting("READ", "WRITE")})
    for stream, options in (("none", OPTIONS), ("tank", NOTHING), ("things/x", OPTIONS), ("policies/", OPTIONS)):
        publish, subscribe, resend = (authorized(request, harness, options) for request in requests(stream, None))
        assert publish == errors.stream_not_found(stream)
        assert subscribe == errors.not_authorized(stream, 0)
        assert resend == errors.resend_forbidden(stream, 0)


def test_a_stream_without_its_policy_refuses_every_request() -> None:
    assert authorized(Publish("lost", "{}"), keyed_harness()) == errors.publish_forbidden("lost")


def test_case_s21_a_request_without_a_key_has_the_subjects_of_the_public_and_of_the_source() -> None:
    harness = keyed_harness()
    harness.write_policy({"A": entry([ANYBODY], {"stream:/tank": granting("READ")})})
    assert isinstance(authorized(SubscribeRequest("tank"), harness), StreamPermission)
    assert authorized(Publish("tank", "{}"), harness) == errors.publish_forbidden("tank")
    assert authorized(SubscribeRequest("tank", 0, KEY), harness) == errors.not_authorized("tank", 0), (
        "who has a name is not anybody"
    )
    harness.write_policy({"A": entry(SOURCE, {"stream:/tank": granting("READ")})})
    assert isinstance(authorized(SubscribeRequest("tank", 0, KEY), harness), StreamPermission)


def test_case_p17_publishing_requires_no_read_permission() -> None:
    harness = keyed_harness(**{"stream:/tank": granting("WRITE")})
    publish, subscribe, _ = (authorized(request, harness) for request in requests("tank"))
    assert isinstance(publish, StreamPermission)
    assert subscribe == errors.not_authorized("tank", 0)


def test_case_s16_an_invalid_partition_is_reported_only_with_read_permission() -> None:
    harness = keyed_harness(**{"stream:/tank": granting("READ")})
    assert isinstance(authorized(SubscribeRequest("tank", 3, KEY), harness), StreamPermission)
    assert authorized(SubscribeRequest("tank", 4, KEY), harness) == errors.invalid_partition("tank", 4)
    assert authorized(Resend("tank", 9, "a", All(), KEY), harness) == errors.invalid_partition("tank", 9)
    assert authorized(SubscribeRequest("tank", 4), harness) == errors.not_authorized("tank", 4)
    assert authorized(SubscribeRequest(f"things/{THING}", 1), harness) == errors.invalid_partition(f"things/{THING}", 1)


def test_events_of_twins_need_no_list_of_streams() -> None:
    harness = keyed_harness(**{"policy:/": granting("READ")})
    anybody = (*SOURCE, ANYBODY)
    assert authorized(SubscribeRequest(f"things/{THING}"), harness, NOTHING) == StreamPermission(
        ThingStream(T), 1, anybody
    )
    assert authorized(SubscribeRequest(f"policies/{POLICY}"), harness) == errors.not_authorized(f"policies/{POLICY}", 0)
    assert authorized(Resend(f"policies/{POLICY}", 0, "a", All(), KEY), harness) == StreamPermission(
        PolicyStream(P), 1, (*SOURCE, PUMP), newest=2
    )
    assert authorized(SubscribeRequest("things/acme.plant:none"), harness) == errors.not_authorized(
        "things/acme.plant:none", 0
    )


def test_publishing_a_command_to_a_thing_stream_requires_no_stream_permission() -> None:
    """Also on a thing that is not there: the command may be the one that creates it."""
    harness = keyed_harness()
    for stream in (f"things/{THING}", "things/acme.plant:new"):
        assert isinstance(authorized(Publish(stream, "{}"), harness), StreamPermission)
        assert authorized(Publish(stream, "{}", auth_key=WRONG_KEY), harness) == errors.publish_unauthenticated(stream)


def test_case_x06_a_subscription_permission_is_checked_again_after_a_policy_change() -> None:
    harness = keyed_harness(**{"stream:/tank": granting("READ")})
    pump = (*SOURCE, PUMP)

    def may_still(*streams: str) -> list[bool]:
        return [may_follow(stream, OPTIONS, pump, harness.lookup) for stream in streams]

    streams = ("tank", f"things/{THING}", "none", "things/x")
    assert may_still(*streams) == [True, False, False, False]
    harness.write_policy({"PUMP": entry([PUMP], {"stream:/tank": granting("WRITE"), "thing:/": granting("READ")})})
    assert may_still(*streams) == [False, True, False, False]
    assert not may_follow("tank", NOTHING, pump, harness.lookup)


def test_cases_p10_p11_p12_a_publish_error_names_the_missing_permission_stream_or_key() -> None:
    assert forbidden(PUBLISH).message == "You are not allowed to write to stream tank"
    assert unknown_stream(PUBLISH).message == "Stream tank not found."
    assert unknown_key(PUBLISH).status == 401
    assert unknown_key(PUBLISH).message == "Authentication failed while trying to publish to stream tank"


@pytest.mark.parametrize("reader", [SUBSCRIBE, RESEND])
def test_cases_s19_s20_r23_a_reader_does_not_learn_whether_a_stream_exists(reader: AuthorizedRequest) -> None:
    assert forbidden(reader) == unknown_stream(reader) == unknown_key(reader)
    assert forbidden(reader).status == 403
    assert "stream tank and partition 2" in forbidden(reader).message
