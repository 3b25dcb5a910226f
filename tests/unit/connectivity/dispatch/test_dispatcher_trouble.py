"""When the store is away, or when we have made a mistake: nobody is answered too early, nobody suffers for another."""

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


# the store is away


async def handled_again(site: ConnectionHarness) -> list[InboundDelivery]:
    """What was handed back, when the store has come back; it is taken up again."""
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
    await handled_again(site)
    await site.settled(5)
    assert site.values() == [1, 2]
    assert [name for name, _ in site.outcomes] == ["d2", "d3", "d4", "d5", "d6"]


async def test_while_the_store_is_away_not_even_what_needs_none_is_answered(site: ConnectionHarness) -> None:
    """An answer now would overtake those that wait, and tell of a past that has not come to be."""
    site.disk.full = True
    site.deliver(turn(1))
    await until(lambda: not site.store.is_available)
    key_or_none = streaming("subscribeForPersistedEvents", {})
    site.deliver(command("retrieve"), b"no json", key_or_none)
    await until(lambda: len(site.postponed) == 4)
    assert (site.answers(), list(site.streams)) == ([], [])
    site.disk.full = False
    await handled_again(site)
    await site.settled(4)
    assert len(list(site.streams)) == 1


async def test_a_commit_that_was_carried_out_though_it_failed_is_not_carried_out_again(site: ConnectionHarness) -> None:
    site.disk.loses_answers = True
    site.deliver(turn(1, correlation_id="c-1"))
    await until(lambda: site.postponed)
    await handled_again(site)
    await site.settled(1)
    assert (site.values(), site.statuses(), site.correlations()) == ([1], [201], ["c-1"])


async def test_a_redelivery_after_the_store_was_away_is_executed_once(site: ConnectionHarness) -> None:
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
async def test_a_store_that_cannot_be_read_is_no_reason_for_an_answer(
    site: ConnectionHarness, payload: bytes, redelivered: bool
) -> None:
    """What was decided before is stored and answered; from there on everything is handed back."""
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
    await handled_again(site)
    await until(lambda: len(site.outcomes) == 4)
    assert site.values() == [0, 1, *([2] if payload == turn(2) else []), 3]


async def test_what_was_refused_before_it_was_handed_back_is_judged_anew(site: ConnectionHarness) -> None:
    """Its delivery is not dropped for what is no longer so."""
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


async def test_a_cancelled_wait_for_the_disk_answers_nothing(site: ConnectionHarness) -> None:
    """As when the loop is torn down: whoever asked will ask again."""
    site.disk.hold()
    stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    site.store.submit = lambda changes: stored  # type: ignore[method-assign]
    site.deliver(turn(1))
    stored.cancel()
    await pause()
    assert (site.answers(), numbers(site.postponed)) == ([], ["d2"])
    site.disk.release()


# mistakes of our own


class Mistaken(Decider):
    """Fails at one value as no decision should."""

    def decide(self, command: Command, subjects: Sequence[str]) -> Decision:
        if command.value == b'"mistake"':
            raise ZeroDivisionError("a mistake of our own")
        return super().decide(command, subjects)


async def test_a_mistake_in_a_decision_is_a_500_answer_and_the_next_command_is_served() -> None:
    site = ConnectionHarness(decider=lambda store: Mistaken(store, now=lambda: NOW))
    await site.has_lamp()
    with capture_logs() as lines:
        site.deliver(turn(1), turn("mistake", correlation_id="c-1"), turn(2))
    assert await site.ended(3) == [Outcome.SETTLED, Outcome.REDELIVER, Outcome.SETTLED]
    assert site.statuses() == [201, 500, 204]
    assert site.answers()[1]["value"]["error"] == "internalerror"
    assert site.values() == [1, 2]
    assert [(line["connection"], line["correlation_id"], line["exc_info"]) for line in lines] == [("site", "c-1", True)]
    assert site.count("in", "failed") == 1


async def tried_until_ended(site: ConnectionHarness, number: int) -> None:
    """Take up what is handed back, as the source's intake does, until so many deliveries have ended."""
    while len(site.outcomes) < number:
        await until(lambda: site.postponed or len(site.outcomes) >= number)
        await site.store.barrier()
        await pause()
        await handled_again(site)


async def test_a_change_that_cannot_be_stored_costs_its_own_command_an_answer_of_500(site: ConnectionHarness) -> None:
    """Its neighbours are stored in their order, whether in the same batch, behind it, or about the same thing."""
    await site.has_lamp("lamp-8")
    site.disk.rejected.add(b'"bad"')
    with capture_logs() as lines:
        site.deliver(turn(1), turn("bad", correlation_id="c-1"), turn(2), turn(3, name="lamp-8"))
        site.deliver(turn(4))
        await tried_until_ended(site, 5)
    assert sorted(site.statuses()) == [201, 201, 204, 204, 500]
    assert site.values() == [1, 2, 4]
    told = [line for line in lines if line["event"] == "a change could not be stored"]
    assert [(line["connection"], line["correlation_id"]) for line in told] == [("site", "c-1")]


async def test_a_neighbour_with_a_key_is_not_told_the_success_of_a_try_that_failed(site: ConnectionHarness) -> None:
    """Its first try fell with the batch; what is answered rests on the second one, which is stored."""
    site.disk.rejected.add(b'"bad"')
    with capture_logs():
        site.deliver(turn("bad"), turn(2, idempotency_key="k"))
        await tried_until_ended(site, 2)
    assert sorted(site.statuses()) == [201, 500]
    assert site.values() == [2]


async def test_what_comes_while_a_batch_fails_does_not_overtake_it(site: ConnectionHarness) -> None:
    """The store has given up the batch, and nobody has been told yet."""
    site.disk.rejected.add(b'"bad"')
    with capture_logs():
        site.deliver(turn(1), turn("bad"))
        asyncio.get_running_loop().call_soon(lambda: site.deliver(turn(2)))
        await until(lambda: len(site.postponed) == 3)
        await tried_until_ended(site, 3)
    assert site.values() == [1, 2]


async def test_a_change_that_cannot_be_stored_alone_is_answered_at_once(site: ConnectionHarness) -> None:
    site.disk.rejected.add(b'"bad"')
    with capture_logs():
        site.deliver(turn("bad"))
        assert await site.ended(1) == [Outcome.REDELIVER]
    assert (site.statuses(), site.postponed) == ([500], [])
    assert (await site.ask(turn(1)))["status"] == 201


async def test_several_changes_that_cannot_be_stored_cost_nobody_else_anything(site: ConnectionHarness) -> None:
    site.disk.rejected.add(b'"bad"')
    with capture_logs():
        for number in range(6):
            site.deliver(turn("bad" if number % 3 == 0 else number))
        await tried_until_ended(site, 6)
    assert sorted(site.statuses()) == [201, 204, 204, 204, 500, 500]
    assert site.values() == [1, 2, 4, 5]


async def test_a_batch_of_which_nothing_can_be_stored_is_answered_all_the_same(site: ConnectionHarness) -> None:
    site.disk.rejected.add(b'"bad"')
    with capture_logs():
        site.deliver(*[turn("bad", correlation_id=str(number)) for number in range(3)])
        await tried_until_ended(site, 3)
    assert site.statuses() == [500, 500, 500]
    assert site.values() == []
    assert (await site.ask(turn(1)))["status"] == 201


async def test_a_policys_change_that_cannot_be_stored_is_answered_as_a_policys(site: ConnectionHarness) -> None:
    owners = {"policyId": "acme.site:desk", **policy(OWNER)}
    site.disk.rejected.add(b'"policyId"')
    with capture_logs():
        answer = await site.ask(document("acme.site/desk/policies/commands/create", value=owners))
    assert (answer["status"], answer["topic"]) == (500, "acme.site/desk/policies/errors")


async def test_a_mistake_in_a_subscription_is_answered_and_the_next_command_is_served(
    site: ConnectionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def subscribe(signal: object, peer: object) -> None:
        raise ZeroDivisionError("a mistake of our own")

    monkeypatch.setattr(site.streams, "subscribe", subscribe)
    with capture_logs() as lines:
        site.deliver(streaming("subscribeForPersistedEvents", {}, correlation_id="c-1"), command("retrieve"))
    await site.settled(2)
    assert site.statuses() == [500, 200]
    assert [(line["connection"], line["correlation_id"]) for line in lines] == [("site", "c-1")]


async def test_a_mistake_amid_a_batch_leaves_nothing_decided_that_is_not_stored(
    site: ConnectionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link ends, and the next one brings the batch again: it is answered, and so is what comes behind it."""
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
    assert site.dispatcher.held("site") == 1
