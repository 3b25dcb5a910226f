"""A stream's messages as the store keeps them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.errors import DecodeError
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from mappings.streams.entry import StreamEntry, entry_of, published_event
from mappings.timestamps import EARLIEST, LATEST
from tests.support.dice import examples
from tests.support.streamr_frames import decode_content

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
NOW = "2023-11-14T22:13:20.123456Z"


@settings(max_examples=examples(100), deadline=None)
@given(TEXT, TEXT, st.integers(0, 255), st.integers(EARLIEST, LATEST))
def test_case_p06_a_published_message_keeps_its_exact_content_and_time(
    stream: str, content: str, partition: int, instant: int
) -> None:
    event = published_event(stream, partition, 10, NOW, content, instant)
    message = entry_of(event, previous=7, ttl=60)
    assert message == StreamEntry(stream, partition, instant, 60, 10, 7, event.value or b"")
    assert decode_content(message.content) == content
    assert event.timestamp == NOW


def test_case_p09_without_a_time_of_its_own_a_message_has_the_services() -> None:
    event = published_event("site:hall/tank", 2, 1, NOW, '{"v":1}')
    entity = EntityId(EntityType.STREAM, "site", "site:hall/tank/2")
    assert event == Event(entity, 1, NOW, "published", "/", rb'"{\"v\":1}"', b"{}")
    assert entry_of(event, previous=None).timestamp == 1_700_000_000_123


@pytest.mark.parametrize(
    "wrong",
    [
        {"entity": EntityId(EntityType.STREAM, "", "tank")},
        {"timestamp": "soon"},
        {"value": None},
        {"headers": b"[]"},
        {"headers": b'{"ts":"soon"}'},
    ],
)
def test_an_event_that_is_not_a_stream_entry_is_refused(wrong: dict[str, Any]) -> None:
    event = published_event("tank", 0, 1, NOW, "1")._replace(**wrong)
    with pytest.raises(DecodeError, match="Not an entry of a stream"):
        entry_of(event, previous=None)
