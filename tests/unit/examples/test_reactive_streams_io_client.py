"""The example client of reactive-streams-io: each element once and in order, wherever its link breaks.

It reads at its own pace.
"""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, suppress
from itertools import pairwise
from pathlib import Path

import pytest
import trustme

from examples import rsio_client
from examples.rsio_client import Client, SessionLost, StreamError, can_continue, continuation
from examples.rsio_links import SocketLink, connector
from mappings.reactive_streams_io.events import (
    Closed,
    DemandReceived,
    ElementsReceived,
    EndpointEvent,
    Interrupted,
    Resumed,
    SessionOpened,
    StreamFailed,
    SubscribeReceived,
)
from mappings.reactive_streams_io.frames import Goodbye, encode
from mappings.reactive_streams_io.limits import EndpointLimits
from mappings.reactive_streams_io.resumption import Resumables
from tests.support.brokers.proxy import Proxy
from tests.support.clock import Clock
from tests.support.dice import dice
from tests.support.paths import ROOT
from tests.support.reactive_streams_io.conversation import EndpointClient, Feed
from tests.support.table import each_row
from tests.support.wait import PATIENCE, wait_until

REPORTS = "ingest/reports"
HISTORY = "things/acme.site:lamp/history"


class RsioServer:
    """A TCP server with the test publishers. It cuts each connection after `lengths` sent bytes.

    It subscribes to `wants` at each client with a first demand of `window`; `stores` makes it request one more per element.
    """

    def __init__(
        self,
        lengths: Iterable[int] = (),
        *,
        remembers: bool = True,
        wants: str = REPORTS,
        window: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.peers: list[EndpointClient] = []
        self.stores = False
        self.requests: list[int] = []
        self._lengths = iter(lengths)
        self._wants, self._window = wants, window
        self._tls = tls
        self.protocols: list[str | None] = []
        self._remembers = remembers
        self._resumables = Resumables()
        self._feeds: dict[int, Feed] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> RsioServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def uri(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def client(self, limits: EndpointLimits | None = None) -> Client:
        return Client(connector(self.uri), limits)

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.append(writer)
        if self._tls is not None:
            self.protocols.append(writer.get_extra_info("ssl_object").selected_alpn_protocol())
        peer = EndpointClient(clock=Clock(), resumables=self._resumables if self._remembers else Resumables())
        if self._remembers:
            # A resumed session continues its streams.
            peer.feeds = self._feeds
        self.peers.append(peer)
        with suppress(OSError):
            await self._converse(peer, reader, writer)
        peer.react(peer.endpoint.lose(peer.clock.now()))
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()

    async def _converse(self, peer: EndpointClient, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = next(self._lengths, 1 << 30)
        sent = peer.sends()
        while True:
            writer.write(sent[:left])
            await writer.drain()
            left -= len(sent)
            if left <= 0 or peer.endpoint.is_closed:
                return
            received = await reader.read(1 << 16)
            if not received:
                return
            before = len(peer.events)
            peer.react(peer.endpoint.receive(received, peer.clock.now()))
            self._want(peer, peer.events[before:])
            sent = peer.sends()

    def _want(self, peer: EndpointClient, events: Sequence[EndpointEvent]) -> None:
        for event in events:
            if isinstance(event, SessionOpened) and self._window:
                self.requests.append(peer.endpoint.subscribe(self._wants, self._window))
            elif isinstance(event, ElementsReceived) and self.stores:
                peer.endpoint.session.request(event.stream, len(event.elements))

    def published(self) -> list[bytes]:
        """The elements that clients have published, in all sessions."""
        return [
            element for peer in self.peers for event in peer.reported(ElementsReceived) for element in event.elements
        ]


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses before a reconnect and between two checks for silence."""
    monkeypatch.setattr(rsio_client, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(rsio_client, "TICK", 0.1)


@pytest.fixture
async def server() -> AsyncIterator[RsioServer]:
    async with RsioServer() as made:
        yield made


async def taken(elements: AsyncGenerator[bytes, None], number: int = 1 << 30) -> list[bytes]:
    """Return at most `number` elements of the stream."""
    found = list[bytes]()
    async with aclosing(elements):
        async with asyncio.timeout(PATIENCE):
            async for element in elements:
                found.append(element)
                if len(found) == number:
                    break
    return found


def numbers(last: int) -> list[bytes]:
    return [str(number).encode() for number in range(1, last + 1)]


async def test_a_publisher_is_read_to_its_end(server: RsioServer) -> None:
    async with server.client() as client:
        assert await taken(client.subscribe("tck/range?n=500")) == numbers(500)
        assert await taken(client.subscribe("tck/fixed?n=3&size=2")) == [b"\0\1", b"\0\2", b"\0\3"]
        assert await taken(client.subscribe("tck/big?bytes=200000")) == [b"x" * 200_000]


async def test_no_more_is_asked_for_than_is_taken(server: RsioServer) -> None:
    async with server.client() as client:
        elements = client.subscribe("tck/range?n=500", 8)
        assert [await anext(elements) for _ in range(100)] == numbers(100)
        (peer,) = server.peers
        (asked,) = peer.reported(SubscribeReceived)
        assert asked.demand == 8
        # The last one that was taken is asked for again when the next one is wanted.
        assert 8 + sum(event.demand for event in peer.reported(DemandReceived)) in range(100, 100 + 8)
        await elements.aclose()
        await wait_until(lambda: peer.cancelled == [asked.stream])


async def test_streams_do_not_wait_for_each_other(server: RsioServer) -> None:
    async with server.client() as client:
        slow = client.subscribe("tck/range?n=9", 2)
        assert await anext(slow) == b"1"
        assert await taken(client.subscribe("tck/range?n=500")) == numbers(500)
        assert await taken(slow) == numbers(9)[1:]


async def test_a_refusal_has_a_reason(server: RsioServer) -> None:
    async with server.client() as client:
        with pytest.raises(StreamError, match="nope") as refused:
            await taken(client.subscribe("nope"))
        with pytest.raises(StreamError) as failed:
            await taken(client.subscribe("tck/fail?after=3"))
    assert (refused.value.status, failed.value.status) == (404, 500)


@pytest.mark.usefixtures("short_pauses")
async def test_every_element_arrives_once_and_in_order_despite_a_cut_at_any_byte() -> None:
    choose = dice("cuts of what is read")
    lengths = (choose.randrange(60, 900) for _ in range(30))
    async with RsioServer(lengths) as server, server.client() as client:
        texts, raw = await asyncio.gather(
            taken(client.subscribe("tck/range?n=2000", 16)), taken(client.subscribe("tck/fixed?n=2000&size=4", 50))
        )
    assert texts == numbers(2000)
    assert raw == [number.to_bytes(4, "big") for number in range(1, 2001)]
    assert sum(len(peer.reported(Resumed)) for peer in server.peers) >= 10


@pytest.mark.usefixtures("short_pauses")
async def test_a_silently_dead_link_is_detected_and_replaced(server: RsioServer) -> None:
    """The service still holds the old link then, and gives its session to the new one."""
    quick = EndpointLimits(silence_before_ping=0.3, silence_before_loss=1.5)
    proxy = Proxy.to("127.0.0.1", server.port)
    async with proxy, Client(lambda: SocketLink.to(proxy.host, proxy.port), quick) as client:
        elements = client.subscribe("tck/range?n=500", 8)
        assert [await anext(elements) for _ in range(100)] == numbers(100)
        proxy.stall()
        rest = asyncio.ensure_future(taken(elements))
        await wait_until(lambda: proxy.links > 1)
        proxy.flow()
        assert await rest == numbers(500)[100:]
    assert sum(len(peer.reported(Resumed)) for peer in server.peers) >= 1


async def test_a_client_reports_a_lost_session_and_starts_another_one() -> None:
    async with RsioServer(remembers=False) as server, server.client() as client:
        never = client.subscribe("tck/never")
        waiting = asyncio.ensure_future(anext(never))
        await wait_until(lambda: server.peers and server.peers[0].reported(SubscribeReceived))
        server.cut()
        with pytest.raises(SessionLost, match="token"):
            await asyncio.wait_for(waiting, PATIENCE)
        assert await taken(client.subscribe("tck/range?n=5")) == numbers(5)


async def each(elements: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    for element in elements:
        yield element


async def test_a_publisher_sends_elements_only_as_the_service_requests_them() -> None:
    async with RsioServer(window=8) as server, server.client() as client:
        bringing = asyncio.ensure_future(client.publish(REPORTS, each(numbers(20))))
        await wait_until(lambda: len(server.published()) == 8)
        # Other traffic brings no more elements.
        assert await taken(client.subscribe("tck/range?n=500")) == numbers(500)
        assert (server.published(), bringing.done()) == (numbers(8), False)
        (peer,) = server.peers
        server.stores = True
        peer.endpoint.session.request(server.requests[0], 8)
        assert await taken(client.subscribe("tck/range?n=5")) == numbers(5)
        await asyncio.wait_for(bringing, PATIENCE)
    assert server.published() == numbers(20)


@pytest.mark.usefixtures("short_pauses")
async def test_every_element_is_published_once_and_in_order_despite_a_cut_at_any_byte() -> None:
    choose = dice("cuts of what is written")
    async with (
        RsioServer((choose.randrange(60, 900) for _ in range(30)), window=16) as server,
        server.client() as client,
    ):
        server.stores = True
        bringing = asyncio.ensure_future(client.publish(REPORTS, each(numbers(1000))))
        assert await taken(client.subscribe("tck/range?n=1000", 16)) == numbers(1000)
        await asyncio.wait_for(bringing, PATIENCE)
        await wait_until(lambda: len(server.published()) == 1000)
    assert server.published() == numbers(1000)
    assert sum(len(peer.reported(Resumed)) for peer in server.peers) >= 5


async def test_unacknowledged_elements_are_sent_again_in_another_session() -> None:
    async with RsioServer(remembers=False, window=4) as server, server.client() as client:
        bringing = asyncio.ensure_future(client.publish(REPORTS, each(numbers(9))))
        await wait_until(lambda: len(server.published()) == 4)
        server.peers[0].endpoint.session.request(server.requests[0], 2)
        assert await taken(client.subscribe("tck/range?n=5")) == numbers(5)
        await wait_until(lambda: len(server.published()) == 6)
        server.stores = True
        server.cut()
        await asyncio.wait_for(bringing, PATIENCE)
        await wait_until(lambda: len(server.published()) == 13)
    assert server.published() == [*numbers(6), *numbers(9)[2:]]


async def test_a_request_for_an_unpublished_stream_is_refused() -> None:
    async with RsioServer(wants="things/acme.site:lamp/events", window=4) as server, server.client():
        await wait_until(lambda: server.peers and server.peers[0].reported(StreamFailed))
    (failed,) = server.peers[0].reported(StreamFailed)
    assert failed.reason.startswith("404 ")


async def test_a_closed_client_publishes_no_more_elements() -> None:
    async with RsioServer(window=4) as server:
        async with server.client() as client:
            bringing = asyncio.ensure_future(client.publish(REPORTS, each(numbers(9))))
            await wait_until(lambda: len(server.published()) == 4)
        with pytest.raises(StreamError, match="closed"):
            await asyncio.wait_for(bringing, PATIENCE)


async def test_a_subscriber_of_a_stream_that_cannot_resume_gets_a_lost_error() -> None:
    async with RsioServer(remembers=False) as server, server.client() as client:
        numbers_ = client.follow("tck/range?n=500", 4)
        assert await anext(numbers_) == b"1"
        server.cut()
        with pytest.raises(SessionLost):
            await taken(numbers_)


@each_row(
    ("publisher", "is_repeated"),
    [
        (HISTORY, True),
        (f"{HISTORY}?from=3&follow=true", True),
        (f"{HISTORY}?from-ts=2030-01-15T07:30:00Z&fields=value", True),
        (f"{HISTORY}?from=-3&follow=true", False),
        ("streams/acme.site%3Alamp/0?resend_all=true", True),
        ("streams/acme.site%3Alamp/0?resend_from=3", True),
        ("streams/acme.site%3Alamp/0?resend_last=3", False),
        ("streams/acme.site%3Alamp/0", False),
        ("things/acme.site:lamp/events", False),
        ("tck/range?n=3", False),
    ],
)
async def test_a_session_lost_before_the_first_element_is_repeated_if_no_element_can_be_skipped(
    publisher: str, is_repeated: bool
) -> None:
    subscribed: list[str] = []

    async def subscribe(name: str, _window: int) -> AsyncGenerator[bytes, None]:
        subscribed.append(name)
        if len(subscribed) == 1:
            raise SessionLost("410 rsio:session.lost The service has restarted.")
        yield b"1"

    client = Client(connector("tcp://127.0.0.1:1"))
    client.subscribe = subscribe  # type: ignore[assignment, method-assign]
    if is_repeated:
        assert await taken(client.follow(publisher)) == [b"1"]
        assert subscribed == [publisher, publisher]
    else:
        with pytest.raises(SessionLost):
            await taken(client.follow(publisher))


async def test_a_closing_client_sends_goodbye_and_ends_its_waiting_subscriptions(server: RsioServer) -> None:
    async with server.client() as client:
        never = asyncio.ensure_future(anext(client.subscribe("tck/never")))
        await wait_until(lambda: server.peers and server.peers[0].reported(SubscribeReceived))
    with pytest.raises(StreamError):
        await asyncio.wait_for(never, PATIENCE)
    (peer,) = server.peers
    await wait_until(lambda: peer.endpoint.is_closed)
    assert peer.reported(Interrupted) == []
    with pytest.raises(StreamError, match="closed"):
        await taken(client.subscribe("tck/range?n=5"))


async def test_a_secure_socket_names_the_protocol_and_trusts_the_given_authorities(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.set_alpn_protocols(["rsio/0"])
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    async with RsioServer(tls=tls) as server:
        uri = server.uri.replace("tcp://", "ssl://")
        async with Client(connector(uri, ca=str(tmp_path / "ca.pem"))) as client:
            assert await taken(client.subscribe("tck/range?n=500")) == numbers(500)
        assert server.protocols == ["rsio/0"]
        with pytest.raises(ssl.SSLError, match="verify failed"):
            await Client(connector(uri)).__aenter__()


async def test_an_interrupted_program_sends_a_goodbye(server: RsioServer) -> None:
    words = [sys.executable, "-m", "examples.rsio_client", "tck/never", "--at", server.uri]
    program = await asyncio.create_subprocess_exec(*words, cwd=ROOT, stdout=PIPE, stderr=PIPE)
    try:
        await wait_until(lambda: server.peers and server.peers[0].reported(SubscribeReceived))
        program.send_signal(signal.SIGINT)
        sent = await asyncio.wait_for(program.communicate(), PATIENCE)
    finally:
        if program.returncode is None:
            program.kill()
            await program.communicate()
    assert (program.returncode, *sent) == (0, b"", b"")
    (peer,) = server.peers
    assert (peer.reported(Interrupted), [event.reason for event in peer.reported(Closed)]) == ([], ["ok"])


async def test_a_client_without_a_connection_closes_at_once() -> None:
    async with RsioServer() as server:
        client = server.client()
        await client.__aenter__()
    async with asyncio.timeout(PATIENCE):
        await client.close()


async def test_a_refused_client_reconnects_with_growing_delays() -> None:
    turned_away: list[float] = []

    async def turn_away(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        turned_away.append(time.monotonic())
        writer.write(encode(Goodbye("429 full")))
        await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(turn_away, "127.0.0.1", 0)
    async with Client(connector(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")):
        await wait_until(lambda: len(turned_away) >= 4)
    server.close()
    pauses = [later - earlier for earlier, later in pairwise(turned_away)]
    assert all(pause >= least for pause, least in zip(pauses, (0.2, 0.4, 0.8), strict=False)), pauses


async def test_a_request_beyond_the_protocol_limits_ends_with_its_status(server: RsioServer) -> None:
    limits = EndpointLimits(subscriptions=1, element=3, publisher=100)
    async with server.client(limits) as client:
        with pytest.raises(StreamError, match="101") as too_long:
            await taken(client.subscribe("x" * 101))
        never = asyncio.ensure_future(anext(client.subscribe("tck/never")))
        await wait_until(lambda: server.peers[0].reported(SubscribeReceived))
        with pytest.raises(StreamError) as too_many:
            await taken(client.subscribe("tck/never"))
        with pytest.raises(StreamError) as too_large:
            await client.publish(REPORTS, each([b"four"]))
    assert [error.value.status for error in (too_long, too_many, too_large)] == [400, 429, 413]
    with pytest.raises(StreamError):
        await never


async def test_the_first_connection_to_a_closed_port_is_refused() -> None:
    async with RsioServer() as server:
        uri = server.uri
    with pytest.raises(ConnectionRefusedError):
        await Client(connector(uri)).__aenter__()


@pytest.mark.parametrize("uri", ["mqtt://127.0.0.1", "tcp://:1", "http://127.0.0.1:80", "127.0.0.1:1883"])
def test_a_place_that_cannot_be_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="expected mqtt://, tcp:// or ssl://"):
        connector(uri)


EVENT = json.dumps({"revision": 7}).encode()
MESSAGE = json.dumps([28, "tanks", 0, 1, 0, 7, 6, 27, "{}"]).encode()


@each_row(
    ("publisher", "element", "rest"),
    [
        (HISTORY, EVENT, f"{HISTORY}?from=8"),
        (f"{HISTORY}?from=-3&follow=true", EVENT, f"{HISTORY}?from=8&follow=true"),
        (f"{HISTORY}?from-ts=2030-01-15T07:30:00Z", EVENT, f"{HISTORY}?from=8"),
        (f"{HISTORY}?to=9&filter=gt(attributes/n,1)", EVENT, f"{HISTORY}?from=8&to=9&filter=gt(attributes/n,1)"),
        (f"{HISTORY}?to=7", EVENT, None),
        (f"{HISTORY}?to=-2", EVENT, f"{HISTORY}?from=8&to=-2"),
        ("policies/acme.site:lamp/history", EVENT, "policies/acme.site:lamp/history?from=8"),
        ("streams/tanks/0?resend_last=5", MESSAGE, "streams/tanks/0?resend_from=8"),
        ("streams/tanks/0?resend_from=2&resend_to=9", MESSAGE, "streams/tanks/0?resend_from=8&resend_to=9"),
        ("streams/tanks/0?resend_from=2&resend_to=7", MESSAGE, None),
    ],
)
def test_a_resumable_publisher_continues_after_an_element(publisher: str, element: bytes, rest: str | None) -> None:
    assert can_continue(publisher)
    assert continuation(publisher, element) == rest


@each_row(
    "publisher",
    [
        "things/acme.site:lamp/events",
        "things/search",
        f"{HISTORY}?to-ts=2030-01-15T07:30:00Z",
        f"{HISTORY}?fields=value",
        f"{HISTORY}?project=/attributes/n&pack=f64",
        f"{HISTORY}?enc=cbor",
        "tck/range?n=3",
        "things/acme.site:lamp/past",
    ],
)
def test_a_publisher_that_cannot_resume_has_no_continuation(publisher: str) -> None:
    assert not can_continue(publisher)
