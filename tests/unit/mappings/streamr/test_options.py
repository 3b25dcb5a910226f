"""Options of a Streamr mapping: their values, and the path that every error names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mappings.ids import EntityId, EntityType
from mappings.options import InvalidMapperOptions
from mappings.placeholders.address import AddressPattern
from mappings.streamr.auth_keys import fingerprint
from mappings.streamr.frames import ErrorPayload, FrameStyle
from mappings.streamr.options import OPTIONS, StreamrOptions, read_streamr
from mappings.streams.options import StreamDefinition
from mappings.streams.stream_id import KeyHash
from tests.support.table import each_row

TANKS = EntityId(EntityType.POLICY, "acme.site", "tanks")


def test_without_options_there_are_no_streams() -> None:
    assert read_streamr({}) == StreamrOptions()
    assert StreamrOptions().idle_timeout == 3600


def test_every_option_is_read() -> None:
    written = {
        "streams": {
            "tank": {"partitions": 4, "policyId": "acme.site:tanks"},
            "site/tank": {"policyId": "acme.site:tanks"},
        },
        "authKeys": {"pump": fingerprint("K").upper()},
        "replyAddressPattern": "streamr/*/res",
        "sessionIdleTimeout": "30m",
        "sessionCatchUpMax": 0,
        "errorPayload": "json-string",
        "hash": "md5",
        "acceptNonJson": True,
        "subIdFiller": None,
    }
    assert read_streamr(written) == StreamrOptions(
        streams={"tank": StreamDefinition(4, TANKS), "site/tank": StreamDefinition(1, TANKS)},
        keys={"pump": fingerprint("K")},
        reply_addresses=AddressPattern("streamr/*/res"),
        idle_timeout=1800,
        max_catch_up=0,
        style=FrameStyle(filler=None, errors=ErrorPayload.JSON_STRING),
        hash=KeyHash.MD5,
        accept_non_json=True,
    )


@each_row("option", OPTIONS, ids=lambda option: option.name)
def test_an_option_reports_about_itself_with_an_example_that_works(option: Any) -> None:
    assert option.description.endswith(".")
    assert read_streamr({option.name: option.example})


@pytest.mark.parametrize(("written", "seconds"), [(90, 90), ("90s", 90), ("2m", 120), ("1h", 3600), ("7d", 604_800)])
def test_the_idle_time_is_written_with_a_unit_or_without(written: object, seconds: float) -> None:
    assert read_streamr({"sessionIdleTimeout": written}).idle_timeout == seconds


POLICY = {"policyId": "acme.site:tanks"}


def invalid_options(name: str, *values: Any) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Return options with an invalid member, each with the path of the error."""
    return (({name: value}, (name,)) for value in values)


@each_row(
    ("written", "place"),
    [
        ({"stream": {}}, ("stream",)),
        ({"streams": []}, ("streams",)),
        ({"streams": {"": POLICY}}, ("streams", "")),
        ({"streams": {"things/acme:lamp": POLICY}}, ("streams", "things/acme:lamp")),
        ({"streams": {"policies/x": POLICY}}, ("streams", "policies/x")),
        ({"streams": {"a//b": POLICY}}, ("streams", "a//b")),
        ({"streams": {"a/": POLICY}}, ("streams", "a/")),
        ({"streams": {"a\u0000": POLICY}}, ("streams", "a\u0000")),
        ({"streams": {"é" * 128: POLICY}}, ("streams", "é" * 128)),
        ({"streams": {"tank": 5}}, ("streams", "tank")),
        ({"streams": {"tank": {}}}, ("streams", "tank", "policyId")),
        ({"streams": {"tank": {"policyId": "tanks"}}}, ("streams", "tank", "policyId")),
        ({"streams": {"tank": {"policyId": 5}}}, ("streams", "tank", "policyId")),
        ({"streams": {"tank": {**POLICY, "partitions": 0}}}, ("streams", "tank", "partitions")),
        ({"streams": {"tank": {**POLICY, "partitions": 257}}}, ("streams", "tank", "partitions")),
        ({"streams": {"tank": {**POLICY, "partitions": True}}}, ("streams", "tank", "partitions")),
        ({"streams": {"tank": {**POLICY, "partition": 2}}}, ("streams", "tank", "partition")),
        ({"authKeys": []}, ("authKeys",)),
        ({"authKeys": {"anonymous": fingerprint("K")}}, ("authKeys", "anonymous")),
        ({"authKeys": {"a b": fingerprint("K")}}, ("authKeys", "a b")),
        ({"authKeys": {"pump": "secret"}}, ("authKeys", "pump")),
        ({"authKeys": {"pump": 5}}, ("authKeys", "pump")),
        ({"replyAddressPattern": ""}, ("replyAddressPattern",)),
        ({"replyAddressPattern": "**/a"}, ("replyAddressPattern",)),
        *invalid_options("sessionIdleTimeout", 0, -1, True, "1y", "0s", "", 1.5),
        *invalid_options("sessionCatchUpMax", -1, True, "9", 100_001, 1.5),
        *invalid_options("errorPayload", "text", 5, []),
        *invalid_options("hash", "murmur2", True, {}),
        *invalid_options("acceptNonJson", "yes", 1, []),
        *invalid_options("subIdFiller", "null", 0, False),
    ],
)
def test_a_wrong_option_is_reported_with_its_place(written: dict[str, Any], place: tuple[str, ...]) -> None:
    with pytest.raises(InvalidMapperOptions) as refused:
        read_streamr(written)
    assert [problem.steps for problem in refused.value.problems] == [place]


def test_every_problem_is_reported_at_once_and_no_key_with_it() -> None:
    with pytest.raises(InvalidMapperOptions) as refused:
        read_streamr({"streams": {"tank": {"partitions": 0}}, "authKeys": {"pump": "secret"}, "hash": "x"})
    assert [problem.steps for problem in refused.value.problems] == [
        ("streams", "tank", "partitions"),
        ("streams", "tank", "policyId"),
        ("authKeys", "pump"),
        ("hash",),
    ]
    assert "secret" not in repr(refused.value.problems)
