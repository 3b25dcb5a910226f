"""Publishing to many topics over one link to a real Kafka."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from connectivity.errors import MessageRefused
from connectivity.transports.base import OutboundMessage
from connectivity.transports.kafka import link as link_module
from connectivity.transports.kafka import producer
from mappings.model.envelope import Envelope
from tests.contract.link import Publishing
from tests.support.brokers.kafka import Kafka
from tests.support.kafka_link import KafkaLinkHarness
from tests.support.wait import wait_until

pytestmark = pytest.mark.broker("kafka")

TOPICS = 20
MESSAGES = 400


@pytest.fixture
async def harness(kafka: Kafka) -> AsyncIterator[KafkaLinkHarness]:
    async with KafkaLinkHarness.to(kafka) as harness:
        yield harness


async def test_messages_keep_their_order_beside_many_missing_topics(
    harness: KafkaLinkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every client of the library takes `TOPICS` topics, so that new ones take over while messages are unconfirmed."""
    monkeypatch.setattr(producer, "MOST_TOPICS", TOPICS)
    link = await harness.connect()
    known, missing = Publishing(link), Publishing(link)
    for number in range(MESSAGES):
        known.give(OutboundMessage(harness.out, Envelope(b"%d" % number)))
        missing.give(OutboundMessage(f"{harness.absent}.{number % (6 * TOPICS)}", Envelope(b"lost")))
    assert await known.all_done() == [None] * MESSAGES
    assert {type(each) for each in await missing.all_done()} == {MessageRefused}
    await wait_until(lambda: len(harness.received()) >= MESSAGES)
    assert [int(each.payload) for each in harness.received()] == list(range(MESSAGES))
    assert link._producer is not None
    await wait_until(lambda: not link._producer._former)  # type: ignore[union-attr]
    await link.close()


async def test_messages_to_missing_topics_do_not_fill_the_window(
    harness: KafkaLinkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "WINDOW", 20)
    link = await harness.connect()
    publishing = Publishing(link)
    known = OutboundMessage(harness.out, Envelope(b"0"))
    publishing.give(known)
    assert await publishing.all_done() == [None]
    for number in range(200):
        publishing.give(OutboundMessage(f"{harness.absent}.{number}", Envelope(b"lost")))
    publishing.give(known)
    await wait_until(lambda: len(publishing.outcomes) > 1)
    assert publishing.outcomes[1] == (201, None)
    assert {type(each) for each in (await publishing.all_done())[1:-1]} == {MessageRefused}
    publishing.give(known)
    await publishing.all_done()
    assert link.window == 20
    await link.close()
