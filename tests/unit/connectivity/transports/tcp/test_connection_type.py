"""The TCP listener with raw sockets: input, output, closing, TLS, and the limits for peers."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
import trustme
import uvloop
from structlog.testing import capture_logs

from connectivity.connections.model import Connection
from connectivity.errors import ConnectionRefused, ConnectivityError, Detail, NotConnected, PublishFailed
from connectivity.transports import load_connection_type
from connectivity.transports.base import CloseReason, Delivery, OutboundMessage, ReaderStatus
from connectivity.transports.listener import link as link_module
from connectivity.transports.listener.socket import HIGH_WATER
from connectivity.transports.tcp.link import MAX_PIECE, TcpLink, TcpPeer
from mappings.model.envelope import Envelope
from tests.contract.link import DeliveryCollector, Publishing, signs_of
from tests.support.brokers import free_port
from tests.support.in_process.tcp_service import Caller, document
from tests.support.in_process.websocket_listener import key_of, let_pass, own, peer_of, trusting
from tests.support.table import each_row
from tests.support.wait import PATIENCE, wait_until


class AllProtocolsSetup:
    """An open door, who takes its deliveries, and the callers."""

    def __init__(self, link: TcpLink, connection: Connection) -> None:
        self.link, self.connection = link, connection
        self.taker = DeliveryCollector(link)
        self.port = connection.broker_uri.port
        self._callers: list[Caller] = []

    async def caller(self, **options: Any) -> Caller:
        made = await Caller.at(self.port, **options)
        self._callers.append(made)
        return made

    async def met(self, **options: Any) -> tuple[Caller, str]:
        """A caller, and the id of its peer."""
        made = await self.caller(**options)
        [told] = await self.take(1)
        assert told.envelope.payload == b""
        told.settle()
        return made, peer_of(told)

    async def take(self, count: int) -> list[Delivery]:
        return await self.taker.take(count, PATIENCE)

    async def raw(self, number: int) -> bytes:
        """So many octets of whoever sends; each delivery is settled."""
        found = b""
        while len(found) < number:
            [delivery] = await self.take(1)
            found += delivery.envelope.payload
            delivery.settle()
        return found

    async def send(
        self, peer: str, *payloads: bytes, parting: CloseReason | None = None
    ) -> list[ConnectivityError | None]:
        publishing = self.telling(peer, *payloads, parting=parting)
        return await publishing.all_done(PATIENCE)

    def telling(self, peer: str, *payloads: bytes, parting: CloseReason | None = None) -> Publishing:
        publishing = Publishing(self.link)
        publishing.give(*(OutboundMessage(peer, Envelope(payload, {}), parting=parting) for payload in payloads))
        return publishing

    def peer(self, name: str) -> TcpPeer:
        return self.link.peers[name]

    async def end(self) -> None:
        for caller in self._callers:
            await caller.leave()
        await self.link.close()
        await self.taker.task


@asynccontextmanager
async def opened(options: dict[str, str] | None = None, **more: Any) -> AsyncIterator[AllProtocolsSetup]:
    connection = Connection.model_validate(document(free_port(), specificConfig=options or {}, **more))
    connect = load_connection_type("tcp").connect
    assert connect is not None
    link = await connect(connection)
    assert isinstance(link, TcpLink)
    pier = AllProtocolsSetup(link, connection)
    try:
        yield pier
    finally:
        await pier.end()


# ── in ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_peer_is_reported_before_it_has_sent_anything() -> None:
    async with opened() as pier:
        await pier.caller()
        [told] = await pier.take(1)
        assert told.envelope.payload == b""
        assert (told.address, told.name, told.redelivered, told.reader) == ("rsio", None, False, peer_of(told))
        assert set(told.envelope.headers) == {"reply-to"}


async def test_bytes_from_a_peer_arrive_in_order_in_any_chunking() -> None:
    async with opened() as pier:
        caller, _ = await pier.met()
        sent = os.urandom(3_000_000)
        for start in range(0, 1000, 7):
            caller.writer.write(sent[start : min(start + 7, 1000)])
            await asyncio.sleep(0)
        caller.writer.write(sent[1000:])
        assert await pier.raw(len(sent)) == sent


async def test_the_listener_stops_reading_at_the_unsettled_limit_and_delivers_the_rest_later() -> None:
    async with opened(options={"maxUnsettled": "2"}) as pier:
        caller, name = await pier.met()
        for byte in b"abcdef":
            caller.writer.write(bytes([byte]))
            await wait_until(lambda byte=byte: len(pier.taker.deliveries) == min(byte - 96, 2))  # type: ignore[misc]
        caller.writer.write(b"x" * (8 << 20))
        peer = pier.peer(name)
        await wait_until(lambda: not peer.times.is_reading)
        one, two = await pier.take(2)
        assert (one.envelope.payload, two.envelope.payload) == (b"a", b"b")
        assert len(peer._unread) < 1 << 20
        for each in (one, two):
            each.settle()
        rest = await pier.raw((8 << 20) + 4)
        assert rest[:5] == b"cdefx"


async def test_a_piece_is_never_larger_than_a_piece_may_be() -> None:
    async with opened(options={"maxUnsettled": "1"}) as pier:
        caller, _ = await pier.met()
        caller.writer.write(bytes(20 * MAX_PIECE))
        sizes: list[int] = []
        while sum(sizes) < 20 * MAX_PIECE:
            [delivery] = await pier.take(1)
            sizes.append(len(delivery.envelope.payload))
            delivery.settle()
        assert max(sizes) == MAX_PIECE


async def test_bytes_that_a_peer_sent_before_it_left_are_delivered() -> None:
    async with opened(options={"maxUnsettled": "1"}) as pier:
        told = signs_of(pier.link)
        caller, name = await pier.met()
        caller.writer.write(b"a")
        [first] = await pier.take(1)
        caller.writer.write(bytes(100_000))
        caller.writer.close()
        await wait_until(lambda: not pier.peer(name).times.is_reading)
        assert not told, "it has not left before all of it was taken"
        first.settle()
        assert await pier.raw(100_000) == bytes(100_000)
        await wait_until(lambda: told == [(name, ReaderStatus.GONE)])


async def test_the_end_of_a_peer_is_reported_after_its_last_message() -> None:
    async with opened() as pier:
        told = signs_of(pier.link)
        caller, name = await pier.met()
        caller.writer.write(b"a")
        [last] = await pier.take(1)
        await caller.leave()
        await wait_until(lambda: not pier.link.peers)
        assert not told
        last.settle()
        assert told == [(name, ReaderStatus.GONE)]
        assert not pier.link._leaving


async def test_a_closing_listener_reports_all_peers_that_have_left_even_with_unsettled_deliveries() -> None:
    async with opened() as pier:
        told = signs_of(pier.link)
        names = []
        for _ in range(2):
            caller, name = await pier.met()
            caller.writer.write(b"a")
            await pier.take(1)
            names.append(name)
        await caller.leave()
        await wait_until(lambda: len(pier.link.peers) == 1)
        assert not told
        await pier.link.close()
        await wait_until(lambda: dict(told) == dict.fromkeys(names, ReaderStatus.GONE))


async def test_messages_of_all_peers_together_are_bounded_and_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "MAX_HELD", 60)
    async with opened() as pier:
        callers = [(await pier.caller()) for _ in range(30)]
        # An empty piece reports each of them.
        await wait_until(lambda: len(pier.taker.deliveries) == 30)
        for caller in callers:
            caller.writer.write(b"a")
        await wait_until(lambda: not any(each.times.is_reading for each in pier.link.peers.values()))
        assert len(pier.taker.deliveries) == 30
        await pier.caller()
        taken = await pier.take(31)
        for each in taken:
            each.settle()
        rest = await pier.take(30)
        assert [each.envelope.payload for each in rest] == [b"a"] * 30
        for each in rest:
            each.settle()
        assert pier.link._shares.used == 0


# ── out ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_bytes_are_sent_to_the_addressed_peer() -> None:
    async with opened() as pier:
        (first, first_name), (second, second_name) = await pier.met(), await pier.met()
        assert await pier.send(second_name, b"se", b"", b"cond") == [None] * 3
        assert await pier.send(first_name, b"first") == [None]
        assert await second.take(6) == b"second"
        assert await first.take(5) == b"first"


async def test_a_peer_that_is_not_connected_is_reported_as_gone() -> None:
    async with opened() as pier:
        caller, name = await pier.met()
        await caller.leave()
        await wait_until(lambda: not pier.link.peers)
        told = signs_of(pier.link)
        [error] = await pier.send(name, b"too late")
        assert isinstance(error, PublishFailed)
        assert told == [(name, ReaderStatus.GONE)]


async def test_after_the_final_message_the_listener_closes_the_peer_and_ignores_its_input() -> None:
    async with opened() as pier:
        caller, name = await pier.met()
        caller.writer.write(b"a")
        [first] = await pier.take(1)
        assert await pier.send(name, b"and that is all", parting=CloseReason.DONE) == [None]
        assert isinstance((await pier.send(name, b"one more"))[0], PublishFailed)
        caller.writer.write(bytes(1000))
        assert await caller.rest() == b"and that is all"
        await wait_until(lambda: not pier.link._sockets)
        first.settle()
        assert pier.taker.deliveries == []


async def test_the_last_word_reaches_a_peer_that_is_still_sending() -> None:
    """A socket that was closed with octets unread would have its system forget what was sent last."""
    async with opened() as pier:
        caller, name = await pier.met()
        caller.writer.write(bytes(5 << 20))
        await pier.take(1)
        await pier.send(name, b"enough", parting=CloseReason.MALFORMED)
        assert await caller.rest() == b"enough"


async def test_a_peer_may_be_let_go_without_a_word() -> None:
    async with opened() as pier:
        caller, name = await pier.met()
        assert await pier.send(name, b"", parting=CloseReason.DONE) == [None]
        assert await caller.rest() == b""


async def test_a_peer_that_stays_open_after_the_final_message_is_disconnected() -> None:
    async with opened() as pier:
        caller, name = await pier.met()
        await pier.send(name, b"bye", parting=CloseReason.DONE)
        await caller.expect(b"bye")
        let_pass(pier.link, 4)
        assert len(pier.link.peers) == 1
        let_pass(pier.link, 2)
        await wait_until(lambda: not pier.link._sockets)


async def test_a_peer_that_reads_no_output_is_disconnected_while_other_peers_are_served() -> None:
    async with opened() as pier:
        (deaf, deaf_name), (other, other_name) = await pier.met(), await pier.met()
        deaf.pause_reading()
        publishing = pier.telling(deaf_name, *[bytes(MAX_PIECE)] * 300)
        peer = pier.peer(deaf_name)
        await wait_until(lambda: peer.times.stuck is not None)
        assert peer.waiting_output < HIGH_WATER + pier.link.window * MAX_PIECE
        assert await pier.send(other_name, b"you are served") == [None]
        assert await other.take(14) == b"you are served"
        deaf.writer.write(b"never read")
        await wait_until(lambda: not peer.times.is_reading)
        let_pass(pier.link, 29)
        assert deaf_name in pier.link.peers
        let_pass(pier.link, 2)
        await wait_until(lambda: deaf_name not in pier.link.peers)
        assert isinstance((await publishing.all_done(PATIENCE))[-1], PublishFailed)


async def test_a_peer_that_reads_slowly_stays_connected() -> None:
    async with opened() as pier:
        slow, name = await pier.met()
        publishing = pier.telling(name, *[bytes(MAX_PIECE)] * 400)
        for _ in range(8):
            await slow.take(50 * MAX_PIECE)
            let_pass(pier.link, 20)
        assert await publishing.all_done(PATIENCE) == [None] * 400


# ── too many ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_one_more_than_the_most_peers_is_hung_up_on_until_one_leaves() -> None:
    async with opened(options={"maxPeers": "2"}) as pier:
        first, _ = await pier.met()
        await pier.met()
        with capture_logs() as logs:
            refused = await pier.caller()
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await refused.take(1)
            let_pass(pier.link, 0)
        assert [(each["event"], each["count"]) for each in logs if "count" in each] == [("peers refused", 1)]
        assert len(pier.link.peers) == 2
        await first.leave()
        await wait_until(lambda: len(pier.link.peers) == 1)
        await pier.met()


async def test_an_address_has_no_more_connections_than_the_option_allows() -> None:
    async with opened(options={"maxPeersPerAddress": "1"}) as pier:
        first, _ = await pier.met()
        refused = await pier.caller()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await refused.take(1)
        await first.leave()
        await wait_until(lambda: not pier.link.peers)
        await pier.met()


async def test_clients_in_a_tls_handshake_are_bounded_like_peers(authority: trustme.CA) -> None:
    async with opened(**secure(authority), options={"maxPeers": "1"}) as pier:
        silent = await pier.caller()
        await wait_until(lambda: pier.link._sockets)
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await pier.caller(**speaking(trusting(authority)))
        assert pier.link.peers == {}
        await silent.leave()
        await wait_until(lambda: not pier.link._sockets)
        await pier.caller(**speaking(trusting(authority)))


# ── TLS, the port, the end ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def secure(authority: trustme.CA, **more: Any) -> dict[str, Any]:
    return {
        "uri": f"ssl://localhost:{free_port()}",
        "credentials": own(authority.issue_cert("localhost")),
        **more,
    }


def speaking(context: ssl.SSLContext, *alpn: str) -> dict[str, Any]:
    """What a caller over TLS needs, which speaks these protocols."""
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return {"ssl": context, "server_hostname": "localhost"}


async def test_with_tls_the_listener_presents_its_certificate_and_the_protocol(authority: trustme.CA) -> None:
    async with opened(**secure(authority)) as pier:
        caller, name = await pier.met(**speaking(trusting(authority), "h2", "rsio/0"))
        assert caller.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "rsio/0"
        sent = os.urandom(1 << 20)
        caller.writer.write(sent)
        assert await pier.raw(len(sent)) == sent
        publishing = pier.telling(name, *[sent[start : start + MAX_PIECE] for start in range(0, len(sent), MAX_PIECE)])
        assert await caller.take(len(sent)) == sent
        assert await publishing.all_done(PATIENCE) == [None] * (len(sent) // MAX_PIECE)
        assert await pier.send(name, b"bye", parting=CloseReason.DONE) == [None]
        assert await caller.rest() == b"bye"
        await wait_until(lambda: not pier.link._sockets)
        with pytest.raises(ssl.SSLCertVerificationError):
            await pier.caller(**speaking(ssl.create_default_context()))
        assert not pier.taker.deliveries, "who speaks no TLS is not let in"


async def test_with_a_ca_peers_show_certificates_and_have_their_names(authority: trustme.CA) -> None:
    trusted = trustme.CA()
    async with opened(**secure(authority, ca=trusted.cert_pem.bytes().decode())) as pier:
        shown = trusted.issue_cert("device-9.test", common_name="device-9")
        await pier.caller(**speaking(trusting(authority, shown)))
        [told] = await pier.take(1)
        assert told.envelope.header("tcp.certificate") == "device-9"
        for stranger in (None, authority.issue_cert("device-9.test", common_name="device-9")):
            with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
                await (await pier.caller(**speaking(trusting(authority, stranger)))).take(1)
        assert pier.taker.deliveries == []


async def test_an_unusable_certificate_is_reported(authority: trustme.CA) -> None:
    connect = load_connection_type("tcp").connect
    assert connect is not None
    one, other = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    for credentials in (None, {**own(one), "key": key_of(other)}):
        found = document(1, uri=f"ssl://localhost:{free_port()}", credentials=credentials)
        with pytest.raises(ConnectionRefused) as refused:
            await connect(Connection.model_validate(found))
        assert refused.value.detail is Detail.CERTIFICATE
        assert "PRIVATE" not in str(refused.value)


async def test_a_port_in_use_is_reported_and_not_affected_by_a_connection_test() -> None:
    broker = load_connection_type("tcp")
    assert broker.connect is not None
    assert broker.examine is not None
    async with opened() as pier:
        with pytest.raises(NotConnected) as refused:
            await broker.connect(pier.connection)
        assert refused.value.detail is Detail.REFUSED
        assert str(refused.value).endswith(f"cannot listen at 127.0.0.1:{pier.port}: address already in use")
        found = await broker.examine(pier.connection, "x-dry-run")
        assert "already in use" in found.note
        await pier.met()
    found = await broker.examine(pier.connection, "x-dry-run")
    assert (found.note, [each.error for each in found.sources[0]]) == ("", [None])


async def test_a_closed_listener_disconnects_all_peers_and_can_be_reopened_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "FAREWELL", 0.05)
    connect = load_connection_type("tcp").connect
    assert connect is not None
    connection = Connection.model_validate(document(free_port()))
    for _ in range(3):
        link = await connect(connection)
        with closing(socket.create_connection(("127.0.0.1", connection.broker_uri.port))) as client:
            await wait_until(lambda link=link: link.peers)  # type: ignore[misc]
            await link.close()
            client.settimeout(PATIENCE)
            assert client.recv(1) == b""
        await link.close()


@each_row(
    "promise",
    [
        test_bytes_from_a_peer_arrive_in_order_in_any_chunking,
        test_the_listener_stops_reading_at_the_unsettled_limit_and_delivers_the_rest_later,
        test_bytes_that_a_peer_sent_before_it_left_are_delivered,
        test_after_the_final_message_the_listener_closes_the_peer_and_ignores_its_input,
        test_the_last_word_reaches_a_peer_that_is_still_sending,
        test_a_peer_that_stays_open_after_the_final_message_is_disconnected,
        test_a_peer_that_reads_no_output_is_disconnected_while_other_peers_are_served,
        test_a_peer_that_reads_slowly_stays_connected,
        test_one_more_than_the_most_peers_is_hung_up_on_until_one_leaves,
    ],
)
def test_it_is_so_on_the_loop_of_the_service_too(promise: Callable[[], Coroutine[None, None, None]]) -> None:
    """Sockets are its business, and those of uvloop have buffers of their own."""
    uvloop.run(promise())


def test_tls_is_so_on_the_loop_of_the_service_too(authority: trustme.CA) -> None:
    uvloop.run(test_with_tls_the_listener_presents_its_certificate_and_the_protocol(authority))
    uvloop.run(test_with_a_ca_peers_show_certificates_and_have_their_names(authority))
