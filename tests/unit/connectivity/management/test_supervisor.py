"""A running connection: what its clients have in common. The broker lives inside the process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.connections.lifecycle import Status
from connectivity.errors import ConnectionRefused, Detail, NotConnected
from connectivity.management.client import Backoff
from connectivity.targets import event_publisher
from mappings.reactive_streams_io.frames import Goodbye, encode
from tests.support.in_process import reactive_streams_io as rsio_harness
from tests.support.in_process.running_connection import Running, numbered
from tests.support.in_process.service import ConnectionHarness, document, pause, source, streaming, target, turn, until
from tests.support.temporary_journal import positions
from tests.support.wait import PATIENCE

pytestmark = pytest.mark.usefixtures("runs")


# made


async def test_a_connection_that_is_made_is_open() -> None:
    running = Running()
    assert (running.supervisor.status, running.up()) == (Status.CLOSED, 0)
    running.supervisor.open()
    await running.open_again()
    assert running.supervisor.status_details == "connected"
    assert running.supervisor.attempted.is_set()
    assert running.up() == 1
    assert running.supervisor.status_details == "connected"


async def test_opening_twice_makes_one_link() -> None:
    running = Running()
    running.supervisor.open()
    running.supervisor.open()
    await running.open_again()
    await pause()
    assert len(running.broker.links) == 1


async def test_several_sources_share_one_link_and_answer_each_for_itself() -> None:
    running = await Running.opened(source("in"), source("other", replyTarget={"address": "there"}))
    running.send(*numbered(1, 2))
    running.send(*numbered(3, 4), to="other")
    assert await running.answered(2) == ["1", "2"]
    assert await running.answered(2, "there") == ["3", "4"]
    assert len(running.broker.links) == 1
    await until(lambda: running.unsettled(0) == running.unsettled(1) == 0)


async def test_a_connection_with_event_targets_opens_after_their_positions_are_durable() -> None:
    running = Running(id="other", targets=[target("_/_/things/twin/events")])
    await running.harness.has_lamp()
    running.harness.disk.hold()
    running.supervisor.open()
    running.supervisor.open()
    running.harness.deliver(turn(1))
    await pause()
    assert running.broker.links == []
    assert running.supervisor.status is Status.CLOSED
    shown = running.supervisor.status_report()
    assert [shown[name] for name in ("liveStatus", "recoveryStatus")] == ["unknown", "ongoing"], (
        "7.3: it is being opened"
    )
    assert [client["statusDetails"] for client in shown["clientStatus"]] == [running.supervisor.status_details]
    assert running.supervisor.status_details == "connecting: storing the positions of its targets"
    running.harness.disk.release()
    await running.open_again()
    running.harness.deliver(turn(2))
    await until(lambda: running.answers("events"))
    assert [event["value"] for event in running.answers("events")][-1:] == [2]
    assert positions(running.harness.journal)[0][:2] == ("other", "0:events")


async def test_a_connection_that_is_closed_while_its_places_wait_is_not_opened() -> None:
    running = Running(id="other", targets=[target("_/_/things/twin/events")])
    running.harness.disk.hold()
    running.supervisor.open()
    await pause()
    await asyncio.wait_for(running.supervisor.close(), PATIENCE)
    assert running.supervisor.attempted.is_set(), "a wait for its clients ends"
    assert running.supervisor.status_report()["liveStatus"] == "closed"
    running.harness.disk.release()
    await pause()
    assert running.broker.links == []


async def test_status_details_show_the_missed_events_and_the_backlog_of_a_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_publisher, "BEHIND_EVENTS", 2)
    running = await Running.opened(id="other", targets=[target("_/_/things/twin/events")], pauses=Backoff(60, 60))
    (cursor,) = running.harness.event_publisher.of("other")
    cursor.skipped = 3
    assert running.supervisor.status_details == "connected: targets[0] has missed 3 events"
    with capture_logs():
        running.broker.cut("the cable was cut")
        await until(lambda: running.supervisor.status is Status.FAILED)
    running.harness.deliver(turn(1), turn(2))
    await until(lambda: "behind" in running.supervisor.status_details)
    assert running.supervisor.status_details == (
        "connecting: the cable was cut; targets[0] is 2 events behind, for 0 s; targets[0] has missed 3 events"
    )


async def test_a_connection_without_sources_is_open_too() -> None:
    target = {"address": "out", "topics": ["_/_/things/twin/events"], "authorizationContext": ["acme:owner"]}
    running = Running(targets=[target])
    running.supervisor.clients[0]._readers = []
    running.supervisor.open()
    await running.open_again()
    assert len(running.broker.links) == 1


async def test_the_status_of_a_lost_connection_is_not_hidden_by_the_store() -> None:
    running = await Running.opened(pauses=Backoff(60, 60))
    running.harness.disk.full = True
    with capture_logs():
        running.send(*numbered(1))
        await until(lambda: not running.harness.store.commits.is_available)
        running.broker.cut("the cable was cut")
        await until(lambda: running.supervisor.status is Status.FAILED)
    assert running.supervisor.status_details == "connecting: the cable was cut"


# several clients


async def several(number: int = 2, **more: Any) -> Running:
    running = await Running.opened(clientCount=number, **more)
    await until(lambda: len(running.broker.links) == number)
    return running


async def test_each_client_has_a_link_and_all_of_them_consume_and_publish() -> None:
    running = await several(3)
    assert {link.client for link in running.broker.links} == {0, 1, 2}
    running.send(*numbered(*range(300)))
    assert sorted(await running.answered(300), key=int) == [str(number) for number in range(300)]
    await until(lambda: running.unsettled() == 0)


async def test_the_answers_of_one_entity_keep_the_order_in_which_its_commands_came() -> None:
    running = await several(2)
    running.send(*numbered(*range(500)))
    correlations = await running.answered(500)
    # The order of arrival is the order of the history.
    assert [int(correlation) for correlation in correlations] == running.harness.values()


async def test_a_connection_is_open_when_all_its_clients_are() -> None:
    running = Running(clientCount=3)
    running.supervisor.open()
    assert not running.supervisor.attempted.is_set()
    await running.open_again()
    assert running.supervisor.attempted.is_set()
    assert (running.supervisor.status_details, running.up()) == ("connected", 1)


async def test_one_dead_link_is_shown_and_the_others_do_the_work() -> None:
    running = await several(2, pauses=Backoff(60, 60))
    dead, living = sorted(running.broker.links, key=lambda link: link.client)
    with capture_logs() as lines:
        dead.die(NotConnected(Detail.CONNECTING, "the cable was cut"))
        await until(lambda: running.supervisor.status is Status.FAILED)
        assert running.supervisor.status_details == "connecting: the cable was cut (1 of 2 clients connected)"
        assert running.up() == 0
        running.send(*numbered(*range(50)))
        await running.answered(50)
        await until(lambda: running.unsettled() == 0)
    assert running.broker.links == [living]
    assert [line["client"] for line in lines if line["event"] == "connection lost"] == [0]


async def test_another_link_executes_the_deliveries_of_a_dead_link_once() -> None:
    running = await several(2, pauses=Backoff(60, 60))
    running.harness.disk.hold()
    with capture_logs():
        running.send(*numbered(*range(40)))
        await until(lambda: running.harness.disk.commits >= 2)
        running.broker.links[0].die(NotConnected(Detail.CONNECTING, "the cable was cut"))
        await pause()
        running.harness.disk.release()
        await until(lambda: running.unsettled() == 0)
    assert sorted(running.harness.values()) == list(range(40))
    assert set(running.correlations()) == {str(number) for number in range(40)}


async def test_a_client_that_cannot_connect_does_not_keep_the_others_from_it() -> None:
    running = await several(2, pauses=Backoff(0.01, 0.02))
    with capture_logs():
        running.broker.refusal = ConnectionRefused(Detail.BAD_CREDENTIALS, "who are you")
        running.broker.links[0].die(NotConnected(Detail.CONNECTING, "the cable was cut"))
        await until(lambda: running.supervisor.status is Status.MISCONFIGURED)
        assert running.supervisor.status_details == "bad credentials: who are you (1 of 2 clients connected)"
        running.broker.refusal = None
        await running.open_again()
    assert len(running.broker.links) == 2


async def test_a_subscription_continues_when_the_link_that_carried_it_dies() -> None:
    """Every event arrives once or twice, in order; none is missing."""
    running = await several(2, pauses=Backoff(60, 60))
    running.send(*numbered(*range(400)))
    await running.answered(400)
    running.broker.taken.clear()
    running.send(streaming("subscribeForPersistedEvents", {}))
    await running.answered(1)
    key = running.answers()[0]["value"]["subscriptionId"]
    running.broker.withheld_confirms = 100
    with capture_logs():
        running.send(streaming("request", {"subscriptionId": key, "demand": 1000}))
        await running.answered(100)
        carriers = running.supervisor._outbox._link_windows
        busy = next(link for link in running.broker.links if carriers[link.client].in_flight)
        busy.die(NotConnected(Detail.CONNECTING, "the cable was cut"))
        await until(lambda: running.answers()[-1]["topic"].endswith("complete"))
    events = [answer for answer in running.answers() if answer["topic"].endswith("next")]
    revisions = [event["value"]["item"]["revision"] for event in events]
    first, rest = revisions[:100], revisions[100:]
    assert first == list(range(1, 101))
    assert rest == list(range(1, 402))


async def test_closing_waits_for_the_deliveries_of_all_links() -> None:
    running = await several(2)
    running.harness.disk.hold()
    running.send(*numbered(*range(20)))
    await until(lambda: running.harness.disk.commits >= 2)
    closing = asyncio.create_task(running.supervisor.close(600))
    await pause()
    assert not closing.done()
    running.harness.disk.release()
    await asyncio.wait_for(closing, PATIENCE)
    assert running.broker.links == []
    assert (running.supervisor.status, running.supervisor.status_details) == (Status.CLOSED, "closed")
    assert set(running.correlations()) == set(map(str, running.harness.values()))


@pytest.mark.parametrize("answers", [True, False])
async def test_closing_takes_leave_of_sessions_before_no_more_is_taken(answers: bool) -> None:
    running = Running(rsio_harness.source(), mappingDefinitions=rsio_harness.definition())
    running.supervisor.open()
    await running.open_again()
    running.send(bytes.fromhex("01 00 00"), reply_to="client")
    await until(lambda: len(running.broker.sent_to("client")) == 1)
    closing = asyncio.create_task(running.supervisor.close(60 if answers else 0.1))
    await until(lambda: len(running.broker.sent_to("client")) == 2)
    assert running.broker.sent_to("client")[1].payload == encode(Goodbye("shutdown"))
    if answers:
        assert not closing.done()
        running.send(bytes.fromhex("03 00"), reply_to="client")
    await asyncio.wait_for(closing, PATIENCE)
    assert running.supervisor.status is Status.CLOSED
    assert running.unsettled() == 0


async def test_closing_waits_as_long_as_one_link_lives() -> None:
    running = await several(2)
    running.broker.withheld_confirms = 1
    running.send(*numbered(1))
    await running.answered(1)
    with capture_logs():
        closing = asyncio.create_task(running.supervisor.close(600))
        running.broker.links[0].die(NotConnected(Detail.CONNECTING, "cut"))
        running.broker.links[0].die(NotConnected(Detail.CONNECTING, "cut"))
        await asyncio.wait_for(closing, PATIENCE)
    assert running.supervisor.status is Status.CLOSED


# what a living link says


async def test_a_problem_of_a_live_link_is_shown_and_the_connection_stays_open() -> None:
    running = await several(2)
    running.broker.links[1].condition = "refused by broker: it takes nothing now"
    assert running.supervisor.status is Status.OPEN
    assert running.supervisor.status_details == "refused by broker: it takes nothing now"
    assert running.up() == 1
    running.broker.links[1].condition = None
    assert running.supervisor.status_details == "connected"


async def test_deliveries_that_wait_for_acknowledgements_are_shown_and_left_to_the_broker_at_the_end() -> None:
    running = await Running.opened()
    running.send(*[turn(number, correlation_id=str(number), requested_acks=["other:seen"]) for number in range(3)])
    await until(lambda: running.harness.waiting_deliveries() == 3)
    assert running.supervisor.status_details == "connected: 3 deliveries wait for acknowledgements"
    await running.supervisor.close()
    assert (running.unsettled(), running.harness.waiting_deliveries()) == (3, 0)


async def test_a_running_connection_publishes_signals_of_other_connections_at_its_targets() -> None:
    messages = "_/_/things/live/messages"
    running = await Running.opened(id="receiver", targets=[target(messages)])
    other = ConnectionHarness(beside=running.harness, id="sender")
    other.deliver(document("acme.site/lamp-7/things/live/messages/x", "/inbox/messages/x", response_required=False))
    await until(lambda: running.answers("events"))
    assert running.answers("events")[0]["topic"] == "acme.site/lamp-7/things/live/messages/x"
    await running.supervisor.close()
    other.deliver(document("acme.site/lamp-7/things/live/messages/y", "/inbox/messages/y", response_required=False))
    await other.settled(2)
    assert len(running.answers("events")) == 1
