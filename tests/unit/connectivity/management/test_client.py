"""A client of a connection: its link is made, lost, made again. The broker lives inside the process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.connections.lifecycle import ConnectionState, Status
from connectivity.connections.model import Connection
from connectivity.dispatch.dispatcher import Dispatcher
from connectivity.errors import ConnectionRefused, Detail, LinkError, LinkRenewed, NotConnected
from connectivity.management.client import Backoff
from connectivity.targets.outbox import MAX_FAILED_LINKS
from connectivity.transports.base import CONSUME_DEFAULTS, ConsumeOptions, Done, Link, OutboundMessage
from mappings.model.envelope import Envelope
from tests.support.in_process.running_connection import Running, numbered, with_broker
from tests.support.in_process.service import pause, streaming, until
from tests.support.memory_transport import CONNECTION_TYPE, MemoryLink

pytestmark = pytest.mark.usefixtures("runs")


# not made


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotConnected(Detail.UNKNOWN_HOST, "no such name"), Status.MISCONFIGURED),
        (NotConnected(Detail.REFUSED, "nobody listens"), Status.MISCONFIGURED),
        (NotConnected(Detail.TIMEOUT, "no answer"), Status.FAILED),
        (ConnectionRefused(Detail.BAD_CREDENTIALS, "who are you"), Status.MISCONFIGURED),
        (ConnectionRefused(Detail.CERTIFICATE, "expired"), Status.MISCONFIGURED),
        (ConnectionRefused(Detail.NOT_AUTHORIZED, "not you"), Status.MISCONFIGURED),
        (ConnectionRefused(Detail.MISSING_ADDRESS, "no queue 'in'"), Status.MISCONFIGURED),
        (ConnectionRefused(Detail.REFUSED_BY_BROKER, "go away"), Status.MISCONFIGURED),
    ],
    ids=lambda value: value.detail.value if isinstance(value, LinkError) else None,
)
async def test_the_status_has_the_reason_why_a_connection_was_not_made(error: LinkError, status: Status) -> None:
    running = Running(pauses=Backoff(60, 60))
    running.broker.refusal = error
    running.supervisor.open()
    assert not running.supervisor.attempted.is_set()
    with capture_logs() as lines:
        await until(running.supervisor.attempted.is_set)
    assert running.supervisor.status is status
    assert running.supervisor.status_details == f"{error.detail.value}: {error.text}"
    assert running.up() == 0
    assert [(line["connection"], line["reason"], line["tries"]) for line in lines] == [("site", str(error), 1)]


async def test_trying_continues_until_the_connection_is_made() -> None:
    running = Running()
    running.broker.refusal = NotConnected(Detail.REFUSED, "nobody listens")
    with capture_logs():
        running.supervisor.open()
        await until(lambda: running.supervisor.clients[0].lifecycle.tries > 3)
        running.broker.refusal = None
        await running.open_again()
    assert running.supervisor.status_details == "connected"


async def test_a_tunnel_is_not_gone_around() -> None:
    login = {"type": "plain", "username": "tunnel", "password": "secret"}
    tunnel = {"enabled": True, "credentials": login, "validateHost": False, "uri": "ssh://bastion.acme.example:22"}
    running = Running(sshTunnel=tunnel)
    with capture_logs():
        running.supervisor.open()
        await until(running.supervisor.attempted.is_set)
    assert running.supervisor.status is Status.MISCONFIGURED
    assert (
        running.supervisor.status_details
        == "connection refused: this version of the service does not support sshTunnel"
    )
    # Only another document helps.
    assert not running.supervisor.clients[0].is_running
    assert running.broker.links == []
    supervisor = running.supervisor
    await supervisor.close()
    assert supervisor.status is Status.CLOSED


async def test_a_client_that_is_stopped_while_it_waits_does_not_try_again() -> None:
    running = Running()
    running.broker.refusal = NotConnected(Detail.REFUSED, "nobody listens")
    client = running.supervisor.clients[0]
    with capture_logs():
        running.supervisor.open()
        await until(lambda: client.lifecycle.state is ConnectionState.WAITING)
        client.stop_consuming()
        # Other clients of the connection may still be draining.
        await until(lambda: not client.is_running)
        await running.supervisor.close()
    assert running.supervisor.status is Status.CLOSED


async def test_a_client_that_is_stopped_while_it_connects_leaves_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other clients of the connection may still be draining when the broker answers."""
    may_connect = asyncio.Event()

    async def connect(connection: Connection, client: int = 0, consume: ConsumeOptions = CONSUME_DEFAULTS) -> Link:
        await may_connect.wait()
        assert CONNECTION_TYPE.connect is not None
        return await CONNECTION_TYPE.connect(connection, client, consume)

    running = Running()
    with_broker(monkeypatch, replace(CONNECTION_TYPE, connect=connect))
    client = running.supervisor.clients[0]
    running.supervisor.open()
    await until(lambda: client.lifecycle.state is ConnectionState.CONNECTING)
    client.stop_consuming()
    may_connect.set()
    await until(lambda: not client.is_running)
    await running.supervisor.close()
    assert running.broker.links == []
    assert running.supervisor.status is Status.CLOSED


async def test_links_get_the_limits_and_report_committed_offsets_to_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running()
    consumed: list[ConsumeOptions] = []

    async def connect(connection: Connection, client: int = 0, consume: ConsumeOptions = CONSUME_DEFAULTS) -> Link:
        consumed.append(consume)
        return await CONNECTION_TYPE.connect(connection, client, consume)

    with_broker(monkeypatch, replace(CONNECTION_TYPE, connect=connect))
    running.supervisor.open()
    await until(lambda: running.supervisor.status is Status.OPEN)
    [consume] = consumed
    assert (consume.payload, consume.unsettled_bytes) == (1 << 20, 16 << 20)
    consume.on_committed("topic/0", 7)
    assert running.harness.journal.committed == {(running.supervisor.connection.id, "topic/0"): 7}
    await running.supervisor.close()


async def test_an_internal_error_while_connecting_is_reported_and_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = Running()
    tries = count(1)

    async def connect(connection: Connection, client: int = 0, consume: ConsumeOptions = CONSUME_DEFAULTS) -> Link:
        if next(tries) == 1:
            raise ZeroDivisionError("internal error")
        return await CONNECTION_TYPE.connect(connection, client, consume)

    with_broker(monkeypatch, replace(CONNECTION_TYPE, connect=connect))
    with capture_logs() as lines:
        running.supervisor.open()
        await running.open_again()
    assert lines[1]["reason"] == "connecting: failed: ZeroDivisionError"
    assert lines[0]["exc_info"] is True


# lost


async def test_a_link_that_dies_is_made_again_and_its_sources_continue() -> None:
    running = await Running.opened()
    with capture_logs() as lines:
        running.broker.cut("the cable was cut")
        running.send(*numbered(1))
        assert await running.answered(1) == ["1"]
    assert lines[0]["reason"] == "connecting: the cable was cut"
    assert len(running.broker.links) == 1
    assert running.up() == 1


async def test_a_link_that_is_lost_while_its_client_stops_is_closed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A session that is over ends when its link is closed."""
    closed: list[MemoryLink] = []

    async def close(link: MemoryLink) -> None:
        closed.append(link)

    monkeypatch.setattr(MemoryLink, "close", close)
    running = await Running.opened()
    client, [link] = running.supervisor.clients[0], running.broker.links
    client.stop_consuming()
    running.broker.cut()
    await until(lambda: not client.is_running)
    await running.supervisor.close()
    assert closed == [link]


async def test_messages_a_dead_link_has_not_confirmed_are_sent_again_first_and_in_order() -> None:
    """The broker delivers the commands again too: they are answered again, and not executed again."""
    running = await Running.opened()
    running.broker.withheld_confirms = 3
    running.send(*numbered(1, 2, 3))
    await running.answered(3)
    assert running.unsettled() == 3
    with capture_logs():
        running.broker.cut()
        running.send(*numbered(4))
        await until(lambda: "4" in running.correlations())
    correlations = running.correlations()
    assert correlations[:6] == ["1", "2", "3", "1", "2", "3"]
    assert correlations[6:] == sorted(correlations[6:])
    assert running.harness.values() == [1, 2, 3, 4]
    await until(lambda: running.unsettled() == 0)


async def test_answers_that_become_ready_without_a_link_wait_for_the_next_one() -> None:
    running = await Running.opened()
    running.harness.disk.hold()
    running.send(*numbered(1))
    await until(lambda: running.harness.disk.commits == 2)
    running.broker.refusal = NotConnected(Detail.REFUSED, "nobody listens")
    with capture_logs():
        running.broker.cut()
        await until(lambda: not running.broker.links)
        running.harness.disk.release()
        await until(lambda: running.harness.values() == [1])
        assert running.answers() == []
        running.broker.refusal = None
        # The delivery comes again; whether its answer is still on its way then is a matter of who is faster.
        assert set(await running.answered(1)) == {"1"}
        await until(lambda: running.unsettled() == 0)
    assert running.harness.values() == [1]


async def test_an_answer_outlives_any_number_of_links_that_fall_silent() -> None:
    """A disconnect by the broker may be about the message; a silent broker is not."""
    running = await Running.opened()
    silent = MAX_FAILED_LINKS + 2
    running.broker.withheld_confirms = silent
    running.send(*numbered(1))
    with capture_logs():
        for number in range(silent):
            await running.answered(number + 1)
            for link in list(running.broker.links):
                link.die(NotConnected(Detail.TIMEOUT, "the broker has stopped confirming messages"))
        assert set(await running.answered(silent + 1)) == {"1"}
        await until(lambda: running.unsettled() == 0)
    assert running.harness.values() == [1]


async def test_a_subscription_outlives_the_link() -> None:
    running = await Running.opened()
    running.send(*numbered(1, 2))
    await running.answered(2)
    running.send(streaming("subscribeForPersistedEvents", {}))
    await running.answered(3)
    key = running.answers()[2]["value"]["subscriptionId"]
    with capture_logs():
        await running.linked_again()
    running.send(streaming("request", {"subscriptionId": key, "demand": 10}))
    await running.answered(7)
    assert [answer["topic"].rpartition("/")[2] for answer in running.answers()[3:]] == ["next"] * 3 + ["complete"]


async def test_case_33_a_connection_that_was_closed_in_between_has_forgotten_its_subscriptions() -> None:
    running = await Running.opened()
    running.send(streaming("subscribeForPersistedEvents", {}))
    await running.answered(1)
    key = running.answers()[0]["value"]["subscriptionId"]
    await running.supervisor.close()
    running.supervisor.open()
    running.send(streaming("request", {"subscriptionId": key, "demand": 1}))
    await running.answered(2)
    assert running.answers()[1]["value"]["error"]["status"] == 404


async def test_without_failover_a_lost_link_stays_closed_until_an_operator_opens_it() -> None:
    running = await Running.opened(failoverEnabled=False)
    with capture_logs() as lines:
        running.broker.cut("the cable was cut")
        await until(lambda: running.supervisor.status is Status.FAILED)
        await pause(500)
    assert running.supervisor.status_details == "connecting: the cable was cut"
    assert (running.broker.links, running.up()) == ([], 0)
    assert [line["event"] for line in lines] == ["connection lost, failover disabled"]
    running.supervisor.open()
    await running.open_again()
    assert len(running.broker.links) == 1


async def test_without_failover_a_first_try_that_fails_is_the_only_one() -> None:
    running = Running(failoverEnabled=False)
    running.broker.refusal = NotConnected(Detail.TIMEOUT, "no answer")
    with capture_logs():
        running.supervisor.open()
        await until(running.supervisor.attempted.is_set)
        await pause(500)
    assert (running.supervisor.status, running.supervisor.clients[0].lifecycle.tries) == (Status.FAILED, 1)


async def test_without_failover_a_link_that_ends_itself_for_redeliveries_is_replaced() -> None:
    running = await Running.opened(failoverEnabled=False)
    (renewed,) = running.broker.links
    with capture_logs():
        renewed.die(LinkRenewed(Detail.CONNECTING, "reconnecting for redelivery: a delivery was requeued"))
        await until(lambda: running.broker.links)
        await running.open_again()
    running.send(*numbered(1))
    assert await running.answered(1) == ["1"]


async def test_a_link_that_fails_to_publish_is_closed_and_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Waiting messages are sent once there is a link, so an internal error shows there."""
    running = await Running.opened(pauses=Backoff(0.001, 0.002))
    closed: list[bool] = []
    mistakes = iter([ZeroDivisionError("internal error")])
    publish, close = MemoryLink.publish, MemoryLink.close

    def mistaken(self: MemoryLink, message: OutboundMessage, done: Done) -> None:
        for mistake in mistakes:
            raise mistake
        publish(self, message, done)

    async def closing(self: MemoryLink) -> None:
        closed.append(True)
        await close(self)

    running.broker.refusal = NotConnected(Detail.REFUSED, "nobody listens")
    with capture_logs() as lines:
        running.broker.cut("the cable was cut")
        await until(lambda: running.supervisor.status is not Status.OPEN)
        running.supervisor._outbox.post([OutboundMessage("out", Envelope(b'{"headers": {"correlation-id": "1"}}'))])
        monkeypatch.setattr(MemoryLink, "publish", mistaken)
        monkeypatch.setattr(MemoryLink, "close", closing)
        running.broker.refusal = None
        assert await running.answered(1) == ["1"]
    assert closed
    assert len(running.broker.links) == 1
    (line,) = [line for line in lines if line.get("exc_info")]
    assert line["event"] == "unexpected error while serving a link"
    assert "connecting: serving failed: ZeroDivisionError" in [line.get("reason") for line in lines]


async def test_a_source_that_stops_by_an_internal_error_gets_a_new_link(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Dispatcher.handle
    mistakes: list[Exception] = []

    def mistaken(self: Dispatcher, *arguments: Any) -> None:
        if mistakes:
            raise mistakes.pop()
        handle(self, *arguments)

    monkeypatch.setattr(Dispatcher, "handle", mistaken)
    running = await Running.opened()
    mistakes.append(ZeroDivisionError("internal error"))
    with capture_logs() as lines:
        running.send(*numbered(1))
        assert await running.answered(1) == ["1"]
    assert [line["event"] for line in lines] == ["source stopped", "connection lost", "connected"]
    assert lines[1]["reason"] == "connecting: source stopped: ZeroDivisionError"
    assert len(running.broker.links) == 1
