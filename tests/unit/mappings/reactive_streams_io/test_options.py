"""Options of reactive-streams-io for operators."""

from __future__ import annotations

from typing import Any

import pytest

from mappings.options import InvalidMapperOptions
from mappings.reactive_streams_io.frames import Extension
from mappings.reactive_streams_io.limits import EndpointLimits
from mappings.reactive_streams_io.options import OPTIONS, RsioOptions, read_rsio
from tests.support.table import each_row


def test_empty_options_give_the_protocol_defaults() -> None:
    assert read_rsio({}) == RsioOptions()
    assert read_rsio({}).limits == EndpointLimits()


def test_everything_may_be_written() -> None:
    found = read_rsio({option.name: option.example for option in OPTIONS})
    assert found.extensions == {Extension.KEEPALIVE, Extension.SEQUENCE}
    assert (found.limits.idle, found.limits.element, found.limits.part) == (1800.0, 1 << 20, 16_384)
    assert found.has_test_publishers
    assert found.allows_unreliable
    assert found.reply_addresses is not None
    assert found.reply_addresses.allows("rsio/pump/down")
    assert list(found.streams) == ["tank-9"]
    assert found.ingest == ("telemetry",)
    assert found.ingest_reply is not None
    assert found.ingest_reply.text == "answers/{{ header:device }}"


@each_row(
    ("written", "steps"),
    [
        ({"tck": 1}, ("tck",)),
        ({"extensions": "resume"}, ("extensions",)),
        ({"extensions": ["resume", "zip"]}, ("extensions", 1)),
        ({"extensions": [1]}, ("extensions", 0)),
        ({"elementLimit": 0}, ("elementLimit",)),
        ({"elementLimit": True}, ("elementLimit",)),
        ({"partLimit": 65_536}, ("partLimit",)),
        ({"sessionIdleTimeout": "soon"}, ("sessionIdleTimeout",)),
        ({"streams": {"": {}}}, ("streams", "")),
        ({"ingest": "telemetry"}, ("ingest",)),
        ({"ingest": [f"n{number}" for number in range(17)]}, ("ingest",)),
        ({"ingest": ["a", ""]}, ("ingest", 1)),
        ({"ingest": ["a" * 257]}, ("ingest", 0)),
        ({"ingest": ["a", "b", "a"]}, ("ingest", 2)),
        ({"ingestReplyAddress": ""}, ("ingestReplyAddress",)),
        ({"ingestReplyAddress": "{{ thing:nose }}"}, ("ingestReplyAddress",)),
        ({"colour": "blue"}, ("colour",)),
    ],
)
def test_a_problem_is_named_by_its_place(written: dict[str, Any], steps: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidMapperOptions) as caught:
        read_rsio(written)
    assert caught.value.problems[0].steps == steps
