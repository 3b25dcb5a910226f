"""Results of the probe with fake servers. Real brokers are in `tests/links/test_kafka.py`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from struct import pack
from typing import Any

import pytest

from connectivity.connections.model import Connection
from connectivity.errors import ClientCertificateRequired, ConnectionRefused, Detail, LinkError, NotConnected
from connectivity.transports.kafka.handshake import LoginOffer, handshake, read_login, request
from tests.support.brokers import free_port
from tests.support.wait import PATIENCE, wait_until

KAFKA = pack(">iih", 6, 0, 0)
"""An answer without a body that matters."""


def handshake_answer(code: int, *mechanisms: str) -> bytes:
    names = b"".join(pack(">h", len(name)) + name.encode() for name in mechanisms)
    body = pack(">ihi", 0, code, len(mechanisms)) + names
    return pack(">i", len(body)) + body


@asynccontextmanager
async def server(*answers: bytes | None, requests: list[bytes] | None = None) -> AsyncIterator[tuple[str, int]]:
    """Start a server with these responses to successive requests, and yield its host and port.

    For None it disconnects; after the last response it waits. It appends to `requests` the received ones.
    """
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        for answer in answers:
            request = await reader.read(4096)
            if requests is not None:
                requests.append(request)
            if not request or answer is None:
                writer.close()
                return
            writer.write(answer)

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield "127.0.0.1", listening.sockets[0].getsockname()[1]
        for writer in writers:
            writer.transport.abort()


def connection(uri: str = "tcp://kafka.test:9092", **more: Any) -> Connection:
    return Connection.model_validate(
        {
            "id": "lab",
            "connectionType": "kafka",
            "connectionStatus": "open",
            "uri": uri,
            "specificConfig": {"bootstrapServers": "kafka.test:9092"},
            "sources": [{"addresses": ["in"], "authorizationContext": ["lab:all"]}],
            **more,
        }
    )


WITH_LOGIN = "tcp://ada:secret@kafka.test:9092"


async def reason(document: Connection, *places: tuple[str, int], mechanism: str = "PLAIN") -> LinkError:
    with pytest.raises(LinkError) as caught:
        await handshake(document, places, mechanism, 5.0)
    assert "secret" not in str(caught.value)
    return caught.value


def test_a_request_has_no_client_id() -> None:
    assert request(18, 0, b"") == bytes.fromhex("0000000a 0012 0000 00000000 ffff".replace(" ", ""))


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x00\x00\x00\x00\x00\x02\x00\x05PLAIN"])
def test_an_incomplete_answer_is_not_reported_as_a_login_failure(body: bytes) -> None:
    assert read_login(body) == (0, ())


@pytest.mark.parametrize(
    ("uri", "last"),
    [
        ("tcp://kafka.test:9092", handshake_answer(34)),
        ("tcp://kafka.test:9092", None),
        (WITH_LOGIN, handshake_answer(0, "PLAIN")),
        (WITH_LOGIN, None),
    ],
)
async def test_a_server_that_speaks_kafka_is_left_to_the_library(uri: str, last: bytes | None) -> None:
    requests: list[bytes] = []
    async with server(KAFKA, last, requests=requests) as place:
        await handshake(connection(uri), [place], "PLAIN", 5.0)
    assert [len(request) > 8 for request in requests] == [True, True], "it was asked for its versions and for a login"


@pytest.mark.parametrize(
    ("uri", "answer", "words"),
    [
        (
            "tcp://kafka.test:9092",
            handshake_answer(0, "PLAIN", "OAUTHBEARER"),
            "requires a login at this port, with PLAIN, OAUTHB",
        ),
        (WITH_LOGIN, handshake_answer(34), "accepts no login at this port"),
        (WITH_LOGIN, handshake_answer(33, "GSSAPI"), "accepts logins with GSSAPI, not PLAIN"),
    ],
)
async def test_a_login_that_cannot_succeed_is_bad_credentials(uri: str, answer: bytes, words: str) -> None:
    async with server(KAFKA, answer) as place:
        found = await reason(connection(uri), place)
    assert (type(found), found.detail) == (ConnectionRefused, Detail.BAD_CREDENTIALS)
    assert words in found.text


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "the broker closed the connection without a response; this port may require TLS"),
        (bytes.fromhex("15030300020250"), "a response in TLS: this port requires a secure connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the response is not Kafka: 'HTTP/1.1 400 Bad Request"),
        (b"\x00\x00\x00\x00rest", "the response is not Kafka: '\\x00"),
    ],
)
async def test_a_server_that_does_not_speak_kafka_is_recognized(answer: bytes | None, words: str) -> None:
    async with server(answer, None) as place:
        found = await reason(connection(), place)
    assert (type(found), found.detail) == (NotConnected, Detail.REFUSED_BY_BROKER)
    assert found.text.startswith(f"{place[0]}:{place[1]}: ")
    assert words in found.text


async def test_silence_is_a_timeout() -> None:
    async with server() as place:
        with pytest.raises(NotConnected, match=r"timeout: .* did not answer within 0\.2 s"):
            await handshake(connection(), [place], "PLAIN", 0.2)


async def test_a_broker_that_sends_single_bytes_keeps_no_thread() -> None:
    has_ended = asyncio.Event()

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(pack(">i", 60_000))
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.05)
        writer.transport.abort()
        has_ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        place = "127.0.0.1", listening.sockets[0].getsockname()[1]
        with pytest.raises(NotConnected, match="did not answer within"):
            await handshake(connection(), [place], "PLAIN", 0.3)
        await wait_until(lambda: not any(each.name == "kafka greeting" for each in threading.enumerate()))
        await asyncio.wait_for(has_ended.wait(), PATIENCE)


async def test_of_several_brokers_one_is_enough() -> None:
    requests: list[bytes] = []
    async with server(KAFKA, handshake_answer(34), requests=requests) as place, server() as silent:
        await handshake(connection(), [("127.0.0.1", free_port()), silent, place], "PLAIN", 30.0)
    assert len(requests) == 2


async def test_the_most_specific_of_several_reasons_is_reported() -> None:
    async with server(KAFKA, handshake_answer(0, "PLAIN")) as place, server(None) as hanging:
        found = await reason(connection(), ("127.0.0.1", free_port()), hanging, place)
    assert found.detail is Detail.BAD_CREDENTIALS


async def test_a_broker_that_hangs_up_after_the_handshake_may_want_a_certificate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its word for that gets lost easily, and with a certificate it is something else."""

    class PlainContext:
        def wrap_socket(self, made: Any, server_hostname: str) -> Any:
            return made

    monkeypatch.setattr("connectivity.transports.kafka.handshake.tls_context", lambda _connection: PlainContext())
    async with server(None) as place:
        found = await reason(connection("ssl://kafka.test:9092"), place)
    assert (type(found), found.detail) == (ClientCertificateRequired, Detail.CERTIFICATE)


async def test_a_name_that_leads_nowhere() -> None:
    assert (await reason(connection(), ("broker.invalid", 9092))).detail is Detail.UNKNOWN_HOST


@pytest.mark.parametrize("name", [b"\xff\xfe", b"\xff\xff", b"\x00\x05PL", b""])
def test_an_answer_with_an_impossible_length_offers_no_login(name: bytes) -> None:
    """It announces two billion names: reading must neither pass the end nor loop."""
    assert read_login(b"\x00\x00\x7f\xff\xff\xff" + name) == LoginOffer(0, ())
