"""Store failures and internal errors: no early responses, no effect on other deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from connectivity.sources.delivery import InboundDelivery
from connectivity.transports.base import Outcome
from connectivity.twins.context import Decision
from connectivity.twins.decider import Decider
from mappings.model.signals import Command
from tests.support.in_process.service import (
    NOW,
    OWNER,
    ConnectionHarness,
    command,
    document,
    pause,
    policy,
    streaming,
    turn,
    until,
)

pytestmark = pytest.mark.usefixtures("sites")


# the store is unavailable


async def retried(site: ConnectionHarness) -> list[InboundDelivery]:
    """Return the postponed deliveries, and retry them once the store is available."""
    await until(lambda: site.store.is_available)
    arrivals, site.postponed = site.postponed, []
    site.dispatcher.handle(sorted(arrivals, key=lambda arrival: arrival.number), site.postponed.extend)
    return arrivals


def numbers(arrivals: Sequence[InboundDelivery]) -> list[str | None]:
    return [arrival.delivery.name for arrival in arrivals]


async def test_deliveries_that_cannot_be_stored_are_handed_back_unanswered_and_in_order(
    site: ConnectionHarness,
) -> None:
    site.disk.full = True
    site.deliver(turn(1), command("retrieve"))
    site.deliver(b"no json", turn(2))
    site.deliver(command("retrieve", name="lamp-8"))
    await until(lambda: len(site.postponed) == 5)
    assert numbers(site.postponed) == ["d2", "d3", "d4", "d5", "d6"]
    assert (site.answers(), site.outcomes) == ([], [])
    site.disk.full = False
    await retried(site)
    await site.settled(5)
    assert site.values() == [1, 2]
    assert [name for name, _ in site.outcomes] == ["d2", "d3", "d4", "d5", "d6"]


async def test_while_the_store_is_unavailable_not_even_an_unreadable_delivery_is_answered(
    site: ConnectionHarness,
) -> None:
    """A response now would overtake waiting ones, and report a state that was never stored."""
    site.disk.full = True
    site.deliver(turn(1))
    await until(lambda: not site.store.is_available)
    key_or_none = streaming("subscribeForPersistedEvents", {})
    site.deliver(command("retrieve"), b"no json", key_or_none)
    await until(lambda: len(site.postponed) == 4)
    assert (site.answers(), list(site.streams)) == ([], [])
    site.disk.full = False
    await retried(site)
    await site.settled(4)
    assert len(list(site.streams)) == 1


async def test_a_commit_that_succeeded_despite_an_error_is_not_repeated(site: ConnectionHarness) -> None:
    site.disk.loses_answers = True
    site.deliver(turn(1, correlation_id="c-1"))
    await until(lambda: site.postponed)
    await retried(site)
    await site.settled(1)
    assert (site.values(), site.statuses(), site.correlations()) == ([1], [201], ["c-1"])


async def test_a_redelivery_after_the_store_was_unavailable_is_executed_once(site: ConnectionHarness) -> None:
    site.disk.full = True
    site.deliver(turn(1))
    await until(lambda: site.postponed)
    site.disk.full = False
    await until(lambda: site.store.is_available)
    site.postponed.clear()
    await site.redeliver(turn(1))
    await site.redeliver(turn(1))
    assert site.values() == [1]


@pytest.mark.parametrize(
    ("payload", "redelivered"),
    [(turn(2), True), (command("retrieve", name="lamp-8"), True), (command("retrieve", name="lamp-8"), False)],
    ids=["while it is looked for", "while it is looked for, unknown", "while it is decided"],
)
async def test_an_unreadable_store_causes_no_response(
    site: ConnectionHarness, payload: bytes, redelivered: bool
) -> None:
    """Earlier commands are stored and answered; the rest is handed back."""
    await site.ask(turn(0))
    site.forget()
    site.store._cache.clear()
    site.disk.hold()
    site.deliver(turn(1))
    site.disk.unreadable = True
    again = site.delivery(payload, "again", redelivered=redelivered)
    with capture_logs() as lines:
        site.handle(site.delivery(b"no json"), again, site.delivery(turn(3)))
    assert [(line["event"], line["connection"]) for line in lines] == [("the store cannot be read", "site")]
    site.disk.release()
    await until(lambda: site.postponed)
    assert numbers(site.postponed) == ["again", "d6"]
    assert site.statuses() == [204, 400]
    site.disk.unreadable = False
    await retried(site)
    await until(lambda: len(site.outcomes) == 4)
    assert site.values() == [0, 1, *([2] if payload == turn(2) else []), 3]


async def test_a_command_refused_before_it_was_handed_back_is_decided_again(site: ConnectionHarness) -> None:
    """Its delivery is not rejected for an outdated decision."""
    site.disk.full = True
    site.deliver(turn(0), turn(1, name="lamp-8"))
    await until(lambda: len(site.postponed) == 2)
    site.disk.full = False
    await until(lambda: site.store.is_available)
    late, site.postponed = site.postponed, []
    await site.has_lamp("lamp-8")
    site.dispatcher.handle(late, site.postponed.extend)
    await site.settled(2)
    assert site.statuses() == [201, 201]


async def test_a_cancelled_commit_causes_no_response(site: ConnectionHarness) -> None:
    """As when the event loop is closed: the broker will redeliver."""
    site.disk.hold()
    stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    site.store.submit = lambda changes: stored  # type: ignore[method-assign]
    site.deliver(turn(1))
    stored.cancel()
    await pause()
    assert (site.answers(), numbers(site.postponed)) == ([], ["d2"])
    site.disk.release()


# internal errors


class FailingDecider(Decider):
    """Fails at one value with an unexpected error."""

    def decide(self, command: Command, subjects: Sequence[str]) -> Decision:
        if command.value == b'"mistake"':
            raise ZeroDivisionError("an internal error")
        return super().decide(command, subjects)


async def test_an_internal_error_in_a_decision_is_a_500_response_and_the_next_command_is_served() -> None:
    site = ConnectionHarness(decider=lambda store: FailingDecider(store, now=lambda: NOW))
    await site.has_lamp()
    with capture_logs() as lines:
        site.deliver(turn(1), turn("mistake", correlation_id="c-1"), turn(2))
    assert await site.ended(3) == [Outcome.SETTLED, Outcome.REDELIVER, Outcome.SETTLED]
    assert site.statuses() == [201, 500, 204]
    assert site.answers()[1]["value"]["error"] == "internalerror"
    assert site.values() == [1, 2]
    assert [(line["connection"], line["correlation_id"], line["exc_info"]) for line in lines] == [("site", "c-1", True)]
    assert site.count("in", "failed") == 1


async def retry_until_ended(site: ConnectionHarness, number: int) -> None:
    """Retry postponed deliveries like the source's consumer, until so many deliveries have ended."""
    while len(site.outcomes) < number:
        await until(lambda: site.postponed or len(site.outcomes) >= number)
        await site.store.barrier()
        await pause()
        await retried(site)


async def test_a_change_that_cannot_be_stored_is_answered_with_500(site: ConnectionHarness) -> None:
    """Other changes are stored in order, whether in the same batch, after it, or about the same thing."""
    await site.has_lamp("lamp-8")
    site.disk.rejected.add(b'"bad"')
    with capture_logs() as lines:
        site.deliver(turn(1), turn("bad", correlation_id="c-1"), turn(2), turn(3, name="lamp-8"))
        site.deliver(turn(4))
        await retry_until_ended(site, 5)
    assert sorted(site.statuses()) == [201, 201, 204, 204, 500]
    assert site.values() == [1, 2, 4]
    errors = [line for line in lines if line["event"] == "change not stored"]
    assert [(line["connection"], line["correlation_id"]) for line in errors] == [("site", "c-1")]


async def test_a_command_with_a_key_does_not_get_the_response_of_a_failed_commit(site: ConnectionHarness) -> None:
    """Its first attempt failed with the batch; the response is that of the second, stored one."""
    site.disk.rejected.add(b'"bad"')
    with capture_logs():
        site.deliver(turn("bad"), turn(2, idempotency_key="k"))
        await retry_until_ended(site, 2)
    assert sorted(site.statuses()) == [201, 500]
    assert site.values() == [2]


async def test_deliveries_during_a_failing_commit_do_not_overtake_it(site: ConnectionHarness) -> None:
    """The store has given up the batch, and no result was reported yet."""
    site.disk.rejected.add(b'"bad"')
    with capture_logs():
        site.deliver(turn(1), turn("bad"))
        asyncio.get_running_loop().call_soon(lambda: site.deliver(turn(2)))
        await until(lambda: len(site.postponed) == 3)
        await retry_until_ended(site, 3)
    assert site.values() == [1, 2]


async def test_a_change_that_cannot_be_stored_alone_is_answered_at_once(site: ConnectionHarness) -> None:
    site.disk.rejected.add(b'"bad"')
    with capture_logs():
        site.deliver(turn("bad"))
        assert await site.ended(1) == [Outcome.REDELIVER]
    assert (site.statuses(), site.postponed) == ([500], [])
    assert (await site.ask(turn(1)))["status"] == 201


async def test_several_changes_that_cannot_be_stored_affect_no_other_command(site: ConnectionHarness) -> None:
    site.disk.rejected.add(b'"bad"')
    with capture_logs():
        for number in range(6):
            site.deliver(turn("bad" if number % 3 == 0 else number))
        await retry_until_ended(site, 6)
    assert sorted(site.statuses()) == [201, 204, 204, 204, 500, 500]
    assert site.values() == [1, 2, 4, 5]


async def test_a_batch_without_any_storable_change_is_still_answered(site: ConnectionHarness) -> None:
    site.disk.rejected.add(b'"bad"')
    with capture_logs():
        site.deliver(*[turn("bad", correlation_id=str(number)) for number in range(3)])
        await retry_until_ended(site, 3)
    assert site.statuses() == [500, 500, 500]
    assert site.values() == []
    assert (await site.ask(turn(1)))["status"] == 201


async def test_a_policys_change_that_cannot_be_stored_is_answered_as_a_policys(site: ConnectionHarness) -> None:
    owners = {"policyId": "acme.site:desk", **policy(OWNER)}
    site.disk.rejected.add(b'"policyId"')
    with capture_logs():
        answer = await site.ask(document("acme.site/desk/policies/commands/create", value=owners))
    assert (answer["status"], answer["topic"]) == (500, "acme.site/desk/policies/errors")


async def test_an_internal_error_in_a_subscription_is_answered_and_the_next_command_is_served(
    site: ConnectionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def subscribe(signal: object, peer: object) -> None:
        raise ZeroDivisionError("an internal error")

    monkeypatch.setattr(site.streams, "subscribe", subscribe)
    with capture_logs() as lines:
        site.deliver(streaming("subscribeForPersistedEvents", {}, correlation_id="c-1"), command("retrieve"))
    await site.settled(2)
    assert site.statuses() == [500, 200]
    assert [(line["connection"], line["correlation_id"]) for line in lines] == [("site", "c-1")]


async def test_an_internal_error_in_a_batch_leaves_no_decided_change_unstored(
    site: ConnectionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link ends, and the next one redelivers the batch: it and later deliveries are answered."""
    hold = site.dispatcher._request_reply.hold

    def failing(*_arguments: object) -> None:
        monkeypatch.setattr(site.dispatcher._request_reply, "hold", hold)
        raise ZeroDivisionError

    monkeypatch.setattr(site.dispatcher._request_reply, "hold", failing)
    asking = turn(2, requested_acks=["twin-persisted", "other:seen"], timeout="5s")
    batch = [turn(1), asking]
    with pytest.raises(ZeroDivisionError):
        site.handle(*(site.delivery(payload, f"d{n}") for n, payload in enumerate(batch, 1)))
    await until(lambda: site.values() == [1, 2])
    site.handle(*(site.delivery(payload, f"d{n}", redelivered=True) for n, payload in enumerate(batch, 1)))
    site.deliver(turn(3))
    await until(lambda: len(site.answers()) == 2)
    assert site.values() == [1, 2, 3]
    assert site.dispatcher.waiting_deliveries("site") == 1
