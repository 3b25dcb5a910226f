"""Conversations with errors: each continues or ends with the documented goodbye, with bounded memory.

A few of them always run, the long series as `soak`.
"""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import HealthCheck, given

from mappings.reactive_streams_io.endpoint import EndpointRole
from tests.support.dice import examples
from tests.support.reactive_streams_io.mutated_conversation import conversations, run_session


@given(conversations())
@hypothesis.settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
def test_a_conversation_with_mistakes_continues_or_ends_in_a_goodbye(
    conversation: tuple[EndpointRole, bool, list[bytes]],
) -> None:
    run_session(conversation)


@pytest.mark.soak(shard="properties")
@given(conversations())
@hypothesis.settings(max_examples=examples(100_000), suppress_health_check=list(HealthCheck))
def test_a_hundred_thousand_conversations_with_mistakes(conversation: tuple[EndpointRole, bool, list[bytes]]) -> None:
    run_session(conversation)
