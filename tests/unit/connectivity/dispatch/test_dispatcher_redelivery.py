"""Redeliveries, recognized by the delivery's name or by the client's idempotency key."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectivity.transports.base import Outcome
from mappings.ids import EntityId, EntityType
from spark_store.journal.journal import Journal
from tests.support.in_process.service import ConnectionHarness, command, creation, pause, source, streaming, turn, until

pytestmark = pytest.mark.usefixtures("sites")


# redeliveries


async def test_a_redelivered_command_is_answered_again_and_not_executed_again(site: ConnectionHarness) -> None:
    first = await site.ask(turn(True, correlation_id="c-1"))
    await site.settled(1)
    again = await site.redeliver(turn(True, correlation_id="c-1"))
    assert again == first
    assert site.values() == [True]
    assert site.count("in", "answered_again") == 1
    assert await site.settled(2) == ["d2", "d2"]


async def test_a_repeated_response_goes_to_the_current_requester() -> None:
    site = ConnectionHarness(
        source(headerMapping={"reply-to": "{{ header:reply-to }}"}, replyTarget={"address": "{{ header:reply-to }}"})
    )
    site.deliver(creation(), reply_to="desk/1")
    await site.settled(1)
    first, second = (
        turn(True, idempotency_key="k", correlation_id="c-1"),
        turn(True, idempotency_key="k", correlation_id="c-2"),
    )
    site.deliver(first, reply_to="desk/2")
    site.deliver(second, reply_to="desk/3")
    await site.settled(3)
    assert [message.address for message in site.link.published] == ["desk/1", "desk/2", "desk/3"]
    assert site.correlations()[1:] == ["c-1", "c-2"]
    answers = site.answers()[1:]
    assert {answer["headers"]["etag"] for answer in answers} == {answers[0]["headers"]["etag"]}
    assert {answer["headers"]["entity-revision"] for answer in answers} == {2}
    assert site.values() == [True]


async def test_a_command_redelivered_while_its_commit_is_pending_is_not_executed_again(site: ConnectionHarness) -> None:
    site.disk.hold()
    site.deliver(turn(True, correlation_id="c-1"))
    await until(lambda: site.disk.commits == 2)
    site.handle(site.delivery(turn(True, correlation_id="c-1"), "d2", redelivered=True))
    await pause()
    assert site.answers() == []
    site.disk.release()
    await site.settled(2)
    assert site.correlations() == ["c-1", "c-1"]
    assert site.values() == [True]


async def test_a_command_redelivered_within_one_batch_is_not_executed_again(site: ConnectionHarness) -> None:
    site.handle(site.delivery(turn(1), "x"), site.delivery(turn(1), "x", redelivered=True))
    await site.settled(2)
    assert (site.values(), site.statuses()) == ([1], [201, 201])


async def test_a_redelivery_after_a_restart_is_recognized_from_the_journal(tmp_path: Path) -> None:
    first = ConnectionHarness(journal=Journal.open(tmp_path / "journal.db"))
    await first.has_lamp()
    before = await first.ask(turn(True, correlation_id="c-1"))
    await first.store.close()
    second = ConnectionHarness(journal=Journal.open(tmp_path / "journal.db"))
    assert await second.redeliver(turn(True, correlation_id="c-1")) == before
    assert second.values() == [True]
    await second.store.close()


async def test_an_unknown_redelivery_is_executed(site: ConnectionHarness) -> None:
    assert (await site.redeliver(turn(True), "never seen"))["status"] == 201
    assert site.values() == [True]


async def test_the_same_name_with_other_bytes_is_another_command(site: ConnectionHarness) -> None:
    await site.ask(turn(True))
    await site.redeliver(turn(False))
    assert site.values() == [True, False]


async def test_on_off_on_are_three_commands_also_when_the_third_is_redelivered(site: ConnectionHarness) -> None:
    site.deliver(turn(True), turn(False), turn(True))
    await site.settled(3)
    assert site.values() == [True, False, True]
    await site.redeliver(turn(True), "d4")
    assert site.values() == [True, False, True]


async def test_on_off_on_under_one_name_are_three_commands_also_when_the_third_is_marked(
    site: ConnectionHarness,
) -> None:
    """Brokers reuse names; the third delivery is marked because its first one was lost with its link."""
    site.handle(site.delivery(turn(True), "7"))
    site.handle(site.delivery(turn(False), "7"))
    await site.settled(2)
    site.handle(site.delivery(turn(True), "7", redelivered=True))
    await site.settled(3)
    assert site.values() == [True, False, True]


async def test_on_off_on_under_one_name_are_three_commands_also_before_they_are_durable(
    site: ConnectionHarness,
) -> None:
    site.disk.hold()
    site.handle(site.delivery(turn(True), "7"))
    site.handle(site.delivery(turn(False), "7"))
    site.handle(site.delivery(turn(True), "7", redelivered=True))
    site.disk.release()
    await site.settled(3)
    assert site.values() == [True, False, True]


async def test_a_request_and_a_cancel_with_one_key_are_two_commands(site: ConnectionHarness) -> None:
    subscribed = await site.ask(streaming("subscribeForPersistedEvents", {}))
    value = subscribed["value"]
    site.deliver(streaming("request", {**value, "demand": 1}, idempotency_key="k"))
    site.deliver(streaming("cancel", value, idempotency_key="k"))
    await site.settled(3)
    assert [live.key for live in site.streams] == []


async def test_a_first_delivery_is_a_new_command_even_with_a_reused_name(site: ConnectionHarness) -> None:
    for _ in range(2):
        site.handle(site.delivery(turn(True), "same"))
    await site.settled(2)
    assert site.values() == [True, True]


async def test_a_command_without_a_name_is_executed_at_each_delivery(site: ConnectionHarness) -> None:
    site.handle(site.delivery(turn(True), None))
    site.handle(site.delivery(turn(True), None, redelivered=True))
    await site.settled(2)
    assert site.values() == [True, True]


async def test_a_refused_command_is_decided_again_at_its_redelivery() -> None:
    site = ConnectionHarness()
    assert (await site.ask(turn(True)))["status"] == 404
    assert await site.ended(1) == [Outcome.DROPPED]
    site.forget()
    await site.has_lamp()
    assert (await site.redeliver(turn(True), "d1"))["status"] == 201


# idempotency keys


@pytest.mark.parametrize("spelling", ["idempotency_key", "Idempotency_Key"])
async def test_an_idempotency_key_executes_a_command_once_even_at_first_deliveries(
    site: ConnectionHarness, spelling: str
) -> None:
    site.deliver(turn(True, correlation_id="c-1", **{spelling: "k"}))
    site.handle(site.delivery(turn(True, correlation_id="c-1", **{spelling: "k"}), None))
    await site.settled(2)
    assert (site.values(), site.statuses()) == ([True], [201, 201])


async def test_an_idempotency_key_may_be_a_transport_header(site: ConnectionHarness) -> None:
    site.deliver(turn(True), turn(True), idempotency_key="k")
    await site.settled(2)
    assert site.values() == [True]


async def test_a_key_is_valid_for_its_sender_and_its_path_only() -> None:
    """Devices that number their commands from one do not affect each other."""
    site = ConnectionHarness(source("in", "{{ header:device }}"))
    await_lamps = [site.delivery(creation(name, "acme:a", "acme:b"), device="acme:a") for name in ("lamp-7", "lamp-8")]
    site.handle(*await_lamps)
    await site.settled(2)
    site.deliver(turn(1, idempotency_key="1"), device="acme:a")
    site.deliver(turn(2, idempotency_key="1"), device="acme:b")
    site.deliver(turn(3, idempotency_key="1", name="lamp-8"), device="acme:a")
    site.deliver(command("modify", "/attributes/off", 4, idempotency_key="1"), device="acme:a")
    site.deliver(turn(1, idempotency_key="1"), device="acme:a")
    await site.settled(7)
    assert site.values() == [1, 2, 4]
    assert site.values(EntityId(EntityType.THING, "acme.site", "lamp-8")) == [3]


async def test_each_key_identifies_one_command_of_a_source(site: ConnectionHarness) -> None:
    site.deliver(turn(1, idempotency_key="k-1"), turn(2, idempotency_key="k-2"))
    await site.settled(2)
    assert site.values() == [1, 2]
