"""Behavior that targets and reply targets share."""

from __future__ import annotations

import json

import pytest

from tests.support.in_process.service import ConnectionHarness, streaming, target, turn, until
from tests.support.in_process.two_connections import other_connection

pytestmark = pytest.mark.usefixtures("harnesses")


async def test_b6_the_signals_of_one_subscription_have_one_ordering_key(harness: ConnectionHarness) -> None:
    """Kafka keeps the order of a key only, if a topic has several partitions."""
    await harness.ask(turn(True))
    for number in range(2):
        harness.link.published.clear()
        created = await harness.ask(streaming("subscribeForPersistedEvents", {}, correlation_id=f"s-{number}"))
        key = created["value"]["subscriptionId"]
        harness.deliver(streaming("request", {"subscriptionId": key, "demand": 9}))
        await until(lambda: len(harness.link.published) == 4)
        kinds = [json.loads(message.envelope.payload)["topic"].rpartition("/")[2] for message in harness.link.published]
        assert kinds == ["created", "next", "next", "complete"]
        assert {message.order for message in harness.link.published} == {key}


async def test_b6_responses_and_events_of_one_entity_have_its_id_as_ordering_key(harness: ConnectionHarness) -> None:
    other = await other_connection(harness, target("_/_/things/twin/events", address="events")).follow()
    harness.deliver(turn(1), turn(2))
    await until(lambda: len(harness.link.published) == len(other.link.published) == 2)
    published = [*harness.link.published, *other.link.published]
    assert {message.order for message in published} == {"acme.site:lamp-7"}
