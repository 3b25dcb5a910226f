"""The topic IDs in the metadata of committed Kafka offsets."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition, Uuid
from hypothesis import given
from hypothesis import strategies as st

from connectivity.transports.kafka.group import committed_topic_id

HALVES = st.integers(-(2**63), 2**63 - 1)


@given(HALVES, HALVES)
def test_every_topic_id_is_recognized(most: int, least: int) -> None:
    text = str(Uuid(most, least))
    assert committed_topic_id(TopicPartition("in", 0, 7, metadata=text)) == text


@pytest.mark.parametrize("text", ["", "committed by hand", "committed-by-release-7"])
def test_metadata_of_another_program_is_no_topic_id(text: str) -> None:
    assert committed_topic_id(TopicPartition("in", 0, 7, metadata=text)) is None


def test_an_offset_without_metadata_has_no_topic_id() -> None:
    assert committed_topic_id(TopicPartition("in", 0, 7)) is None
