"""The TCP listener with raw sockets: input, output, closing, TLS, and the limits for peers."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
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
from tests.support.in_process.websocket_listener import key_of, own, pass_time, peer_of, trusting
from tests.support.table import each_row
from tests.support.wait import PATIENCE, wait_until

MESSAGE = 64 << 10


class TcpSetup:
    """An open listener, the consumer of its deliveries, and the clients."""

    def __init__(self, link: TcpLink, connection: Connection) -> None:
        self.link, self.connection = link, connection
        self.taker = DeliveryCollector(link)
        self.port = connection.broker_uri.port
        self._callers: list[Caller] = []

    async def caller(self, **options: Any) -> Caller:
        made = await Caller.at(self.port, **options)
        self._callers.append(made)
        return made

    async def connect_peer(self, **options: Any) -> tuple[Caller, str]:
        """Connect a client; return it and the ID of its peer."""
        made = await self.caller(**options)
        [delivery] = await self.take(1)
        assert delivery.envelope.payload == b""
        delivery.settle()
        return made, peer_of(delivery)

    async def take(self, count: int) -> list[Delivery]:
        return await self.taker.take(count, PATIENCE)

    async def raw(self, number: int) -> bytes:
        """Return so many bytes of any peers; each delivery is settled."""
        found = bytearray()
        while len(found) < number:
            await wait_until(lambda: self.taker.deliveries, poll=0)
            for payload in await self.taker.payloads(len(self.taker.deliveries)):
                found += payload
        return bytes(found)

    async def send(
        self, peer: str, *payloads: bytes, parting: CloseReason | None = None
    ) -> list[ConnectivityError | None]:
        publishing = self.publishing_to(peer, *payloads, parting=parting)
        return await publishing.all_done(PATIENCE)

    def publishing_to(self, peer: str, *payloads: bytes, parting: CloseReason | None = None) -> Publishing:
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
async def opened(options: dict[str, str] | None = None, **more: Any) -> AsyncIterator[TcpSetup]:
    connection = Connection.model_validate(document(free_port(), specificConfig=options or {}, **more))
    connect = load_connection_type("tcp").connect
    link = await connect(connection)
    assert isinstance(link, TcpLink)
    setup = TcpSetup(link, connection)
    try:
        yield setup
    finally:
        await setup.end()


# ── in ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_peer_is_reported_before_it_has_sent_anything() -> None:
    async with opened() as setup:
        await setup.caller()
        [delivery] = await setup.take(1)
        assert delivery.envelope.payload == b""
        assert (delivery.address, delivery.name, delivery.redelivered, delivery.reader) == (
            "rsio",
            None,
            False,
            peer_of(delivery),
        )
        assert set(delivery.envelope.headers) == {"reply-to"}


async def test_bytes_from_a_peer_arrive_in_order_in_any_chunking() -> None:
    async with opened() as setup:
        caller, _ = await setup.connect_peer()
        sent = os.urandom(3_000_000)
        for start in range(0, 1000, 7):
            caller.writer.write(sent[start : min(start + 7, 1000)])
            await asyncio.sleep(0)
        caller.writer.write(sent[1000:])
        assert await setup.raw(len(sent)) == sent


async def test_the_listener_stops_reading_at_the_unsettled_limit_and_delivers_the_rest_later() -> None:
    async with opened(options={"maxUnsettled": "2"}) as setup:
        caller, name = await setup.connect_peer()
        for byte in b"abcdef":
            caller.writer.write(bytes([byte]))
            await wait_until(lambda byte=byte: len(setup.taker.deliveries) == min(byte - 96, 2))  # type: ignore[misc]
        caller.writer.write(b"x" * (8 << 20))
        peer = setup.peer(name)
        await wait_until(lambda: not peer.times.is_reading)
        one, two = await setup.take(2)
        assert (one.envelope.payload, two.envelope.payload) == (b"a", b"b")
        assert len(peer._unread) < 1 << 20
        for each in (one, two):
            each.settle()
        rest = await setup.raw((8 << 20) + 4)
        assert rest[:5] == b"cdefx"


async def test_a_piece_is_never_larger_than_a_piece_may_be() -> None:
    async with opened(options={"maxUnsettled": "1"}) as setup:
        caller, _ = await setup.connect_peer()
        caller.writer.write(bytes(20 * MAX_PIECE))
        sizes: list[int] = []
        while sum(sizes) < 20 * MAX_PIECE:
            [delivery] = await setup.take(1)
            sizes.append(len(delivery.envelope.payload))
            delivery.settle()
        assert max(sizes) == MAX_PIECE


async def test_bytes_that_a_peer_sent_before_it_left_are_delivered() -> None:
    async with opened(options={"maxUnsettled": "1"}) as setup:
        signs = signs_of(setup.link)
        caller, name = await setup.connect_peer()
        caller.writer.write(b"a")
        [first] = await setup.take(1)
        caller.writer.write(bytes(100_000))
        caller.writer.close()
        await wait_until(lambda: not setup.peer(name).times.is_reading)
        assert not signs, "it has not left before all of it was taken"
        first.settle()
        assert await setup.raw(100_000) == bytes(100_000)
        await wait_until(lambda: signs == [(name, ReaderStatus.GONE)])


async def test_the_end_of_a_peer_is_reported_after_its_last_message() -> None:
    async with opened() as setup:
        signs = signs_of(setup.link)
        caller, name = await setup.connect_peer()
        caller.writer.write(b"a")
        [last] = await setup.take(1)
        await caller.leave()
        await wait_until(lambda: not setup.link.peers)
        assert not signs
        last.settle()
        assert signs == [(name, ReaderStatus.GONE)]
        assert not setup.link._leaving


async def test_a_closing_listener_reports_all_peers_that_have_left_even_with_unsettled_deliveries() -> None:
    async with opened() as setup:
        signs = signs_of(setup.link)
        names = []
        for _ in range(2):
            caller, name = await setup.connect_peer()
            caller.writer.write(b"a")
            await setup.take(1)
            names.append(name)
        await caller.leave()
        await wait_until(lambda: len(setup.link.peers) == 1)
        assert not signs
        await setup.link.close()
        await wait_until(lambda: dict(signs) == dict.fromkeys(names, ReaderStatus.GONE))


async def test_messages_of_all_peers_together_are_bounded_and_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "MAX_HELD", 60)
    async with opened() as setup:
        callers = [(await setup.caller()) for _ in range(30)]
        # A new peer is reported by an empty delivery.
        await wait_until(lambda: len(setup.taker.deliveries) == 30)
        for caller in callers:
            caller.writer.write(b"a")
        await wait_until(lambda: not any(each.times.is_reading for each in setup.link.peers.values()))
        assert len(setup.taker.deliveries) == 30
        await setup.caller()
        taken = await setup.take(31)
        for each in taken:
            each.settle()
        rest = await setup.take(30)
        assert [each.envelope.payload for each in rest] == [b"a"] * 30
        for each in rest:
            each.settle()
        assert setup.link._shares.used == 0


# ── out ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_bytes_are_sent_to_the_addressed_peer() -> None:
    async with opened() as setup:
        (first, first_name), (second, second_name) = await setup.connect_peer(), await setup.connect_peer()
        assert await setup.send(second_name, b"se", b"", b"cond") == [None] * 3
        assert await setup.send(first_name, b"first") == [None]
        assert await second.take(6) == b"second"
        assert await first.take(5) == b"first"


async def test_a_peer_that_is_not_connected_is_reported_as_gone() -> None:
    async with opened() as setup:
        caller, name = await setup.connect_peer()
        await caller.leave()
        await wait_until(lambda: not setup.link.peers)
        signs = signs_of(setup.link)
        [error] = await setup.send(name, b"too late")
        assert isinstance(error, PublishFailed)
        assert signs == [(name, ReaderStatus.GONE)]


async def test_after_the_final_message_the_listener_closes_the_peer_and_ignores_its_input() -> None:
    async with opened() as setup:
        caller, name = await setup.connect_peer()
        caller.writer.write(b"a")
        [first] = await setup.take(1)
        assert await setup.send(name, b"and that is all", parting=CloseReason.DONE) == [None]
        assert isinstance((await setup.send(name, b"one more"))[0], PublishFailed)
        caller.writer.write(bytes(1000))
        assert await caller.rest() == b"and that is all"
        await wait_until(lambda: not setup.link._sockets)
        first.settle()
        assert setup.taker.deliveries == []


async def test_the_last_message_reaches_a_peer_that_is_still_sending() -> None:
    """For a socket that is closed with unread bytes the system drops the bytes sent last."""
    async with opened() as setup:
        caller, name = await setup.connect_peer()
        caller.writer.write(bytes(5 << 20))
        await setup.take(1)
        await setup.send(name, b"enough", parting=CloseReason.MALFORMED)
        assert await caller.rest() == b"enough"


async def test_a_peer_can_be_disconnected_without_a_message() -> None:
    async with opened() as setup:
        caller, name = await setup.connect_peer()
        assert await setup.send(name, b"", parting=CloseReason.DONE) == [None]
        assert await caller.rest() == b""


async def test_a_peer_that_stays_open_after_the_final_message_is_disconnected() -> None:
    async with opened() as setup:
        caller, name = await setup.connect_peer()
        await setup.send(name, b"bye", parting=CloseReason.DONE)
        await caller.expect(b"bye")
        pass_time(setup.link, 4)
        assert len(setup.link.peers) == 1
        pass_time(setup.link, 2)
        await wait_until(lambda: not setup.link._sockets)


async def test_a_peer_that_reads_no_output_is_disconnected_while_other_peers_are_served() -> None:
    async with opened() as setup:
        (deaf, deaf_name), (other, other_name) = await setup.connect_peer(), await setup.connect_peer()
        deaf.pause_reading()
        publishing = setup.publishing_to(deaf_name, *[bytes(MESSAGE)] * 300)
        peer = setup.peer(deaf_name)
        await wait_until(lambda: peer.times.stuck is not None)
        assert peer.waiting_output < HIGH_WATER + setup.link.window * MESSAGE
        assert await setup.send(other_name, b"you are served") == [None]
        assert await other.take(14) == b"you are served"
        deaf.writer.write(b"never read")
        await wait_until(lambda: not peer.times.is_reading)
        pass_time(setup.link, 29)
        assert deaf_name in setup.link.peers
        pass_time(setup.link, 2)
        await wait_until(lambda: deaf_name not in setup.link.peers)
        assert isinstance((await publishing.all_done(PATIENCE))[-1], PublishFailed)


async def test_a_peer_that_reads_slowly_stays_connected() -> None:
    async with opened() as setup:
        slow, name = await setup.connect_peer()
        publishing = setup.publishing_to(name, *[bytes(MESSAGE)] * 400)
        for _ in range(8):
            await slow.take(50 * MESSAGE)
            pass_time(setup.link, 20)
        assert await publishing.all_done(PATIENCE) == [None] * 400


# ── too many ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_peer_beyond_the_limit_is_disconnected_until_one_leaves() -> None:
    async with opened(options={"maxPeers": "2"}) as setup:
        first, _ = await setup.connect_peer()
        await setup.connect_peer()
        with capture_logs() as logs:
            refused = await setup.caller()
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await refused.take(1)
            pass_time(setup.link, 0)
        assert [(each["event"], each["count"]) for each in logs if "count" in each] == [("peers refused", 1)]
        assert len(setup.link.peers) == 2
        await first.leave()
        await wait_until(lambda: len(setup.link.peers) == 1)
        await setup.connect_peer()


async def test_an_address_has_no_more_connections_than_the_option_allows() -> None:
    async with opened(options={"maxPeersPerAddress": "1"}) as setup:
        first, _ = await setup.connect_peer()
        refused = await setup.caller()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await refused.take(1)
        await first.leave()
        await wait_until(lambda: not setup.link.peers)
        await setup.connect_peer()


async def test_clients_in_a_tls_handshake_are_bounded_like_peers(authority: trustme.CA) -> None:
    async with opened(**secure(authority), options={"maxPeers": "1"}) as setup:
        silent = await setup.caller()
        await wait_until(lambda: setup.link._sockets)
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await setup.caller(**tls_options(trusting(authority)))
        assert setup.link.peers == {}
        await silent.leave()
        await wait_until(lambda: not setup.link._sockets)
        await setup.caller(**tls_options(trusting(authority)))


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


def tls_options(context: ssl.SSLContext, *alpn: str) -> dict[str, Any]:
    """Return the TLS options of a client with these protocols."""
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return {"ssl": context, "server_hostname": "localhost"}


async def test_an_expired_certificate_is_logged_and_presented(authority: trustme.CA) -> None:
    yesterday = datetime.now(UTC) - timedelta(days=1)
    expired = authority.issue_cert("localhost", not_after=yesterday)
    with capture_logs() as logs:
        async with opened(**{**secure(authority), "credentials": own(expired)}) as setup:
            with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
                await setup.caller(**tls_options(trusting(authority)))
    assert [(each["connection"], each["expired"]) for each in logs if each["event"] == "certificate has expired"] == [
        ("landing", yesterday.replace(microsecond=0).isoformat())
    ]


async def test_with_tls_the_listener_presents_its_certificate_and_the_protocol(authority: trustme.CA) -> None:
    async with opened(**secure(authority)) as setup:
        caller, name = await setup.connect_peer(**tls_options(trusting(authority), "h2", "rsio/0"))
        assert caller.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "rsio/0"
        sent = os.urandom(1 << 20)
        caller.writer.write(sent)
        assert await setup.raw(len(sent)) == sent
        publishing = setup.publishing_to(
            name, *[sent[start : start + MESSAGE] for start in range(0, len(sent), MESSAGE)]
        )
        assert await caller.take(len(sent)) == sent
        assert await publishing.all_done(PATIENCE) == [None] * (len(sent) // MESSAGE)
        assert await setup.send(name, b"bye", parting=CloseReason.DONE) == [None]
        assert await caller.rest() == b"bye"
        await wait_until(lambda: not setup.link._sockets)
        with pytest.raises(ssl.SSLCertVerificationError):
            await setup.caller(**tls_options(ssl.create_default_context()))
        assert not setup.taker.deliveries, "who speaks no TLS is not let in"


async def test_with_a_ca_peers_show_certificates_and_have_their_names(authority: trustme.CA) -> None:
    trusted = trustme.CA()
    async with opened(**secure(authority, ca=trusted.cert_pem.bytes().decode())) as setup:
        shown = trusted.issue_cert("device-9.test", common_name="device-9")
        await setup.caller(**tls_options(trusting(authority, shown)))
        [delivery] = await setup.take(1)
        assert delivery.envelope.header("tcp.certificate") == "device-9"
        for stranger in (None, authority.issue_cert("device-9.test", common_name="device-9")):
            with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
                await (await setup.caller(**tls_options(trusting(authority, stranger)))).take(1)
        assert setup.taker.deliveries == []


async def test_an_unusable_certificate_is_reported(authority: trustme.CA) -> None:
    connect = load_connection_type("tcp").connect
    one, other = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    for credentials in (None, {**own(one), "key": key_of(other)}):
        found = document(1, uri=f"ssl://localhost:{free_port()}", credentials=credentials)
        with pytest.raises(ConnectionRefused) as refused:
            await connect(Connection.model_validate(found))
        assert refused.value.detail is Detail.CERTIFICATE
        assert "PRIVATE" not in str(refused.value)


async def test_a_port_in_use_is_reported_and_not_affected_by_a_connection_test() -> None:
    broker = load_connection_type("tcp")
    async with opened() as setup:
        with pytest.raises(NotConnected) as refused:
            await broker.connect(setup.connection)
        assert refused.value.detail is Detail.REFUSED
        assert str(refused.value).endswith(f"cannot listen at 127.0.0.1:{setup.port}: address already in use")
        found = await broker.examine(setup.connection, "x-dry-run")
        assert "already in use" in found.note
        await setup.connect_peer()
    found = await broker.examine(setup.connection, "x-dry-run")
    assert (found.note, [each.error for each in found.sources[0]]) == ("", [None])


async def test_a_closed_listener_disconnects_all_peers_and_can_be_reopened_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "FAREWELL", 0.05)
    connect = load_connection_type("tcp").connect
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
        test_the_last_message_reaches_a_peer_that_is_still_sending,
        test_a_peer_that_stays_open_after_the_final_message_is_disconnected,
        test_a_peer_that_reads_no_output_is_disconnected_while_other_peers_are_served,
        test_a_peer_that_reads_slowly_stays_connected,
        test_a_peer_beyond_the_limit_is_disconnected_until_one_leaves,
    ],
)
def test_the_guarantees_apply_on_uvloop_too(promise: Callable[[], Coroutine[None, None, None]]) -> None:
    """Sockets are its business, and those of uvloop have buffers of their own."""
    uvloop.run(promise())


def test_tls_is_so_on_the_loop_of_the_service_too(authority: trustme.CA) -> None:
    uvloop.run(test_with_tls_the_listener_presents_its_certificate_and_the_protocol(authority))
    uvloop.run(test_with_a_ca_peers_show_certificates_and_have_their_names(authority))
