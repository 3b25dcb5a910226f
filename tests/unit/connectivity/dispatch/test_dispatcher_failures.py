"""Store failures and internal errors: no early responses, no effect on other deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from connectivity.authorization.quotas import Quotas
from connectivity.dispatch.quota_check import QuotaCheck
from connectivity.sources.delivery import MAX_REQUEUES, InboundDelivery
from connectivity.transports.base import Outcome
from connectivity.twins.context import Decision
from connectivity.twins.decider import Decider
from mappings.model.signals import Command
from tests.support.in_process.service import (
    NOW,
    OWNER,
    ConnectionHarness,
    command,
    creation,
    document,
    pause,
    policy,
    source,
    streaming,
    turn,
    until,
)

pytestmark = pytest.mark.usefixtures("harnesses")


# the store is unavailable


async def retried(harness: ConnectionHarness) -> list[InboundDelivery]:
    """Return the postponed deliveries, and retry them once the store is available."""
    await until(lambda: harness.store.commits.is_available)
    arrivals, harness.postponed = harness.postponed, []
    harness.dispatcher.handle(sorted(arrivals, key=lambda arrival: arrival.number), harness.postponed.extend)
    return arrivals


def numbers(arrivals: Sequence[InboundDelivery]) -> list[str | None]:
    return [arrival.delivery.name for arrival in arrivals]


async def test_deliveries_that_cannot_be_stored_are_handed_back_unanswered_and_in_order(
    harness: ConnectionHarness,
) -> None:
    harness.disk.full = True
    harness.deliver(turn(1), command("retrieve"))
    harness.deliver(b"no json", turn(2))
    harness.deliver(command("retrieve", name="lamp-8"))
    await until(lambda: len(harness.postponed) == 5)
    assert numbers(harness.postponed) == ["d2", "d3", "d4", "d5", "d6"]
    assert (harness.answers(), harness.outcomes) == ([], [])
    harness.disk.full = False
    await retried(harness)
    await harness.settled(5)
    assert harness.values() == [1, 2]
    assert [name for name, _ in harness.outcomes] == ["d2", "d3", "d4", "d5", "d6"]


async def test_while_the_store_is_unavailable_not_even_an_unreadable_delivery_is_answered(
    harness: ConnectionHarness,
) -> None:
    """A response now would overtake waiting ones, and report a state that was never stored."""
    harness.disk.full = True
    harness.deliver(turn(1))
    await until(lambda: not harness.store.commits.is_available)
    key_or_none = streaming("subscribeForPersistedEvents", {})
    harness.deliver(command("retrieve"), b"no json", key_or_none)
    await until(lambda: len(harness.postponed) == 4)
    assert (harness.answers(), list(harness.streams)) == ([], [])
    harness.disk.full = False
    await retried(harness)
    await harness.settled(4)
    assert len(list(harness.streams)) == 1


async def test_a_commit_that_succeeded_despite_an_error_is_not_repeated(harness: ConnectionHarness) -> None:
    harness.disk.loses_answers = True
    harness.deliver(turn(1, correlation_id="c-1"))
    await until(lambda: harness.postponed)
    await retried(harness)
    await harness.settled(1)
    assert (harness.values(), harness.statuses(), harness.correlations()) == ([1], [201], ["c-1"])


async def test_a_redelivery_after_the_store_was_unavailable_is_executed_once(harness: ConnectionHarness) -> None:
    harness.disk.full = True
    harness.deliver(turn(1))
    await until(lambda: harness.postponed)
    harness.disk.full = False
    await until(lambda: harness.store.commits.is_available)
    harness.postponed.clear()
    await harness.redeliver(turn(1))
    await harness.redeliver(turn(1))
    assert harness.values() == [1]


async def test_a_failed_delivery_is_requeued_although_the_store_was_unavailable_six_times() -> None:
    """Only requeues count, not how often it was processed before one."""
    space = 100
    harness = ConnectionHarness(
        quota_check=lambda store: QuotaCheck(store, Quotas(()), 50, lambda: NOW, lambda _: space)
    )
    await harness.has_lamp()
    space = 49
    harness.disk.full = True
    harness.deliver(turn(1), creation("lamp-8"))
    for _ in range(MAX_REQUEUES):
        await until(lambda: len(harness.postponed) == 2)
        harness.disk.full = False
        await until(lambda: harness.store.commits.is_available)
        harness.disk.full = True
        await retried(harness)
    await until(lambda: len(harness.postponed) == 2)
    harness.disk.full = False
    await retried(harness)
    assert await harness.ended(2) == [Outcome.SETTLED, Outcome.REDELIVER]
    assert harness.statuses() == [201, 507]


@pytest.mark.parametrize(
    ("payload", "redelivered"),
    [(turn(2), True), (command("retrieve", name="lamp-8"), True), (command("retrieve", name="lamp-8"), False)],
    ids=["while it is looked for", "while it is looked for, unknown", "while it is decided"],
)
async def test_an_unreadable_store_causes_no_response(
    harness: ConnectionHarness, payload: bytes, redelivered: bool
) -> None:
    """Earlier commands are stored and answered; the other deliveries are requeued."""
    await harness.ask(turn(0))
    harness.forget()
    harness.store._cache.clear()
    harness.disk.hold()
    harness.deliver(turn(1))
    harness.disk.unreadable = True
    again = harness.delivery(payload, "again", redelivered=redelivered)
    with capture_logs() as lines:
        harness.handle(harness.delivery(b"no json"), again, harness.delivery(turn(3)))
    assert [(line["event"], line["connection"]) for line in lines] == [("the store cannot be read", "site")]
    assert numbers(harness.postponed) == ["again", "d6"]
    harness.disk.release()
    await until(lambda: harness.statuses() == [204, 400])
    harness.disk.unreadable = False
    await retried(harness)
    await until(lambda: len(harness.outcomes) == 4)
    assert harness.values() == [0, 1, *([2] if payload == turn(2) else []), 3]


async def test_a_command_refused_before_it_was_handed_back_is_decided_again(harness: ConnectionHarness) -> None:
    """Its delivery is not rejected for an outdated decision."""
    harness.disk.full = True
    harness.deliver(turn(0), turn(1, name="lamp-8"))
    await until(lambda: len(harness.postponed) == 2)
    harness.disk.full = False
    await until(lambda: harness.store.commits.is_available)
    late, harness.postponed = harness.postponed, []
    await harness.has_lamp("lamp-8")
    harness.dispatcher.handle(late, harness.postponed.extend)
    await harness.settled(2)
    assert harness.statuses() == [201, 201]


async def test_a_cancelled_commit_causes_no_response(harness: ConnectionHarness) -> None:
    """As when the event loop is closed: the broker will redeliver."""
    harness.disk.hold()
    stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    harness.store.commits.submit_staged = lambda changes: stored  # type: ignore[method-assign]
    harness.deliver(turn(1))
    stored.cancel()
    await pause()
    assert (harness.answers(), numbers(harness.postponed)) == ([], ["d2"])
    harness.disk.release()


# internal errors


class FailingDecider(Decider):
    """Fails at one value with an unexpected error."""

    def decide(self, command: Command, subjects: Sequence[str]) -> Decision:
        if command.value == b'"mistake"':
            raise ZeroDivisionError("an internal error")
        return super().decide(command, subjects)


async def test_an_internal_error_in_a_decision_is_a_500_response_and_the_next_command_is_served() -> None:
    harness = ConnectionHarness(decider=lambda store: FailingDecider(store, now=lambda: NOW))
    await harness.has_lamp()
    with capture_logs() as lines:
        harness.deliver(turn(1), turn("mistake", correlation_id="c-1"), turn(2))
    assert await harness.ended(3) == [Outcome.SETTLED, Outcome.DROPPED, Outcome.SETTLED]
    assert harness.statuses() == [201, 500, 204]
    assert harness.answers()[1]["value"]["error"] == "internalerror"
    assert harness.values() == [1, 2]
    assert [(line["connection"], line["correlation_id"], line["exc_info"]) for line in lines] == [("site", "c-1", True)]
    assert harness.count("in", "failed") == 1


async def retry_until_ended(harness: ConnectionHarness, number: int) -> None:
    """Retry postponed deliveries like the source's consumer, until so many deliveries have ended."""
    while len(harness.outcomes) < number:
        await until(lambda: harness.postponed or len(harness.outcomes) >= number)
        await harness.store.commits.barrier()
        await pause()
        await retried(harness)


@pytest.mark.parametrize("name", ["m-1", None], ids=["named", "without a name"])
@pytest.mark.parametrize("is_full", [True, False], ids=["full disk", "change that cannot be stored"])
async def test_demand_beside_a_command_is_added_once_although_the_delivery_is_retried(
    name: str | None, is_full: bool
) -> None:
    harness = ConnectionHarness(
        source(payloadMapping=["creating", "Ditto"]),
        mappingDefinitions={
            "creating": {
                "mappingEngine": "ImplicitThingCreation",
                "options": {"thing": {"thingId": "{{ header:device }}"}},
            }
        },
    )
    harness.deliver(creation(), turn(1), turn(2), device="acme.site:lamp-7")
    await harness.ended(3)
    key = (await harness.ask(streaming("subscribeForPersistedEvents", {}), device="acme.site:lamp-7"))["value"]
    payload = streaming("request", {**key, "demand": 1})
    # Brokers use names again.
    harness.handle(harness.delivery(payload, name, device="acme.site:fan-0"))
    await harness.ended(5)
    await pause()
    harness.forget()
    harness.disk.full = is_full
    if not is_full:
        harness.disk.rejected.add(b'"bad"')
    with capture_logs():
        harness.handle(
            harness.delivery(payload, name, device="acme.site:fan-1"),
            harness.delivery(turn("bad"), device="acme.site:fan-2"),
        )
        await until(lambda: len(harness.postponed) == 2)
        harness.disk.full = False
        await retry_until_ended(harness, 2)
    await pause()
    values = [answer.get("value", {}) for answer in harness.answers()]
    assert [value["item"]["revision"] for value in values if "item" in value] == [2]


async def test_a_change_that_cannot_be_stored_is_answered_with_500(harness: ConnectionHarness) -> None:
    """Other changes are stored in order, whether in the same batch, after it, or about the same thing."""
    await harness.has_lamp("lamp-8")
    harness.disk.rejected.add(b'"bad"')
    with capture_logs() as lines:
        harness.deliver(turn(1), turn("bad", correlation_id="c-1"), turn(2), turn(3, name="lamp-8"))
        harness.deliver(turn(4))
        await retry_until_ended(harness, 5)
    assert sorted(harness.statuses()) == [201, 201, 204, 204, 500]
    assert harness.values() == [1, 2, 4]
    errors = [line for line in lines if line["event"] == "change not stored"]
    assert [(line["connection"], line["correlation_id"]) for line in errors] == [("site", "c-1")]


async def test_a_command_with_a_key_does_not_get_the_response_of_a_failed_commit(harness: ConnectionHarness) -> None:
    """Its first attempt failed with the batch; the response is that of the second, stored one."""
    harness.disk.rejected.add(b'"bad"')
    with capture_logs():
        harness.deliver(turn("bad"), turn(2, idempotency_key="k"))
        await retry_until_ended(harness, 2)
    assert sorted(harness.statuses()) == [201, 500]
    assert harness.values() == [2]


async def test_deliveries_during_a_failing_commit_do_not_overtake_it(harness: ConnectionHarness) -> None:
    """The store has given up the batch, and no result was reported yet."""
    harness.disk.rejected.add(b'"bad"')
    with capture_logs():
        harness.deliver(turn(1), turn("bad"))
        asyncio.get_running_loop().call_soon(lambda: harness.deliver(turn(2)))
        await until(lambda: len(harness.postponed) == 3)
        await retry_until_ended(harness, 3)
    assert harness.values() == [1, 2]


async def test_a_change_that_cannot_be_stored_alone_is_answered_at_once(harness: ConnectionHarness) -> None:
    harness.disk.rejected.add(b'"bad"')
    with capture_logs():
        harness.deliver(turn("bad"))
        assert await harness.ended(1) == [Outcome.DROPPED]
    assert (harness.statuses(), harness.postponed) == ([500], [])
    assert (await harness.ask(turn(1)))["status"] == 201


async def test_several_changes_that_cannot_be_stored_affect_no_other_command(harness: ConnectionHarness) -> None:
    harness.disk.rejected.add(b'"bad"')
    with capture_logs():
        for number in range(6):
            harness.deliver(turn("bad" if number % 3 == 0 else number))
        await retry_until_ended(harness, 6)
    assert sorted(harness.statuses()) == [201, 204, 204, 204, 500, 500]
    assert harness.values() == [1, 2, 4, 5]


async def test_a_batch_without_any_storable_change_is_still_answered(harness: ConnectionHarness) -> None:
    harness.disk.rejected.add(b'"bad"')
    with capture_logs():
        harness.deliver(*[turn("bad", correlation_id=str(number)) for number in range(3)])
        await retry_until_ended(harness, 3)
    assert harness.statuses() == [500, 500, 500]
    assert harness.values() == []
    assert (await harness.ask(turn(1)))["status"] == 201


async def test_a_policys_change_that_cannot_be_stored_is_answered_as_a_policys(harness: ConnectionHarness) -> None:
    owners = {"policyId": "acme.site:desk", **policy(OWNER)}
    harness.disk.rejected.add(b'"policyId"')
    with capture_logs():
        answer = await harness.ask(document("acme.site/desk/policies/commands/create", value=owners))
    assert (answer["status"], answer["topic"]) == (500, "acme.site/desk/policies/errors")


async def test_an_internal_error_in_a_subscription_is_answered_and_the_next_command_is_served(
    harness: ConnectionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def subscribe(signal: object, peer: object) -> None:
        raise ZeroDivisionError("an internal error")

    monkeypatch.setattr(harness.streams, "subscribe", subscribe)
    with capture_logs() as lines:
        harness.deliver(streaming("subscribeForPersistedEvents", {}, correlation_id="c-1"), command("retrieve"))
    await harness.settled(2)
    assert harness.statuses() == [500, 200]
    assert [(line["connection"], line["correlation_id"]) for line in lines] == [("site", "c-1")]


async def test_b4_an_internal_error_with_one_command_affects_no_other_of_its_batch(
    harness: ConnectionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change was decided, so it is stored: a sender that gets a 500 does not know the outcome."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("an internal error")

    monkeypatch.setattr(harness.request_reply, "hold", fail)
    asking = turn(2, requested_acks=["twin-persisted", "other:seen"], timeout="5s", correlation_id="c-1")
    with capture_logs() as lines:
        harness.deliver(turn(1), asking, turn(3))
        await harness.settled(3)
    assert harness.statuses() == [201, 500, 204]
    assert harness.values() == [1, 2, 3]
    assert [(line["event"], line["correlation_id"]) for line in lines] == [("signal not processed", "c-1")]


@pytest.mark.parametrize("damaged", ["acme.site:lamp-8", "acme.site:other"])
async def test_b10_a_damaged_state_fails_its_own_commands_alone(harness: ConnectionHarness, damaged: str) -> None:
    await harness.has_lamp("lamp-8")
    harness.forget()
    harness.journal.within(lambda it: it.execute("UPDATE entities SET state = '{' WHERE id = ?", (damaged,)))
    harness.journal.commit()
    harness.store._cache.clear()
    with capture_logs():
        harness.deliver(turn(1, name="lamp-8"), command("retrieve", name="lamp-8"), turn(2))
        await harness.ended(3)
    expected = [500, 500] if damaged.endswith("lamp-8") else [201, 200]
    assert harness.statuses() == [*expected, 201]
