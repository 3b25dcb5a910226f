"""A stream's messages as the store keeps them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.streamr.entries import Entry, entry_of, message_of
from mappings.streamr.faults import FrameRefused
from mappings.streamr.instants import EARLIEST, LATEST
from mappings.streamr.messages import StreamMessage, text_of
from mappings.streamr.requests import Publish

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@settings(max_examples=100, deadline=None)
@given(TEXT, TEXT, st.integers(0, 255), st.integers(EARLIEST, LATEST))
def test_what_was_published_comes_back_to_the_letter(stream: str, content: str, partition: int, instant: int) -> None:
    entry = entry_of(Publish(stream, content, instant), partition, 0)
    message = message_of(entry, 10, previous=7, ttl=60)
    assert message == StreamMessage(stream, partition, instant, 60, 10, 7, entry.value)
    assert text_of(message.content) == content


def test_case_p09_without_a_time_of_its_own_a_message_has_the_services() -> None:
    entry = entry_of(Publish("site/tank", '{"v":1}'), 2, 1_700_000_000_123)
    assert entry == Entry("site/tank/2", "2023-11-14T22:13:20.123000Z", rb'"{\"v\":1}"')


@pytest.mark.parametrize("entry", [Entry("tank", "2023-11-14T22:13:20.123000Z", b'""'), Entry("tank/0", "soon", b'""')])
def test_what_is_no_entry_of_a_stream_is_refused(entry: Entry) -> None:
    with pytest.raises(FrameRefused, match="Not an entry of a stream"):
        message_of(entry, 1, previous=None)
