"""Redeliveries, recognized by the delivery's name or by the client's idempotency key."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from connectivity.dispatch import command_handler
from connectivity.store.past_state import state_at
from connectivity.store.store import Store
from connectivity.transports.base import Delivery, Outcome
from mappings.ids import EntityId, EntityType
from spark_store.journal.journal import Journal
from spark_store.records import PastQuery, PastState
from tests.support.in_process.service import (
    OWNER,
    ConfirmingLink,
    ConnectionHarness,
    command,
    creation,
    pause,
    source,
    streaming,
    turn,
    until,
)

pytestmark = pytest.mark.usefixtures("harnesses")


# redeliveries


async def test_a_redelivered_command_is_answered_again_and_not_executed_again(harness: ConnectionHarness) -> None:
    first = await harness.ask(turn(True, correlation_id="c-1"))
    await harness.settled(1)
    again = await harness.redeliver(turn(True, correlation_id="c-1"))
    assert again == first
    assert harness.values() == [True]
    assert harness.count("in", "answered_again") == 1
    assert await harness.settled(2) == ["d2", "d2"]


async def test_a_repeated_response_goes_to_the_current_requester() -> None:
    harness = ConnectionHarness(
        source(headerMapping={"reply-to": "{{ header:reply-to }}"}, replyTarget={"address": "{{ header:reply-to }}"})
    )
    harness.deliver(creation(), reply_to="desk/1")
    await harness.settled(1)
    first, second = (
        turn(True, idempotency_key="k", correlation_id="c-1"),
        turn(True, idempotency_key="k", correlation_id="c-2"),
    )
    harness.deliver(first, reply_to="desk/2")
    harness.deliver(second, reply_to="desk/3")
    await harness.settled(3)
    assert [message.address for message in harness.link.published] == ["desk/1", "desk/2", "desk/3"]
    assert harness.correlations()[1:] == ["c-1", "c-2"]
    answers = harness.answers()[1:]
    assert {answer["headers"]["etag"] for answer in answers} == {answers[0]["headers"]["etag"]}
    assert {answer["headers"]["entity-revision"] for answer in answers} == {2}
    assert harness.values() == [True]


async def test_a_command_redelivered_while_its_commit_is_pending_is_not_executed_again(
    harness: ConnectionHarness,
) -> None:
    harness.disk.hold()
    harness.deliver(turn(True, correlation_id="c-1"))
    await until(lambda: harness.disk.commits == 2)
    harness.handle(harness.delivery(turn(True, correlation_id="c-1"), "d2", redelivered=True))
    await pause()
    assert harness.answers() == []
    harness.disk.release()
    await harness.settled(2)
    assert harness.correlations() == ["c-1", "c-1"]
    assert harness.values() == [True]


async def test_a_command_redelivered_within_one_batch_is_not_executed_again(harness: ConnectionHarness) -> None:
    harness.handle(harness.delivery(turn(1), "x"), harness.delivery(turn(1), "x", redelivered=True))
    await harness.settled(2)
    assert (harness.values(), harness.statuses()) == ([1], [201, 201])


async def test_b2_two_deliveries_with_one_message_id_are_both_settled_after_their_link_was_lost(
    harness: ConnectionHarness,
) -> None:
    """A producer has retried with the same message ID and bytes; the broker redelivers both."""
    harness.link.confirms = False
    for _ in range(2):
        harness.handle(harness.delivery(turn(True), "amqp:m1"))
    await until(lambda: len(harness.link.published) == 2)
    harness.outbox.detach(was_silent=True)
    harness.link = ConfirmingLink()
    harness.link.confirms = False
    harness.outbox.attach(harness.link)
    settled: list[Delivery] = []
    again = [harness.delivery(turn(True), "amqp:m1", redelivered=True) for _ in range(2)]
    for delivery in again:
        delivery.ended = lambda ended, _outcome: settled.append(ended)
        harness.handle(delivery)
    await until(lambda: len(harness.link.published) == 2)
    harness.link.confirm(2)
    await until(lambda: len(settled) == 2)
    assert settled == again
    assert harness.values() == [True, True], (
        "without the broker's mark and without a key of its own it is another command"
    )


@pytest.mark.parametrize("headers", [{}, {"idempotency_key": "k"}])
async def test_b11_a_record_whose_offset_is_not_committed_is_answered_again_after_any_time(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    """The service is killed before the commit and starts again after eleven minutes."""

    def handle_record(harness: ConnectionHarness, *, is_again: bool) -> None:
        payload = turn(True, correlation_id="c-1", **headers)
        delivery = harness.delivery(payload, "kafka:topic/0/7", redelivered=is_again)
        delivery.position = "topic/0", 7
        harness.handle(delivery)

    killed = ConnectionHarness(journal=Journal.open(tmp_path / "journal.db"))
    await killed.has_lamp()
    handle_record(killed, is_again=False)
    await killed.settled(1)
    answers = killed.answers()
    await killed.store.close()
    started = ConnectionHarness(journal=Journal.open(tmp_path / "journal.db"))
    started.store.commits._now = lambda: time.time_ns() + 11 * 60 * 10**9
    started.store.note_committed("site", "topic/0", 7)
    handle_record(started, is_again=True)
    await started.settled(1)
    assert (started.answers(), started.values()) == (answers, [True])
    started.store.note_committed("site", "topic/0", 8)
    handle_record(started, is_again=True)
    await started.settled(2)
    assert started.values() == [True, True], "beyond the committed offset a name is known for its time only"


async def test_b3_a_retrieve_that_outlives_its_connection_leaves_the_redelivery_to_the_next_opening(
    harness: ConnectionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.ask(turn(True))
    gate = asyncio.Event()

    async def slow(store: Store, query: PastQuery) -> PastState | None:
        await gate.wait()
        return await state_at(store, query)

    monkeypatch.setattr(command_handler, "state_at", slow)
    retrieve = command("retrieve", at_historical_revision=1)
    harness.handle(harness.delivery(retrieve, "mqtt:7"))
    await pause()
    harness.close_connection()
    harness.outbox.detach()
    gate.set()
    await pause()
    reopened = ConnectionHarness(beside=harness)
    reopened.handle(reopened.delivery(retrieve, "mqtt:7", redelivered=True))
    assert await reopened.settled(1) == ["mqtt:7"]
    assert reopened.statuses() == [200]


async def test_a_redelivery_after_a_restart_is_recognized_from_the_journal(tmp_path: Path) -> None:
    first = ConnectionHarness(journal=Journal.open(tmp_path / "journal.db"))
    await first.has_lamp()
    before = await first.ask(turn(True, correlation_id="c-1"))
    await first.store.close()
    second = ConnectionHarness(journal=Journal.open(tmp_path / "journal.db"))
    assert await second.redeliver(turn(True, correlation_id="c-1")) == before
    assert second.values() == [True]
    await second.store.close()


async def test_an_unknown_redelivery_is_executed(harness: ConnectionHarness) -> None:
    assert (await harness.redeliver(turn(True), "never seen"))["status"] == 201
    assert harness.values() == [True]


async def test_the_same_name_with_other_bytes_is_another_command(harness: ConnectionHarness) -> None:
    await harness.ask(turn(True))
    await harness.redeliver(turn(False))
    assert harness.values() == [True, False]


async def test_on_off_on_are_three_commands_also_when_the_third_is_redelivered(harness: ConnectionHarness) -> None:
    harness.deliver(turn(True), turn(False), turn(True))
    await harness.settled(3)
    assert harness.values() == [True, False, True]
    await harness.redeliver(turn(True), "d4")
    assert harness.values() == [True, False, True]


async def test_on_off_on_under_one_name_are_three_commands_also_when_the_third_is_marked(
    harness: ConnectionHarness,
) -> None:
    """Brokers reuse names; the third delivery is marked because its first one was lost with its link."""
    harness.handle(harness.delivery(turn(True), "7"))
    harness.handle(harness.delivery(turn(False), "7"))
    await harness.settled(2)
    harness.handle(harness.delivery(turn(True), "7", redelivered=True))
    await harness.settled(3)
    assert harness.values() == [True, False, True]


async def test_on_off_on_under_one_name_are_three_commands_also_before_they_are_durable(
    harness: ConnectionHarness,
) -> None:
    harness.disk.hold()
    harness.handle(harness.delivery(turn(True), "7"))
    harness.handle(harness.delivery(turn(False), "7"))
    harness.handle(harness.delivery(turn(True), "7", redelivered=True))
    harness.disk.release()
    await harness.settled(3)
    assert harness.values() == [True, False, True]


async def test_a_request_with_a_key_in_two_records_of_a_log_adds_demand_once(harness: ConnectionHarness) -> None:
    subscribed = await harness.ask(streaming("subscribeForPersistedEvents", {"fromHistoricalRevision": 1}))
    harness.deliver(*[turn(number) for number in range(5)])
    asked = streaming("request", {**subscribed["value"], "demand": 2}, idempotency_key="k")
    for offset in (7, 9):
        delivery = harness.delivery(asked, f"kafka:topic/0/{offset}")
        delivery.position = "topic/0", offset
        harness.handle(delivery)
    (stream,) = harness.streams
    assert stream.demand == 2


async def test_a_request_and_a_cancel_with_one_key_are_two_commands(harness: ConnectionHarness) -> None:
    subscribed = await harness.ask(streaming("subscribeForPersistedEvents", {}))
    value = subscribed["value"]
    harness.deliver(streaming("request", {**value, "demand": 1}, idempotency_key="k"))
    harness.deliver(streaming("cancel", value, idempotency_key="k"))
    await harness.settled(3)
    assert [live.key for live in harness.streams] == []


async def test_a_first_delivery_is_a_new_command_even_with_a_reused_name(harness: ConnectionHarness) -> None:
    for _ in range(2):
        harness.handle(harness.delivery(turn(True), "same"))
    await harness.settled(2)
    assert harness.values() == [True, True]


@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_first_delivery_with_a_reused_name_is_a_new_command_although_its_commit_is_retried(
    harness: ConnectionHarness, is_durable: bool
) -> None:
    """As when a broker uses a packet identifier again. The earlier response is not its own."""
    harness.handle(harness.delivery(turn(True), "same"))
    await harness.settled(1)
    harness.disk.full, harness.disk.loses_answers = not is_durable, is_durable
    harness.handle(harness.delivery(turn(True), "same"))
    await until(lambda: harness.postponed)
    harness.disk.full = False
    await until(lambda: harness.store.commits.is_available)
    harness.dispatcher.handle(list(harness.postponed), harness.postponed.extend)
    await harness.settled(2)
    assert harness.values() == [True, True]
    assert harness.statuses() == [201, 204]


async def test_a_command_without_a_name_is_executed_at_each_delivery(harness: ConnectionHarness) -> None:
    harness.handle(harness.delivery(turn(True), None))
    harness.handle(harness.delivery(turn(True), None, redelivered=True))
    await harness.settled(2)
    assert harness.values() == [True, True]


async def test_a_refused_command_is_decided_again_at_its_redelivery() -> None:
    harness = ConnectionHarness()
    assert (await harness.ask(turn(True)))["status"] == 404
    assert await harness.ended(1) == [Outcome.DROPPED]
    harness.forget()
    await harness.has_lamp()
    assert (await harness.redeliver(turn(True), "d1"))["status"] == 201


# idempotency keys


@pytest.mark.parametrize("spelling", ["idempotency_key", "Idempotency_Key"])
async def test_an_idempotency_key_executes_a_command_once_even_at_first_deliveries(
    harness: ConnectionHarness, spelling: str
) -> None:
    harness.deliver(turn(True, correlation_id="c-1", **{spelling: "k"}))
    harness.handle(harness.delivery(turn(True, correlation_id="c-1", **{spelling: "k"}), None))
    await harness.settled(2)
    assert (harness.values(), harness.statuses()) == ([True], [201, 201])


async def test_an_idempotency_key_may_be_a_transport_header(harness: ConnectionHarness) -> None:
    harness.deliver(turn(True), turn(True), idempotency_key="k")
    await harness.settled(2)
    assert harness.values() == [True]


async def test_a_key_is_valid_for_its_sender_and_its_path_only() -> None:
    """Devices that number their commands from one do not affect each other."""
    harness = ConnectionHarness(source("in", "{{ header:device }}"))
    await_lamps = [
        harness.delivery(creation(name, "acme:a", "acme:b"), device="acme:a") for name in ("lamp-7", "lamp-8")
    ]
    harness.handle(*await_lamps)
    await harness.settled(2)
    harness.deliver(turn(1, idempotency_key="1"), device="acme:a")
    harness.deliver(turn(2, idempotency_key="1"), device="acme:b")
    harness.deliver(turn(3, idempotency_key="1", name="lamp-8"), device="acme:a")
    harness.deliver(command("modify", "/attributes/off", 4, idempotency_key="1"), device="acme:a")
    harness.deliver(turn(1, idempotency_key="1"), device="acme:a")
    await harness.settled(7)
    assert harness.values() == [1, 2, 4]
    assert harness.values(EntityId(EntityType.THING, "acme.site", "lamp-8")) == [3]


@pytest.mark.parametrize(("subject", "values"), [(OWNER, [1]), ("acme:other", [1, 1])])
async def test_a_key_is_valid_for_all_sources_with_the_same_subjects(subject: str, values: list[int]) -> None:
    harness = ConnectionHarness(source("in"), source("in", subject))
    await harness.has_lamp("lamp-7", OWNER, "acme:other")
    for index in (0, 1):
        harness.deliver(turn(1, idempotency_key="k"), source=index)
    await harness.settled(2)
    assert harness.values() == values


async def test_each_key_identifies_one_command_of_a_source(harness: ConnectionHarness) -> None:
    harness.deliver(turn(1, idempotency_key="k-1"), turn(2, idempotency_key="k-2"))
    await harness.settled(2)
    assert harness.values() == [1, 2]


async def test_commands_with_an_empty_key_are_different_commands(harness: ConnectionHarness) -> None:
    for value in (True, False):
        harness.deliver(turn(value, idempotency_key=""))
    await harness.settled(2)
    assert harness.values() == [True, False]
