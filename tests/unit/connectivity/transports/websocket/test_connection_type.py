"""The WebSocket listener with real clients of the library `websockets`: messages and closes.

A listener has no broker: without a peer it keeps and redelivers nothing, so only some of the behaviors of all brokers apply
to it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory

from connectivity.errors import PublishFailed
from connectivity.transports.base import OutboundMessage, ReaderStatus
from mappings.model.envelope import Envelope
from tests.contract.link import MANY, Publishing, numbered, signs_of
from tests.support.in_process.websocket_listener import OpenListener, opened, peer_of
from tests.support.wait import PATIENCE, wait_until


@pytest.fixture
async def way() -> AsyncIterator[OpenListener]:
    async with opened("/twins", "/more") as listener:
        yield listener


# ── in ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_arrives_with_its_bytes_its_path_and_the_peer_to_answer_to(way: OpenListener) -> None:
    client = await way.client("/more")
    await client.send('{"on": "日本"}')
    await client.send(b"\x00\xff not text")
    first, second = await way.take(2)
    assert first.envelope.payload == '{"on": "日本"}'.encode()
    assert second.envelope.payload == b"\x00\xff not text"
    assert (first.address, first.name, first.redelivered) == ("/more", None, False)
    assert first.envelope.header("websocket.frame") == "text"
    assert second.envelope.header("websocket.frame") == "binary"
    assert peer_of(first) == peer_of(second)


async def test_a_message_has_the_request_headers_that_the_document_names_and_no_others() -> None:
    source = {
        "addresses": ["/twins"],
        "authorizationContext": ["lab:{{ header:X-Lab }}"],
        "headerMapping": {"agent": "{{ header:user-agent }}"},
        "payloadMapping": ["own"],
    }
    script = "function mapToDittoProtocolMsg(headers) {\n  return headers['x-script'] + headers.dotted; }"
    options = {"incomingScript": script, "outgoingScript": "function mapFromDittoProtocolMsg() { return null; }"}
    mapping = {"own": {"mappingEngine": "JavaScript", "options": options}}
    async with opened(sources=[source], mappingDefinitions=mapping) as way:
        named = {"X-Lab": "north", "X-Script": "a", "Dotted": "b", "Correlation-Id": "c"}
        client = await way.client(user_agent_header="lamp/7", additional_headers={**named, "X-Other": "x" * 5000})
        await client.send("hello")
        [delivery] = await way.take(1)
        found = {name: delivery.envelope.header(name) for name in ("user-agent", *(name.lower() for name in named))}
        assert list(found.values()) == ["lamp/7", *named.values()]
        assert delivery.envelope.header("x-other") is None
        [peer] = way.link.peers.values()
        assert "x" * 5000 not in f"{peer.text_headers} {peer.binary_headers}"


@pytest.mark.parametrize(
    ("engine", "name"),
    [("RawMessage", "ditto-message-thing-id"), ("ConnectionStatus", "ttd"), ("CloudEvents", "ce-source")],
)
async def test_a_message_has_the_request_headers_that_a_payload_mapper_reads(engine: str, name: str) -> None:
    options = {"thingId": "acme.site:lamp-7"} if engine == "ConnectionStatus" else {}
    source = {"addresses": ["/twins"], "authorizationContext": ["lab:all"], "payloadMapping": ["own"]}
    mapping = {"own": {"mappingEngine": engine, "options": options}}
    async with opened(sources=[source], mappingDefinitions=mapping) as way:
        client = await way.client(additional_headers={name.title(): "7"})
        await client.send("hello")
        [delivery] = await way.take(1)
        assert delivery.envelope.header(name) == "7"


async def test_messages_arrive_in_order_and_once(way: OpenListener) -> None:
    client = await way.client()
    for payload in numbered(MANY):
        await client.send(payload)
    received: list[bytes] = []
    while len(received) < MANY:
        await wait_until(lambda: way.taker.deliveries)
        received += await way.taker.payloads(len(way.taker.deliveries))
    assert received == numbered(MANY)


async def test_a_message_in_parts_arrives_whole(way: OpenListener) -> None:
    client = await way.client()
    await client.send(["one ", "", "two ", "three"])
    await client.send([b"\x00", b"\x01"])
    whole, raw = await way.take(2)
    assert whole.envelope.payload == b"one two three"
    assert raw.envelope.payload == b"\x00\x01"


async def test_an_empty_message_arrives(way: OpenListener) -> None:
    client = await way.client()
    await client.send("")
    [delivery] = await way.take(1)
    assert delivery.envelope.payload == b""


async def test_a_path_of_several_sources_delivers_to_each_source_and_uses_one_unsettled_slot() -> None:
    sources = [{"addresses": ["/both"], "authorizationContext": ["lab:all"]}] * 2
    async with opened(sources=sources, options={"maxUnsettled": "1"}) as way:
        client = await way.client("/both")
        await client.send("1")
        await client.send("2")
        for payload in (b"1", b"2"):
            for taker in way.takers:
                [delivery] = await taker.take(1, PATIENCE)
                assert delivery.envelope.payload == payload
                delivery.settle()


async def test_messages_that_a_peer_sent_before_it_left_are_delivered(way: OpenListener) -> None:
    """Also those that were not read yet because too many were unsettled."""
    client = await way.client()
    for payload in numbered(MANY):
        await client.send(payload)
    closing = asyncio.create_task(client.close())
    received: list[bytes] = []
    while len(received) < MANY:
        await wait_until(lambda: way.taker.deliveries)
        received += await way.taker.payloads(len(way.taker.deliveries))
    assert received == numbered(MANY)
    await closing


# ── out ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_answer_goes_to_the_peer_that_it_is_for(way: OpenListener) -> None:
    first, first_id = await way.met()
    second, second_id = await way.met()
    assert await way.send(second_id, b'{"for": "second"}', content_type="application/json") == [None]
    assert await way.send(first_id, b'{"for": "first"}', content_type="application/json") == [None]
    assert await second.recv() == '{"for": "second"}'
    assert await first.recv() == '{"for": "first"}'


@pytest.mark.parametrize(
    ("payload", "content_type", "expected"),
    [
        (b"{}", "application/json", "{}"),
        ("日".encode(), "application/vnd.eclipse.ditto+json;charset=utf-8", "日"),
        (b"hello", "text/plain", "hello"),
        (b"{}", None, "{}"),
        (b"{}", "application/octet-stream", b"{}"),
        (b"\xff\x00", None, b"\xff\x00"),
        (b"\xff", "text/plain", b"\xff"),
    ],
)
async def test_json_and_text_are_sent_as_text_and_the_rest_as_bytes(
    way: OpenListener, payload: bytes, content_type: str | None, expected: str | bytes
) -> None:
    client, peer = await way.met()
    await way.send(peer, payload, **({"content_type": content_type} if content_type else {}))
    assert await client.recv() == expected


async def test_many_messages_arrive_in_order_and_each_is_confirmed_once(way: OpenListener) -> None:
    client, peer = await way.met()
    sending = asyncio.create_task(way.send(peer, *numbered(MANY)))
    assert [await client.recv() for _ in range(MANY)] == [payload.decode() for payload in numbered(MANY)]
    assert await sending == [None] * MANY


async def test_a_large_message_passes_both_ways(way: OpenListener) -> None:
    large = bytes(range(256)) * 3000
    client, peer = await way.met(max_size=None)
    await client.send(large)
    [delivery] = await way.take(1)
    assert delivery.envelope.payload == large
    sending = asyncio.create_task(way.send(peer, large))
    assert await client.recv() == large
    assert await sending == [None]


async def test_a_message_to_a_path_goes_to_all_peers_there(way: OpenListener) -> None:
    here = [(await way.met())[0] for _ in range(2)]
    elsewhere, other = await way.met("/more")
    assert await way.send("/twins", b"to all", content_type="text/plain") == [None]
    assert [await client.recv() for client in here] == ["to all", "to all"]
    await way.send(other, b"first")
    assert await elsewhere.recv() == "first"


async def test_a_message_to_a_path_without_peers_is_confirmed(way: OpenListener) -> None:
    assert await way.send("/nobody", b"hello?") == [None]


async def test_a_peer_that_is_gone_takes_no_messages(way: OpenListener) -> None:
    client, peer = await way.met()
    await client.close()
    await wait_until(lambda: "0 peers" in repr(way.link))
    [error] = await way.send(peer, b"too late")
    assert isinstance(error, PublishFailed)
    assert error.fault.status == 404


async def test_a_message_to_a_peer_that_is_gone_fails(way: OpenListener) -> None:
    """Sessions outlive the service, and sockets do not: kept messages of a socket are not sent."""
    signs = signs_of(way.link)
    [error] = await way.send("a-peer-of-before", b"hello?")
    assert isinstance(error, PublishFailed)
    assert signs == [("a-peer-of-before", ReaderStatus.GONE)]


async def test_compressed_messages_pass_both_ways_where_both_sides_want_them() -> None:
    async with opened(options={"compression": "deflate"}) as way:
        client = await way.client(compression="deflate")
        assert [extension.name for extension in client.protocol.extensions] == ["permessage-deflate"]
        await client.send("on " * 1000)
        [delivery] = await way.take(1)
        assert delivery.envelope.payload == b"on " * 1000
        await way.send(peer_of(delivery), b"off " * 1000)
        assert await client.recv() == "off " * 1000
        plain = await way.client()
        await way.send("/twins", b"to all")
        assert [await client.recv(), await plain.recv()] == ["to all"] * 2


async def test_a_client_that_wants_a_window_that_the_service_does_not_have_connects_without_compression() -> None:
    async with opened(options={"compression": "deflate"}) as way:
        client, _ = await way.met(extensions=[ClientPerMessageDeflateFactory(server_max_window_bits=8)])
        assert client.protocol.extensions == []


# ── bounds ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_unsettled_messages_of_a_peer_are_bounded_and_flow_again() -> None:
    async with opened(options={"maxUnsettled": "5"}) as way:
        busy, quiet = await way.client(), await way.client()
        sending = [asyncio.create_task(busy.send(payload)) for payload in numbered(50)]
        held = await way.take(5)
        await quiet.send("me too")
        [other] = await way.take(1)
        assert other.envelope.payload == b"me too", "a busy peer does not delay others"
        assert way.taker.deliveries == []
        payloads = [delivery.envelope.payload for delivery in held]
        for delivery in held:
            delivery.settle()
        while len(payloads) < 50:
            await wait_until(lambda: way.taker.deliveries)
            assert len(way.taker.deliveries) <= 5
            payloads += await way.taker.payloads(len(way.taker.deliveries))
        assert payloads == numbered(50)
        await asyncio.gather(*sending)


async def test_a_peer_that_does_not_read_is_sent_no_more_than_a_little_and_continues_when_it_reads() -> None:
    async with opened() as way:
        client, peer = await way.met(max_queue=1)
        client.transport.pause_reading()
        publishing = Publishing(way.link)
        payload = os.urandom(64 * 1024)
        publishing.give(*(OutboundMessage(peer, Envelope(payload)) for _ in range(200)))
        await wait_until(lambda: publishing.given < 200 and publishing.given - len(publishing.outcomes) == 16)
        await client.send("is anybody there?")
        other, other_id = await way.met()
        assert await way.send(other_id, b"others go on") == [None]
        assert await other.recv() == "others go on"
        assert way.taker.deliveries == [], "nothing more is read from who does not read"
        client.transport.resume_reading()
        assert [await client.recv() for _ in range(200)] == [payload] * 200
        assert await publishing.all_done(PATIENCE) == [None] * 200
        [delivery] = await way.take(1)
        assert delivery.envelope.payload == b"is anybody there?"


# ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_closing_says_goodbye_ends_consumers_and_may_be_done_twice(way: OpenListener) -> None:
    client, _ = await way.met()
    await way.link.close()
    await way.link.close()
    await asyncio.wait_for(way.taker.task, PATIENCE)
    assert not way.link.lost.done()
    with pytest.raises(ConnectionClosed):
        await client.recv()
    assert client.close_code == 1001


async def test_messages_queued_for_a_peer_that_leaves_fail(way: OpenListener) -> None:
    client, peer = await way.met(max_queue=1)
    client.transport.pause_reading()
    publishing = Publishing(way.link)
    publishing.give(*(OutboundMessage(peer, Envelope(bytes(64 * 1024))) for _ in range(200)))
    await wait_until(lambda: publishing.given < 200 and publishing.given - len(publishing.outcomes) == 16)
    client.transport.abort()
    outcomes = await publishing.all_done(PATIENCE)
    failed = [error for error in outcomes if error is not None]
    assert failed
    assert outcomes == [*[None] * (200 - len(failed)), *failed], "nothing is confirmed behind what was lost"
