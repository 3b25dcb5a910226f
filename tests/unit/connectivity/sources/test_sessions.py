"""Deliveries of a new session of the broker: their names may be those of earlier deliveries, which do not come again."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.sources import consumer
from connectivity.store import answer_repository
from connectivity.transports.base import Delivery
from spark_store.errors import StoreUnavailable
from tests.support.in_process.reactive_streams_io import H, definition, raw, subscribe_synthetic
from tests.support.in_process.running_connection import Running
from tests.support.in_process.service import OWNER, pause, source, streaming, turn, until
from tests.support.memory_transport import MemoryLink

pytestmark = pytest.mark.usefixtures("runs", "named")


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliveries have the name in their header `name`; those with a header `again` are marked as redelivered."""
    deliver = MemoryLink._deliver

    def with_name(self: MemoryLink, queue: Any) -> Delivery:
        delivery = deliver(self, queue)
        headers = delivery.envelope.headers
        delivery.name = headers.get("name", delivery.name)
        delivery.redelivered = delivery.redelivered or "again" in headers
        return delivery

    monkeypatch.setattr(MemoryLink, "_deliver", with_name)


async def begin_session(running: Running) -> None:
    (client,) = running.supervisor.clients
    await client._consume.on_new_session("mqtt:")


async def test_a_command_with_packet_identifier_and_bytes_of_an_earlier_session_is_executed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answer_repository, "STEP_ROWS", 1)
    running = await Running.opened()
    running.send(turn(0), name="mqtt:0")
    for _ in range(2):
        running.send(turn(1), name="mqtt:1", again="yes")
    await running.answered(3)
    assert running.harness.values() == [0, 1], "the second one is a redelivery"
    await begin_session(running)
    running.send(turn(1), name="mqtt:1", again="yes")
    await running.answered(4)
    assert running.harness.values() == [0, 1, 1]


async def test_a_command_of_a_new_session_does_not_end_with_one_of_an_earlier_session_that_is_under_way() -> None:
    running = await Running.opened()
    running.broker.withheld_confirms = 1
    running.send(turn(1), name="mqtt:1")
    await running.answered(1)
    await begin_session(running)
    running.send(turn(1), name="mqtt:1", again="yes")
    await running.answered(2)
    assert running.harness.values() == [1, 1]


async def test_demand_of_a_new_session_is_added_although_an_earlier_session_had_the_same_request() -> None:
    running = await Running.opened()
    running.send(turn(1), turn(2))
    await running.answered(2)
    running.send(streaming("subscribeForPersistedEvents"))
    await running.answered(3)
    asked = streaming("request", {**running.answers()[2]["value"], "demand": 1})
    for _ in range(2):
        running.send(asked, name="mqtt:1", again="yes")
    await running.answered(4)
    await until(lambda: running.unsettled() == 0)
    await pause()
    assert len(running.answers()) == 4, "the second one is a redelivery"
    await begin_session(running)
    running.send(asked, name="mqtt:1", again="yes")
    await running.answered(5)


async def test_a_reactive_streams_io_message_of_a_new_session_is_processed_although_an_earlier_one_was_equal() -> None:
    rsio = source("rsio", OWNER, payloadMapping=["rsio"], replyTarget={"address": "{{ header:reply-to }}"}, qos=1)
    running = await Running.opened(source("in"), rsio, mappingDefinitions=definition())

    def sent() -> bytes:
        return b"".join(envelope.payload for envelope in running.broker.sent_to("r"))

    running.send(raw(H, subscribe_synthetic("range?n=9")), to="rsio", reply_to="r")
    asked, first, second = raw("12 01 01"), raw("82 01 01 31"), raw("82 01 01 32")
    for _ in range(2):
        running.send(asked, to="rsio", reply_to="r", name="mqtt:1", again="yes")
    await until(lambda: first in sent() and running.unsettled(1) == 0)
    await pause()
    assert second not in sent(), "the second one is a redelivery"
    await begin_session(running)
    running.send(asked, to="rsio", reply_to="r", name="mqtt:1", again="yes")
    await until(lambda: second in sent())


async def test_an_unavailable_store_does_not_prevent_a_session_whose_deliveries_are_new() -> None:
    running = await Running.opened()
    running.send(turn(1), name="mqtt:1")
    await running.answered(1)
    running.harness.disk.full = True
    running.send(turn(2), name="key:1")
    with capture_logs() as lines:
        await until(lambda: not running.harness.store.commits.is_available)
        await begin_session(running)
    events = [line["event"] for line in lines]
    assert events.count("deliveries of an earlier session not forgotten yet") == 1
    for _ in range(2):
        await running.linked_again()
    running.send(turn(1), name="mqtt:1", again="yes")
    running.harness.disk.full = False
    await running.answered(3)
    assert running.harness.values() == [1, 2, 1]


async def test_deliveries_of_an_earlier_session_are_forgotten_by_the_next_opening_of_the_connection() -> None:
    running = await Running.opened()
    running.send(turn(1), name="mqtt:1")
    await running.answered(1)
    running.harness.disk.full = True
    running.send(turn(2), name="key:1")
    with capture_logs():
        await until(lambda: not running.harness.store.commits.is_available)
        await begin_session(running)
        await running.reopen()
    running.send(turn(1), name="mqtt:1", again="yes")
    running.harness.disk.full = False
    await running.answered(3)
    assert running.harness.values() == [1, 2, 1]


async def test_each_failure_to_forget_the_deliveries_of_an_earlier_session_is_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = await Running.opened()
    failures = [StoreUnavailable("a page cannot be written")] * 4

    async def fail(*_: object) -> None:
        if failures:
            raise failures.pop()

    monkeypatch.setattr(consumer, "forget_answers", fail)
    running.supervisor.deliveries._pause = 0.001
    with capture_logs() as lines:
        await begin_session(running)
        await running.linked_again()
        running.send(turn(1))
        await running.answered(1)
    assert [line["event"] for line in lines].count("deliveries of an earlier session not forgotten yet") == 4
