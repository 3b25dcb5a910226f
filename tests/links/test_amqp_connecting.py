"""Connecting to an AMQP broker: virtual hosts, TLS, and what each refusal is called."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest
import uvloop
from structlog.testing import capture_logs

from connectivity.errors import ConnectionRefused, Detail, LinkError, NotConnected, PublishFailed
from connectivity.security.egress import EgressRules, enforce
from connectivity.transports.amqp import client
from connectivity.transports.base import OutboundMessage
from mappings.model.envelope import Envelope
from tests.contract.link import DeliveryCollector, Publishing, examined, lost, numbered
from tests.support.amqp_link import AmqpLinkHarness
from tests.support.brokers import free_port
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.brokers.shared import ODD_LOGIN, ODD_PASSWORD
from tests.support.wait import wait_until

pytestmark = pytest.mark.broker("rabbitmq")


@pytest.fixture
async def harness(rabbitmq: RabbitMQ) -> AsyncIterator[AmqpLinkHarness]:
    async with AmqpLinkHarness.at(rabbitmq) as made:
        yield made


async def refusal(harness: AmqpLinkHarness, uri: str | None = None, **options: str) -> LinkError:
    """Return the error of a failed attempt to connect."""
    if uri is not None:
        harness.document["uri"] = uri
    with pytest.raises(LinkError) as caught:
        await harness.connect(**options)
    return caught.value


@asynccontextmanager
async def silent_server(answer: bytes) -> AsyncIterator[str]:
    """The URI of a server that sends this to every client, and then is silent."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(answer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"amqp://service:right@127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for writer in writers:
            writer.transport.abort()


# ── virtual hosts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_1_2_a_virtual_host_has_its_own_queues(rabbitmq: RabbitMQ) -> None:
    async with AmqpLinkHarness.at(rabbitmq, "fleet") as harness:
        link = await harness.connect()
        await harness.send([b"in fleet"])
        assert await DeliveryCollector(link).payloads(1) == [b"in fleet"]
        await link.close()


async def test_1_2_an_unknown_virtual_host_is_named(harness: AmqpLinkHarness) -> None:
    error = await refusal(harness, harness.broker.uri(vhost="no/where"))
    assert (type(error), error.detail) == (ConnectionRefused, Detail.MISSING_ADDRESS)
    assert "no/where" in error.text


async def test_1_2_a_virtual_host_may_have_a_slash_and_a_percent_sign_in_its_name(harness: AmqpLinkHarness) -> None:
    """`%2F` may belong to the name, which aio-pika's own URL cannot say."""
    harness.sources(["nobody.made.this"])
    error = await refusal(harness, harness.broker.uri(vhost="50%2F/7"))
    assert "in vhost '50%2F/7'" in error.text


async def test_reserved_characters_of_a_login_reach_the_broker(harness: AmqpLinkHarness) -> None:
    harness.sources()
    login = f"{quote(ODD_LOGIN, safe='')}:{quote(ODD_PASSWORD, safe='')}"
    harness.document["uri"] = f"amqp://{login}@{harness.broker.host}:{harness.broker.port}"
    link = await harness.connect()
    await link.close()


async def test_1_2_a_virtual_host_without_permission_is_not_authorized(harness: AmqpLinkHarness) -> None:
    error = await refusal(harness, harness.broker.uri("stranger", vhost="fleet"))
    assert (type(error), error.detail) == (ConnectionRefused, Detail.NOT_AUTHORIZED)
    assert "fleet" in error.text


# ── credentials and rights ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("login", ["service:wrong", "nobody:right", "f%3A%2F:p%40ss"])
async def test_bad_credentials_are_refused_with_the_message_of_the_broker(harness: AmqpLinkHarness, login: str) -> None:
    error = await refusal(harness, f"amqp://{login}@{harness.broker.host}:{harness.broker.port}")
    assert (type(error), error.detail) == (ConnectionRefused, Detail.BAD_CREDENTIALS)
    assert error.text.startswith("ACCESS_REFUSED - Login was refused")


async def test_a_queue_that_we_may_not_read_is_not_authorized(harness: AmqpLinkHarness) -> None:
    error = await refusal(harness, harness.broker.uri("stranger"))
    assert (type(error), error.detail) == (ConnectionRefused, Detail.NOT_AUTHORIZED)
    assert harness.source in error.text
    assert "stranger" in error.text


async def test_an_exchange_that_we_may_not_write_to_refuses_the_message_and_not_the_link(
    harness: AmqpLinkHarness,
) -> None:
    made = await harness.bare_client.channel.declare_exchange(f"{harness.source}.ex")
    harness.sources()
    harness.document["uri"] = harness.broker.uri("stranger")
    harness.document["targets"] = [
        {"address": f"{made.name}/key", "topics": ["_/_/things/twin/events"], "authorizationContext": ["lab:all"]}
    ]
    link = await harness.connect()
    publishing = Publishing(link)
    for _ in range(2):
        publishing.give(OutboundMessage(f"{made.name}/key", Envelope(b"no")))
    for error in await publishing.all_done():
        assert isinstance(error, PublishFailed)
        assert str(error).startswith("not authorized: ACCESS_REFUSED")
        assert made.name in str(error)
    assert not link.lost.done()
    await link.close()


async def test_a_connection_test_names_a_queue_without_read_permission(harness: AmqpLinkHarness) -> None:
    """Also while messages wait there: none is consumed, and none is marked as redelivered later."""
    await harness.send([b"waits"])
    harness.document["uri"] = harness.broker.uri("stranger")
    [[found]] = (await examined(harness.definition)).sources
    assert found.error is not None
    assert found.error.detail is Detail.NOT_AUTHORIZED
    assert "stranger" in found.error.text


async def test_a_connection_test_checks_exchanges_and_response_queues(harness: AmqpLinkHarness) -> None:
    made = await harness.bare_client.channel.declare_exchange(f"{harness.source}.ex")
    addresses = (f"{made.name}/{{{{ thing:id }}}}", "gone/key", "/gone.queue", "/{{ header:reply-to }}", harness.out)
    topics = ["_/_/things/twin/events"]
    harness.document["targets"] = [
        {"address": address, "topics": topics, "authorizationContext": ["lab:all"]} for address in addresses
    ]
    found = await examined(harness.definition)
    assert [(each.error and each.error.detail, each.is_known) for each in found.targets] == [
        (None, True),
        (Detail.MISSING_ADDRESS, True),
        (Detail.MISSING_ADDRESS, True),
        (None, False),
        (None, True),
    ]


async def test_a_connection_test_whose_login_is_refused_reports_the_reason(harness: AmqpLinkHarness) -> None:
    harness.document["uri"] = f"amqp://service:wrong@{harness.broker.host}:{harness.broker.port}"
    with pytest.raises(ConnectionRefused) as refused:
        await examined(harness.definition)
    assert refused.value.detail is Detail.BAD_CREDENTIALS


# ── queues and exchanges ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_2_3_1_missing_queues_are_named_all_together(harness: AmqpLinkHarness) -> None:
    harness.sources([harness.source, "gone-1"], ["gone-2"])
    error = await refusal(harness)
    assert (type(error), error.detail) == (ConnectionRefused, Detail.MISSING_ADDRESS)
    assert error.text == ("NOT_FOUND - no queue 'gone-1' in vhost '/'; NOT_FOUND - no queue 'gone-2' in vhost '/'")


async def test_2_3_1_a_queue_that_has_come_back_is_consumed(harness: AmqpLinkHarness) -> None:
    await harness.bare_client.channel.queue_delete(harness.source)
    assert (await refusal(harness)).detail is Detail.MISSING_ADDRESS
    await harness.bare_client.queue(harness.source)
    link = await harness.connect()
    await harness.send([b"back"])
    assert await DeliveryCollector(link).payloads(1) == [b"back"]
    await link.close()


async def test_2_3_1_a_missing_exchange_of_a_target_is_reported_and_the_link_stays_up(harness: AmqpLinkHarness) -> None:
    harness.document["targets"] = [
        {
            "address": "not-there/{{ thing:name }}",
            "topics": ["_/_/things/twin/events"],
            "authorizationContext": ["lab:all"],
        }
    ]
    with capture_logs() as logs:
        link = await harness.connect()
    [event] = [each for each in logs if each["event"] == "exchange missing"]
    assert (event["exchange"], event["log_level"]) == ("not-there", "warning")
    [(index, fault)] = link.target_faults.items()
    assert index == 0
    assert fault.startswith("missing address: NOT_FOUND - no exchange 'not-there'")
    await link.close()


async def test_names_of_queues_and_exchanges_may_have_any_characters(harness: AmqpLinkHarness) -> None:
    """The client library allows few of them, and shorter names."""
    name = f"wärme|{harness.source}*{'x' * 150}"
    await harness.bare_client.queue(name)
    await harness.bare_client.channel.declare_exchange(name)
    harness.sources([name])
    found = await examined(harness.definition)
    assert found.sources[0][0].error is None
    link = await harness.connect()
    await harness.bare_client.send_bare(name, b"ask")
    assert await DeliveryCollector(link).payloads(1) == [b"ask"]
    publishing = Publishing(link)
    publishing.give(*(OutboundMessage(address, Envelope(b"")) for address in (f"{name}/key", f"no{name}/key")))
    unbound, missing = await publishing.all_done()
    assert "NO_ROUTE" in str(unbound)
    assert "NOT_FOUND" in str(missing)
    await link.close()


async def test_a_queue_with_another_exclusive_consumer_is_named(harness: AmqpLinkHarness) -> None:
    name = f"{harness.source}.exclusive"
    await harness.bare_client.channel.declare_queue(name, exclusive=True)
    harness.sources([name])
    error = await refusal(harness)
    assert (type(error), error.detail) == (ConnectionRefused, Detail.NOT_AUTHORIZED)
    assert name in error.text


async def test_too_few_channels_are_refused_with_the_message_of_the_broker(harness: AmqpLinkHarness) -> None:
    error = await refusal(harness, requestedChannelMax="1")
    assert error.detail is Detail.REFUSED_BY_BROKER
    assert "channel" in error.text


# ── TLS ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def over_tls(harness: AmqpLinkHarness, host: str = "localhost", **more: Any) -> AmqpLinkHarness:
    harness.document.update({"uri": harness.broker.uri(tls=True, host=host), **more})
    return harness


async def test_a_given_ca_is_trusted(harness: AmqpLinkHarness) -> None:
    assert harness.broker.certificates is not None
    link = await over_tls(harness, ca=harness.broker.certificates.ca.read_text()).connect()
    taker, publishing = DeliveryCollector(link), Publishing(link)
    large = bytes(range(256)) * 2000
    publishing.give(OutboundMessage(harness.out, Envelope(large)))
    assert await publishing.all_done() == [None]
    await harness.send([large, b"small"])
    assert await taker.payloads(2) == [large, b"small"]
    await link.close()


async def test_an_untrusted_certificate_is_refused(harness: AmqpLinkHarness) -> None:
    error = await refusal(over_tls(harness))
    assert (type(error), error.detail) == (ConnectionRefused, Detail.CERTIFICATE)


async def test_a_given_ca_leaves_the_check_of_the_host_name_on(harness: AmqpLinkHarness) -> None:
    assert harness.broker.certificates is not None
    error = await refusal(over_tls(harness, "127.0.0.1", ca=harness.broker.certificates.ca.read_text()))
    assert (type(error), error.detail) == (ConnectionRefused, Detail.CERTIFICATE)
    assert "127.0.0.1" in error.text


async def test_validate_certificates_false_takes_any(harness: AmqpLinkHarness) -> None:
    link = await over_tls(harness, validateCertificates=False).connect()
    publishing = Publishing(link)
    publishing.give(OutboundMessage(harness.out, Envelope(b"x")))
    assert await publishing.all_done() == [None]
    await link.close()


async def test_a_port_without_tls_is_reported_from_a_dead_one(harness: AmqpLinkHarness) -> None:
    uri = harness.broker.uri(tls=True, port=harness.broker.port)
    error = await refusal(harness, uri, connectionTimeout="5000")
    assert (type(error), error.detail) == (NotConnected, Detail.REFUSED_BY_BROKER)
    assert error.text.startswith("TLS: ")


# ── reaching it ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_unknown_host(harness: AmqpLinkHarness) -> None:
    error = await refusal(harness, "amqp://a:b@no-such-host.invalid:5672")
    assert (type(error), error.detail) == (NotConnected, Detail.UNKNOWN_HOST)


async def test_a_port_without_a_listener_refuses_the_connection(harness: AmqpLinkHarness) -> None:
    port = free_port()
    error = await refusal(harness, f"amqp://a:b@127.0.0.1:{port}")
    assert type(error) is NotConnected
    assert str(error) == f"connection refused: 127.0.0.1:{port}: Connection refused"


async def test_a_name_that_leads_to_a_forbidden_address(harness: AmqpLinkHarness) -> None:
    with enforce(EgressRules(blocked=["127.0.0.0/8"])):
        error = await refusal(harness)
    assert (type(error), error.detail) == (ConnectionRefused, Detail.NOT_AUTHORIZED)
    assert "127.0.0.1: found a host that matches 127.0.0.0/8 in hosts.blocked, expected" in error.text


async def test_a_silent_server(harness: AmqpLinkHarness) -> None:
    async with silent_server(b"") as uri:
        error = await refusal(harness, uri, handshakeTimeout="300")
    assert (type(error), str(error)) == (NotConnected, "timeout: the broker did not answer the login within 0.3 s")


async def test_a_server_that_does_not_answer_a_tls_handshake(harness: AmqpLinkHarness) -> None:
    async with silent_server(b"") as uri:
        error = await refusal(harness, uri.replace("amqp:", "amqps:"), connectionTimeout="300")
    assert (type(error), str(error)) == (NotConnected, "timeout: no answer within 0.3 s")


async def test_a_tls_handshake_is_limited_even_if_connecting_is_not(
    harness: AmqpLinkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "TLS_PATIENCE", 0.3)
    async with silent_server(b"") as uri:
        error = await refusal(harness, uri.replace("amqp:", "amqps:"), connectionTimeout="0")
    assert (type(error), str(error)) == (NotConnected, "timeout: the broker's host did not answer in time")


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"AMQP\x00\x01\x00\x00", b"\x00" * 20])
async def test_a_server_of_another_protocol(harness: AmqpLinkHarness, answer: bytes) -> None:
    async with silent_server(answer) as uri:
        error = await refusal(harness, uri)
    assert (type(error), error.detail) == (NotConnected, Detail.REFUSED_BY_BROKER)
    assert error.text.startswith("the response is not AMQP 0.9.1: ")


async def test_an_attempt_that_is_given_up_leaves_nothing_behind(harness: AmqpLinkHarness) -> None:
    harness.proxy.stall()
    task = asyncio.create_task(connect_as_it_is(harness))
    await wait_until(lambda: harness.proxy.links)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    harness.proxy.flow()
    # The broker's side: no consumer is left at the queue.
    queue = await harness.bare_client.queue(harness.source)
    assert queue.declaration_result.consumer_count == 0


async def connect_as_it_is(harness: AmqpLinkHarness) -> None:
    """Without letting the proxy flow again first."""
    harness.proxy.flow, flow = lambda: None, harness.proxy.flow  # type: ignore[method-assign]
    try:
        await harness.connect()
    finally:
        harness.proxy.flow = flow  # type: ignore[method-assign]


def test_the_loop_that_the_service_uses_carries_it_too(rabbitmq: RabbitMQ) -> None:
    """Tests run on the standard library's loop, the service on another one."""

    async def conversation() -> None:
        async with AmqpLinkHarness.at(rabbitmq) as harness:
            link = await harness.connect()
            taker, publishing = DeliveryCollector(link), Publishing(link)
            publishing.give(*(OutboundMessage(harness.out, Envelope(payload)) for payload in numbered(1000)))
            assert await publishing.all_done() == [None] * 1000
            await harness.send(numbered(200))
            assert await taker.payloads(200) == numbered(200)
            await harness.cut()
            await lost(link)
            await link.close()
            assert rabbitmq.certificates is not None
            link = await over_tls(harness, ca=rabbitmq.certificates.ca.read_text()).connect()
            await link.close()

    uvloop.run(conversation())
